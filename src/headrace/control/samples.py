"""Samples of a running job, kept in its folder, so that its history needs no other server.

One file for each day (UTC), a line of JSON for each sample; days beyond the last seven go, and of
those before today a sample a minute is left, in a file of another name. A line that a crash tore
is left out, and counted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.control.board import Board
from headrace.control.hot_keys import HeavyKeys, keep_keys, kept_keys
from headrace.control.views import time_of
from headrace.coordinator.manifest import JobState
from headrace.coordinator.task_files import state_bytes
from headrace.errors import HeadraceError
from headrace.task.orders import END_WATERMARK, NO_WATERMARK, TOLD_KEYS

FOLDER = "history"
THIN = ".1m"
"""What the name of a day's file ends with once it has been thinned."""

FEW_PARTS = 12
"""With so many inputs and stages, these are in every sample, else in one a minute."""

MOST_PARTS = 64
"""So many inputs, those with most lag, and stages are in a sample."""

EVERY_S = 10.0
KEEP_DAYS = 7
DAY_MS = 86_400_000
MINUTE_MS = 60_000


class InputSample(msgspec.Struct, frozen=True, array_like=True):
    """How many rows of an input have been read, and how many lie before the job."""

    rows: int
    lag: int


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What was true of a job at a moment, ms.

    ``rows``, ``epochs`` and ``busy_ms`` count up: rows of all its epochs, and epochs of the driver
    of this ``process`` and ``generation``, and the time in them. ``lag`` is in rows;
    ``watermark_ms`` is the lowest of a stage. Inputs and the watermarks of stages are beside
    where there are few of them, else in the first sample of each minute and the last of a driver.
    ``output_rows`` counts up as ``epochs`` does.
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
    output_rows: int = 0
    inputs: dict[str, InputSample] = {}
    stages: dict[str, int | None] = {}

    @property
    def driver(self) -> tuple[int, int]:
        """Which driver took it; in containers, all have the same process number."""
        return self.process, self.generation


_DECODER = msgspec.json.Decoder(Sample)


class SampleLog:
    """The samples of a job.

    ``left_out`` tells how many lines, and files as a whole, ``read`` could not read.

    Args:
        storage: of the job.
    """

    def __init__(self, storage: Path) -> None:
        self._folder = storage / FOLDER
        self.left_out = 0

    def append(self, sample: Sample) -> None:
        """Keep one more; on the first of a day, others are thinned, and those too old go."""
        path = self._path(sample.at_ms // DAY_MS)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._tidy(sample.at_ms // DAY_MS)
        with open(path, "ab") as file:
            file.write(_line(sample))

    def keep_keys(self, found: list[HeavyKeys]) -> None:
        """Keep the heaviest keys of now in the place of those of before."""
        keep_keys(self._folder, found)

    def kept_keys(self) -> list[HeavyKeys]:
        """Return the heaviest keys that were kept last."""
        return kept_keys(self._folder)

    def _path(self, day: int, end: str = "") -> Path:
        return self._folder / f"{day:06d}{end}.jsonl"

    def _tidy(self, today: int) -> None:
        for day in self._days():
            if day <= today - KEEP_DAYS:
                for end in ("", THIN):
                    with suppress(OSError):
                        self._path(day, end).unlink(missing_ok=True)
            elif day < today and self._path(day).exists():
                with suppress(OSError):  # what cannot be read or written today is left as it is
                    self._thin(day)

    def _thin(self, day: int) -> None:
        """Replace a day by what is left of it; a crash between the two leaves both."""
        lines = self._path(day).read_bytes().splitlines()
        left = b"".join(_line(sample) for sample in thinned(self._decoded(lines)))
        path = self._path(day, THIN)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(left)
        os.replace(temporary, path)
        self._path(day).unlink()

    def _days(self) -> list[int]:
        names = {path.name.partition(".")[0] for path in self._folder.glob("*.jsonl")}
        return sorted(int(name) for name in names if name.isdigit())

    def read(self, since_ms: int) -> Iterator[Sample]:
        """Yield the samples from a moment on, oldest first."""
        for day in self._days():
            if day < since_ms // DAY_MS:
                continue
            thin = self._path(day, THIN)
            for sample in self._samples(thin if thin.exists() else self._path(day)):
                if sample.at_ms >= since_ms:
                    yield sample

    def _samples(self, path: Path) -> Iterator[Sample]:
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            self.left_out += 1
        else:
            yield from self._decoded(lines)

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[Sample]:
        for line in lines:
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError:
                self.left_out += 1


def _line(sample: Sample) -> bytes:
    return msgspec.json.encode(sample) + b"\n"


def thinned(samples: Iterable[Sample]) -> list[Sample]:
    """Return the first sample of each minute, and the last of each driver.

    The lags of a minute are the highest in it.
    """
    kept: list[Sample] = []
    most, last = 0, None
    for sample in samples:
        minute = (sample.driver, sample.at_ms // MINUTE_MS)
        if not kept or minute != (kept[-1].driver, kept[-1].at_ms // MINUTE_MS):
            if last is not None and last.driver != sample.driver:
                kept.append(last)
            kept.append(sample)
            most = sample.lag
        most = max(most, sample.lag)
        if most > kept[-1].lag:
            kept[-1] = msgspec.structs.replace(kept[-1], lag=most)
        last = sample if sample.at_ms > kept[-1].at_ms else None
    return kept if last is None else [*kept, last]


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
        self._minute, self._kept_keys = 0, list[HeavyKeys]()
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
        now = self._clock.now_ms()
        with suppress(HeadraceError, OSError):
            is_whole = now // MINUTE_MS != self._minute or self._has_few_parts()
            self._log.append(sample_of(self._board, now, is_whole=is_whole))
            self._minute = now // MINUTE_MS
            if (keys := self._board.heavy_keys(TOLD_KEYS)) and keys != self._kept_keys:
                self._log.keep_keys(keys)
                self._kept_keys = keys

    def _has_few_parts(self) -> bool:
        state = self._board.state
        return len(state.inputs) + len(state.watermarks) <= FEW_PARTS

    def stop(self) -> None:
        """Take the last one, and end; without a start nothing happens."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._minute = 0  # the last one is whole
        self.take()


def sample_of(board: Board, now_ms: int, *, is_whole: bool = True) -> Sample:
    """Return what is true of a job now; whole with what is true of inputs and stages."""
    state, lags = board.state, board.lags_now()
    marks = [at for at in state.watermarks.values() if NO_WATERMARK < at < END_WATERMARK]
    return Sample(
        now_ms,
        os.getpid(),
        board.status,
        state.epoch,
        state.counts.get("in", 0),
        sum(lags.values()),
        board.count,
        round(board.busy_ms, 1),
        sum(map(state_bytes, state.tasks.values())),
        min(marks, default=None),
        state.generation,
        board.output_rows,
        _inputs(state, lags) if is_whole else {},
        _stages(state) if is_whole else {},
    )


def _inputs(state: JobState, lags: Mapping[tuple[str, int], int]) -> dict[str, InputSample]:
    behind: dict[str, int] = {}
    for (name, _), lag in lags.items():
        behind[name] = behind.get(name, 0) + lag
    chosen = sorted(behind, key=lambda name: (-behind[name], name))[:MOST_PARTS]
    return {
        name: InputSample(
            sum(at.next_offset for at in state.inputs.get(name, {}).values()), behind[name]
        )
        for name in sorted(chosen)
    }


def _stages(state: JobState) -> dict[str, int | None]:
    names = list(state.watermarks)[:MOST_PARTS]
    return {name: time_of(state.watermarks[name]) for name in names}
