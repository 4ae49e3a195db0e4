"""The streams that a job reads, as they are now: ends, added partitions, patterns, holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.bus.bus import Bus, Stream
from headrace.clock import Clock
from headrace.coordinator.creation import Positions, added_positions, with_positions
from headrace.coordinator.holding import Holding
from headrace.coordinator.manifest import JobState
from headrace.coordinator.planning import table_limits
from headrace.coordinator.reading import first_ends
from headrace.errors import InvalidInputError
from headrace.plan.fingerprint import PATTERN, STREAM
from headrace.plan.recounting import with_partitions
from headrace.plan.stages import JobPlan

Ends = dict[str, list[int]]


class Planner(Protocol):
    """Plans a job again over the streams that there are by now."""

    @property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input that has one, by the name of the input."""
        ...

    def matching(self) -> set[tuple[str, str]]:
        """Return input and stream for all streams that match a pattern now."""
        ...

    def plan(self) -> tuple[JobPlan, str]:
        """Plan the job again; return the plan, and the digest that names it to the slots.

        Raises:
            InvalidInputError: no stream matches a pattern, or one that does cannot be read.
        """
        ...


class Inputs:
    """The input streams of a job, and those of its broadcast stores.

    Args:
        job: its name.
        bus: the streams.
        clock: for holds and new positions.
        planner: of a job with patterns.
    """

    def __init__(self, job: str, bus: Bus, clock: Clock, planner: Planner | None) -> None:
        self._bus, self._clock = bus, clock
        self._planner = planner if planner is not None and planner.patterns else None
        self._holding = Holding(job, bus, clock)

    @property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input that has one, by the name of the input."""
        return {} if self._planner is None else self._planner.patterns

    def streams(self, plan: JobPlan) -> dict[str, Stream]:
        """Return the streams that are read by offset, by name: inputs and internal ones."""
        return {one.stream: self._bus.stream(one.stream) for one in plan.reads}

    def by_operator(self, plan: JobPlan) -> dict[str, Stream]:
        """Return the stream of each input operator."""
        streams = self.streams(plan)
        return {binding.operator: streams[binding.stream] for binding in plan.reads}

    def ends(self, plan: JobPlan) -> Ends:
        """Return the next offset of each partition of each input stream."""
        return {name: stream.ends() for name, stream in self.streams(plan).items()}

    def all_ends(self, plan: JobPlan) -> Ends:
        """Return the same, of broadcast stores too; internal streams end when a mark says so."""
        tables = self.table_streams(plan).values()
        inner = {feed.stream for feed in plan.feeds}
        own = {name: ends for name, ends in self.ends(plan).items() if name not in inner}
        return own | {stream.spec.name: stream.ends() for stream in tables}

    def replanned(self, plan: JobPlan) -> tuple[JobPlan, str] | None:
        """Return another plan and its digest if streams of a pattern came or went."""
        if self._planner is None:
            return None
        read = {
            (binding.pattern, binding.stream)
            for stage in plan.stages
            for binding in stage.inputs
            if binding.pattern
        }
        return None if self._planner.matching() == read else self._planner.plan()

    def followed(self, plan: JobPlan, state: JobState) -> JobState:
        """Return a state that has what came to patterns, and not what is gone from the bus.

        What came is read from its beginning. A stream that is there but matches no longer keeps
        its positions; of one that is gone nothing is kept, for who comes with its name is
        another.

        Args:
            plan: of the job by now.
            state: of before; itself where nothing changes.
        """
        if self._planner is None:
            return state
        there = set(self._bus.names())
        marks = {
            name: text
            for name, text in state.fingerprint.items()
            if not _is_gone(json.loads(text), there)
        }
        gone = set(state.fingerprint) - set(marks)
        new = {
            name: text
            for name, text in plan.fingerprint.items()
            if name not in state.fingerprint and PATTERN in json.loads(text)
        }
        if not gone and not new:
            return state
        inputs = {name: held for name, held in state.inputs.items() if name not in gone}
        fingerprint = {**marks, **new}
        ends = self.ends(plan)
        first = {name: found for name, found in first_ends(plan, ends).items() if name in new}
        kept = {name: held for name, held in state.bootstrap.items() if name not in gone}
        state = msgspec.structs.replace(
            state, inputs=inputs, fingerprint=fingerprint, bootstrap={**kept, **first}
        )
        return with_positions(state, self.added(self.widened(plan, ends), state, ends))

    def widened(self, plan: JobPlan, ends: Mapping[str, Sequence[int]]) -> JobPlan:
        """Return a plan that reads partitions that were added to the inputs, too."""
        return with_partitions(plan, {name: len(found) for name, found in ends.items()})

    def added(self, plan: JobPlan, state: JobState, ends: Mapping[str, Sequence[int]]) -> Positions:
        """Return positions of partitions that were added since, at their beginning."""
        return added_positions(plan, self._bus, state, ends, self._clock.now_ms())

    def hold(self, plan: JobPlan, state: JobState) -> None:
        """Keep what the job reads next from compactions; nothing more once it has ended."""
        if state.ended:
            self._holding.release(plan)
        else:
            self._holding.keep(plan, state)

    def table_streams(self, plan: JobPlan) -> dict[str, Stream]:
        """Return the streams of broadcast stores, by the store's name."""
        return {
            table.name: self._bus.stream(table.stream)
            for table in plan.tables
            if table.stream is not None
        }

    def table_offsets(self, plan: JobPlan, state: JobState) -> Ends:
        """Return where broadcast stores stand in an epoch: at what their streams hold by now.

        Raises:
            InvalidInputError: a stream has dropped records, so that the table cannot be read.
        """
        found = {
            name: table_limits(state, name, stream)
            for name, stream in self.table_streams(plan).items()
        }
        for table in plan.tables:
            if table.name in found and len(found[table.name]) != table.partitions:
                raise InvalidInputError(
                    f"broadcast store {table.name!r} was planned over {table.partitions} "
                    f"partitions of stream {table.stream!r}, found {len(found[table.name])}; start "
                    "the job again",
                    stream=table.stream,
                )
        return found


def _is_gone(parts: Mapping[str, str], there: set[str]) -> bool:
    """Say whether parts of a fingerprint are those of a pattern's stream that was removed."""
    return PATTERN in parts and parts[STREAM] not in there
