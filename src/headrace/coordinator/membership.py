"""Which hosts a job has: who is there, who is waited for, who has failed.

Slots are asked where they are whenever they may have changed. With strict affinity, as long as a
host is missing that tasks live on, or has fewer slots than it had, nothing is placed: it is
waited for, up to a bound, unless the others have read its state again before it can be back. Then,
and without strict affinity at once, tasks are placed over the slots that answered. A host that
comes back has returned; what it gets is up to ``placement``. ``Membership`` is the pure machine,
``ClusterMembers`` the I/O around it.

A host that hangs or is cut off closes no socket. So a slot that takes long sends heartbeats, and
``FailureDetector`` gives up one that does not; each mistake doubles the timeout.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import msgspec

from headrace.clock import Clock
from headrace.coordinator.epoch_placement import EpochPlacement, PlacementContext, StickyAssignment
from headrace.coordinator.host_state import (
    MISSED,
    STANDBYS_MISSED,
    ClusterEvent,
    EventKind,
    Hosts,
    HostState,
    drained_hosts,
)
from headrace.coordinator.job_events import WAITING, JobEventLog
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Affinity, PlacementRules, Slot
from headrace.errors import InternalError

RETURN_S = 5.0
"""What a lost executor takes at least to be back: its JVM, then its first Python process."""


class MissingHost(NamedTuple):
    """A host that is waited for: so many slots of it are left, and since when."""

    slots: int
    since_s: float


class HostWait(NamedTuple):
    """Hosts that are missing: slots are asked for again, until ``until_s`` at most."""

    hosts: tuple[str, ...]
    until_s: float


@dataclass(frozen=True)
class Membership:
    """The hosts of a job, as far as its driver knows.

    Args:
        rules: of placement.
        homes: hosts that tasks live on.
        slots: over which tasks are placed; none before the first answer.
        wanted: how many slots each host is to have before tasks are placed.
        suspected_s: since when slots may have changed, of the monotonic clock.
        missed: hosts that are waited for.
        given_up: hosts that were waited for, or not, in vain.
        restore_s: how long other hosts would need for what a host has, where that is known.
        waits: for whom and how long, before tasks are placed; nobody: they are placed now.
        lost: hosts that were given up with the last answer.
    """

    rules: PlacementRules
    homes: frozenset[str] = frozenset()
    slots: tuple[Slot, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)
    suspected_s: float = 0.0
    missed: Mapping[str, MissingHost] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    restore_s: Mapping[str, float] = field(default_factory=dict)
    waits: HostWait | None = None
    lost: tuple[str, ...] = ()

    def doubted(
        self, homes: frozenset[str], now_s: float, restore_s: Mapping[str, float] | None = None
    ) -> Membership:
        """Return the membership when slots may have changed, before they are asked.

        An epoch found one misplaced, or a driver begins.

        Args:
            homes: hosts that tasks live on by the manifest.
            now_s: since when those that are missing have been, of the monotonic clock.
            restore_s: how long other hosts would need to read again what a host has: it is not
                waited for longer.
        """
        wanted = dict.fromkeys(homes, 1) | count_slots(self.slots)
        begun = replace(self, homes=homes, wanted=wanted, suspected_s=now_s, missed={})
        return replace(begun, restore_s=restore_s or {}, waits=None, lost=())

    def answered(self, slots: tuple[Slot, ...], now_s: float) -> Membership:
        """Return the membership when these slots have answered; whom it waits for, if anybody."""
        there = count_slots(slots)
        missed = {
            host: self._missed(host, there.get(host, 0), now_s)
            for host, count in self.wanted.items()
            if there.get(host, 0) < count and host not in self.given_up
        }
        wait_s = self._wait_s(missed)
        until = {host: one.since_s + wait_s for host, one in missed.items()}
        if late := {host: at for host, at in until.items() if at > now_s}:
            waits = HostWait(tuple(sorted(late)), max(late.values()))
            return replace(self, missed=missed, waits=waits)
        known = {*self.homes, *count_slots(self.slots)}
        lost = sorted(known - set(there) - self.given_up)
        return replace(
            self,
            slots=slots,
            wanted=dict(there),
            missed={},
            given_up=(self.given_up | set(lost)) - set(there),
            waits=None,
            lost=tuple(lost),
        )

    def _missed(self, host: str, slots: int, now_s: float) -> MissingHost:
        held = self.missed.get(host)
        if held is None:
            return MissingHost(slots, now_s if self.missed else self.suspected_s)
        if slots < held.slots:
            return MissingHost(slots, now_s)
        return held._replace(slots=slots)  # what is back can go again

    def _wait_s(self, missed: Collection[str]) -> float:
        if self.rules.affinity is not Affinity.STRICT:
            return 0.0
        if not all(host in self.restore_s for host in missed):
            return self.rules.wait_s
        restore_s = sum(self.restore_s[host] for host in missed)
        return 0.0 if restore_s < RETURN_S else min(self.rules.wait_s, restore_s)

    def validate(self) -> None:
        """Make sure that a membership is one that can be.

        Raises:
            InternalError: it is not.
        """
        there = {slot.host for slot in self.slots}
        wrong = {
            "two slots of one number": len({s.number for s in self.slots}) != len(self.slots),
            "a host that is there and given up": bool(there & self.given_up),
            "a host that is waited for and given up": bool(set(self.missed) & self.given_up),
            "waits for nobody": self.waits is not None and not self.missed,
            "waits although it is not strict": self.waits and not self._wait_s(self.missed),
            "waits for nobody, but missed some": self.waits is None and bool(self.missed),
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise InternalError(f"the hosts of a job: {found[0]}: {self}")


def count_slots(slots: Collection[Slot]) -> dict[str, int]:
    """Return how many slots each host has."""
    return dict(Counter([slot.host for slot in slots]))


FIRST_TIMEOUT_S = 30.0
"""What a slot is given for its first answer: its process may have to start and load libraries."""

MAX_DOUBLINGS = 6


@dataclass(frozen=True)
class _LastHeartbeat:
    executor: str
    heartbeat: str | None
    at: float


@dataclass
class FailureDetector:
    """What the driver has heard of the slots of its executors.

    One thread calls. Times are monotonic seconds.

    Args:
        base_s: how long a slot may say nothing; doubled by each executor that proves to live.
    """

    base_s: float
    _doublings: int = 0
    _heard: dict[int, _LastHeartbeat] = field(default_factory=dict)
    _answered: set[tuple[int, str]] = field(default_factory=set)
    _aside: dict[str, int] = field(default_factory=dict)
    _looked: float | None = None

    @property
    def limit_s(self) -> float:
        """How long a slot that has answered before may say nothing now."""
        return float(self.base_s * 2**self._doublings)

    @property
    def every_s(self) -> float:
        """How often to look, and how often a slot that takes long says that it lives."""
        return self.limit_s / 6

    @property
    def aside(self) -> Collection[str]:
        """The executors that are given up for now."""
        return self._aside.keys()

    def begin(self, now: float) -> None:
        """Begin with a level: nothing has been heard in it."""
        self._heard.clear()
        self._looked = now

    def answered(self, executors: Mapping[int, str]) -> None:
        """Note the slots that have answered, by number, and the executors that they ran on."""
        self._answered.update(executors.items())

    def renewed(self, slots: Collection[int]) -> None:
        """Note that slots get new processes, which are given time to start."""
        self._answered = {one for one in self._answered if one[0] not in slots}

    def look(
        self, now: float, running: Mapping[int, str], heartbeats: Mapping[int, str], others: int
    ) -> dict[str, float]:
        """Return the executors that have been silent for too long, and for how long.

        Nobody is given up while no executor is left to go to. A look that comes late says that the
        driver itself was held up, and then nothing is known of the time since the last.

        Args:
            now: the time.
            running: by number, the executor of each slot that has not answered yet.
            heartbeats: what those have last said that have said anything; a new heartbeat differs.
            others: executors without a slot that runs.
        """
        looked = now if self._looked is None else self._looked
        is_late = now - looked > 3 * self.every_s
        self._looked = now
        silent: dict[str, float] = {}
        heard: dict[int, _LastHeartbeat] = {}
        for slot, executor in running.items():
            before = self._heard.get(slot)
            heartbeat = heartbeats.get(slot)
            if before is None or before.executor != executor:
                before = _LastHeartbeat(
                    executor, heartbeat, now if is_late or heartbeat else looked
                )
            elif heartbeat is not None and heartbeat != before.heartbeat:
                before = _LastHeartbeat(executor, heartbeat, now)
            elif is_late:
                before = _LastHeartbeat(executor, heartbeat, before.at + now - looked)
            heard[slot] = before
            is_known = heartbeat is not None or (slot, executor) in self._answered
            limit = self.limit_s if is_known else max(self.limit_s, FIRST_TIMEOUT_S)
            if now - before.at >= limit:
                silent[executor] = max(silent.get(executor, 0.0), now - before.at)
        self._heard = heard
        left = set(running.values()) - silent.keys()
        return silent if left or others else {}

    def give_up(self, ended: Mapping[str, int]) -> None:
        """Set executors aside, by how many tasks each had ended by then."""
        self._aside.update(ended)

    def review(self, ended: Mapping[str, int]) -> list[str]:
        """Take back what lives after all; returns those executors.

        Args:
            ended: how many tasks each executor has ended that Spark still has.
        """
        back = [name for name, then in self._aside.items() if ended.get(name, then) > then]
        self._aside = {
            name: then for name, then in self._aside.items() if name in ended and name not in back
        }
        if back:
            self._doublings = min(MAX_DOUBLINGS, self._doublings + 1)
        return back


POLL_S = 0.25
RESTORE_BYTES_S = 300e6
"""What the hosts of a job read of a lost one's state in a second, as docs/benchmarks.md has it."""

MEMBERS_LOOK_S = 0.5
"""How often an idle job looks whether a standby has caught up that a task waits for."""


class SlotSource(Protocol):
    """What can be asked for slots: a runner."""

    def slots(self) -> Sequence[Slot]:
        """Return the slots that answer now; each releases its stores."""
        ...


class ClusterMembers:
    """The hosts of one part of a job.

    One thread calls.

    Args:
        rules: of placement.
        runner: of the slots.
        clock: for waiting.
        notify: called with a line when a host is lost, waited for, or back.
        event_log: of the job; it has who is waited for while that is so.
    """

    def __init__(
        self,
        rules: PlacementRules,
        runner: SlotSource,
        clock: Clock,
        notify: Callable[[str], None] = lambda line: None,
        *,
        event_log: JobEventLog | None = None,
    ) -> None:
        self._rules, self._runner, self._clock, self._event_log = rules, runner, clock, event_log
        self.notify = notify
        self._members = Membership(rules)
        self.slots: tuple[Slot, ...] = ()
        """The slots that tasks are placed over."""
        self.noted: tuple[ClusterEvent, ...] = ()
        """What has happened that no epoch has committed yet."""
        self._missed: Counter[str] = Counter()
        self.sticky = StickyAssignment()
        self.needs_placement = True
        self._looked_s = 0.0
        self._compared: tuple[Hosts, tuple[Slot, ...]] | None = None
        self._changed: Hosts = {}
        self._away: frozenset[str] = frozenset()

    def begin(self, generation: int) -> None:
        """Note that a driver has begun."""
        detail = f"generation {generation}, process {os.getpid()} on {os.uname().nodename}"
        self.note(EventKind.DRIVER, "", detail)

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
            self.note(EventKind.ASKED, "", reason)
        homes = frozenset(task.host for task in state.tasks.values()) - {""}
        began = self._clock.monotonic() - waited_s
        is_first = not self.slots  # hosts that have not come yet were not lost
        restores = {} if is_first else _restore_s(state)
        self._members = self._members.doubted(homes, began, restores)
        said: tuple[str, ...] = ()
        gone: set[str] = set()
        while True:
            slots = tuple(self._runner.slots())
            self._members = self._members.answered(slots, self._clock.monotonic())
            waits = self._members.waits
            if waits is None:
                break
            gone.update(() if is_first else waits.hosts)
            if waits.hosts != said:
                said = waits.hosts
                self._say_waiting(state, waits)
            self._clock.sleep(min(POLL_S, max(0.0, waits.until_s - self._clock.monotonic())))
        self.slots = self._members.slots
        self.sticky.released()
        self._count_gone(state, gone.union(self._members.lost))
        self._note_events(state, self._members)
        self.needs_placement = True
        return list(slots)

    def _count_gone(self, state: JobState, gone: Collection[str]) -> None:
        """Count what was on hosts that were gone, whether or not they came back in time."""
        standbys = (one.host for held in state.standbys.values() for one in held)
        self._missed[MISSED] += sum(task.host in gone for task in state.tasks.values())
        self._missed[STANDBYS_MISSED] += sum(host in gone for host in standbys)

    def _say_waiting(self, state: JobState, wait: HostWait) -> None:
        names = ", ".join(_host_name(state.hosts, host) for host in wait.hosts)
        left = max(0.0, wait.until_s - self._clock.monotonic())
        missing = f"host {names} is missing, or some of its slots"
        waits = f"its tasks wait for it for up to {left:.1f} s"
        self.notify(f"{missing}; {waits} (placement.wait_s)")
        if self._event_log is not None:
            self._event_log.observe(state, self.noted)
            self._event_log.record(WAITING, f"{missing}: {waits}")

    def _note_events(self, state: JobState, members: Membership) -> None:
        addresses = {slot.host: slot.address for slot in members.slots}
        on = _tasks_of(state)
        for host in members.lost:
            name, count = _host_name(state.hosts, host), on.get(host, 0)
            waited = "did not come back in time"
            why = waited if self._rules.affinity is Affinity.STRICT else "is lost"
            tasks = "1 task goes elsewhere" if count == 1 else f"{count} tasks go elsewhere"
            self.note(EventKind.LOST, host, tasks)
            self.notify(f"host {name} {why}: its {tasks}")
        for host, address in addresses.items():
            held = state.hosts.get(host)
            if held is None and state.hosts:
                self.note(EventKind.JOINED, host)
            elif held is not None and not held.slots:
                self.note(EventKind.RETURNED, host)
                limit = f"up to {self._rules.max_moves} an epoch (placement.max_moves)"
                gets = "it stays empty (drained)" if held.drained else f"it gets tasks, {limit}"
                self.notify(f"host {address or _host_name(state.hosts, host)} is back: {gets}")

    def note(self, what: EventKind, host: str = "", detail: str = "") -> None:
        """Remember that something happened, until an epoch commits it."""
        self.noted = (*self.noted, ClusterEvent(self._clock.now_ms(), what, host, detail))

    def placement_context(self, state: JobState) -> PlacementContext:
        """Return what the placing of the next epoch goes by."""
        hosts, slots = self._compared or (None, None)
        if hosts is not state.hosts or slots is not self.slots:
            self._compared = state.hosts, self.slots
            self._changed, self._away = self._changes(state), drained_hosts(state.hosts)
        missed = dict(self._missed)
        return PlacementContext(
            self._rules, self.sticky, self._changed, self.noted, missed, self._away
        )

    def wants(self, placing: EpochPlacement) -> bool:
        """Say whether an epoch is to run for the sake of hosts alone."""
        if placing.is_settled:
            self.needs_placement = False
            return False
        if not placing.only_waits:
            return True
        now = self._clock.monotonic()
        if now < self._looked_s + MEMBERS_LOOK_S:
            return False
        self._looked_s = now
        return True

    def _changes(self, state: JobState) -> Hosts:
        """Return the hosts that are not as the manifest has them."""
        counts = count_slots(self.slots)
        addresses = {slot.host: slot.address for slot in self.slots}
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

    def committed(self, context: PlacementContext, state: JobState) -> None:
        """Note that an epoch was committed with what had happened by its begin."""
        self.noted = self.noted[len(context.happened) :]
        self._missed.subtract(context.missed)
        for one in state.host_events:
            if one.what == EventKind.EMPTY and one.time_ms == state.time_ms:
                name = _host_name(state.hosts, one.host)
                self.notify(f"host {name} is drained: nothing is on it any more")


def _restore_s(state: JobState) -> dict[str, float]:
    """Return about how long other hosts need to read again what each host has.

    So a job stands still at most twice as long as with the better of both choices.
    """
    held: Counter[str] = Counter()
    for name, task in state.tasks.items():
        others = state.standbys.get(name, ())
        has_standby = any(one.epoch >= 0 and one.host != task.host for one in others)
        held[task.host] += 0 if has_standby else task.file_bytes
    return {host: size / RESTORE_BYTES_S for host, size in held.items()}


def _host_name(hosts: Mapping[str, HostState], host: str) -> str:
    return hosts.get(host, HostState()).named(host)


def _tasks_of(state: JobState) -> dict[str, int]:
    """Return how many tasks each host has."""
    found: dict[str, int] = {}
    for task in state.tasks.values():
        found[task.host] = found.get(task.host, 0) + 1
    return found
