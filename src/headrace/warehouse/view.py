"""The folders of days that plain readers list: hard links, each folder changed in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from headrace.clock import Clock
from headrace.faults import fault
from headrace.files import Files
from headrace.warehouse.snapshot import MARK, Day, Place, Snapshot, folder_of

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


class View:
    """The folders of one table.

    Args:
        place: of the table.
        files: the file system.
        clock: for names.
    """

    def __init__(self, place: Place, files: Files, clock: Clock) -> None:
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
        folder = self._place.stage / self._clock.new_id()
        folder.mkdir()
        return folder

    def clear(self) -> None:
        """Remove what was put together and never shown."""
        self._spare, self._taken_away = [], []
        for path in self._place.stage.iterdir():
            shutil.rmtree(path)

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
            self._whole(day, wanted).rename(folder)
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
            for name in new:
                self._link(day, name, folder)
            for name in found - names:
                (folder / name).unlink()
        self._mark(folder, wanted)

    def _whole(self, day: str, wanted: Day) -> Path:
        """Put the folder of a day together out of sight."""
        stage = self._new_folder()
        for file in wanted.files:
            self._link(day, file.name, stage)
        if wanted.completed_ms is not None:
            (stage / MARK).write_bytes(_said(wanted))
        return stage

    def _link(self, day: str, name: str, folder: Path) -> None:
        source = self._place.path(day, name)
        try:
            os.link(source, folder / name)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            hidden = folder / f".{name}.{self._clock.new_id()}"
            self._files.write_new(hidden, [self._files.map(source)])
            hidden.rename(folder / name)

    def _mark(self, folder: Path, wanted: Day) -> None:
        """Say that a day is complete, and what came after that."""
        path = folder / MARK
        if wanted.completed_ms is None:
            path.unlink(missing_ok=True)
            return
        content = _said(wanted)
        with suppress(FileNotFoundError):
            if path.read_bytes() == content:
                return
        hidden = folder / f".{MARK}.{self._clock.new_id()}"
        hidden.write_bytes(content)
        hidden.rename(path)

    def _retire(self, folder: Path) -> None:
        gone = self._place.stage / self._clock.new_id()
        folder.rename(gone)
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


def _said(day: Day) -> bytes:
    """Return the content of a day's mark."""
    said = {"rows": day.rows, "late_rows": day.late_rows, "completed_ms": day.completed_ms}
    return msgspec.json.encode(said) + b"\n"


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except (IsADirectoryError, PermissionError):  # somebody has put a folder there
        shutil.rmtree(path)
