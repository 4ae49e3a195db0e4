"""Files of broadcast stores: read once at the start, kept in the job's storage by digest.

So every host reads the same rows whatever becomes of the user's file, and a changed file is a
new version at the next start. Parquet, CSV and JSON lines; everything else is a mistake.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from headrace.coordinator.storage import JobStorage
from headrace.errors import InvalidInputError
from headrace.files import disk_error
from headrace.graph.operators import JobGraph
from headrace.graph.tables import BroadcastSpec
from headrace.plan.tables import TableFile, tables_of
from headrace.records.schema import normalise

FOLDER = "tables"
SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".jsonl": "ndjson", ".ndjson": "ndjson"}


@dataclass(frozen=True)
class LoadedFile:
    """A file as it was read: what the plan says of it, and the bytes to store."""

    bound: TableFile
    data: bytes


def broadcast_specs(graph: JobGraph) -> dict[str, BroadcastSpec]:
    """Return the broadcast stores of a graph, by name."""
    return {table.name: table for o in graph.operators for table in tables_of(o)}


def load_table_files(graph: JobGraph, *, absent_ok: bool = False) -> dict[str, LoadedFile]:
    """Read the files of a graph's broadcast stores, by the path that the user gave.

    Args:
        graph: of the job.
        absent_ok: leave out a file that does not exist if its schema is given.

    Raises:
        InvalidInputError: a file is missing, of an unknown kind, or does not fit its schema.
        UnavailableError: it cannot be read.
    """
    loaded = {}
    for spec in broadcast_specs(graph).values():
        if spec.file is not None and (
            Path(spec.file).exists() or not (absent_ok and spec.schema is not None)
        ):
            loaded[spec.file] = _load(spec, Path(spec.file))
    return loaded


def store_table_files(loaded: Iterable[LoadedFile], storage: JobStorage, unique: str) -> None:
    """Put what was read where all hosts find it.

    Args:
        loaded: the files.
        storage: of the job.
        unique: a name part that no other writer uses.
    """
    for file in loaded:
        path = storage.root / file.bound.path
        path.parent.mkdir(exist_ok=True)
        if not storage.files.publish(path, file.data, unique):
            os.utime(path)  # in use again, whoever tidies at this moment


def _load(spec: BroadcastSpec, path: Path) -> LoadedFile:
    rows = normalise(_read(spec, path), spec.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    data = sink.getvalue().to_pybytes()
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return LoadedFile(TableFile(rows.schema, f"{FOLDER}/{digest}.arrow", digest), data)


def _read(spec: BroadcastSpec, path: Path) -> pa.Table:
    kind = SUFFIXES.get(path.suffix.lower())
    where = f"broadcast store {spec.name!r}: file {path}"
    if kind is None:
        raise InvalidInputError(
            f"{where} is of no known kind; expected a name that ends in {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise InvalidInputError(f"{where} does not exist; found in {Path.cwd()}: nothing there")
    try:
        if kind == "parquet":
            return _fitted(pl.read_parquet(path), spec)
        types = None if spec.schema is None else _polars_types(spec.schema)
        if kind == "csv":
            frame = pl.read_csv(
                path, schema_overrides=types, infer_schema_length=None, try_parse_dates=True
            )
        else:
            frame = pl.read_ndjson(path, schema_overrides=types, infer_schema_length=None)
        return _fitted(frame, spec)
    except OSError as error:
        raise disk_error(error) from error
    except pl.exceptions.PolarsError as error:
        raise InvalidInputError(f"{where} cannot be read: {error}"[:1000]) from error


def _fitted(frame: pl.DataFrame, spec: BroadcastSpec) -> pa.Table:
    """The columns that the schema has, where there is one; normalising says what is missing."""
    if spec.schema is not None:
        frame = frame.select([name for name in spec.schema.names if name in frame.columns])
    return frame.to_arrow()


def _polars_types(schema: pa.Schema) -> dict[str, pl.DataType]:
    frame = pl.from_arrow(schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return dict(frame.schema)
