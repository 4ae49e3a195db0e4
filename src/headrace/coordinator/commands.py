"""Commands that a driver runs between two epochs, and how they reach it.

A command is frozen data with an answer of its own type: it says which parts of a job it concerns
and what it does to one of them. A new command is a class here and its line in ``COMMANDS``.

In the driver's process a command goes through a ``CommandQueue``, which wakes the driver's loop.
Another process leaves a request file, one of a kind at a time (``RequestChannel``). 1. It
publishes ``requests/KIND.json``. 2. The driver finds that between two epochs, runs the command,
writes the answer beside it under the request's id, and removes the request. 3. The process that
asked takes the answer away. A driver that dies in between is followed by one that finds the
request again, and a job that is already as asked is left as it is.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from headrace.clock import Clock, Deadline
from headrace.coordinator.drain import parts_with_host
from headrace.coordinator.job_parts import group_state
from headrace.coordinator.manifest import JobState
from headrace.coordinator.rescale import affects, wanted_counts
from headrace.errors import InvalidInputError, UnavailableError
from headrace.faults import fault
from headrace.files import Files
from headrace.remote import is_remote

REQUESTS_FOLDER = "requests"
POLL_S = 0.05
_ANSWERS = "answer-"

_Answer = TypeVar("_Answer")


class OpenPart(Protocol):
    """A part of a job between two epochs: in its driver, or opened where no driver runs."""

    @property
    def state(self) -> JobState:
        """The part's state after its last epoch."""
        ...

    @property
    def is_paused(self) -> bool:
        """Say whether no epoch follows for now."""
        ...

    def rescale(self, tasks: int, stage: str | None) -> JobState:
        """Give it another number of tasks; see ``commit_rescale``."""
        ...

    def drain(self, command: Drain) -> str:
        """Mark a host, or take the mark away; returns its identity; see ``commit_drain``."""
        ...

    def cut(self) -> CutAnswer:
        """Publish all outputs of the last epoch, and return where they end."""
        ...

    def restart(self, request: Request[RestartAnswer] | None) -> RestartAnswer | None:
        """Continue a restart of processes; the answer once it is over.

        ``None``: no restart is asked for; one under way ends where it is.
        """
        ...


class Command(msgspec.Struct, Generic[_Answer], frozen=True):
    """Something that a job is asked to do between two epochs.

    ``kind`` names its request file; ``answer`` is the type of its answers.
    """

    kind: ClassVar[str]
    answer: ClassVar[type[Any]]

    def concerns(self, states: Mapping[Path, JobState]) -> Sequence[Path]:
        """Return the parts that are to be asked, in order.

        Args:
            states: of all parts of the job, by storage.

        Raises:
            InvalidInputError: it cannot be done; no part is to be asked.
        """
        return list(states)

    def run(self, part: OpenPart, request: Request[_Answer]) -> _Answer | None:
        """Do it to one part; ``None``: not yet, run it again between the next two epochs.

        Raises:
            InvalidInputError: it cannot be done to this part, which is as it was.
            HeadraceError: the part can no longer be changed by this process.
        """
        raise NotImplementedError

    def refused(self, part: OpenPart, error: InvalidInputError) -> _Answer:
        """Return the answer of a driver whose part cannot do it."""
        raise error

    @classmethod
    def idle(cls, part: OpenPart) -> None:
        """Note that no command of this type is asked for any more: it is over, or taken back."""

    def accept(self, answer: _Answer) -> _Answer:
        """Return the answer of a part, unless the others are not to be asked after it.

        Raises:
            InvalidInputError: the part refused.
        """
        return answer


class RescaleAnswer(msgspec.Struct, frozen=True):
    """The result of a rescale: the epoch and the counts since, or why it was refused."""

    epoch: int
    counts: dict[str, int]
    error: str = ""


class Rescale(Command[RescaleAnswer], frozen=True):
    """Another number of tasks; ``stage`` empty: of all keyed stages."""

    kind: ClassVar[str] = "rescale"
    answer: ClassVar[type[Any]] = RescaleAnswer

    tasks: int
    stage: str = ""

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return f"a rescale to {self.tasks} tasks"

    def concerns(self, states: Mapping[Path, JobState]) -> Sequence[Path]:
        """Return the parts that have the stage, or a keyed stage at all."""
        stage = self.stage or None
        wanted_counts(group_state(list(states.values())), self.tasks, stage)
        return [root for root, state in states.items() if affects(state.task_counts, stage)]

    def run(self, part: OpenPart, request: Request[RescaleAnswer]) -> RescaleAnswer:
        """Commit the other number."""
        del request
        state = part.rescale(self.tasks, self.stage or None)
        return RescaleAnswer(state.epoch, state.task_counts)

    def refused(self, part: OpenPart, error: InvalidInputError) -> RescaleAnswer:
        """Answer with the number that the part has."""
        return RescaleAnswer(part.state.epoch, part.state.task_counts, error.message)


class CutAnswer(msgspec.Struct, frozen=True):
    """An epoch whose outputs are all out, and where the internal streams end that it sent to."""

    epoch: int
    ends: dict[str, list[int]]


class CutSavepoint(Command[CutAnswer], frozen=True):
    """An epoch that a savepoint can be made of.

    ``still``: and that none follows it, so only a driver that is paused, or has ended, answers.
    """

    kind: ClassVar[str] = "savepoint"
    answer: ClassVar[type[Any]] = CutAnswer

    still: bool = False

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a merge" if self.still else "a savepoint"

    def run(self, part: OpenPart, request: Request[CutAnswer]) -> CutAnswer | None:
        """Publish, and say where outputs end."""
        del request
        # A turn plans again and again, and an epoch may follow each time.
        if self.still and not (part.is_paused or part.state.ended):
            return None
        return part.cut()


class DrainAnswer(msgspec.Struct, frozen=True):
    """The result of a drain: the epoch with the mark and the host's identity, or why not."""

    epoch: int
    host: str = ""
    error: str = ""


class Drain(Command[DrainAnswer], frozen=True):
    """Empty a host; with ``undo``, use it again.

    ``everywhere``: all jobs are to do so, which is noted beside them already.
    """

    kind: ClassVar[str] = "drain"
    answer: ClassVar[type[Any]] = DrainAnswer

    named: str
    undo: bool = False
    everywhere: bool = False

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return f"use of host {self.named}" if self.undo else f"a drain of host {self.named}"

    def concerns(self, states: Mapping[Path, JobState]) -> Sequence[Path]:
        """Return the parts that know the host."""
        named, undo = self.named, self.undo
        return list(parts_with_host(states, named, undo=undo, cordon=self.everywhere))

    def run(self, part: OpenPart, request: Request[DrainAnswer]) -> DrainAnswer:
        """Commit the mark; tasks move in the epochs to come."""
        del request
        host = part.drain(self)
        return DrainAnswer(part.state.epoch, host)

    def refused(self, part: OpenPart, error: InvalidInputError) -> DrainAnswer:
        """Answer with the reason."""
        return DrainAnswer(part.state.epoch, error=error.message)

    def accept(self, answer: DrainAnswer) -> DrainAnswer:
        """Refuse what a part refused."""
        if answer.error:
            raise InvalidInputError(answer.error)
        return answer


class RestartAnswer(msgspec.Struct, frozen=True):
    """The result of a restart: the epoch by which all processes were new, and their hosts."""

    epoch: int
    hosts: list[str]


class Restart(Command[RestartAnswer], frozen=True):
    """New processes, on one host after the other or on all at once."""

    kind: ClassVar[str] = "restart"
    answer: ClassVar[type[Any]] = RestartAnswer

    rolling: bool

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a rolling restart" if self.rolling else "a restart"

    def run(self, part: OpenPart, request: Request[RestartAnswer]) -> RestartAnswer | None:
        """Continue the restart."""
        return part.restart(request)

    @classmethod
    def idle(cls, part: OpenPart) -> None:
        """End a restart that was taken back; what is done stays done."""
        part.restart(None)


class HoldAnswer(msgspec.Struct, frozen=True):
    """Whether the driver sees that another process merges, and is held; and its host."""

    is_held: bool
    host: str


class HoldForMerge(Command[HoldAnswer], frozen=True):
    """No epoch while a process merges into the job; answered at once, by a thread of its own."""

    kind: ClassVar[str] = "hold"
    answer: ClassVar[type[Any]] = HoldAnswer

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a pause for a merge"


COMMANDS: tuple[type[Command[Any]], ...] = (Rescale, CutSavepoint, Drain, Restart)
"""Those that a driver runs between two epochs, in this order."""


class Sender(msgspec.Struct, frozen=True):
    """What a request file has beside the fields of its command: a name, who asks, and when."""

    id: str
    process: int
    host: str
    time_ms: int


@dataclass(frozen=True)
class Request(Generic[_Answer]):
    """A command on its way to a driver."""

    command: Command[_Answer]
    sender: Sender

    @classmethod
    def of(cls, command: Command[_Answer], clock: Clock) -> Request[_Answer]:
        """Return the request of this process for a command."""
        sender = Sender(clock.new_id(), os.getpid(), os.uname().nodename, clock.now_ms())
        return cls(command, sender)

    @property
    def id(self) -> str:
        """A name that no other request ever has."""
        return self.sender.id


def no_answer(wait_s: float) -> UnavailableError:
    """Return the error for a command that was not answered in time, and was taken back."""
    return UnavailableError(
        f"the driver did not take the request within {wait_s:.0f} s, and it was taken "
        "back; an epoch may be long: wait longer with --wait, or stop the job first"
    )


class RequestChannel(Generic[_Answer]):
    """The request files of one kind of command to the driver of a part.

    Args:
        root: the part's storage.
        files: the file system.
        clock: for names and waiting.
        command: the type of the commands.
    """

    def __init__(
        self, root: Path, files: Files, clock: Clock, command: type[Command[_Answer]]
    ) -> None:
        self._folder = root / REQUESTS_FOLDER
        self.path = self._folder / f"{command.kind}.json"
        self._files, self._clock = files, clock
        self._command = msgspec.json.Decoder(command)
        self._sender = msgspec.json.Decoder(Sender)
        self._answer: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(command.answer)

    def _answer_path(self, request: Request[_Answer]) -> Path:
        return self._folder / f"{_ANSWERS}{request.id}.json"

    def pending(self) -> Request[_Answer] | None:
        """Return what is asked for; a request that cannot be read is thrown away."""
        try:
            data = self._files.read(self.path)
            command, sender = self._command.decode(data), self._sender.decode(data)
        except FileNotFoundError:  # taken back
            return None
        except msgspec.DecodeError:
            self._files.remove(self.path)
            return None
        return Request(command, sender)

    def answer(self, request: Request[_Answer], answer: _Answer) -> None:
        """Write the answer to a request, and be ready for another."""
        data = msgspec.json.encode(answer)
        fault("request.answer_due")
        self._files.replace(self._answer_path(request), data)
        self._files.remove(self.path)

    def ask(self, command: Command[_Answer], wait_s: float) -> _Answer:
        """Ask the driver and wait for its answer.

        Args:
            command: what is to be done.
            wait_s: after this long the request is taken back.

        Raises:
            UnavailableError: another request is under way, or the driver does not answer.
        """
        request = self.post(command)
        deadline = Deadline(self._clock, wait_s)
        try:
            while not deadline.expired:
                found = self.taken(request)
                if found is not None:
                    return found
                self._clock.sleep(POLL_S)
        finally:
            self.take_back(request)
        found = self.taken(request)
        if found is None:
            raise no_answer(wait_s)
        return found

    def post(self, command: Command[_Answer]) -> Request[_Answer]:
        """Ask the driver without waiting for the answer.

        Raises:
            UnavailableError: another request is under way.
        """
        request = Request.of(command, self._clock)
        fields = msgspec.structs.asdict(request.sender) | msgspec.structs.asdict(command)
        if not self._files.publish(self.path, msgspec.json.encode(fields)):
            raise self._busy()
        return request

    def take_back(self, request: Request[_Answer]) -> None:
        """Ask no more for what was not answered yet."""
        held = self.pending()
        if held is not None and held.id == request.id:
            self._files.remove(self.path)

    def taken(self, request: Request[_Answer]) -> _Answer | None:
        """Take the answer away; ``None``: there is none yet."""
        path = self._answer_path(request)
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None
        answer = self._answer.decode(data)
        self._files.remove(path)
        return answer

    def _busy(self) -> UnavailableError:
        held, who = self.pending(), "another one"
        if held is not None:
            asker = f"process {held.sender.process} on {held.sender.host}"
            who = f"{held.command}, which {asker} asked for,"
        return UnavailableError(
            f"{who} is under way; try again when it is done. If nobody waits for it any more, "
            f"remove {self.path}"
        )

    def tidy(self) -> None:
        """Remove answers, of whatever kind, that nobody has taken."""
        for name in self._files.names(self._folder):
            if name.startswith(_ANSWERS):
                self._files.remove(self._folder / name)


class CommandQueue:
    """The commands of other threads to the driver of a part in this process.

    Commands of a kind are answered in the order they came. A post wakes the driver's loop.

    Args:
        clock: for names of requests.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[type[Command[Any]], deque[Request[Any]]] = {}
        self._answers: dict[str, Any] = {}
        self._wakes: list[Callable[[], None]] = []
        self._has_news = self._is_closed = False

    @property
    def has_any(self) -> bool:
        """Say whether a command waits."""
        with self._changed:
            return any(self._waiting.values())

    @property
    def has_news(self) -> bool:
        """Say whether the loop was woken since ``looked``."""
        return self._has_news

    def ask(self, command: Command[_Answer], wait_s: float) -> _Answer:
        """Hand a command to the driver's loop, and wait for the answer.

        Args:
            command: what is to be done.
            wait_s: after this long it is taken back.

        Raises:
            UnavailableError: there was no answer in time, or the driver has ended.
        """
        request = Request.of(command, self._clock)
        with self._changed:
            self._check_open()
            waiting = self._waiting.setdefault(type(command), deque())
            waiting.append(request)
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: request not in waiting or self._is_closed, wait_s)
            if request.id in self._answers:
                found: _Answer = self._answers.pop(request.id)
                return found
            if request in waiting:
                waiting.remove(request)
            self._check_open()
        raise no_answer(wait_s)

    def take_back(self, command: Command[Any]) -> None:
        """Ask no more for what was not answered yet; its ``ask`` raises."""
        with self._changed:
            waiting = self._waiting.get(type(command), deque())
            for request in [one for one in waiting if one.command is command]:
                waiting.remove(request)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnavailableError(
                "the driver has ended; ask again when another drives the job, or the job is run"
            )

    def pending(self, kind: type[Command[_Answer]]) -> Request[_Answer] | None:
        """Return the first request of a kind; ``None``: there is none."""
        with self._changed:
            waiting = self._waiting.get(kind)
            return waiting[0] if waiting else None

    def answer(self, request: Request[_Answer], answer: _Answer) -> None:
        """Give the answer to the thread that waits for it, unless that took the command back."""
        with self._changed:
            waiting = self._waiting[type(request.command)]
            if request in waiting:
                waiting.remove(request)
                self._answers[request.id] = answer
                self._has_news = self._has_news or bool(waiting)
                self._changed.notify_all()

    def wake(self) -> None:
        """End the wait of the driver's loop: there is something to look at."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()

    def looked(self) -> None:
        """Note that the loop looks now: what comes from here on is news."""
        self._has_news = False

    def wait(self, seconds: float) -> None:
        """Return when the loop is woken, or after the seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news, seconds)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Let what wakes the loop call this, too, for a block that waits elsewhere."""
        with self._changed:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._wakes.remove(wake)

    def close(self) -> None:
        """Refuse all that waits, and all that comes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class CommandServer:
    """Runs the commands to one part's driver; the driver's thread calls.

    Args:
        root: the part's storage.
        files: the file system.
        clock: for names.
        queue: of commands from this process.
    """

    def __init__(self, root: Path, files: Files, clock: Clock, queue: CommandQueue) -> None:
        self._queue, self._folder = queue, root / REQUESTS_FOLDER
        self._is_remote = is_remote(root)
        self._channels = {kind: RequestChannel(root, files, clock, kind) for kind in COMMANDS}
        self._under_way: dict[type[Command[Any]], str] = {}

    def serve(self, part: OpenPart) -> None:
        """Run the first command of each type; one under way comes before others of its type."""
        filed_names = self._filed_names()
        if not (filed_names or self._under_way or self._queue.has_any):
            return
        for kind, channel in self._channels.items():
            posted = self._queue.pending(kind)
            filed = channel.pending() if channel.path.name in filed_names else None
            if posted is None and filed is None:
                if self._under_way.pop(kind, None) is not None:
                    kind.idle(part)
                continue
            held = self._under_way.get(kind)
            request = posted or filed
            if filed is not None and filed.id == held:
                request = filed
            assert request is not None
            self._under_way[kind] = request.id
            try:
                done = request.command.run(part, request)
            except InvalidInputError as error:
                done = request.command.refused(part, error)
            if done is not None:
                (self._queue if request is posted else channel).answer(request, done)
                # A loop that rests would come to the other after its rest.
                if posted is not None and filed is not None:
                    self._queue.wake()

    def _filed_names(self) -> Sequence[str]:
        """Return the names of what other processes have left: one look for all types."""
        try:
            if self._is_remote:
                return Files(sync=False).names(self._folder)
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):  # nobody can have asked for anything
            return ()

    def tidy(self) -> None:
        """Remove answers that nobody has taken."""
        self._channels[Rescale].tidy()
