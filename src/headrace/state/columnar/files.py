"""Open the runs of a table in segment files: mapped where they lie, read piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptDataError
from headrace.records.keys import UInt64s
from headrace.records.layout import TableLayout
from headrace.records.schema import schema_from_text
from headrace.state.columnar.columns import numbers
from headrace.state.columnar.keys import ALL_HASHES, hash_range
from headrace.state.columnar.run import Piece, PieceInfo, Run, check_schema
from headrace.state.segment import Section
from headrace.state.segment_reader import ALL_GROUPS, SegmentReader


def open_runs(
    reader: SegmentReader,
    store: str,
    layout: TableLayout | None = None,
    groups: tuple[int, int] = ALL_GROUPS,
) -> list[Run]:
    """Return a store's runs in a file: one for each task that wrote there.

    Args:
        reader: of the file.
        store: its name, unique within the job.
        layout: of the table; what the file says when ``None``.
        groups: the key groups that count, the first and the one after the last.

    Raises:
        CorruptDataError: the section is not as it was written.
        InvalidInputError: it has other columns than the layout.
    """
    found = [_open(reader, section, layout, groups) for section in reader.tables(store)]
    return [run for run in found if run is not None]


def layout_of(section: Section) -> TableLayout:
    """Return the layout of the table that a section is of."""
    assert section.table is not None
    return TableLayout.of(schema_from_text(section.table.schema))


def _open(
    reader: SegmentReader,
    section: Section,
    layout: TableLayout | None,
    groups: tuple[int, int],
) -> Run | None:
    info = section.table
    assert info is not None
    schema = schema_from_text(info.schema)
    if layout is None:
        layout = TableLayout.of(schema)
    check_schema(layout, schema, f"segment {reader.path} of epoch {reader.header.epoch}")
    wanted = ALL_HASHES
    if groups[0] > 0 or groups[1] < info.key_groups:
        wanted = hash_range(*groups, info.key_groups)
    pieces = [
        Piece(
            layout,
            piece,
            _loader(reader, section, number, piece),
            _filter_loader(reader, section, number) if piece.has_filter else None,
        )
        for number, piece in enumerate(info.pieces)
        if piece.low_hash <= wanted.last and piece.high_hash >= wanted.first
    ]
    if not pieces:
        return None
    if all(wanted.holds(piece.info.low_hash, piece.info.high_hash) for piece in pieces):
        wanted = ALL_HASHES
    rows = sum(piece.info.rows for piece in pieces)
    size = (section.end - section.begin) * rows // section.rows
    return Run(layout, pieces, size, wanted)


def _loader(
    reader: SegmentReader, section: Section, number: int, info: PieceInfo
) -> Callable[[], pa.RecordBatch]:
    def load() -> pa.RecordBatch:
        batch = reader.piece(section, number)
        if batch.num_rows != info.rows:
            raise CorruptDataError(
                f"segment {reader.path} of epoch {reader.header.epoch} is damaged: piece {number} "
                f"of store {section.store!r} has {batch.num_rows} rows, expected {info.rows}",
                file=str(reader.path),
                epoch=reader.header.epoch,
            )
        return batch

    return load


def _filter_loader(reader: SegmentReader, section: Section, number: int) -> Callable[[], UInt64s]:
    @cache
    def load() -> UInt64s:
        return numbers(reader.filter_of(section, number).column(0), np.uint64)

    return load
