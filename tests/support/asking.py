"""What others ask of a running driver, without waiting for the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.coordinator.commands import Command, RequestChannel, Rescale, Restart
from headrace.files import Files
from headrace.testing import TestDriver

FILES = Files(sync=False)


class Wish:
    """Something that was asked for and is not yet answered.

    Args:
        channel: where requests of its kind are left.
        command: what is asked for; left there at once.
    """

    def __init__(self, channel: RequestChannel[Any], command: Command[Any]) -> None:
        self._channel, self._request = channel, channel.post(command)

    def answer(self) -> Any:
        """Take the answer away; ``None``: there is none yet."""
        return self._channel.taken(self._request)

    def take_back(self) -> None:
        """Ask no more for it."""
        self._channel.take_back(self._request)


def channel(driver: TestDriver, kind: type[Command[Any]]) -> RequestChannel[Any]:
    """Return the request files of a kind to the driver of a job."""
    return RequestChannel(driver.storage, FILES, driver.clock, kind)


def wish_rescale(driver: TestDriver, tasks: int, stage: str | None = None) -> Wish:
    """Ask the driver of a job for another number of tasks.

    Raises:
        UnavailableError: another rescale is asked for.
    """
    return Wish(channel(driver, Rescale), Rescale(tasks, stage or ""))


def wait_for_rescale(driver: TestDriver, tasks: int, wait_s: float) -> Any:
    """Ask for another number of tasks, and wait for the answer as a command does."""
    return channel(driver, Rescale).ask(Rescale(tasks), wait_s)


def pending_rescale(driver: TestDriver) -> Any:
    """Return the rescale that the driver finds when it next looks; ``None``: none."""
    return channel(driver, Rescale).pending()


def wish_restart(driver: TestDriver, *, rolling: bool) -> Wish:
    """Ask the driver of a job for new processes."""
    return Wish(channel(driver, Restart), Restart(rolling))


def requests_left(storage: Path) -> list[str]:
    """Return the files of requests and answers in a job's storage."""
    return FILES.names(storage / "requests")
