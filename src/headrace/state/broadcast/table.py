"""The rows of a broadcast store, as a pure function of how far its source was read.

The latest row of each key counts: the one of the highest partition, and in it of the
highest offset. So it makes no difference in how many steps a table was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.records.messages import columns_to_lists, message_type, to_messages
from headrace.records.schema import normalise
from headrace.state.broadcast.index import KeyIndex

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
            rows = self._with_fate(batch)
            before = self._parts[partition]
            both = rows if before is None else pl.concat([before, rows])
            self._parts[partition] = both.unique(self.key, keep="last", maintain_order=True)
            self.offsets[partition] = next_offset
            changed.append(rows.select(self.key))
        if changed:
            self._batch = self._index = None
            if self._messages is not None:
                self._renew(self._messages, pl.concat(changed).unique())

    def _with_fate(self, batch: pa.RecordBatch) -> pl.DataFrame:
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
