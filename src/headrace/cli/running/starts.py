"""Reads where a job is to begin: words for places in streams, and times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from headrace.bus.bus import Bus, Stream
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError

_OFFSET = re.compile(r"(?P<input>.+)/(?P<partition>\d+)=(?P<offset>\d+)")


def read_time(word: str, option: str, expected: str) -> int:
    """Return a time in ms; UTC where it has no zone.

    Args:
        word: ISO 8601, such as ``2013-01-31T05:15``.
        option: that it was given to.
        expected: what may stand there.

    Raises:
        InvalidInputError: it is no time.
    """
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        raise InvalidInputError(
            f"{option} {word!r} cannot be read; expected {expected} such as 2013-01-31T05:15"
        ) from None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def start_offsets(
    state: JobState, streams: Mapping[str, str], bus: Bus, start: str, single: Sequence[str]
) -> dict[str, list[int]]:
    """Return where each partition of each input begins.

    Args:
        state: of the job.
        streams: of each input operator; one that is not named has the stream of its own name.
        bus: the streams.
        start: ``earliest``, ``latest`` or a time, for all of them.
        single: ``INPUT/PARTITION=N`` each, which wins over ``start``.

    Raises:
        InvalidInputError: what cannot be read, or is not there.
    """
    at = None
    if start not in ("earliest", "latest"):
        at = read_time(start, "--from", "earliest, latest, or a time")
    there = {*bus.names(), *bus.aliases()}
    opened = {
        operator: bus.stream(streams.get(operator, operator))
        for operator in state.inputs
        if start != "earliest" or single or streams.get(operator, operator) in there
    }
    found = {operator: _places(stream, start, at) for operator, stream in opened.items()}
    for word in single:
        _set_one(found, opened, word)
    return found


def _places(stream: Stream, start: str, at: int | None) -> list[int]:
    if at is not None:
        return [stream.offset_at(p, at) for p in range(stream.spec.partitions)]
    return stream.begins() if start == "earliest" else stream.ends()


def _set_one(found: dict[str, list[int]], opened: Mapping[str, Stream], word: str) -> None:
    matched = _OFFSET.fullmatch(word)
    if matched is None:
        raise InvalidInputError(
            f"--offset {word!r} cannot be read; expected INPUT/PARTITION=N, such as "
            f"{next(iter(found), 'orders')}/0=1000"
        )
    name, partition, offset = matched["input"], int(matched["partition"]), int(matched["offset"])
    if name not in found:
        raise InvalidInputError(f"--offset {word}: no input {name!r}; found {', '.join(found)}")
    stream = opened[name]
    if partition >= stream.spec.partitions:
        raise InvalidInputError(
            f"--offset {word}: input {name!r} has partitions 0 to {stream.spec.partitions - 1}"
        )
    begin, end = stream.begins()[partition], stream.ends()[partition]
    if not begin <= offset <= end:
        raise InvalidInputError(f"--offset {word}: expected an offset from {begin} to {end}")
    found[name][partition] = offset
