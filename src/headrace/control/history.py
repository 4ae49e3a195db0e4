"""Samples of a running job, kept in its folder, and its history made of them.

One file for each day (UTC), a line of JSON for each sample; days beyond the last seven go, and
of those before today a sample a minute is left, in a file of another name. A line that a crash
tore is left out, and counted. ``job_history`` cuts the time into equal buckets.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from headrace.control.job_status import HeavyKeys, keep_keys, known_time
from headrace.control.live_job import LiveJob
from headrace.coordinator.manifest import JobState, state_bytes
from headrace.errors import HeadraceError
from headrace.runtime.orders import REPORTED_KEYS

FOLDER = "history"
THINNED_SUFFIX = ".1m"
"""What the name of a day's file ends with once it has been thinned."""

MAX_PARTS_EACH_SAMPLE = 12
"""With so many inputs and stages, these are in every sample, else in one a minute."""

MAX_PARTS = 64
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

    ``left_out`` says how many lines, and whole files, ``read`` could not read.

    Args:
        storage: of the job.
    """

    def __init__(self, storage: Path) -> None:
        self.storage, self._folder = storage, storage / FOLDER
        self.left_out = 0

    def append(self, sample: Sample) -> None:
        """Keep one more; on the first of a day, others are thinned, and those too old go."""
        path = self._path(sample.at_ms // DAY_MS)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._tidy(sample.at_ms // DAY_MS)
        with open(path, "ab") as file:
            file.write(_line(sample))

    def _path(self, day: int, end: str = "") -> Path:
        return self._folder / f"{day:06d}{end}.jsonl"

    def _tidy(self, today: int) -> None:
        for day in self._days():
            if day <= today - KEEP_DAYS:
                for end in ("", THINNED_SUFFIX):
                    with suppress(OSError):
                        self._path(day, end).unlink(missing_ok=True)
            elif day < today and self._path(day).exists():
                with suppress(OSError):  # what cannot be read or written today is left as it is
                    self._thin(day)

    def _thin(self, day: int) -> None:
        """Replace a day by what is left of it; a crash between the two leaves both."""
        lines = self._path(day).read_bytes().splitlines()
        left = b"".join(_line(sample) for sample in thinned(self._decoded(lines)))
        path = self._path(day, THINNED_SUFFIX)
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
            thin = self._path(day, THINNED_SUFFIX)
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
    """Takes a sample every ten seconds, epochs or not.

    Args:
        live: the job of the driver.
        log: of its job.
    """

    def __init__(self, live: LiveJob, log: SampleLog) -> None:
        self._live, self._log = live, log
        self._minute, self._kept_keys = 0, list[HeavyKeys]()

    def run(self, over: threading.Event) -> None:
        """Take samples, the first one at once, and the last one when it is over."""
        self.take()
        while not over.wait(EVERY_S):
            self.take()
        self._minute = 0  # the last one is whole
        self.take()

    def take(self) -> None:
        """Take a sample now; a disk or a stream that does not answer costs no more than that."""
        now = self._live.clock.now_ms()
        with suppress(HeadraceError, OSError):
            is_whole = now // MINUTE_MS != self._minute or self._has_few_parts()
            self._log.append(sample_of(self._live, now, is_whole=is_whole))
            self._minute = now // MINUTE_MS
            if (keys := self._live.heavy_keys(REPORTED_KEYS)) and keys != self._kept_keys:
                keep_keys(self._log.storage, keys)
                self._kept_keys = keys

    def _has_few_parts(self) -> bool:
        state = self._live.state
        return len(state.inputs) + len(state.watermarks) <= MAX_PARTS_EACH_SAMPLE


def sample_of(live: LiveJob, now_ms: int, *, is_whole: bool = True) -> Sample:
    """Return what is true of a job now; whole with what is true of inputs and stages."""
    state, lags = live.state, live.current_lags()
    marks = [at for at in state.watermarks.values() if known_time(at) is not None]
    return Sample(
        now_ms,
        os.getpid(),
        live.phase,
        state.epoch,
        state.counts.get("in", 0),
        sum(lags.values()),
        live.count,
        round(live.busy_ms, 1),
        sum(map(state_bytes, state.tasks.values())),
        min(marks, default=None),
        state.generation,
        live.output_rows,
        _inputs(state, lags) if is_whole else {},
        _stages(state) if is_whole else {},
    )


def _inputs(state: JobState, lags: Mapping[tuple[str, int], int]) -> dict[str, InputSample]:
    behind: dict[str, int] = {}
    for (name, _), lag in lags.items():
        behind[name] = behind.get(name, 0) + lag
    chosen = sorted(behind, key=lambda name: (-behind[name], name))[:MAX_PARTS]
    return {
        name: InputSample(
            sum(at.next_offset for at in state.inputs.get(name, {}).values()), behind[name]
        )
        for name in sorted(chosen)
    }


def _stages(state: JobState) -> dict[str, int | None]:
    names = list(state.watermarks)[:MAX_PARTS]
    return {name: known_time(state.watermarks[name]) for name in names}


@dataclass(frozen=True)
class HistoryBucket:
    """What happened in one of the equal parts of the time that is shown."""

    begin_ms: int
    rows: int = 0
    seconds: float = 0.0
    epochs: int = 0
    busy_ms: float = 0.0
    lag: int = 0
    state_bytes: int = 0
    output_rows: int = 0


@dataclass(frozen=True)
class InputBucket:
    """What was read of an input in one part of the time, and the most that lay before it."""

    begin_ms: int
    rows: int = 0
    seconds: float = 0.0
    lag: int = 0


@dataclass(frozen=True)
class StageBucket:
    """How far a stage's watermark was behind the clock at most in one part of the time, ms."""

    begin_ms: int
    behind_ms: int | None = None


@dataclass
class InputHistory:
    """One input: what was so at its last sample, and before."""

    name: str
    lag: int = 0
    stretches: list[InputBucket] = field(default_factory=list)


@dataclass
class StageHistory:
    """One stage, in the same way."""

    name: str
    watermark_ms: int | None = None
    behind_ms: int | None = None
    stretches: list[StageBucket] = field(default_factory=list)


@dataclass
class JobHistory:
    """All of it; only stretches in which a driver ran are there.

    ``left_out`` says how many samples could not be read; ``live``, that a driver reported it.
    """

    stretches: list[HistoryBucket]
    inputs: list[InputHistory]
    stages: list[StageHistory]
    left_out: int = 0
    live: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "live": self.live,
            "stretches": list(map(asdict, self.stretches)),
            "inputs": {one.name: list(map(asdict, one.stretches)) for one in self.inputs},
            "stages": {one.name: list(map(asdict, one.stretches)) for one in self.stages},
            "left_out": self.left_out,
        }


def job_history(samples: Iterable[Sample], begin_ms: int, end_ms: int, count: int) -> JobHistory:
    """Cut the time into equal parts, and sum up those in which the job ran.

    What counts up is taken from sample to sample of one driver; a driver that starts over counts
    from 0, and its rows continue from those of the job.
    """
    width = max(1, -(-(end_ms - begin_ms) // count))
    whole: dict[int, HistoryBucket] = {}
    inputs: dict[str, InputHistory] = {}
    stages: dict[str, StageHistory] = {}
    before: Sample | None = None
    detailed: Sample | None = None
    for sample in samples:
        at_ms = min(sample.at_ms, end_ms - 1)  # what is of this very moment belongs to the last
        begin = begin_ms + (at_ms - begin_ms) // width * width
        whole[begin] = _more(whole.get(begin, HistoryBucket(begin)), before, sample)
        before = sample
        if sample.inputs or sample.stages:
            _note_inputs(inputs, detailed, sample, begin)
            _note_stages(stages, sample, begin)
            detailed = sample
    return JobHistory(
        [whole[begin] for begin in sorted(whole)],
        [inputs[name] for name in sorted(inputs)],
        [stages[name] for name in sorted(stages)],
    )


def _more(held: HistoryBucket, before: Sample | None, sample: Sample) -> HistoryBucket:
    held = replace(held, lag=max(held.lag, sample.lag), state_bytes=sample.state_bytes)
    if before is None or before.driver != sample.driver:
        return held
    return replace(
        held,
        rows=held.rows + sample.rows - before.rows,
        seconds=held.seconds + (sample.at_ms - before.at_ms) / 1000,
        epochs=held.epochs + sample.epochs - before.epochs,
        busy_ms=held.busy_ms + sample.busy_ms - before.busy_ms,
        output_rows=held.output_rows + sample.output_rows - before.output_rows,
    )


def _note_inputs(
    found: dict[str, InputHistory], before: Sample | None, sample: Sample, begin: int
) -> None:
    for name, now in sample.inputs.items():
        past = found.setdefault(name, InputHistory(name))
        past.lag = now.lag
        if not past.stretches or past.stretches[-1].begin_ms != begin:
            past.stretches.append(InputBucket(begin))
        held = past.stretches[-1]
        held = replace(held, lag=max(held.lag, now.lag))
        if before is not None and before.driver == sample.driver and name in before.inputs:
            held = replace(
                held,
                rows=held.rows + max(0, now.rows - before.inputs[name].rows),
                seconds=held.seconds + (sample.at_ms - before.at_ms) / 1000,
            )
        past.stretches[-1] = held


def _note_stages(found: dict[str, StageHistory], sample: Sample, begin: int) -> None:
    for name, watermark in sample.stages.items():
        past = found.setdefault(name, StageHistory(name))
        behind = None if watermark is None else sample.at_ms - watermark
        past.watermark_ms, past.behind_ms = watermark, behind
        if not past.stretches or past.stretches[-1].begin_ms != begin:
            past.stretches.append(StageBucket(begin))
        known = [ms for ms in (past.stretches[-1].behind_ms, behind) if ms is not None]
        past.stretches[-1] = StageBucket(begin, max(known, default=None))
