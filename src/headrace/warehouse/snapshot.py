"""What a table holds: which files each day has, by a snapshot and the changes since.

A commit of a small table replaces its snapshot. Where that has grown, a commit adds a file with
what it changes, numbered as the versions are, and each 256th replaces the snapshot: so a commit
costs what it changes, however many days there are. Days are numbers from 1970; which days are
beyond retention and which columns may be added to a table with rows is also decided here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from headrace.durations import duration_ms
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.files import Files
from headrace.graph.sinks import NO_TIME, PARTITION, DailyTable
from headrace.records.schema import schema_from_text
from headrace.remote import address_of

_FIRST = date(1970, 1, 1)
DAY_MS = 86_400_000


def day_name(day: int) -> str:
    """Return a day as in names of partitions: ``2013-01-31``."""
    return (_FIRST + timedelta(days=day)).isoformat()


def day_number(name: str) -> int:
    """Return which day after 1970-01-01 a name is."""
    return (date.fromisoformat(name) - _FIRST).days


def read_days(text: str) -> tuple[str, str]:
    """Read a day, or a range of days with both ends: ``2013-01-01..2013-01-31``.

    Raises:
        InvalidInputError: it is neither.
    """
    first, dots, last = text.partition("..")
    try:
        begin = date.fromisoformat(first.strip())
        end = date.fromisoformat(last.strip()) if dots else begin
    except ValueError as error:
        raise InvalidInputError(
            f"found days {text!r}, expected a day such as 2013-01-31, or the first and the last of "
            "several, such as 2013-01-01..2013-01-31"
        ) from error
    if end < begin:
        raise InvalidInputError(f"found days {text!r}, of which the last is before the first")
    return begin.isoformat(), end.isoformat()


def old_days(days: Collection[str], table: DailyTable, now_ms: int) -> list[str]:
    """Return the days to drop, sorted; a row of a day to come, by the clock, empties no table.

    Args:
        days: that the table has.
        table: with its retention.
        now_ms: by the wall clock.
    """
    if table.retention is None:
        return []
    kept_days = duration_ms(table.retention, "retention") // DAY_MS
    today = day_name(now_ms // DAY_MS)
    newest = max((name for name in days if name <= today), default=None)
    if newest is None:
        return []
    last = day_number(newest) - kept_days
    return sorted(name for name in days if day_number(name) <= last)


def evolved_schema(held: pa.Schema, given: pa.Schema, table: str) -> pa.Schema:
    """Return the columns of a table that gets rows with others than it has.

    Raises:
        InvalidInputError: a column is not given any more, or has another type.
    """
    lost = [name for name in held.names if name not in given.names]
    if lost:
        raise InvalidInputError(
            f"table {table!r} has columns {lost}, which the job does not send any more; a table "
            "keeps its columns: send nulls in them, or name another table"
        )
    other = [f for f in given if f.name in held.names and held.field(f.name).type != f.type]
    if other:
        name = other[0].name
        raise InvalidInputError(
            f"column {name!r} of table {table!r} is {held.field(name).type}, the job sends "
            f"{other[0].type}; cast it with map, send it in a new column, or name another table"
        )
    new = [field for field in given if field.name not in held.names]
    return pa.schema([*held, *new])


FORMAT = 2
MARK = "_SUCCESS"
SMALL_BYTES = 16 << 10
"""A snapshot up to this size is replaced by each commit."""

MOST_CHANGES = 256
_TRIES = 100
_T = TypeVar("_T")


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


class SnapshotChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit changes of a snapshot, and the number of the one that it makes.

    ``days`` that are ``None`` are gone; ``removed`` are names that ``replaced`` no longer has.
    """

    version: int
    watermark: int
    days: dict[str, Day | None] = {}
    marks: dict[str, int] = {}
    replaced: dict[str, int] = {}
    removed: tuple[str, ...] = ()


def apply_changes(snapshot: Snapshot, changes: Iterable[SnapshotChange]) -> Snapshot:
    """Return a snapshot after changes, each of which follows the one before."""
    days, marks, replaced = dict(snapshot.days), dict(snapshot.marks), dict(snapshot.replaced)
    version, watermark = snapshot.version, snapshot.watermark
    for change in changes:
        version, watermark = change.version, change.watermark
        marks |= change.marks
        replaced |= change.replaced
        for name in change.removed:
            replaced.pop(name, None)
        for name, day in change.days.items():
            if day is None:
                days.pop(name, None)
            else:
                days[name] = day
    return msgspec.structs.replace(
        snapshot,
        format=FORMAT,
        version=version,
        watermark=watermark,
        days=days,
        marks=marks,
        replaced=replaced,
    )


@dataclass
class SnapshotDraft:
    """A commit that is put together: what it changes of the snapshot that is there."""

    held: Snapshot
    days: dict[str, Day | None] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    watermark: int | None = None

    def __bool__(self) -> bool:
        """Say whether it changes anything that readers see."""
        return bool(self.days)

    def day(self, name: str) -> Day | None:
        """Return a day as it is going to be."""
        return self.days[name] if name in self.days else self.held.days.get(name)

    @property
    def change(self) -> SnapshotChange:
        """All of it."""
        held, watermark = self.held, self.watermark
        return SnapshotChange(
            held.version + 1,
            held.watermark if watermark is None else watermark,
            self.days,
            self.marks,
            self.replaced,
            tuple(sorted(self.removed)),
        )


def folder_of(day: str) -> str:
    """Return the name of a day's folder."""
    return f"{PARTITION}={day}"


def tag_of(lineage: str) -> str:
    """Return the short name of a lineage that names of files have."""
    return hashlib.blake2b(lineage.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class TableLocation:
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

    @cached_property
    def changes(self) -> Path:
        """The folder with the changes since the snapshot."""
        return self.control / "changes"

    def change(self, version: int) -> Path:
        """Return the file of the change that makes a version."""
        return self.changes / f"{version:012d}.json"

    def read(self) -> Snapshot | None:
        """Return the snapshot with the changes since; ``None``: there is no table.

        Raises:
            CorruptDataError: it cannot be read.
        """
        for _ in range(_TRIES):  # the snapshot may be replaced, and changes go, meanwhile
            try:
                before = self.snapshot.stat()
                snapshot = _decoded(self.snapshot, Snapshot)
            except FileNotFoundError:
                return None
            if snapshot.format > FORMAT:
                raise CorruptDataError(
                    f"snapshot {self.snapshot} has format {snapshot.format}, this version reads up "
                    f"to {FORMAT}; use a version that wrote it",
                    file=str(self.snapshot),
                )
            since = self._since(snapshot.version)
            if since is not None and self._is_still(before):
                return apply_changes(snapshot, since) if since else snapshot
        raise CorruptDataError(
            f"changes of {self.snapshot} are missing: found {self._versions()[:3]}, expected all "
            f"from {snapshot.version + 1} on; put them back",
            file=str(self.changes),
        )

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self.changes)
        except FileNotFoundError:
            return []
        return sorted(int(name[:12]) for name in names if not name.startswith("."))

    def _since(self, version: int) -> list[SnapshotChange] | None:
        """The changes after a version; ``None`` where some of them are not there."""
        versions = [found for found in self._versions() if found > version]
        if versions != list(range(version + 1, version + 1 + len(versions))):
            return None
        with suppress(FileNotFoundError):
            return [_decoded(self.change(found), SnapshotChange) for found in versions]
        return None

    def _is_still(self, before: os.stat_result) -> bool:
        """Whether no other snapshot took its place: all changes since could have gone with it."""
        with suppress(FileNotFoundError):
            now = self.snapshot.stat()
            return (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        return False

    def write(self, draft: SnapshotDraft, files: Files) -> Snapshot:
        """Let a commit count, durably and in one step; return what the table holds since.

        Raises:
            FileExistsError: there is another commit of that number.
        """
        change = draft.change
        made = apply_changes(draft.held, [change])
        if change.version % MOST_CHANGES == 0 or self.snapshot.stat().st_size <= SMALL_BYTES:
            return self.write_whole(made, files)
        if not files.publish(self.change(change.version), msgspec.json.encode(change)):
            raise FileExistsError(str(self.change(change.version)))
        return made

    def write_whole(self, snapshot: Snapshot, files: Files) -> Snapshot:
        """Replace the snapshot, durably and in one step, and release the changes before it."""
        files.replace(self.snapshot, msgspec.json.encode(snapshot))
        for version in self._versions():
            if version <= snapshot.version:
                files.remove(self.change(version))
        return snapshot


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise CorruptDataError(
            f"snapshot {path} cannot be read: {error}", file=str(path)
        ) from error


def existing_snapshot(place: TableLocation) -> Snapshot:
    """Return the snapshot of a table that is there.

    Raises:
        InvalidInputError: there is none.
    """
    found = place.read()
    if found is None:
        raise InvalidInputError(
            f"there is no table in {address_of(place.root)}; expected "
            f"{address_of(place.snapshot)}, which the first epoch "
            "of a job with g.output_table makes"
        )
    return found
