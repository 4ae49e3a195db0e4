"""What a slot makes for a table in an epoch: the Parquet of each day, one after the other.

The index at the end says where each lies, so that the driver copies bytes and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptDataError
from headrace.files import Bytes
from headrace.records.schema import as_milliseconds
from headrace.warehouse.days import DAY_MS, day_name

MAGIC = b"HRDAYS01"
ROW_GROUP = 1 << 20
_DAY = "__day"


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one day: a whole Parquet file within the packet."""

    day: str
    begin: int
    bytes: int
    rows: int


def parquet_bytes(table: pa.Table) -> pa.Buffer:
    """Return a table as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP)
    return sink.getvalue()


def encode(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, time: str, order: Sequence[str]
) -> list[Bytes]:
    """Return a packet of rows, sorted by day, and within a day by columns.

    Args:
        batches: rows; those that are equal in all columns of ``order`` stay in their order.
        schema: of them.
        time: the column that the day is of; without nulls.
        order: columns to sort by.
    """
    table = pa.Table.from_batches(batches, schema)
    chunks: list[Bytes] = []
    pieces: list[Piece] = []
    position = 0
    for day, rows in _by_day(table, time, order):
        content = parquet_bytes(rows)
        pieces.append(Piece(day_name(day), position, content.size, rows.num_rows))
        chunks.append(content)
        position += content.size
    index = msgspec.json.encode(pieces)
    return [*chunks, index, len(index).to_bytes(8, "little"), MAGIC]


def _by_day(table: pa.Table, time: str, order: Sequence[str]) -> list[tuple[int, pa.Table]]:
    times = pa.chunked_array([as_milliseconds(chunk) for chunk in table.column(time).chunks])
    days = times.to_numpy() // DAY_MS
    sorting = pl.DataFrame({_DAY: days}).with_row_index("__row")
    keys = pl.from_arrow(table.select(list(order)))
    assert isinstance(keys, pl.DataFrame)
    by = [_DAY, *order]
    rows = sorting.hstack(keys).sort(by, maintain_order=True).get_column("__row").to_numpy()
    days, table = days[rows], table.take(pa.array(rows))
    starts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist()]
    stops = [*starts[1:], len(days)]
    return [
        (int(days[start]), table.slice(start, stop - start))
        for start, stop in zip(starts, stops, strict=True)
    ]


def pieces_of(content: pa.Buffer, path: Path) -> list[Piece]:
    """Return the index of a packet.

    Raises:
        CorruptDataError: it is none.
    """
    view = memoryview(content)
    end = len(view) - 16
    if end < 0 or bytes(view[-8:]) != MAGIC:
        raise CorruptDataError(f"file {path} is not one of days", file=str(path))
    length = int.from_bytes(view[end : end + 8], "little")
    return msgspec.json.decode(view[end - length : end], type=list[Piece])
