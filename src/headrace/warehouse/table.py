"""``Table``: what a reader may know of a table, and the files that hold its committed rows.

SQL on DuckDB and on Spark share how they report missing tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import HeadraceError, InvalidInputError
from headrace.graph.sinks import NO_TIME, PARTITION
from headrace.warehouse.day_files import filled
from headrace.warehouse.delta import DELTA_LOG, snapshot_of
from headrace.warehouse.snapshot import TableLocation, existing_snapshot, folder_of, read_days


def missing_tables(message: str, failed: Mapping[str, HeadraceError]) -> str:
    """Return why a query was refused, with the tables that it could not have.

    Args:
        message: by the engine.
        failed: tables that cannot be read.
    """
    missing = [error.message for name, error in failed.items() if name.lower() in message.lower()]
    return "; ".join([message, *missing])


@dataclass(frozen=True)
class DayInfo:
    """A day of a table.

    Args:
        day: such as ``2013-01-31``.
        rows: how many it contains.
        files: number of files.
        bytes: size of these files.
        is_complete: whether the watermark has passed it.
        late_rows: rows that were read when the watermark of their own partition had passed it.
    """

    day: str
    rows: int
    files: int
    bytes: int
    is_complete: bool
    late_rows: int


class Table:
    """One snapshot of a table of the warehouse: complete epochs, each row once.

    The files stay for the setting ``warehouse.keep_s`` after others replaced them; ``refresh``
    reads the latest snapshot.

    Args:
        folder: of the table, ``warehouse/NAME`` below the setting ``home``.

    Raises:
        InvalidInputError: no job has created it.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._place = TableLocation(Path(folder))
        self.is_delta = (Path(folder) / DELTA_LOG).is_dir()
        self.refresh()

    def refresh(self) -> None:
        """Read the latest snapshot."""
        self._snapshot = (
            snapshot_of(self._place.root) if self.is_delta else existing_snapshot(self._place)
        )

    @property
    def name(self) -> str:
        """Its name."""
        return self._place.root.name

    @property
    def job(self) -> str:
        """The job that writes it."""
        return self._snapshot.job

    @property
    def time(self) -> str:
        """The column that determines the day."""
        return self._snapshot.time

    @property
    def schema(self) -> pa.Schema:
        """Its columns, without the partition column."""
        return self._snapshot.schema

    @property
    def version(self) -> int:
        """The number of the snapshot; each change has a higher one."""
        return self._snapshot.version

    @property
    def watermark(self) -> int | None:
        """The watermark at the last change, ms; ``None``: unknown, or ended."""
        found = self._snapshot.watermark
        return found if NO_TIME < found < -NO_TIME else None

    @property
    def days(self) -> list[DayInfo]:
        """Its days, in order."""
        return [
            DayInfo(
                name, day.rows, len(day.files), day.bytes, day.completed_ms is not None,
                day.late_rows,
            )
            for name, day in sorted(self._snapshot.days.items())
        ]  # fmt: skip

    def files(self, days: str | None = None) -> list[str]:
        """Return the files with the rows of days; each is in a folder ``ds=2013-01-31``.

        Args:
            days: one, or several as ``2013-01-01..2013-01-31``; ``None``: all.

        Raises:
            InvalidInputError: ``days`` is not a range.
        """
        wanted = list(self._snapshot.days)
        if days is not None:
            first, last = read_days(days)
            wanted = [day for day in wanted if first <= day <= last]
        root = self._place.root if self.is_delta else self._place.data
        return [
            str(root / folder_of(day) / file.name)
            for day in sorted(wanted)
            for file in sorted(self._snapshot.days[day].files)
        ]

    def batches(self, days: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of days with all columns, file by file, the oldest day first.

        Args:
            days: as for ``files``.
        """
        for path in self.files(days):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    table = filled(pa.Table.from_batches([batch]), self.schema)
                    yield from table.to_batches()

    def to_arrow(self, days: str | None = None) -> pa.Table:
        """Return the rows of days as one Arrow table, with the partition column.

        Args:
            days: as for ``files``.
        """
        parts = []
        for path in self.files(days):
            rows = filled(pq.ParquetFile(path).read(), self.schema)
            day = Path(path).parent.name.removeprefix(f"{PARTITION}=")
            column = pa.repeat(pa.scalar(day), rows.num_rows).cast(pa.date32())
            parts.append(rows.append_column(PARTITION, column))
        schema = pa.schema([*self.schema, pa.field(PARTITION, pa.date32())])
        return pa.concat_tables(parts) if parts else schema.empty_table()


def table_names(warehouse: str | PathLike[str]) -> list[str]:
    """Return the names of the tables in a folder, sorted."""
    root = Path(warehouse)
    if not root.is_dir():
        return []
    return sorted(
        path.name
        for path in root.iterdir()
        if not path.name.startswith(".")
        and (TableLocation(path).snapshot.exists() or (path / DELTA_LOG).is_dir())
    )


def named_table(warehouse: str | PathLike[str], name: str) -> Table:
    """Return a table of a warehouse by its name.

    Raises:
        InvalidInputError: there is no table of that name.
    """
    names = table_names(warehouse)
    if name in names:
        return Table(Path(warehouse) / name)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names) or 'none'}"
    raise InvalidInputError(f"no table {name!r} in warehouse {warehouse}; {hint}")


def readable_tables(
    warehouse: str | PathLike[str],
) -> tuple[list[Table], dict[str, HeadraceError]]:
    """Return the readable tables in a folder, and why the others cannot be read.

    A damaged table, or one that others made, does not prevent reading the others.
    """
    found, failed = [], {}
    for name in table_names(warehouse):
        try:
            found.append(Table(Path(warehouse) / name))
        except HeadraceError as error:
            failed[name] = error
    return found, failed
