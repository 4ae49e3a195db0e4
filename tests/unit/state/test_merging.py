"""A merged file says what the files it stands for say together, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.records.schema import TableLayout
from headrace.state import compaction
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import TableKeys, hash_range
from headrace.state.compaction import (
    CompactionCancelledError,
    CompactionInput,
    SegmentCompaction,
    compact_files,
    merge_entries,
)
from headrace.state.segment import (
    CHANGELOG,
    SNAPSHOT,
    SegmentHeader,
    SegmentInfo,
    SegmentReader,
    open_runs,
)
from headrace.state.segment_writer import SegmentWriter
from headrace.state.store import ttl_stamp

FILES = Files(sync=False)
STORES = (StoreSpec("a", "rocksdb"), StoreSpec("b", "memory"))
GROUPS = (0, 8)
Entries = dict[bytes, bytes | None]


def header(kind: str, epoch: int) -> SegmentHeader:
    return SegmentHeader(kind, "job", "line", 1, epoch, f"attempt-{epoch}")  # type: ignore[arg-type]


def write(
    folder: Path,
    epoch: int,
    stores: dict[str, Entries],
    kind: str = CHANGELOG,
    groups: tuple[int, int] = GROUPS,
) -> CompactionInput:
    path = folder / f"segment-{epoch}"
    writer = SegmentWriter(FILES, path, header(kind, epoch))
    for store, entries in stores.items():
        keys = sorted(entries)
        writer.add("stage", 0, store, keys, [entries[key] for key in keys])
    return CompactionInput(path, writer.close().checksum, groups)


def job(
    folder: Path, sources: list[CompactionInput], kind: str = CHANGELOG, now: int = 0
) -> SegmentCompaction:
    return SegmentCompaction(
        folder / "merged", header(kind, 99), "stage", 0, STORES, tuple(sources), now_ms=now
    )


def merge(folder: Path, sources: list[CompactionInput], kind: str = CHANGELOG) -> SegmentReader:
    info = compact_files(job(folder, sources, kind), FILES)
    return SegmentReader(FILES, info.path, info.checksum)


def entries(reader: SegmentReader, store: str) -> Entries:
    keys, values = reader.read(store)
    assert keys == sorted(set(keys))
    return dict(zip(keys, values, strict=True))


full_keys = st.builds(
    lambda group, key: bytes([0, group]) + key, st.integers(0, 7), st.binary(max_size=3)
)
contents = st.dictionaries(full_keys, st.none() | st.binary(max_size=4), max_size=12)


@given(
    epochs=st.lists(st.fixed_dictionaries({"a": contents, "b": contents}), min_size=1, max_size=5),
    cuts=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), min_size=5, max_size=5),
    rows=st.integers(1, 20),
    is_snapshot=st.booleans(),
)
def test_the_newest_wins(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[dict[str, Entries]],
    cuts: list[tuple[int, int]],
    rows: int,
    is_snapshot: bool,
) -> None:
    """Against a dict: any sizes of chunks, files that count for some key groups only."""
    folder = tmp_path_factory.mktemp("merge")
    model: dict[str, Entries] = {"a": {}, "b": {}}
    sources = []
    for number, (stores, groups) in enumerate(zip(epochs, cuts, strict=False)):
        sources.append(write(folder, number, stores, groups=groups))
        for store, changes in stores.items():
            for key, value in changes.items():
                if groups[0] <= key[1] < groups[1]:
                    model[store][key] = value
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compaction, "CHUNK_ROWS", rows)
        found = merge(folder, sources, SNAPSHOT if is_snapshot else CHANGELOG)
    for store, expected in model.items():
        live = {k: v for k, v in expected.items() if v is not None or not is_snapshot}
        assert entries(found, store) == live
    found.verify()


def test_a_merged_file_lists_what_it_stands_for(tmp_path: Path) -> None:
    """A merged one among the sources with all of its own, up to a number of the newest."""
    one, two, three = (write(tmp_path, epoch, {"a": {b"\0\0k": b"v"}}) for epoch in (1, 2, 5))
    first = merge(tmp_path, [one, two])
    assert first.header.covers == ((1, "attempt-1"), (2, "attempt-2"))
    first.path.rename(tmp_path / "first")
    again = merge(tmp_path, [CompactionInput(tmp_path / "first", None, GROUPS), three])
    assert again.header.covers == ((1, "attempt-1"), (2, "attempt-2"), (5, "attempt-5"))
    (tmp_path / "merged").unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compaction, "MOST_COVERED", 2)
        assert merge(tmp_path, [one, two, three]).header.covers == again.header.covers[1:]
    (tmp_path / "merged").unlink()
    assert merge(tmp_path, [one, two], SNAPSHOT).header.covers == ()


def test_what_had_expired_leaves_a_snapshot_and_nothing_else(tmp_path: Path) -> None:
    """Only where nothing older is below: else an older value would be seen again."""
    values = {
        b"\0\1old": ttl_stamp(100) + b"v",
        b"\0\1new": ttl_stamp(151) + b"v",
        b"\0\2gone": None,
    }
    specs = (StoreSpec("a", "rocksdb", ttl_ms=50), StoreSpec("b", "rocksdb"))
    source = write(tmp_path, 1, {"a": values, "b": values})
    for kind, expected in ((SNAPSHOT, {b"\0\1new"}), (CHANGELOG, set(values))):
        made = SegmentCompaction(
            tmp_path / kind, header(kind, 2), "stage", 0, specs, (source,), now_ms=200
        )
        found = SegmentReader(FILES, compact_files(made, FILES).path)
        assert set(entries(found, "a")) == expected
        live = {key for key, value in values.items() if value is not None or kind != SNAPSHOT}
        assert set(entries(found, "b")) == live


def test_nothing_is_left_of_a_merge_that_was_stopped(tmp_path: Path) -> None:
    source = write(tmp_path, 1, {"a": {b"\0\0k": b"v"}, "b": {b"\0\0k": b"v"}})
    asked = iter([False, True])
    with pytest.raises(CompactionCancelledError):
        compact_files(job(tmp_path, [source]), FILES, lambda: next(asked))
    assert [path.name for path in tmp_path.iterdir()] == ["segment-1"]


def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    sources = [write(tmp_path, epoch, {"a": {b"\0\0k": bytes(200)}}) for epoch in (1, 2)]
    data = bytearray(sources[1].path.read_bytes())
    data[len(data) // 3] ^= 1
    sources[1].path.write_bytes(bytes(data))
    with pytest.raises(CorruptDataError, match="segment-2"):
        compact_files(job(tmp_path, sources), FILES)
    sources[1].path.unlink()
    with pytest.raises(CorruptDataError, match="segment-2"):
        compact_files(job(tmp_path, sources), FILES)
    assert not (tmp_path / "merged").exists()


def test_a_merge_holds_little_at_once_also_of_one_key_group(tmp_path: Path) -> None:
    """Chunks stay near their size when all keys are in one group, and when values are large."""
    keys = [b"\0\3" + number.to_bytes(4, "big") for number in range(5_000)]
    sources = [
        write(tmp_path, epoch, {"a": dict.fromkeys(keys[epoch::2], bytes(100))}) for epoch in (0, 1)
    ]
    readers = [(SegmentReader(FILES, s.path), s.groups) for s in sources]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compaction, "CHUNK_ROWS", 500)
        sizes = [len(keys) for keys, _ in merge_entries("a", readers, drop_deleted=False)]
        assert sum(sizes) == 5_000
        assert max(sizes) <= 1_100
        patched.setattr(compaction, "CHUNK_BYTES", 10_000)
        sizes = [len(keys) for keys, _ in merge_entries("a", readers, drop_deleted=False)]
        assert max(sizes) <= 200


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    sources = [write(tmp_path, n, {"a": {b"\0\0k": b"v", b"\0\1": None}}) for n in (1, 2)]
    made: list[tuple[SegmentInfo, bytes]] = []
    for _ in range(2):
        info = compact_files(job(tmp_path, sources), FILES)
        made.append((info, info.path.read_bytes()))
        info.path.unlink()
    assert made[0] == made[1]


LAYOUT = TableLayout(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))


def write_table(
    folder: Path,
    epoch: int,
    rows: dict[int, int | None],
    layout: TableLayout = LAYOUT,
    now_ms: int = 0,
) -> CompactionInput:
    """A segment with a run of a table, in which some rows delete."""
    table = ColumnarTable(layout)
    table.begin(now_ms)
    for wanted in (True, False):
        own = [key for key, value in rows.items() if (value is None) is wanted]
        if own:
            keys = TableKeys.of(layout, pa.record_batch({"k": pa.array(own, pa.int64())}))
            if wanted:
                table.delete(keys)
            else:
                table.put(keys, _values(keys, rows))
    changes = table.seal()
    assert changes is not None
    path = folder / f"table-{epoch}"
    writer = SegmentWriter(FILES, path, header(CHANGELOG, epoch))
    writer.add_table("stage", 0, "t", changes.schema, changes.batches, 8)
    writer.add("stage", 0, "a", [b"\0\1k"], [b"v"])
    return CompactionInput(path, writer.close().checksum, GROUPS)


def table_keys(found: SegmentReader, layout: TableLayout = LAYOUT) -> set[int]:
    """The keys of the rows, deletions included."""
    pieces = [piece for run in open_runs(found, "t", layout) for piece in run.pieces]
    return {key for piece in pieces for key in piece.keys[0].to_pylist()}


def _values(keys: TableKeys, rows: dict[int, int | None]) -> pa.RecordBatch:
    values = [rows[key] for key in keys.columns[0].to_pylist()]
    return pa.record_batch({"v": pa.array(values, pa.int64())})


table_rows = st.dictionaries(st.integers(0, 40), st.none() | st.integers(0, 9), min_size=1)


@given(
    epochs=st.lists(table_rows, min_size=1, max_size=4),
    groups=st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda cut: cut[0] < cut[1]),
    is_snapshot=st.booleans(),
)
def test_runs_of_tables_are_merged_too(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[dict[int, int | None]],
    groups: tuple[int, int],
    is_snapshot: bool,
) -> None:
    """Beside entries, in one file; the key groups of each file count."""
    folder = tmp_path_factory.mktemp("tables")
    model: dict[int, int | None] = {}
    sources = []
    for number, rows in enumerate(epochs):
        source = write_table(folder, number, rows)
        sources.append(source._replace(groups=groups))
        model.update(rows)
    found = merge(folder, sources, SNAPSHOT if is_snapshot else CHANGELOG)
    held = table_keys(found)
    wanted = hash_range(*groups, 8)
    every = TableKeys.of(LAYOUT, pa.record_batch({"k": pa.array(sorted(model), pa.int64())}))
    own = {
        key
        for key, value in zip(every.columns[0].to_pylist(), every.hashes.tolist(), strict=True)
        if wanted.first <= value <= wanted.last
    }
    assert held == {k for k in own if model[k] is not None or not is_snapshot}
    found.verify()
    assert found.read("a")[0] == ([b"\0\1k"] if groups[0] <= 1 < groups[1] else [])


def test_what_had_expired_leaves_a_snapshot_of_a_table_and_nothing_else(tmp_path: Path) -> None:
    """By the wall clock that the order names, and the time to live that the store has now."""
    timed = replace(LAYOUT, ttl_ms=90)
    old = write_table(tmp_path, 1, {1: 1, 2: 2}, timed, now_ms=100)
    new = write_table(tmp_path, 2, {2: 3, 3: 4}, timed, now_ms=150)

    def left(kind: str, now_ms: int, ttl_ms: int | None = None) -> set[int]:
        specs = (StoreSpec("t", "columnar", ttl_ms=ttl_ms),)
        path = tmp_path / f"{kind}-{now_ms}-{ttl_ms}"
        made = SegmentCompaction(path, header(kind, 9), "stage", 0, specs, (old, new), now_ms)
        return table_keys(SegmentReader(FILES, compact_files(made, FILES).path), timed)

    assert left(CHANGELOG, 1000) == {1, 2, 3}
    assert left(SNAPSHOT, 189) == {1, 2, 3}
    assert left(SNAPSHOT, 190) == {2, 3}
    assert left(SNAPSHOT, 240) == set()
    assert left(SNAPSHOT, 240, ttl_ms=91) == {2, 3}


def test_what_is_held_at_once_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few large values among many small ones, in one key group, beside each other or not."""
    monkeypatch.setattr(compaction, "CHUNK_BYTES", 10_000)
    small: Entries = {b"\0\0" + f"{n:06d}".encode(): b"v" for n in range(2000)}
    large: Entries = {b"\0\0" + f"{n:06d}x".encode(): b"w" * 1000 for n in range(700, 800)}
    sources = [write(tmp_path, 1, {"a": small}), write(tmp_path, 2, {"a": large})]
    opened = [(SegmentReader(FILES, source.path), source.groups) for source in sources]
    found: Entries = {}
    for keys, values in merge_entries("a", opened, drop_deleted=True):
        assert keys.nbytes + values.nbytes < 4 * 10_000
        found.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    assert found == {**small, **large}
