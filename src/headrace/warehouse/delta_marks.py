"""The marks of complete days in a Delta table: files that Delta's own readers pass over.

They are the only place where it is kept that a day is complete. One that is gone is written
again by the next epoch: by a driver that knew it as it was, else when a watermark has passed the
day.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.files import Files
from headrace.warehouse.snapshot import MARK, folder_of


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a mark says: the rows of a day, and the wall clock when it was complete."""

    rows: int
    late_rows: int = 0
    completed_ms: int


def marks_of(folder: Path) -> dict[str, Mark]:
    """Return the marks of a table, by day; one that cannot be read counts as none."""
    found = {}
    for path in folder.glob(f"{folder_of('*')}/{MARK}"):
        with suppress(FileNotFoundError, msgspec.DecodeError):
            mark = msgspec.json.decode(path.read_bytes(), type=Mark)
            found[path.parent.name.removeprefix(folder_of(""))] = mark
    return found


def has_mark(folder: Path, day: str) -> bool:
    """Say whether the mark of a day is there."""
    return (folder / folder_of(day) / MARK).exists()


def write_mark(folder: Path, day: str, mark: Mark, files: Files, clock: Clock) -> None:
    """Say that a day is complete, durably and in one step."""
    files.replace(folder / folder_of(day) / MARK, msgspec.json.encode(mark) + b"\n", clock.new_id())


def remove_mark(folder: Path, day: str, files: Files) -> None:
    """Take a mark away, and the folder when nothing else is in it."""
    files.remove(folder / folder_of(day) / MARK)
    with suppress(OSError):
        (folder / folder_of(day)).rmdir()
