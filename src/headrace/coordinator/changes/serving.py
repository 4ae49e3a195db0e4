"""What a driver does for others between two epochs: rescales, and cuts for savepoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.clock import Clock
from headrace.coordinator.changes.requests import CutAnswer, RescaleAnswer, cuts, rescales
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
    ) -> None:
        self._rescales, self._cuts = rescales(root, files, clock), cuts(root, files, clock)
        self._rescale, self._state, self._cut = rescale, state, cut

    def serve(self) -> None:
        """Do what others ask of this job, if anything."""
        request = self._rescales.pending()
        if request is not None:
            self._rescales.answer(request, self._rescaled(request.tasks, request.stage or None))
        wanted = self._cuts.pending()
        if wanted is not None:
            self._cuts.answer(wanted, self._cut())

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
