"""Rows as the content of one file, and several files of one form as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from headrace.files import Bytes

CHUNK = 1 << 20
_Test = Callable[[pa.DataType], bool]
_INSTANT = "%Y-%m-%dT%H:%M:%SZ"  # %S has the fraction of a second


class Format(ABC):
    """How rows are written; stateless, and named by what its files end with."""

    name: str
    suffix: str

    @abstractmethod
    def refuses(self, kind: pa.DataType) -> bool:
        """Say whether it has no form for a type of columns."""

    @abstractmethod
    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the content of a file."""

    def form(self, path: Path) -> Hashable:
        """Return what files must have in common to be merged."""
        return None

    @abstractmethod
    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Write the rows of several files into one, in their order; returns its bytes."""


class Parquet(Format):
    """Columns with statistics, zstd."""

    name, suffix = "Parquet", "parquet"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse nothing that a stream can hold."""
        return False

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return one file, of row groups of a million rows at most."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return [sink.getvalue()]

    def form(self, path: Path) -> Hashable:
        """Return the columns."""
        return str(pq.read_schema(path))

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Write row groups of about a million rows, however small those of the parts are."""
        schema = pq.read_schema(paths[0])
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for table in _gathered(paths, schema):
                writer.write_table(table)
        return target.stat().st_size


def _gathered(paths: Sequence[Path], schema: pa.Schema, rows: int = CHUNK) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                held.append(batch)
                if sum(part.num_rows for part in held) >= rows:
                    yield pa.Table.from_batches(held, schema)
                    held = []
    if held:
        yield pa.Table.from_batches(held, schema)


class JsonLines(Format):
    """One object a line; instants as ISO 8601 in UTC."""

    name, suffix = "JSON lines", "jsonl"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse bytes, durations and decimals, and instants within lists and structs."""
        return _holds(kind, pa.types.is_binary, pa.types.is_duration, pa.types.is_decimal)

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the lines."""
        frame = pl.from_arrow(_instants_as_text(table))
        assert isinstance(frame, pl.DataFrame)
        file = BytesIO()
        frame.write_ndjson(file)
        return [file.getvalue()]

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Join the lines."""
        return _joined(paths, target, headers=False)


class Csv(Format):
    """A line of names, then the rows; null is empty, and empty text is ``""``."""

    name, suffix = "CSV", "csv"

    def refuses(self, kind: pa.DataType) -> bool:
        """Refuse lists, structs, bytes and durations."""
        return pa.types.is_nested(kind) or _holds(kind, pa.types.is_binary, pa.types.is_duration)

    def encode(self, table: pa.Table) -> list[Bytes]:
        """Return the lines."""
        sink = pa.BufferOutputStream()
        arrow_csv.write_csv(_instants_as_text(table), sink)
        return [sink.getvalue()]

    def form(self, path: Path) -> Hashable:
        """Return the line of names."""
        with path.open("rb") as file:
            return file.readline()

    def merge(self, paths: Sequence[Path], target: Path) -> int:
        """Join the lines under one line of names."""
        return _joined(paths, target, headers=True)


def _instants_as_text(table: pa.Table) -> pa.Table:
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            text = pc.strftime(table.column(at), format=_INSTANT)
            table = table.set_column(at, field.name, text)
    return table


def _holds(kind: pa.DataType, *tests: _Test) -> bool:
    if pa.types.is_nested(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return any(_holds(part, pa.types.is_timestamp, *tests) for part in inner)
    return any(test(kind) for test in tests)


def _joined(paths: Sequence[Path], target: Path, *, headers: bool) -> int:
    with target.open("xb") as out:
        for number, path in enumerate(paths):
            with path.open("rb") as part:
                if headers and number:
                    part.readline()
                while chunk := part.read(CHUNK):
                    out.write(chunk)
        return out.tell()
