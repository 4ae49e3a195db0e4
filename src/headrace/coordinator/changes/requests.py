"""What others may ask of a running driver through the job's storage, one thing at a time.

1. Whoever asks publishes ``requests/rescale.json``; while it is there, nobody else can ask.
2. The driver finds it between two epochs, does it, writes the answer beside it under the
request's own name, and removes the request. 3. Whoever asked takes the answer away. A driver
that dies in between is followed by one that finds the request again, and a job that is already
as asked is left as it is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.clock import Clock, Deadline
from headrace.errors import UnavailableError
from headrace.files import Files

FOLDER = "requests"
RESCALE = "rescale.json"
POLL_S = 0.05


class RescaleRequest(msgspec.Struct, frozen=True):
    """A wish for another number of tasks; ``stage`` empty: of all keyed stages."""

    id: str
    tasks: int
    stage: str
    process: int
    host: str
    time_ms: int


class RescaleAnswer(msgspec.Struct, frozen=True):
    """What became of it: the epoch and the counts since, or why it was refused."""

    epoch: int
    counts: dict[str, int]
    error: str = ""


_REQUEST = msgspec.json.Decoder(RescaleRequest)
_ANSWER = msgspec.json.Decoder(RescaleAnswer)


class Requests:
    """The requests to a job's driver.

    Args:
        root: the job's storage.
        files: the file system.
        clock: for names and waiting.
    """

    def __init__(self, root: Path, files: Files, clock: Clock) -> None:
        self._folder = root / FOLDER
        self._files, self._clock = files, clock

    @property
    def _path(self) -> Path:
        return self._folder / RESCALE

    def _answer_path(self, request: RescaleRequest) -> Path:
        return self._folder / f"answer-{request.id}.json"

    def pending(self) -> RescaleRequest | None:
        """Return what is asked for; a request that cannot be read is thrown away."""
        if not self._path.exists():
            return None
        try:
            return _REQUEST.decode(self._files.read(self._path))
        except FileNotFoundError:  # taken back
            return None
        except msgspec.DecodeError:
            self._files.remove(self._path)
            return None

    def answer(self, request: RescaleRequest, answer: RescaleAnswer) -> None:
        """Say what became of a request, and be ready for another."""
        data = msgspec.json.encode(answer)
        self._files.replace(self._answer_path(request), data, self._clock.new_id())
        self._files.remove(self._path)

    def ask(self, request: RescaleRequest, wait_s: float) -> RescaleAnswer:
        """Ask the driver and wait for its answer.

        Args:
            request: with a name that no other ever has.
            wait_s: after this long the request is taken back.

        Raises:
            UnavailableError: another request is under way, or the driver does not answer.
        """
        data = msgspec.json.encode(request)
        if not self._files.publish(self._path, data, self._clock.new_id()):
            raise self._busy()
        deadline = Deadline(self._clock, wait_s)
        try:
            while not deadline.expired:
                found = self._taken(request)
                if found is not None:
                    return found
                self._clock.sleep(POLL_S)
        finally:
            held = self.pending()
            if held is not None and held.id == request.id:
                self._files.remove(self._path)
        found = self._taken(request)
        if found is None:
            raise UnavailableError(
                f"the driver did not take the request within {wait_s:.0f} s, and it was taken "
                "back; an epoch may be long: wait longer with --wait, or stop the job first"
            )
        return found

    def _taken(self, request: RescaleRequest) -> RescaleAnswer | None:
        path = self._answer_path(request)
        if not path.exists():
            return None
        answer = _ANSWER.decode(self._files.read(path))
        self._files.remove(path)
        return answer

    def _busy(self) -> UnavailableError:
        held, who = self.pending(), "another one"
        if held is not None:
            asker = f"process {held.process} on {held.host}"
            who = f"a rescale to {held.tasks} tasks, which {asker} asked for,"
        return UnavailableError(
            f"{who} is under way; try again when it is done. If nobody waits for it any more, "
            f"remove {self._path}"
        )

    def tidy(self) -> None:
        """Remove answers that nobody has taken."""
        for name in self._files.names(self._folder):
            if name != RESCALE:
                self._files.remove(self._folder / name)
