"""What a table holds: one small file that names the files of each day, replaced by each commit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.graph.daily import PARTITION
from headrace.graph.sinks import NO_TIME
from headrace.records.schema import schema_from_text

FORMAT = 1
MARK = "_SUCCESS"


class DataFile(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of a day, by its name in the folder of the day."""

    name: str
    rows: int
    bytes: int


class Day(msgspec.Struct, frozen=True):
    """The files of one day.

    ``completed_ms`` is the wall clock when the watermark had passed it; ``None``: not yet.
    ``late_rows`` came when the watermark of their own partition had, which is a matter of the log
    alone. ``is_merged`` says that it was compacted when it was complete.
    """

    files: tuple[DataFile, ...]
    completed_ms: int | None = None
    late_rows: int = 0
    is_merged: bool = False

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """How long its files are."""
        return sum(file.bytes for file in self.files)


class Snapshot(msgspec.Struct, frozen=True):
    """All that a table holds, and who writes it.

    ``marks`` is the last epoch of each lineage that is in it; ``replaced`` are files that other
    ones stand for, or that retention dropped, with the wall clock since when.
    """

    format: int
    job: str
    operator: str
    columns: str
    time: str
    order: tuple[str, ...] = ()
    version: int = 0
    watermark: int = NO_TIME
    days: dict[str, Day] = {}
    marks: dict[str, int] = {}
    replaced: dict[str, int] = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns, without that of the partition."""
        return schema_from_text(self.columns)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(day.rows for day in self.days.values())


def folder_of(day: str) -> str:
    """Return the name of a day's folder."""
    return f"{PARTITION}={day}"


def tag_of(lineage: str) -> str:
    """Return the short name of a lineage that names of files have."""
    return hashlib.blake2b(lineage.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Place:
    """Where a table lies: the folder that plain readers know, and what is beside it.

    Args:
        root: the folder with one of each day.
    """

    root: Path

    @cached_property
    def control(self) -> Path:
        """The folder of all that only Headrace knows; no pattern below ``root`` matches it."""
        return self.root.with_name(f".{self.root.name}.headrace")

    @cached_property
    def data(self) -> Path:
        """The files, under names that they keep."""
        return self.control / "data"

    @cached_property
    def stage(self) -> Path:
        """What is put together out of sight."""
        return self.control / "stage"

    @property
    def snapshot(self) -> Path:
        """The file with the snapshot."""
        return self.control / "snapshot.json"

    def path(self, day: str, name: str) -> Path:
        """Return where a file keeps its name."""
        return self.data / folder_of(day) / name

    def read(self) -> Snapshot | None:
        """Return the snapshot; ``None``: there is no table.

        Raises:
            CorruptDataError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self.snapshot.read_bytes(), type=Snapshot)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CorruptDataError(
                f"snapshot {self.snapshot} cannot be read: {error}", file=str(self.snapshot)
            ) from error

    def write(self, snapshot: Snapshot, files: Files, unique: str) -> Snapshot:
        """Replace the snapshot, durably and in one step; return it with its number."""
        made = msgspec.structs.replace(snapshot, version=snapshot.version + 1)
        files.replace(self.snapshot, msgspec.json.encode(made), unique)
        return made


def existing(place: Place) -> Snapshot:
    """Return the snapshot of a table that is there.

    Raises:
        InvalidInputError: there is none.
    """
    found = place.read()
    if found is None:
        raise InvalidInputError(
            f"there is no table in {place.root}; expected {place.snapshot}, which the first epoch "
            "of a job with g.output_table makes"
        )
    return found
