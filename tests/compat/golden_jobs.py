"""Jobs that use every form of state and every format on disk, and the records that they read.

Written with the public API only: the same file runs under the code that makes a golden home
and under the code that has to read it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS = 2
EVENTS = {"id": pa.int64(), "name": pa.string(), "v": pa.int64(), "at": pa.int64()}
USERS = {"id": pa.int64(), "title": pa.string(), "level": pa.int64()}


class Visits:
    """Counts in a store, lists in one that expires, and one timer of each kind."""

    def process(self, message: Any, context: hr.Context) -> None:
        seen: hr.Store[int] = context.store("seen")
        recent: hr.Store[list[int]] = context.store("recent")
        n = seen.get(message.id, 0) + 1
        seen.put(message.id, n)
        recent.put(message.id, [*recent.get(message.id, []), message.v][-3:])
        context.emit({"id": message.id, "n": n, "recent": recent.get(message.id, [])})
        if n == 1:
            context.set_timer(message.at + 40_000, "later")

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"id": timer.key, "n": -1, "recent": []})


def _process(kind: str) -> hr.Job:
    @hr.job(f"process-{kind}")
    def job(g: hr.Graph) -> None:
        events = g.input("events", time="at", out_of_orderness="1s").partition_by("id")
        stores = (
            hr.store("seen", int, kind=kind),
            hr.store("recent", list[int], kind=kind, ttl="100d"),
        )
        returns = {"id": int, "n": int, "recent": list[int]}
        events.process(Visits, stores=stores, returns=returns, name="visits").send_to(
            g.output("out")
        )

    return job


@hr.job("windows")
def windows(g: hr.Graph) -> None:
    """All kinds of windows, early results and late records."""
    events = g.input("events", time="at", out_of_orderness="1s")
    keyed = events.partition_by("id")
    count, total = hr.agg.count(), hr.agg.sum("v")
    shapes: dict[str, Any] = {
        "tumbling": hr.tumbling("10s", allowed_lateness="2s"),
        "hopping": hr.hopping("20s", every="5s"),
        "sliding": hr.sliding("5s"),
        "session": hr.session("3s"),
        "early": hr.tumbling("10s", early="5s", allowed_lateness="5s", late="update"),
        "early_rows": hr.hopping("20s", every="10s", early_rows=5, updates="add"),
        "session_update": hr.session("3s", allowed_lateness="5s", late="update", updates="retract"),
        "counted": hr.count_window(4),
        "global": hr.global_window(rows=5),
    }
    for name, shape in shapes.items():
        keyed.window(shape, name=name, n=count, total=total).send_to(g.output(f"w.{name}"))
    keyed.window(
        hr.tumbling("30s"),
        name="sketched",
        ids=hr.agg.approx_distinct("v"),
        often=hr.agg.frequent("name", 2),
        middle=hr.agg.quantiles("v", [0.5]),
        first=hr.agg.first("name"),
        last=hr.agg.last("name"),
        all=hr.agg.collect("v"),
        top=hr.agg.top_k("v", 2),
        spread=hr.agg.variance("v"),
        mean=hr.agg.mean("v"),
        least=hr.agg.min("v"),
    ).send_to(g.output("w.sketched"))
    events.window(hr.tumbling("10s"), name="everybody", n=count).send_to(g.output("w.everybody"))


@hr.job("aggregates")
def aggregates(g: hr.Graph) -> None:
    """Totals, periodic ones, deduplication, reduce and fold, over columns and over RocksDB."""
    events = g.input("events", time="at", out_of_orderness="1s")
    by_id = events.partition_by("id")
    by_id.deduplicate(within="5s", name="first").send_to(g.output("first"))
    by_name = events.partition_by("name")
    for kind in ("columnar", "rocksdb", "memory"):
        by_name.aggregate(
            store=kind, name=f"totals-{kind}", n=hr.agg.count(), most=hr.agg.max("v")
        ).send_to(g.output(f"totals.{kind}"))
    by_name.aggregate(every="20s", name="periodic", total=hr.agg.sum("v")).send_to(
        g.output("periodic")
    )


@hr.job("joins")
def joins(g: hr.Graph) -> None:
    """Rows with rows, rows with a table, a table with a table."""
    events = g.input("events", time="at", out_of_orderness="1s").partition_by("id")
    users = g.table("users", key="id")
    others = g.input("events", time="at", out_of_orderness="1s", name="others").partition_by("id")
    events.join(others, within="2s", columns={"w": "v"}, name="pairs").send_to(g.output("pairs"))
    events.join(users, how="left", columns=["title"], name="titled").send_to(g.output("titled"))


@hr.job("parts")
def parts(g: hr.Graph) -> None:
    """Two parts joined by an internal stream, each with epochs of its own."""
    events = g.input("events", time="at", out_of_orderness="1s")
    by_id = events.partition_by("id", via="bus")
    counted = by_id.window(hr.tumbling("10s"), name="counted", n=hr.agg.count())
    counted.partition_by("n", via="bus").aggregate(name="often", many=hr.agg.count()).send_to(
        g.output("often")
    )


@hr.job("letters")
def letters(g: hr.Graph) -> None:
    """Dead letters of functions that raise."""
    events = g.input("events", time="at", out_of_orderness="1s")
    events.map(_checked, on_error="dead_letter", returns=EVENTS).send_to(g.output("good"))


def _checked(message: Any) -> dict[str, Any]:
    if message.v % 7 == 3:
        raise ValueError(f"{message.v} is refused")
    return {"id": message.id, "name": message.name, "v": message.v, "at": message.at}


JOBS: Mapping[str, hr.Job] = {
    job.name: job
    for job in (
        _process("rocksdb"),
        _process("memory"),
        windows,
        aggregates,
        joins,
        parts,
        letters,
    )
}


def open_job(job: hr.Job, home: Any) -> TestDriver:
    """A driver over streams on disk; the home stays when it is closed."""
    return TestDriver(job, home=home, memory_bus=False, tasks=3, slots=2, key_groups=16)


def create(driver: TestDriver) -> None:
    driver.create("events", EVENTS, partitions=PARTITIONS, time="at", key=("id",))
    driver.create("users", USERS, partitions=PARTITIONS, key=("id",), compact=True)


def records(step: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is fed in one step: events and users, the same whoever asks."""
    rng = random.Random(1000 + step)
    now, events = 1_000_000 + step * 15_000, []
    for _ in range(60):
        now += rng.randrange(500)
        events.append(
            {
                "id": rng.randrange(8),
                "name": rng.choice(["a", "b", "ü", None]),
                "v": rng.randrange(100),
                "at": now - rng.randrange(1_500),
            }
        )
    users = [
        {"id": rng.randrange(8), "title": rng.choice(["Dr", "Ms", None]), "level": step}
        for _ in range(4)
    ]
    return events, users


def feed(driver: TestDriver, step: int) -> None:
    events, users = records(step)
    driver.feed("users", users)
    for begin in range(0, len(events), 9):
        driver.feed("events", events[begin : begin + 9])
    driver.run()
