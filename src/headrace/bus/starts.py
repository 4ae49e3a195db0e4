"""Where to begin reading a stream: its earliest rows, its end, or an event time."""

from __future__ import annotations

from headrace.bus.bus import Stream
from headrace.config.starts import EARLIEST, LATEST, Start


def start_offsets(stream: Stream, start: Start) -> list[int]:
    """Return the offset of each partition at which reading begins.

    Args:
        stream: to read.
        start: ``earliest``, ``latest``, or an event time in ms: see ``Stream.offset_at``.

    Raises:
        InvalidInputError: a time, and the stream has no event-time column.
    """
    if start == EARLIEST:
        return stream.begins()
    if start == LATEST:
        return stream.ends()
    return [stream.offset_at(partition, int(start)) for partition in range(len(stream.ends()))]
