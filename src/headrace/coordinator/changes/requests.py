"""What others may ask of a running driver through the job's storage, one thing of a kind at a time.

1. Whoever asks publishes ``requests/KIND.json``; while it is there, nobody else can ask for that.
2. The driver finds it between two epochs, does it, writes the answer beside it under the
request's own name, and removes the request. 3. Whoever asked takes the answer away. A driver
that dies in between is followed by one that finds the request again, and a job that is already
as asked is left as it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from headrace.clock import Clock, Deadline
from headrace.errors import UnavailableError
from headrace.files import Files

FOLDER = "requests"
POLL_S = 0.05
_ANSWERS = "answer-"


class RescaleRequest(msgspec.Struct, frozen=True):
    """A wish for another number of tasks; ``stage`` empty: of all keyed stages."""

    id: str
    tasks: int
    stage: str
    process: int
    host: str
    time_ms: int

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return f"a rescale to {self.tasks} tasks"


class RescaleAnswer(msgspec.Struct, frozen=True):
    """What became of it: the epoch and the counts since, or why it was refused."""

    epoch: int
    counts: dict[str, int]
    error: str = ""


class CutRequest(msgspec.Struct, frozen=True):
    """A wish to know an epoch that a savepoint can be made of.

    ``still``: and that none follows it, so only a driver that is paused, or has ended, answers.
    """

    id: str
    process: int
    host: str
    time_ms: int
    still: bool = False

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a merge" if self.still else "a savepoint"


class CutAnswer(msgspec.Struct, frozen=True):
    """An epoch whose outputs are all out, and where the internal streams end that it sent to."""

    epoch: int
    ends: dict[str, list[int]]


class DrainRequest(msgspec.Struct, frozen=True):
    """A wish that a host be empty; with ``undo`` that it be used again.

    ``everywhere``: all jobs are to do so, which is noted beside them already.
    """

    id: str
    named: str
    undo: bool
    process: int
    host: str
    time_ms: int
    everywhere: bool = False

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return f"use of host {self.named}" if self.undo else f"a drain of host {self.named}"


class DrainAnswer(msgspec.Struct, frozen=True):
    """What became of it: the epoch that says so and the identity of the host, or why not."""

    epoch: int
    host: str = ""
    error: str = ""


class RestartRequest(msgspec.Struct, frozen=True):
    """A wish for new processes, on one host after the other or on all at once."""

    id: str
    rolling: bool
    process: int
    host: str
    time_ms: int

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a rolling restart" if self.rolling else "a restart"


class RestartAnswer(msgspec.Struct, frozen=True):
    """What became of it: the epoch by which all processes were new, and their hosts."""

    epoch: int
    hosts: list[str]


class HoldRequest(msgspec.Struct, frozen=True):
    """A wish that no epoch begin while a process merges into the job."""

    id: str
    process: int
    host: str
    time_ms: int

    def __str__(self) -> str:
        """Return what is asked for, in words."""
        return "a pause for a merge"


class HoldAnswer(msgspec.Struct, frozen=True):
    """Whether the driver sees that somebody merges, and so is held; and its host."""

    is_held: bool
    host: str


_Request = TypeVar(
    "_Request", RescaleRequest, CutRequest, DrainRequest, RestartRequest, HoldRequest
)
_Answer = TypeVar("_Answer", RescaleAnswer, CutAnswer, DrainAnswer, RestartAnswer, HoldAnswer)


def rescale_request(tasks: int, stage: str | None, clock: Clock) -> RescaleRequest:
    """Return a wish of this process for another number of tasks."""
    host, now = os.uname().nodename, clock.now_ms()
    return RescaleRequest(clock.new_id(), tasks, stage or "", os.getpid(), host, now)


def drain_request(
    named: str, clock: Clock, *, undo: bool, everywhere: bool = False
) -> DrainRequest:
    """Return a wish of this process that a host be empty, or be used again."""
    return DrainRequest(clock.new_id(), named, undo, *_asker(clock), everywhere=everywhere)


def restart_request(clock: Clock, *, rolling: bool) -> RestartRequest:
    """Return a wish of this process for new ones."""
    return RestartRequest(clock.new_id(), rolling, *_asker(clock))


def cut_request(clock: Clock, *, still: bool = False) -> CutRequest:
    """Return a wish of this process to know an epoch whose outputs are all out."""
    return CutRequest(clock.new_id(), *_asker(clock), still=still)


def hold_request(clock: Clock) -> HoldRequest:
    """Return a wish of this process that no epoch begin while it merges."""
    return HoldRequest(clock.new_id(), *_asker(clock))


def _asker(clock: Clock) -> tuple[int, str, int]:
    return os.getpid(), os.uname().nodename, clock.now_ms()


def rescales(root: Path, files: Files, clock: Clock) -> Requests[RescaleRequest, RescaleAnswer]:
    """Return the requests for other numbers of tasks; arguments as of ``Requests``."""
    return Requests(root, files, clock, "rescale", RescaleRequest, RescaleAnswer)


def cuts(root: Path, files: Files, clock: Clock) -> Requests[CutRequest, CutAnswer]:
    """Return the requests of those who make savepoints; arguments as of ``Requests``."""
    return Requests(root, files, clock, "savepoint", CutRequest, CutAnswer)


def drains(root: Path, files: Files, clock: Clock) -> Requests[DrainRequest, DrainAnswer]:
    """Return the requests that hosts be empty; arguments as of ``Requests``."""
    return Requests(root, files, clock, "drain", DrainRequest, DrainAnswer)


def restarts(root: Path, files: Files, clock: Clock) -> Requests[RestartRequest, RestartAnswer]:
    """Return the requests for new processes; arguments as of ``Requests``."""
    return Requests(root, files, clock, "restart", RestartRequest, RestartAnswer)


def holds(root: Path, files: Files, clock: Clock) -> Requests[HoldRequest, HoldAnswer]:
    """Return the requests of those who merge; arguments as of ``Requests``."""
    return Requests(root, files, clock, "hold", HoldRequest, HoldAnswer)


class Requests(Generic[_Request, _Answer]):
    """The requests of one kind to a job's driver.

    Args:
        root: the job's storage.
        files: the file system.
        clock: for names and waiting.
        kind: what the requests are called.
        request: their form.
        answer: that of their answers.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        clock: Clock,
        kind: str,
        request: type[_Request],
        answer: type[_Answer],
    ) -> None:
        self._folder = root / FOLDER
        self._files, self._clock, self._kind = files, clock, kind
        self._request: msgspec.json.Decoder[_Request] = msgspec.json.Decoder(request)
        self._answer: msgspec.json.Decoder[_Answer] = msgspec.json.Decoder(answer)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._kind}.json"

    def _answer_path(self, request: _Request) -> Path:
        return self._folder / f"{_ANSWERS}{request.id}.json"

    def pending(self) -> _Request | None:
        """Return what is asked for; a request that cannot be read is thrown away."""
        if not self._path.exists():
            return None
        try:
            return self._request.decode(self._files.read(self._path))
        except FileNotFoundError:  # taken back
            return None
        except msgspec.DecodeError:
            self._files.remove(self._path)
            return None

    def answer(self, request: _Request, answer: _Answer) -> None:
        """Say what became of a request, and be ready for another."""
        data = msgspec.json.encode(answer)
        self._files.replace(self._answer_path(request), data, self._clock.new_id())
        self._files.remove(self._path)

    def ask(self, request: _Request, wait_s: float) -> _Answer:
        """Ask the driver and wait for its answer.

        Args:
            request: with a name that no other ever has.
            wait_s: after this long the request is taken back.

        Raises:
            UnavailableError: another request is under way, or the driver does not answer.
        """
        self.post(request)
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
            raise UnavailableError(
                f"the driver did not take the request within {wait_s:.0f} s, and it was taken "
                "back; an epoch may be long: wait longer with --wait, or stop the job first"
            )
        return found

    def post(self, request: _Request) -> None:
        """Ask the driver, and go on.

        Raises:
            UnavailableError: another request is under way.
        """
        data = msgspec.json.encode(request)
        if not self._files.publish(self._path, data, self._clock.new_id()):
            raise self._busy()

    def take_back(self, request: _Request) -> None:
        """Ask no more for what was not answered yet."""
        held = self.pending()
        if held is not None and held.id == request.id:
            self._files.remove(self._path)

    def taken(self, request: _Request) -> _Answer | None:
        """Take the answer away; ``None``: there is none yet."""
        path = self._answer_path(request)
        if not path.exists():
            return None
        answer: _Answer = self._answer.decode(self._files.read(path))
        self._files.remove(path)
        return answer

    def _busy(self) -> UnavailableError:
        held, who = self.pending(), "another one"
        if held is not None:
            asker = f"process {held.process} on {held.host}"
            who = f"{held}, which {asker} asked for,"
        return UnavailableError(
            f"{who} is under way; try again when it is done. If nobody waits for it any more, "
            f"remove {self._path}"
        )

    def tidy(self) -> None:
        """Remove answers, of whatever kind, that nobody has taken."""
        for name in self._files.names(self._folder):
            if name.startswith(_ANSWERS):
                self._files.remove(self._folder / name)
