"""Where an operator keeps partial results by key, or by bucket and key, from epoch to epoch.

Rows travel as frames of *heads* (``BUCKET`` where there are buckets, then the key columns)
and partial columns. ``ColumnarPartials`` keeps them in a columnar table: the default, for nothing
in it is done row by row. ``KeyValuePartials`` keeps each row as an entry of a key-value store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.records.keys import (
    decode_key,
    encode_columns,
    encode_value,
    key_groups,
)
from headrace.records.schema import CLUSTER, TableLayout, normalise
from headrace.runtime.chunk import Ints, frame_of
from headrace.runtime.windows.aggregation import Aggregation
from headrace.state.columnar_table import ColumnarTable
from headrace.state.columns import TableKeys
from headrace.state.store import KeyValueStore

BUCKET = "__bucket"
TAKE_ROWS = 1 << 16
TOTALS = -(1 << 63)
"""The cluster of totals, in tables that have buckets beside them: before every bucket."""

_NUMBER = "__number"
_Keys = TypeVar("_Keys")


class Added(NamedTuple):
    """What became of rows that were added: the partials of each head, and those before.

    ``order`` says which of the rows each of ``now`` stands for; ``at`` which of these were there
    before, with the partials ``earlier``.
    """

    order: Ints
    now: pl.DataFrame
    earlier: pl.DataFrame
    at: Ints


class PartialTable(ABC, Generic[_Keys]):
    """Partial results by head.

    Args:
        aggregation: what is kept and how two rows combine.
        keys: names of the key columns.
    """

    def __init__(self, aggregation: Aggregation, keys: Sequence[str]) -> None:
        self.aggregation, self.keys = aggregation, list(keys)
        self.partials = list(aggregation.codec.schema)

    @abstractmethod
    def address(self, heads: pl.DataFrame) -> tuple[_Keys, Ints]:
        """Return the store's form of distinct heads, in its order, and which row each was."""

    @abstractmethod
    def lookup(self, keys: _Keys) -> tuple[pl.DataFrame, Ints]:
        """Return the partials that exist, and the place in ``keys`` of each."""

    @abstractmethod
    def put(self, keys: _Keys, partials: pl.DataFrame) -> None:
        """Store one row of partials for each key."""

    @abstractmethod
    def buckets(self) -> set[int]:
        """Return the buckets that have rows."""

    @abstractmethod
    def take(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Remove the rows of buckets from ``first`` to ``last``; yield them, bucket by bucket."""

    @abstractmethod
    def scan(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Yield the rows of buckets from ``first`` to ``last``, bucket by bucket."""

    @abstractmethod
    def remove(self, keys: _Keys) -> None:
        """Remove the rows of keys."""

    def add(self, frame: pl.DataFrame) -> Added:
        """Combine rows with those stored under the same heads, which came before them."""
        keys, order = self.address(frame)
        now = frame[self.partials][order]
        earlier, at = self.lookup(keys)
        if len(at) == now.height:
            now = self.aggregation.paired(earlier, now)
        elif len(at):
            now = _replaced(now, at, self.aggregation.paired(earlier, now[at]))
        self.put(keys, now)
        return Added(order, now, earlier, at)

    def accumulate(self, heads: pl.DataFrame, numbers: Ints, rows: pl.DataFrame) -> pl.DataFrame:
        """Add rows to stored totals one after the other; return the totals after each.

        Args:
            heads: distinct, shape (n,).
            numbers: of the head of each row, shape (m,).
            rows: partials in order, shape (m,).
        """
        keys, order = self.address(heads)
        old, at = self.lookup(keys)
        both = pl.concat(
            [
                old[self.partials].with_columns(pl.Series(_NUMBER, order[at])),
                rows[self.partials].with_columns(pl.Series(_NUMBER, numbers)),
            ],
            how="vertical_relaxed",
        )
        totals = self.aggregation.accumulated(both, _NUMBER, is_last_kept=True)
        newest = totals.group_by(_NUMBER).last().sort(_NUMBER)
        self.put(keys, newest[self.partials][order])
        return totals.slice(old.height).drop(_NUMBER)


def _replaced(rows: pl.DataFrame, at: Ints, others: pl.DataFrame) -> pl.DataFrame:
    """Return rows with those at some places replaced."""
    order = np.arange(rows.height)
    order[at] = np.arange(rows.height, rows.height + len(at))
    return pl.concat([rows, others], how="vertical_relaxed")[order]


class KeyValuePartials(PartialTable[list[bytes]]):
    """Partial results as entries: the key is the key's values.

    Where there are ``buckets``, the bucket stands before them, or null for totals.

    Args:
        store: where they are kept.
        aggregation: what is kept.
        schema: of the key columns.
        groups: the task's key groups.
        key_groups: number of key groups of the job.
    """

    def __init__(
        self,
        store: KeyValueStore,
        aggregation: Aggregation,
        schema: pa.Schema,
        groups: tuple[int, int],
        key_groups: int,
        *,
        buckets: bool,
    ) -> None:
        super().__init__(aggregation, schema.names)
        self._store, self._codec, self._bucketed = store, aggregation.codec, buckets
        self._schema, self._groups, self._key_groups = schema, groups, key_groups

    def address(self, heads: pl.DataFrame) -> tuple[list[bytes], Ints]:
        """Return full keys, sorted, for the store reads neighbours twice as quickly."""
        columns = normalise(heads[self.keys].to_arrow()).columns
        encoded = encode_columns(columns)
        groups = key_groups(encoded.hashes(), self._key_groups)
        if BUCKET in heads.columns:
            columns = [heads[BUCKET].to_arrow(), *columns]
        elif self._bucketed:
            columns = [pa.nulls(heads.height), *columns]
        fulls = encode_columns(columns).with_groups(groups)
        order = sorted(range(len(fulls)), key=fulls.__getitem__)
        return [fulls[row] for row in order], np.array(order, np.int64)

    def lookup(self, keys: list[bytes]) -> tuple[pl.DataFrame, Ints]:
        """Read entries in one batch."""
        values = self._store.get_many(keys)
        at = [row for row, value in enumerate(values) if value is not None]
        found = self._codec.decode([value for value in values if value is not None])
        return found, np.array(at, np.int64)

    def put(self, keys: list[bytes], partials: pl.DataFrame) -> None:
        """Write entries in one batch."""
        self._store.put_many(keys, self._codec.encode(partials))

    def buckets(self) -> set[int]:
        """Skip from bucket to bucket in each key group."""
        found: set[int] = set()
        for group in range(*self._groups):
            head = group.to_bytes(2, "big")
            low = head + b"\x10"
            while entry := next(iter(self._store.scan(low, head + b"\x11")), None):
                end = decode_key(entry[0][2:11])[0]
                found.add(end)
                low = head + encode_value(end + 1)
        return found

    def take(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Read the buckets of each key group, delete them, yield them sorted."""
        for keys, rows in self._scan(first, last):
            self.remove(keys)
            yield rows

    def scan(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Read the buckets of each key group, yield them sorted."""
        for _, rows in self._scan(first, last):
            yield rows

    def remove(self, keys: list[bytes]) -> None:
        """Delete entries in one batch."""
        self._store.put_many(keys, [None] * len(keys))

    def _scan(self, first: int, last: int) -> Iterator[tuple[list[bytes], pl.DataFrame]]:
        entries: list[tuple[bytes, bytes]] = []
        low, high = encode_value(first), encode_value(last) + b"\xff"
        for group in range(*self._groups):
            head = group.to_bytes(2, "big")
            entries += self._store.scan(head + low, head + high)
        entries.sort(key=_after_group)
        rest = iter(entries)
        while some := list(islice(rest, TAKE_ROWS)):
            keys = [key for key, _ in some]
            partials = self._codec.decode([value for _, value in some])
            yield keys, self._decode_heads(keys).hstack(partials)

    def _decode_heads(self, keys: Sequence[bytes]) -> pl.DataFrame:
        columns: list[tuple[Any, ...]] = list(
            zip(*(decode_key(key[2:]) for key in keys), strict=True)
        )
        fields = [pa.field(BUCKET, pa.int64()), *self._schema]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)]
        frame = pl.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        assert isinstance(frame, pl.DataFrame)
        return frame


def _after_group(entry: tuple[bytes, bytes]) -> bytes:
    return entry[0][2:]


def partial_layout(
    aggregation: Aggregation, keys: pa.Schema, *, buckets: bool, ttl_ms: int | None = None
) -> TableLayout:
    """Return the layout of a table of partials.

    Args:
        aggregation: what is kept.
        keys: the key columns.
        buckets: whether rows are by bucket and key; the bucket is the cluster.
        ttl_ms: how long after it was written a row is there.
    """
    return TableLayout(keys, aggregation.codec.arrow, buckets, ttl_ms)


class ColumnarPartials(PartialTable[TableKeys]):
    """Partial results as rows of a table.

    Args:
        table: made for the layout of ``partial_layout``.
        aggregation: what is kept.
    """

    def __init__(self, table: ColumnarTable, aggregation: Aggregation) -> None:
        super().__init__(aggregation, table.layout.keys.names)
        self._table, self._layout = table, table.layout

    def address(self, heads: pl.DataFrame) -> tuple[TableKeys, Ints]:
        """Hash the keys and sort them by bucket and hash."""
        clusters = None
        if BUCKET in heads.columns:
            clusters = heads[BUCKET].to_numpy()
        elif self._layout.cluster:
            clusters = np.full(heads.height, TOTALS)
        keys = TableKeys.of(self._layout, heads[self.keys].to_arrow(), clusters)
        return keys, keys.order

    def lookup(self, keys: TableKeys) -> tuple[pl.DataFrame, Ints]:
        """Search all runs."""
        found = self._table.get(keys)
        return frame_of(found.values), found.index

    def put(self, keys: TableKeys, partials: pl.DataFrame) -> None:
        """Lay rows over those that are there."""
        values = normalise(partials[self.partials].to_arrow(), self._layout.values)
        self._table.put(keys, values)

    def buckets(self) -> set[int]:
        """Read what the runs say of themselves."""
        return set(self._table.clusters()) - {TOTALS}

    def take(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Scan the buckets, then delete them."""
        for rows in self._table.scan(cluster_from=first, cluster_below=last + 1):
            self._table.delete(TableKeys.of_rows(self._layout, rows))
            yield self._shown(rows)

    def scan(self, first: int, last: int) -> Iterator[pl.DataFrame]:
        """Scan the buckets."""
        for rows in self._table.scan(cluster_from=first, cluster_below=last + 1):
            yield self._shown(rows)

    def remove(self, keys: TableKeys) -> None:
        """Lay deletions over rows."""
        self._table.delete(keys)

    def _shown(self, rows: pa.RecordBatch) -> pl.DataFrame:
        names = [*self.keys, *self.partials]
        return frame_of(rows.select([CLUSTER, *names]).rename_columns([BUCKET, *names]))
