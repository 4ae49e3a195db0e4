"""Broadcast stores: a table that a process holds whole, as it was at given offsets.

The latest row of each key counts: that of the highest partition, and in it of the highest offset;
so it makes no difference in how many steps a table was read. Keys are found by hash without a step
for each row: the upper bits choose a bucket of about one row, and the search goes up from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError
from headrace.records.keys import encode_any, encode_columns
from headrace.records.messages import columns_to_lists, message_type, to_messages
from headrace.records.schema import normalise

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NONE = -1
_MOST_BITS = 26


class KeyIndex:
    """An index over the key columns of a table whose keys differ and hold no null.

    Args:
        columns: of the key, each of shape (n,).
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        hashes = encode_columns(columns).hashes()
        order = np.argsort(hashes, kind="stable")
        # One row beyond the last, which no key is equal to: the search needs no bound.
        self._hashes = np.append(hashes[order], np.uint64(0xFFFF_FFFF_FFFF_FFFF))
        self._rows = np.append(order, _NONE)
        self._count = len(order)
        self._columns = list(columns)
        bits = min(_MOST_BITS, max(1, self._count.bit_length()))
        self._shift = np.uint64(64 - bits)
        begins = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._begins = np.searchsorted(self._hashes[: self._count], begins).astype(np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def find(self, columns: Sequence[pa.Array]) -> Int64s:
        """Return the table's row for each key of a batch, -1 where there is none.

        Args:
            columns: of the batch, of the key's types, in its order; a null matches nothing.
        """
        hashes = encode_columns(columns).hashes()
        at = self._begins[hashes >> self._shift]
        behind = np.flatnonzero(self._hashes[at] < hashes)
        while len(behind):
            behind = behind[at[behind] < self._count]
            at[behind] += 1
            behind = behind[self._hashes[at[behind]] < hashes[behind]]
        found = np.where(self._hashes[at] == hashes, self._rows[at], _NONE)
        return self._checked(columns, hashes, at, found)

    def _checked(
        self,
        columns: Sequence[pa.Array],
        hashes: npt.NDArray[np.uint64],
        at: Int64s,
        found: Int64s,
    ) -> Int64s:
        """Take back what has the hash of another key; the right row may follow it."""
        wrong = np.flatnonzero((found >= 0) & ~self._equal(columns, found))
        while len(wrong):
            at[wrong] += 1
            again = self._hashes[at[wrong]] == hashes[wrong]
            found[wrong] = np.where(again, self._rows[at[wrong]], _NONE)
            taken = pa.array(wrong)
            equal = self._equal([column.take(taken) for column in columns], found[wrong])
            wrong = wrong[(found[wrong] >= 0) & ~equal]
        return found

    def _equal(self, columns: Sequence[pa.Array], found: Int64s) -> Bools:
        """Whether the keys of rows found are those asked for; false where nothing was found."""
        equal = found >= 0
        rows = np.maximum(found, 0)
        if not self._count:
            return equal
        for mine, theirs in zip(self._columns, columns, strict=True):
            equal &= _same(mine, rows, theirs)
        return equal


def _same(mine: pa.Array, rows: Int64s, theirs: pa.Array) -> Bools:
    kind = mine.type
    if pa.types.is_integer(kind) and not theirs.null_count:
        return np.asarray(mine.to_numpy()[rows] == theirs.to_numpy())
    if pa.types.is_floating(kind):
        one, other = mine.to_numpy()[rows], theirs.to_numpy(zero_copy_only=False)
        both_nan = np.isnan(one) & np.isnan(other)
        is_null = theirs.is_null().to_numpy(zero_copy_only=False)
        return np.asarray(((one == other) | both_nan) & ~is_null)
    equal = pc.equal(mine.take(pa.array(rows)), theirs)
    return np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False))


_DEAD = "__dead"


class BroadcastTable:
    """One table of a process, shared by its tasks; it moves from version to version in place.

    Args:
        key: its key columns.
        schema: the columns that are held, the key's among them.
        values: columns that are null together in a row that deletes; none: no row does.
        partitions: of its source.
    """

    def __init__(
        self, key: Sequence[str], schema: pa.Schema, values: Sequence[str], partitions: int
    ) -> None:
        self.key, self.schema = list(key), schema
        self.offsets = [0] * partitions
        self._values, self._partitions = list(values), partitions
        self._parts: list[pl.DataFrame | None] = [None] * partitions
        self._batch: pa.RecordBatch | None = None
        self._index: KeyIndex | None = None
        self._messages: dict[Any, Any] | None = None

    def clear(self) -> None:
        """Begin again at the first offsets."""
        self.offsets = [0] * self._partitions
        self._parts = [None] * self._partitions
        self._batch = self._index = None
        if self._messages is not None:
            self._messages.clear()

    def apply(self, news: Mapping[int, tuple[pa.RecordBatch, int]]) -> None:
        """Move on by rows of the source.

        Args:
            news: by partition, its next rows with at least the columns held and the values,
                and the offset after them.
        """
        changed = []
        for partition, (batch, next_offset) in news.items():
            rows = self._with_deletes(batch)
            before = self._parts[partition]
            both = rows if before is None else pl.concat([before, rows])
            self._parts[partition] = both.unique(self.key, keep="last", maintain_order=True)
            self.offsets[partition] = next_offset
            changed.append(rows.select(self.key))
        if changed:
            self._batch = self._index = None
            if self._messages is not None:
                self._renew(self._messages, pl.concat(changed).unique())

    def _with_deletes(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """The held columns of rows with a whole key, and whether each deletes."""
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        is_dead = pl.all_horizontal(pl.col(name).is_null() for name in self._values)
        fate = is_dead if self._values else pl.lit(False)
        return frame.drop_nulls(self.key).select(*self.schema.names, fate.alias(_DEAD))

    def _rows(self) -> pl.DataFrame:
        parts = [part for part in self._parts if part is not None]
        if not parts:
            empty = pl.from_arrow(self.schema.empty_table())
            assert isinstance(empty, pl.DataFrame)
            return empty
        rows = parts[0]
        if len(parts) > 1:
            rows = pl.concat(parts).unique(self.key, keep="last", maintain_order=True)
        return rows.filter(~pl.col(_DEAD)).drop(_DEAD)

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows, one for each key, in no order that holds."""
        if self._batch is None:
            self._batch = normalise(self._rows().to_arrow(), self.schema)
        return self._batch

    @property
    def index(self) -> KeyIndex:
        """Where each key's row is in ``batch``."""
        if self._index is None:
            self._index = KeyIndex([self.batch.column(name) for name in self.key])
        return self._index

    def messages(self) -> dict[Any, Any]:
        """Return the rows as messages by key; the same dict at each version, changed in place."""
        if self._messages is None:
            self._messages = self._to_messages(self.batch)
        return self._messages

    def _renew(self, messages: dict[Any, Any], keys: pl.DataFrame) -> None:
        for key in self._keys_of(normalise(keys.to_arrow())):
            messages.pop(key, None)
        found = self._rows().join(keys, on=self.key, how="semi", nulls_equal=True)
        messages.update(self._to_messages(normalise(found.to_arrow(), self.schema)))

    def _to_messages(self, batch: pa.RecordBatch) -> dict[Any, Any]:
        kind = message_type("Message", self.schema)
        keys = self._keys_of(batch.select(self.key))
        return dict(zip(keys, to_messages(batch, kind), strict=True))

    def _keys_of(self, batch: pa.RecordBatch) -> list[Any]:
        columns = columns_to_lists(batch)
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


class BroadcastStore:
    """The rows of a broadcast store in one epoch, as messages.

    The same in every task and at every retry. Keys are those of the table's columns, a tuple
    of them where there are several.

    Args:
        name: as the user declared it.
        table: of the process.
        origin: where its rows come from, in words.
    """

    __slots__ = ("_name", "_origin", "_rows", "_table")

    def __init__(self, name: str, table: BroadcastTable, origin: str) -> None:
        self._name, self._table, self._origin = name, table, origin
        self._rows = table.messages()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the row of a key as a message, or ``default`` where there is none."""
        try:
            return self._rows.get(key, default)
        except TypeError as error:
            raise InvalidInputError(
                f"broadcast store {self._name!r}: {key!r:.100} cannot be a key: {error}; expected "
                f"a value, or a tuple of values, of {self._table.key}"
            ) from error

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a row."""
        return self.get(key) is not None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def scan(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and rows in canonical key order."""
        rows = self._rows
        return ((key, rows[key]) for key in sorted(rows, key=encode_any))

    def put(self, key: Any, value: Any) -> NoReturn:
        """Refuse to write."""
        del key, value
        raise self._read_only()

    def delete(self, key: Any) -> NoReturn:
        """Refuse to write."""
        del key
        raise self._read_only()

    def _read_only(self) -> InvalidInputError:
        return InvalidInputError(
            f"broadcast store {self._name!r} is only read: its rows come from {self._origin}; "
            "write there, or keep a store of your own beside it"
        )
