"""The life of a process that shares a job: it follows the driver, and drives when there is none.

1. Look who drives. 2. Join that process, and run slots for it until it goes. 3. Where nobody
drives, try to; of several one succeeds, and the others find it when they look again. 4. A driver
that was frozen, and finds that another took over, follows that one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial

from headrace.closeable import running_beside
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.driver_loop import DroppedError, JobControl, on_stop
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_run import JobRun, RunResult
from headrace.coordinator.job_storage import DriverLock
from headrace.coordinator.leader_lease import read_members
from headrace.coordinator.leadership import LeaseKeeper
from headrace.coordinator.worker_host import host_identity
from headrace.errors import InvalidInputError, NotOwnerError, UnavailableError
from headrace.files import Files
from headrace.runtime.orders import SlotReport
from headrace.standalone.election import RENEWALS, Candidate, ElectionStep
from headrace.standalone.engine import DriverContext, GroupEngine
from headrace.standalone.group import BEAT_S, DriverAddress, Membership, ProcessGroup, read_address
from headrace.standalone.slots import LocalSlots, SlotDiedError
from headrace.standalone.wire import (
    Alive,
    Connection,
    Do,
    Done,
    Hello,
    Leave,
    Message,
    Over,
    Refused,
    Welcome,
)

LEAVE_S = 8.0


class Disconnect(StrEnum):
    """How a process and its driver have parted."""

    LOST = "lost"
    """The driver says nothing any more, or could not be reached."""
    RELEASED = "released"
    """This process had asked to leave, or the driver stops."""
    ENDED = "ended"
    """The job has ended."""


class GroupMember:
    """Joins a driver and does what it orders, until they part.

    Args:
        hello: who this is.
        local: the slots of this process.
        silence_s: after so long without a heartbeat the driver is lost.
        stop: set when this process is to leave.
    """

    def __init__(
        self, hello: Hello, local: LocalSlots, silence_s: float, stop: threading.Event
    ) -> None:
        self._hello, self._local = hello, local
        self._silence_s, self._stop = silence_s, stop

    def follow(self, address: DriverAddress, on_joined: Callable[[Welcome], None]) -> Disconnect:
        """Join and serve; in the caller's thread.

        Raises:
            InvalidInputError: the driver has a reason not to take this process in.
        """
        wire = self._joined(address)
        if wire is None:
            return Disconnect.LOST
        beating = running_beside("headrace-alive", partial(self._beat, wire), 0)
        with closing(wire), beating:
            return self._serve(wire, on_joined)

    def _joined(self, address: DriverAddress) -> Connection | None:
        try:
            connection = socket.create_connection((address.host, address.port), self._silence_s)
        except OSError:
            return None
        wire = Connection(connection)
        if not wire.prove(address.token, is_driver=False, identity=address.identity):
            wire.close()
            return None
        wire.wait_at_most(self._silence_s)
        with suppress(OSError):
            wire.send(self._hello)
        return wire

    def _serve(self, wire: Connection, on_joined: Callable[[Welcome], None]) -> Disconnect:
        while (message := _next(wire)) is not None:
            if isinstance(message, Welcome):
                on_joined(message)
            elif isinstance(message, Refused):
                raise InvalidInputError(message.reason)
            elif isinstance(message, Do):
                future = self._local.ask(message.job, message.slot, message.order)
                future.add_done_callback(partial(_notify, wire, message.call))
            elif isinstance(message, Over):
                return Disconnect.ENDED if message.ended else Disconnect.RELEASED
        return Disconnect.RELEASED if self._stop.is_set() else Disconnect.LOST

    def _beat(self, wire: Connection, over: threading.Event) -> None:
        """Send heartbeats, and ask to leave once this process is to stop."""
        waited = 0.0
        while not over.wait(BEAT_S if waited or not self._stop.is_set() else 0):
            with suppress(OSError):
                if not self._stop.is_set():
                    wire.send(Alive())
                    continue
                if not waited:
                    wire.send(Leave())
            waited += BEAT_S
            if waited > LEAVE_S:
                wire.close()
                return


def _next(wire: Connection) -> Message | None:
    with suppress(UnavailableError):  # who says what is no message counts as gone
        return wire.receive()
    return None


def _notify(wire: Connection, call: int, future: Future[SlotReport]) -> None:
    error = future.exception()
    if error is None:
        done = Done(call, future.result())
    elif isinstance(error, SlotDiedError):
        done = Done(call, problem=str(error), died=True)
    else:
        done = Done(call, problem=f"{type(error).__name__}: {error}")
    with suppress(OSError):  # the driver finds that this process has gone
        wire.send(done)


def hello_message(job: str, host: str, slots: int) -> Hello:
    """Return what this process says of itself."""
    return Hello(job, host, os.uname().nodename, os.getpid(), slots)


CHECK_S = 0.1
RETRY_S = 1.0
MOST_FAILURES = 10
"""So often, without an epoch between, may what a driver needs not answer."""


class SharedJobProcess:
    """One process of a shared job.

    Args:
        driving: of this process; its state directory is no other process's.
        local: the slots of this process.
        count: how many these are.
        on_role: called with whether this process drives, whenever that changes.
    """

    def __init__(
        self, driving: DriverContext, local: LocalSlots, count: int, on_role: Callable[[bool], None]
    ) -> None:
        self._driving, self._local, self._count, self._on_role = driving, local, count, on_role
        context, settings = driving.context, driving.context.settings
        self._storage = context.storage
        self._lease_s = settings.standalone.lease_s
        self._host = host_identity(settings.state_dir, context.clock, context.files)
        fast = Files(sync=False)  # a lease is for those who live, and need not survive power cuts
        self._storage.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._candidate = Candidate(
            self._storage, context.job, self._host, self._lease_s, fast, context.clock
        )
        self._epochs = self._rows = self._failures = 0

    def live(self) -> RunResult:
        """Share the job until it ends or this process is asked to stop.

        Raises:
            NotOwnerError: a driver that takes nobody in has the job.
            HeadraceError: what the job failed with while this process drove it.
        """
        control, context = self._driving.control, self._driving.context
        retry = self._driving.job_run(control).retry
        while not control.stop.is_set():
            looked = retry.retry_while_blocked(self._look)
            if looked is None:
                break
            move, found = looked
            if move is ElectionStep.GIVE_UP:
                DriverLock(self._storage, context.job, context.clock).release()
            if found is not None:
                lock, frozen = found
                with lock:
                    result = self._drive(frozen)
                self._local.close()
                if result is not None:
                    return self._open_all(result)
                continue
            if move is ElectionStep.FOLLOW:
                parted = self._follow()
                if parted is Disconnect.ENDED:
                    break
            control.stop.wait(CHECK_S)
        return self._open_all(None)

    def _look(self) -> tuple[ElectionStep, tuple[DriverLock, str] | None]:
        """Say what is next; where it is to stand, do so: with what came of it."""
        move = self._candidate.look()
        return move, self._candidate.stand() if move is ElectionStep.STAND else None

    def _open_all(self, result: RunResult | None) -> RunResult:
        """Return how the run ended for this process, with all that it drove."""
        state = None if result is None else result.state
        if state is None:
            context = self._driving.context
            state = load_state(FileCommitLog(self._storage, context.files))
        if state is None:
            raise DroppedError("asked to stop before there was a job", job=self._driving.job.name)
        interrupted = self._driving.control.stop.is_set() and not state.ended
        return RunResult(state, self._epochs, self._rows, interrupted)

    def _follow(self) -> Disconnect:
        driving = self._driving
        address = read_address(self._storage)
        if address is None:
            return Disconnect.LOST

        def joined(welcome: Welcome) -> None:
            self._on_role(False)
            driving.listeners.notice(f"joined process {welcome.process}, which drives the job")

        hello = hello_message(driving.job.name, self._host, self._count)
        following = GroupMember(hello, self._local, self._lease_s, driving.control.stop)
        parted = following.follow(address, joined)
        self._local.close()  # who drives next numbers slots again
        if parted is Disconnect.LOST and not driving.control.stop.is_set():
            driving.listeners.notice("the process that drives the job has gone")
        return parted

    def _drive(self, frozen: str) -> RunResult | None:
        """Drive the job; ``None``: another process has taken over."""
        driving = self._driving
        held = driving.control
        control = JobControl(finish=held.finish, paused=held.paused, merging=held.merging)
        group = self._group(frozen)
        engine = GroupEngine(group)

        def give_up(lost: NotOwnerError) -> None:
            engine.fail(lost)
            control.stop.set()

        log = FileCommitLog(self._storage, Files(sync=False))
        every_s, lease = self._lease_s / RENEWALS, self._candidate.lease
        keeper = LeaseKeeper(lease, log, driving.job.name, give_up, every_s, yields=True)
        self._on_role(True)
        ended = False
        try:
            with keeper:
                self._open(group)
                with on_stop(driving.control, control.stop.set):
                    result = self._driven(driving.job_run(control), engine)
            self._epochs += result.epochs
            self._rows += result.rows
            ended = result.state.ended
        except NotOwnerError as error:
            driving.listeners.notice(f"{error.message}; this process continues with its slots")
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
            group.close(ended=ended)
        return None if keeper.lost is not None and not driving.control.stop.is_set() else result

    def _driven(self, job_run: JobRun, engine: GroupEngine) -> RunResult:
        def epoch(summary: EpochSummary) -> None:
            self._failures = 0
            if notify is not None:
                notify(summary)

        notify = job_run.listeners.on_epoch
        listeners = replace(job_run.listeners, on_epoch=epoch)
        return self._driving.run(replace(job_run, listeners=listeners), engine, is_alone=False)

    def _group(self, frozen: str) -> ProcessGroup:
        context = self._driving.context
        membership = Membership(self._lease_s)
        group = ProcessGroup(
            self._local, self._count, self._host, context.job, membership, context.clock
        )
        before = {one.host_id for one in read_members(self._storage)}
        group.expect(before - {frozen})
        return group

    def _open(self, group: ProcessGroup) -> None:
        settings, notice = self._driving.context.settings, self._driving.listeners.notice
        group.open(self._storage, settings.standalone.host, Files(sync=False), notice)
