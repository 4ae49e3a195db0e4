"""Makes a committed epoch's outputs visible, any number of times the same.

Output streams on the bus, with internal ones, whose marks are in ``internal_streams``; and sinks.
Whether a sink has an epoch, only the sink knows: ``DONE`` in the job's storage holds the digest of
the last manifest that all of them have confirmed, which saves asking and is enough for commands
that have no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from headrace.bus import Bus, Fence, Producer
from headrace.clock import Clock
from headrace.coordinator.job_storage import JobStorage
from headrace.coordinator.manifest import JobState
from headrace.coordinator.watermarks import passed_on
from headrace.errors import (
    InternalError,
    InvalidInputError,
)
from headrace.faults import fault
from headrace.files import Files, local_copy
from headrace.graph.semantics import Semantics
from headrace.graph.sinks import NO_TIME, Prepared, Receiver, SinkEpoch, SinkSite
from headrace.plan.stages import JobPlan
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, OutputPart, SinkPart
from headrace.runtime.sink_shares import verified

_PARTS = 1 << 20


class BusAppend(NamedTuple):
    """Frames of one file that are appended to a partition in one step, the n-th of their epoch."""

    stream: str
    partition: int
    number: int
    path: str
    ranges: list[tuple[int, int]]
    rows: int


def producer_of(state: JobState) -> Producer:
    """Return who appends what a job sends, under its lineage."""
    return _producer(state.job, state.lineage)


@lru_cache(maxsize=256)
def _producer(job: str, lineage: str) -> Producer:
    return Producer.of_job(job, lineage)


def sequence_of(state: JobState, number: int) -> int:
    """Return the sequence of an append of the last epoch, by its number in the partition."""
    return state.epoch * _PARTS + number


def last_sequence_of(state: JobState) -> int:
    """Return the sequence that no append of the last epoch is above, and any later one is."""
    return sequence_of(state, _PARTS - 1)


def publish_outputs(
    state: JobState, bus: Bus, root: Path, fence: Fence, inner: Collection[str] = ()
) -> int:
    """Append the outputs that the state names; returns the rows appended by this call.

    Rows of ``inner`` streams do not count: they do not leave the job.

    One append for each file of a partition, in a fixed order, under the producer
    (job, lineage) with a sequence made of the epoch and the append's number in the
    partition. Calling it again, from any process, appends what is missing.

    Raises:
        NotOwnerError: a newer generation than that of the fence has begun.
    """
    producer = producer_of(state)
    rows = 0
    for one in bus_appends(state.outputs):
        if one.number >= _PARTS:
            raise InternalError(f"{one.number} files for one partition", epoch=state.epoch)
        appended = bus.stream(one.stream).append_file(
            one.partition,
            local_copy(root / one.path),
            one.ranges,
            producer=producer,
            sequence=sequence_of(state, one.number),
            fence=fence,
        )
        if not appended.duplicate and one.stream not in inner:
            rows += one.rows
        fault("epoch.output_published")
    return rows


def bus_appends(parts: Iterable[OutputPart]) -> Iterator[BusAppend]:
    """Yield one append for each file of a partition, in a fixed order."""
    place, file = attrgetter("stream", "partition"), attrgetter("path")
    for (stream, partition), found in groupby(sorted(parts, key=place), place):
        for number, (path, same) in enumerate(groupby(found, file)):
            held = list(same)
            rows = sum([part.rows for part in held])
            yield BusAppend(stream, partition, number, path, _joined(held), rows)


def _joined(parts: Sequence[OutputPart]) -> list[tuple[int, int]]:
    """Ranges of a file, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        if ranges and ranges[-1][1] == part.begin:
            ranges[-1] = (ranges[-1][0], part.end)
        else:
            ranges.append((part.begin, part.end))
    return ranges


CONFIRMED_FILE = "sinks-done"


class SinkCommitter:
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
        self._for = (0, "")
        self._followers = {
            binding.operator: stage
            for stage in plan.stages
            for binding in stage.sinks
            if binding.sink.follows_time and binding.semantics == Semantics.EXACTLY_ONCE
        }

    def begin(self, generation: int, origin: str) -> None:
        """Open them for a driver, which makes sure that they can take the rows.

        Args:
            generation: of the driver.
            origin: of its job.

        Raises:
            InvalidInputError: one is not as it must be.
            ReceiverAwayError: one does not answer.
            NotOwnerError: one has seen a newer driver.
        """
        if self._for != (generation, origin):
            self.close()
            self._for = generation, origin
        self.open()

    def open(self) -> None:
        """Open those that are not open yet; see ``begin``."""
        for name, binding in self._bindings.items():
            if name not in self._open:
                files, clock = self._storage.files, self._clock
                site = SinkSite(self._job, name, binding.schema, clock, files, *self._for)
                self._open[name] = binding.sink.open(site)

    def commit(self, state: JobState, share: Callable[[Sequence[SinkPart]], bool]) -> int:
        """Let each receiver commit what the state's epoch sent to it; returns the rows.

        Args:
            state: after the epoch.
            share: has slots pass files on to their sink, each as a share; False: not all of them.

        Raises:
            ReceiverAwayError: one does not answer; call again.
            InvalidInputError: one refuses the rows, or the graph has lost the sink.
            CorruptDataError: a file is not as the manifest says.
        """
        if not (state.sinks or self._followers) or sinks_confirmed(state, self._storage.root):
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
            parts = [part for part in state.sinks if part.operator == name]
            files = tuple(map(self._verified, parts))
            if files or name in self._followers:
                epoch = SinkEpoch(state.lineage, state.epoch, files, self._watermark(name, state))
                fault("sink.due")
                if not (receiver.share_out(epoch) and share(parts)):
                    receiver.commit(epoch)
                rows += epoch.rows
                fault("sink.committed")
        done = self._storage.root / CONFIRMED_FILE
        self._storage.files.replace(done, state.digest.encode(), durable=False)
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

    def deliver_pending(self, lineage: str, epoch: int, parts: Sequence[SinkPart]) -> int:
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
        fault("sink.due")
        receiver.commit(sent)
        fault("sink.committed")
        return sent.rows

    def _verified(self, part: SinkPart) -> Prepared:
        return verified(self._storage.files, self._storage.root, part)

    def close(self) -> None:
        """Release what is open."""
        for receiver in self._open.values():
            receiver.close()
        self._open = {}


class NoSinks(SinkCommitter):
    """Nobody: for an epoch that is run again, whose rows no real receiver may get."""

    def open(self) -> None:
        """Open nothing."""

    def commit(self, state: JobState, share: Callable[[Sequence[SinkPart]], bool]) -> int:
        """Let the rows be."""
        return 0


def sinks_confirmed(state: JobState, root: Path) -> bool:
    """Say whether the job's storage knows that all receivers have the state's epoch."""
    with suppress(FileNotFoundError):
        return Files(sync=False).read(root / CONFIRMED_FILE).decode() == state.digest
    return False


def check_sinks_confirmed(state: JobState, root: Path) -> None:
    """Refuse to go past an epoch whose sinks may not have it, where there is no graph to ask.

    Raises:
        InvalidInputError: they have not confirmed it.
    """
    if state.sinks and not sinks_confirmed(state, root):
        names = sorted({part.operator for part in state.sinks})
        raise InvalidInputError(
            f"epoch {state.epoch} of job {state.job!r} sent rows to sinks {names}, which have not "
            "confirmed them yet; start the job, which passes them on, stop it, and try again",
            job=state.job,
            epoch=state.epoch,
        )
