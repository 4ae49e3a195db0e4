"""Tables in segment files: mapped as they were written, by key groups, and no damage is missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.soak import places

from headrace.errors import CorruptDataError, InternalError, InvalidInputError
from headrace.files import Files
from headrace.records.keys import encode_columns, key_groups
from headrace.records.schema import TableLayout
from headrace.state import segment
from headrace.state.columnar_table import ColumnarTable, TableChanges
from headrace.state.columns import TableKeys
from headrace.state.segment import SegmentHeader, SegmentReader, layout_of, open_runs
from headrace.state.segment_writer import SegmentWriter
from headrace.state.sorted_run import BloomFilter

FILES = Files(sync=False)
HEADER = SegmentHeader("changelog", "job", "line", 3, 7, "attempt")
KEYS = pa.schema([("id", pa.int64()), ("name", pa.string())])
VALUES = pa.schema([("count", pa.int64()), ("many", pa.list_(pa.string()))])
LAYOUT = TableLayout(KEYS, VALUES, cluster=True)
GROUPS = 8


def changes(ids, deleted=()) -> TableChanges:
    table = ColumnarTable(LAYOUT)
    for own in (ids, deleted):
        batch = pa.record_batch({"id": pa.array(own, pa.int64()), "name": [str(n) for n in own]})
        keys = TableKeys.of(LAYOUT, batch, np.array(own, np.int64) % 3)
        if own is deleted:
            table.delete(keys)
        else:
            many = pa.array([[str(n)] * (n % 3) for n in own], pa.list_(pa.string()))
            values = pa.record_batch({"count": pa.array(own, pa.int64()), "many": many})
            table.put(keys, values.take(pa.array(keys.order)))
    found = table.seal()
    assert found is not None
    return found


def write(path: Path, *tasks: TableChanges) -> int:
    writer = SegmentWriter(FILES, path, HEADER)
    writer.add("s", 0, "entries", [b"\0\1key"], [b"value"])
    for task, own in enumerate(tasks):
        writer.add_table("s", task, "t", own.schema, own.batches, GROUPS)
    writer.add("s", 1, "entries", [b"\0\2key"], [b"value"])
    return writer.close().checksum


def scanned(path: Path, groups=(0, GROUPS), checksum=None) -> list[int]:
    runs = open_runs(SegmentReader(FILES, path, checksum), "t", LAYOUT, groups)
    table = ColumnarTable(LAYOUT)
    table.attach(runs)
    return sorted(n for batch in table.scan() for n in batch["count"].to_pylist())


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    own = changes(range(50), range(40, 60))
    write(tmp_path / "f", own)
    reader = SegmentReader(FILES, tmp_path / "f")
    [section] = reader.tables("t")
    assert layout_of(section) == LAYOUT
    assert (section.rows, section.groups) == (60, ())
    assert reader.piece(section, 0).equals(own.batches[0])
    [run] = open_runs(reader, "t")
    assert (run.rows, run.clusters(), run.has_deletes) == (60, {0, 1, 2}, True)
    assert scanned(tmp_path / "f") == list(range(40))
    assert len(reader.read("entries")[0]) == 2
    assert reader.read("t") == ([], [])
    reader.verify()


def test_a_run_lies_in_the_file_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "RUN_BLOCK_ROWS", 7)
    write(tmp_path / "f", changes(range(50)))
    [run] = open_runs(SegmentReader(FILES, tmp_path / "f"), "t", LAYOUT)
    assert [piece.info.rows for piece in run.pieces] == [7] * 7 + [1]
    assert scanned(tmp_path / "f") == list(range(50))
    table = ColumnarTable(LAYOUT)
    table.attach([run])
    wanted = [n for n in range(-20, 70) if n % 2]
    batch = pa.record_batch({"id": wanted, "name": [str(n) for n in wanted]})
    keys = TableKeys.of(LAYOUT, batch, np.array(wanted) % 3)
    found = table.get(keys)
    assert sorted(found.values["count"].to_pylist()) == [n for n in wanted if 0 <= n < 50]


def test_only_what_is_looked_for_is_read(tmp_path: Path) -> None:
    write(tmp_path / "f", changes(range(50)))
    reader = SegmentReader(FILES, tmp_path / "f")
    table = ColumnarTable(LAYOUT)
    table.attach(open_runs(reader, "t", LAYOUT))
    assert table.clusters() == [0, 1, 2]
    batch = pa.record_batch({"id": [1], "name": ["1"]})
    table.get(TableKeys.of(LAYOUT, batch, np.array([9])))
    assert reader.bytes_read == 0


def test_rows_of_some_key_groups_are_taken_from_the_files_of_any_task(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": range(90), "name": [str(n) for n in range(90)]})
    groups = key_groups(encode_columns(batch.columns).hashes(), GROUPS)
    parts = [[n for n in range(90) if low <= groups[n] < low + 4] for low in (0, 4)]
    write(tmp_path / "f", *map(changes, parts))
    assert scanned(tmp_path / "f") == list(range(90))
    for low, high in [(0, 3), (3, 6), (6, 8), (4, 8)]:
        wanted = [n for n in range(90) if low <= groups[n] < high]
        assert scanned(tmp_path / "f", (low, high)) == wanted
        [*runs] = open_runs(SegmentReader(FILES, tmp_path / "f"), "t", LAYOUT, (low, high))
        table = ColumnarTable(LAYOUT)
        table.attach(runs)
        found = table.get(TableKeys.of(LAYOUT, batch, np.arange(90) % 3))
        assert sorted(found.values["count"].to_pylist()) == wanted


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "f", changes(range(5)))
    other = TableLayout(KEYS, pa.schema([("count", pa.float64())]), cluster=True)
    with pytest.raises(InvalidInputError, match=r"epoch 7 holds columns .*count int64"):
        open_runs(SegmentReader(FILES, tmp_path / "f"), "t", other)


def test_batches_out_of_order_or_of_other_columns_are_never_written(tmp_path: Path) -> None:
    own, more = changes(range(20)), changes(range(20), range(5))
    for name, batches, found in [
        ("a", [own.batches[0], own.batches[0]], "out of order"),
        ("b", [own.batches[0], more.batches[0]], "differ in their columns"),
    ]:
        writer = SegmentWriter(FILES, tmp_path / name, HEADER)
        writer.add_table("s", 0, "t", own.schema, batches, GROUPS)
        with pytest.raises(InternalError, match=found):
            writer.close()


IDS = TableLayout(pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))


def write_ids(path: Path, ids: range) -> None:
    keys = TableKeys.of(IDS, pa.record_batch({"id": pa.array(ids)}))
    table = ColumnarTable(IDS)
    table.put(keys, pa.record_batch({"n": keys.columns[0]}))
    own = table.seal()
    assert own is not None
    writer = SegmentWriter(FILES, path, HEADER)
    writer.add_table("s", 0, "t", own.schema, own.batches, GROUPS)
    writer.close()


def test_a_filter_tells_of_most_keys_that_they_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "LEAST_ROWS", 500)
    monkeypatch.setattr(segment, "RUN_BLOCK_ROWS", 2000)
    write_ids(tmp_path / "f", range(4100))
    reader = SegmentReader(FILES, tmp_path / "f")
    [run] = open_runs(reader, "t", IDS)
    assert [piece.info.has_filter for piece in run.pieces] == [True, True, False]
    reader.verify()
    table = ColumnarTable(IDS)
    table.attach([run])
    for wanted in (range(-9000, 0), range(-9000, 4100), range(4100), range(5000)):
        keys = TableKeys.of(IDS, pa.record_batch({"id": pa.array(wanted)}))
        for piece in run.pieces[:2]:
            within = keys.hashes
            low, high = piece.info.first[1], piece.info.last[1]
            rows = np.flatnonzero((within >= np.uint64(low)) & (within <= np.uint64(high)))
            held = len(piece.find(keys, rows)[0])
            likely = len(piece.likely(keys, rows))
            assert held <= likely
            if wanted.start < 0:
                assert likely - held < 0.06 * (len(rows) - held)
        assert len(table.get(keys).index) == sum(0 <= n < 4100 for n in wanted)


@pytest.mark.parametrize("hashes", [[0], [5, 5, 5], [0, (1 << 64) - 1], [7, 8, 9]])
def test_a_filter_holds_the_hashes_it_was_made_of(hashes: list[int]) -> None:
    own = np.array(hashes, np.uint64)
    assert BloomFilter.build(own).may_hold(own).all()


def test_a_filter_tells_clusters_apart() -> None:
    """A key of one window is not taken for the same key in another, negative windows too."""
    random = np.random.default_rng(1)
    hashes = random.integers(0, 1 << 64, 4000, dtype=np.uint64)
    clusters = np.repeat(np.array([-10_000, 0, 10_000, 1 << 62]), 1000)
    found = BloomFilter(BloomFilter.build(hashes, clusters).words)
    assert found.may_hold(hashes, clusters).all()
    assert found.may_hold(hashes, clusters + 20_000).mean() < 0.06


def test_a_clustered_piece_asks_its_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a window are found, those of the same keys in another are mostly not looked for."""
    monkeypatch.setattr(segment, "LEAST_ROWS", 500)
    layout = TableLayout(IDS.keys, IDS.values, cluster=True)
    ids = pa.record_batch({"id": pa.array(range(3000))})
    keys = TableKeys.of(layout, ids, clusters=np.repeat(np.array([0, 60_000, 120_000]), 1000))
    table = ColumnarTable(layout)
    table.put(keys, pa.record_batch({"n": keys.columns[0]}))
    own = table.seal()
    assert own is not None
    writer = SegmentWriter(FILES, tmp_path / "f", HEADER)
    writer.add_table("s", 0, "t", own.schema, own.batches, GROUPS)
    writer.close()
    [run] = open_runs(SegmentReader(FILES, tmp_path / "f"), "t", layout)
    [piece] = run.pieces
    assert piece.info.has_filter
    every = np.arange(3000)
    assert len(piece.likely(keys, every)) == 3000
    moved = TableKeys.of(layout, ids, clusters=np.repeat(np.array([60_000, 120_000, 0]), 1000))
    [run] = open_runs(SegmentReader(FILES, tmp_path / "f"), "t", layout)
    assert len(run.pieces[0].likely(moved, every)) < 180


def test_a_flip_of_any_byte_of_a_filter_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "LEAST_ROWS", 10)
    write_ids(tmp_path / "f", range(40))
    whole = (tmp_path / "f").read_bytes()
    [section] = SegmentReader(FILES, tmp_path / "f").tables("t")
    for at in range(section.begin, section.end):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        (tmp_path / "g").write_bytes(data)
        with pytest.raises(CorruptDataError):
            SegmentReader(FILES, tmp_path / "g").verify()
        (tmp_path / "g").unlink()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_flip_of_any_byte_is_found(tmp_path: Path, is_pinned: bool) -> None:
    path, damaged = tmp_path / "f", tmp_path / "g"
    checksum = write(path, changes(range(4), [7]))
    whole = path.read_bytes()
    for at in places(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        damaged.write_bytes(data)
        with pytest.raises((CorruptDataError, InvalidInputError)) as raised:
            SegmentReader(FILES, damaged, checksum if is_pinned else None).verify()
        assert str(damaged) in str(raised.value)
        damaged.unlink()


def test_damage_within_a_table_is_found_when_it_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "f", changes(range(50)))
    [section] = SegmentReader(FILES, tmp_path / "f").tables("t")
    data = bytearray((tmp_path / "f").read_bytes())
    data[section.end - 100] ^= 1
    (tmp_path / "g").write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"g of epoch 7 is damaged at byte") as raised:
        scanned(tmp_path / "g")
    assert raised.value.fields == {"file": str(tmp_path / "g"), "epoch": 7}
