"""Keyed levels with a class of two streams between, on real Spark, each with its own tasks."""

from __future__ import annotations

from threading import Timer
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import SOON_S, World

import headrace as hr
from headrace.bus import StreamSpec
from headrace.coordinator.loop import Control
from headrace.coordinator.summary import EpochSummary
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

NEWS = pa.schema([("kind", pa.string()), ("at", pa.int64())])


class Kinds:
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
    events = g.input("events").partition_by("id", "kind", tasks=2)
    counts = events.window(hr.tumbling("10s"), n=hr.agg.count())
    streams = {
        "counts": counts.partition_by("kind", tasks=3).in_order(),
        "news": g.input("news").partition_by("kind").in_order(),
    }
    told = g.process(streams, Kinds, stores={"sums": int}, returns={"kind": str, "n": int})
    told.send_to(g.output("told"))
    by_kind = told.partition_by("kind", tasks=1)
    by_kind.window(hr.tumbling("1h"), most=hr.agg.max("n"), n=hr.agg.count()).send_to(
        g.output("most")
    )


def test_a_chain_is_the_same_in_one_epoch_and_in_many(spark: SparkSession, world: World) -> None:
    """Fed while it runs, and bounded from the beginning by another job over the same streams."""
    news = world.bus.create(StreamSpec("news", 1, NEWS, "at"))

    def feed() -> None:
        begin = len(world.log[0])
        world.feed(60)
        at = 1_000_000 + begin * 500
        rows = [{"kind": kind, "at": at + 1_000 * n} for n, kind in enumerate("abc")]
        news.append(0, pa.RecordBatch.from_pylist(rows, NEWS))

    feed()
    control, fed = Control(), 1

    def on_epoch(summary: EpochSummary) -> None:
        nonlocal fed
        if fed == 4:
            control.stop.set()
        else:
            feed()
            fed += 1

    giving_up = Timer(SOON_S, control.stop.set)
    giving_up.start()
    try:
        run_job(levels, world.settings(), control=control, on_epoch=on_epoch)
    finally:
        giving_up.cancel()
        giving_up.join()
    run_job(levels, world.settings("job.bounded=true"))
    counts = world.state("levels").task_counts
    assert sorted(counts.values()) == [1, 2, 3]
    found = [sorted(map(str, world.rows(stream))) for stream in ("told", "most")]
    assert sum(row["n"] for row in world.rows("most")) == len(found[0]) > 12

    @hr.job("again")
    def again(g: hr.Graph) -> None:
        renamed: Any = Renamed(g)
        levels.function(renamed)

    run_job(again, world.settings("job.bounded=true"))
    assert found == [sorted(map(str, world.rows(s))) for s in ("again-told", "again-most")]


class Renamed:
    """A graph whose outputs have other names."""

    def __init__(self, g: hr.Graph) -> None:
        self._g = g

    def __getattr__(self, name: str) -> Any:
        return getattr(self._g, name)

    def output(self, stream: str) -> Any:
        return self._g.output(f"again-{stream}")
