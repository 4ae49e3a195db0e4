"""Waits for what comes back by itself: room on a full disk, the receiver of a sink.

On a full disk the epoch under way is dropped, and tried again. What a receiver is to take is
committed, and handed to it before anything else is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.files import disk_error, is_full
from headrace.graph.sinks import ReceiverAwayError

RETRY_S = 1.0
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Patience:
    """How a job meets a full disk, and a receiver that is away.

    Args:
        clock: for the pauses.
        stop: ends the waiting.
        limit_s: how long to wait; ``None``: until stopped.
        tell: called with a line when the waiting begins and when it is over.
    """

    clock: Clock
    stop: threading.Event
    limit_s: float | None = None
    tell: Callable[[str], None] = lambda line: None

    def until_room(self, step: Callable[[], _Result]) -> _Result | None:
        """Return what a step returns, tried again as long as a disk is full or a sink is away.

        Returns:
            ``None`` when the job was stopped meanwhile; nothing of the step is visible.

        Raises:
            DiskFullError: there was no room for longer than the limit.
            ReceiverAwayError: the receiver did not answer for longer than the limit.
        """
        since: float | None = None
        what = ""
        while True:
            try:
                result = step()
            except (OSError, HeadraceError) as error:
                is_away = isinstance(error, ReceiverAwayError)
                if not (is_away or is_full(error)):
                    raise
                now = self.clock.monotonic()
                if since is None:
                    since = now
                    limit = "" if self.limit_s is None else f", for {self.limit_s:.0f} s at most"
                    what = "an answer" if is_away else "room"
                    self.tell(f"{_words(error)}; the job waits for {what}{limit}")
                if self.limit_s is not None and now - since >= self.limit_s:
                    raise
                if self.stop.is_set():
                    return None
                self.clock.sleep(RETRY_S)
                continue
            if since is not None:
                waited = self.clock.monotonic() - since
                self.tell(f"there is {what} again after {waited:.0f} s; the job goes on")
            return result


def _words(error: OSError | HeadraceError) -> str:
    found = disk_error(error) if isinstance(error, OSError) else error
    return found.message.partition(";")[0]
