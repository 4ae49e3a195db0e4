"""The driver's side of a table: commits epochs, marks days, compacts files, removes old days.

Plain readers list folders of days: hard links, each folder changed in one step (``DayFolders``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from heapq import heappop, heappush
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.graph.sinks import (
    NO_TIME,
    DailyTable,
    Receiver,
    ReceiverAwayError,
    SinkEpoch,
    SinkSite,
)
from headrace.records.schema import schema_to_text
from headrace.remote import address_of
from headrace.warehouse.day_files import (
    BUDGET_BYTES,
    DayRows,
    FileCompaction,
    FileSizeTargets,
    compacted_rows,
    due_compactions,
    packet_index,
    within_budget,
)
from headrace.warehouse.snapshot import (
    FORMAT,
    MARK,
    DataFile,
    Day,
    Snapshot,
    SnapshotDraft,
    TableLocation,
    day_name,
    day_number,
    evolved_schema,
    folder_of,
    old_days,
    tag_of,
)

_EXCHANGE = 2
_HERE = -100
KEPT_FOLDERS = 2048
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES}


@cache
def _renameat2() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found


def exchange(one: Path, other: Path) -> bool:
    """Let two folders have each other's name, in one step; False where that cannot be."""
    rename = _renameat2()
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


class DayFolders:
    """The folders of one table.

    Args:
        place: of the table.
        files: of the process that writes to it now; they refuse, once a newer driver does.
        clock: for names.
    """

    def __init__(self, place: TableLocation, files: FencedFiles, clock: Clock) -> None:
        self._place, self._files, self._clock = place, files, clock
        self._spare: list[Path] = []
        self._taken_away: list[Path] = []

    def can_exchange(self) -> bool:
        """Say whether a day with files can be replaced in one step here."""
        one, other = self._new_folder(), self._new_folder()
        try:
            return exchange(one, other)
        finally:
            one.rmdir()
            other.rmdir()

    def _new_folder(self) -> Path:
        while self._spare:
            spare = self._spare.pop()
            if spare.is_dir():  # a compaction by hand clears away what it does not know
                return spare
        folder = self._files.staged(self._clock.new_id())
        self._files.make_missing(folder)
        return folder

    def clear(self) -> None:
        """Remove what a former version put together and never showed."""
        self._spare, self._taken_away = [], []
        self._files.remove_tree(self._place.stage)

    def days(self) -> set[str]:
        """Return the days that have a folder."""
        begin = folder_of("")
        names = os.listdir(self._place.root)
        return {name.removeprefix(begin) for name in names if name.startswith(begin)}

    def show(self, snapshot: Snapshot, days: set[str]) -> None:
        """Bring the folders of days in line with a snapshot, however they are now."""
        for day in sorted(days):
            self._show(day, snapshot.days.get(day))
            fault("warehouse.shown")

    def _show(self, day: str, wanted: Day | None) -> None:
        folder = self._place.root / folder_of(day)
        try:
            found: set[str] | None = set(os.listdir(folder)) - {MARK}
        except FileNotFoundError:
            found = None
        if wanted is None:
            if found is not None:
                self._retire(folder)
            return
        names = {file.name for file in wanted.files}
        if found is None:
            self._files.rename(self._whole(day, wanted), folder)
            return
        new = names - found
        if found <= names and len(new) == 1:
            self._link(day, new.pop(), folder)
        elif found != names:
            whole = self._whole(day, wanted)
            is_shown = exchange(whole, folder)
            self._taken_away.append(whole)
            if is_shown:
                return
            self._files.check()
            for name in new:
                self._link(day, name, folder)
            for name in found - names:
                self._files.remove(folder / name)
        self._mark(folder, wanted)

    def _whole(self, day: str, wanted: Day) -> Path:
        """Put the folder of a day together out of sight."""
        stage = self._new_folder()
        for file in wanted.files:
            self._link(day, file.name, stage)
        if wanted.completed_ms is not None:
            self._files.write_new(stage / MARK, [mark_of(wanted)], durable=False)
        return stage

    def _link(self, day: str, name: str, folder: Path) -> None:
        source = self._place.path(day, name)
        try:
            self._files.link(source, folder / name, durable=False)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            staged = self._files.staged(self._clock.new_id())
            self._files.write_new(staged, [self._files.map(source)])
            self._files.rename(staged, folder / name)

    def _mark(self, folder: Path, wanted: Day) -> None:
        """Say that a day is complete, and what came after that."""
        path = folder / MARK
        if wanted.completed_ms is None:
            self._files.remove(path)
            return
        content = mark_of(wanted)
        with suppress(FileNotFoundError):
            if path.read_bytes() == content:
                return
        self._files.replace(path, content, durable=False)

    def _retire(self, folder: Path) -> None:
        gone = self._files.staged(self._clock.new_id())
        self._files.rename(folder, gone)
        self._taken_away.append(gone)

    def empty(self) -> None:
        """Empty the folders that are out of sight, and keep some: new ones are dear on some disks.

        Not in the change that took them away: who has opened one must have the time to list it.
        """
        taken, self._taken_away = self._taken_away, []
        for folder in taken:
            with suppress(FileNotFoundError):  # a compaction by hand was there
                for name in os.listdir(folder):
                    _remove(folder / name)
                if len(self._spare) < KEPT_FOLDERS:
                    self._spare.append(folder)
                else:
                    folder.rmdir()


def mark_of(day: Day) -> bytes:
    """Return the content of a day's mark."""
    said = {"rows": day.rows, "late_rows": day.late_rows, "completed_ms": day.completed_ms}
    return msgspec.json.encode(said) + b"\n"


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):  # somebody has put a folder there
        shutil.rmtree(path)


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
        ReceiverAwayError: another driver is writing to it; of a table in an object storage: that
            does not answer, or others write all the time.
    """

    def __init__(
        self, place: TableLocation, table: DailyTable, aims: FileSizeTargets, site: SinkSite
    ) -> None:
        self._place, self._table, self._aims, self._site = place, table, aims, site
        self._clock = site.clock
        self._unsettled: set[str] = set()
        self._open_days: list[int] = []
        self._files = self._fenced()
        self._begin()

    def _fenced(self) -> FencedFiles:
        """Return by what the table is changed."""
        return FencedFiles(self._site.files, self._place.control, self._place.root)

    def _begin(self) -> None:
        """Take the table, and bring it to where it would be had no driver before died."""
        place, site = self._place, self._site
        self._known: tuple[tuple[int, int], Snapshot] | None = None
        self._view = DayFolders(place, self._files, site.clock)
        for folder in (place.root, place.data, place.stage, place.changes):
            self._files.make_folder(folder)
        self._take()
        with self._alone():
            self._files.sync_folder(place.control)  # a driver before may have died before it did
            snapshot = self._claimed()
            self._learn(snapshot)
            self._view.clear()
            self.can_compact = self._view.can_exchange()
            self._tidy(snapshot)
            snapshot = self._all_cleaned(snapshot)
            self._show(snapshot, set(snapshot.days) | self._view.days())

    def _take(self) -> None:
        """Refuse drivers before, from here on; who has no generation joins the newest."""
        if self._site.generation:
            self._files.take(self._site.generation, self._site.origin)
        else:
            self._files.join()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the table against a compaction by hand, and against a backfill."""
        if not self._place.control.exists():
            raise ReceiverAwayError(
                f"folder {self._place.control} is gone; mount its file system again, or put it back"
            )
        try:
            with self._files.alone(self._place.control / "lock", self._clock, STEP_S):
                yield
        except BlockingIOError as error:
            raise ReceiverAwayError(
                f"another process, such as a compaction, is writing to table {self._table.name!r}"
            ) from error

    def _claimed(self) -> Snapshot:
        """Take the table, with the columns that the job has now."""
        site, held = self._site, self._place.read()
        assert self._table.time is not None
        if held is None:
            if found := self._foreign():
                raise InvalidInputError(
                    f"folder {address_of(self._place.root)} holds files that are of no table; "
                    f"found {found[:3]}, expected an empty folder: move them, or name another table"
                )
            columns = schema_to_text(site.schema)
            names = (site.job, site.operator, columns, self._table.time, self._table.order)
            return self._write_whole(Snapshot(FORMAT, *names))
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
        schema = evolved_schema(held.schema, site.schema, self._table.name)
        if schema == held.schema and held.order == self._table.order:
            return held
        now = msgspec.structs.replace(held, columns=schema_to_text(schema), order=self._table.order)
        return self._write_whole(now)

    def _foreign(self) -> list[str]:
        return sorted(os.listdir(self._place.root))

    def _write_whole(self, snapshot: Snapshot) -> Snapshot:
        made = msgspec.structs.replace(snapshot, format=FORMAT, version=snapshot.version + 1)
        return self._place.write_whole(made, self._files)

    def _write(self, draft: SnapshotDraft) -> Snapshot:
        """Let a commit count; what it changes is looked at by those that follow."""
        made = self._write_draft(draft)
        self._know(made)
        for name, day in draft.days.items():
            self._unsettled.add(name)
            if day is not None and name not in draft.held.days:
                heappush(self._open_days, day_number(name))
        return made

    def _write_draft(self, draft: SnapshotDraft) -> Snapshot:
        try:
            return self._place.write(draft, self._files)
        except FileExistsError as error:
            raise ReceiverAwayError(
                f"table {self._table.name!r} was changed by somebody else meanwhile"
            ) from error

    def _learn(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot of which nothing is known: any of its days may be due."""
        self._know(snapshot)
        self._unsettled = set(snapshot.days)
        open_days = (name for name, day in snapshot.days.items() if day.completed_ms is None)
        self._open_days = sorted(map(day_number, open_days))

    def _know(self, snapshot: Snapshot) -> None:
        found = self._place.snapshot.stat()
        self._known = (found.st_ino, found.st_mtime_ns), snapshot

    def _read(self) -> Snapshot:
        """Return the snapshot, read again only where somebody else has changed it."""
        with suppress(FileNotFoundError):
            found = self._place.snapshot.stat()
            if self._known is not None:
                version, snapshot = self._known
                later = self._place.change(snapshot.version + 1)
                if version == (found.st_ino, found.st_mtime_ns) and not later.exists():
                    return snapshot
            read = self._place.read()
            if read is not None:
                self._learn(read)
                return read
        raise ReceiverAwayError(f"snapshot {self._place.snapshot} is gone; put it back")

    def _tidy(self, snapshot: Snapshot) -> None:
        """Remove files that nothing names: their commit died before its snapshot."""
        named = {f"{folder_of(d)}/{f.name}" for d, day in snapshot.days.items() for f in day.files}
        named |= set(snapshot.replaced)
        for folder in self._place.data.iterdir():
            for path in folder.iterdir():
                if f"{folder.name}/{path.name}" not in named:
                    self._files.remove(path)

    def commit(self, epoch: SinkEpoch) -> None:
        """Add the rows of an epoch, mark what is complete by its watermark, merge what is due.

        1. Write its files under names that keep. 2. Replace the snapshot: from here on they are
        in the table. 3. Bring the folders of the days in line. Merging does the same again.

        Raises:
            ReceiverAwayError: the folder is gone, or somebody else is writing to it.
            NotOwnerError: a newer driver sends to it.
        """
        with self._alone(), self._files.holding():
            self._empty()
            held = self._read()
            try:
                self._commit(held, epoch)
            except BaseException:
                self._known = None  # what is on disk counts, and is read again
                raise

    def _empty(self) -> None:
        self._view.empty()

    def _commit(self, held: Snapshot, epoch: SinkEpoch) -> None:
        tag = tag_of(epoch.lineage)
        if epoch.epoch <= held.marks.get(tag, -1):
            self._show(held, set(held.days) | self._shown_days())
            self._compact(held, at_end=epoch.watermark > END)
            return
        draft = SnapshotDraft(held)
        if epoch.files:
            self._add_files(draft, epoch, tag)
        self._complete(draft, epoch.watermark)
        self._drop_old(draft)
        if draft:
            draft.marks[tag] = epoch.epoch
            if epoch.watermark != NO_TIME:
                draft.watermark = epoch.watermark
            fault("warehouse.written")
            held = self._replaced(draft)
        if self._unsettled:
            self._compact(held, at_end=epoch.watermark > END)

    def _replaced(self, draft: SnapshotDraft) -> Snapshot:
        """Let a commit count, then show what it changes."""
        self._clean(draft)
        snapshot = self._write(draft)
        fault("warehouse.listed")
        self._show(snapshot, set(draft.days))
        return self._all_cleaned(snapshot)

    def _all_cleaned(self, held: Snapshot) -> Snapshot:
        """Remove files that need not stay any longer; of the snapshot that counts."""
        draft = SnapshotDraft(held)
        self._clean(draft)
        return self._write(draft) if draft.removed else held

    def _show(self, snapshot: Snapshot, days: set[str]) -> None:
        self._view.show(snapshot, days)
        folders = [self._place.root / folder_of(day) for day in days]
        self._make_durable([folder for folder in folders if folder.exists()])
        if days:
            self._files.sync_folder(self._place.root)

    def _shown_days(self) -> set[str]:
        return self._view.days()

    def _add_files(self, draft: SnapshotDraft, epoch: SinkEpoch, tag: str) -> None:
        """Write the files of an epoch, durably; their names are always the same."""
        numbers: dict[str, int] = {}
        wanted: list[tuple[DayRows, pa.Buffer, str]] = []
        for prepared in epoch.files:
            content = self._files.map(prepared.path)
            for piece in packet_index(content, prepared.path):
                number = numbers[piece.day] = numbers.get(piece.day, -1) + 1
                name = f"{epoch.epoch:012d}-{tag}-{number:03d}.parquet"
                wanted.append((piece, content, name))
        with ThreadPoolExecutor(THREADS if len(wanted) > _FEW else 1) as pool:
            placed = list(pool.map(self._placed, *zip(*wanted, strict=True)))
        for (piece, _, _), file in zip(wanted, placed, strict=True):
            draft.days[piece.day] = _with_file(draft.day(piece.day) or Day(()), file, piece.late)
        written = [self._place.path(piece.day, name) for piece, _, name in wanted]
        self._make_durable([self._place.data / folder_of(day) for day in numbers], written)

    def _placed(self, piece: DayRows, content: pa.Buffer, name: str) -> DataFile:
        path, staged = self._place.path(piece.day, name), self._files.staged(self._clock.new_id())
        part = [content.slice(piece.begin, piece.bytes)]
        self._files.write_new(staged, part, durable=False)
        self._files.make_missing(path.parent, durable=False)
        self._files.rename(staged, path)  # it may be there, of a commit that died
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

    def _complete(self, draft: SnapshotDraft, watermark: int) -> None:
        """Mark the days that a watermark has passed."""
        now, table = self._clock.now_ms(), self._table
        new = (name for name in draft.days if name not in draft.held.days)
        passed = [name for name in new if table.ends_ms(day_number(name)) <= watermark]
        while self._open_days and table.ends_ms(self._open_days[0]) <= watermark:
            passed.append(day_name(heappop(self._open_days)))
        for name in passed:
            day = draft.day(name)
            if day is not None and day.completed_ms is None:
                draft.days[name] = msgspec.structs.replace(day, completed_ms=now)

    def _drop_old(self, draft: SnapshotDraft) -> None:
        """Drop the days that are older than the table is to go back."""
        if self._table.retention is None:
            return
        days = {**draft.held.days, **draft.days}
        for name in old_days(days, self._table, self._clock.now_ms()):
            day = days[name]
            assert day is not None
            draft.days[name] = None
            self._replace(draft, [(name, file) for file in day.files])

    def _replace(self, draft: SnapshotDraft, files: Sequence[tuple[str, DataFile]]) -> None:
        now = self._clock.now_ms()
        draft.replaced |= {f"{folder_of(day)}/{file.name}": now for day, file in files}

    def _clean(self, draft: SnapshotDraft) -> None:
        """Remove files that others have stood for long enough, also in the snapshot that counts."""
        limit = self._clock.now_ms() - self._aims.keep_ms
        held = draft.held.replaced.items()  # in the order of time
        gone = [name for name, _ in takewhile(lambda item: item[1] <= limit, held)]
        for name in gone:
            path = self._place.data / name
            self._files.remove(path)
            with suppress(OSError):  # others are in it
                path.parent.rmdir()
        draft.removed |= set(gone)

    def _compact(self, snapshot: Snapshot, *, at_end: bool) -> None:
        """Merge what is due, a bounded part of it but at the end of the inputs.

        Only days that were changed are looked at, and those of which a part was left.
        """
        while self.can_compact:
            days = {name: day for name in self._unsettled if (day := snapshot.days.get(name))}
            found = list(due_compactions(days, self._aims))
            self._unsettled = {merge.day for merge in found}
            merges = within_budget(found, BUDGET_BYTES)
            snapshot = self._merged(snapshot, merges)
            if not (merges and at_end):
                return

    def compact(self, on_step: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Merge the small files of all days, however few they are.

        Args:
            on_step: called after each step; in between the table is released.

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
                self._empty()
                snapshot = self._read()
                first = first or snapshot  # what comes later is merged another time
                steps = due_compactions(_both(snapshot, first).days, self._aims, at_once=True)
                merges = within_budget(steps, BUDGET_BYTES)
                if not merges:
                    return _count(first), _count(snapshot)
                self._merged(snapshot, merges)
            on_step()
            self._clock.sleep(LISTED_S)

    def leave(self) -> None:
        """Give back the right to change the table, where it was not taken for a driver."""
        with suppress(OSError):  # else the next driver takes it away
            self._files.leave()

    def _merged(self, held: Snapshot, merges: Sequence[FileCompaction]) -> Snapshot:
        if not merges:
            return held
        draft = SnapshotDraft(held)
        written: list[Path] = []
        with ThreadPoolExecutor(THREADS) as pool:
            names = [f"merged-{self._clock.new_id()}.parquet" for _ in merges]
            made = list(pool.map(partial(self._as_one, held.schema), merges, names))
        for merge, file in zip(merges, made, strict=True):
            written.append(self._place.path(merge.day, file.name))
            day = held.days[merge.day]
            left = tuple(one for one in day.files if one not in merge.files)
            is_merged = day.completed_ms is not None
            files = (*left, file)
            draft.days[merge.day] = msgspec.structs.replace(day, files=files, is_merged=is_merged)
            self._replace(draft, [(merge.day, one) for one in merge.files])
        self._make_durable([path.parent for path in written], written)
        fault("warehouse.merged")
        return self._replaced(draft)

    def _as_one(self, schema: pa.Schema, merge: FileCompaction, name: str) -> DataFile:
        paths = [
            self._local(self._place.path(merge.day, file.name)) for file in sorted(merge.files)
        ]
        content = compacted_rows(paths, schema, self._table.order)
        self._store(merge.day, name, content)
        return DataFile(name, sum(file.rows for file in merge.files), content.size)

    def _local(self, path: Path) -> Path:
        return path

    def _store(self, day: str, name: str, content: pa.Buffer) -> None:
        self._files.write_new(self._place.path(day, name), [content], durable=False)


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
