"""Holds the compacted streams that a job reads: nothing that it may read again is compacted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from headrace.bus.bus import Bus, Stream
from headrace.clock import Clock
from headrace.coordinator.manifest import JobState
from headrace.errors import HeadraceError
from headrace.plan.stages import JobPlan

RENEW_S = 30.0


class _Held(NamedTuple):
    offsets: list[int]
    at: float


class Holding:
    """What a job holds of its inputs, and of the streams of its broadcast stores.

    A hold is set before an epoch is planned, and only that lets a compaction go further that
    comes after the epoch's commit. It is renewed now and then, not in each epoch.

    Args:
        job: its name.
        bus: the streams.
        clock: for when a hold is renewed.
    """

    def __init__(self, job: str, bus: Bus, clock: Clock) -> None:
        self._job, self._bus, self._clock = job, bus, clock
        self._plan: JobPlan | None = None
        self._compacted: dict[str, Stream] = {}
        self._held: dict[str, _Held] = {}

    def keep(self, plan: JobPlan, state: JobState) -> None:
        """Hold every compacted stream from where the job is, durably.

        Args:
            plan: of the job.
            state: after the last epoch; its positions are those that are held.
        """
        self._look(plan)
        for name, stream in self._compacted.items():
            offsets = _offsets(plan, state, name, stream.spec.partitions)
            if self._is_due(stream, offsets, self._held.get(name)):
                stream.hold(self._job, offsets)
                self._held[name] = _Held(offsets, self._clock.monotonic())

    def _is_due(self, stream: Stream, offsets: list[int], held: _Held | None) -> bool:
        if held is None or len(held.offsets) != len(offsets):
            return True
        if any(now < before for now, before in zip(offsets, held.offsets, strict=True)):
            return True
        life_s = stream.settings.hold_ms / 1000
        wait_s = life_s / 4 if offsets == held.offsets else min(RENEW_S, life_s / 4)
        return self._clock.monotonic() - held.at >= wait_s

    def release(self, plan: JobPlan) -> None:
        """Let go of everything: the job has read all that it ever will."""
        self._look(plan)
        for stream in self._compacted.values():
            stream.release(self._job)
        self._held.clear()

    def _look(self, plan: JobPlan) -> None:
        if plan is not self._plan:
            self._plan, self._compacted = plan, _compacted(plan, self._bus)
            # A stream that comes with the name of one that went is held anew.
            self._held = {name: one for name, one in self._held.items() if name in self._compacted}


def release_all(bus: Bus, job: str) -> None:
    """Let go of what a job holds that is removed; what cannot be opened is left."""
    for name in bus.names():
        with contextlib.suppress(HeadraceError, OSError):
            bus.stream(name).release(job)


def _compacted(plan: JobPlan, bus: Bus) -> dict[str, Stream]:
    names = dict.fromkeys(stream for stream, _ in _readers(plan))
    streams = {name: bus.stream(name) for name in names}
    return {name: stream for name, stream in streams.items() if stream.spec.compact}


def _readers(plan: JobPlan) -> Iterator[tuple[str, str]]:
    """Yield stream and input operator; of broadcast stores no operator."""
    for stage in plan.stages:
        for binding in stage.inputs:
            yield binding.stream, binding.operator
    for table in plan.tables:
        if table.stream is not None:
            yield table.stream, ""


def _offsets(plan: JobPlan, state: JobState, stream: str, partitions: int) -> list[int]:
    """The lowest offsets that any input, or broadcast store, has read a stream to."""
    found: list[list[int]] = []
    for name, operator in _readers(plan):
        if name == stream and operator:
            positions = state.inputs.get(operator, {})
            found.append(
                [positions[p].next_offset if p in positions else 0 for p in range(partitions)]
            )
    for table in plan.tables:
        if table.stream == stream:
            read = state.tables.get(table.name, [])
            found.append([read[p] if p < len(read) else 0 for p in range(partitions)])
    return [min(offsets) for offsets in zip(*found, strict=True)]
