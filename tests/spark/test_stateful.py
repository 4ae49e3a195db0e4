"""State for DataFrames: as with Spark's own functions, over batch and streaming DataFrames."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace import spark as headrace_spark
from headrace.errors import InvalidInputError, UnavailableError

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


@contextmanager
def more_files_than_select_takes() -> Iterator[None]:
    """Open so many files that the next ones have descriptors beyond 1,024."""
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open("rb"))
        yield


def manifests(home: Path, job: str) -> set[str]:
    return {path.name for path in (home / "jobs" / job / "manifests").glob("*")}


def test_the_first_action_on_a_batch_frame_runs_its_job_and_later_ones_share_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(100).selectExpr("id % 3 k", "id v")
    home = tmp_path / "home"
    numbered = headrace_spark.stateful(
        rows, "k", Running, returns=RETURNS, name="numbered", home=home
    )
    assert numbered.columns == ["k", "n"]
    assert numbered.where("n > 30").dtypes == [("k", "bigint"), ("n", "bigint")]
    assert not manifests(home, "numbered")
    last = {
        row["k"]: row["m"]
        for row in numbered.groupBy("k").agg({"n": "max"}).toDF("k", "m").collect()
    }
    assert last == {0: 34, 1: 33, 2: 33}
    ran = manifests(home, "numbered")
    assert ran
    assert numbered.count() == 100
    assert manifests(home, "numbered") == ran
    totals = headrace_spark.stateful(  # over what another job has made
        numbered, "k", aggregate={"c": hr.agg.count(), "most": hr.agg.max("n")}
    )
    assert {row["k"]: (row["c"], row["most"]) for row in totals.collect()} == {
        k: (n, n) for k, n in last.items()
    }


def test_results_of_a_job_are_those_of_one_run_and_a_failed_one_has_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    home, gate = tmp_path / "home", tmp_path / "gate"
    rows = spark.range(10).selectExpr("id v")

    def checked(message: Any) -> dict[str, int]:
        if message.v == 9 and not gate.exists():
            raise ValueError("the gate is closed")
        return {"v": message.v}

    def job(schema: Any) -> hr.Job:
        def gated(g: hr.Graph) -> None:
            found = g.input_dataframe("rows", lambda spark: rows, schema=schema)
            found.map(checked, returns={"v": int}).send_to(g.output("seen"))

        return hr.job("gated")(gated)

    def results() -> DataFrame:
        few = ["epoch.max_rows=2"]
        [seen] = headrace_spark.results(job({"v": int}), spark, home=home, settings=few).values()
        return seen

    with pytest.raises(InvalidInputError, match="or give the input schema= to plan without that"):
        headrace_spark.results(job(None), spark, home=home)
    with pytest.raises(PySparkException, match=r"(?s)job 'gated' failed.*the gate is closed"):
        results().collect()
    gate.touch()
    first, wanted = results(), [*range(10)]  # with the rows that were sent before it failed
    assert sorted(row["v"] for row in first.collect()) == wanted
    assert sorted(row["v"] for row in results().collect()) == wanted
    assert first.count() == 10, "rows of the second run are not in the first"


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


def test_a_process_that_java_cannot_call_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway: Any = spark.sparkContext._gateway
    monkeypatch.setattr(gateway, "_callback_server", None)  # as in a session of somebody else
    rows = spark.readStream.format("rate").load()
    with (
        more_files_than_select_takes(),
        pytest.raises(UnavailableError, match=r"descriptor \d+, and Py4J .* below 1,024"),
    ):
        headrace_spark.stateful(
            rows, "value", aggregate={"n": hr.agg.count()}, name="open", home=tmp_path / "home"
        )
    assert vars(gateway)["_callback_server"] is None, "none was begun"


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
        assert query.awaitTermination(120), query.status

    put("a", (1, 1), (2, 1), (1, 1))
    with more_files_than_select_takes():  # in a session that was there before them
        run()
    assert found == {(1, 1): 1, (1, 2): 1, (2, 1): 1}
    put("b", (1, 1))
    run()  # the job is stopped and started again
    assert found == {(1, 1): 1, (1, 2): 1, (1, 3): 1, (2, 1): 1}
    put("c", (1, -1))
    with pytest.raises((StreamingQueryException, InvalidInputError), match="below zero"):
        run()
