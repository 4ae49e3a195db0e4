"""Which small files of a day are merged, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.records.schema import normalise
from headrace.warehouse.packet import parquet_bytes, sorted_places
from headrace.warehouse.snapshot import DataFile, Day, Snapshot

BUDGET_BYTES = 64 << 20
"""So much is merged in one epoch, at least one day; the next goes on."""


@dataclass(frozen=True)
class Aims:
    """Of what size files are to be.

    Args:
        file_bytes: aim of a file; those below half of it are small.
        merge_files: so many small ones of a day are merged.
        keep_ms: how long merged files stay for readers that have begun with them.
    """

    file_bytes: int = 128 << 20
    merge_files: int = 32
    keep_ms: int = 3_600_000

    @property
    def complete_files(self) -> int:
        """So many small ones are merged when the day is complete."""
        return max(2, self.merge_files // 8)


@dataclass(frozen=True)
class Merge:
    """Files of a day that become one."""

    day: str
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """How long they are together."""
        return sum(file.bytes for file in self.files)


def due(snapshot: Snapshot, aims: Aims, *, at_once: bool = False) -> Iterator[Merge]:
    """Yield what is to be merged, the oldest day first.

    Args:
        snapshot: of the table.
        aims: of files.
        at_once: all days with several small files, however few.
    """
    for name, day in sorted(snapshot.days.items()):
        small = small_files(day, aims)
        if at_once:
            wanted = 2
        elif day.completed_ms is not None and not day.is_merged:
            wanted = aims.complete_files
        else:
            wanted = aims.merge_files
        if len(small) >= wanted:
            yield Merge(name, tuple(_taken(small, aims)))


def small_files(day: Day, aims: Aims) -> list[DataFile]:
    """Return the files of a day that are worth merging, the smallest first."""
    return sorted((f for f in day.files if f.bytes < aims.file_bytes // 2), key=lambda f: f.bytes)


def _taken(small: Sequence[DataFile], aims: Aims) -> Iterator[DataFile]:
    """So many that they make about one file, at least two."""
    total = 0
    for number, file in enumerate(small):
        total += file.bytes
        if number >= 2 and total > aims.file_bytes:
            return
        yield file


def within_budget(merges: Iterator[Merge], budget: int) -> list[Merge]:
    """Return the first merges, together of about so many bytes; at least one."""
    taken: list[Merge] = []
    for merge in merges:
        budget -= merge.bytes
        if taken and budget < 0:
            break
        taken.append(merge)
    return taken


def merged(paths: Sequence[Path], schema: pa.Schema, order: Sequence[str]) -> pa.Buffer:
    """Return the rows of files as one file with all columns of the table, sorted."""
    parts = []
    for path in paths:
        with pa.memory_map(str(path)) as source:
            parts.append(filled(pq.ParquetFile(source).read(use_threads=False), schema))
    table = pa.concat_tables(parts).combine_chunks()
    return parquet_bytes(table.take(pa.array(sorted_places(table, order))))


def filled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of the table; those that were added since are null."""
    if table.schema.equals(schema):
        return table
    for field in schema:
        if field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return pa.Table.from_batches([normalise(table.select(schema.names), schema)], schema)
