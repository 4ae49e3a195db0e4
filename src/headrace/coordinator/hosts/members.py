"""The hosts of a job, as its driver asks for them: the I/O around ``machines.membership``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.clock import Clock
from headrace.coordinator.hosts.placing import Around, Placing
from headrace.coordinator.hosts.record import (
    MISSED,
    STANDBYS_MISSED,
    Happening,
    Hosts,
    HostState,
    What,
)
from headrace.coordinator.hosts.seats import Seats
from headrace.coordinator.machines.membership import (
    Answered,
    AskAgain,
    Doubted,
    Membership,
    Place,
    count_slots,
)
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Affinity, PlacementRules, Slot
from headrace.coordinator.story import WAITING, Story

POLL_S = 0.25
LOOK_S = 0.5
"""How often an idle job looks whether a standby has caught up that a task waits for."""


class Asked(Protocol):
    """What can be asked for slots: a runner."""

    def slots(self) -> Sequence[Slot]:
        """Return the slots that answer now; each lets go of its stores."""
        ...


class Members:
    """The hosts of one part of a job.

    One thread calls.

    Args:
        rules: of placement.
        runner: of the slots.
        clock: for waiting.
        tell: called with a line when a host is lost, waited for, or back.
        story: of the job; it has who is waited for while that is so.
    """

    def __init__(
        self,
        rules: PlacementRules,
        runner: Asked,
        clock: Clock,
        tell: Callable[[str], None] = lambda line: None,
        *,
        story: Story | None = None,
    ) -> None:
        self._rules, self._runner, self._clock, self._story = rules, runner, clock, story
        self.tell = tell
        self._members = Membership(rules)
        self._happened: list[Happening] = []
        self._missed: Counter[str] = Counter()
        self.seats = Seats()
        self.is_unsettled = True
        self._looked_s = 0.0

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that tasks are placed over."""
        return self._members.slots

    def begin(self, generation: int) -> None:
        """Note that a driver has begun."""
        detail = f"generation {generation}, process {os.getpid()} on {os.uname().nodename}"
        self.note(What.DRIVER, "", detail)

    def find(self, state: JobState, reason: str = "", waited_s: float = 0.0) -> list[Slot]:
        """Ask the slots where they are, and wait for hosts that are missing, up to the bound.

        Args:
            state: after the last epoch.
            reason: why they are asked, if something went wrong.
            waited_s: how long what is missing has been waited for already.

        Returns:
            The slots to place tasks over.
        """
        if reason:
            self.note(What.ASKED, "", reason)
        homes = frozenset(task.host for task in state.tasks.values()) - {""}
        began = self._clock.monotonic() - waited_s
        self._members = self._members.after(Doubted(homes, began))
        said: tuple[str, ...] = ()
        gone: set[str] = set()
        is_first = not self.slots  # hosts that have not come yet were not lost
        while True:
            slots = tuple(self._runner.slots())
            self._members = self._members.after(Answered(slots, self._clock.monotonic()))
            action = self._members.action
            if isinstance(action, Place):
                break
            if isinstance(action, AskAgain):
                gone.update(() if is_first else action.hosts)
                if action.hosts != said:
                    said = action.hosts
                    self._say_waiting(state, action)
                self._clock.sleep(min(POLL_S, max(0.0, action.until_s - self._clock.monotonic())))
        self.seats.let_go()
        self._count_gone(state, gone.union(action.lost))
        self._tell_of(state, action)
        self.is_unsettled = True
        return list(slots)

    def _count_gone(self, state: JobState, gone: Collection[str]) -> None:
        """Count what was on hosts that were gone, for good or back in time."""
        standbys = (one.host for held in state.standbys.values() for one in held)
        self._missed[MISSED] += sum(task.host in gone for task in state.tasks.values())
        self._missed[STANDBYS_MISSED] += sum(host in gone for host in standbys)

    def _say_waiting(self, state: JobState, action: AskAgain) -> None:
        names = ", ".join(_name(state.hosts, host) for host in action.hosts)
        left = max(0.0, action.until_s - self._clock.monotonic())
        missing = f"host {names} is missing, or some of its slots"
        waits = f"its tasks wait for it for up to {left:.1f} s"
        self.tell(f"{missing}; {waits} (placement.wait_s)")
        if self._story is not None:
            self._story.observe(state, self.noted)
            self._story.tell(WAITING, f"{missing}: {waits}")

    def _tell_of(self, state: JobState, action: Place) -> None:
        addresses = {slot.host: slot.address for slot in action.slots}
        on = _tasks_of(state)
        for host in action.lost:
            name, count = _name(state.hosts, host), on.get(host, 0)
            waited = f"did not come back within {self._rules.wait_s:g} s"
            why = waited if self._rules.affinity is Affinity.STRICT else "is lost"
            tasks = "1 task goes elsewhere" if count == 1 else f"{count} tasks go elsewhere"
            self.note(What.LOST, host, tasks)
            self.tell(f"host {name} {why}: its {tasks}")
        for host, address in addresses.items():
            held = state.hosts.get(host)
            if held is None and state.hosts:
                self.note(What.JOINED, host)
            elif held is not None and not held.slots:
                self.note(What.RETURNED, host)
                limit = f"up to {self._rules.max_moves} an epoch (placement.max_moves)"
                gets = "it stays empty (drained)" if held.drained else f"it gets tasks, {limit}"
                self.tell(f"host {address or _name(state.hosts, host)} is back: {gets}")

    def note(self, what: What, host: str = "", detail: str = "") -> None:
        """Remember that something happened, until an epoch commits it."""
        self._happened.append(Happening(self._clock.now_ms(), what, host, detail))

    @property
    def noted(self) -> tuple[Happening, ...]:
        """What has happened that no epoch has committed yet."""
        return tuple(self._happened)

    def around(self, state: JobState) -> Around:
        """Return what the placing of the next epoch goes by."""
        changes, happened = self._changes(state), tuple(self._happened)
        return Around(self._rules, self.seats, changes, happened, dict(self._missed))

    def wants(self, placing: Placing) -> bool:
        """Say whether an epoch is to run for the sake of hosts alone."""
        if placing.is_settled:
            self.is_unsettled = False
            return False
        if not placing.only_waits:
            return True
        now = self._clock.monotonic()
        if now < self._looked_s + LOOK_S:
            return False
        self._looked_s = now
        return True

    def _changes(self, state: JobState) -> Hosts:
        """Return the hosts that are not as the manifest has them."""
        counts = count_slots(self._members.slots)
        addresses = {slot.host: slot.address for slot in self._members.slots}
        found: Hosts = {}
        for host, count in counts.items():
            held = state.hosts.get(host, HostState())
            address = addresses[host] or held.address
            now = msgspec.structs.replace(held, address=address, slots=count)
            if now != state.hosts.get(host):
                found[host] = now
        for host, held in state.hosts.items():
            if host not in counts and held.slots:
                found[host] = msgspec.structs.replace(held, slots=0)
        return found

    def committed(self, around: Around, state: JobState) -> None:
        """Note that an epoch was committed with what had happened by its begin."""
        del self._happened[: len(around.happened)]
        self._missed.subtract(around.missed)
        for one in state.story:
            if one.what == What.EMPTY and one.time_ms == state.time_ms:
                name = _name(state.hosts, one.host)
                self.tell(f"host {name} is drained: nothing is on it any more")


def _name(hosts: Mapping[str, HostState], host: str) -> str:
    return hosts.get(host, HostState()).named(host)


def _tasks_of(state: JobState) -> dict[str, int]:
    """Return how many tasks each host has."""
    found: dict[str, int] = {}
    for task in state.tasks.values():
        found[task.host] = found.get(task.host, 0) + 1
    return found
