"""Makes a committed epoch's outputs visible on the bus, any number of times the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.bus.spec import Producer
from headrace.coordinator.manifest import JobState
from headrace.errors import InternalError
from headrace.faults import fault
from headrace.task.orders import OutputPart

_PARTS = 1 << 20


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

    def place(part: OutputPart) -> tuple[str, int]:
        return part.stream, part.partition

    for (stream_name, partition), parts in groupby(sorted(state.outputs, key=place), place):
        stream = bus.stream(stream_name)
        files = [list(same) for _, same in groupby(parts, lambda part: part.path)]
        if len(files) >= _PARTS:
            raise InternalError(f"{len(files)} files for one partition", epoch=state.epoch)
        for number, same in enumerate(files):
            appended = stream.append_file(
                partition,
                root / same[0].path,
                _joined(same),
                producer=producer,
                sequence=sequence_of(state, number),
            )
            if not appended.duplicate and stream_name not in inner:
                rows += sum(part.rows for part in same)
            fault("epoch.output_published")
    return rows


def _joined(parts: Sequence[OutputPart]) -> list[tuple[int, int]]:
    """Ranges of a file, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for part in parts:
        if ranges and ranges[-1][1] == part.begin:
            ranges[-1] = (ranges[-1][0], part.end)
        else:
            ranges.append((part.begin, part.end))
    return ranges
