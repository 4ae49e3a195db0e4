"""A job that runs on the session of the tests, beside the test that meddles with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from tests.support.runs import SOON_S, Epochs, run_job, until

import headrace as hr


class Beside:
    """Runs a job in a thread until it ends, or the block does.

    Args:
        job: that is run.
        settings: of the run.
        more: arguments of the run, such as ``takes_over``.
    """

    def __init__(self, job: hr.Job, settings: Any, **more: Any) -> None:
        self.epochs = Epochs()
        self._pool = ThreadPoolExecutor(1)
        listening: Any = {"control": self.epochs.control, "on_epoch": self.epochs.append}
        self._run = self._pool.submit(run_job, job, settings, **listening, **more)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; fail as the run does when it ends before."""
        until(lambda: condition() or self._run.done(), what)
        assert condition(), f"the run ended before {what}: {self.result()}"

    @property
    def is_over(self) -> bool:
        return self._run.done()

    def result(self) -> Any:
        """Wait for the end of the run; raises its error."""
        return self._run.result(SOON_S)

    def stop(self) -> Any:
        """End the run after the epoch under way."""
        self.epochs.stop()
        return self.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.epochs.stop()
        self._pool.shutdown()
