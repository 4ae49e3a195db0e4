"""State for DataFrames: as with Spark's own functions, over batch and streaming DataFrames."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace import spark as headrace_spark
from headrace.errors import InvalidInputError

pytestmark = pytest.mark.spark


class Running(hr.StatefulProcessor[int]):
    """Numbers the rows of each key."""

    def begin(self) -> int:
        return 0

    def process(self, event: Any, state: int) -> tuple[list[dict[str, Any]], int]:
        if event.v < 0:
            raise ValueError("below zero")
        return [{"k": event.k, "n": state + 1}], state + 1


RETURNS = {"k": int, "n": int}


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    headrace_spark.stop()


def test_a_batch_frame_has_results_at_once(spark: SparkSession) -> None:
    rows = spark.range(100).selectExpr("id % 3 k", "id v")
    numbered = headrace_spark.stateful(rows, "k", Running, returns=RETURNS)
    assert numbered.columns == ["k", "n"]
    last = {
        row["k"]: row["m"]
        for row in numbered.groupBy("k").agg({"n": "max"}).toDF("k", "m").collect()
    }
    assert last == {0: 34, 1: 33, 2: 33}
    totals = headrace_spark.stateful(
        rows, "k", aggregate={"n": hr.agg.count(), "total": hr.agg.sum("v")}
    )
    expected = {k: (len(range(k, 100, 3)), sum(range(k, 100, 3))) for k in range(3)}
    assert {row["k"]: (row["n"], row["total"]) for row in totals.collect()} == expected


def test_what_cannot_be_is_refused(spark: SparkSession) -> None:
    rows = spark.range(1)
    with pytest.raises(InvalidInputError, match="one of process= and aggregate="):
        headrace_spark.stateful(rows, "id")
    with pytest.raises(InvalidInputError, match="window= goes with aggregate=; found process="):
        headrace_spark.stateful(
            rows, "id", Running, returns=RETURNS, window=hr.tumbling("1h"), time="id"
        )
    with pytest.raises(InvalidInputError, match="returns= and stores= go with process=; found"):
        headrace_spark.stateful(rows, "id", aggregate={"n": hr.agg.count()}, returns=RETURNS)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidInputError, match="give name="):
        headrace_spark.stateful(stream, "value", Running, returns=RETURNS)


def test_a_streaming_frame_goes_on_with_its_state_and_fails_with_the_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    found: Counter[tuple[int, int]] = Counter()

    def put(name: str, *rows: tuple[int, int]) -> None:
        (folder / name).write_text("\n".join(json.dumps({"k": k, "v": v}) for k, v in rows))

    def take(frame: DataFrame, number: int) -> None:
        found.update((row["k"], row["n"]) for row in frame.collect())

    def run() -> None:
        rows = spark.readStream.schema("k bigint, v bigint").json(str(folder))
        results = headrace_spark.stateful(
            rows, "k", Running, returns=RETURNS, name="numbered", home=tmp_path / "home"
        )
        query = (
            results.writeStream.foreachBatch(take).trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        query.awaitTermination()

    put("a", (1, 1), (2, 1), (1, 1))
    run()
    assert found == {(1, 1): 1, (1, 2): 1, (2, 1): 1}
    put("b", (1, 1))
    run()  # the job is stopped and started again
    assert found == {(1, 1): 1, (1, 2): 1, (1, 3): 1, (2, 1): 1}
    put("c", (1, -1))
    with pytest.raises((StreamingQueryException, InvalidInputError), match="below zero"):
        run()
