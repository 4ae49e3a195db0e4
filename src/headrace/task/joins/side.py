"""One side of a join of streams: its rows of the epoch, over those that its table holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.records.keys import encode_columns
from headrace.records.schema import normalise
from headrace.state.columnar.columns import Mask, Rows, gather
from headrace.state.columnar.run import Piece
from headrace.state.columnar.table import ColumnarTable
from headrace.task.chunk import Chunk, Ints
from headrace.task.joins.search import Codes

NEVER = 1 << 62


class Side:
    """Gathers rows, sorts them by code, and stores those that are needed after the epoch.

    Args:
        table: of the rows of this side.
        keys: columns of the key in what comes; those of the table are in the same order.
        codes: that rows are sorted by.
        kept_ms: how far behind the watermark a row is still needed.
    """

    def __init__(
        self, table: ColumnarTable, keys: Sequence[str], codes: Codes, kept_ms: int
    ) -> None:
        self._table, self._keys, self._codes = table, list(keys), codes
        self._kept = kept_ms
        self._batches: list[pa.RecordBatch] = []
        self._times: list[Ints] = []
        self._fresh: list[Piece] = []
        self._stored_from = NEVER
        self.rows = self.size = 0

    def begin(self) -> None:
        """Turn to an epoch."""
        self._fresh, self._stored_from = [], NEVER

    def without_key(self, chunk: Chunk) -> Mask:
        """Say which rows have null in their key, and so no partner."""
        found = np.zeros(chunk.rows, bool)
        for name in self._keys:
            column = chunk.batch.column(name)
            if column.null_count:
                found |= column.is_null().to_numpy(zero_copy_only=False)
        return found

    def add(self, chunk: Chunk) -> None:
        """Gather rows whose key is whole."""
        assert chunk.times is not None
        batch = self._columns(chunk)
        self._batches.append(batch)
        self._times.append(chunk.times)
        self.rows += chunk.rows
        self.size += batch.nbytes

    def piece_of(self, chunk: Chunk) -> Piece:
        """Return rows as the table has them."""
        assert chunk.times is not None
        return self._sorted(self._columns(chunk), chunk.times)

    def _columns(self, chunk: Chunk) -> pa.RecordBatch:
        return chunk.batch.select([*self._keys, *self._table.layout.values.names])

    def _sorted(self, batch: pa.RecordBatch, times: Ints) -> Piece:
        layout = self._table.layout
        schema = pa.schema([*layout.keys, *layout.values])
        columns = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        rows = normalise(pa.RecordBatch.from_arrays(columns, schema=schema), schema)
        hashes = encode_columns(rows.columns[: len(layout.keys)]).hashes()
        codes = self._codes.of(hashes, times)
        order = np.argsort(codes)
        arrays = [pa.array(codes[order]), pa.array(times[order])]
        arrays += [gather(column, order) for column in rows.columns]
        return Piece.of(layout, pa.RecordBatch.from_arrays(arrays, schema=layout.schema))

    def take(self) -> Piece | None:
        """Return what was gathered since the last call, sorted."""
        if not self.rows:
            return None
        batch = pa.Table.from_batches(self._batches).combine_chunks().to_batches()[0]
        piece = self._sorted(batch, np.concatenate(self._times))
        self._batches, self._times, self.rows, self.size = [], [], 0, 0
        return piece

    def hold(self, piece: Piece) -> None:
        """Note rows that were taken: of the epoch so far, those that come later may need them."""
        self._fresh.append(piece)

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows: of the table, and of the epoch."""
        for run in self._table.runs:
            yield from run.pieces
        yield from self._fresh

    def between(self, begin: int, end: int) -> Iterator[tuple[Piece, Rows]]:
        """Yield the rows of this task that are of event times from one to before another."""
        for run in self._table.runs:
            yield from run.written_between(begin, end)
        for piece in self._fresh:
            rows = np.flatnonzero((piece.written >= begin) & (piece.written < end))
            if len(rows):
                yield piece, rows

    def store(self, watermark: int, due_from: int) -> None:
        """Store the rows of the epoch that the next ones need.

        Args:
            watermark: that the epoch ends at.
            due_from: the earliest event time of rows that are still to be looked at for
                themselves.
        """
        for piece in self._fresh:
            alive = piece.written + self._kept >= watermark
            rows = piece.batch if alive.all() else piece.batch.filter(pa.array(alive))
            self._table.append(rows)
            due = piece.written[alive & (piece.written >= due_from)]
            self._stored_from = min(self._stored_from, int(due.min(initial=NEVER)))
        self._fresh = []

    def first_from(self, due_from: int) -> int:
        """Return the earliest event time, from one on, that a stored row has; or ``NEVER``."""
        first = self._stored_from
        for run in self._table.runs:
            for piece in run.pieces:
                if piece.written_span[1] >= due_from:
                    times, _ = piece.by_written
                    first = min(first, int(times[np.searchsorted(times, due_from)]))
        return first
