"""A job that commands are given to, however its driver is reached, or without one.

``JobHandle.ask`` runs a command of ``coordinator.commands`` between two epochs of each part that
it concerns. In the driver's process that is by queues (``DriverHandle``). Another process asks the
driver's API, or leaves request files where none answers (``RunningHandle``). Where no driver runs,
the command runs under the job's lock and a generation (``StoppedHandle``). A ``ControlCommand``
is done at once, by the driver's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.clock import Clock, Deadline
from headrace.config import Settings
from headrace.control.client import Client, SilentError, reachable
from headrace.control.job_status import JobStatus
from headrace.control.live_job import LiveJob
from headrace.coordinator.commands import (
    Command,
    CutAnswer,
    Drain,
    Request,
    RequestChannel,
    Restart,
    RestartAnswer,
)
from headrace.coordinator.drain import commit_drain
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.job_parts import JobGeneration
from headrace.coordinator.job_storage import DriverLock, JobContext
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import (
    FencedManifestWriter,
    fenced_writer,
    generation_of,
)
from headrace.coordinator.operations.savepoint_format import Savepoint
from headrace.coordinator.operations.savepoint_writer import save_job
from headrace.coordinator.rescale import commit_rescale
from headrace.errors import InvalidInputError, NotOwnerError, UnavailableError
from headrace.files import Files

COMMANDS_PATH = "/v1/commands"
MAX_WAIT_S = 86_400.0
ANSWER_S = 5.0
"""For an answer of the API on its way."""

NOBODY_MERGES = "nobody merges into job"
"""What a driver answers by its API that sees nobody who has the lock of merges."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Done:
    """The status that a job has since."""

    status: str


@dataclass(frozen=True)
class StopDone:
    """The status that a job has since it was asked to stop, and the one before."""

    status: str
    was: str = ""


@dataclass(frozen=True)
class ClockDone:
    """How far the clock was ahead so far, below 0 behind; 0: it was believed."""

    was_off_ms: int


@dataclass(frozen=True)
class ControlCommand(Generic[_Answer]):
    """Something that a driver's process does at once.

    Args:
        path: its route, which what ``run`` says of itself describes.
        answer: the type of its answer.
        run: does it; raises ``InvalidInputError`` if it cannot be done.
    """

    path: str
    answer: type[_Answer]
    run: Callable[[LiveJob], _Answer]

    def ask(self, client: Client) -> _Answer:
        """Have a driver of another process do it; raises as ``Client.get_as`` does."""
        return client.post_as(self.path, self.answer)


def _pause(live: LiveJob) -> Done:
    """Commit the epoch under way, and begin none until it is resumed."""
    live.control.paused.set()
    return Done(live.phase)


def _hold(live: LiveJob) -> Done:
    """Begin no epoch while a process merges into the job, whose lock says when it is over."""
    if not live.hold():
        raise InvalidInputError(f"{NOBODY_MERGES} {live.job!r}; see headrace jobs merge")
    return Done(live.phase)


def _resume(live: LiveJob) -> Done:
    """Continue after a pause."""
    live.control.paused.clear()
    return Done(live.phase)


def _accept_clock(live: LiveJob) -> ClockDone:
    """Believe the clock of the driver's host as it is, which had jumped."""
    doubt = live.accept_clock()
    return ClockDone(0 if doubt is None else doubt.off_ms)


def _stop(live: LiveJob) -> StopDone:
    """End the epoch under way, and the driver; nothing is lost."""
    was = live.phase
    live.control.stop.set()
    return StopDone(live.phase, was)


def _finish(live: LiveJob) -> Done:
    """Read the inputs to their current ends, close all windows, and end."""
    live.control.paused.clear()
    live.control.finish.set()
    return Done(live.phase)


PAUSE = ControlCommand("/v1/pause", Done, _pause)
HOLD = ControlCommand("/v1/hold", Done, _hold)
RESUME = ControlCommand("/v1/resume", Done, _resume)
ACCEPT_CLOCK = ControlCommand("/v1/accept-clock", ClockDone, _accept_clock)
STOP = ControlCommand("/v1/stop", StopDone, _stop)
FINISH = ControlCommand("/v1/finish", Done, _finish)
CONTROLS: tuple[ControlCommand[Any], ...] = (PAUSE, HOLD, RESUME, ACCEPT_CLOCK, STOP, FINISH)


class JobHandle(ABC):
    """A job that commands are given to."""

    @abstractmethod
    def states(self) -> Mapping[Path, JobState]:
        """Return the state of each part, by storage."""

    @abstractmethod
    def ask_part(self, root: Path, command: Command[_Answer], wait_s: float) -> _Answer:
        """Have a command run on the part with this storage.

        Raises:
            UnavailableError: the driver does not answer.
        """

    def ask(self, command: Command[_Answer], wait_s: float) -> dict[Path, _Answer]:
        """Have a command run on each part that it concerns, one after the other.

        Args:
            command: what is to be done.
            wait_s: for the answer of each part; what is not done by then is taken back.

        Returns:
            The answers, by storage of the part.

        Raises:
            InvalidInputError: it cannot be done; no part was asked, or one refused.
            UnavailableError: the job has not begun, or its driver does not answer.
        """
        return {
            root: command.accept(self.ask_part(root, command, wait_s))
            for root in command.concerns(self.states())
        }

    def drain(self, command: Drain, wait_s: float) -> str:
        """Empty a host, or use it again; returns its identity; errors as of ``ask``."""
        return list(self.ask(command, wait_s).values())[-1].host

    def restart(self, command: Restart, wait_s: float) -> list[str]:
        """Replace processes; returns the hosts that got some; errors as of ``ask``."""
        answers = self.ask(command, wait_s).values()
        return sorted({host for one in answers for host in one.hosts})


@dataclass(frozen=True)
class DriverHandle(JobHandle):
    """The job that this process drives; from any other thread than its driver's.

    Args:
        storage: of the first part; those of the others are beside it.
        live: the job of the driver.
        files: the file system.
    """

    storage: Path
    live: LiveJob
    files: Files

    def states(self) -> Mapping[Path, JobState]:
        """Return the states after the last epochs."""
        return {self.storage.with_name(state.job): state for state in self.live.states}

    def ask_part(self, root: Path, command: Command[_Answer], wait_s: float) -> _Answer:
        """Hand it to the loop of the part's driver."""
        return self.live.commands(root.name).ask(command, wait_s)

    def status(self) -> JobStatus:
        """Return the status of the job.

        Raises:
            UnavailableError: it has not begun yet.
        """
        return self.live.status()

    def do(self, command: ControlCommand[_Answer]) -> _Answer:
        """Do it at once; raises as the command does."""
        answer = command.run(self.live)
        self.live.wake()
        return answer

    def save(self, name: str | None, wait_s: float) -> tuple[Path, Savepoint]:
        """Make a savepoint of the job with its own, between two epochs of each part.

        Args:
            name: of the savepoint; made of the time when left out.
            wait_s: for each part.

        Raises:
            InvalidInputError: the name is taken, or nothing could continue from the job.
            UnavailableError: the job has not begun, or its driver does not answer.
        """
        live = self.live
        context = JobContext(live.settings, live.job, live.bus, self.files, live.clock)
        return save_job(context, self.ask_part, name, wait_s)


@dataclass(frozen=True)
class RunningHandle(JobHandle):
    """A job that another process drives; see ``running_job``.

    Args:
        settings: where the job is.
        job: its name.
        parts: states of its parts, by storage.
        files: the file system.
        clock: for names and waiting.
    """

    settings: Settings
    job: str
    parts: Mapping[Path, JobState]
    files: Files
    clock: Clock

    def states(self) -> Mapping[Path, JobState]:
        """Return the states as they were found."""
        return self.parts

    def ask_part(self, root: Path, command: Command[_Answer], wait_s: float) -> _Answer:
        """Ask the driver by its API; without an answer leave a request file."""
        wait_s = min(wait_s, MAX_WAIT_S)
        deadline = Deadline(self.clock, wait_s)
        client = reachable(self.settings, self.job, wait_s + ANSWER_S)
        if client is not None:
            fields = msgspec.structs.asdict(command)
            path = f"{COMMANDS_PATH}/{command.kind}"
            try:
                answer: _Answer = client.post_as(
                    path, command.answer, part=root.name, command=fields, wait_s=wait_s
                )
            except SilentError:
                raise
            except UnavailableError:  # it starts, or ends: the request waits for who drives next
                if deadline.expired:
                    raise
            else:
                return answer
        channel = RequestChannel(root, self.files, self.clock, type(command))
        return channel.ask(command, deadline.remaining())


@dataclass(frozen=True)
class StoppedHandle(JobHandle):
    """A job without a driver, whose ``DriverLock`` the caller holds; see ``stopped_job``.

    Args:
        context: of the job.
        parts: states of its parts, by storage, the first part's first.
        generation: under which all parts are opened.
    """

    context: JobContext
    parts: Mapping[Path, JobState]
    generation: JobGeneration

    def states(self) -> Mapping[Path, JobState]:
        """Return the states as they were found."""
        return self.parts

    def ask_part(self, root: Path, command: Command[_Answer], wait_s: float) -> _Answer:
        """Open the part under the handle's generation, and run the command."""
        del wait_s
        with fenced_writer(self.context, root, self.generation) as (writer, publish):
            part = StoppedPart(self.context, root, writer, publish)
            answer = command.run(part, Request.of(command, self.context.clock))
            assert answer is not None  # all can be done at once where no epoch follows
            return answer


@contextmanager
def open_job(context: JobContext, parts: Mapping[Path, JobState]) -> Iterator[JobHandle]:
    """Yield the handle of a job: of its driver if one runs on this host, else under its lock.

    Arguments as of ``StoppedHandle``.
    """
    try:
        lock = DriverLock(next(iter(parts)), context.job, context.clock)
    except NotOwnerError:
        yield RunningHandle(context.settings, context.job, parts, context.files, context.clock)
        return
    with lock:
        yield stopped_job(context, parts)


def stopped_job(context: JobContext, parts: Mapping[Path, JobState]) -> StoppedHandle:
    """Return the handle of a job without a driver; arguments as of ``StoppedHandle``."""
    return StoppedHandle(context, parts, generation_of(context, next(iter(parts))))


@dataclass(frozen=True)
class StoppedPart:
    """A part that no driver runs, opened under a generation; an ``OpenPart``.

    Args:
        context: of the job.
        root: the part's storage.
        writer: that has begun.
        publish: brings out the outputs of the last epoch, unless that was done.
    """

    context: JobContext
    root: Path
    writer: FencedManifestWriter
    publish: Callable[[], None]
    is_paused: ClassVar[bool] = True

    @property
    def state(self) -> JobState:
        """The part's state after its last epoch."""
        return self.writer.state

    def rescale(self, tasks: int, stage: str | None) -> JobState:
        """Give it another number of tasks."""
        commit_rescale(self.writer, tasks, stage, self.publish)
        return self.writer.state

    def drain(self, command: Drain) -> str:
        """Mark a host, or take the mark away."""
        return commit_drain(self.writer, command.named, self.publish, undo=command.undo)

    def cut(self) -> CutAnswer:
        """Publish all outputs of the last epoch, and return where they end."""
        state, context = self.writer.state, self.context
        reader = JobReader(self.root, state.job, context.files)
        if reader.is_half(state.epoch):
            raise InvalidInputError(
                f"the last epoch of job {state.job!r}, {state.epoch}, is the first half of a "
                "commit, in which state and offsets do not belong together; start the job, which "
                "continues from it, and try again",
                job=state.job,
            )
        self.publish()
        sends = reader.catalog(state).sends
        return CutAnswer(state.epoch, {name: context.bus.stream(name).ends() for name in sends})

    def restart(self, request: Request[RestartAnswer] | None) -> RestartAnswer | None:
        """Refuse: there is no process."""
        del request
        raise InvalidInputError(f"job {self.state.job!r} does not run", job=self.state.job)
