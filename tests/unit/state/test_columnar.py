"""Requests to a table, what it finds and scans, and what its layout refuses."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from headrace.errors import InvalidInputError
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import TableLayout
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import TableKeys, hash_range
from headrace.state.run_merge import TableSlice, merge_runs
from headrace.state.sorted_run import SortedRun

IDS = pa.schema([("id", pa.int64())])
COUNTS = pa.schema([("count", pa.int64())])
LAYOUT = TableLayout(IDS, COUNTS)
WINDOWS = TableLayout(IDS, COUNTS, cluster=True)


def keys_of(ids, clusters=None, layout=LAYOUT) -> TableKeys:
    batch = pa.record_batch({"id": pa.array(ids, pa.int64())})
    return TableKeys.of(layout, batch, None if clusters is None else np.array(clusters))


def put(table: ColumnarTable, ids, counts, clusters=None) -> None:
    keys = keys_of(ids, clusters, table.layout)
    table.put(keys, pa.record_batch({"count": pa.array(counts, pa.int64()).take(keys.order)}))


def rows(table: ColumnarTable, **scan) -> list[tuple]:
    names = (["__cluster"] if table.layout.cluster else []) + table.layout.keys.names + ["count"]
    found = [row for batch in table.scan(**scan) for row in batch.select(names).to_pylist()]
    return sorted(tuple(row.values()) for row in found)


def commit(table: ColumnarTable) -> None:
    changes = table.seal()
    assert changes is not None
    table.attach([*table.runs, SortedRun.of(table.layout, changes.batches)])


def test_keys_are_sorted_by_hash_and_name_the_callers_rows() -> None:
    keys = keys_of([5, 6, 7, 8])
    assert keys.hashes.tolist() == sorted(encode_columns([pa.array([5, 6, 7, 8])]).hashes())
    assert keys.columns[0].to_pylist() == [[5, 6, 7, 8][row] for row in keys.order]


def test_keys_with_clusters_are_sorted_by_these_first() -> None:
    keys = keys_of([5, 6, 7, 8], [2, 1, 2, 1], WINDOWS)
    assert keys.clusters is not None
    assert np.array_equal(keys.clusters, [1, 1, 2, 2])
    assert sorted(keys.columns[0].to_pylist()[:2]) == [6, 8]


def test_very_many_clusters_sort_as_few_do() -> None:
    clusters = np.arange(1 << 17)[::-1]
    keys = keys_of(np.arange(1 << 17), clusters, WINDOWS)
    assert keys.clusters is not None
    assert np.array_equal(keys.clusters, np.arange(1 << 17))
    assert np.array_equal(keys.order, clusters)


@pytest.mark.parametrize("mask", [(1 << 64) - 1, 1, 0])
def test_distinct_keys_tell_the_place_of_each_row(mask: int) -> None:
    ids = [3, 1, 3, 2, 1, 3, None]
    batch = pa.record_batch({"id": pa.array(ids, pa.int64())})
    hashes = encode_columns(batch.columns).hashes() & np.uint64(mask)
    keys, places = TableKeys.distinct(LAYOUT, batch, hashes=hashes)
    assert [keys.columns[0][at].as_py() for at in places] == ids
    assert len(keys) == 4
    assert [ids[row] for row in keys.order] == keys.columns[0].to_pylist()


def test_polars_frames_are_requests_and_values() -> None:
    layout = TableLayout(pa.schema([("name", pa.string())]), COUNTS)
    table = ColumnarTable(layout)
    frame = pl.DataFrame({"name": ["a", "b"], "count": [1, 2]})
    keys = TableKeys.of(layout, frame.select("name").to_arrow())
    table.put(keys, frame.select("count")[keys.order].to_arrow())
    found = table.get(keys)
    assert frame["count"][keys.order][found.index].to_list() == found.values[0].to_pylist()


def test_later_changes_of_an_epoch_lie_over_earlier_ones() -> None:
    table = ColumnarTable(LAYOUT)
    for count in range(40):
        put(table, [1, 100 + count], [count, count])
    table.delete(keys_of([100, 101]))
    put(table, [100], [7])
    assert rows(table)[:3] == [(1, 39), (100, 7), (102, 2)]
    commit(table)
    assert rows(table)[:3] == [(1, 39), (100, 7), (102, 2)]
    assert table.overlay_bytes == 0


def test_keys_that_are_deleted_and_put_again_leave_no_deletions() -> None:
    table = ColumnarTable(LAYOUT)
    table.delete(keys_of([1]))
    put(table, [1], [1])
    changes = table.seal()
    assert changes is not None
    assert [batch.schema for batch in changes.batches] == [changes.schema] == [LAYOUT.schema]


def test_a_scan_shows_the_table_as_it_was() -> None:
    table = ColumnarTable(LAYOUT)
    put(table, range(100), range(100))
    scan = table.scan()
    table.delete(keys_of(range(100)))
    assert sum(batch.num_rows for batch in scan) == 100
    assert rows(table) == []


def test_scanned_rows_can_be_deleted_by_what_they_tell() -> None:
    table = ColumnarTable(WINDOWS)
    put(table, [1, 2, 3], [1, 2, 3], [10, 20, 30])
    commit(table)
    for batch in table.scan(cluster_below=30):
        table.delete(TableKeys.of_rows(WINDOWS, batch))
    assert rows(table) == [(30, 3, 3)]
    assert rows(table, cluster_from=31) == []


def test_a_scan_can_be_of_some_key_groups() -> None:
    for layout in (LAYOUT, WINDOWS):
        table = ColumnarTable(layout)
        put(table, range(200), range(200), [n % 3 for n in range(200)] if layout.cluster else None)
        commit(table)
        groups = key_groups(encode_columns([pa.array(range(200))]).hashes(), 8)
        for group in (0, 2, 4, 6):
            part = TableSlice(hashes=hash_range(group, group + 2, 8))
            found = merge_runs(table.runs, layout, True, part=part)
            counts = [n for batch in found for n in batch["count"].to_pylist()]
            assert sorted(counts) == [n for n in range(200) if groups[n] in (group, group + 1)]


def test_parts_of_a_table_are_about_as_large() -> None:
    table = ColumnarTable(LAYOUT)
    assert not list(table.scan_part(0, 4))
    put(table, range(20_000), range(20_000))
    low = np.sort(encode_columns([pa.array(range(20_000))]).hashes())[5_000]
    commit(table)
    own = hash_range(0, -(-int(low) // (1 << 54)), 1024)  # a task has a part of all hashes
    table.attach([SortedRun(LAYOUT, table.runs[0].pieces, 1, own)])
    sizes = [sum(b.num_rows for b in table.scan_part(part, 8)) for part in range(8)]
    assert sum(sizes) == sum(batch.num_rows for batch in table.scan())
    assert min(sizes) > 500


def test_the_hashes_of_all_groups_are_all_hashes() -> None:
    for total in (1, 3, 512):
        ranges = [hash_range(group, group + 1, total) for group in range(total)]
        assert (ranges[0].first, ranges[-1].last) == (0, (1 << 64) - 1)
        assert all(a.last + 1 == b.first for a, b in pairwise(ranges))
        ends = np.array([edge for found in ranges for edge in found], np.uint64)
        assert key_groups(ends, total).tolist() == [g for g in range(total) for _ in range(2)]


def test_rows_that_were_not_written_for_a_time_are_gone() -> None:
    layout = TableLayout(IDS, COUNTS, ttl_ms=10)
    table = ColumnarTable(layout)
    table.begin(100)
    put(table, [1, 2], [1, 2])
    commit(table)
    table.begin(105)
    put(table, [2], [22])
    commit(table)
    table.begin(109)
    assert rows(table) == [(1, 1), (2, 22)]
    table.begin(110)
    assert rows(table) == [(2, 22)]
    assert len(table.get(keys_of([1, 2])).index) == 1
    kept = list(merge_runs(table.runs, layout, drop_deleted=False, now_ms=110))
    assert sum(batch.num_rows for batch in kept) == 2, "what lies below an expired row stays hidden"
    whole = list(merge_runs(table.runs, layout, drop_deleted=True, now_ms=110))
    assert sum(batch.num_rows for batch in whole) == 1


def test_a_table_may_have_no_values() -> None:
    layout = TableLayout(IDS, pa.schema([]))
    table = ColumnarTable(layout)
    keys = keys_of([1, 2], layout=layout)
    table.put(keys, pa.RecordBatch.from_struct_array(pa.array([{}] * 2, pa.struct([]))))
    found = table.get(keys_of([2, 3], layout=layout))
    assert (len(found.index), found.values.num_rows) == (1, 1)
    assert sum(batch.num_rows for batch in table.scan()) == 2


def test_many_clusters_of_few_rows_are_found_as_well() -> None:
    table = ColumnarTable(WINDOWS)
    ids = list(range(3000))
    put(table, ids, ids, [n // 2 for n in ids])
    commit(table)
    keys = keys_of([*ids, 1], [*(n // 2 for n in ids), 77], WINDOWS)
    found = table.get(keys)
    assert len(found.index) == 3000
    assert found.values[0].to_pylist() == [keys.columns[0][at].as_py() for at in found.index]
    assert table.clusters() == list(range(1500))


def test_what_is_live_is_told_from_a_sample() -> None:
    for layout in (LAYOUT, WINDOWS):
        table = ColumnarTable(layout)
        ids = np.arange(20_000)
        for _ in range(4):
            put(table, ids, ids, ids % 5 if layout.cluster else None)
            commit(table)
        total = sum(run.size for run in table.runs)
        assert table.live_bytes == pytest.approx(total / 4, rel=0.1)


def test_merges_in_small_slices_give_the_same_rows() -> None:
    table = ColumnarTable(WINDOWS)
    for step in range(3):
        ids = list(range(step * 10, 50))
        put(table, ids, [n * 10 + step for n in ids], [n % 4 for n in ids])
        commit(table)
    whole = list(merge_runs(table.runs, WINDOWS, drop_deleted=True))
    for slice_rows in (1, 7, 1000):
        batches = list(merge_runs(table.runs, WINDOWS, True, slice_rows=slice_rows))
        assert max(batch.num_rows for batch in batches) <= max(slice_rows, 1)
        assert pa.Table.from_batches(batches).equals(pa.Table.from_batches(whole))


def runs_of_tasks(tasks: int, total: int, layout: TableLayout, windows: int) -> list[SortedRun]:
    """Runs of three epochs over the same keys, each by each of so many tasks."""
    ids = list(range(total))
    keys = keys_of(ids, [n % windows for n in ids] if layout.cluster else None, layout)
    of_task = key_groups(keys.hashes, tasks)
    runs = []
    for epoch in range(3):
        values = pa.record_batch({"count": pa.array(keys.order * 10 + epoch)})
        for task in range(tasks):
            own = np.flatnonzero(of_task == task)
            clusters = [] if keys.clusters is None else [pa.array(keys.clusters[own])]
            columns = [column.take(pa.array(own)) for column in (*keys.columns, *values.columns)]
            columns = [pa.array(keys.hashes[own]), *clusters, *columns]
            runs.append(
                SortedRun.of(layout, [pa.RecordBatch.from_arrays(columns, schema=layout.schema)])
            )
    return runs


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWS])
def test_runs_of_many_tasks_are_merged_as_those_of_few(layout: TableLayout) -> None:
    whole = pa.Table.from_batches(merge_runs(runs_of_tasks(1, 3000, layout, 7), layout, True))
    runs = runs_of_tasks(60, 3000, layout, 7)
    for slice_rows in (50, 1000):
        batches = list(merge_runs(runs, layout, True, slice_rows=slice_rows))
        assert pa.Table.from_batches(batches).equals(whole)
        # Three rows of each key become one, and a turn leaves over half of what it looks at.
        assert len(batches) <= 2 * 9000 / slice_rows + 2


@pytest.mark.parametrize("windows", [1, 5])
def test_reading_costs_no_more_for_more_tasks_of_the_same_rows_each(windows: int) -> None:
    """Four times the tasks are four times the work: counted in calls, not in time."""

    def calls(tasks: int) -> int:
        layout = LAYOUT if windows == 1 else WINDOWS
        runs = runs_of_tasks(tasks, 60 * tasks, layout, windows)
        count = 0

        def counts(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(counts)
        try:
            rows = sum(b.num_rows for b in merge_runs(runs, layout, True, slice_rows=600))
        finally:
            sys.setprofile(None)
        assert rows == 60 * tasks
        return count

    assert calls(64) < 5 * calls(16)


@pytest.mark.parametrize(
    ("keys", "values", "found"),
    [
        ([], ["a"], "needs a key"),
        (["a"], ["a"], "are there twice"),
        (["__hash"], [], "are there twice"),
    ],
)
def test_a_layout_has_keys_and_each_name_once(keys, values, found) -> None:
    with pytest.raises(InvalidInputError, match=found):
        TableLayout(*(pa.schema([(n, pa.int64()) for n in names]) for names in (keys, values)))


def test_a_layout_is_told_by_the_schema_of_its_runs() -> None:
    for layout in (LAYOUT, WINDOWS, TableLayout(IDS, COUNTS, True, 5), TableLayout(IDS, COUNTS)):
        assert TableLayout.of(layout.schema) == layout
        assert TableLayout.of(layout.schema_with_deletes) == layout
    with pytest.raises(InvalidInputError, match="no run of a table"):
        TableLayout.of(COUNTS)
    with pytest.raises(InvalidInputError, match="ttl_ms is 0"):
        TableLayout(IDS, COUNTS, ttl_ms=0)


def test_merges_of_few_and_of_many_clusters_are_in_one_order() -> None:
    for divisor in (1000, 1):
        table = ColumnarTable(WINDOWS)
        for step in range(3):
            ids = np.arange(step * 100, 2000)
            put(table, ids, ids * 10 + step, ids // divisor)
            commit(table)
        found = rows(table)
        assert [row[1] for row in found] == list(range(2000))
        assert [row[2] % 10 for row in found] == [min(2, n // 100) for n in range(2000)]
