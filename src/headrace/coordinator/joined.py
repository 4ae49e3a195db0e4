"""The parts of one job seen as one, for whoever reports a run or asks something of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from headrace.bus.bus import Bus
from headrace.coordinator.changes.rescaling import wanted_counts
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.hosts.record import Happening, Hosts, HostState, told
from headrace.coordinator.manifest import JobState


class JoinedParts:
    """What the drivers of several parts say together.

    From any thread; each part goes on by itself.

    Args:
        parts: senders first; those that have not begun are left out.
    """

    def __init__(self, parts: Sequence[Coordinator]) -> None:
        self._parts = tuple(part for part in parts if part.has_state) or tuple(parts)

    @property
    def state(self) -> JobState:
        """The state of the first part, with inputs, tasks and counts of all."""
        return joined_state(self.states)

    @property
    def bus(self) -> Bus:
        """The streams of all parts."""
        return self._parts[0].bus

    @property
    def states(self) -> list[JobState]:
        """The state of each part, senders first."""
        return [part.state for part in self._parts]

    @property
    def standbys_wanted(self) -> dict[str, int]:
        """How many standbys each task of a stage is to have, of stages whose tasks are to."""
        return {name: one for part in self._parts for name, one in part.standbys_wanted.items()}

    def input_streams(self) -> dict[str, str]:
        """Return the stream of each input operator, and of what goes from part to part."""
        return {name: one for part in self._parts for name, one in part.input_streams().items()}

    def ends(self) -> dict[str, list[int]]:
        """Return the next offset of each partition of each of these streams."""
        return {name: ends for part in self._parts for name, ends in part.ends().items()}

    def lags(self) -> dict[str, int]:
        """Return how many rows lie before each part now, by the job of its state."""
        return {part.state.job: _behind(part) for part in self._parts}

    def rescale(self, tasks: int) -> None:
        """Give each keyed stage of all parts so many tasks; call where no epoch is under way.

        Raises:
            InvalidInputError: there is none, or it cannot have so many; nothing has changed.
            NotOwnerError: a newer driver has taken over; stop.
        """
        wanted_counts(self.state, tasks)
        for part in self._parts:
            if part.state.task_counts:
                part.rescale(tasks)


def _behind(part: Coordinator) -> int:
    lag, ends = 0, part.ends()
    for name, stream in part.input_streams().items():
        held = part.state.inputs.get(name, {})
        for partition, end in enumerate(ends.get(stream, ())):
            at = held.get(partition)
            lag += max(0, end - (0 if at is None else at.next_offset))
    return lag


def joined_state(states: Sequence[JobState]) -> JobState:
    """Return the state of the first part, with what the others have beside it.

    Epochs are those of the first part; the job has ended when all parts have.
    """
    first = states[0]
    if len(states) == 1:
        return first
    counts: Counter[str] = Counter()
    for state in states:
        counts.update(state.counts)
    ends = [state.until for state in states if state.until is not None]
    return msgspec.structs.replace(
        first,
        inputs={name: held for state in states for name, held in state.inputs.items()},
        until={name: end for until in ends for name, end in until.items()} if ends else None,
        watermarks={name: at for state in states for name, at in state.watermarks.items()},
        tasks={name: task for state in states for name, task in state.tasks.items()},
        task_counts={name: n for state in states for name, n in state.task_counts.items()},
        standbys={name: found for state in states for name, found in state.standbys.items()},
        hosts=_hosts(states),
        story=told((), sorted({one for state in states for one in state.story}, key=_order)),
        counts=dict(counts),
        ended=all(state.ended for state in states),
        rescaled_at=max(state.rescaled_at for state in states),
        fingerprint={name: text for state in states for name, text in state.fingerprint.items()},
    )


def _hosts(states: Sequence[JobState]) -> Hosts:
    """Return the hosts of all parts, which share the slots of each."""
    found: Hosts = {}
    for state in states:
        for name, host in state.hosts.items():
            held = found.get(name, HostState())
            found[name] = HostState(
                host.address or held.address,
                held.slots + host.slots,
                held.drained or host.drained,
                held.everywhere or host.everywhere,
            )
    return found


def _order(one: Happening) -> tuple[int, str, str]:
    return one.time_ms, one.what, one.host
