"""Hands committed epochs to the sinks of a job, any number of times the same.

Whether a receiver has an epoch, only the receiver knows. ``DONE`` in the job's storage holds the
digest of the last manifest that all of them have confirmed: it saves asking, and tells whoever
has no graph at hand, and so no sinks, that nothing is left to be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_intdigest

from headrace.clock import Clock
from headrace.coordinator.manifest import JobState
from headrace.coordinator.storage import JobStorage
from headrace.coordinator.watermarks import passed_on
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.faults import fault
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import NO_TIME, Prepared, Receiver, SinkEpoch, SinkSite
from headrace.plan.stages import JobPlan
from headrace.task.orders import END_WATERMARK, NO_WATERMARK, SinkPart

DONE = "sinks-done"


class Receivers:
    """The receivers of one driver, for one thread.

    Args:
        plan: of the job.
        storage: of the job's files.
        clock: time and names.
    """

    def __init__(self, plan: JobPlan, storage: JobStorage, clock: Clock) -> None:
        self._bindings = {binding.operator: binding for binding in plan.sinks}
        self._job, self._storage, self._clock = plan.job, storage, clock
        self._open: dict[str, Receiver] = {}
        self._followers = {
            binding.operator: stage
            for stage in plan.stages
            for binding in stage.sinks
            if binding.sink.follows_time and binding.semantics == Semantics.EXACTLY_ONCE
        }

    def open(self) -> None:
        """Open those that are not open yet, which makes sure that they can take the rows.

        Raises:
            InvalidInputError: one is not as it must be.
            ReceiverAwayError: one does not answer.
        """
        for name, binding in self._bindings.items():
            if name not in self._open:
                files = self._storage.files
                site = SinkSite(self._job, name, binding.schema, self._clock, files)
                self._open[name] = binding.sink.open(site)

    def commit(self, state: JobState) -> int:
        """Let each receiver commit what the state's epoch sent to it; returns the rows.

        Raises:
            ReceiverAwayError: one does not answer; call again.
            InvalidInputError: one refuses the rows, or the graph has lost the sink.
            CorruptDataError: a file is not as the manifest says.
        """
        if not (state.sinks or self._followers) or is_confirmed(state, self._storage.root):
            return 0
        lost = sorted({part.operator for part in state.sinks} - set(self._bindings))
        if lost:
            raise InvalidInputError(
                f"epoch {state.epoch} of job {state.job!r} sent rows to sinks {lost}, which have "
                "not confirmed them and which the graph no longer has; run the job once with "
                "these operators, and take them out then",
                job=state.job,
                epoch=state.epoch,
            )
        self.open()
        rows = 0
        for name, receiver in self._open.items():
            files = tuple(self._verified(part) for part in state.sinks if part.operator == name)
            if files or name in self._followers:
                epoch = SinkEpoch(state.lineage, state.epoch, files, self._watermark(name, state))
                receiver.commit(epoch)
                rows += epoch.rows
                fault("sink.committed")
        (self._storage.root / DONE).write_text(state.digest)
        return rows

    def _watermark(self, operator: str, state: JobState) -> int:
        """The watermark of what reaches a sink, by the state after an epoch."""
        stage = self._followers.get(operator)
        if stage is None:
            return NO_TIME
        found = passed_on(state.watermarks, state.tasks).get(stage.name, NO_WATERMARK)
        if found in {NO_WATERMARK, END_WATERMARK}:
            return found
        return found - stage.delays.get(operator, 0)

    def hand_over(self, lineage: str, epoch: int, parts: Sequence[SinkPart]) -> int:
        """Let one receiver commit what an epoch sends to it, now and only now; returns the rows.

        Args:
            lineage: of the epoch.
            epoch: its number.
            parts: all of one operator.

        Raises:
            ReceiverAwayError: it does not answer; the rows are lost where they did not get there.
        """
        self.open()
        receiver = self._open.get(parts[0].operator)
        if receiver is None:
            return 0  # an epoch that is only run again has none
        sent = SinkEpoch(lineage, epoch, tuple(self._verified(part) for part in parts))
        receiver.commit(sent)
        fault("sink.committed")
        return sent.rows

    def _verified(self, part: SinkPart) -> Prepared:
        path = self._storage.root / part.path
        content = self._storage.files.map(path)
        if content.size != part.size or xxh3_64_intdigest(memoryview(content)) != part.checksum:
            raise CorruptDataError(
                f"file {path}, which operator {part.operator!r} sends to its sink, is damaged",
                file=str(path),
                operator=part.operator,
            )
        return Prepared(path, part.rows)

    def close(self) -> None:
        """Let go of what is open."""
        for receiver in self._open.values():
            receiver.close()
        self._open = {}


class NoReceivers(Receivers):
    """Nobody: for an epoch that is run again, whose rows no real receiver may get."""

    def open(self) -> None:
        """Open nothing."""

    def commit(self, state: JobState) -> int:
        """Let the rows be."""
        return 0


def is_confirmed(state: JobState, root: Path) -> bool:
    """Say whether the job's storage knows that all receivers have the state's epoch."""
    with suppress(FileNotFoundError):
        return (root / DONE).read_text() == state.digest
    return False


def check_confirmed(state: JobState, root: Path) -> None:
    """Refuse to go past an epoch whose sinks may not have it, where there is no graph to ask.

    Raises:
        InvalidInputError: they have not confirmed it.
    """
    if state.sinks and not is_confirmed(state, root):
        names = sorted({part.operator for part in state.sinks})
        raise InvalidInputError(
            f"epoch {state.epoch} of job {state.job!r} sent rows to sinks {names}, which have not "
            "confirmed them yet; start the job, which hands them on, stop it, and try again",
            job=state.job,
            epoch=state.epoch,
        )
