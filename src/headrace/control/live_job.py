"""A job that is driven here: its parts, its last epochs, its status and the driver's metrics.

Written by the driver's thread, read by any. Beside it: histograms of steps, the heaviest keys
that tasks reported, and how long the job needs until its lag is gone.
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.clock import Clock, ClockDeviation, SteadyClock
from headrace.control.alert_rules import RuleStatus
from headrace.control.job_status import (
    SHOWN_KEYS,
    HeavyKey,
    HeavyKeys,
    JobStatus,
    PartitionStatus,
    Plain,
    StageStatus,
    TaskStatus,
    job_status,
    known_time,
    partition_statuses,
    stage_statuses,
    task_statuses,
)
from headrace.coordinator.epoch_clock import accept_clock
from headrace.coordinator.job_events import JobEvent, job_events
from headrace.coordinator.job_parts import part_folders
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.leader_lease import DriverProcess
from headrace.errors import HeadraceError, UnavailableError
from headrace.files import Files
from headrace.plan.stages import PART
from headrace.records.keys import decode_key

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.config import Settings
    from headrace.coordinator.commands import CommandQueue
    from headrace.coordinator.driver_loop import JobControl
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.job_group import JobGroup
    from headrace.coordinator.manifest import JobState
    from headrace.plan.stages import JobPlan
    from headrace.runtime.orders import HotKeys


BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of durations, s."""

KEYS_EXPIRE_MS = 600_000
"""Keys that a task has not reported for so long are of the past."""


class Histogram:
    """Durations in buckets, s."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def copied(self) -> Histogram:
        """Return one that does not change any more."""
        made = Histogram()
        made.counts, made.sum_s = list(self.counts), self.sum_s
        return made

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many took at most so long, as Prometheus has it."""
        found, total = [], 0
        for bound, count in zip((*BOUNDS_S, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found


class ReportedKeys(NamedTuple):
    """The heaviest keys of a task, and when they were reported, ms."""

    at_ms: int
    keys: HotKeys


@dataclass
class DriverMetrics:
    """Counted since the driver began; by part, step, task and store.

    The one that reads or writes holds the lock of the job.
    """

    rows: int = 0
    output_rows: int = 0
    epochs: dict[str, Histogram] = field(default_factory=dict)
    steps: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    slot_steps_s: dict[str, float] = field(default_factory=dict)
    stores: dict[str, dict[str, int]] = field(default_factory=dict)
    hot_keys: dict[tuple[str, str], ReportedKeys] = field(default_factory=dict)
    cache: Counter[str] = field(default_factory=Counter)
    copies: dict[str, tuple[int, float]] = field(default_factory=dict)

    def copied(self) -> DriverMetrics:
        """Return metrics that do not change any more."""
        return replace(
            self,
            epochs={part: took.copied() for part, took in self.epochs.items()},
            steps={step: took.copied() for step, took in self.steps.items()},
            slot_steps_s=dict(self.slot_steps_s),
            stores=dict(self.stores),
            hot_keys=dict(self.hot_keys),
            cache=Counter(self.cache),
            copies=dict(self.copies),
        )

    def observe(self, summary: EpochSummary, now_ms: int) -> None:
        """Count an epoch."""
        part = summary.job.partition(PART)[2]
        self.rows += summary.rows
        self.output_rows += summary.output_rows
        self.epochs.setdefault(part, Histogram()).add(summary.took_ms / 1000)
        for step, took_ms in summary.timings_ms.items():
            self.steps.setdefault((part, step), Histogram()).add(took_ms / 1000)
        for step, took_ms in summary.slot_timings_ms.items():
            self.slot_steps_s[step] = self.slot_steps_s.get(step, 0.0) + took_ms / 1000
        for found in ("hits", "misses"):
            self.cache[found] += summary.counts.get(f"cache.{found}", 0)
        if summary.copy is not None:
            self.copies[part] = (summary.copy.epochs, summary.copy.seconds)
        seen = summary.observed
        if seen is not None:
            self.stores.update(seen.stores)
            for task, reports in seen.hot_keys.items():
                for one in reports:
                    self.hot_keys[task, one.operator] = ReportedKeys(now_ms, one)
        old = [
            which
            for which, report in self.hot_keys.items()
            if report.at_ms < now_ms - KEYS_EXPIRE_MS
        ]
        for which in old:
            del self.hot_keys[which]


SHOWN = 10


def plain(value: Any) -> Plain:
    """Return a value of a key as JSON has it: times and bytes as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def heavy_keys(reports: Iterable[ReportedKeys], most: int = SHOWN) -> list[HeavyKeys]:
    """Put together what tasks reported, operator by operator."""
    by_operator: dict[str, list[ReportedKeys]] = {}
    for one in reports:
        by_operator.setdefault(one.keys.operator, []).append(one)
    return [_joined(name, found, most) for name, found in sorted(by_operator.items())]


def _joined(operator: str, reports: list[ReportedKeys], most: int) -> HeavyKeys:
    rows = sum(one.keys.rows for one in reports)
    sums: dict[bytes, float] = {}
    for one in reports:
        for hot in one.keys.keys:
            sums[hot.key] = sums.get(hot.key, 0.0) + hot.rows
    heaviest = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:most]

    def share(count: float) -> float:
        return round(count / rows, 4) if rows else 0.0

    return HeavyKeys(
        operator,
        reports[0].keys.columns,
        round(rows, 1),
        share(sum(one.keys.slack for one in reports)),
        len(reports),
        max(one.at_ms for one in reports),
        tuple(
            HeavyKey(tuple(map(plain, decode_key(key))), round(count, 1), share(count))
            for key, count in heaviest
        ),
    )


WINDOW_S = 30.0
MIN_WINDOW_S = 1.0
"""Of less than that no pace is known."""


@dataclass
class CatchUpEstimate:
    """Written by the driver's thread, read by any thread under the lock of ``LiveJob``."""

    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, lag: int) -> None:
        """Take the lag after an epoch.

        Args:
            now: of the monotonic clock, s.
            lag: rows of all parts.
        """
        self._marks.append((now, lag))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()

    def eta_s(self, now: float) -> float | None:
        """Return for how long the job still reads at this pace.

        Args:
            now: of the monotonic clock, s.

        Returns:
            ``None`` where nothing lies before it, or it does not come closer.
        """
        if len(self._marks) < 2:
            return None
        (began, before), (last, lag) = self._marks[0], self._marks[-1]
        if last - began < MIN_WINDOW_S or not 0 < lag < before:
            return None
        rate = (before - lag) / (last - began)
        return max(0.0, lag / rate - (now - last))


SHOWN_EPOCHS = 1_000
"""So many of the last epochs are shown."""


@dataclass
class LiveJob:
    """Written by the driver's thread, read by any.

    Args:
        job: its name.
        settings: of the run.
        control: what stops, pauses and finishes it.
        clock: where time comes from.
        hold: begins no epoch while somebody merges into the job; says whether somebody does.
    """

    job: str
    settings: Settings
    control: JobControl
    clock: Clock
    _parts: JobGroup | None = None
    _epochs: deque[EpochSummary] = field(default_factory=lambda: deque(maxlen=SHOWN_EPOCHS))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lags: dict[str, int] = field(default_factory=dict)
    metrics: DriverMetrics = field(default_factory=DriverMetrics)
    hold: Callable[[], bool] = bool
    alerts: Callable[[], Sequence[RuleStatus]] = list
    pace: CatchUpEstimate = field(default_factory=CatchUpEstimate)
    count: int = 0
    busy_ms: float = 0.0

    def __post_init__(self) -> None:
        self.began_ms = self.clock.now_ms()

    def ready(self, parts: JobGroup) -> None:
        """Learn the parts of the job, which have begun."""
        self._parts = parts

    def observe(self, summary: EpochSummary) -> None:
        """Learn of an epoch that is committed."""
        with self._lock:
            self.metrics.observe(summary, self.clock.now_ms())
            self._epochs.append(replace(summary, observed=None))
            self._lags[summary.job] = summary.lag
            self.pace.note(self.clock.monotonic(), sum(self._lags.values()))
            self.count += 1
            self.busy_ms += summary.took_ms

    @property
    def clock_doubt(self) -> ClockDeviation | None:
        """Why the driver does not believe its clock; ``None``: it does."""
        return self.clock.doubt if isinstance(self.clock, SteadyClock) else None

    def accept_clock(self) -> ClockDeviation | None:
        """Let the driver believe its clock as it is; returns why it did not."""
        if not isinstance(self.clock, SteadyClock):
            return None
        storage = job_storages(self.settings, self.job).storage
        return accept_clock(self.clock, storage, Files(sync=False))

    @property
    def state(self) -> JobState:
        """The job's state after its last epoch.

        Raises:
            UnavailableError: it has not begun yet.
        """
        return self._begun.state

    @property
    def states(self) -> list[JobState]:
        """The states of its parts, senders first; raises as ``state`` does."""
        return self._begun.states

    @property
    def plans(self) -> list[JobPlan]:
        """The plans of its parts, senders first; raises as ``state`` does."""
        return self._begun.plans

    @property
    def stages(self) -> list[StageStatus]:
        """The keyed stages of all parts, after their last epochs; raises as ``state`` does."""
        return list(stage_statuses(self.state, self._begun.standbys_wanted))

    def tasks(self, partitions: Iterable[PartitionStatus] = ()) -> Iterable[TaskStatus]:
        """Return the tasks of keyed stages, and those that read the partitions that are given.

        Raises:
            UnavailableError: it has not begun yet.
        """
        return task_statuses(self.state, self.counted().stores, partitions)

    def partitions(self) -> list[PartitionStatus]:
        """Return how far each partition of the inputs has been read; raises as ``state`` does."""
        state, lags = self.state, dict[tuple[str, int], int]()
        with suppress(HeadraceError, OSError):  # of a stream that does not answer no lag is known
            lags = self.current_lags()
        return list(partition_statuses(state, lags))

    def summary(self) -> JobStatus:
        """Return the status as far as it is known without reading any file; at any time."""
        durability = self.settings.state.durability
        storage = job_storages(self.settings, self.job).storage
        found = JobStatus(
            self.job,
            self.phase,
            live=True,
            process=os.getpid(),
            host=os.uname().nodename,
            storage=str(storage),
        )
        if self._parts is None:
            return self._with_metrics(replace(found, counts={}, durability=durability))
        return self._with_metrics(replace(found.at(self.state), durability=durability))

    def status(self) -> JobStatus:
        """Return the status; raises as ``state`` does."""
        own = DriverProcess(os.getpid(), os.uname().nodename, is_here=True)
        known = {state.job: state for state in self.states}
        whole = job_status(self.settings, self.job, self.bus, self.clock, own, known)
        return self._with_metrics(
            replace(
                whole,
                status=self.phase,
                live=True,
                alerts=tuple(self.alerts()),
                hot_keys=tuple(self.heavy_keys(SHOWN_KEYS)),
            )
        )

    def events(self, since_ms: int = 0) -> list[JobEvent]:
        """Return what happened to the job from a moment on, oldest first."""
        storage = job_storages(self.settings, self.job).storage
        return job_events([storage, *part_folders(self.settings, self.job)], since_ms)

    def _with_metrics(self, found: JobStatus) -> JobStatus:
        marks = {} if self._parts is None else self.state.watermarks
        return replace(
            found,
            began_ms=self.began_ms,
            unread=self.unread,
            eta_s=self.eta_s,
            watermarks={name: at for name, at in marks.items() if known_time(at) is not None},
        )

    @property
    def bus(self) -> Bus:
        """The streams of the job; raises as ``state`` does."""
        return self._begun.bus

    def commands(self, part: str) -> CommandQueue:
        """Return the queue of commands to a part, by the job of its state; raises as ``state``."""
        return self._begun.commands(part)

    def wake(self) -> None:
        """Let the driver look at what was asked of it."""
        if self._parts is not None:
            self._parts.wake()

    @property
    def _begun(self) -> JobGroup:
        if self._parts is None:
            raise UnavailableError(f"job {self.job!r} is about to start; ask again in a moment")
        return self._parts

    @property
    def phase(self) -> str:
        """``starting``, ``running``, ``paused``, ``stopping`` or ``ended``."""
        if self.control.stop.is_set():
            return "stopping"
        if self._parts is None:
            return "starting"
        if self._parts.state.ended:
            return "ended"
        return "paused" if self.control.is_paused else "running"

    @property
    def unread(self) -> int | None:
        """Rows that lay before the job after its last epoch; ``None`` before the first."""
        with self._lock:
            return sum(self._lags.values()) if self._lags else None

    @property
    def eta_s(self) -> float | None:
        """For how long the job reads what lies before it; ``None``: it is not known, or paused."""
        with self._lock:
            now = self.clock.monotonic()
            return None if self.control.paused.is_set() else self.pace.eta_s(now)

    def current_lag(self) -> int:
        """Return how many rows lie before the job now; raises as ``current_lags`` does."""
        return sum(self.current_lags().values())

    def current_lags(self) -> dict[tuple[str, int], int]:
        """Return how many rows lie before each partition of each input now, by the streams.

        Raises:
            UnavailableError: it has not begun yet, or a stream does not answer.
        """
        return self._begun.partition_lags()

    def heavy_keys(self, most: int) -> list[HeavyKeys]:
        """Return the heaviest keys of each ``partition_by``, as far as tasks have reported."""
        with self._lock:
            reports = list(self.metrics.hot_keys.values())
        return heavy_keys(reports, most)

    @property
    def output_rows(self) -> int:
        """Rows that left the job since the driver began."""
        return self.metrics.output_rows

    def counted(self) -> DriverMetrics:
        """Return a copy of what the driver has counted."""
        with self._lock:
            return self.metrics.copied()

    def epochs(self, last: int) -> Sequence[EpochSummary]:
        """Return the last epochs, oldest first."""
        with self._lock:
            return list(self._epochs)[-last:]
