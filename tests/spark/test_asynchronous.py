"""Asynchronous processors on Spark, in both kinds of stages, with calls longer than epochs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import World

import headrace as hr
from headrace.graph.jobs import Job
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark


def asking() -> Job:
    """Every row is asked about twice, and counted by its id."""

    class Ask(hr.AsyncProcessor):
        async def process(self, message: Any, context: hr.Context) -> None:
            await asyncio.sleep(0.3 if message.id % 7 == 0 else 0.001)
            context.emit({"id": message.id})

    class Count:
        async def process(self, message: Any, context: hr.Context) -> None:
            store = context.store("n")
            before = store.get(message.id, 0)
            await asyncio.sleep(0.3 if message.id % 5 == 0 else 0.001)
            store.put(message.id, before + 1)
            context.emit({"id": message.id, "n": before + 1})

    @hr.job("asking")
    def made(g: hr.Graph) -> None:
        columns = {"id": int, "n": int}
        first = g.input("events").process(Ask, returns={"id": int}, max_concurrency=50)
        counted = first.partition_by("id").process(
            Count, stores={"n": int}, returns=columns, order="key", max_concurrency=50
        )
        counted.send_to(g.output("counted"))

    return made


def test_every_row_counts_once_though_calls_are_longer_than_epochs(
    spark: SparkSession, world: World
) -> None:
    world.feed(120)

    wanted = ("job.bounded=true", "epoch.max_rows=60", "epoch.wait_ms=50")
    result = run_job(asking(), world.settings(*wanted))

    ids = Counter(row["id"] for rows in world.log for row in rows)
    assert result.state.ended
    assert result.epochs >= 5
    expected = {(key, n) for key, count in ids.items() for n in range(1, count + 1)}
    found = [(row["id"], row["n"]) for row in world.rows("counted")]
    assert sorted(found) == sorted(expected)
    assert sum(task.waiting for task in result.state.tasks.values()) == 0
