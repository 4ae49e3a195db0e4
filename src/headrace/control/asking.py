"""Asks the parts of a running job for what changes them, through the storage of each."""

from __future__ import annotations

from pathlib import Path

from headrace.clock import Clock
from headrace.control.board import Board
from headrace.coordinator.changes.requests import RescaleAnswer, rescale_request, rescales
from headrace.coordinator.changes.rescaling import concerns, wanted_counts
from headrace.coordinator.hosts.asking import ask_drain, ask_restart
from headrace.coordinator.joined import joined_state
from headrace.coordinator.manifest import JobState
from headrace.coordinator.savepoints.form import Savepoint
from headrace.coordinator.savepoints.saving import JobSaver
from headrace.files import Files


class PartsRequests:
    """Requests to all parts that one driver runs.

    Args:
        storage: of the first part; those of the others are beside it.
        board: of the driver.
        files: the file system.
        clock: for names and waiting.
    """

    def __init__(self, storage: Path, board: Board, files: Files, clock: Clock) -> None:
        self._storage, self._board = storage, board
        self._files, self._clock = files, clock

    def ask(self, tasks: int, stage: str | None, wait_s: float) -> RescaleAnswer:
        """Ask each part that is concerned, one after the other; returns what they answer together.

        Args:
            tasks: of each keyed stage, or of the one that is named.
            stage: its name; all when left out.
            wait_s: for each part.

        Raises:
            InvalidInputError: it cannot be; nobody was asked.
            UnavailableError: the job has not begun, or its driver does not answer.
        """
        states = self._board.states
        wanted_counts(joined_state(states), tasks, stage)
        found = [
            self._ask(state.job, tasks, stage, wait_s)
            for state in states
            if concerns(state.task_counts, stage)
        ]
        counts = {name: count for one in found for name, count in one.counts.items()}
        error = "; ".join(one.error for one in found if one.error)
        return RescaleAnswer(found[0].epoch, counts, error)

    def save(self, name: str | None, wait_s: float) -> tuple[Path, Savepoint]:
        """Make a savepoint of the job with its own, between two epochs of each part.

        Args:
            name: of the savepoint; made of the time when left out.
            wait_s: for each part.

        Raises:
            InvalidInputError: the name is taken, or nothing could go on from the job.
            UnavailableError: the job has not begun, or its driver does not answer.
        """
        board = self._board
        saver = JobSaver(board.settings, board.job, board.bus, self._files, self._clock)
        return saver.save_running(name, wait_s)

    def drain(self, named: str, wait_s: float, *, undo: bool) -> str:
        """Have a host be empty, or be used again; see ``ask_drain``."""
        return ask_drain(self._states(), named, self._files, self._clock, wait_s, undo=undo)

    def restart(self, wait_s: float, *, rolling: bool) -> list[str]:
        """Renew the processes of all parts; see ``ask_restart``."""
        return ask_restart(self._states(), self._files, self._clock, wait_s, rolling=rolling)

    def _states(self) -> dict[Path, JobState]:
        return {self._storage.with_name(state.job): state for state in self._board.states}

    def _ask(self, part: str, tasks: int, stage: str | None, wait_s: float) -> RescaleAnswer:
        request = rescale_request(tasks, stage, self._clock)
        asked = rescales(self._storage.with_name(part), self._files, self._clock)
        return asked.ask(request, wait_s)
