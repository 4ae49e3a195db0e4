"""The Parquet files of a day: made of rows in a slot, and which small ones are compacted.

What a slot makes in an epoch is a packet: the Parquet of each day, one after the other, with an
index at the end, so that the driver copies bytes and decodes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptDataError
from headrace.files import Bytes
from headrace.graph.sinks import LATE_ROW
from headrace.records.schema import normalise
from headrace.warehouse.snapshot import DAY_MS, DataFile, Day, day_name

MAGIC = b"HRDAYS01"
ROW_GROUP = 1 << 20
FEW_ROWS = 1 << 16
"""Files of fewer rows are to be merged soon, and are written as fast as can be."""

_ROW = "__row"
_OF_DAY = {
    unit: DAY_MS * per // 1000
    for unit, per in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9))
}
Places = npt.NDArray[np.int64]


class DayRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one day: a whole Parquet file within the packet; how many of them are late."""

    day: str
    begin: int
    bytes: int
    rows: int
    late: int = 0


def parquet_bytes(table: pa.Table) -> pa.Buffer:
    """Return a table as the content of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="snappy" if table.num_rows < FEW_ROWS else "zstd",
        row_group_size=ROW_GROUP,
        use_dictionary=_repeating(table.schema),
    )
    return sink.getvalue()


def _repeating(schema: pa.Schema) -> list[str] | bool:
    """The columns whose values may come again; all, where some hold others."""
    if any(pa.types.is_nested(field.type) for field in schema):
        return True
    seldom = (pa.types.is_floating, pa.types.is_timestamp)
    return [f.name for f in schema if not any(test(f.type) for test in seldom)]


def encode_packet(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, time: str, order: Sequence[str]
) -> list[Bytes]:
    """Return a packet of rows, sorted by day, and within a day by columns.

    Args:
        batches: rows; those that are equal in all columns of ``order`` stay in their order. Some
            have a column more, which says which of them are late.
        schema: of them.
        time: the column that the day is of; without nulls.
        order: columns to sort by.
    """
    table = pa.Table.from_batches([batch.select(schema.names) for batch in batches], schema)
    late = _late_by_day(batches, time)
    chunks: list[Bytes] = []
    pieces: list[DayRows] = []
    position = 0
    for day, rows in _by_day(table, time, order):
        content = parquet_bytes(rows)
        pieces.append(DayRows(day_name(day), position, content.size, rows.num_rows, late[day]))
        chunks.append(content)
        position += content.size
    index = msgspec.json.encode(pieces)
    return [*chunks, index, len(index).to_bytes(8, "little"), MAGIC]


def _late_by_day(batches: Sequence[pa.RecordBatch], time: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for batch in batches:
        if LATE_ROW in batch.schema.names:
            rows = batch.filter(batch.column(LATE_ROW))
            days, counts = np.unique(days_of(rows.column(time)), return_counts=True)
            found.update(dict(zip(days.tolist(), counts.tolist(), strict=True)))
    return found


def _by_day(table: pa.Table, time: str, order: Sequence[str]) -> list[tuple[int, pa.Table]]:
    days = days_of(table.column(time))
    rows = sorted_places(table, order)
    if order[0] != time:  # else the days are in order as the times are
        rows = rows[np.argsort(_small(days)[rows], kind="stable")]
    days, table = days[rows], table.take(pa.array(rows))
    starts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist()]
    stops = [*starts[1:], len(days)]
    return [
        (int(days[start]), table.slice(start, stop - start))
        for start, stop in zip(starts, stops, strict=True)
    ]


def _small(days: Places) -> npt.NDArray[np.uint16] | Places:
    """Days from the first one on, in two bytes where they fit, which NumPy sorts in no time."""
    since: Places = days - days.min(initial=0)
    if since.max(initial=0) >= 1 << 16:
        return since
    small: npt.NDArray[np.uint16] = since.astype(np.uint16)
    return small


def days_of(column: pa.Array | pa.ChunkedArray) -> Places:
    """Return which day after 1970-01-01 each time is, of timestamps or milliseconds."""
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    days: Places = column.cast(pa.int64()).to_numpy() // _OF_DAY[unit]
    return days


def sorted_places(table: pa.Table, order: Sequence[str]) -> Places:
    """Return the places of rows in the order of some columns; equal ones keep theirs."""
    if len(order) == 1 and not table.column(order[0]).null_count:
        column = table.column(order[0])
        if pa.types.is_timestamp(column.type) or column.type == pa.int64():
            return np.argsort(column.cast(pa.int64()).to_numpy(), kind="stable")
    rows = pl.from_arrow(table.select(list(order)))
    assert isinstance(rows, pl.DataFrame)
    placed = rows.with_row_index(_ROW).sort(list(order), maintain_order=True)
    places: Places = placed.get_column(_ROW).to_numpy().astype(np.int64)
    return places


def packet_index(content: pa.Buffer, path: Path) -> list[DayRows]:
    """Return the index of a packet.

    Raises:
        CorruptDataError: it is none.
    """
    view = memoryview(content)
    end = len(view) - 16
    if end < 0 or bytes(view[-8:]) != MAGIC:
        raise CorruptDataError(f"file {path} is not one of days", file=str(path))
    length = int.from_bytes(view[end : end + 8], "little")
    return msgspec.json.decode(view[end - length : end], type=list[DayRows])


BUDGET_BYTES = 64 << 20
"""So much is merged in one epoch, at least one day; the next continues."""


@dataclass(frozen=True)
class FileSizeTargets:
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
class FileCompaction:
    """Files of a day that become one."""

    day: str
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """How long they are together."""
        return sum(file.bytes for file in self.files)


def due_compactions(
    days: Mapping[str, Day], aims: FileSizeTargets, *, at_once: bool = False
) -> Iterator[FileCompaction]:
    """Yield what is to be merged, the oldest day first.

    Args:
        days: that are looked at.
        aims: of files.
        at_once: all days with several small files, however few.
    """
    for name, day in sorted(days.items()):
        small = small_files(day, aims)
        if at_once:
            wanted = 2
        elif day.completed_ms is not None and not day.is_merged:
            wanted = aims.complete_files
        else:
            wanted = aims.merge_files
        if len(small) >= wanted:
            yield FileCompaction(name, tuple(_taken(small, aims)))


def small_files(day: Day, aims: FileSizeTargets) -> list[DataFile]:
    """Return the files of a day that are worth merging, the smallest first."""
    return sorted((f for f in day.files if f.bytes < aims.file_bytes // 2), key=lambda f: f.bytes)


def _taken(small: Sequence[DataFile], aims: FileSizeTargets) -> Iterator[DataFile]:
    """So many that they make about one file, at least two."""
    total = 0
    for number, file in enumerate(small):
        total += file.bytes
        if number >= 2 and total > aims.file_bytes:
            return
        yield file


def within_budget(merges: Iterable[FileCompaction], budget: int) -> list[FileCompaction]:
    """Return the first merges, together of about so many bytes; at least one."""
    taken: list[FileCompaction] = []
    for merge in merges:
        budget -= merge.bytes
        if taken and budget < 0:
            break
        taken.append(merge)
    return taken


def compacted_rows(paths: Sequence[Path], schema: pa.Schema, order: Sequence[str]) -> pa.Buffer:
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
