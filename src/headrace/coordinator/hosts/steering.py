"""What others may ask of the hosts of a running job: that one be empty, that processes be new."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.clock import Clock
from headrace.coordinator.changes.requests import (
    DrainAnswer,
    DrainRequest,
    RestartAnswer,
    RestartRequest,
)
from headrace.coordinator.epoch import EpochRun, MisplacedError, Runner
from headrace.coordinator.hosts.draining import commit_drain, commit_everywhere, find_host
from headrace.coordinator.hosts.everywhere import DrainedHosts
from headrace.coordinator.hosts.letting_go import renewals
from headrace.coordinator.hosts.members import Members
from headrace.coordinator.hosts.record import HostState, What, folded
from headrace.coordinator.machines.restart import Over, Renew, Restart
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import Slot
from headrace.coordinator.reign import Reign
from headrace.errors import InvalidInputError

LOOK_S = 1.0
"""How often a driver looks which hosts are to be empty of all jobs."""


class Steering:
    """Does what is asked, between two epochs of one driver; its thread calls.

    Args:
        reign: of the driver.
        members: the hosts of the job.
        runner: of the slots.
        clock: for when it was.
        publish: brings out the outputs of the last epoch, unless that was done.
        ask: asks the slots where they are, for they were found misplaced.
        plan: the name by which slots know the plan.
    """

    def __init__(
        self,
        *,
        reign: Reign,
        members: Members,
        runner: Runner,
        clock: Clock,
        publish: Callable[[], object],
        ask: Callable[[MisplacedError], None],
        plan: Callable[[], str],
    ) -> None:
        self._reign, self._members, self._runner, self._clock = reign, members, runner, clock
        self._publish, self._ask, self._plan = publish, ask, plan
        self._looked_s = -LOOK_S
        self._looked_for: tuple[Slot, ...] = ()
        self._asked = ""
        self._restart: Restart | None = None

    def follow(self, everywhere: DrainedHosts, *, now: bool = False) -> None:
        """Take over which hosts are to be empty of all jobs, looking now and then, or ``now``."""
        slots, at = self._members.slots, self._clock.monotonic()
        is_known = slots == self._looked_for and at < self._looked_s + LOOK_S
        if self._reign.state.ended or (is_known and not now):
            return
        self._looked_for, self._looked_s = slots, at
        try:
            noted = everywhere.read()
        except OSError:  # marks stay as they are; no job ends for that
            return
        given = self._reign, noted, self._clock, self._publish, self._hosts
        if commit_everywhere(*given):
            self._members.is_unsettled = True

    def drain(self, request: DrainRequest, everywhere: DrainedHosts) -> DrainAnswer:
        """Mark a host, or take its mark away; tasks move in the epochs to come.

        Args:
            request: which host. If it is for all jobs, whoever asks has noted that.
            everywhere: hosts of which that is noted.
        """
        try:
            if request.everywhere:
                self.follow(everywhere, now=True)
                host = find_host(self._hosts(self._reign.state), request.named)
                return DrainAnswer(self._reign.state.epoch, host)
            host = commit_drain(
                self._reign,
                request.named,
                self._clock,
                self._publish,
                self._hosts,
                undo=request.undo,
            )
        except InvalidInputError as error:
            return DrainAnswer(self._reign.state.epoch, error=error.message)
        self._members.is_unsettled = True
        return DrainAnswer(self._reign.state.epoch, host)

    def _hosts(self, state: JobState) -> Mapping[str, HostState]:
        return folded(state.hosts, self._members.around(state).changes)

    @property
    def wants_all(self) -> bool:
        """Say whether all tasks are to run in the next epoch, for some processes are new."""
        return self._restart is not None and bool(self._restart.cold)

    def restart(
        self, request: RestartRequest | None, *, is_paused: bool = False
    ) -> RestartAnswer | None:
        """Go on with a restart that is asked for; the answer once it is over.

        Args:
            request: that is there; ``None``: it was taken back, and what is done stays done.
            is_paused: no epoch follows, so none is to be held up, either.
        """
        if request is None:
            self._restart = None
            return None
        if self._restart is None or self._asked != request.id:
            hosts = tuple(self._slots_of())
            self._asked, self._restart = request.id, Restart(hosts, request.rolling)
        if is_paused:
            self._restart = self._restart.after_epoch()
        self._restart = self._restart.without(set(self._restart.left) - set(self._slots_of()))
        match self._restart.action:
            case Renew(hosts):
                self._renew(hosts)
            case Over():
                answer = RestartAnswer(self._reign.state.epoch, list(self._restart.renewed))
                self._restart = None
                return answer
        return None

    def _renew(self, hosts: tuple[str, ...]) -> None:
        assert self._restart is not None
        state, by_host = self._reign.state, self._slots_of()
        slots = sorted(number for host in hosts for number in by_host[host])
        orders = renewals(
            slots,
            state.job,
            state.lineage,
            self._reign.generation,
            state.epoch + 1,
            self._plan(),
        )
        try:
            reports = self._runner.run(orders)
        except MisplacedError as error:
            self._ask(error)  # the host is tried again, if it is still there
            return
        self._restart = self._restart.after_renewal()
        for host in hosts:
            count = sum(report.host == host for report in reports)
            self._members.note(What.RENEWED, host, f"{count} processes")

    def _slots_of(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for slot in sorted(self._members.slots, key=lambda slot: (slot.host, slot.number)):
            found.setdefault(slot.host, []).append(slot.number)
        return found

    def committed(self, run: EpochRun) -> None:
        """Note that an epoch was committed."""
        if self._restart is not None and run.all_tasks:
            self._restart = self._restart.after_epoch()
