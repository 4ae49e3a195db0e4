"""Samples of a running job, kept in its folder, so that its history needs no other server.

One file for each day (UTC), a line of JSON for each sample; days beyond the last seven go. A line
that a crash tore is passed over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.control.board import Board
from headrace.coordinator.task_files import state_bytes
from headrace.errors import HeadraceError
from headrace.task.orders import END_WATERMARK, NO_WATERMARK

FOLDER = "history"
EVERY_S = 10.0
KEEP_DAYS = 7
DAY_MS = 86_400_000


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What was true of a job at a moment, ms.

    ``rows``, ``epochs`` and ``busy_ms`` count up: rows of all its epochs, and epochs of the driver
    of this ``process`` and ``generation``, and the time in them. ``lag`` is in rows;
    ``watermark_ms`` is the lowest of a stage.
    """

    at_ms: int
    process: int
    status: str
    epoch: int
    rows: int
    lag: int
    epochs: int
    busy_ms: float
    state_bytes: int
    watermark_ms: int | None = None
    generation: int = 0

    @property
    def driver(self) -> tuple[int, int]:
        """Which driver took it; in containers, all have the same process number."""
        return self.process, self.generation


class SampleLog:
    """The samples of a job.

    Args:
        storage: of the job.
    """

    def __init__(self, storage: Path) -> None:
        self._folder = storage / FOLDER

    def append(self, sample: Sample) -> None:
        """Keep one more; on the first of a day those go that are too old."""
        path = self._path(sample.at_ms)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._forget(sample.at_ms)
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(sample) + b"\n")

    def _path(self, at_ms: int) -> Path:
        return self._folder / f"{at_ms // DAY_MS:06d}.jsonl"

    def _forget(self, now_ms: int) -> None:
        for day in self._days():
            if day <= now_ms // DAY_MS - KEEP_DAYS:
                self._path(day * DAY_MS).unlink(missing_ok=True)

    def _days(self) -> list[int]:
        names = [path.stem for path in self._folder.glob("*.jsonl")]
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, since_ms: int) -> Iterator[Sample]:
        """Yield the samples from a moment on, oldest first."""
        decoder = msgspec.json.Decoder(Sample)
        for day in self._days():
            if day < since_ms // DAY_MS:
                continue
            for line in self._path(day * DAY_MS).read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    sample = decoder.decode(line)
                    if sample.at_ms >= since_ms:
                        yield sample


class Sampler:
    """Takes a sample every ten seconds, in a thread of its own, epochs or not.

    Args:
        board: of the driver.
        log: of its job.
        clock: where time comes from.
    """

    def __init__(self, board: Board, log: SampleLog, clock: Clock) -> None:
        self._board, self._log, self._clock = board, log, clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first sample is taken at once."""
        self._thread = threading.Thread(target=self._run, name="headrace-samples", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.take()
            if self._over.wait(EVERY_S):
                return

    def take(self) -> None:
        """Take a sample now; a disk or a stream that does not answer costs no more than that."""
        with suppress(HeadraceError, OSError):
            self._log.append(sample_of(self._board, self._clock.now_ms()))

    def stop(self) -> None:
        """Take the last one, and end; without a start nothing happens."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self.take()


def sample_of(board: Board, now_ms: int) -> Sample:
    """Return what is true of a job now."""
    state = board.state
    marks = [at for at in state.watermarks.values() if NO_WATERMARK < at < END_WATERMARK]
    return Sample(
        now_ms,
        os.getpid(),
        board.status,
        state.epoch,
        state.counts.get("in", 0),
        board.lag_now(),
        board.count,
        round(board.busy_ms, 1),
        sum(map(state_bytes, state.tasks.values())),
        min(marks, default=None),
        state.generation,
    )
