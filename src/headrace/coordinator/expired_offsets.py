"""Rows of an input that are gone before a job has read them, and where it may continue.

A log says what is to be done: nothing, which is an error that names the offsets, or a jump. A jump
is part of the epoch that makes it: its positions are in the manifest, and so is how many offsets it
passes, as the count ``expired`` of the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from headrace.bus.bus import Stream
from headrace.bus.readable import EARLIEST, FAIL
from headrace.coordinator.inputs import Positions
from headrace.coordinator.manifest import JobState
from headrace.plan.stages import JobPlan

EXPIRED = "expired"
"""The count of an input: offsets that were gone before they were read."""


class Jump(NamedTuple):
    """A jump in a partition of an input, from an offset to another one."""

    operator: str
    stream: str
    partition: int
    start: int
    stop: int
    policy: str

    @property
    def text(self) -> str:
        """What it is, in words."""
        return (
            f"input {self.stream!r} has no offset {self.start} of partition {self.partition} any "
            f"more; the job continues at {self.stop}, as offsets_expired={self.policy} says: "
            f"{self.stop - self.start} offsets are not read"
        )


def jumps_past_expired(
    plan: JobPlan,
    state: JobState,
    streams: Mapping[str, Stream],
    ends: Mapping[str, Sequence[int]],
) -> list[Jump]:
    """Return the jumps over what is gone, in streams that say that there shall be some.

    Args:
        plan: of the job.
        state: after the last epoch.
        streams: that the plan reads, by name.
        ends: next offset of each partition, by stream.
    """
    found = []
    for binding in plan.reads:
        stream = streams[binding.stream]
        if stream.expired == FAIL:
            continue
        begins = stream.begins()
        goals = begins if stream.expired == EARLIEST else ends[binding.stream]
        for partition, at in state.inputs.get(binding.operator, {}).items():
            if partition < len(begins) and at.next_offset < begins[partition]:
                place = (binding.operator, binding.stream, partition)
                goal = max(begins[partition], goals[partition])
                found.append(Jump(*place, at.next_offset, goal, stream.expired))
    return found


def positions_after(jumps: Sequence[Jump], state: JobState, added: Positions) -> Positions:
    """Return positions that become known, with those that jumps lead to."""
    found = {name: dict(positions) for name, positions in added.items()}
    for jump in jumps:
        before = state.inputs[jump.operator][jump.partition]
        after = msgspec.structs.replace(before, next_offset=jump.stop)
        found.setdefault(jump.operator, {})[jump.partition] = after
    return found


def expired_counts(jumps: Sequence[Jump]) -> dict[str, Counter[str]]:
    """Return how many offsets jumps pass, by input."""
    counts: dict[str, Counter[str]] = {}
    for jump in jumps:
        counts.setdefault(jump.operator, Counter())[EXPIRED] += jump.stop - jump.start
    return counts
