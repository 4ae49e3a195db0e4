"""What a slot tells while it brings stores back: one small file, written as it gets on.

The driver reads it to show how far recovery is, and to notice that it no longer moves; so it
is written before a file is opened, for that may be where a slot stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.clock import Clock

FOLDER = "recovery"
EVERY_S = 0.25


class Progress(Protocol):
    """Is told while stores are brought back; may raise to have it stopped."""

    def opens(self, path: Path) -> None:
        """Say which file or folder is about to be opened."""
        ...

    def reads(self, size: int, rows: int) -> None:
        """Say that bytes and rows were read and applied."""
        ...


class SlotRecovery(msgspec.Struct, frozen=True):
    """How far one slot is.

    ``file`` is what it is about to read, or the folder that it opens. Bytes are those of the
    tasks in committed files, at most what has to be read. ``step`` rises with each word.
    """

    slot: int
    epoch: int
    stage: str
    task: int
    file: str
    tasks_done: int
    tasks: int
    bytes_done: int
    bytes_total: int
    rows: int
    step: int


class RecoveryLog:
    """One slot's word on its recovery.

    Args:
        path: of the file; its folder exists.
        clock: for not writing too frequently.
        slot: its number.
        epoch: that is about to run.
        sizes: bytes of each task in committed files.
    """

    def __init__(
        self, path: Path, clock: Clock, slot: int, epoch: int, sizes: Mapping[tuple[str, int], int]
    ) -> None:
        self._path, self._clock, self._sizes = path, clock, sizes
        total = sum(sizes.values())
        self._said = SlotRecovery(slot, epoch, "", 0, "", 0, len(sizes), 0, total, 0, 0)
        self._before = 0
        self._in_task = 0
        self._written: float | None = None

    def task(self, stage: str, task: int) -> None:
        """Begin with a task; the one before is done."""
        said = self._said
        if said.stage:
            self._before += self._sizes.get((said.stage, said.task), 0)
        self._in_task = 0
        self._said = msgspec.structs.replace(
            said,
            stage=stage,
            task=task,
            file="",
            tasks_done=said.tasks_done + bool(said.stage),
            bytes_done=self._before,
        )

    def opens(self, path: Path) -> None:
        """Say which file or folder is about to be opened."""
        self._said = msgspec.structs.replace(self._said, file=str(path))
        self._write()

    def reads(self, size: int, rows: int) -> None:
        """Say that bytes and rows were read and applied."""
        said = self._said
        self._in_task += size
        most = self._sizes.get((said.stage, said.task), 0)
        self._said = msgspec.structs.replace(
            said, bytes_done=self._before + min(self._in_task, most), rows=said.rows + rows
        )
        if self._written is None or self._clock.monotonic() - self._written >= EVERY_S:
            self._write()

    def _write(self) -> None:
        self._said = msgspec.structs.replace(self._said, step=self._said.step + 1)
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with contextlib.suppress(OSError):  # a full disk stops the epoch, not word of it
            self._path.parent.mkdir(exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(self._said))
            os.replace(temporary, self._path)
            self._written = self._clock.monotonic()

    def close(self) -> None:
        """Recovery is over."""
        if self._written is not None:
            self._path.unlink(missing_ok=True)
