"""``Table``: what a reader may know of a table, and the files that hold its committed rows.

SQL on DuckDB and on Spark share how they report missing tables.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import HeadraceError, InvalidInputError
from headrace.files import Files
from headrace.graph.sinks import NO_TIME, PARTITION
from headrace.objects import Address
from headrace.remote import RemoteFile, address_of, cache_bytes, is_remote, local_path
from headrace.warehouse.day_files import filled
from headrace.warehouse.delta import DELTA_LOG, snapshot_of
from headrace.warehouse.object_table import location_of
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
        folder: of the table, ``warehouse/NAME`` below the setting ``home``; or its address, such
            as ``s3://bucket/warehouse/NAME``. Files from there are kept in ``HEADRACE_STATE_DIR``,
            or else in the user's cache, up to the setting ``storage.cache_bytes``.

    Raises:
        InvalidInputError: no job has created it.
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        root = _root(folder)
        self._place = location_of(root)
        self.is_delta = (root / DELTA_LOG).is_dir()
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
        wanted = self._wanted(days)
        if self.is_remote:
            self._check_size(wanted)
        return [str(_local(path)) for path in self._paths(wanted)]

    def places(self, days: str | None = None) -> list[str]:
        """Return the same as ``files`` without fetching them; Headrace reads these paths.

        Args:
            days: as for ``files``.
        """
        return [str(path) for path in self._paths(self._wanted(days))]

    @property
    def is_remote(self) -> bool:
        """Say whether it is in an object storage; its files are then copies on this host."""
        return is_remote(self._place.root)

    def _wanted(self, days: str | None) -> list[str]:
        if days is None:
            return sorted(self._snapshot.days)
        first, last = read_days(days)
        return sorted(day for day in self._snapshot.days if first <= day <= last)

    def _paths(self, days: Iterable[str]) -> list[Path]:
        root = self._place.root if self.is_delta else self._place.data
        return [
            root / folder_of(day) / file.name
            for day in days
            for file in sorted(self._snapshot.days[day].files)
        ]

    def _check_size(self, days: Iterable[str]) -> None:
        """Refuse to give copies of more than this host keeps: the first would go for the last."""
        size = sum(self._snapshot.days[day].bytes for day in days)
        if size > cache_bytes():
            raise InvalidInputError(
                f"table {self.name!r} has {size:,} bytes of these days in an object storage, and "
                f"this host keeps copies of {cache_bytes():,}; name fewer days, or raise "
                "storage.cache_bytes"
            )

    def batches(self, days: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of days with all columns, file by file, the oldest day first.

        Args:
            days: as for ``files``.
        """
        for path in self._paths(self._wanted(days)):
            with pq.ParquetFile(_local(path)) as file:
                for batch in file.iter_batches():
                    table = filled(pa.Table.from_batches([batch]), self.schema)
                    yield from table.to_batches()

    def to_arrow(self, days: str | None = None) -> pa.Table:
        """Return the rows of days as one Arrow table, with the partition column.

        Args:
            days: as for ``files``.
        """
        parts = []
        for path in self._paths(self._wanted(days)):
            rows = filled(pq.ParquetFile(_local(path)).read(), self.schema)
            day = path.parent.name.removeprefix(f"{PARTITION}=")
            column = pa.repeat(pa.scalar(day), rows.num_rows).cast(pa.date32())
            parts.append(rows.append_column(PARTITION, column))
        schema = pa.schema([*self.schema, pa.field(PARTITION, pa.date32())])
        return pa.concat_tables(parts) if parts else schema.empty_table()


def _root(folder: str | PathLike[str]) -> Path:
    """Return a folder, or on this host what stands for an address."""
    text = str(folder)
    if "://" not in text:
        return Path(folder)
    own = os.environ.get("HEADRACE_STATE_DIR")
    kept = Path(own).absolute() if own else Path.home() / ".cache" / "headrace"
    return local_path(Address.read(text), kept)


def _local(path: Path) -> Path:
    return RemoteFile(path).local() if is_remote(path) else path


def table_names(warehouse: str | PathLike[str]) -> list[str]:
    """Return the names of the tables in a folder, sorted."""
    root = _root(warehouse)
    if is_remote(root):
        found = Files(sync=False)
        return [
            name for name in found.names(root) if found.names(location_of(root / name).snapshot)
        ]
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
        return Table(_root(warehouse) / name)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names) or 'none'}"
    where = address_of(_root(warehouse))
    raise InvalidInputError(f"no table {name!r} in warehouse {where}; {hint}")


def readable_tables(
    warehouse: str | PathLike[str],
) -> tuple[list[Table], dict[str, HeadraceError]]:
    """Return the readable tables in a folder, and why the others cannot be read.

    A damaged table, or one that others made, does not prevent reading the others.
    """
    found, failed = [], {}
    for name in table_names(warehouse):
        try:
            found.append(Table(_root(warehouse) / name))
        except HeadraceError as error:
            failed[name] = error
    return found, failed
