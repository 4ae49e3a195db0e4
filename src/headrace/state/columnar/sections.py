"""How a run lies in a segment file: a frame for each piece, and what the footer tells of them.

The frame of a large piece is followed by one of its filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import InternalError
from headrace.records.keys import UInt64s
from headrace.records.layout import CLUSTER, TableLayout
from headrace.records.schema import schema_to_text
from headrace.state.columnar.columns import numbers
from headrace.state.columnar.filters import LEAST_ROWS, HashFilter
from headrace.state.columnar.run import PIECE_ROWS, PieceInfo, describe


class TableInfo(msgspec.Struct, frozen=True):
    """What the footer tells of a table's section.

    ``schema`` is Arrow IPC in base64; ``key_groups`` how many the job has; ``pieces`` are in
    the order of their frames.
    """

    schema: str
    key_groups: int
    pieces: tuple[PieceInfo, ...]

    def frame_of(self, piece: int) -> int:
        """Return the place of a piece's frame within the section."""
        return piece + sum(info.has_filter for info in self.pieces[:piece])


class PieceWriter:
    """Cuts the batches of a run into pieces and describes them.

    Args:
        schema: of all batches.
        key_groups: how many the job has.
        batches: sorted, each after the one before.
        origin: whose run it is, for errors.
    """

    def __init__(
        self, schema: pa.Schema, key_groups: int, batches: Iterable[pa.RecordBatch], origin: str
    ) -> None:
        self._schema, self._key_groups = schema, key_groups
        self._batches, self._origin = batches, origin
        # Rows that repeat are asked for by ranges of hashes, which no filter knows of.
        self._is_asked = not TableLayout.of(schema).repeats
        self._pieces: list[PieceInfo] = []

    def frames(self) -> Iterator[pa.RecordBatch]:
        """Yield what each frame holds."""
        for batch in self._batches:
            if not batch.schema.equals(self._schema):
                raise InternalError(f"{self._origin}: batches of a run differ in their columns")
            for begin in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(begin, PIECE_ROWS)
                hashes = numbers(piece.column(0), np.uint64)
                has_filter = self._is_asked and len(hashes) >= LEAST_ROWS
                info = msgspec.structs.replace(describe(piece), has_filter=has_filter)
                if self._pieces and info.first < self._pieces[-1].last:
                    raise InternalError(f"{self._origin}: batches of a run are out of order")
                self._pieces.append(info)
                yield piece
                if has_filter:
                    yield self._filter(piece, hashes).batch()

    def _filter(self, piece: pa.RecordBatch, hashes: UInt64s) -> HashFilter:
        if CLUSTER not in self._schema.names:
            return HashFilter.build(hashes)
        return HashFilter.build_clustered(hashes, numbers(piece.column(CLUSTER), np.int64))

    @property
    def rows(self) -> int:
        """How many rows were yielded so far."""
        return sum(info.rows for info in self._pieces)

    def finished(self) -> TableInfo:
        """Return what the footer tells."""
        return TableInfo(schema_to_text(self._schema), self._key_groups, tuple(self._pieces))
