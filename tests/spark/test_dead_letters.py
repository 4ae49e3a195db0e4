"""Bad records on Spark: kept with where they came from, and functions that do not end are ended."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.processes import SystemClock
from tests.support.runs import World, run_job
from tests.support.watching import from_record

import headrace as hr
from headrace import Job
from headrace.errors import CallTimeoutError

pytestmark = pytest.mark.spark

POISON = 99
OUT = pa.schema([("id", pa.int64())])


def picky(on_error: str, *, waits: bool = False) -> Job:
    """A job that cannot take one id, or waits for ever when it meets it."""

    class Picky:
        def process(self, message: Any, context: hr.Context) -> None:
            if message.id == POISON and waits:
                SystemClock().sleep(3600)
            if message.id == POISON:
                raise ValueError("cannot take it")
            context.emit({"id": message.id})

    def passed(message: Any) -> dict[str, Any]:
        if message.id == POISON and waits:
            SystemClock().sleep(3600)
        return {"id": message.id}

    @hr.job("picky")
    def made(g: hr.Graph) -> None:
        events = g.input("events").map(passed, returns=OUT, name="passed", on_error=on_error)
        done = events.partition_by("id").process(
            Picky, returns=OUT, name="picky", on_error=on_error
        )
        done.send_to(g.output("taken"))

    return made


@pytest.mark.parametrize("waits", [False, True])
def test_bad_records_are_kept_and_the_others_go_on(
    spark: SparkSession, world: World, waits: bool
) -> None:
    world.feed(50)
    bad = {**world.log[1][-1], "id": POISON}
    world.append(1, [bad, bad])
    sets = ["job.bounded=true", "job.call_timeout_s=0.5"]

    result = run_job(picky("dead_letter", waits=waits), world.settings(*sets))

    letters = world.rows("picky.dead")
    assert result.state.ended
    assert len(world.rows("taken")) == 100
    assert {one["operator"] for one in letters} == {"passed" if waits else "picky"}
    assert [(one["partition"], one["offset"]) for one in letters] == [(1, 50), (1, 51)]
    assert [from_record(one["record"]).to_pylist() for one in letters] == [[bad], [bad]]


def test_a_function_that_does_not_return_is_named(spark: SparkSession, world: World) -> None:
    world.feed(5)
    world.append(0, [{**world.log[0][-1], "id": POISON}])
    sets = ["job.bounded=true", "job.call_timeout_s=0.5"]

    with pytest.raises(CallTimeoutError, match=r"'passed' had not returned after 0\.5 s") as told:
        run_job(picky("fail", waits=True), world.settings(*sets))

    assert f"Message(id={POISON}" in str(told.value)
    assert "test_dead_letters.py" in str(told.value)
