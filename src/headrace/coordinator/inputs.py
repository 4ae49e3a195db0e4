"""The streams that a job reads: first positions, ends, added partitions, patterns, pins.

Before the first epoch the outputs are made and the graph is compared with the state. Compacted
streams are pinned: nothing that the job may read again is compacted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from headrace.bus.bus import Bus, Stream, start_offsets
from headrace.bus.read_only import external_streams
from headrace.bus.spec import Fence, StreamSpec, stream_replaced
from headrace.clock import Clock
from headrace.config import EARLIEST, StartPosition
from headrace.coordinator.catalog import Catalog, StoreEntry, value_stores
from headrace.coordinator.epoch_ranges import bootstrap_ends, table_limits
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.errors import HeadraceError, InvalidInputError
from headrace.faults import fault
from headrace.graph.operators import first_starts
from headrace.plan.compatibility import PATTERN, STREAM, changes
from headrace.plan.parts import width_mistakes
from headrace.plan.stages import JobPlan, job_of, with_partitions
from headrace.sources.bounded_bus import underlying_bus
from headrace.state.value_types import value_changes

RENEW_S = 30.0
SHOW_S = 1.0
"""How often a job that is busy shows how far it is, where tools of a log look."""


class _Pin(NamedTuple):
    offsets: list[int]
    at: float


class CompactionPins:
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
        self._held: dict[str, _Pin | None] = {}

    def keep(
        self, plan: JobPlan, state: JobState, streams: Mapping[str, Stream], fence: Fence
    ) -> None:
        """Hold every compacted stream from where the job is, durably.

        Args:
            plan: of the job.
            state: after the last epoch; its positions are those that are held.
            streams: that the plan reads, by name.
            fence: of the driver.

        Raises:
            NotOwnerError: a newer generation than that of the fence has begun.
        """
        found = {name: stream for name, stream in streams.items() if stream.spec.compact}
        if not found:
            return
        # One that comes with the name of one that went is another, and is held, too.
        self._held = {one.identity: self._held.get(one.identity) for one in found.values()}
        for name, stream in found.items():
            offsets = _offsets(plan, state, name, stream.spec.partitions)
            if self._is_due(stream, offsets, self._held[stream.identity]):
                fault("hold.due")
                begun = self._clock.monotonic()  # a hold is as old as the beginning of its call
                stream.hold(self._job, offsets, fence=fence)
                self._held[stream.identity] = _Pin(offsets, begun)

    def _is_due(self, stream: Stream, offsets: list[int], held: _Pin | None) -> bool:
        if held is None or len(held.offsets) != len(offsets):
            return True
        if any(now < before for now, before in zip(offsets, held.offsets, strict=True)):
            return True
        life_s = stream.settings.hold_ms / 1000
        wait_s = life_s / 4 if offsets == held.offsets else min(RENEW_S, life_s / 4)
        return self._clock.monotonic() - held.at >= wait_s

    def release(self, plan: JobPlan, fence: Fence) -> None:
        """Release everything: the job has read all that it ever will."""
        for stream in open_streams(plan, self._bus).values():
            if stream.spec.compact:
                fault("hold.due")
                stream.release(self._job, fence=fence)
        self._held.clear()


def release_pins(bus: Bus, job: str, fence: Fence | None) -> None:
    """Release what a job holds that is removed; what cannot be opened is left."""
    for name in bus.names():
        with contextlib.suppress(HeadraceError, OSError):
            bus.stream(name).release(job, fence=fence)


def _offsets(plan: JobPlan, state: JobState, stream: str, partitions: int) -> list[int]:
    """The lowest offsets that any input, or broadcast store, has read a stream to."""
    found: list[list[int]] = []
    for binding in plan.reads:
        if binding.stream == stream:
            positions = state.inputs.get(binding.operator, {})
            found.append(
                [positions[p].next_offset if p in positions else 0 for p in range(partitions)]
            )
    for table in plan.tables:
        if table.stream == stream:
            read = state.tables.get(table.name, [])
            found.append([read[p] if p < len(read) else 0 for p in range(partitions)])
    return [min(offsets) for offsets in zip(*found, strict=True)]


Positions = dict[str, dict[int, InputPosition]]


def _only(stage: str, held: Mapping[str, int]) -> str:
    """The rest of a command that is for one stage, where there are others."""
    return f" --stage {stage}" if len(held) > 1 else ""


def create_outputs(plan: JobPlan, bus: Bus, fence: Fence | None = None) -> None:
    """Make the streams that a job sends to, unless they are there.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    for stage in plan.stages:
        for output in stage.outputs:
            spec = StreamSpec(
                output.stream, output.partitions, output.schema, output.time, output.keys
            )
            bus.create(spec, exist_ok=True, fence=fence)


def first_positions(plan: JobPlan, bus: Bus, default: StartPosition, now_ms: int) -> Positions:
    """Return where a new job begins in each partition of its inputs.

    Args:
        plan: of the job.
        bus: the streams.
        default: of inputs that do not say; those that fill tables begin at the earliest row.
        now_ms: the wall clock.
    """
    starts = first_starts(plan.graph)
    begins = {
        binding.operator: start_offsets(
            bus.stream(binding.stream),
            starts.get(binding.operator, EARLIEST if binding.bootstrap else default),
        )
        for stage in plan.stages
        for binding in stage.inputs
    }
    begins |= {feed.operator: [0] * feed.partitions for feed in plan.feeds}
    return {
        operator: {
            partition: InputPosition(begin, read_ms=now_ms)
            for partition, begin in enumerate(offsets)
        }
        for operator, offsets in begins.items()
    }


def with_positions(state: JobState, added: Positions) -> JobState:
    """Return a state that has more positions."""
    if not added:
        return state
    inputs = {name: {**state.inputs.get(name, {}), **more} for name, more in added.items()}
    return msgspec.structs.replace(state, inputs={**state.inputs, **inputs})


def task_counts(plan: JobPlan) -> dict[str, int]:
    """Return how many tasks share the key groups of each keyed stage."""
    return {stage.name: stage.tasks for stage in plan.stages if stage.keyed}


def check_graph(state: JobState, plan: JobPlan, before: Catalog | None = None) -> None:
    """Make sure that a graph can continue from a state.

    Args:
        state: of the job.
        plan: of the graph.
        before: what the stores held by the word of the plan before.

    Raises:
        InvalidInputError: it cannot; says all that has changed.
    """
    found = changes(state.fingerprint, plan.fingerprint)
    found += [] if before is None else _value_mistakes(state, before, value_stores(plan))
    held = state.task_counts
    found += [
        f"stage {stage!r}: tasks were {held[stage]}, are now {tasks}; state is kept by task: "
        f"move it with: headrace jobs rescale {job_of(state.job)} --tasks {tasks}"
        f"{_only(stage, held)}; or set job.tasks, or tasks= of partition_by, back to {held[stage]}"
        for stage, tasks in task_counts(plan).items()
        if held.get(stage, tasks) != tasks
    ]
    found += width_mistakes(plan.stages)
    if found:
        lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(found, 1))
        raise InvalidInputError(
            f"job {state.job!r} has state of epoch {state.epoch} that its graph no "
            f"longer fits:\n{lines}",
            job=state.job,
        )


def _value_mistakes(state: JobState, before: Catalog, after: Sequence[StoreEntry]) -> list[str]:
    """Say which stores hold values that cannot be read as what is declared now."""
    stages = {name.rpartition("/")[0] for name, task in state.tasks.items() if task.files}
    held = {entry.name: entry for entry in before.stores if entry.stage in stages}
    return [
        f"store {entry.name!r} of {entry.operator!r}: {text}, or start over: headrace jobs reset "
        f"{state.job}"
        for entry in after
        if entry.in_files and entry.name in held
        for text in value_changes(held[entry.name].value, entry.value)
    ]


Ends = dict[str, list[int]]
T = TypeVar("T")


def table_key(store: str, stream: str) -> str:
    """Return what the stream of a broadcast store is noted under, beside those of inputs.

    A store may be filled by a stream of another name from a start on, as its state is not kept.
    """
    return f"broadcast store {store} of {stream}"


def open_streams(plan: JobPlan, bus: Bus) -> dict[str, Stream]:
    """Return all streams that a plan reads, by name: by offset, and for broadcast stores."""
    return {name: bus.stream(name) for name in plan.streams}


def identities_of(plan: JobPlan, streams: Mapping[str, Stream]) -> dict[str, str]:
    """Return which stream each input operator reads, where that is known.

    Those of broadcast stores are there by ``table_key``.

    Args:
        plan: of the job.
        streams: that it reads, by name.
    """
    found = {}
    for one in plan.reads:
        if identity := streams[one.stream].identity:
            found[one.operator] = identity
    for table in plan.tables:
        if table.stream is not None and (identity := streams[table.stream].identity):
            found[table_key(table.name, table.stream)] = identity
    return found


def check_identities(plan: JobPlan, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse other streams than those which a job has read.

    Args:
        plan: of the job.
        known: which they were; what is not there may be any.
        found: which they are now.

    Raises:
        StreamReplacedError: names stream, both identities, and what may be done.
    """
    for name, identity in found.items():
        if known.get(name, identity) != identity:
            raise _replaced(plan, name, known[name], identity)


def _replaced(plan: JobPlan, name: str, expected: str, found: str) -> HeadraceError:
    job = job_of(plan.job)
    streams = {one.operator: one.stream for one in plan.reads}
    streams |= {table_key(one.name, one.stream): one.stream for one in plan.tables if one.stream}
    keep = f", or keep the state and read the new one: headrace jobs accept-streams {job}"
    return stream_replaced(
        streams[name],
        found,
        expected,
        f"job {job!r} (by {name!r})",
        f"start over with: headrace jobs reset {job}"
        + ("" if name in plan.feed_operators else keep),
    )


class Replanner(Protocol):
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


class ShownPositions:
    """How far a job is in logs that are not of the bus, for the tools of these logs.

    Nothing depends on it: what cannot be shown now is shown later.

    Args:
        job: its name.
        clock: for how often.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job, self._clock = job_of(job), clock
        self._shown: dict[str, list[int]] = {}
        self._next_s = 0.0

    def show(
        self, plan: JobPlan, state: JobState, streams: Mapping[str, Stream], *, is_idle: bool
    ) -> None:
        """Show positions that are new: now and then, and when there is nothing else to do.

        Args:
            plan: of the job.
            state: after the last epoch.
            streams: that the plan reads, by name.
            is_idle: there is nothing else to do.
        """
        if not is_idle and self._clock.monotonic() < self._next_s:
            return
        self._next_s = self._clock.monotonic() + SHOW_S
        for name, stream in external_streams(streams).items():
            offsets = _offsets(plan, state, name, stream.spec.partitions)
            if offsets != self._shown.get(name):
                with contextlib.suppress(HeadraceError):
                    stream.note(self._job, offsets)
                    self._shown[name] = offsets


class InputStreams:
    """The input streams of a job, and those of its broadcast stores.

    Args:
        job: its name.
        bus: the streams.
        clock: for holds and new positions.
        planner: of a job with patterns.
    """

    def __init__(self, job: str, bus: Bus, clock: Clock, planner: Replanner | None) -> None:
        self._bus, self._clock = bus, clock
        self._planner = planner if planner is not None and planner.patterns else None
        self.pins = CompactionPins(job, bus, clock)
        """What the job reads next is kept from compactions by these."""
        is_plain = underlying_bus(bus) is bus
        self.shown = None if is_plain else ShownPositions(job, clock)
        """Positions in logs that are not of the bus, for the tools of these logs."""

    @property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input that has one, by the name of the input."""
        return {} if self._planner is None else self._planner.patterns

    def ends(self, plan: JobPlan, streams: Mapping[str, Stream]) -> Ends:
        """Return the next offset of each partition of each input stream.

        Args:
            plan: of the job.
            streams: that it reads, by name.
        """
        return {one.stream: streams[one.stream].ends() for one in plan.reads}

    def all_ends(self, plan: JobPlan) -> Ends:
        """Return the same of the job's own inputs, and of broadcast stores."""
        streams = open_streams(plan, self._bus)
        own = {
            binding.stream: streams[binding.stream].ends()
            for stage in plan.stages
            for binding in stage.inputs
        }
        tables = [streams[table.stream] for table in plan.tables if table.stream is not None]
        return own | {stream.spec.name: stream.ends() for stream in tables}

    def replanned(self, plan: JobPlan, state: JobState) -> tuple[JobPlan, str] | None:
        """Return another plan and its digest if streams of a pattern came or went.

        One that went and came again is another: see ``left``.
        """
        if self._planner is None:
            return None
        read = {
            (binding.pattern, binding.stream)
            for stage in plan.stages
            for binding in stage.inputs
            if binding.pattern
        }
        if self._planner.matching() == read and not self._replaced(state):
            return None
        return self._planner.plan()

    def _replaced(self, state: JobState) -> set[str]:
        """Return the inputs of patterns whose streams are others by now than those read."""
        if self._planner is None:
            return set()
        there = set(self._bus.names())
        found = {
            name: self._bus.stream(stream)
            for name, text in state.fingerprint.items()
            if name in state.identities and PATTERN in (parts := json.loads(text))
            if (stream := parts[STREAM]) in there
        }
        # Another log of the name elsewhere is an error of the epoch, as without patterns.
        own = found.keys() - external_streams(found).keys()
        return {name for name in own if found[name].identity != state.identities[name]}

    def as_planned(self, plan: JobPlan, state: JobState) -> JobState:
        """Return a state for a look at what has changed: streams that came again may be others."""
        replaced = {name: plan.fingerprint.get(name) for name in self._replaced(state)}
        others = {name: text for name, text in replaced.items() if text is not None}
        return msgspec.structs.replace(state, fingerprint={**state.fingerprint, **others})

    def left(self, state: JobState) -> JobState:
        """Return a state without the streams of patterns that are gone from the bus.

        Of those nothing is kept, also where there is another of the name: it is read as one that
        comes. A stream that is there but matches no longer keeps its positions.
        """
        if self._planner is None:
            return state
        there, replaced = set(self._bus.names()), self._replaced(state)
        gone = {
            name
            for name, text in state.fingerprint.items()
            if name in replaced or _is_gone(json.loads(text), there)
        }

        def kept(held: dict[str, T]) -> dict[str, T]:
            return {name: one for name, one in held.items() if name not in gone}

        return msgspec.structs.replace(
            state,
            fingerprint=kept(state.fingerprint),
            inputs=kept(state.inputs),
            bootstrap=kept(state.bootstrap),
            identities=kept(state.identities),
        )

    def followed(self, plan: JobPlan, state: JobState) -> JobState:
        """Return a state that has what came to patterns, and not what is gone from the bus.

        What came is read from its beginning; see ``left`` for what is gone.

        Args:
            plan: of the job by now.
            state: of before; itself where nothing changes.
        """
        if self._planner is None:
            return state
        left = self.left(state)
        new = {
            name: text
            for name, text in plan.fingerprint.items()
            if name not in left.fingerprint and PATTERN in json.loads(text)
        }
        if left == state and not new:
            return state
        fingerprint = {**left.fingerprint, **new}
        streams = open_streams(plan, self._bus)
        ends, identities = self.ends(plan, streams), identities_of(plan, streams)
        first = {name: found for name, found in bootstrap_ends(plan, ends).items() if name in new}
        identities = {name: one for name, one in identities.items() if name in new}
        state = msgspec.structs.replace(
            left,
            fingerprint=fingerprint,
            bootstrap={**left.bootstrap, **first},
            identities={**left.identities, **identities},
        )
        return with_positions(state, self.added(self.widened(plan, ends), state, ends))

    def widened(self, plan: JobPlan, ends: Mapping[str, Sequence[int]]) -> JobPlan:
        """Return a plan that reads partitions that were added to the inputs, too."""
        for one in plan.reads:
            if len(ends[one.stream]) > one.partitions:
                return with_partitions(plan, {name: len(found) for name, found in ends.items()})
        return plan

    def added(self, plan: JobPlan, state: JobState, ends: Mapping[str, Sequence[int]]) -> Positions:
        """Return positions of partitions that were added since, at their beginning."""
        added: Positions = {}
        for binding in plan.reads:
            held = state.inputs.get(binding.operator, {})
            if len(held) < len(ends[binding.stream]):
                now_ms = self._clock.now_ms()
                begins = enumerate(self._bus.stream(binding.stream).begins())
                added[binding.operator] = {
                    partition: InputPosition(begin, read_ms=now_ms)
                    for partition, begin in begins
                    if partition not in held
                }
        return added


def table_offsets(plan: JobPlan, state: JobState, streams: Mapping[str, Stream]) -> Ends:
    """Return where broadcast stores stand in an epoch: at what their streams hold by now.

    Args:
        plan: of the job.
        state: after the last epoch.
        streams: that the plan reads, by name.

    Raises:
        InvalidInputError: a stream has dropped records, so that the table cannot be read.
    """
    found = {}
    for table in plan.tables:
        if table.stream is None:
            continue
        offsets = found[table.name] = table_limits(state, table.name, streams[table.stream])
        if len(offsets) != table.partitions:
            raise InvalidInputError(
                f"broadcast store {table.name!r} was planned over {table.partitions} "
                f"partitions of stream {table.stream!r}, found {len(offsets)}; start "
                "the job again",
                stream=table.stream,
            )
    return found


def _is_gone(parts: Mapping[str, str], there: set[str]) -> bool:
    """Say whether parts of a fingerprint are those of a pattern's stream that was removed."""
    return PATTERN in parts and parts[STREAM] not in there
