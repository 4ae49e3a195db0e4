"""A store as a Parquet file: typed columns, one order, memory bounded whatever its size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import InvalidInputError

GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20


def export_parquet(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path, unique: str
) -> int:
    """Write batches to a file that takes its name when it is whole; returns the rows.

    Args:
        batches: of the schema, drawn as they are written.
        schema: columns.
        path: of the file; one that is there is replaced.
        unique: a name part that no other writer uses.

    Raises:
        InvalidInputError: the folder is not there.
    """
    if not path.parent.is_dir():
        raise InvalidInputError(f"no folder {path.parent} to export to; make it first")
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    rows = 0
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in _grouped(batches, schema):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def _grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, GROUP_ROWS):
            part = batch.slice(begin, GROUP_ROWS)
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                yield pa.Table.from_batches(held, schema)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held, schema)
