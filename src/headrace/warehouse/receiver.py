"""The driver's side of a table: takes epochs, marks days, merges files, lets old days go."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.clock import Deadline
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.graph.daily import DailyTable
from headrace.graph.sinks import NO_TIME, Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.records.schema import schema_to_text
from headrace.warehouse.compaction import (
    BUDGET_BYTES,
    Aims,
    Merge,
    due,
    merged,
    within_budget,
)
from headrace.warehouse.days import day_number
from headrace.warehouse.evolving import evolved
from headrace.warehouse.packet import Piece, pieces_of
from headrace.warehouse.retention import old_days
from headrace.warehouse.snapshot import (
    FORMAT,
    DataFile,
    Day,
    Place,
    Snapshot,
    folder_of,
    tag_of,
)
from headrace.warehouse.view import View

END = 1 << 61
"""A watermark beyond it is that of the end of the inputs."""

LISTED_S = 0.2
"""Between two steps of a compaction: who has opened a folder lists it, and an epoch gets in."""

STEP_S = 2.0
"""How long to wait for a step of somebody else."""

_FEW = 16
THREADS = 2
"""That write and merge files beside each other: slots wait meanwhile."""


class TableReceiver(Receiver):
    """Commits epochs into a table of Parquet files.

    Args:
        place: of the table; made when it is missing.
        table: what was asked for.
        aims: of its files.
        site: who sends.

    Raises:
        InvalidInputError: the table is of another job, or has columns that do not fit.
        ReceiverAwayError: another driver is writing to it.
    """

    def __init__(self, place: Place, table: DailyTable, aims: Aims, site: SinkSite) -> None:
        self._place, self._table, self._aims, self._site = place, table, aims, site
        self._files, self._clock = site.files, site.clock
        self._known: tuple[tuple[int, int], Snapshot] | None = None
        self._is_behind = True
        self._view = View(place, site.files, site.clock)
        for folder in (place.root, place.data, place.stage):
            folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            snapshot = self._claimed()
            self._view.clear()
            self.can_compact = self._view.can_exchange()
            self._tidy(snapshot)
            snapshot = self._all_cleaned(snapshot)
            self._show(snapshot, set(snapshot.days) | self._view.days())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the table against another driver of the job, and against a compaction by hand."""
        try:
            lock = os.open(
                self._place.control / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except FileNotFoundError as error:
            raise ReceiverAwayError(
                f"folder {self._place.control} is gone; mount its file system again, or put it back"
            ) from error
        try:
            self._take(lock)
            yield
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        deadline = Deadline(self._clock, STEP_S)
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if deadline.expired:
                    raise ReceiverAwayError(
                        f"another driver, or a compaction, is writing to table {self._table.name!r}"
                    ) from error
            self._clock.sleep(LISTED_S / 10)

    def _claimed(self) -> Snapshot:
        """Take the table, with the columns that the job has now."""
        site, held = self._site, self._place.read()
        assert self._table.time is not None
        if held is None:
            if found := sorted(os.listdir(self._place.root)):
                raise InvalidInputError(
                    f"folder {self._place.root} holds files that are of no table; found "
                    f"{found[:3]}, expected an empty folder: move them, or name another table"
                )
            columns = schema_to_text(site.schema)
            names = (site.job, site.operator, columns, self._table.time, self._table.order)
            return self._write(Snapshot(FORMAT, *names))
        if (held.job, held.operator) != (site.job, site.operator):
            raise InvalidInputError(
                f"table {self._table.name!r} is of job {held.job!r}, operator {held.operator!r}; "
                f"expected job {site.job!r}, operator {site.operator!r}: give each a table of its "
                "own"
            )
        if held.time != self._table.time:
            raise InvalidInputError(
                f"table {self._table.name!r} is by the day of column {held.time!r}, the job asks "
                f"for that of {self._table.time!r}; name another table, or give time={held.time!r}"
            )
        schema = evolved(held.schema, site.schema, self._table.name)
        if schema == held.schema and held.order == self._table.order:
            return held
        now = msgspec.structs.replace(held, columns=schema_to_text(schema), order=self._table.order)
        return self._write(now)

    def _write(self, snapshot: Snapshot) -> Snapshot:
        return self._place.write(snapshot, self._files, self._clock.new_id())

    def _read(self) -> Snapshot:
        """Return the snapshot, read again only where it is another one."""
        with suppress(FileNotFoundError):
            found = self._place.snapshot.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if self._known is None or self._known[0] != version:
                snapshot = self._place.read()
                if snapshot is not None:
                    self._known = (version, snapshot)
            if self._known is not None and self._known[0] == version:
                return self._known[1]
        raise ReceiverAwayError(f"snapshot {self._place.snapshot} is gone; put it back")

    def _tidy(self, snapshot: Snapshot) -> None:
        """Remove files that nothing names: their commit died before its snapshot."""
        named = {f"{folder_of(d)}/{f.name}" for d, day in snapshot.days.items() for f in day.files}
        named |= set(snapshot.replaced)
        for folder in self._place.data.iterdir():
            for path in folder.iterdir():
                if f"{folder.name}/{path.name}" not in named:
                    path.unlink()

    def commit(self, epoch: SinkEpoch) -> None:
        """Add the rows of an epoch, mark what is complete by its watermark, merge what is due.

        1. Write its files under names that keep. 2. Replace the snapshot: from here on they are
        in the table. 3. Bring the folders of the days in line. Merging does the same again.

        Raises:
            ReceiverAwayError: the folder is gone, or somebody else is writing to it.
        """
        with self._alone():
            self._view.empty()
            held = self._read()
            tag = tag_of(epoch.lineage)
            if epoch.epoch <= held.marks.get(tag, -1):
                self._show(held, set(held.days) | self._view.days())
                self._compact(held, at_end=epoch.watermark > END)
                return
            snapshot = self._with_files(held, epoch, tag) if epoch.files else held
            snapshot = self._kept(self._completed(snapshot, epoch.watermark))
            if snapshot is held:
                if not self._is_behind:
                    return
            else:
                marks = {**held.marks, tag: epoch.epoch}
                fault("warehouse.written")
                mark = held.watermark if epoch.watermark == NO_TIME else epoch.watermark
                snapshot = self._replaced(
                    held, msgspec.structs.replace(snapshot, marks=marks, watermark=mark)
                )
            self._compact(snapshot, at_end=epoch.watermark > END)

    def _replaced(self, held: Snapshot, snapshot: Snapshot) -> Snapshot:
        """Let a snapshot count, then show what it changes."""
        snapshot = self._write(self._cleaned(snapshot, held))
        fault("warehouse.listed")
        days = set(held.days) | set(snapshot.days)
        self._show(snapshot, {d for d in days if held.days.get(d) != snapshot.days.get(d)})
        return self._all_cleaned(snapshot)

    def _all_cleaned(self, held: Snapshot) -> Snapshot:
        """Remove files that need not stay any longer; of the snapshot that counts."""
        cleaned = self._cleaned(held, held)
        return held if cleaned is held else self._write(cleaned)

    def _show(self, snapshot: Snapshot, days: set[str]) -> None:
        self._view.show(snapshot, days)
        folders = [self._place.root / folder_of(day) for day in days]
        self._make_durable([folder for folder in folders if folder.exists()])
        if days:
            self._files.sync_folder(self._place.root)

    def _with_files(self, held: Snapshot, epoch: SinkEpoch, tag: str) -> Snapshot:
        """Write the files of an epoch, durably; their names are always the same."""
        days = dict(held.days)
        numbers: dict[str, int] = {}
        wanted: list[tuple[Piece, pa.Buffer, str]] = []
        for prepared in epoch.files:
            content = self._files.map(prepared.path)
            for piece in pieces_of(content, prepared.path):
                number = numbers[piece.day] = numbers.get(piece.day, -1) + 1
                name = f"{epoch.epoch:012d}-{tag}-{number:03d}.parquet"
                wanted.append((piece, content, name))
        with ThreadPoolExecutor(THREADS if len(wanted) > _FEW else 1) as pool:
            placed = list(pool.map(self._placed, *zip(*wanted, strict=True)))
        for (piece, _, _), file in zip(wanted, placed, strict=True):
            days[piece.day] = _with_file(days.get(piece.day, Day(())), file, piece.late)
        written = [self._place.path(piece.day, name) for piece, _, name in wanted]
        self._make_durable([self._place.data / folder_of(day) for day in numbers], written)
        return msgspec.structs.replace(held, days=days)

    def _placed(self, piece: Piece, content: pa.Buffer, name: str) -> DataFile:
        path = self._place.path(piece.day, name)
        part = [content.slice(piece.begin, piece.bytes)]
        try:
            self._files.write_new(path, part, durable=False)
        except FileExistsError:  # the half of one that was being written
            path.unlink()
            self._files.write_new(path, part, durable=False)
        return DataFile(name, piece.rows, piece.bytes)

    def _make_durable(self, folders: Sequence[Path], files: Sequence[Path] = ()) -> None:
        """Make files and the names in folders durable; where they are many, all at once."""
        if len(folders) + len(files) > _FEW:
            self._files.sync_system(self._place.data)
            return
        for path in files:
            with path.open("rb") as file:
                self._files.sync_file(file.fileno())
        for folder in {*folders, *(folder.parent for folder in folders)}:
            self._files.sync_folder(folder)

    def _completed(self, snapshot: Snapshot, watermark: int) -> Snapshot:
        """Mark the days that a watermark has passed."""
        now, table = self._clock.now_ms(), self._table
        passed = {
            name: msgspec.structs.replace(day, completed_ms=now)
            for name, day in snapshot.days.items()
            if day.completed_ms is None and table.ends_ms(day_number(name)) <= watermark
        }
        if not passed:
            return snapshot
        return msgspec.structs.replace(snapshot, days={**snapshot.days, **passed})

    def _kept(self, snapshot: Snapshot) -> Snapshot:
        """Drop the days that are older than the table is to go back."""
        old = old_days(snapshot.days, self._table, self._clock.now_ms())
        if not old:
            return snapshot
        days = {name: day for name, day in snapshot.days.items() if name not in old}
        gone = [(name, file) for name in old for file in snapshot.days[name].files]
        return self._without(msgspec.structs.replace(snapshot, days=days), gone)

    def _without(self, snapshot: Snapshot, files: Sequence[tuple[str, DataFile]]) -> Snapshot:
        now = self._clock.now_ms()
        more = {f"{folder_of(day)}/{file.name}": now for day, file in files}
        return msgspec.structs.replace(snapshot, replaced={**snapshot.replaced, **more})

    def _cleaned(self, snapshot: Snapshot, held: Snapshot) -> Snapshot:
        """Remove files that others have stood for long enough, also in the snapshot that counts."""
        limit = self._clock.now_ms() - self._aims.keep_ms
        gone = {name for name, since in held.replaced.items() if since <= limit}
        if not gone:
            return snapshot
        for name in gone:
            path = self._place.data / name
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are in it
                path.parent.rmdir()
        left = {name: since for name, since in snapshot.replaced.items() if name not in gone}
        return msgspec.structs.replace(snapshot, replaced=left)

    def _compact(self, snapshot: Snapshot, *, at_end: bool) -> None:
        """Merge what is due, a bounded part of it but at the end of the inputs."""
        while self.can_compact:
            merges = within_budget(due(snapshot, self._aims), BUDGET_BYTES)
            self._is_behind = bool(merges)
            snapshot = self._merged(snapshot, merges)
            if not (merges and at_end):
                return

    def compact(self, on_step: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Merge the small files of all days, however few they are.

        Args:
            on_step: called after each step; in between the table is let go of.

        Returns:
            How many files there were before, and are since.

        Raises:
            ReceiverAwayError: a driver is writing to the table just now; call again.
            InvalidInputError: the file system cannot exchange folders.
        """
        if not self.can_compact:
            raise InvalidInputError(
                f"the file system of {self._place.root} cannot exchange two folders in one step, "
                'so plain readers would see rows twice or not at all; use format="delta" there'
            )
        first: Snapshot | None = None
        while True:
            with self._alone():  # for one step: an epoch must not wait for all of them
                self._view.empty()
                snapshot = self._read()
                first = first or snapshot  # what comes later is merged another time
                steps = due(_both(snapshot, first), self._aims, at_once=True)
                merges = within_budget(steps, BUDGET_BYTES)
                if not merges:
                    return _count(first), _count(snapshot)
                self._merged(snapshot, merges)
            on_step()
            self._clock.sleep(LISTED_S)

    def _merged(self, held: Snapshot, merges: Sequence[Merge]) -> Snapshot:
        if not merges:
            return held
        days = dict(held.days)
        gone: list[tuple[str, DataFile]] = []
        written: list[Path] = []
        with ThreadPoolExecutor(THREADS) as pool:
            names = [f"merged-{self._clock.new_id()}.parquet" for _ in merges]
            made = list(pool.map(partial(self._as_one, held.schema), merges, names))
        for merge, file in zip(merges, made, strict=True):
            written.append(self._place.path(merge.day, file.name))
            day = days[merge.day]
            left = tuple(one for one in day.files if one not in merge.files)
            is_merged = day.completed_ms is not None
            days[merge.day] = msgspec.structs.replace(day, files=(*left, file), is_merged=is_merged)
            gone += [(merge.day, one) for one in merge.files]
        self._make_durable([path.parent for path in written], written)
        fault("warehouse.merged")
        return self._replaced(held, self._without(msgspec.structs.replace(held, days=days), gone))

    def _as_one(self, schema: pa.Schema, merge: Merge, name: str) -> DataFile:
        paths = [self._place.path(merge.day, file.name) for file in sorted(merge.files)]
        content = merged(paths, schema, self._table.order)
        self._files.write_new(self._place.path(merge.day, name), [content], durable=False)
        return DataFile(name, sum(file.rows for file in merge.files), content.size)


def _with_file(day: Day, file: DataFile, late: int) -> Day:
    return msgspec.structs.replace(day, files=(*day.files, file), late_rows=day.late_rows + late)


def _both(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """A snapshot with the files alone that another one has, too."""
    days = {}
    for name, day in snapshot.days.items():
        held = set(other.days[name].files) if name in other.days else set()
        days[name] = msgspec.structs.replace(day, files=tuple(f for f in day.files if f in held))
    return msgspec.structs.replace(snapshot, days=days)


def _count(snapshot: Snapshot) -> int:
    return sum(len(day.files) for day in snapshot.days.values())
