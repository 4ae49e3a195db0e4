"""Rows that leave a join: columns of a left and a right row beside each other, or of one alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.graph.joins import JoinStreams
from headrace.records.keys import key_groups
from headrace.records.layout import TableLayout
from headrace.state.columnar.columns import Rows, gather
from headrace.state.columnar.run import Piece
from headrace.task.chunk import Chunk
from headrace.task.orders import NO_WATERMARK

SEND_ROWS, SEND_BYTES = 1 << 16, 64 << 20
"""Rows that are sent together, at least, or their bytes, unless there are no more."""


@dataclass(frozen=True)
class Own:
    """Rows of one piece."""

    piece: Piece
    rows: Rows


class Results:
    """Gathers rows of a result, and sends them in batches.

    Args:
        schema: of the result.
        operator: bound.
        layouts: of the rows of both sides.
        groups: number of key groups of the job.
        send: is given the rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        operator: JoinStreams,
        layouts: tuple[TableLayout, TableLayout],
        groups: int,
        send: Callable[[Chunk], None],
    ) -> None:
        self._schema, self._groups, self._send = schema, groups, send
        self._places = _places(schema, operator, layouts)
        self._chunks: list[Chunk] = []
        self._rows = self._size = 0

    def add(self, left: Own | None, right: Own | None) -> None:
        """Add pairs, or rows of one side that have no partner.

        The event time of a pair is the later one. Nothing says how far the watermark was.
        """
        sides = [own for own in (left, right) if own is not None]
        count = len(sides[0].rows)
        if not count:
            return
        times = sides[0].piece.written[sides[0].rows]
        for own in sides[1:]:
            times = np.maximum(times, own.piece.written[own.rows])
        hashes = sides[0].piece.hashes[sides[0].rows]
        arrays = [
            self._column(left, right, places, field.type, count)
            for places, field in zip(self._places, self._schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        unknown = np.full(count, NO_WATERMARK, np.int64)
        groups = key_groups(hashes, self._groups).astype(np.uint16)
        self._chunks.append(Chunk(batch, times, unknown, groups))
        self._rows += count
        self._size += batch.nbytes
        if self._rows >= SEND_ROWS or self._size >= SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered."""
        chunks, self._chunks, self._rows, self._size = self._chunks, [], 0, 0
        if len(chunks) == 1:
            self._send(chunks[0])
        elif chunks:
            self._send(_together(chunks))

    def _column(
        self,
        left: Own | None,
        right: Own | None,
        places: tuple[int, int],
        kind: pa.DataType,
        count: int,
    ) -> pa.Array:
        for own, at in ((left, places[0]), (right, places[1])):
            if own is not None and at >= 0:
                return gather(own.piece.batch.column(at), own.rows)
        return pa.nulls(count, kind)


def _places(
    schema: pa.Schema, operator: JoinStreams, layouts: tuple[TableLayout, TableLayout]
) -> list[tuple[int, int]]:
    """Return where each column of a result is in rows of the left and of the right side.

    A column of the key is in both, so that rows of either have it; any other in one.
    """
    left, right = (layout.schema for layout in layouts)
    key = dict(zip(*operator.by, strict=True))
    added = dict(operator.columns or ())
    places = []
    for name in schema.names:
        if name in added:
            places.append((-1, right.get_field_index(added[name])))
        else:
            own = right.get_field_index(key[name]) if name in key else -1
            places.append((left.get_field_index(name), own))
    return places


def _together(chunks: list[Chunk]) -> Chunk:
    batch = pa.Table.from_batches([chunk.batch for chunk in chunks]).combine_chunks()
    times = [chunk.times for chunk in chunks if chunk.times is not None]
    marks = [chunk.watermarks for chunk in chunks if chunk.watermarks is not None]
    groups = [chunk.groups for chunk in chunks if chunk.groups is not None]
    return Chunk(
        batch.to_batches()[0],
        np.concatenate(times),
        np.concatenate(marks),
        np.concatenate(groups),
    )
