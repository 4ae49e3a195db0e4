"""Makes a committed epoch's outputs visible on the bus, any number of times the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from headrace.bus.bus import Bus
from headrace.bus.spec import Producer
from headrace.coordinator.manifest import JobState
from headrace.errors import InternalError
from headrace.faults import fault
from headrace.task.orders import OutputPart

_PARTS = 1 << 20


class Appending(NamedTuple):
    """Frames of one file that are appended to a partition in one step, the n-th of their epoch."""

    stream: str
    partition: int
    number: int
    path: str
    ranges: list[tuple[int, int]]
    rows: int


def producer_of(state: JobState) -> Producer:
    """Return who appends what a job sends, under its lineage."""
    return Producer(f"job/{state.job}", state.lineage)


def sequence_of(state: JobState, number: int) -> int:
    """Return the sequence of an append of the last epoch, by its number in the partition."""
    return state.epoch * _PARTS + number


def publish_outputs(state: JobState, bus: Bus, root: Path, inner: Collection[str] = ()) -> int:
    """Append the outputs that the state names; returns the rows appended by this call.

    Rows of ``inner`` streams do not count: they do not leave the job.

    One append for each file of a partition, in a fixed order, under the producer
    (job, lineage) with a sequence made of the epoch and the append's number in the
    partition. Calling it again, from any process, appends what is missing.
    """
    producer = producer_of(state)
    rows = 0
    for one in appendings(state.outputs):
        if one.number >= _PARTS:
            raise InternalError(f"{one.number} files for one partition", epoch=state.epoch)
        appended = bus.stream(one.stream).append_file(
            one.partition,
            root / one.path,
            one.ranges,
            producer=producer,
            sequence=sequence_of(state, one.number),
        )
        if not appended.duplicate and one.stream not in inner:
            rows += one.rows
        fault("epoch.output_published")
    return rows


def appendings(parts: Iterable[OutputPart]) -> Iterator[Appending]:
    """Yield one append for each file of a partition, in a fixed order."""

    def place(part: OutputPart) -> tuple[str, int]:
        return part.stream, part.partition

    for (stream, partition), found in groupby(sorted(parts, key=place), place):
        files = groupby(found, lambda part: part.path)
        for number, (path, same) in enumerate(files):
            held = list(same)
            rows = sum(part.rows for part in held)
            yield Appending(stream, partition, number, path, _joined(held), rows)


def _joined(parts: Sequence[OutputPart]) -> list[tuple[int, int]]:
    """Ranges of a file, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        if ranges and ranges[-1][1] == part.begin:
            ranges[-1] = (ranges[-1][0], part.end)
        else:
            ranges.append((part.begin, part.end))
    return ranges
