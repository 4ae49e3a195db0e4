"""Spark's UI shows which epoch, level, operators and tasks a Spark job is of."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from pyspark.sql import SparkSession
from tests.support.jobs import counting, model, pass_gate
from tests.support.processes import until
from tests.support.runs import Epochs, World, on_spark

from headrace.errors import UnavailableError

pytestmark = pytest.mark.spark


def test_each_level_of_an_epoch_says_what_it_is(spark: SparkSession, world: World) -> None:
    world.feed(200)
    seen: list[str] = []
    groups: list[list[int]] = []

    def look(epochs: Epochs) -> None:
        if len(epochs) == 1:
            url = str(spark.sparkContext.uiWebUrl)
            assert url.startswith("http://127.0.0.1:")
            for page in ("jobs", "stages"):
                with urllib.request.urlopen(f"{url}/{page}/") as answer:
                    seen.append(answer.read().decode())
            number = epochs[0].epoch
            tracker = spark.sparkContext.statusTracker()
            for level in range(2):
                group = f"headrace counting epoch {number} level {level}"
                groups.append(tracker.getJobIdsForGroup(group))

    _, epochs = on_spark(counting(), world.settings("job.bounded=true"), look)
    number = epochs[0].epoch
    jobs, stages = seen
    assert f"counting epoch {number} level 0: events" in jobs
    assert f"counting epoch {number} level 1: by-id, count, " in jobs
    assert "slot 0: by-id 0" in stages
    assert all(groups)  # other tests of the session may have run epochs of that number
    assert "(kill)" not in jobs


def test_cancelling_a_job_group_stops_the_job_which_continues_when_started_again(
    spark: SparkSession, world: World
) -> None:
    """A slot waits in a user's function meanwhile, and is ended."""
    world.feed(200)
    group, tracker = "headrace counting epoch 2 level 1", spark.sparkContext.statusTracker()

    def cancel() -> None:
        until(lambda: world.at_gate("slow"), "a slot in a user's function")
        assert set(tracker.getJobIdsForGroup(group)) & set(tracker.getActiveJobsIds())
        spark.sparkContext.cancelJobGroup(group)

    slow = counting((7, 2), partial(pass_gate, world.gates, "slow"))
    with ThreadPoolExecutor() as beside:
        cancelled = beside.submit(cancel)
        with pytest.raises(UnavailableError, match=f"'{group}' was cancelled, so nothing of"):
            on_spark(slow, world.settings("job.bounded=true"))
        cancelled.result()
    world.open_gate("slow")
    on_spark(slow, world.settings("job.bounded=true"))
    assert world.found() == model(world.log)
