"""Several files of a task's as one: compacted into a new file, or read merged as they lie.

The newest value of each key wins. Both are pure in their inputs, committed files that never change,
and take one range of keys after the other, so that memory does not grow with the state. What is
compacted when is in ``compaction_policy``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.records.schema import TableLayout
from headrace.state.run_merge import TableSlice, merge_runs, merged_schema
from headrace.state.segment import (
    ALL_GROUPS,
    SNAPSHOT,
    Section,
    SegmentHeader,
    SegmentInfo,
    SegmentReader,
    layout_of,
    open_runs,
)
from headrace.state.segment_writer import SegmentWriter
from headrace.state.sorted_run import SortedRun
from headrace.state.store import STAMP_BYTES, least_stamp

CHUNK_ROWS = 100_000
CHUNK_BYTES = 32 << 20
"""What is held at once, about, whichever is less."""

_ROW_BYTES = 16

MOST_COVERED = 4096
"""Positions that a merged file lists; a store that stands before the oldest starts over."""

Columns = tuple[pa.BinaryArray, pa.BinaryArray]
ReaderRange = tuple[SegmentReader, tuple[int, int]]
T = TypeVar("T")


class CompactionCancelledError(Exception):
    """Nobody wants the file any more."""


class CompactionInput(NamedTuple):
    """A file to merge: its checksum, and the key groups that it counts for."""

    path: Path
    checksum: int | None
    groups: tuple[int, int]


@dataclass(frozen=True)
class SegmentCompaction:
    """What is merged into what.

    Args:
        target: of the new file, which must not exist.
        header: of the new file, without ``covers``; of kind ``snapshot`` deletions go.
        stage, task: whose state it is.
        stores: of the stage.
        sources: oldest first.
        now_ms: the wall clock of a committed epoch; in a snapshot, what had expired by then goes.
        watermark: of the stage then, for tables that go by event time.
    """

    target: Path
    header: SegmentHeader
    stage: str
    task: int
    stores: tuple[StoreSpec, ...]
    sources: tuple[CompactionInput, ...]
    now_ms: int
    watermark: int | None = None


def compact_files(
    job: SegmentCompaction, files: Files, should_stop: Callable[[], bool] = lambda: False
) -> SegmentInfo:
    """Write the file, durably, and return what a commit record names.

    Args:
        job: what to do.
        files: the file system.
        should_stop: asked every now and then.

    Raises:
        CorruptDataError: a source is damaged or missing; names it.
        MergeStoppedError: it was asked to stop; nothing is left.
        OSError: the disk refused; nothing is left.
    """
    sources = [
        (SegmentReader(files, source.path, source.checksum), source.groups)
        for source in job.sources
    ]
    writer = SegmentWriter(files, job.target, _header(job.header, [r for r, _ in sources]))
    is_snapshot = job.header.kind == SNAPSHOT
    ttl_ms = {spec.name: spec.ttl_ms for spec in job.stores}
    # A slot's file holds the changes of other stages too, which are not this task's to keep.
    sections = [s for reader, _ in sources for s in reader.sections if s.stage == job.stage]
    for store in sorted({section.store for section in sections}):
        tables = [section for reader, _ in sources for section in reader.tables(store)]
        if tables:
            rows = _merge_table(store, tables[-1], sources, job)
            _add_table(writer, job, tables[-1], *rows, should_stop)
            continue
        least = None
        if is_snapshot and (ttl := ttl_ms.get(store)) is not None:
            least = least_stamp(job.now_ms, ttl)
        entries = merge_entries(store, sources, drop_deleted=is_snapshot, least=least)
        writer.add_batches(job.stage, job.task, store, _stopping(entries, should_stop))
    try:
        return writer.close()
    except BaseException:
        job.target.unlink(missing_ok=True)
        raise


def _header(header: SegmentHeader, readers: Sequence[SegmentReader]) -> SegmentHeader:
    """Add which positions a segment stands for; a snapshot cannot be applied within."""
    if header.kind == SNAPSHOT:
        return header
    covers: list[tuple[int, str]] = []
    for reader in readers:
        found = reader.header
        covers += found.covers or ((found.epoch, found.attempt),)
    return msgspec.structs.replace(header, covers=tuple(covers[-MOST_COVERED:]))


def _merge_table(
    store: str, newest: Section, sources: Sequence[ReaderRange], job: SegmentCompaction
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    ttl_ms = {spec.name: spec.ttl_ms for spec in job.stores}
    layout = layout_of(newest)
    if layout.ttl_ms is not None:  # what holds now, not when the file was written
        layout = replace(layout, ttl_ms=ttl_ms.get(store) or layout.ttl_ms)
    runs = [run for reader, groups in sources for run in open_runs(reader, store, layout, groups)]
    # Rows that lie over no others may go whatever is below.
    drop = job.header.kind == SNAPSHOT or layout.repeats
    now_ms = job.watermark if layout.by_event else job.now_ms
    return merged_schema(runs, layout, drop), merge_runs(runs, layout, drop, now_ms)


def _add_table(
    writer: SegmentWriter,
    job: SegmentCompaction,
    newest: Section,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    should_stop: Callable[[], bool],
) -> None:
    assert newest.table is not None
    groups = newest.table.key_groups
    rows = _stopping(batches, should_stop)
    writer.add_table(job.stage, job.task, newest.store, schema, rows, groups)


def _stopping(batches: Iterator[T], should_stop: Callable[[], bool]) -> Iterator[T]:
    for batch in batches:
        if should_stop():
            raise CompactionCancelledError
        yield batch


def merge_entries(
    store: str,
    sources: Sequence[ReaderRange],
    *,
    drop_deleted: bool,
    least: bytes | None = None,
) -> Iterator[Columns]:
    """Yield keys and values of a store, rising by key, none twice.

    Args:
        store: its name.
        sources: files, oldest first, each with the key groups it counts for.
        drop_deleted: leave out deletions, for nothing older is below.
        least: the stamp of the oldest values that are still seen; older ones are left out too.
    """
    parts_of = ((s, own) for reader, own in sources for s in reader.sections_of(store, own))
    sizes = group_sizes(parts_of)
    rows = {group: count for group, (count, _) in sizes.items()}
    size = sum(held for _, held in sizes.values())
    most = max(1, min(CHUNK_ROWS, int(CHUNK_BYTES * sum(rows.values()) / max(1, size))))
    for low, high in _ranges(rows, most):
        held = [
            found
            for reader, groups in reversed(sources)
            if (found := list(_within(reader, store, groups, low, high)))
        ]
        parts = [columns for found in held for columns in found]
        # What is in one file alone is in order already.
        for some in _cut(parts, most) if len(held) > 1 else ([part] for part in parts):
            merged = _newest(some, drop_deleted=drop_deleted, least=least)
            if len(merged[0]):
                yield merged


def group_sizes(parts: Iterable[tuple[Section, tuple[int, int]]]) -> dict[int, tuple[int, float]]:
    """Return how many rows, and about how many bytes, there are of each key group.

    Args:
        parts: sections, each with the key groups that it counts for.
    """
    sizes: dict[int, tuple[int, float]] = {}
    for section, (low, high) in parts:
        width = (section.end - section.begin) / max(1, section.rows)
        cuts = pairwise((*section.starts, section.rows))
        for group, (begin, end) in zip(section.groups, cuts, strict=True):
            if low <= group < high:
                rows, size = sizes.get(group, (0, 0.0))
                sizes[group] = rows + end - begin, size + (end - begin) * width
    return sizes


def _ranges(rows: Mapping[int, int], most: int) -> Iterator[tuple[int, int]]:
    """Cut the key groups into ranges of about so many rows."""
    begin, total = -1, 0
    for group in sorted(rows):
        if total and total + rows[group] > most:
            yield begin, group
            total = 0
        begin = group if not total else begin
        total += rows[group]
    if total:
        yield begin, max(rows) + 1


def _within(
    reader: SegmentReader, store: str, groups: tuple[int, int], low: int, high: int
) -> Iterator[Columns]:
    low, high = max(low, groups[0]), min(high, groups[1])
    return reader.columns(store, (low, high)) if low < high else iter(())


class SortedKeys(Sequence[bytes]):
    """A sorted column of keys, for ``bisect``."""

    def __init__(self, column: pa.BinaryArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._column[at].as_py()


def _cut(parts: Sequence[Columns], most: int) -> Iterator[list[Columns]]:
    """Cut what a few key groups alone make too large, by keys of its largest part."""
    rows = sum(len(keys) for keys, _ in parts)
    size = sum(keys.nbytes + values.nbytes for keys, values in parts)
    pivots = _pivots(parts, max(rows // most, size // CHUNK_BYTES))
    if not pivots:
        yield list(parts)
        return
    places = [[bisect_left(SortedKeys(keys), pivot) for pivot in pivots] for keys, _ in parts]
    cuts = [
        list(pairwise([0, *found, len(keys)]))
        for found, (keys, _) in zip(places, parts, strict=True)
    ]
    for number in range(len(pivots) + 1):
        some = []
        for (keys, values), found in zip(parts, cuts, strict=True):
            begin, end = found[number]
            if begin < end:
                some.append((keys[begin:end], values[begin:end]))
        if some:
            # Where another part is heavy between two pivots, it is the largest there.
            yield from _cut(some, most)


def _pivots(parts: Sequence[Columns], count: int) -> list[bytes]:
    """Return keys that cut the largest part into so many pieces of about one size."""
    if count < 2:
        return []
    keys, values = max(parts, key=lambda part: part[0].nbytes + part[1].nbytes)
    lengths = [pc.fill_null(pc.binary_length(column), 0).to_numpy() for column in (keys, values)]
    ends = np.cumsum(lengths[0].astype(np.int64) + lengths[1] + _ROW_BYTES)
    wanted = ends[-1] * np.arange(1, count) // count
    places = np.unique(np.searchsorted(ends, wanted) + 1)
    return [keys[at].as_py() for at in places.tolist() if at < len(keys)]


def _newest(parts: Sequence[Columns], *, drop_deleted: bool, least: bytes | None) -> Columns:
    """Merge sorted parts, the newest first."""
    keys = pa.concat_arrays([keys for keys, _ in parts])
    values = pa.concat_arrays([values for _, values in parts])
    order = None
    if len(parts) > 1:
        order = pc.sort_indices(keys)  # stable: the newest of equal keys comes first
        keys = keys.take(order)
        first = np.ones(len(keys), bool)
        first[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if not first.all():
            mask = pa.array(first)
            keys, order = keys.filter(mask), order.filter(mask)
        values = values.take(order)
    if not drop_deleted:
        return keys, values
    stays = pc.is_valid(values)
    if least is not None:
        stamps = pc.binary_slice(values, 0, STAMP_BYTES)
        stays = pc.and_(stays, pc.fill_null(pc.greater_equal(stamps, least), False))
    if pc.all(stays).as_py():
        return keys, values
    return keys.filter(stays), values.filter(stays)


Entries = tuple[list[bytes], list[bytes]]


@dataclass(frozen=True)
class SegmentRange:
    """A file, and what it counts for: key groups (the first, and the one after the last), a stage.

    A file serves all tasks of a slot; without a ``stage`` it counts for whichever it has.
    """

    reader: SegmentReader
    groups: tuple[int, int]
    stage: str | None = None


class MergedEntries:
    """One store over several files.

    Args:
        store: its name.
        sources: oldest first, where they hold the same key groups.
    """

    def __init__(self, store: str, sources: Sequence[SegmentRange]) -> None:
        self._store = store
        self._sources = [source for source in sources if self._sections(source)]

    def _sections(self, source: SegmentRange) -> list[Any]:
        sections = source.reader.sections_of(self._store, source.groups)
        return [section for section in sections if source.stage in (None, section.stage)]

    @property
    def headers(self) -> list[SegmentHeader]:
        """Of each file that holds something of the store."""
        readers = {source.reader.path: source.reader for source in self._sources}
        return [reader.header for reader in readers.values()]

    @property
    def rows(self) -> int:
        """How many entries and deletions the files hold together: at least the live entries."""
        return sum(rows for rows, _ in self._sizes().values())

    @property
    def size(self) -> int:
        """About how many bytes of the files these are."""
        return round(sum(size for _, size in self._sizes().values()))

    @property
    def is_exact(self) -> bool:
        """Say whether ``rows`` is the number of live entries, for nothing was overwritten."""
        held: Counter[int] = Counter()
        for source in self._sources:
            if source.reader.header.kind != "snapshot":
                return not self._sources
            held.update(self._groups_of(source))
        return all(count == 1 for count in held.values())

    def _groups_of(self, source: SegmentRange) -> set[int]:
        low, high = source.groups
        sections = self._sections(source)
        return {group for s in sections for group in s.groups if low <= group < high}

    def _sizes(self) -> dict[int, tuple[int, float]]:
        """Rows and bytes of each key group, over all files."""
        return group_sizes(
            (section, source.groups)
            for source in self._sources
            for section in self._sections(source)
        )

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a full key; reads that key group of each file, newest first."""
        group = int.from_bytes(key[:2], "big")
        for source in reversed(self._sources):
            if not source.groups[0] <= group < source.groups[1]:
                continue
            for keys, values in source.reader.columns(self._store, (group, group + 1)):
                at = bisect_left(SortedKeys(keys), key)
                if at < len(keys) and keys[at].as_py() == key:
                    found: bytes | None = values[at].as_py()
                    return found
        return None

    def key_columns(self) -> Iterator[pa.BinaryArray]:
        """Yield the full keys of all files, those deleted since too, without their values."""
        for source in self._sources:
            yield from source.reader.keys(self._store, source.groups)

    def batches(self, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[Entries]:
        """Yield full keys and values, rising by key, none twice."""
        parts = []
        for source in self._sources:
            low, high = max(groups[0], source.groups[0]), min(groups[1], source.groups[1])
            if low < high:
                parts.append((source.reader, (low, high)))
        for keys, values in merge_entries(self._store, parts, drop_deleted=True):
            yield keys.to_pylist(), values.to_pylist()


EVERY_ROW = TableSlice()
SLICE_ROWS = 1 << 17
"""Rows that are merged at once, about."""


class MergedTable:
    """One table over several files.

    Args:
        store: its name.
        sources: oldest first, where they hold the same key groups.
        now_ms: the wall clock of the epoch, for rows that live for a time.
        ttl_ms: how long they do now; by default as when the newest file was written.
        watermarks: of stages, for a table that goes by event time.
    """

    def __init__(
        self,
        store: str,
        sources: Sequence[SegmentRange],
        now_ms: int | None = None,
        ttl_ms: int | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self._now_ms, self._ttl_ms = now_ms, ttl_ms
        held = [source for source in sources if _has(source, store)]
        self._runs: list[SortedRun] = []
        for source in held:
            self._runs += open_runs(source.reader, store, groups=source.groups)
        if watermarks is not None and self._runs and self._runs[-1].layout.by_event:
            stages = {source.stage for source in held if source.stage is not None}
            known = [watermarks[stage] for stage in stages if stage in watermarks]
            self._now_ms = min(known) if known and len(known) == len(stages) else None
        self._files = {source.reader.path: source.reader.header for source in held}

    @property
    def layout(self) -> TableLayout | None:
        """The columns of the table; ``None`` where nothing was ever written."""
        if not self._runs:
            return None
        layout = self._runs[-1].layout
        if layout.ttl_ms is None or self._ttl_ms is None:
            return layout
        return replace(layout, ttl_ms=self._ttl_ms)

    @property
    def headers(self) -> list[SegmentHeader]:
        """Of each file that holds something of the table."""
        return list(self._files.values())

    @property
    def rows(self) -> int:
        """How many rows and deletions the files hold together: at least the live rows."""
        return sum(run.rows for run in self._runs)

    @property
    def size(self) -> int:
        """About how many bytes of the files these are."""
        return sum(run.size for run in self._runs)

    @property
    def is_exact(self) -> bool:
        """Say whether ``rows`` is the number of live rows, for nothing can be overwritten."""
        return not self._runs

    def batches(self, part: TableSlice = EVERY_ROW) -> Iterator[pa.RecordBatch]:
        """Yield the live rows, by cluster and hash, in bounded batches.

        Args:
            part: only these.
        """
        layout = self.layout
        if layout is not None:
            yield from merge_runs(
                self._runs, layout, True, self._now_ms, part, slice_rows=SLICE_ROWS
            )

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of each key, also of those that are gone: their ``DELETED`` is true.

        The column is there, as the last one, where any file says that rows are gone.
        """
        if (layout := self.layout) is not None:
            yield from merge_runs(self._runs, layout, False, slice_rows=SLICE_ROWS)


def _has(source: SegmentRange, store: str) -> bool:
    """Say whether a file has the store, and counts for its stage: it serves several."""
    sections = source.reader.tables(store, source.groups)
    return any(source.stage in (None, section.stage) for section in sections)
