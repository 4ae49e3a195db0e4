"""A job on Spark that fails at one record, and the test that runs its epoch again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.cli import done
from tests.support.runs import JobControl, World, run_job

import headrace as hr
from headrace.errors import UserFunctionError
from headrace.testing import TestDriver

pytestmark = pytest.mark.spark

POISON = 99


class Picky:
    """Counts by id; cannot take one."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.id == POISON:
            raise ValueError("cannot take it")
        seen = context.store("seen")
        seen.put(message.id, seen.get(message.id, 0) + 1)
        context.emit({"id": message.id})


class Patient(Picky):
    """Lets it be."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.id != POISON:
            super().process(message, context)


def job(processor: type[Picky]) -> Any:
    @hr.job("picky")
    def made(g: hr.Graph) -> None:
        events = g.input("events", time="at").partition_by("id")
        events.process(processor, stores={"seen": int}, returns={"id": int}, name="picky").send_to(
            g.output("taken")
        )
        events.window(hr.tumbling("10s"), name="w", n=hr.agg.count()).send_to(g.output("windows"))

    return made


def test_what_failed_on_spark_fails_in_a_test(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.feed(30)
    control = JobControl()

    def on_epoch(_: Any) -> None:
        if len(world.log[0]) == 30:
            world.feed(20)
            world.append(1, [{**world.log[1][-1], "id": POISON}])

    with pytest.raises(UserFunctionError, match="cannot take it") as first:
        run_job(job(Picky), world.settings(), control=control, on_epoch=on_epoch)
    world.append(0, [{**world.log[0][-1], "id": 1}])  # came later
    file = tmp_path / "failed.replay"
    said = done("jobs", "replay", "picky", "-o", file, "--home", world.home)

    assert "which failed" in said
    with TestDriver.replay(job(Picky), file) as driver:
        assert driver.recording is not None
        assert driver.recording.rows == 41
        with pytest.raises(UserFunctionError, match="cannot take it") as again:
            driver.advance()
        assert again.value.message == first.value.message
    with TestDriver.replay(job(Patient), file) as driver:
        driver.advance()
        assert driver.counts["in"] == 101
        assert sum(driver.store("seen").values()) == 100

    run_job(job(Patient), world.settings("job.bounded=true"))
    assert sum(world.store("picky", "seen").values()) == 101
