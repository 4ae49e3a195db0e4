"""Bounds that an epoch is given, and what is told of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.config.starts import EARLIEST, Start
from headrace.coordinator.backup.copier import CopyLag
from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.observed import Observed
from headrace.coordinator.placement import PlacementRules
from headrace.coordinator.task_files import state_bytes
from headrace.plan.stages import JobPlan
from headrace.task.orders import NO_WATERMARK


@dataclass(frozen=True)
class EpochLimits:
    """Bounds of each epoch, and of the run.

    Args:
        max_rows: input rows.
        max_bytes: bytes of the input columns that are read.
        timeout_s: after this long source tasks stop reading.
        overlay_bytes: changes that one task holds in memory; an epoch that exceeds it makes
            the next ones smaller.
        bounded: the run ends at the ends that the inputs have at its start.
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
    bounded: bool = False
    durability: str = "epoch"
    keep_epochs: int = 100
    keep_bytes: int = 1 << 30
    start: Start = EARLIEST
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


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch did; times are milliseconds of the driver's clock.

    ``copy`` tells how far the copy in job_dir is behind, where epochs commit elsewhere.
    ``merged_bytes`` are in files that now stand for several; ``merge_problems`` say, task by
    task, why the last try at that failed, which harms nothing but how quick a restart is. ``job``
    is that of the part. ``observed`` is what the slots told beside.
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
    slot_timings_ms: dict[str, float] = field(default_factory=dict)
    copy: CopyLag | None = None
    merged_bytes: int = 0
    merge_problems: tuple[str, ...] = ()
    job: str = ""
    observed: Observed | None = None

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
        copy: CopyLag | None = None,
    ) -> EpochSummary:
        """Sum up a committed epoch; ``timings_ms`` holds its ``total``."""
        took_ms = timings_ms.pop("total")
        changed = [change for change in run.tasks.values() if change.segment]
        return cls(
            epoch=run.epoch,
            rows=run.rows_read(inner=False),
            took_ms=took_ms,
            timings_ms=timings_ms,
            counts=dict(run.counts),
            watermark=min(state.watermarks.values(), default=NO_WATERMARK),
            lag=lag,
            state_bytes=sum(map(state_bytes, state.tasks.values())),
            changelog_bytes=sum(
                change.segment.bytes for change in changed if change.segment is not None
            ),
            output_rows=output_rows,
            ended=state.ended,
            slot_timings_ms=run.observed.timings_ms(),
            observed=run.observed,
            copy=copy,
            merged_bytes=sum(
                change.merged.ref.bytes
                for change in run.tasks.values()
                if change.merged is not None
            ),
            merge_problems=tuple(run.merge_problems),
            job=state.job,
        )


def rows_behind(plan: JobPlan, state: JobState, ends: Mapping[str, Sequence[int]]) -> int:
    """Return how many rows lie between the state and the ends of the inputs."""
    lag = 0
    for binding in plan.reads:
        held = state.inputs[binding.operator]
        for partition, end in enumerate(ends[binding.stream]):
            lag += max(0, end - held.get(partition, InputPosition(0)).next_offset)
    return lag
