"""One store as of one epoch: its rows, the rows of a key, and what differs from another epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.coordinator.catalog import StoreEntry
from headrace.coordinator.inspection.key_kinds import are_alike
from headrace.coordinator.inspection.store_rows import StoreRows
from headrace.errors import InvalidInputError
from headrace.records.keys import decode_key, encode_key
from headrace.records.schema import schema_from_text
from headrace.state.expiry import STAMP_BYTES, bare, least_stamp
from headrace.state.merged import Entries, MergedEntries, Source
from headrace.state.merged_table import MergedTable
from headrace.state.segment_reader import ALL_GROUPS

Range = tuple[bytes, bytes | None]
EVERYTHING: Range = (b"", None)
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
        sources: Sequence[Source],
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
        self._entries = MergedEntries(entry.name, sources)
        self._least = None if entry.ttl_ms is None else least_stamp(time_ms, entry.ttl_ms)
        self._rows: StoreRows | None = None

    def batches(
        self, keys: Range = EVERYTHING, groups: tuple[int, int] = ALL_GROUPS
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

    @property
    def rows(self) -> StoreRows:
        """How entries look as rows."""
        if self._rows is None:
            self._rows = StoreRows(self.entry, self._settled(), partials=self._partials)
        return self._rows

    @property
    def schema(self) -> pa.Schema:
        """The columns of all batches."""
        return self.rows.schema

    def count(self) -> int:
        """Return how many entries there are, by reading all keys."""
        return sum(len(keys) for keys, _ in self._visible(ALL_GROUPS, EVERYTHING))

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
            return StoreRows(self.entry, full, partials=self._partials).batch([full], [bare(value)])
        skipped = 3 if self.entry.form == "timers" else 1
        found = [
            pair
            for keys, values in self._visible((group, group + 1), EVERYTHING)
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
                yield [found[at] for at in kept], [bare(values[at]) for at in kept]

    def _settled(self) -> bytes | None:
        """A key of a processor's store, if all its keys are of the same kinds."""
        if self.entry.form != "values":
            return None
        first = None
        for keys in self._entries.key_columns():
            first = keys[0].as_py() if first is None else first
            if not are_alike(keys, first):
                return None
        return first

    def changes_since(self, other: StoreView) -> Iterator[list[Change]]:
        """Yield what differs from another epoch, in the order of rows; in bounded memory."""
        rows: list[_Both] = []
        for row in _joined(other.stream(), self.stream()):
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
        for keys, values in self._visible(ALL_GROUPS, EVERYTHING):
            yield from zip(keys, keys, values, strict=True)


def _joined(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[_Both]:
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
