"""A columnar store as of one epoch: its rows come as columns and stay columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.coordinator.catalog import StoreEntry
from headrace.coordinator.inspection.store_rows import StoreRows
from headrace.coordinator.inspection.store_view import EVERYTHING, Entry, Range, StoreView
from headrace.errors import InvalidInputError
from headrace.records.keys import (
    encode_columns,
    encode_key,
    encode_value,
    hash_key,
    hash_within,
    key_groups,
)
from headrace.records.layout import CLUSTER, HASH
from headrace.state.columnar.keys import ALL_HASHES, HashRange, hash_range
from headrace.state.columnar.merge import Part
from headrace.state.merged import Source
from headrace.state.merged_table import MergedTable
from headrace.state.segment_reader import ALL_GROUPS
from headrace.task.windows.columnar_partials import TOTALS

_SIGN = 1 << 63


class TableView(StoreView):
    """A table of partial results of one epoch, over files that are open; see ``StoreView``.

    Rows come by bucket and by the hash of the key.
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
        super().__init__(entry, time_ms, epoch, key_groups, (), partials=partials)
        self._table = MergedTable(entry.name, sources, time_ms, entry.ttl_ms)

    def batches(
        self, keys: Range = EVERYTHING, groups: tuple[int, int] = ALL_GROUPS
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches of one schema."""
        hashes = ALL_HASHES
        if groups != ALL_GROUPS:
            hashes = hash_range(groups[0], min(groups[1], self.key_groups), self.key_groups)
        for batch in self._table.batches(Part(hashes=hashes)):
            kept = batch if keys == EVERYTHING else self._between(batch, keys)
            if kept.num_rows:
                yield self._shown(kept)

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

    @property
    def rows(self) -> StoreRows:
        """How rows look."""
        if self._rows is None:
            self._rows = StoreRows(self.entry, partials=self._partials)
        return self._rows

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
            for batch in self._table.batches(Part(hashes=HashRange(place, last)))
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
