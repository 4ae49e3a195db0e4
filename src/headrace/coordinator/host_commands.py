"""What a driver does with hosts between two epochs: drains, restarts, revoked tasks.

Between two epochs no attempt runs, so a process can end there and nothing is lost but what it
held in memory. The stores of its tasks stay on the disk of its host: its successor opens them in
the epoch after, which runs all tasks. Only then is the next host restarted. Before an epoch,
slots have tasks revoked that others are about to open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.coordinator.commands import Drain, Request, Restart, RestartAnswer
from headrace.coordinator.drain import CordonedHosts, commit_cordons, commit_drain, find_host
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.host_state import EventKind, HostState, merge_hosts
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.coordinator.membership import ClusterMembers
from headrace.coordinator.placement import Slot
from headrace.errors import InternalError
from headrace.faults import fault
from headrace.runtime.orders import SlotOrder


def revoke_moved_tasks(run: EpochRun, runner: Runner) -> None:
    """Have slots release the tasks that move; run before the first level of an epoch.

    Raises:
        HeadraceError: a slot did not answer; nothing of the epoch counts.
    """
    leaving = run.placing.leaving()
    if leaving:
        there = {slot.number for slot in run.slots}
        wanted = {slot: names for slot, names in leaving.items() if slot in there}
        if wanted:
            runner.run(_revocations(run, wanted))
            fault("placement.let_go")
    run.placing.assigned(leaving)


def _revocations(run: EpochRun, wanted: Mapping[int, Collection[str]]) -> list[SlotOrder]:
    return [
        SlotOrder(
            job=run.state.job,
            lineage=run.state.lineage,
            generation=run.generation,
            epoch=run.epoch,
            level=0,
            slot=slot,
            time_ms=run.time_ms,
            plan=run.plan_digest,
            leaves=[_split(name) for name in sorted(set(names))],
        )
        for slot, names in sorted(wanted.items())
    ]


def _split(name: str) -> tuple[str, int]:
    stage, _, task = name.rpartition("/")
    return stage, int(task)


def process_restarts(
    slots: Sequence[int], job: str, lineage: str, generation: int, epoch: int, plan: str
) -> list[SlotOrder]:
    """Return orders that have the processes of slots release everything, and end."""
    return [
        SlotOrder(job, lineage, generation, epoch, 0, slot, 0, plan, renew=True) for slot in slots
    ]


@dataclass(frozen=True)
class RollingRestart:
    """The steps of a restart.

    Args:
        left: hosts that are to be renewed yet, in order.
        is_rolling: one after the other.
        renewed: hosts whose processes have ended.
        cold: hosts whose new processes have not run yet.
    """

    left: tuple[str, ...]
    is_rolling: bool
    renewed: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()

    @property
    def next_hosts(self) -> tuple[str, ...]:
        """Hosts whose processes are to end now; none while new ones have not run."""
        if self.cold:
            return ()
        return self.left[:1] if self.is_rolling else self.left

    @property
    def is_over(self) -> bool:
        """Say whether all hosts are renewed."""
        return not self.left and not self.cold

    def after_restart(self) -> RollingRestart:
        """Return the restart after the processes of the next hosts have ended."""
        hosts = self.next_hosts
        if not hosts:
            raise InternalError(f"nothing was to be renewed: {self}")
        left = self.left[len(hosts) :]
        return replace(self, left=left, renewed=(*self.renewed, *hosts), cold=hosts)

    def after_epoch(self) -> RollingRestart:
        """Return the restart after an epoch of all tasks."""
        return replace(self, cold=())

    def without(self, hosts: Collection[str]) -> RollingRestart:
        """Return the restart when hosts are lost: they have no processes to renew."""
        left = tuple(host for host in self.left if host not in hosts)
        return replace(self, left=left, cold=tuple(h for h in self.cold if h not in hosts))

    def validate(self) -> None:
        """Make sure that a restart is one that can be.

        Raises:
            InternalError: it is not.
        """
        if self.is_rolling and len(self.cold) > 1:
            raise InternalError(f"more than one host is away: {self}")
        if set(self.left) & set(self.renewed) or not set(self.cold) <= set(self.renewed):
            raise InternalError(f"a host is renewed and is not: {self}")


class CommandedDriver(Protocol):
    """What a command for hosts asks of the driver that serves it."""

    plan_digest: str
    """Names the plan to the slots."""

    def publish(self) -> int:
        """Publish what the last manifest names, unless that was done; returns the rows."""
        ...

    def locate_slots(self, error: MisplacedError | None = None) -> None:
        """Ask all slots where they are; they close their stores."""
        ...


CORDON_LOOK_S, CORDON_LOOK_REMOTE_S = 1.0, 5.0
"""How often a driver looks which hosts are to be empty of all jobs; the other is by a list."""


class HostCommands:
    """Does what is asked, between two epochs of one driver; its thread calls.

    Args:
        driver: publishes and locates.
        writer: of the driver.
        members: the hosts of the job.
        runner: of the slots.
    """

    def __init__(
        self,
        driver: CommandedDriver,
        *,
        writer: FencedManifestWriter,
        members: ClusterMembers,
        runner: Runner,
    ) -> None:
        self._driver = driver
        self._writer, self._members, self._runner = writer, members, runner
        self._looked_s = float("-inf")
        self._looked_for: tuple[Slot, ...] = ()
        self._asked = ""
        self._restart: RollingRestart | None = None

    def follow(self, cordons: CordonedHosts, *, now: bool = False) -> None:
        """Take over which hosts are to be empty of all jobs, looking now and then, or ``now``."""
        slots, at = self._members.slots, self._writer.clock.monotonic()
        every_s = CORDON_LOOK_REMOTE_S if cordons.is_remote else CORDON_LOOK_S
        is_known = slots == self._looked_for and at < self._looked_s + every_s
        if self._writer.state.ended or (is_known and not now):
            return
        self._looked_for, self._looked_s = slots, at
        try:
            noted = cordons.read()
        except OSError:  # marks stay as they are; no job ends for that
            return
        if commit_cordons(self._writer, noted, self._driver.publish, self._hosts):
            self._members.needs_placement = True

    def drain(self, command: Drain, cordons: CordonedHosts) -> str:
        """Mark a host, or take its mark away; returns its identity.

        Args:
            command: which host. If it is for all jobs, the process that asked has noted that.
            cordons: hosts of which that is noted.

        Raises:
            InvalidInputError: no such host, or nothing could run without it.
        """
        if command.everywhere:
            self.follow(cordons, now=True)
            return find_host(self._hosts(self._writer.state), command.named)
        host = commit_drain(
            self._writer, command.named, self._driver.publish, self._hosts, undo=command.undo
        )
        self._members.needs_placement = True
        return host

    def _hosts(self, state: JobState) -> Mapping[str, HostState]:
        return merge_hosts(state.hosts, self._members.placement_context(state).changes)

    @property
    def wants_all(self) -> bool:
        """Say whether all tasks are to run in the next epoch, for some processes are new."""
        return self._restart is not None and bool(self._restart.cold)

    def restart(
        self, request: Request[RestartAnswer] | None, *, is_paused: bool = False
    ) -> RestartAnswer | None:
        """Continue with a restart that is asked for; the answer once it is over.

        Args:
            request: that is there; ``None``: it was taken back, and what is done stays done. The
                epoch that the last new processes wait for is still run, before another request is.
            is_paused: no epoch follows, so none is to be held up, either.
        """
        if self._restart is None and request is None:
            return None
        hosts = tuple(self._slots_of())
        if self._restart is not None:
            if is_paused:
                self._restart = self._restart.after_epoch()
            self._restart = self._restart.without(set(self._restart.left) - set(hosts))
            if request is None or self._asked != request.id:
                self._restart = self._restart.without(self._restart.left)
                if self._restart.cold:
                    return None
                self._restart = None
        if request is None:
            return None
        if self._restart is None:
            assert isinstance(request.command, Restart)
            self._asked = request.id
            self._restart = RollingRestart(hosts, request.command.rolling)
        if self._restart.is_over:
            answer = RestartAnswer(self._writer.state.epoch, list(self._restart.renewed))
            self._restart = None
            return answer
        self._renew(self._restart)
        return None

    def _renew(self, restart: RollingRestart) -> None:
        hosts = restart.next_hosts
        if not hosts:
            return  # new processes are to run first
        state, by_host = self._writer.state, self._slots_of()
        slots = sorted(number for host in hosts for number in by_host[host])
        orders = process_restarts(
            slots,
            state.job,
            state.lineage,
            self._writer.generation,
            state.epoch + 1,
            self._driver.plan_digest,
        )
        try:
            reports = self._runner.run(orders)
        except MisplacedError as error:
            self._driver.locate_slots(error)  # the host is tried again, if it is still there
            return
        self._restart = restart.after_restart()
        for host in hosts:
            count = sum(report.host == host for report in reports)
            self._members.note(EventKind.RENEWED, host, f"{count} processes")

    def _slots_of(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for slot in sorted(self._members.slots, key=lambda slot: (slot.host, slot.number)):
            found.setdefault(slot.host, []).append(slot.number)
        return found

    def committed(self, run: EpochRun) -> None:
        """Note that an epoch was committed."""
        if self._restart is not None and run.all_tasks:
            self._restart = self._restart.after_epoch()
