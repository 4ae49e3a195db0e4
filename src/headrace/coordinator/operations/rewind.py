"""A job set back, or given other streams, by an epoch of its own that reads nothing.

To the begin of its inputs without state, or to an epoch that is kept, which begins a lineage: 1.
The outputs of the last epoch are published, under the old lineage. 2. A base manifest says where
the job stands now. 3. Local stores are of the old lineage, so they are thrown away where they
are met. What was published stays on its streams; what is read again is published again.

``accept_streams`` takes another stream of the same name for the one that a job reads; state
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.bus import Bus, Stream
from headrace.bus.spec import stream_replaced
from headrace.coordinator.inputs import table_key
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.manifest import InputPosition, JobState, begin_lineage
from headrace.coordinator.manifest_writer import FencedManifestWriter, fenced_writer
from headrace.errors import InvalidInputError
from headrace.faults import fault

Offsets = Mapping[str, Sequence[int]]


def without_state(
    state: JobState, offsets: Offsets, lineage: str, identities: Mapping[str, str] | None = None
) -> JobState:
    """Return a job without state that reads its inputs from the given offsets.

    Its graph is open: the next driver brings its own, as for a new job.

    Args:
        state: after the last epoch, whose outputs are published.
        offsets: next offset of each partition, by input operator.
        lineage: a name that no other one ever has.
        identities: of the streams that the offsets are of, by input operator.
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
        host_events=state.host_events,
        identities=dict(identities or {}),
    )


def current_identities(state: JobState, streams: Mapping[str, str], bus: Bus) -> dict[str, str]:
    """Return which streams the inputs of a job are by now; those that are gone are left out.

    Args:
        state: of the job.
        streams: of each input operator.
        bus: the streams.
    """
    there = {*bus.names(), *bus.aliases()}
    names = {operator: streams.get(operator, operator) for operator in state.inputs}
    found = {operator: bus.stream(n).identity for operator, n in names.items() if n in there}
    return {operator: identity for operator, identity in found.items() if identity}


def state_at_epoch(state: JobState, target: JobState, lineage: str) -> JobState:
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
        host_events=state.host_events,
    )


def check_readable(target: JobState, streams: Mapping[str, str], bus: Bus) -> None:
    """Make sure that the inputs still hold what a job reads next after an epoch.

    Args:
        target: after that epoch.
        streams: of each input operator.
        bus: the streams.

    Raises:
        InvalidInputError: a stream has dropped records that would be read.
        StreamReplacedError: a stream is another one by now.
    """
    there = {*bus.names(), *bus.aliases()}
    for operator, positions in target.inputs.items():
        name = streams.get(operator, operator)
        if name not in there:
            continue
        stream = bus.stream(name)
        expected = target.identities.get(operator, stream.identity)
        if stream.identity not in {"", expected}:
            raise stream_replaced(
                name,
                stream.identity,
                expected,
                f"job {target.job!r} up to epoch {target.epoch}",
                f"start over with: headrace jobs reset {target.job}",
            )
        begins = stream.begins()
        for partition, position in positions.items():
            if partition < len(begins) and position.next_offset < begins[partition]:
                raise InvalidInputError(
                    f"epoch {target.epoch} continues at offset {position.next_offset} of stream "
                    f"{name!r}, partition {partition}, which now begins at {begins[partition]}; "
                    "rewind to a later epoch, or start over with: headrace jobs reset "
                    f"{target.job}",
                    stream=name,
                    partition=partition,
                )


def check_not_half(reader: JobReader, epoch: int) -> None:
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
            "time; rewind to a later one, or start over with: headrace jobs reset " + reader.job,
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


def rewind_job(
    context: JobContext,
    root: Path,
    choose: Callable[[JobState], JobState],
) -> JobState:
    """Commit a job's new place; the caller holds its ``DriverLock``.

    Args:
        context: of the job.
        root: its storage, or that of a part.
        choose: makes the new state of the last one: ``without_state`` or ``state_at_epoch``.

    Returns:
        The state since.

    Raises:
        InvalidInputError: the job has no epoch yet, or ``choose`` refuses.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """
    with fenced_writer(context, root) as (writer, publish):
        return commit_position(writer, publish, choose)


def commit_position(
    writer: FencedManifestWriter,
    publish: Callable[[], object],
    choose: Callable[[JobState], JobState],
) -> JobState:
    """Commit where a job stands from now on; return the state since.

    Args:
        writer: that has begun.
        publish: brings out the outputs of the last epoch, unless that was done.
        choose: makes the new state of the last one.

    Raises:
        InvalidInputError: ``choose`` refuses.
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        publish()
        fault("set_back.published")
        if writer.publish_next(choose(writer.state)):
            fault("set_back.committed")
            return writer.state


StartOffsets = Callable[[Stream, Mapping[int, InputPosition]], list[int]]
"""Given a new stream, and how far the old one was read: where each of its partitions is begun."""


class ReplacedStream(NamedTuple):
    """An input, or the stream of a broadcast store, that is another one than was read."""

    name: str
    stream: str
    identity: str
    is_table: bool


def replaced_streams(state: JobState, reader: JobReader, bus: Bus) -> list[ReplacedStream]:
    """Return the streams of a part that are others now; internal ones are left out.

    Args:
        state: after its last epoch.
        reader: of it.
        bus: the streams.
    """
    catalog = reader.catalog(state)
    names = catalog.own(catalog.inputs)
    tables = {table_key(one.name, one.stream): one.stream for one in catalog.tables if one.stream}
    there = {*bus.names(), *bus.aliases()}
    found = []
    for name, stream in {**names, **tables}.items():
        expected = state.identities.get(name)
        if expected and stream in there and bus.stream(stream).identity != expected:
            found.append(ReplacedStream(name, stream, bus.stream(stream).identity, name in tables))
    return found


def accept_streams(
    context: JobContext,
    readers: Mapping[Path, JobReader],
    start: StartOffsets,
) -> dict[str, list[int]]:
    """Let a job continue in other streams; the caller holds the ``DriverLock`` of the first part.

    Args:
        context: of the job.
        readers: of its parts, by the storage that epochs commit to.
        start: chooses where a new stream is begun.

    Returns:
        The offsets that are read next, by input; of broadcast stores none.

    Raises:
        InvalidInputError: no stream is another one, ``start`` refuses, or the job is in the middle
            of a bounded run, whose ends are those of the old stream.
        NotOwnerError: a driver elsewhere took over meanwhile.
    """
    accepted: dict[str, list[int]] = {}
    bus = context.bus

    def choose(state: JobState, reader: JobReader) -> JobState:
        found = replaced_streams(state, reader, bus)
        if found and state.until is not None and not state.ended:
            raise InvalidInputError(
                f"job {reader.job!r} is in the middle of a bounded run that ends in streams which "
                f"are gone; start it over with: headrace jobs reset {reader.job}",
                job=reader.job,
            )
        offsets = {
            one.name: start(bus.stream(one.stream), state.inputs.get(one.name, {}))
            for one in found
            if not one.is_table
        }
        accepted.update(offsets | {one.name: [] for one in found if one.is_table})
        return _in_others(state, offsets, {one.name: one.identity for one in found})

    others = {
        root: reader
        for root, reader in readers.items()
        if replaced_streams(reader.state(), reader, bus)
    }
    if not others:
        raise InvalidInputError(
            f"job {context.job!r} has read no other streams than those that there are; nothing is "
            "to be accepted",
            job=context.job,
        )
    for reader in others.values():
        choose(reader.state(), reader)  # refused before anything is done
    for root, reader in others.items():
        rewind_job(context, root, partial(chosen_state, choose, reader))
    return accepted


def chosen_state(
    choose: Callable[[JobState, JobReader], JobState], reader: JobReader, before: JobState
) -> JobState:
    """Return the new state of the part that a reader is of."""
    return choose(before, reader)


def _in_others(
    state: JobState, offsets: Mapping[str, list[int]], identities: Mapping[str, str]
) -> JobState:
    inputs = {
        operator: {p: InputPosition(at, read_ms=state.time_ms) for p, at in enumerate(partitions)}
        for operator, partitions in offsets.items()
    }
    return msgspec.structs.replace(
        state,
        inputs={**state.inputs, **inputs},
        identities={**state.identities, **identities},
        bootstrap={name: ends for name, ends in state.bootstrap.items() if name not in inputs},
    )
