"""Split, side, union and deduplicated streams on Spark, over several epochs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import World

import headrace as hr
from headrace.graph.jobs import Job
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


def routed() -> Job:
    """Every row once, by way of a branch, a function's side or a processor's side."""

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

    @hr.job("routed")
    def made(g: hr.Graph) -> None:
        way = {"id": int, "way": str}
        first = g.input("events").partition_by("id").deduplicate(within="30d", name="once")
        parts = first.split(even=lambda message: message.id % 2 == 0)
        evens = parts["even"].process(Sorter, returns={"id": int}, sides={"thirds": way})
        odds = parts["default"].map(odd, returns={"id": int}, sides={"ones": way})
        told = odds.side("ones").union(evens.side("thirds"), evens, odds)
        told.send_to(g.output("told"))

    return made


def way_of(key: int) -> str | None:
    if key % 2 == 0:
        return "processor" if key % 3 == 0 else None
    return "function" if key % 4 == 1 else None


def test_every_id_is_told_once_by_its_way(spark: SparkSession, world: World) -> None:
    world.feed(120)

    result = run_job(routed(), world.settings("job.bounded=true", "epoch.max_rows=80"))

    ids = {row["id"] for rows in world.log for row in rows}
    assert result.state.ended
    assert result.epochs >= 3
    assert result.state.counts["duplicates"] == 240 - len(ids)
    told = Counter((row["id"], row["way"]) for row in world.rows("told"))
    assert told == Counter((key, way_of(key)) for key in ids)
