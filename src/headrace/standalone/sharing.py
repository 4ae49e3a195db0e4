"""The life of a process that shares a job: it follows whoever drives, and drives when nobody does.

1. Look who drives. 2. Join that process, and run slots for it until it goes. 3. Where nobody
drives, try to; of several one succeeds, and the others find it when they look again. 4. A driver
that was frozen, and finds that another took over, follows that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from headrace.coordinator.backup.places import places
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.history import load_state
from headrace.coordinator.identity import host_identity
from headrace.coordinator.loop import Control
from headrace.coordinator.running.course import RunResult
from headrace.coordinator.running.dropping import DroppedError
from headrace.coordinator.running.members import read_members
from headrace.coordinator.storage import DriverLock
from headrace.coordinator.summary import EpochSummary
from headrace.errors import HeadraceError, NotOwnerError, UnavailableError
from headrace.files import Files
from headrace.standalone.driving import Driving
from headrace.standalone.election import Move
from headrace.standalone.engine import GroupEngine
from headrace.standalone.following import Following, Parted, hello_of
from headrace.standalone.frames import Welcome
from headrace.standalone.group import Group
from headrace.standalone.membership import Membership
from headrace.standalone.places import read_address
from headrace.standalone.reign import RENEWALS, Candidate, Keeper
from headrace.standalone.slots import LocalSlots

LOOK_S = 0.1
RETRY_S = 1.0
MOST_FAILURES = 10
"""So often, without an epoch between, may what a driver needs not answer."""


class Sharing:
    """One process of a shared job.

    Args:
        driving: of this process; its state directory is no other process's.
        local: the slots of this process.
        count: how many these are.
        on_role: called with whether this process drives, whenever that changes.
    """

    def __init__(
        self, driving: Driving, local: LocalSlots, count: int, on_role: Callable[[bool], None]
    ) -> None:
        self._driving, self._local, self._count, self._on_role = driving, local, count, on_role
        settings, name = driving.settings, driving.job.name
        self._storage = places(settings, name).storage
        self._lease_s = settings.standalone.lease_s
        self._host = host_identity(settings.state_dir, driving.clock, driving.files)
        fast = Files(sync=False)  # a lease is for those who live, and need not survive power cuts
        self._storage.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._candidate = Candidate(
            self._storage, name, self._host, self._lease_s, fast, driving.clock
        )
        self._epochs = self._rows = self._failures = 0

    def live(self) -> RunResult:
        """Share the job until it ends or this process is told to stop.

        Raises:
            NotOwnerError: a driver that takes nobody in has the job.
            HeadraceError: what the job failed with while this process drove it.
        """
        control = self._driving.control
        patience = self._driving.course(control).patience
        while not control.stop.is_set():
            looked = patience.until_room(self._look)
            if looked is None:
                break
            move, found = looked
            if move is Move.GIVE_UP:
                DriverLock(self._storage, self._driving.job.name, self._driving.clock).release()
            if found is not None:
                lock, frozen = found
                with lock:
                    result = self._drive(frozen)
                self._local.close()
                if result is not None:
                    return self._with_all(result)
                continue
            if move is Move.FOLLOW:
                parted = self._follow()
                if parted is Parted.ENDED:
                    break
            control.stop.wait(LOOK_S)
        return self._with_all(None)

    def _look(self) -> tuple[Move, tuple[DriverLock, str] | None]:
        """Say what is next; where it is to stand, do so: with what came of it."""
        move = self._candidate.look()
        return move, self._candidate.stand() if move is Move.STAND else None

    def _with_all(self, result: RunResult | None) -> RunResult:
        """Return how the run ended for this process, with all that it drove."""
        state = None if result is None else result.state
        if state is None:
            log = FileCommitLog(self._storage, self._driving.files, self._driving.clock)
            state = load_state(log)
        if state is None:
            raise DroppedError("told to stop before there was a job", job=self._driving.job.name)
        interrupted = self._driving.control.stop.is_set() and not state.ended
        return RunResult(state, self._epochs, self._rows, interrupted)

    def _follow(self) -> Parted:
        driving = self._driving
        address = read_address(self._storage)
        if address is None:
            return Parted.LOST

        def joined(welcome: Welcome) -> None:
            self._on_role(False)
            driving.listeners.notice(f"joined process {welcome.process}, which drives the job")

        hello = hello_of(driving.job.name, self._host, self._count)
        following = Following(hello, self._local, self._lease_s, driving.control.stop)
        parted = following.follow(address, joined)
        self._local.close()  # who drives next numbers slots anew
        if parted is Parted.LOST and not driving.control.stop.is_set():
            driving.listeners.notice("the process that drives the job has gone")
        return parted

    def _drive(self, frozen: str) -> RunResult | None:
        """Drive the job; ``None``: another process has taken over."""
        driving, clock = self._driving, self._driving.clock
        held = driving.control
        control = Control(finish=held.finish, paused=held.paused, merging=held.merging)
        group = self._group(frozen)
        engine = driving.engine(group, control)
        parts: list[Coordinator] = []
        keeper = Keeper(
            self._candidate.lease,
            self._storage,
            lambda: parts[0].generation if parts else 0,
            partial(_give_up, engine.fail, control),
            Files(sync=False),
            clock,
            self._lease_s / RENEWALS,
        )
        self._on_role(True)
        ended = False
        try:
            self._open(group)
            with _linked(driving.control, control):
                result = self._driven(engine, parts)
            self._epochs += result.epochs
            self._rows += result.rows
            ended = result.state.ended
        except NotOwnerError as error:
            driving.listeners.notice(f"{error.message}; this process goes on with its slots")
            return None
        except DroppedError:
            if driving.control.stop.is_set():
                raise
            return None
        except UnavailableError as error:  # such as a lock of the bus that a frozen process has
            self._failures += 1
            if self._failures >= MOST_FAILURES or driving.control.stop.is_set():
                raise
            driving.listeners.notice(f"{error}; the job is begun again in a moment")
            driving.control.stop.wait(RETRY_S)
            return None
        finally:
            keeper.close()
            group.close(ended=ended)
        return None if keeper.has_lost and not driving.control.stop.is_set() else result

    def _driven(self, engine: GroupEngine, parts: list[Coordinator]) -> RunResult:
        told = engine.course.listeners.on_start

        def started(part: Coordinator) -> None:
            parts.append(part)
            if told is not None:
                told(part)

        def epoch(summary: EpochSummary) -> None:
            self._failures = 0
            if tell is not None:
                tell(summary)

        tell = engine.course.listeners.on_epoch
        listeners = replace(engine.course.listeners, on_start=started, on_epoch=epoch)
        course = replace(engine.course, listeners=listeners)
        return self._driving.run(replace(engine, course=course), is_alone=False)

    def _group(self, frozen: str) -> Group:
        driving = self._driving
        membership = Membership(self._lease_s)
        group = Group(
            self._local, self._count, self._host, driving.job.name, membership, driving.clock
        )
        before = {one.host_id for one in read_members(self._storage)}
        group.expect(before - {frozen})
        return group

    def _open(self, group: Group) -> None:
        host, notice = self._driving.settings.standalone.host, self._driving.listeners.notice
        group.open(self._storage, host, Files(sync=False), notice)


def _give_up(fail: Callable[[HeadraceError], None], control: Control) -> None:
    fail(NotOwnerError("another process of the job has taken over"))
    control.stop.set()


@contextmanager
def _linked(outer: Control, inner: Control) -> Iterator[None]:
    """Let a wish that the whole process stops stop what it drives."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if outer.stop.wait(LOOK_S):
                inner.stop.set()
                return

    watcher = threading.Thread(target=watch, name="headrace-stop-link", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
