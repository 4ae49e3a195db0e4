"""Which files of a task are merged next: the policy, as a pure function of their sizes.

Sizes fall into levels, each four times the one before. When four runs of one level have
gathered, they are merged into one of the next level, so an entry is rewritten about once a
level. Small runs that lie before a larger one go into it when there are three. A merge that
includes the oldest file is a snapshot: nothing older is below, so deletions go.

What is written over ``W`` bytes of changelog, with ``FILE_COST_BYTES`` more for each file, stays
below ``WORST_REWRITES`` times ``W`` for each level, and below ``W`` for the snapshots that
``snapshots`` asks for: those cost less than the bytes that they free, and a byte is freed once.
Each level keeps at most three runs, and each of these at most two smaller ones before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.state.snapshots import FILE_COST_BYTES, SnapshotDecision, snapshot_decision

FAN_IN = 4
"""Runs of one level that are merged into one, and how much larger the next level is."""

WORST_REWRITES = 10 / 3
"""How often an entry is written again at each level, at the very worst; about 1 is usual."""


class Run(NamedTuple):
    """One file's part of a task: bytes and entries, deletions included."""

    bytes: int
    rows: int


class MergePlan(NamedTuple):
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


def plan_merge(
    snapshots: Sequence[Run], segments: Sequence[Run], state_bytes: int, *, expires: bool = False
) -> MergePlan | None:
    """Return what to merge next, ``None`` for nothing.

    The answer for more segments may differ, but what it names for fewer is still right.

    Args:
        snapshots: what a store begins with; they are merged together or not at all.
        segments: the changes since, oldest first.
        state_bytes: an estimate of the live entries.
        expires: whether some of them live for a time only.
    """
    if decide(snapshots, segments, state_bytes, expires=expires).take:
        return MergePlan(0, len(snapshots) + len(segments))
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
    return MergePlan(begin + extra if begin else 0, end + extra)


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


def decide(
    snapshots: Sequence[Run], segments: Sequence[Run], state_bytes: int, *, expires: bool = False
) -> SnapshotDecision:
    """Weigh a snapshot of everything against leaving it, by what a rebuild reads."""
    held, changes = sum(run.bytes for run in snapshots), sum(run.bytes for run in segments)
    live = live_bytes(snapshots, segments, state_bytes, expires=expires)
    return snapshot_decision(changes, held, live, len(snapshots) + len(segments))


def live_bytes(
    snapshots: Sequence[Run], segments: Sequence[Run], state_bytes: int, *, expires: bool = False
) -> int:
    """Return about how much a snapshot would hold.

    A store's own estimate may be of compressed data, or of memory that it set aside; so what
    cannot have been overwritten since the snapshots counts as live in any case, and no more
    than what the files hold. Where entries live for a time only, it may have expired.
    """
    held, changes = sum(run.bytes for run in snapshots), sum(run.bytes for run in segments)
    rows = sum(run.rows for run in snapshots)
    kept = max(0, rows - sum(run.rows for run in segments))
    untouched = held * kept // rows if rows and not expires else 0
    return min(max(state_bytes, untouched), held + changes)
