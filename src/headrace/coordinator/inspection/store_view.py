"""One store as of one epoch: its rows, the rows of a key, and what differs from another epoch.

``StoreView`` is a key-value store. Of a ``TableView`` rows come as columns and stay columns.
``export_parquet`` writes either, in one order and with bounded memory whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.coordinator.catalog import StoreEntry
from headrace.coordinator.inspection.store_rows import StoreRows
from headrace.errors import InvalidInputError
from headrace.files import temporary_path
from headrace.records.keys import (
    BOOL,
    FLOAT,
    STRING,
    decode_key,
    encode_columns,
    encode_key,
    encode_value,
    hash_key,
    hash_within,
    key_groups,
)
from headrace.records.schema import CLUSTER, DELETED, HASH, schema_from_text
from headrace.runtime.windows.partial_table import TOTALS
from headrace.state.columns import ALL_HASHES, HashRange, hash_range
from headrace.state.compaction import Entries, MergedEntries, MergedTable, SegmentRange
from headrace.state.run_merge import TableSlice
from headrace.state.segment import ALL_GROUPS
from headrace.state.store import STAMP_BYTES, least_stamp, without_stamp

_GROUP_BYTES = 2
_FIXED_BYTES = 9
"""A tag and eight bytes: integers, dates, timestamps and floats."""


def have_same_key_kinds(keys: pa.BinaryArray, first: bytes) -> bool:
    """Say whether the full keys of a column have the kinds of values that another one has.

    Args:
        keys: at least one.
        first: a full key.
    """
    _, offsets, data = keys.buffers()
    cuts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content = np.frombuffer(data, np.uint8)
    if _is_quickly_alike(content, cuts, first):
        return True
    kinds = _kinds(first)
    return all(_kinds(key) == kinds for key in keys.to_pylist())


def _kinds(key: bytes) -> list[type]:
    return [type(value) for value in decode_key(key[_GROUP_BYTES:])]


def _is_quickly_alike(
    content: npt.NDArray[np.uint8], cuts: npt.NDArray[np.int32], first: bytes
) -> bool:
    begins = cuts[:-1].astype(np.int64) + _GROUP_BYTES
    if first[_GROUP_BYTES] == STRING and _is_one_text(first):
        return bool((content[begins] == STRING).all()) and _are_one_text(content, cuts)
    tags = _tags(first)
    if tags is None or not (np.diff(cuts) == len(first)).all():
        return False
    return all(bool((content[begins + at] == tag).all()) for at, tag in tags)


def _tags(key: bytes) -> list[tuple[int, int]] | None:
    """The places of the tags after the key group, where all values are of fixed width."""
    found = []
    at = 0
    while at < len(key) - _GROUP_BYTES:
        tag = key[_GROUP_BYTES + at]
        if not BOOL < tag <= FLOAT:
            return None
        found.append((at, tag))
        at += _FIXED_BYTES
    return found


def _is_one_text(key: bytes) -> bool:
    return key.find(b"\0\0", _GROUP_BYTES + 1) == len(key) - 2


def _are_one_text(content: npt.NDArray[np.uint8], cuts: npt.NDArray[np.int32]) -> bool:
    """Say whether each key ends with the first mark of an end in it: two bytes of 0."""
    begin, end = int(cuts[0]), int(cuts[-1])
    zeros = content[begin:end] == 0
    marks = np.flatnonzero(zeros[:-1] & zeros[1:]) + begin
    owner = np.searchsorted(cuts, marks, side="right") - 1
    within = (marks >= cuts[owner] + _GROUP_BYTES + 1) & (marks + 2 <= cuts[owner + 1])
    marks, owner = marks[within], owner[within]
    is_last = marks + 2 == cuts[owner + 1]
    return len(marks) == len(cuts) - 1 and bool(is_last.all())


Range = tuple[bytes, bytes | None]
ALL_ROWS: Range = (b"", None)
CHANGED_ROWS = 10_000


_Both = tuple[bytes, bytes | None, bytes | None]
Entry = tuple[bytes, bytes, bytes]
"""What it is ordered by, its full key and its value."""


class Change(NamedTuple):
    """A row before and after; ``None``: it was not there."""

    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def kind(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


class StoreView:
    """A key-value store of one epoch, over files that are open.

    Args:
        entry: what it holds.
        time_ms: the epoch's wall clock, for entries that live for a time.
        epoch: its number.
        key_groups: of the job.
        sources: files of its stage.
        partials: show the partial columns of aggregates, too.

    Raises:
        InvalidInputError: the store keeps nothing in the job's files.
    """

    def __init__(
        self,
        entry: StoreEntry,
        time_ms: int,
        epoch: int,
        key_groups: int,
        sources: Sequence[SegmentRange],
        *,
        partials: bool = False,
    ) -> None:
        if not entry.in_files:
            reason = "remote: look into its server" if entry.kind == "remote" else "not logged"
            raise InvalidInputError(
                f"store {entry.name!r} is not in the job's files, for it is {reason}"
            )
        self.entry, self.epoch, self._partials = entry, epoch, partials
        self.key_groups = key_groups
        self.keys = schema_from_text(entry.keys)
        self._open(sources, time_ms)
        self._least = None if entry.ttl_ms is None else least_stamp(time_ms, entry.ttl_ms)

    def _open(self, sources: Sequence[SegmentRange], time_ms: int) -> None:
        del time_ms  # what has expired is left out later
        self._entries = MergedEntries(self.entry.name, sources)

    def batches(
        self, keys: Range = ALL_ROWS, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches of one schema, by key group and then key.

        Args:
            keys: canonical keys between which entries lie: the first, and the one after the last.
            groups: key groups.
        """
        for found, values in self._visible(groups, keys):
            yield self.rows.batch(found, values)

    @property
    def held(self) -> MergedEntries | MergedTable:
        """The files that hold it."""
        return self._entries

    @cached_property
    def rows(self) -> StoreRows:
        """How entries look as rows."""
        return StoreRows(self.entry, self._settled(), partials=self._partials)

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches."""
        return self.rows.schema

    def count(self) -> int:
        """Return how many entries there are, by reading all keys."""
        return sum(len(keys) for keys, _ in self._visible(ALL_GROUPS, ALL_ROWS))

    def of_key(self, key: Sequence[Any], group: int) -> pa.RecordBatch | None:
        """Return the rows of a key in a key group; ``None`` when there are none.

        A processor's store and running totals have at most one, windows and timers any number.
        """
        wanted = encode_key(key)
        if self.entry.form in ("values", "totals"):
            full = group.to_bytes(2, "big") + wanted
            value = self._entries.get(full)
            if value is None or (self._least is not None and value[:STAMP_BYTES] < self._least):
                return None
            return StoreRows(self.entry, full, partials=self._partials).batch(
                [full], [without_stamp(value)]
            )
        skipped = 3 if self.entry.form == "timers" else 1
        found = [
            pair
            for keys, values in self._visible((group, group + 1), ALL_ROWS)
            for pair in zip(keys, values, strict=True)
            if encode_key(decode_key(pair[0][2:])[skipped:]) == wanted
        ]
        if not found:
            return None
        keys, values = zip(*found, strict=True)
        return self.rows.batch(keys, values)

    def _visible(self, groups: tuple[int, int], keys: Range) -> Iterator[Entries]:
        low, high = keys
        for found, values in self._entries.batches(groups):
            kept = [
                at
                for at, (key, value) in enumerate(zip(found, values, strict=True))
                if (key[2:] >= low and (high is None or key[2:] < high))
                and (self._least is None or value[:STAMP_BYTES] >= self._least)
            ]
            if kept:
                yield [found[at] for at in kept], [without_stamp(values[at]) for at in kept]

    def _settled(self) -> bytes | None:
        """A key of a processor's store, if all its keys are of the same kinds."""
        if self.entry.form != "values":
            return None
        first = None
        for keys in self._entries.key_columns():
            first = keys[0].as_py() if first is None else first
            if not have_same_key_kinds(keys, first):
                return None
        return first

    def changes_since(self, other: StoreView) -> Iterator[list[Change]]:
        """Yield what differs from another epoch, in the order of rows; in bounded memory."""
        rows: list[_Both] = []
        for row in _merge_joined(other.stream(), self.stream()):
            if row[1] != row[2]:
                rows.append(row)
            if len(rows) >= CHANGED_ROWS:
                yield self._changes(other, rows)
                rows = []
        if rows:
            yield self._changes(other, rows)

    def _changes(self, other: StoreView, rows: Sequence[_Both]) -> list[Change]:
        # A store that holds nothing, or keys of several kinds, has none of the other's columns.
        shape = (
            self.rows
            if self.schema == other.schema
            else StoreRows(self.entry, partials=self._partials)
        )
        old = shape.dicts([(key, value) for key, value, _ in rows if value is not None])
        new = shape.dicts([(key, value) for key, _, value in rows if value is not None])
        return [
            Change(
                None if before is None else next(old),
                None if after is None else next(new),
            )
            for _, before, after in rows
        ]

    def stream(self) -> Iterator[Entry]:
        """Yield visible entries one by one: what they are ordered by, full key, and value."""
        for keys, values in self._visible(ALL_GROUPS, ALL_ROWS):
            yield from zip(keys, keys, values, strict=True)


def _merge_joined(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[_Both]:
    """Join two streams of entries, in their order: full key, value before, value after."""
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield old[1], old[2], None
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            yield new[1], None, new[2]
            new = next(after, None)
        else:
            yield old[1], old[2], new[2]
            old, new = next(before, None), next(after, None)


_SIGN = 1 << 63


class TableView(StoreView):
    """A table of partial results of one epoch, over files that are open; see ``StoreView``.

    Rows come by bucket and by the hash of the key.
    """

    def _open(self, sources: Sequence[SegmentRange], time_ms: int) -> None:
        self._table = MergedTable(self.entry.name, sources, time_ms, self.entry.ttl_ms)

    def batches(
        self, keys: Range = ALL_ROWS, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches of one schema."""
        hashes = ALL_HASHES
        if groups != ALL_GROUPS:
            hashes = hash_range(groups[0], min(groups[1], self.key_groups), self.key_groups)
        for batch in self._table.batches(TableSlice(hashes=hashes)):
            kept = batch if keys == ALL_ROWS else self._between(batch, keys)
            if kept.num_rows:
                yield self._shown(kept)

    def changes(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield what the files say of each key: rows that are there, and keys whose row is gone."""
        for batch in self._table.changes():
            if batch.schema.names[-1] == DELETED:
                is_gone = batch.column(batch.num_columns - 1)
                there, gone = batch.filter(pc.invert(is_gone)), batch.filter(is_gone)
            else:
                there, gone = batch, batch.slice(0, 0)
            yield self._shown(there), self.rows.table_keys(self._buckets(gone), gone)

    def _between(self, batch: pa.RecordBatch, keys: Range) -> pa.RecordBatch:
        low, high = keys
        found = encode_columns(self._key_columns(batch)).to_list()
        return batch.filter(pa.array([k >= low and (high is None or k < high) for k in found]))

    def _key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self.keys.names]

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.rows.table_batch(self._buckets(batch), batch)

    def _buckets(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The ends of the rows' buckets, ms; null for totals."""
        if CLUSTER not in batch.schema.names:
            return None
        clusters = batch.column(CLUSTER)
        return pc.if_else(pc.equal(clusters, TOTALS), pa.scalar(None, pa.int64()), clusters)

    @property
    def held(self) -> MergedTable:
        """The files that hold it."""
        return self._table

    def count(self) -> int:
        """Return how many rows there are."""
        return sum(batch.num_rows for batch in self._table.batches())

    def of_key(self, key: Sequence[Any], group: int) -> pa.RecordBatch | None:
        """Return the rows of a key; ``None`` when there are none."""
        wanted = encode_key(key)
        place = hash_key(wanted)
        if self.entry.shared:
            place = hash_within(hash_key(encode_key(tuple(key)[: self.entry.shared])), place)
        last = place
        if self.entry.form == "rows":  # only the upper half is the key's
            place, last = hash_within(place, 0), hash_within(place, -1)
        found = [
            self._shown(kept)
            for batch in self._table.batches(TableSlice(hashes=HashRange(place, last)))
            if (kept := self._between(batch, (wanted, wanted + b"\0"))).num_rows
        ]
        if not found:
            return None
        return pa.Table.from_batches(found).combine_chunks().to_batches()[0]

    def stream(self) -> Iterator[Entry]:
        """Yield rows one by one as a key-value store would hold them."""
        if self.entry.form == "rows":
            raise InvalidInputError(
                f"store {self.entry.name!r} holds any number of rows of a key, which are added and "
                "go, but never change: see what there is with headrace state scan"
            )
        if self.entry.form == "latest":
            raise InvalidInputError(
                f"store {self.entry.name!r} holds rows in columns of their own, which have no form "
                "as entries: see what there is with headrace state scan"
            )
        for batch in self._table.batches():
            hashes = batch.column(HASH).to_numpy()
            groups = key_groups(hashes, self.key_groups).tolist()
            keys = encode_columns(self._key_columns(batch)).to_list()
            frame = pl.from_arrow(batch.select(self.rows.partial_names))
            assert isinstance(frame, pl.DataFrame)
            values = self.rows.encode_partials(frame) or [b""] * batch.num_rows
            ends = self._buckets(batch)
            buckets = [b""] * batch.num_rows
            if ends is not None:
                buckets = [encode_value(end) for end in ends.to_pylist()]
            places = hashes.astype(">u8").tobytes()
            clusters = b"" if ends is None else _sortable(batch.column(CLUSTER))
            for at, (group, bucket, key, value) in enumerate(
                zip(groups, buckets, keys, values, strict=True)
            ):
                by = clusters[8 * at : 8 * at + 8] + places[8 * at : 8 * at + 8] + key
                yield by, group.to_bytes(2, "big") + bucket + key, value


def _sortable(clusters: pa.Array) -> bytes:
    """Integers as bytes that sort as they do, eight each."""
    flipped = clusters.to_numpy().view(np.uint64) ^ np.uint64(_SIGN)
    return bytes(flipped.astype(">u8").tobytes())


GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20


def export_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> int:
    """Write batches to a file that takes its name when it is whole; returns the rows.

    Args:
        batches: of the schema, drawn as they are written.
        schema: columns.
        path: of the file; one that is there is replaced.

    Raises:
        InvalidInputError: the folder is not there.
    """
    if not path.parent.is_dir():
        raise InvalidInputError(f"no folder {path.parent} to export to; make it first")
    temporary = temporary_path(path)
    rows = 0
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in _grouped(batches, schema):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, GROUP_ROWS):
            part = batch.slice(begin, GROUP_ROWS)
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                yield pa.Table.from_batches(held, schema)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)
