"""A monoid on Spark: totals here and on a real Redis are the same, though a worker is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import World

import headrace as hr
from headrace.bench.redis import RedisServer
from headrace.graph.jobs import Job
from headrace.spark.run import run_job

pytestmark = [pytest.mark.spark, pytest.mark.servers]


class Kinds(hr.MonoidProcessor[tuple[str, int], int]):
    """Adds up values by kind and parity; ends its worker once, in the midst of an epoch."""

    def __init__(self, deaths: Path | None = None) -> None:
        self.deaths = deaths

    def process(self, event: Any) -> Iterator[tuple[tuple[str, int], int]]:
        if self.deaths is not None and event.at == 1_000_000 + 150 * 500:
            try:
                self.deaths.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        yield (event.kind, event.id % 2), event.v

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


def tallied(state: Any, deaths: Path) -> Job:
    @hr.job("tallied")
    def tallied(g: hr.Graph) -> None:
        events = g.input("events")
        key = {"kind": str, "odd": int}
        events.monoid(partial(Kinds, deaths), key, state)
        events.monoid(Kinds, key, every="1h", name="hourly").send_to(g.output("hourly"))

    return tallied


def test_totals_here_and_on_a_server_outlive_a_worker(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.feed(300)
    deaths = tmp_path / "died"
    with RedisServer(tmp_path / "redis") as server:
        state = hr.sinks.redis_partials(server.url, "kinds:", compact_at=2)
        settings = world.settings("job.bounded=true", "epoch.max_rows=200")
        result = run_job(tallied(state, deaths), settings)
        assert result.state.ended
        assert deaths.exists()
        with state.totals(Kinds) as totals:
            found = dict(totals.items())
    wanted = Counter[tuple[str, int]]()
    for row in (row for rows in world.log for row in rows):
        wanted[row["kind"], row["id"] % 2] += row["v"]
    assert found == wanted
    last = {(row["kind"], row["odd"]): row["value"] for row in world.rows("hourly")}
    assert last == wanted
