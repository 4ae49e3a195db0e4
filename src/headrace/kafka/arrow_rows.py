"""Values in Arrow: each message is an IPC stream with one row, whose columns are in it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.kafka.formats import ColumnDecoder, Encoder, own_names
from headrace.kafka.registered import UNFIT, Wrong


class ArrowDecoder(ColumnDecoder):
    """Reads columns by name; those that are missing are null, and others are left out."""

    def rows(
        self, values: Sequence[bytes], wanted: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, Wrong]:
        """Return values as these columns, and those that are not such: which, and why."""
        kinds = self.kinds(wanted)
        found = [pa.RecordBatch.from_pylist([], schema=kinds)]
        wrong: Wrong = []
        for at, value in enumerate(values):
            try:
                found.append(_row(value, kinds))
            except InvalidInputError as error:
                wrong.append((at, error))
            except (*UNFIT, OSError) as error:
                said = f"it is not an IPC stream of Arrow with these columns: {error}"
                wrong.append((at, InvalidInputError(said)))
        return pa.concat_batches(found), wrong


def _row(value: bytes, kinds: pa.Schema) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(value)) as reader:
        table = reader.read_all()
    table.validate(full=True)
    if table.num_rows != 1:
        raise InvalidInputError(
            f"found {table.num_rows} rows in a message; expected one, because an offset is one row"
        )
    [batch] = table.combine_chunks().to_batches()
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(1, field.type)
        for field in kinds
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def arrow_encoder(schema: pa.Schema, key: Sequence[str]) -> Encoder:
    """Return what makes values of rows; null for a tombstone."""
    own = own_names(schema)
    rest = [name for name in own if name not in key]

    def encoded(batch: pa.RecordBatch) -> pa.Array:
        rows = batch.select(own)
        made: list[bytes | None] = []
        for at in range(rows.num_rows):
            row = rows.slice(at, 1)
            if key and rest and all(row.column(name).null_count for name in rest):
                made.append(None)
                continue
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, row.schema) as writer:
                writer.write_batch(row)
            made.append(out.getvalue().to_pybytes())
        return pa.array(made, pa.binary())

    return encoded
