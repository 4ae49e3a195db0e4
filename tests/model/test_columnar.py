"""A columnar table is a dict, whatever its keys, runs, merges and collisions."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.files import Files
from headrace.records.keys import encode_columns, encode_key
from headrace.records.schema import TableLayout
from headrace.state import segment
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import TableKeys
from headrace.state.run_merge import merge_runs, merged_schema
from headrace.state.segment import SegmentHeader, SegmentReader, open_runs
from headrace.state.segment_writer import SegmentWriter
from headrace.state.sorted_run import SortedRun

pytestmark = pytest.mark.model

FILES = Files(sync=False)
DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int64(), [0, 1, -1, 2**62, -(2**63)]),
    "small": (pa.int16(), [None, 1, 2]),
    "string": (pa.string(), ["", "a", "a\0", "a\0\0b", "ü", None]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff", None]),
    "float": (pa.float64(), [0.0, -0.0, 1.0, math.nan, -math.inf, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "time": (pa.timestamp("us", tz="UTC"), [DAY, DAY + datetime.timedelta(microseconds=1), None]),
    "date": (pa.date32(), [DAY.date(), datetime.date(1960, 1, 1), None]),
}
VALUES = pa.schema([("n", pa.int64()), ("text", pa.string()), ("many", pa.list_(pa.int32()))])
values = st.tuples(
    st.none() | st.integers(-5, 5),
    st.none() | st.sampled_from(["", "x", "long " * 9]),
    st.none() | st.lists(st.integers(0, 3), max_size=2),
)
Key = tuple[Any, ...]


class Machine:
    """A table, the dict that it is, and the files of its runs."""

    def __init__(
        self, folder: Path, columns: list[str], *, cluster: bool, ttl_ms: int | None, bits: int
    ) -> None:
        keys = pa.schema([(name, COLUMNS[name][0]) for name in columns])
        self.layout = TableLayout(keys, VALUES, cluster, ttl_ms)
        self.table, self.mask = ColumnarTable(self.layout), np.uint64((1 << bits) - 1)
        self.folder, self.files = folder, 0
        self.runs: list[SortedRun] = []
        self.rows: dict[bytes, tuple[int, Key, tuple[Any, ...], int]] = {}
        self.now = 1_000
        self.table.begin(self.now)

    def ident(self, cluster: int, key: Key) -> bytes:
        return encode_key((cluster, *key))

    def request(self, wanted: list[tuple[int, Key]]) -> tuple[TableKeys, list[bytes]]:
        """Sort distinct keys; returns them with the name of each in the dict."""
        distinct = {self.ident(cluster, key): (cluster, key) for cluster, key in wanted}
        rows = list(distinct.values())
        arrays = [
            pa.array([key[at] for _, key in rows], field.type)
            for at, field in enumerate(self.layout.keys)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.layout.keys)
        hashes = encode_columns(batch.columns).hashes() & self.mask if rows else None
        clusters = np.array([cluster for cluster, _ in rows], np.int64)
        keys = TableKeys.of(self.layout, batch, clusters if self.layout.cluster else None, hashes)
        names = list(distinct)
        return keys, [names[at] for at in keys.order]

    def is_live(self, written: int) -> bool:
        ttl_ms = self.layout.ttl_ms
        return ttl_ms is None or written > self.now - ttl_ms

    def get(self, wanted: list[tuple[int, Key]]) -> None:
        keys, names = self.request(wanted)
        found = self.table.get(keys)
        got = dict(zip(found.index.tolist(), _rows(found.values), strict=True))
        expected = {
            at: self.rows[name][2]
            for at, name in enumerate(names)
            if name in self.rows and self.is_live(self.rows[name][3])
        }
        assert got == expected
        assert found.index.tolist() == sorted(expected)

    def put(self, wanted: list[tuple[int, Key]], drawn: list[tuple[Any, ...]]) -> None:
        keys, names = self.request(wanted)
        own = dict(zip(names, (drawn[at % len(drawn)] for at in range(len(names))), strict=True))
        columns = [
            pa.array([row[at] for row in own.values()], field.type)
            for at, field in enumerate(VALUES)
        ]
        self.table.put(keys, pa.RecordBatch.from_arrays(columns, schema=VALUES))
        by_name = {self.ident(cluster, key): (cluster, key) for cluster, key in wanted}
        for name, row in own.items():
            self.rows[name] = (*by_name[name], row, self.now)

    def delete(self, wanted: list[tuple[int, Key]]) -> None:
        keys, names = self.request(wanted)
        self.table.delete(keys)
        for name in names:
            self.rows.pop(name, None)

    def write(self, schema: pa.Schema, batches: Any) -> list[SortedRun]:
        """Write a run to a file, and open it from there."""
        self.files += 1
        path = self.folder / str(self.files)
        writer = SegmentWriter(FILES, path, SegmentHeader("changelog", "job", "l", 1, 1, "a"))
        writer.add_table("stage", 0, "t", schema, batches, 4)
        writer.close()
        return open_runs(SegmentReader(FILES, path), "t", self.layout)

    def commit(self, wait_ms: int) -> None:
        changes = self.table.seal()
        if changes is not None:
            self.runs += self.write(*changes)
        self.now += wait_ms
        self.table.attach(self.runs)
        self.table.begin(self.now)

    def merge(self, first: int, last: int, slice_rows: int) -> None:
        """Merge neighbouring runs; deletions go when the oldest is among them."""
        first = min(first, len(self.runs))
        own = self.runs[first : first + last]
        batches = merge_runs(own, self.layout, first == 0, self.now, slice_rows=slice_rows)
        schema = merged_schema(own, self.layout, first == 0)
        self.runs[first : first + last] = self.write(schema, batches)
        self.commit(0)

    def check(self, low: int | None, high: int | None) -> None:
        """Scan all rows of some clusters."""
        live = {
            name: row[2]
            for name, row in self.rows.items()
            if self.is_live(row[3])
            and (low is None or row[0] >= low)
            and (high is None or row[0] < high)
        }
        if not self.layout.cluster:
            low = high = None
            live = {name: row[2] for name, row in self.rows.items() if self.is_live(row[3])}
        found = list(self.scanned(low, high))
        assert dict(found) == live
        assert len(found) == len(live)
        if self.layout.cluster:
            present = {row[0] for row in self.rows.values() if self.is_live(row[3])}
            assert present <= set(self.table.clusters())
        whole = self.table.scan()
        parts = [name for part in range(3) for name, _ in self.named(self.table.scan_part(part, 3))]
        assert sorted(parts) == sorted(name for name, _ in self.named(whole))

    def scanned(self, low: int | None, high: int | None) -> Iterator[tuple[bytes, Any]]:
        return self.named(self.table.scan(cluster_from=low, cluster_below=high))

    def named(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, Any]]:
        last = (-1, -1)
        for batch in batches:
            clusters = batch.column("__cluster").to_pylist() if self.layout.cluster else None
            hashes = batch.column("__hash").to_pylist()
            places = list(zip(clusters or [0] * len(hashes), hashes, strict=True))
            assert [last, *places] == sorted([last, *places])
            last = places[-1]
            keys = _rows(batch.select(self.layout.keys.names))
            for place, key, row in zip(
                places, keys, _rows(batch.select(VALUES.names)), strict=True
            ):
                yield self.ident(place[0], key), row


def _rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in batch.columns]
    return list(zip(*columns, strict=True))


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "LEAST_ROWS", 2)
        patch.setattr(segment, "RUN_BLOCK_ROWS", 4)
        yield


@given(st.data())
def test_a_table_is_a_dict(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    names = data.draw(
        st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=2, unique=True)
    )
    machine = Machine(
        tmp_path_factory.mktemp("runs"),
        names,
        cluster=data.draw(st.booleans()),
        ttl_ms=data.draw(st.sampled_from([None, 50])),
        bits=data.draw(st.sampled_from([64, 1, 0])),
    )
    clusters = st.integers(0, 3) if machine.layout.cluster else st.just(0)
    keys = st.tuples(clusters, st.tuples(*(st.sampled_from(COLUMNS[name][1]) for name in names)))
    requests = st.lists(keys, max_size=8)
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["put", "put", "delete", "commit", "merge", "discard"])):
            case "put":
                machine.put(
                    data.draw(requests), data.draw(st.lists(values, min_size=1, max_size=3))
                )
            case "delete":
                machine.delete(data.draw(requests))
            case "commit":
                machine.commit(data.draw(st.integers(0, 60)))
            case "merge":
                machine.commit(0)
                machine.merge(
                    *data.draw(st.tuples(*[st.integers(0, 3)] * 2, st.sampled_from([1, 3, 99])))
                )
            case "discard":
                machine.commit(0)
                before = dict(machine.rows)
                machine.put(data.draw(requests), [(1, "gone", [])])
                machine.delete(data.draw(requests))
                machine.table.discard()
                machine.rows = before
        machine.get(data.draw(requests))
        machine.check(
            data.draw(st.none() | st.integers(0, 4)), data.draw(st.none() | st.integers(0, 4))
        )
