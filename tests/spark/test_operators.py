"""Jobs of every kind on Spark come to what the driver of tests comes to, which has no Spark.

How results depend on rows is shown in ``tests/sim``; here, that functions, classes, tables and
messages of each kind of operator reach the workers, and that results of small epochs come back.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.plans import SendTo
from tests.support.runs import Epochs, World, on_spark

import headrace as hr
from headrace.testing import TestDriver

pytestmark = pytest.mark.spark

ROWS = 120
NEWS = pa.schema([("kind", pa.string()), ("at", pa.int64())])
KINDS = pa.schema([("kind", pa.string()), ("factor", pa.int64())])


def fill(world: World) -> None:
    """Feed rows whose keys are each in one partition, at times of their own: one order of each."""
    for partition in range(2):
        world.append(
            partition,
            [
                {
                    "id": n * 7 % 20 * 2 + partition,
                    "kind": "abc"[n % 3],
                    "v": n * n % 101,
                    "at": 1_000_000 + n * 500 + partition * 100,
                }
                for n in range(ROWS)
            ],
        )
    world.create("news", NEWS, time="at")
    news = [(kind, 1_000_050 + n * 9_000) for n, kind in enumerate("abcabc")]
    world.send("news", [{"kind": kind, "at": at} for kind, at in news], 0)
    world.create("kinds", KINDS, partitions=2, key=["kind"])
    for factor in (1, 3):
        rows = [{"kind": kind, "factor": factor * n} for n, kind in enumerate("abc", 1)]
        world.send("kinds", rows)


def spread(key: int, window: Any, messages: list[Any]) -> Iterable[dict[str, int]]:
    """The least and the greatest value of a session."""
    values = [message.v for message in messages]
    yield {"low": min(values), "high": max(values)}


@hr.job("windows")
def windows(g: hr.Graph) -> None:
    events = g.input("events", time="at", out_of_orderness="2s")
    keyed = events.partition_by("id")
    kinds: dict[str, Any] = {
        "hops": hr.hopping("9s", every="3s"),
        "trail": hr.sliding("30s"),
        "visits": hr.session("15s"),
        "dozens": hr.count_window(3),
        "all": hr.global_window(),
        "early": hr.tumbling("1m", early="10s", updates="retract"),
        "growing": hr.session("15s", early="5s", updates="retract"),
        "quiet": hr.hopping("30s", "15s", early_idle="4s", updates="add"),
    }
    for name, window in kinds.items():
        more: dict[str, Any] = {"s": hr.agg.sum("v"), "d": hr.agg.approx_distinct("v")}
        keyed.window(window, name=name, n=hr.agg.count(), **more).send_to(g.output(name))
    events.window(hr.tumbling("10s"), n=hr.agg.count()).send_to(g.output("everybody"))
    spans = keyed.process_window(
        hr.session("15s"), spread, {"low": int, "high": int}, uses=["v"], name="spanned"
    )
    spans.send_to(g.output("spans"))


@hr.job("joins")
def joins(g: hr.Graph) -> None:
    """Streams with each other, with a table as of event time, and a table that is filled first."""
    sides = g.input("events", time="at", out_of_orderness="5s").split(even=hr.col("v") % 2 == 0)
    evens, odds = (sides[name].partition_by("id") for name in ("even", "default"))
    pairs = evens.join(odds, within="12s", how="full", columns={"w": "v", "then": "at"})
    pairs.map("id", "v", "w", "at", "then").send_to(g.output("pairs"))
    held = evens.table(history="1d")
    asked = odds.join(held, how="left", columns={"w": "v"}, as_of="event")
    asked.map("id", "v", "at", "w").send_to(g.output("asked"))
    last = g.table("kinds", key="kind", name="last", bootstrap=True)
    last.changes().map("kind", "factor", "is_deleted").send_to(g.output("changed"))


class Sums:
    """Adds up what windows count, and says the sum a while after and whenever there is news."""

    def process_counts(self, count: Any, context: hr.Context) -> None:
        sums = context.store("sums")
        sums.put(context.key, sums.get(context.key, 0) + count.n)
        assert context.time is not None
        context.set_timer(context.time + 15_000)

    def process_news(self, news: Any, context: hr.Context) -> None:
        context.emit({"kind": context.key, "n": context.store("sums").get(context.key, 0)})

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"kind": timer.key, "n": context.store("sums").get(timer.key)})


@hr.job("levels")
def levels(g: hr.Graph) -> None:
    """Several keyed levels with tasks of their own, a class of two streams, and timers."""
    events = g.input("events", time="at").partition_by("id", "kind", tasks=2)
    counts = events.window(hr.tumbling("10s"), n=hr.agg.count())
    streams = {
        "counts": counts.partition_by("kind", tasks=3).in_order(),
        "news": g.input("news", time="at").partition_by("kind").in_order(),
    }
    told = g.process(streams, Sums, stores={"sums": int}, returns={"kind": str, "n": int})
    told.send_to(g.output("told"))
    by_kind = told.partition_by("kind", tasks=1)
    by_kind.window(hr.tumbling("1h"), most=hr.agg.max("n"), n=hr.agg.count()).send_to(
        g.output("most")
    )


def odd(message: Any) -> Any:
    if message.id % 4 == 1:
        return hr.to("ones", {"id": message.id, "way": "function"})
    return {"id": message.id}


class Sorter:
    def process(self, message: Any, context: hr.Context) -> None:
        if message.id % 3 == 0:
            context.emit({"id": message.id, "way": "processor"}, to="thirds")
        else:
            context.emit({"id": message.id})


@hr.job("routes")
def routes(g: hr.Graph) -> None:
    """Rows without their copies, by way of a branch, a function's side or a processor's side."""
    way = {"id": int, "way": str}
    first = g.input("events", time="at").partition_by("id").deduplicate(within="30d", name="once")
    parts = first.split(even=lambda message: message.id % 2 == 0)
    evens = parts["even"].process(Sorter, returns={"id": int}, sides={"thirds": way})
    odds = parts["default"].map(odd, returns={"id": int}, sides={"ones": way})
    odds.side("ones").union(evens.side("thirds"), evens, odds).send_to(g.output("routed"))


class Ask(hr.AsyncProcessor):
    async def process(self, message: Any, context: hr.Context) -> None:
        await asyncio.sleep(0.1 if message.id % 7 == 0 else 0.001)  # longer than an epoch
        context.emit({"id": message.id})


class CountLater:
    async def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        before = store.get(message.id, 0)
        await asyncio.sleep(0.1 if message.id % 5 == 0 else 0.001)
        store.put(message.id, before + 1)
        context.emit({"id": message.id, "n": before + 1})


@hr.job("calls")
def calls(g: hr.Graph) -> None:
    """Asynchronous processors in both kinds of stages."""
    first = g.input("events").process(Ask, returns={"id": int}, max_concurrency=50)
    counted = first.partition_by("id").process(
        CountLater, {"n": int}, {"id": int, "n": int}, order="key", max_concurrency=50
    )
    counted.send_to(g.output("called"))


class Kinds(hr.MonoidProcessor[tuple[str, int], int]):
    """Adds up values by kind and parity."""

    def process(self, event: Any) -> Iterator[tuple[tuple[str, int], int]]:
        yield (event.kind, event.id % 2), event.v

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


class Multiply:
    """Multiplies by the factor of a kind; the first worker that comes to an id dies there."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def process(self, message: Any, context: Any) -> None:
        if message.id == 21 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        kind, n = context.store("kinds").get(message.kind), context.store("n")
        n.put(message.id, n.get(message.id, 0) + 1)
        context.emit((message.id, message.v * kind.factor, n.get(message.id), message.label))


def lookups(folder: Path) -> hr.Job:
    """Broadcast stores, which all workers see alike, also one that takes another's place."""
    (folder / "labels.csv").write_text("kind,label\na,first\nb,second\n")

    @hr.job("lookups")
    def lookups(g: hr.Graph) -> None:
        events = g.input("events", time="at")
        kinds = hr.broadcast("kinds", stream="kinds", key="kind")
        labels = hr.broadcast("labels", file=str(folder / "labels.csv"), key="kind")
        events.join_table(labels, columns=["label"]).partition_by("id").process(
            lambda: Multiply(folder / "died"),
            stores=[hr.store("n", int), kinds],
            returns={"id": int, "times": int, "n": int, "label": str},
        ).send_to(g.output("times"))
        totals = events.monoid(Kinds, {"kind": str, "odd": int}, every="1h", name="hourly")
        totals.send_to(g.output("hourly"))

    return lookups


def in_tests(job: hr.Job, world: World) -> dict[str, Counter[str]]:
    """What the driver of tests makes of the same streams, in one thread."""
    with TestDriver(job) as driver:
        for name in ("events", "news", "kinds"):
            stream = world.bus.stream(name)
            driver.bus.create(stream.spec)
            for partition in range(stream.spec.partitions):
                for part in stream.read(partition, 0):
                    driver.bus.stream(name).append(partition, part.batch)
        driver.finish()
        return {name: rows(driver.output(name)) for name in outputs(job)}


def outputs(job: hr.Job) -> list[str]:
    return [one.stream for one in job.build().operators if isinstance(one, SendTo)]


def rows(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(map(repr, found))


def stop_soon(epochs: Epochs) -> None:
    if len(epochs) == 2:
        epochs.stop()


@pytest.mark.parametrize("kind", ["windows", "joins", "levels", "routes", "calls", "lookups"])
def test_results_on_spark_are_those_of_the_driver_of_tests(
    spark: SparkSession, world: World, kind: str
) -> None:
    """In small epochs over two runs; a worker dies while it looks things up."""
    made = [windows, joins, levels, routes, calls, lookups(world.gates)]
    (job,) = [one for one in made if one.name == kind]
    fill(world)
    small = ("epoch.max_rows=60", "epoch.wait_ms=50")
    _, epochs = on_spark(job, world.settings(*small), stop_soon)
    result, rest = on_spark(job, world.settings(*small, "job.bounded=true"))
    assert result.state.ended
    assert len(epochs) + len(rest) >= 4
    assert sum(task.waiting for task in result.state.tasks.values()) == 0
    assert (world.gates / "died").exists() == (kind == "lookups")
    expected = in_tests(job, world)
    assert expected
    assert all(expected.values())
    assert expected == {name: rows(world.rows(name)) for name in expected}
