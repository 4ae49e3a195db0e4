"""Delay radar: where flights out of New York are late, hour by hour.

    headrace run delay_radar:delay_radar

It reads the stream ``flights`` and sends to three others:

    route_delays    flights, mean and worst delay of each route in each hour, in minutes
    carrier_totals  flights and minutes of delay of each carrier so far, at the end of each day
    worst_routes    the ten routes with the greatest mean delay of each hour
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import headrace as hr


@dataclass
class WorstRoute:
    """One of the ten worst routes of an hour; rank 1 is the worst."""

    hour: datetime
    rank: int
    origin: str
    dest: str
    flights: int
    mean_delay: float
    worst_delay: int


def ranked(row: Any) -> Iterator[WorstRoute]:
    """Make one message of each route in an hour's list."""
    for rank, route in enumerate(row.top, start=1):
        yield WorstRoute(hour=row.hour, rank=rank, **route)


@hr.job("delay-radar")
def delay_radar(g: hr.Graph) -> None:
    """Watch the delays of routes and carriers."""
    flights = g.input("flights", time="departed_at")
    # A cancelled flight never left, so there is no delay to count.
    flown = flights.filter(hr.col("dep_delay").is_not_null())

    routes = flown.partition_by("origin", "dest").window(
        hr.tumbling("1h"),
        flights=hr.agg.count(),
        mean_delay=hr.agg.mean("dep_delay"),
        worst_delay=hr.agg.max("dep_delay"),
    )
    routes.send_to(g.output("route_delays"))

    carriers = flown.partition_by("carrier").aggregate(
        every="1d",
        flights=hr.agg.count(),
        delay=hr.agg.sum("dep_delay"),
    )
    carriers.send_to(g.output("carrier_totals"))

    columns = ["origin", "dest", "flights", "mean_delay", "worst_delay"]
    hours = routes.map(hr.col("window_start").alias("hour"), *columns).partition_by("hour")
    # Routes of equal delay are ranked by name, so that every run finds the same ten.
    tops = hours.window(
        hr.tumbling("1h"),
        top=hr.agg.top_k("mean_delay", 10, keep=["origin", "dest", "flights", "worst_delay"]),
    )
    tops.flat_map(ranked).send_to(g.output("worst_routes"))
