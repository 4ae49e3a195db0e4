"""The form of partial results in a key-value store: one value for each row of columns.

Rows of fixed width are NumPy records with a bit for each null, so a million of them are
read and written without a Python step each; others are MessagePack arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa


class PartialCodec:
    """Turns rows of partial columns into bytes and back.

    Args:
        types: Arrow type of each partial column, in order.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self._types = dict(types)
        self.arrow = pa.schema(list(self._types.items()))
        frame = pl.from_arrow(self.arrow.empty_table())
        assert isinstance(frame, pl.DataFrame)
        self.schema = frame.schema
        self._packed = pl.Schema({name: _packed(kind) for name, kind in self.schema.items()})
        plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        self._fixed = all(any(test(kind) for test in plain) for kind in self._types.values())
        words = -(-len(self._types) // 64)
        fields: list[Any] = [("__nulls", "<u8", (words,))]
        if self._fixed:
            fields += [(name, kind.to_pandas_dtype()) for name, kind in self._types.items()]
        self._record = np.dtype(fields)

    def encode(self, frame: pl.DataFrame) -> list[bytes]:
        """Return one value for each row."""
        if not self._fixed:
            packed = frame.select(self.schema.names()).cast(self._packed)
            columns = [column.to_list() for column in packed]
            pack = msgspec.msgpack.Encoder().encode
            return [pack(row) for row in zip(*columns, strict=True)]
        records = np.zeros(frame.height, self._record)
        for number, name in enumerate(self._types):
            column = frame[name]
            if column.null_count():
                word, bit = divmod(number, 64)
                flags = column.is_null().to_numpy().astype(np.uint64)
                records["__nulls"][:, word] |= flags << np.uint64(bit)
                column = column.fill_null(strategy="zero")
            records[name] = column.to_numpy()
        data, width = records.tobytes(), self._record.itemsize
        return [data[at : at + width] for at in range(0, len(data), width)]

    def decode(self, values: Sequence[bytes]) -> pl.DataFrame:
        """Return the rows of values that ``encode`` made."""
        if not self._fixed:
            rows = [msgspec.msgpack.decode(value) for value in values]
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._types)
            frame = pl.DataFrame(
                [
                    pl.Series(name, column, dtype=kind)
                    for (name, kind), column in zip(self._packed.items(), columns, strict=True)
                ]
            )
            return frame.cast(self.schema)
        records = np.frombuffer(b"".join(values), self._record)
        frame = pl.DataFrame(
            {name: np.ascontiguousarray(records[name]) for name in self._types}, schema=self.schema
        )
        nulls = records["__nulls"]
        absent = {
            name: nulls[:, number // 64] >> np.uint64(number % 64) & np.uint64(1)
            for number, name in enumerate(self._types)
            if nulls.any()
        }
        return frame.with_columns(
            pl.when(pl.Series(flags == 0)).then(pl.col(name)).alias(name)
            for name, flags in absent.items()
            if flags.any()
        )


def _packed(kind: pl.DataType) -> pl.DataType:
    """Return the type that MessagePack keeps apart from all others: moments as integers."""
    if isinstance(kind, pl.List):
        return pl.List(_packed(kind.inner))  # type: ignore[arg-type]
    if isinstance(kind, pl.Struct):
        return pl.Struct({field.name: _packed(field.dtype) for field in kind.fields})  # type: ignore[arg-type]
    if isinstance(kind, pl.Decimal):
        return pl.String()
    return pl.Int64() if kind.is_temporal() else kind
