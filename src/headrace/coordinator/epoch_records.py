"""An epoch as data: its limits and its plan before it runs, its summary afterwards.

The plan is enough to run an epoch again, elsewhere or later. A driver leaves it behind when an
epoch fails by what it reads, or by the user's code; then ``jobs replay`` can record the very
epoch that failed, although it was never committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import msgspec

from headrace.config.sections import EARLIEST, StartPosition
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.inputs import with_positions
from headrace.coordinator.manifest import (
    InputPosition,
    JobState,
    TaskState,
    partition_lags,
    state_bytes,
)
from headrace.coordinator.placement import PlacementRules, Slot
from headrace.coordinator.slot_reports import EpochMetrics
from headrace.errors import HeadraceError, UnavailableError
from headrace.faults import fault
from headrace.files import Files
from headrace.plan.stages import JobPlan
from headrace.runtime.orders import NO_WATERMARK, InputRange

FAILED = "failed-epoch.json"


class EpochPlan(msgspec.Struct, frozen=True):
    """The hidden inputs of an epoch, beside the state before it and the rows that it reads.

    ``watermarks`` are those that source stages reached, where the epoch is over and they are
    known; ``added`` positions of partitions that came, or whose next rows are gone; ``max_bytes``
    bounds what is read of all ranges. Only the keyed tasks ``only`` run, where it names some.
    """

    epoch: int
    time_ms: int
    ranges: list[InputRange]
    ended: bool = False
    ends: dict[str, list[int]] = {}
    rested: dict[str, dict[int, int]] = {}
    tables: dict[str, list[int]] = {}
    added: dict[str, dict[int, InputPosition]] = {}
    watermarks: dict[str, int] = {}
    max_bytes: int | None = None
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, run: EpochRun, before: JobState) -> EpochPlan:
        """Return the plan of an epoch that has run, or failed, after a committed state."""
        return cls(
            epoch=run.epoch,
            time_ms=run.time_ms,
            ranges=run.ranges,
            ended=run.ended,
            ends={name: list(ends) for name, ends in run.ends.items()},
            rested=run.rested,
            tables=run.tables,
            added={
                name: {
                    p: at for p, at in positions.items() if before.inputs.get(name, {}).get(p) != at
                }
                for name, positions in run.state.inputs.items()
            },
            max_bytes=run.max_bytes,
        )

    def run(
        self, plan: JobPlan, state: JobState, slots: list[Slot], generation: int, digest: str
    ) -> EpochRun:
        """Return the epoch, to be run once more after the state before it."""
        return EpochRun(
            plan,
            with_positions(state, self.added),
            slots,
            self.ranges,
            generation,
            digest,
            self.time_ms,
            ended=self.ended,
            tables=self.tables,
            ends=self.ends,
            rested=self.rested,
            inputs={name: dict(positions) for name, positions in self.added.items()},
            kept_from=state.kept_from,
            max_bytes=self.max_bytes,
            known=self.watermarks,
            only=None if self.only is None else frozenset(self.only),
        )


class FailedEpoch(msgspec.Struct, frozen=True):
    """An epoch that was not committed, and the error that it ended with."""

    lineage: str
    plan: EpochPlan
    code: str
    kind: str
    message: str


_DECODER = msgspec.json.Decoder(FailedEpoch)


def save_failed(
    root: Path, run: EpochRun, before: JobState, error: HeadraceError, files: Files
) -> None:
    """Leave behind what a failed epoch was; nothing where the same epoch may do when tried again.

    Args:
        root: of the job's storage.
        run: the epoch.
        before: the last committed state.
        error: that it ended with.
        files: the file system.
    """
    if isinstance(error, UnavailableError):
        return
    kind = type(error).__name__
    plan = EpochPlan.of(run, before)
    found = FailedEpoch(before.lineage, plan, error.code, kind, error.message)
    fault("failure.due")
    with contextlib.suppress(OSError):  # the error itself is what counts
        files.replace(root / FAILED, msgspec.json.encode(found))


def load_failed(root: Path, state: JobState, files: Files) -> FailedEpoch | None:
    """Return how the epoch after a state failed last; ``None`` when it is not known to have."""
    try:
        found = _DECODER.decode(files.read(root / FAILED))
    except (OSError, msgspec.DecodeError):
        return None
    is_next = (found.lineage, found.plan.epoch) == (state.lineage, state.epoch + 1)
    return found if is_next else None


@dataclass(frozen=True)
class EpochLimits:
    """Bounds of each epoch, and of the run.

    Args:
        max_rows: input rows.
        max_bytes: bytes of the input columns that are read.
        timeout_s: after this long source tasks stop reading.
        overlay_bytes: changes that one task holds in memory; an epoch that exceeds it makes
            the next ones smaller.
        durability: what a committed epoch survives, as the setting says it.
        keep_epochs: epochs before the newest whose state can still be read.
        keep_bytes: of files that only these need.
        standby_copies: how many standbys each task has.
        placement: rules of it.
        start: where a new job begins to read inputs that do not say so themselves.
        order: in which inputs of one priority are read.
        max_waiting: messages that may wait for asynchronous calls before nothing new is read.
    """

    max_rows: int = 8_000_000
    max_bytes: int = 1 << 30
    timeout_s: float = 600.0
    overlay_bytes: int = 128 << 20
    durability: str = "epoch"
    keep_epochs: int = 100
    keep_bytes: int = 1 << 30
    start: StartPosition = EARLIEST
    order: str = "even"
    standby_copies: int = 0
    max_waiting: int = 100_000
    placement: PlacementRules = field(default_factory=PlacementRules)

    def adapt(self, bound: int, rows: int, overlay_bytes: int) -> int:
        """Return how many rows the next epoch may read, from what this one needed.

        What keyed tasks are sent they must take, so memory is bounded where rows are read:
        by the ratio when changes were too large, doubling again while they are small.
        """
        if overlay_bytes > self.overlay_bytes:
            return max(1, rows * self.overlay_bytes // overlay_bytes)
        if overlay_bytes * 2 < self.overlay_bytes:
            return min(self.max_rows, bound * 2)
        return bound


class StateSizes:
    """About how much the live entries of a job take; only tasks that changed are counted again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TaskState, int]] = {}

    def total(self, tasks: Mapping[str, TaskState]) -> int:
        """Return the bytes of all tasks, by name."""
        known = self._known
        for name, task in tasks.items():
            held = known.get(name)
            if held is None or held[0] is not task:
                known[name] = task, state_bytes(task)
        if len(known) > len(tasks):
            known = self._known = {name: known[name] for name in tasks}
        return sum(map(itemgetter(1), known.values()))


@dataclass(frozen=True)
class BackupLag:
    """How far the copy in job_dir is behind the epochs: what the loss of this host would cost."""

    epochs: int
    seconds: float
    failures: int
    problem: str


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch did; times are milliseconds of the driver's clock.

    ``copy`` says how far the copy in job_dir is behind, where epochs commit elsewhere.
    ``merged_bytes`` are in files that now stand for several; ``merge_problems`` say, task by
    task, why the last try at that failed, which harms nothing but how quick a restart is. ``job``
    is that of the part. ``observed`` is what the slots reported beside it.
    """

    epoch: int
    rows: int
    took_ms: float
    timings_ms: dict[str, float]
    counts: dict[str, int]
    watermark: int
    lag: int
    state_bytes: int
    changelog_bytes: int
    output_rows: int
    ended: bool
    copy: BackupLag | None = None
    merged_bytes: int = 0
    merge_problems: tuple[str, ...] = ()
    job: str = ""
    observed: EpochMetrics | None = None

    @property
    def slot_timings_ms(self) -> dict[str, float]:
        """What each step took, all slots together."""
        return {} if self.observed is None else self.observed.timings_ms()

    @property
    def cache_hits(self) -> float | None:
        """Part of the messages whose stored value was in memory; ``None`` where none has one."""
        hits, misses = (self.counts.get(f"cache.{name}", 0) for name in ("hits", "misses"))
        return hits / (hits + misses) if hits + misses else None

    @classmethod
    def of(
        cls,
        run: EpochRun,
        state: JobState,
        lag: int,
        output_rows: int,
        timings_ms: dict[str, float],
        size: int,
    ) -> EpochSummary:
        """Sum up a committed epoch; ``timings_ms`` has its ``total``, ``size`` is of the state."""
        took_ms, written, merged = timings_ms.pop("total"), 0, 0
        for change in run.tasks.values():
            written += 0 if change.segment is None else change.segment.bytes
            merged += 0 if change.merged is None else change.merged.ref.bytes
        return cls(
            epoch=run.epoch,
            rows=run.own_rows,
            took_ms=took_ms,
            timings_ms=timings_ms,
            counts=dict(run.counts),
            watermark=min(state.watermarks.values(), default=NO_WATERMARK),
            lag=lag,
            state_bytes=size,
            changelog_bytes=written,
            output_rows=output_rows,
            ended=state.ended,
            observed=run.observed,
            merged_bytes=merged,
            merge_problems=tuple(run.merge_problems),
            job=state.job,
        )


def rows_behind(plan: JobPlan, state: JobState, ends: Mapping[str, Sequence[int]]) -> int:
    """Return how many rows lie between the state and the ends of the inputs."""
    rows = 0
    for binding in plan.reads:
        rows += sum(partition_lags(state.inputs[binding.operator], ends[binding.stream]))
    return rows
