"""A job like the demo's, for the tests of plans: two branches, three levels."""

from __future__ import annotations

import pyarrow as pa
from tests.support.plans import StreamInfo

import headrace as hr

MOMENT = pa.timestamp("us", tz="UTC")
FLIGHTS = pa.schema(
    [
        ("departed_at", MOMENT),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("carrier", pa.string()),
        ("tailnum", pa.string()),
        ("distance", pa.int64()),
        ("dep_delay", pa.float64()),
    ]
)
STREAMS = {"flights": StreamInfo(FLIGHTS, 4, "departed_at")}


@hr.job("delay-radar")
def radar(g: hr.Graph) -> None:
    flown = g.input("flights", out_of_orderness="10m").filter(hr.col("dep_delay").is_not_null())
    hourly = flown.partition_by("origin", "dest").window(
        hr.tumbling("1h", allowed_lateness="5m"),
        name="hourly",
        flights=hr.agg.count(),
        mean=hr.agg.mean("dep_delay"),
        worst=hr.agg.max("dep_delay"),
    )
    hourly.send_to(g.output("routes"))
    carriers = flown.partition_by("carrier").aggregate(every="1d", flights=hr.agg.count())
    carriers.send_to(g.output("carriers"))
    worst = hourly.partition_by("window_start").window(
        hr.tumbling("1h"), name="worst", top=hr.agg.top_k("mean", 10, keep=("origin", "dest"))
    )
    worst.send_to(g.output("worst", partitions=1))
