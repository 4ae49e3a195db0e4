"""Which files of a task are compacted next, and when a snapshot pays: pure functions of sizes.

Sizes fall into levels, each four times the one before. Four runs of one level are compacted into
one of the next, so an entry is rewritten about once a level. Small runs that lie before a larger
one go into it when there are three. A compaction that includes the oldest file is a snapshot:
nothing older is below, so deletions go. For ``W`` bytes of changelog, with ``FILE_COST_BYTES`` more
a file, less than ``WORST_REWRITES`` times ``W`` is written at each level, and less than ``W`` for
the snapshots: those cost less than the bytes that they free, and a byte is freed once.

``CostModel`` is the Samza paper's model of full checkpoints against a changelog (its section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12

PAPER_STATES = (100 * TB, 100 * GB)
PAPER_ENTRIES = (10, KB)
PAPER_INTERVALS_S = (600.0, 5400.0)
PAPER_RATES = (35_000.0, 10_000_000.0)
"""What Figure 7 spans; the rates are ten times those of the paper's stateful jobs (Table 1)."""


def break_even_rate(state_bytes: float, interval_s: float, entry_bytes: float) -> float:
    """Return the changes a second at which both ways make the same data; all are above 0."""
    return state_bytes / (interval_s * entry_bytes)


@dataclass(frozen=True)
class CostModel:
    """The model with one job's figures.

    Args:
        state_bytes: the whole state.
        change_rate: changed entries a second.
        entry_bytes: of one change, on average.
    """

    state_bytes: float
    change_rate: float
    entry_bytes: float

    @property
    def changelog_rate(self) -> float:
        """Bytes a second that the changelog makes."""
        return self.change_rate * self.entry_bytes

    def checkpoint_rate(self, interval_s: float) -> float:
        """Bytes a second that a full checkpoint at each interval makes."""
        return self.state_bytes / interval_s

    def break_even_rate(self, interval_s: float) -> float | None:
        """Changes a second at which both are equal; ``None`` where entries have no size."""
        if not self.entry_bytes:
            return None
        return break_even_rate(self.state_bytes, interval_s, self.entry_bytes)

    @property
    def break_even_interval_s(self) -> float | None:
        """Seconds between checkpoints at which both are equal; ``None`` without changes."""
        return self.state_bytes / self.changelog_rate if self.changelog_rate else None

    def prefers_changelog(self, interval_s: float) -> bool:
        """Say whether the changelog makes no more data than checkpoints at that interval."""
        return self.changelog_rate <= self.checkpoint_rate(interval_s)


FILE_COST_BYTES = 64 << 10
"""What opening one more file costs, in bytes that could be read in that time."""

MINIMUM_GAIN_BYTES = 4 << 20
"""Below this a rebuild is quick either way, and a snapshot only costs an fsync."""


@dataclass(frozen=True)
class SnapshotDecision:
    """Whether to write a snapshot now, and the figures behind it, in bytes.

    ``replay`` is what a rebuild reads now, ``after`` what it would read after a snapshot,
    ``cost`` what writing one takes.
    """

    replay: int
    after: int
    cost: int

    @property
    def gain(self) -> int:
        """What each later rebuild would save."""
        return self.replay - self.after

    @property
    def take(self) -> bool:
        """Say whether one rebuild saves more than the snapshot costs."""
        return self.gain > self.cost + MINIMUM_GAIN_BYTES

    def __str__(self) -> str:
        """Return one line for people."""
        verdict = "snapshot" if self.take else "changelog"
        return (
            f"{verdict}: a rebuild reads {self.replay / 1e6:.1f} MB, after a snapshot "
            f"{self.after / 1e6:.1f} MB, writing it costs {self.cost / 1e6:.1f} MB"
        )


def snapshot_decision(
    segment_bytes: int, snapshot_bytes: int, state_bytes: int, files: int
) -> SnapshotDecision:
    """Weigh a snapshot against replaying.

    State that only grows gains nothing by it. State that is overwritten is snapshotted about
    each time its changelog outgrew it.

    Args:
        segment_bytes: changelog since the last snapshot.
        snapshot_bytes: size of the last snapshot, 0 for none.
        state_bytes: live entries, which a new snapshot would hold.
        files: that all this is spread over.
    """
    replay = segment_bytes + snapshot_bytes + files * FILE_COST_BYTES
    # What is live was written since the last snapshot, or stands in it.
    after = min(state_bytes, segment_bytes + snapshot_bytes) + FILE_COST_BYTES
    return SnapshotDecision(replay, after, after)


FAN_IN = 4
"""Runs of one level that are merged into one, and how much larger the next level is."""

MAX_FILES = 32
"""A task that has more is merged before its epoch ends: what was to do it beside
the epochs did not come to it, or ended too early. Where merges keep pace a task has up to about
20."""

WORST_REWRITES = 10 / 3
"""How often an entry is written again at each level, at the very worst; about 1 is usual."""


class RunSize(NamedTuple):
    """One file's part of a task: bytes and entries, deletions included."""

    bytes: int
    rows: int


class CompactionPlan(NamedTuple):
    """Merge the files from ``begin`` to before ``end``, oldest first."""

    begin: int
    end: int

    @property
    def is_snapshot(self) -> bool:
        """Say whether the oldest file is included."""
        return self.begin == 0


def level_of(size: int) -> int:
    """Return the level of a run: 0 up to ``FILE_COST_BYTES``, then one more for each factor."""
    level, limit = 0, FILE_COST_BYTES
    while size > limit:
        level, limit = level + 1, limit * FAN_IN
    return level


def plan_compaction(
    snapshots: Sequence[RunSize],
    segments: Sequence[RunSize],
    state_bytes: int,
    *,
    expires: bool = False,
) -> CompactionPlan | None:
    """Return what to merge next, ``None`` for nothing.

    The answer for more segments may differ, but what it names for fewer is still right.

    Args:
        snapshots: what a store begins with; they are merged together or not at all.
        segments: the changes since, oldest first.
        state_bytes: an estimate of the live entries.
        expires: whether some of them live for a time only.
    """
    if decide_snapshot(snapshots, segments, state_bytes, expires=expires).take:
        return CompactionPlan(0, len(snapshots) + len(segments))
    if len(snapshots) + len(segments) < FAN_IN:
        return None
    weights = [*([len(snapshots)] if snapshots else []), *(1 for _ in segments)]
    sizes = [
        *([sum(r.bytes for r in snapshots)] if snapshots else []),
        *(r.bytes for r in segments),
    ]
    found = _gathered([level_of(size) for size in sizes], weights)
    if found is None:
        return None
    extra = max(0, len(snapshots) - 1)
    begin, end = found
    return CompactionPlan(begin + extra if begin else 0, end + extra)


def _gathered(levels: Sequence[int], weights: Sequence[int]) -> tuple[int, int] | None:
    """Return the newest window in which enough runs of about one size have gathered."""
    for last in range(len(levels) - 1, -1, -1):
        level, begin, same, smaller = levels[last], last, weights[last], 0
        while begin and levels[begin - 1] < level:
            begin -= 1
            smaller += weights[begin]
        before = begin
        while before and levels[before - 1] <= level:
            before -= 1
            same += weights[before] if levels[before] == level else 0
        if same >= FAN_IN:
            return before, last + 1
        if smaller >= FAN_IN - 1:
            return begin, last + 1
    return None


def decide_snapshot(
    snapshots: Sequence[RunSize],
    segments: Sequence[RunSize],
    state_bytes: int,
    *,
    expires: bool = False,
) -> SnapshotDecision:
    """Weigh a snapshot of everything against leaving it, by what a rebuild reads."""
    held = sum([run.bytes for run in snapshots])
    changes = sum([run.bytes for run in segments])
    live = live_bytes(snapshots, segments, state_bytes, expires=expires)
    return snapshot_decision(changes, held, live, len(snapshots) + len(segments))


def live_bytes(
    snapshots: Sequence[RunSize],
    segments: Sequence[RunSize],
    state_bytes: int,
    *,
    expires: bool = False,
) -> int:
    """Return about how much a snapshot would hold.

    A store's own estimate may be of compressed data, or of memory that it set aside; so what
    cannot have been overwritten since the snapshots counts as live in any case, and no more
    than what the files hold. Where entries live for a time only, it may have expired.
    """
    held = sum([run.bytes for run in snapshots])
    changes = sum([run.bytes for run in segments])
    rows = sum([run.rows for run in snapshots])
    kept = max(0, rows - sum([run.rows for run in segments]))
    untouched = held * kept // rows if rows and not expires else 0
    return min(max(state_bytes, untouched), held + changes)
