"""Lets a driver be held for a merge through the job's storage, where its API cannot be asked.

That is so with ``control.enabled=false``, and where the API answers on the driver's host only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.client import UnreachableError, reachable
from headrace.coordinator.changes.requests import HoldAnswer, hold_request, holds
from headrace.errors import InvalidInputError
from headrace.files import Files

POLL_S = 0.2
NOBODY_MERGES = "nobody merges into job"
"""What a driver answers by its API that sees nobody who has the lock of merges."""


class HoldAnswers:
    """Looks for who asks that a driver be held, and answers, from a thread of its own.

    Args:
        storage: of the job.
        look: holds the driver if somebody merges, and says whether somebody does.
        files: the file system.
        clock: for names.
    """

    def __init__(self, storage: Path, look: Callable[[], bool], files: Files, clock: Clock) -> None:
        self._requests, self._look = holds(storage, files, clock), look
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._serve, name="headrace-holds", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(OSError):  # the disk is full, or away: whoever asks waits
                request = self._requests.pending()
                if request is not None:
                    answer = HoldAnswer(self._look(), os.uname().nodename)
                    self._requests.answer(request, answer)

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def hold(
    settings: Settings, job: str, storage: Path, files: Files, clock: Clock, wait_s: float
) -> None:
    """Let a running driver look at the lock of merges, which this process has.

    Args:
        settings: with the durability that the job was last run with.
        job: its name.
        storage: of the job.
        files: the file system.
        clock: time and names.
        wait_s: for the driver to answer.

    Raises:
        InvalidInputError: it does not see the lock, so it would not be still.
        UnavailableError: it does not answer.
    """
    client = reachable(settings, job)
    if client is not None:
        try:
            client.post("/v1/hold")
        except UnreachableError:
            pass
        except InvalidInputError as error:
            if NOBODY_MERGES not in error.message:
                raise
            raise _unseen(job, client.place.host) from error
        else:
            return
    answer = holds(storage, files, clock).ask(hold_request(clock), wait_s)
    if not answer.is_held:
        raise _unseen(job, answer.host)


def _unseen(job: str, host: str) -> InvalidInputError:
    return InvalidInputError(
        f"the driver of job {job!r}, on host {host}, does not see that this process is about to "
        "merge, for their hosts share no locks of files: merge on that host, or stop the job first",
        job=job,
    )
