"""Computes what the job must have found once more, in DuckDB from the file of the flights.

It shares nothing with the job but that file. Equal means equal: every row, every digit,
and for each key the order in which its results were sent.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bus.bus import Bus
from headrace.demo.flights import data_file
from headrace.demo.outputs import OFFSET, OUTPUTS, PARTITION, read_all

_FLOWN = """
create table flown as
select
    time_hour::timestamptz + to_minutes(minute::bigint) as departed_at,
    origin, dest, carrier, dep_delay::bigint as dep_delay
from read_csv($file, nullstr = 'NA', types = {'dep_delay': 'bigint', 'time_hour': 'varchar'})
where dep_delay is not null
"""
_ROUTES = """
create table expected_route_delays as
select
    origin, dest,
    time_bucket(interval 1 hour, departed_at) as window_start,
    time_bucket(interval 1 hour, departed_at) + interval 1 hour as window_end,
    count(*) as flights,
    sum(dep_delay)::double / count(*) as mean_delay,
    max(dep_delay) as worst_delay
from flown
group by all
"""
_CARRIERS = """
create table expected_carrier_totals as
with days as (
    select
        carrier, date_trunc('day', departed_at) + interval 1 day as "at",
        count(*) as flights, sum(dep_delay) as delay
    from flown
    group by all
)
select
    carrier, "at",
    (sum(flights) over so_far)::bigint as flights,
    (sum(delay) over so_far)::bigint as delay
from days
window so_far as (partition by carrier order by "at")
"""
_WORST = """
create table expected_worst_routes as
select
    window_start as "hour",
    row_number() over (
        partition by window_start order by mean_delay desc, origin, dest
    ) as rank,
    origin, dest, flights, mean_delay, worst_delay
from expected_route_delays
qualify rank <= 10
"""
_ORDERED_BY = {
    "route_delays": ("origin, dest", "window_start"),
    "carrier_totals": ("carrier", '"at"'),
    "worst_routes": ('"hour"', "rank"),
}


@dataclass(frozen=True)
class Comparison:
    """How the output of one name compares with what DuckDB found.

    ``missing`` and ``unexpected`` count rows, ``disordered`` those that a row of the same key
    should have preceded, or that lie in another partition than the rest of their key.
    """

    output: str
    rows: int
    expected: int
    missing: int
    unexpected: int
    disordered: int

    @property
    def is_equal(self) -> bool:
        """Say whether nothing differs."""
        return not (self.missing or self.unexpected or self.disordered)

    def __str__(self) -> str:
        """Return one line."""
        if self.is_equal:
            return f"{self.output}: {self.rows:,} rows, equal to DuckDB's"
        return (
            f"{self.output}: found {self.rows:,} rows, expected {self.expected:,}; "
            f"{self.missing:,} are missing, {self.unexpected:,} are not expected, "
            f"{self.disordered:,} are out of order"
        )


def check_outputs(bus: Bus) -> list[Comparison]:
    """Compare the outputs of a finished run with DuckDB's, one comparison for each.

    Raises:
        ImportError: DuckDB is not installed.
    """
    import duckdb  # noqa: PLC0415 - the demo runs without it, unchecked

    with duckdb.connect() as database, tempfile.TemporaryDirectory() as folder:
        file = {"file": str(data_file("flights", Path(folder)))}
        database.execute("set timezone = 'UTC'").fetchall()
        database.execute(_FLOWN, file).fetchall()
        for statement in (_ROUTES, _CARRIERS, _WORST):
            database.execute(statement).fetchall()
        return [_compare(database, bus, output) for output in OUTPUTS]


def _compare(database: Any, bus: Bus, output: str) -> Comparison:
    found = read_all(bus.stream(output))
    database.register("found", found)
    columns = ", ".join(f'"{n}"' for n in found.schema.names if n not in (PARTITION, OFFSET))
    expected = f"select {columns} from expected_{output}"
    actual = f"select {columns} from found"
    key, order = _ORDERED_BY[output]
    disordered = f"""
        select 1 from found
        window of_key as (partition by {key} order by "{PARTITION}", "{OFFSET}")
        qualify lag({order}) over of_key >= {order}
            or lag("{PARTITION}") over of_key <> "{PARTITION}"
    """

    def count(query: str) -> int:
        (row,) = database.execute(f"select count(*) from ({query})").fetchall()
        return int(row[0])

    return Comparison(
        output,
        rows=found.num_rows,
        expected=count(expected),
        missing=count(f"({expected}) except all ({actual})"),
        unexpected=count(f"({actual}) except all ({expected})"),
        disordered=count(disordered),
    )
