"""What a driver counts of its own epochs: how long steps took, and what slots told beside."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.plan.stages import PART

if TYPE_CHECKING:
    from headrace.coordinator.summary import EpochSummary
    from headrace.task.orders import HotKeys

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of durations, s."""

FORGET_MS = 600_000
"""Keys that a task has not told of for so long are of the past."""


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


class ToldKeys(NamedTuple):
    """The heaviest keys of a task, and when they were told, ms."""

    at_ms: int
    keys: HotKeys


@dataclass
class Figures:
    """Counted since the driver began; by part, step, task and store.

    Whoever reads or writes holds the board's lock.
    """

    rows: int = 0
    output_rows: int = 0
    epochs: dict[str, Histogram] = field(default_factory=dict)
    steps: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    slot_steps_s: dict[str, float] = field(default_factory=dict)
    stores: dict[str, dict[str, int]] = field(default_factory=dict)
    hot_keys: dict[tuple[str, str], ToldKeys] = field(default_factory=dict)
    cache: Counter[str] = field(default_factory=Counter)
    copies: dict[str, tuple[int, float]] = field(default_factory=dict)

    def copied(self) -> Figures:
        """Return figures that do not change any more."""
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
            for task, told in seen.hot_keys.items():
                for one in told:
                    self.hot_keys[task, one.operator] = ToldKeys(now_ms, one)
        old = [which for which, told in self.hot_keys.items() if told.at_ms < now_ms - FORGET_MS]
        for which in old:
            del self.hot_keys[which]
