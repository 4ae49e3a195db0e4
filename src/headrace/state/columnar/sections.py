"""How a run lies in a segment file: a frame for each piece, and what the footer tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from headrace.errors import InternalError
from headrace.records.schema import schema_to_text
from headrace.state.columnar.run import PIECE_ROWS, PieceInfo, describe


class TableInfo(msgspec.Struct, frozen=True):
    """What the footer tells of a table's section.

    ``schema`` is Arrow IPC in base64; ``key_groups`` how many the job has; ``pieces`` are in
    the order of their frames.
    """

    schema: str
    key_groups: int
    pieces: tuple[PieceInfo, ...]


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
        self._pieces: list[PieceInfo] = []

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield what each frame holds."""
        for batch in self._batches:
            if not batch.schema.equals(self._schema):
                raise InternalError(f"{self._origin}: batches of a run differ in their columns")
            for begin in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(begin, PIECE_ROWS)
                info = describe(piece)
                if self._pieces and info.first < self._pieces[-1].last:
                    raise InternalError(f"{self._origin}: batches of a run are out of order")
                self._pieces.append(info)
                yield piece

    def finished(self) -> TableInfo:
        """Return what the footer tells."""
        return TableInfo(schema_to_text(self._schema), self._key_groups, tuple(self._pieces))
