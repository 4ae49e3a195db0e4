"""The hosts of a job as its last epoch left them: what each one has, and what is to move."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.coordinator.balance import Known, spread
from headrace.coordinator.hosts.record import Happening, HostState, What, away_hosts
from headrace.coordinator.manifest import JobState
from headrace.coordinator.planning import task_name
from headrace.coordinator.task_files import TaskState, state_bytes


@dataclass(frozen=True)
class HostView:
    """A host.

    Args:
        host: identity of its state directory.
        address: or name; empty where it is not known.
        status: up, lost, draining, or drained.
        slots: that it has.
        tasks: of keyed stages, that run there.
        standbys: that it keeps.
        state_bytes: about how large the state of its tasks is.
        everywhere: all jobs of the home are to leave it, not this one alone.
    """

    host: str
    address: str
    status: str
    slots: int
    tasks: int
    standbys: int
    state_bytes: int
    everywhere: bool = False

    @property
    def is_empty(self) -> bool:
        """Say whether it has neither tasks nor standbys."""
        return not self.tasks and not self.standbys


def host_views(state: JobState) -> list[HostView]:
    """Return the hosts of a job, by address."""
    tasks: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for task in state.tasks.values():
        tasks[task.host] += 1
        sizes[task.host] += state_bytes(task)
    copies = Counter(one.host for held in state.standbys.values() for one in held)
    found = []
    for host, held in state.hosts.items():
        is_empty = not tasks[host] and not copies[host]
        status = _status(held, is_empty=is_empty)
        counts = held.slots, tasks[host], copies[host], sizes[host]
        found.append(HostView(host, held.address, status, *counts, held.everywhere))
    return sorted(found, key=lambda view: (view.address, view.host))


def _status(held: HostState, *, is_empty: bool) -> str:
    if held.drained:
        return "drained" if is_empty else "draining"
    return "up" if held.slots else "lost"


def pending_moves(state: JobState) -> int:
    """Return how many tasks are to leave hosts that are there, until all are in balance."""
    cores = {host: held.slots for host, held in sorted(state.hosts.items()) if held.slots}
    if not cores:
        return 0
    found = 0
    for stage, count in state.task_counts.items():
        names = [task_name(stage, number) for number in range(count)]
        home = {name: state.tasks.get(name, TaskState()).host for name in names}
        if any(home.values()):
            found += len(spread(names, cores, Known(home), away=away_hosts(state.hosts)).moves)
    return found


def happening_text(one: Happening, state: JobState) -> str:
    """Say in words what happened."""
    name = state.hosts.get(one.host, HostState()).named(one.host)
    match one.what:
        case What.DRIVER:
            return f"a driver began: {one.detail}"
        case What.ASKED:
            return f"slots were asked anew: {one.detail}"
        case What.LOST:
            return f"host {name} was lost: {one.detail}"
        case What.RETURNED:
            return f"host {name} came back"
        case What.JOINED:
            return f"host {name} is new"
        case What.DRAIN:
            return f"host {name} is to be drained {one.detail}".rstrip()
        case What.EMPTY:
            return f"host {name} is empty"
        case What.UNDRAIN:
            return f"host {name} is used again {one.detail}".rstrip()
        case What.RENEWED:
            return f"host {name} has new processes: {one.detail}"
