"""A job set back: to the begin of its inputs without state, or to an epoch that is kept.

Either is an epoch of its own that reads nothing and begins a lineage. 1. The outputs of the
last epoch are published, under the old lineage. 2. A base manifest says where the job stands
now. 3. Local stores are of the old lineage, so they are thrown away where they are met. What
was published stays on its streams; what is read again is published again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.changes.stopped import reigning
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.lineages import begin_lineage
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files

Offsets = Mapping[str, Sequence[int]]


def emptied(state: JobState, offsets: Offsets, lineage: str) -> JobState:
    """Return a job without state that reads its inputs from the given offsets.

    Its graph is open: the next driver brings its own, as for a new job.

    Args:
        state: after the last epoch, whose outputs are published.
        offsets: next offset of each partition, by input operator.
        lineage: a name that no other one ever has.
    """
    return JobState(
        job=state.job,
        lineage=lineage,
        generation=state.generation,
        epoch=state.epoch,
        time_ms=state.time_ms,
        digest="",
        key_groups=state.key_groups,
        fingerprint={},
        inputs={
            operator: {
                p: InputPosition(offset, read_ms=state.time_ms)
                for p, offset in enumerate(partitions)
            }
            for operator, partitions in offsets.items()
        },
        task_counts=state.task_counts,
        kept_from=state.kept_from,
        durability=state.durability,
        origin=state.origin or state.lineage,
        run=state.run + 1,
        hosts=state.hosts,
        story=state.story,
    )


def rewound(state: JobState, target: JobState, lineage: str) -> JobState:
    """Return a job as it was after an epoch that is kept, as the begin of a lineage.

    Args:
        state: after the last epoch, whose outputs are published.
        target: after the epoch to go back to.
        lineage: a name that no other one ever has.
    """
    is_rescaled = state.rescaled_at >= 0 or state.task_counts != target.task_counts
    return msgspec.structs.replace(
        begin_lineage(target, lineage),
        kept_from=state.kept_from,
        durability=state.durability,
        rescaled_at=state.epoch + 1 if is_rescaled else -1,
        origin=state.origin or state.lineage,
        hosts=state.hosts,
        story=state.story,
    )


def check_readable(target: JobState, streams: Mapping[str, str], bus: Bus) -> None:
    """Make sure that the inputs still hold what a job reads next after an epoch.

    Args:
        target: after that epoch.
        streams: of each input operator.
        bus: the streams.

    Raises:
        InvalidInputError: a stream has dropped records that would be read.
    """
    there = {*bus.names(), *bus.aliases()}
    for operator, positions in target.inputs.items():
        name = streams.get(operator, operator)
        if name not in there:
            continue
        begins = bus.stream(name).begins()
        for partition, position in positions.items():
            if partition < len(begins) and position.next_offset < begins[partition]:
                raise InvalidInputError(
                    f"epoch {target.epoch} reads on at offset {position.next_offset} of stream "
                    f"{name!r}, partition {partition}, which begins at {begins[partition]} by now; "
                    "rewind to a later epoch, or begin anew with: headrace jobs reset "
                    f"{target.job}",
                    stream=name,
                    partition=partition,
                )


def check_whole(reader: JobReader, epoch: int) -> None:
    """Refuse to go back to the first of two manifests, where they are saved one after the other.

    Raises:
        InvalidInputError: it is one; names the epochs beside it.
    """
    if reader.is_half(epoch):
        raise InvalidInputError(
            f"epoch {epoch} of job {reader.job!r} is the first half of a commit: state and offsets "
            "do not belong together, as its state_semantics have them saved one after the other; "
            f"rewind to {epoch - 1} or {epoch + 1}",
            job=reader.job,
        )


def epoch_at(reader: JobReader, time_ms: int) -> int:
    """Return the last kept epoch, no half, that was committed at or before a time, UTC ms.

    Raises:
        InvalidInputError: all that are kept are later.
    """
    kept = reader.kept()
    low, high = kept.oldest, kept.newest
    if reader.state(low).time_ms > time_ms:
        raise InvalidInputError(
            f"the oldest epoch of job {reader.job!r} that is kept, {low}, was committed after that "
            "time; rewind to a later one, or begin anew with: headrace jobs reset " + reader.job,
            job=reader.job,
        )
    while low < high:
        middle = (low + high + 1) // 2
        if reader.state(middle).time_ms <= time_ms:
            low = middle
        else:
            high = middle - 1
    while low > kept.oldest and reader.is_half(low):
        low -= 1
    return low


def set_back(
    root: Path,
    job: str,
    choose: Callable[[JobState], JobState],
    *,
    bus: Bus,
    files: Files,
    clock: Clock,
    copier: Copier | None = None,
) -> JobState:
    """Commit a job's new place; the caller holds its ``DriverLock``.

    Args:
        root: the job's storage.
        job: its name.
        choose: makes the new state of the last one: ``emptied`` or ``rewound``.
        bus: outputs of the last epoch may have to be published first.
        files: the file system.
        clock: time and names.
        copier: where epochs commit to this host's disk.

    Returns:
        The state since.

    Raises:
        InvalidInputError: the job has no epoch yet, or ``choose`` refuses.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """
    with reigning(root, job, bus, files, clock, copier) as (reign, publish):
        while True:
            publish()
            fault("set_back.published")
            if reign.publish_next(choose(reign.state)):
                fault("set_back.committed")
                break
    return reign.state
