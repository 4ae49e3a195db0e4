"""A job that uses every kind of state, and a model of it in plain dicts.

The small one has a processor, windows, and windows of these in the next stage: enough where a test
is of what is done to a job, and twice as fast.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS = 3
WINDOW, LATENESS, EVERY, TIMER, WITHIN = 10_000, 1_000, 20_000, 5_000, 5_000
EPOCH = ("epoch.", "commit.", "slot.")
"""How the names begin of the fault points that epochs pass."""

COLUMNS = {"id": pa.int64(), "name": pa.string(), "v": pa.int64(), "at": pa.int64()}


class Count:
    """Counts per id, and sets one timer when an id is first seen."""

    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        seen = store.get(message.id, 0) + 1
        store.put(message.id, seen)
        context.emit({"id": message.id, "n": seen})
        if seen == 1:
            context.set_timer(message.at + TIMER)

    def on_timer(self, timer: Any, context: Any) -> None:
        context.emit({"id": timer.key, "n": -1})


def make_job(
    store: str,
    tables: str | None = None,
    via: Sequence[str] | Mapping[str, str] = (),
    *,
    small: bool = False,
) -> Any:
    """Return the job with stores of one kind, and aggregates in one or another.

    Rows of the named ``partition_by`` go through the bus, or by the way that is given.
    """
    tables = tables or store

    def way(name: str) -> str:
        if isinstance(via, Mapping):
            return via.get(name, "exchange")
        return "bus" if name in via else "exchange"

    @hr.job("world")
    def world(g: Any) -> None:
        events = g.input("events", time="at", out_of_orderness=f"{LATENESS}ms")
        by_id = events.filter(hr.col("id") >= 0).partition_by("id", name="by-id", via=way("id"))
        by_id.process(
            Count,
            stores=(hr.store("n", int, kind=store),),
            returns={"id": int, "n": int},
            name="count",
        ).send_to(g.output("counts"))
        windows = by_id.window(
            hr.tumbling(f"{WINDOW}ms"),
            store=tables,
            name="windows",
            c=hr.agg.count(),
            total=hr.agg.sum("v"),
            top=hr.agg.top_k("v", 2),
        )
        windows.send_to(g.output("windows"))
        windows.partition_by("window_start", via=way("window_start")).window(
            hr.tumbling(f"{WINDOW}ms"), store=tables, best=hr.agg.max("c")
        ).send_to(g.output("best"))
        if small:
            return
        first = by_id.deduplicate(within=f"{WITHIN}ms", name="first")
        parts = first.split(small=hr.col("v") < 50)
        both = parts["small"].map("id", "at").union(parts["default"])
        both.send_to(g.output("first"))
        by_name = events.partition_by("name", via=way("name"))
        by_name.aggregate(store=tables, name="totals", n=hr.agg.count())
        by_name.aggregate(
            every=f"{EVERY}ms", store=tables, name="periodic", total=hr.agg.sum("v")
        ).send_to(g.output("periodic"))

    return world


class World:
    """Feeds a driver and remembers everything that it fed.

    Args:
        driver: that runs the job.
        rng: decides what is fed.
        begin_ms: about the event time of the first row.
    """

    def __init__(self, driver: TestDriver, rng: random.Random, begin_ms: int = 100_000) -> None:
        self.driver, self._rng = driver, rng
        self.fed: Counter[tuple[Any, ...]] = Counter()
        self._now = begin_ms
        driver.create("events", COLUMNS, partitions=PARTITIONS, time="at", key=("id",))

    def feed(self, rows: int) -> None:
        """Append random rows, one append for each few of them."""
        made = []
        for _ in range(rows):
            self._now += self._rng.randrange(600)
            at = self._now - self._rng.randrange(4_000)
            row: dict[str, Any] = {
                "id": self._rng.randrange(12),
                "name": self._rng.choice("abc"),
                "v": self._rng.randrange(100),
                "at": at,
            }
            made.append(row)
            self.fed[tuple(row.values())] += 1
        for begin in range(0, len(made), 14):
            self.driver.feed("events", made[begin : begin + 14])

    @property
    def log(self) -> list[list[dict[str, Any]]]:
        """The records of each partition, which are those that were fed."""
        found = self.driver.partitions("events")
        assert Counter(tuple(row.values()) for part in found for row in part) == self.fed
        return found

    def check(self) -> None:
        """Compare state and outputs of the finished job with the model."""
        driver, log = self.driver, self.log
        expected = model(log)
        assert expected["store"] == driver.store("n")
        counts: dict[int, list[int]] = defaultdict(list)
        for row in driver.output("counts"):
            counts[row["id"]].append(row["n"])
        timers = {key: values.count(-1) for key, values in counts.items()}
        assert dict.fromkeys(expected["store"], 1) == timers
        in_order = {key: [n for n in values if n > 0] for key, values in counts.items()}
        assert {key: list(range(1, n + 1)) for key, n in expected["store"].items()} == in_order
        assert expected["windows"] == rows_of(driver, "windows")
        assert expected["best"] == rows_of(driver, "best")
        if "periodic" in driver.bus.names():
            first = Counter((r["id"], r["at"]) for r in driver.output("first"))
            assert expected["first"] == first
            assert expected["periodic"] == rows_of(driver, "periodic")
        counted = Counter[str]()
        for part in driver.parts:
            counted.update(part.state.counts)
        assert expected["late"] == counted["late"]
        assert sum(map(len, log)) == counted["in"]


def rows_of(driver: TestDriver, stream: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(_plain, row.values())) for row in driver.output(stream))


def _plain(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    return tuple(item["v"] for item in value) if isinstance(value, list) else value


def model(log: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Fold every record once, partition by partition, as the docs say it is done."""
    store: Counter[int] = Counter()
    windows: dict[tuple[int, int], list[int]] = defaultdict(list)
    buckets: dict[tuple[int, str], int] = defaultdict(int)
    late = 0
    first: Counter[tuple[int, int]] = Counter()
    for records in log:
        highest = None
        until: dict[int, int] = {}
        for row in records:
            watermark = -(1 << 62) if highest is None else highest - LATENESS
            highest = row["at"] if highest is None else max(highest, row["at"])
            store[row["id"]] += 1
            end = row["at"] // WINDOW * WINDOW + WINDOW
            if end <= watermark:
                late += 1
            else:
                windows[end, row["id"]].append(row["v"])
            if max(row["at"], watermark) >= until.get(row["id"], -(1 << 62)):
                until[row["id"]] = row["at"] + WITHIN
                first[row["id"], row["at"]] += 1
            bucket = max(row["at"], watermark) // EVERY * EVERY + EVERY
            buckets[bucket, row["name"]] += row["v"]
    best: dict[int, int] = defaultdict(int)
    for (end, _), values in windows.items():
        best[end] = max(best[end], len(values))
    totals: Counter[str] = Counter()
    periodic: Counter[tuple[Any, ...]] = Counter()
    for (bucket, name), value in sorted(buckets.items()):
        totals[name] += value
        periodic[name, bucket, totals[name]] += 1
    return {
        "store": dict(store),
        "late": late,
        "windows": Counter(
            (key, end - WINDOW, end, len(vs), sum(vs), tuple(sorted(vs, reverse=True)[:2]))
            for (end, key), vs in windows.items()
        ),
        "first": first,
        "best": Counter((end - WINDOW, end, most) for end, most in best.items()),
        "periodic": periodic,
    }
