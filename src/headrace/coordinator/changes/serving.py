"""What a driver does for others between two epochs, when it finds that they have asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.clock import Clock
from headrace.coordinator.changes.requests import (
    CutAnswer,
    RescaleAnswer,
    cuts,
    drains,
    rescales,
    restarts,
)
from headrace.coordinator.hosts.everywhere import DrainedHosts
from headrace.coordinator.hosts.steering import Steering
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError
from headrace.files import Files


class Serving:
    """Answers the requests to one driver; its thread calls.

    Args:
        root: the job's storage.
        files: the file system.
        clock: for names.
        rescale: gives the job another number of tasks, of one stage or of all.
        state: the job's, after its last epoch.
        cut: tells an epoch whose outputs are out.
        steering: does what concerns hosts.
    """

    def __init__(
        self,
        root: Path,
        files: Files,
        clock: Clock,
        *,
        rescale: Callable[[int, str | None], JobState],
        state: Callable[[], JobState],
        cut: Callable[[], CutAnswer],
        steering: Steering,
    ) -> None:
        self._drains, self._restarts = drains(root, files, clock), restarts(root, files, clock)
        self._steering, self._everywhere = steering, DrainedHosts(root.parent, files)
        self._rescales, self._cuts = rescales(root, files, clock), cuts(root, files, clock)
        self._rescale, self._state, self._cut = rescale, state, cut

    def serve(self, *, is_paused: bool = False) -> None:
        """Do what others ask of this job, if anything; no epoch follows while it is paused."""
        self._steering.follow(self._everywhere)
        request = self._rescales.pending()
        if request is not None:
            self._rescales.answer(request, self._rescaled(request.tasks, request.stage or None))
        wanted = self._cuts.pending()
        # A turn plans again and again, and an epoch may follow each time.
        if wanted is not None and (is_paused or self._state().ended or not wanted.still):
            self._cuts.answer(wanted, self._cut())
        drain = self._drains.pending()
        if drain is not None:
            self._drains.answer(drain, self._steering.drain(drain, self._everywhere))
        restart = self._restarts.pending()
        done = self._steering.restart(restart, is_paused=is_paused)
        if restart is not None and done is not None:
            self._restarts.answer(restart, done)

    def _rescaled(self, tasks: int, stage: str | None) -> RescaleAnswer:
        try:
            state = self._rescale(tasks, stage)
        except InvalidInputError as error:
            held = self._state()
            return RescaleAnswer(held.epoch, held.task_counts, error.message)
        return RescaleAnswer(state.epoch, state.task_counts)

    def tidy(self) -> None:
        """Remove answers that nobody has taken."""
        self._rescales.tidy()
