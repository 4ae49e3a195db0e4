"""How Spark sees a job: as a streaming query, by metrics of its stages, and in its event log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.support.jobs import counting
from tests.support.runs import ROOT, Epochs, EpochSummary, World, on_spark, run_driver, until

pytestmark = pytest.mark.spark
NAME = "headrace counting"


class Seen(StreamingQueryListener):
    """Notes what a listener is told."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.rows = 0

    def onQueryStarted(self, event: Any) -> None:
        self.names.append(event.name)

    def onQueryProgress(self, event: Any) -> None:
        self.rows += event.progress.numInputRows if event.progress.name == NAME else 0

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.names.append(None)


def queries(spark: SparkSession) -> list[Any]:
    return [query for query in spark.streams.active if query.name == NAME]


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def stages_of(spark: SparkSession, epoch: int) -> dict[int, Any]:
    """Return what Spark's page has of the stages of an epoch that are complete, by level."""
    context = spark.sparkContext
    api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    stages: dict[int, Any] = {}
    for job in json.loads(read(f"{api}/jobs?status=succeeded")):
        described = job.get("description", "")
        if found := re.match(rf"counting epoch {epoch} level (\d):", described):
            [stage] = json.loads(read(f"{api}/stages/{job['stageIds'][0]}"))
            if stage["status"] == "COMPLETE":
                stages[int(found[1])] = stage
    return stages


def check_stages(stages: dict[int, Any], epoch: EpochSummary) -> None:
    """What the slots of an epoch of 400 of 500 rows did is on the pages of its stages."""
    source, keyed = (
        {one["name"]: int(one["value"]) for one in stages[level]["accumulatorUpdates"]}
        for level in (0, 1)
    )
    assert source["rows read"] == stages[0]["inputRecords"] == epoch.rows == 400
    assert source["rows exchanged"] == keyed["rows read"] == 800  # by id, and by kind
    assert source["lag"] == epoch.lag == 100
    assert source["bytes exchanged"] > 0
    assert keyed["rows sent"] == stages[1]["outputRecords"] == epoch.output_rows > 0
    assert keyed["bytes sent"] == stages[1]["outputBytes"] > 0
    assert keyed["state bytes"] > 0
    assert keyed["entries changed"] > 0
    assert keyed["run, ms"] > 0


def test_committed_epochs_are_the_progress_of_a_query(spark: SparkSession, world: World) -> None:
    """And what their slots did is on the pages of their stages."""
    world.feed(250)
    found: list[Any] = []
    stages: dict[int, Any] = {}
    seen = Seen()

    def shown() -> bool:
        mine = [one for query in queries(spark) for one in query.recentProgress]
        found[:] = [one for one in mine if one["numInputRows"]]
        return bool(found) and seen.rows > 0

    def complete(epoch: int) -> bool:
        stages.update(stages_of(spark, epoch))
        return len(stages) == 2

    def look(epochs: Epochs) -> None:
        if len(epochs) == 1:
            until(shown, "a query shows the first epoch")
            page = read(f"{spark.sparkContext.uiWebUrl}/StreamingQuery/")
            assert NAME in page
            [query] = queries(spark)
            assert query.isActive
            query.stop()  # as anybody can, which is nothing to the job
            until(lambda: complete(epochs[0].epoch), "the stages of the first epoch are shown")
            world.feed(10)
        elif sum(epochs.rows) == 520:
            epochs.stop()

    notices: list[str] = []
    spark.streams.addListener(seen)
    try:
        _, epochs = on_spark(
            counting(),
            world.settings("spark.progress=on", "epoch.max_rows=400"),
            look,
            on_notice=notices.append,
        )
        until(lambda: None in seen.names, "the listener hears of the end")
    finally:
        spark.streams.removeListener(seen)

    first, progress = epochs[0], found[0]
    assert seen.names[0] == NAME
    assert seen.rows == progress["numInputRows"] == first.rows == 400
    assert progress["processedRowsPerSecond"] > 0
    observed = progress["observedMetrics"]["job"]
    assert (observed["epochs"], observed["rows"], observed["lag"]) == (1, 400, first.lag)
    assert observed["state_bytes"] == first.state_bytes > 0
    assert observed["state_rows"] > 0
    [source] = progress["sources"]
    end = source["endOffset"]
    assert (json.loads(end) if isinstance(end, str) else end) == {
        "epochs": {"counting": first.epoch},
        "inputs": {"events": {"0": 200, "1": 200}},
    }
    assert source["metrics"]["state_bytes"] == str(first.state_bytes)
    assert source["metrics"]["lag"] == "100"
    assert any(name.startswith("slots, run") for name in source["metrics"])
    assert progress["eventTime"]["max"].startswith("1970-01-01T")
    assert sum(epochs.rows) == 520
    assert queries(spark) == []
    assert notices == []
    check_stages(stages, first)


def test_a_query_that_cannot_start_is_a_warning(spark: SparkSession, world: World) -> None:
    world.feed(5)
    other = spark.readStream.format("rate").load().writeStream.format("noop").queryName(NAME)
    notices: list[str] = []

    def look(epochs: Epochs) -> None:
        until(lambda: notices, "a warning")
        epochs.stop()

    running = other.start()
    try:
        _, epochs = on_spark(
            counting(), world.settings("spark.progress=on"), look, on_notice=notices.append
        )
    finally:
        running.stop()

    assert sum(epochs.rows) == 10
    [notice] = notices
    assert "Streaming tab does not show the job" in notice
    assert "already active" in notice


@contextmanager
def history_server(folder: Path, logs: Path) -> Iterator[str]:
    """Run Spark's history server over event logs; yields its address."""
    home = Path(pyspark.__file__).parent
    given = {"history.fs.logDirectory": logs.as_uri(), "history.ui.port": "0"}
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_HISTORY_OPTS": " ".join(f"-Dspark.{name}={value}" for name, value in given.items()),
    }
    command = [str(home / "bin/spark-class"), "org.apache.spark.deploy.history.HistoryServer"]
    said = folder / "history.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        places: list[str] = []

        def is_up() -> bool:
            assert process.poll() is None, said.read_text()
            places[:] = re.findall(r"HistoryServer.* started at (http://\S+)", said.read_text())
            return bool(places)

        until(is_up, "the history server")
        yield places[0]
    finally:
        process.terminate()
        process.wait()


@pytest.mark.soak
def test_the_history_server_reads_what_a_job_did(world: World, tmp_path: Path) -> None:
    world.feed(100)
    logs = tmp_path / "events"
    logs.mkdir()
    conf = {"ui.enabled": "false", "eventLog.enabled": "true", "eventLog.dir": logs.as_uri()}
    sets = [f"spark.conf.spark.{name}={value}" for name, value in conf.items()]
    sets += ["spark.master=local[1]", "job.tasks=1", "job.bounded=true", "spark.progress=on"]
    ended = run_driver("counting", world, *sets)
    assert ended["ended"], ended["story"]

    with history_server(tmp_path, logs) as url:
        applications: list[Any] = []

        def is_listed() -> bool:
            applications[:] = json.loads(read(f"{url}/api/v1/applications"))
            return bool(applications)

        until(is_listed, "the history server lists the application")
        [application] = applications
        assert application["name"] == NAME
        jobs = json.loads(read(f"{url}/api/v1/applications/{application['id']}/jobs"))
        descriptions = [job.get("description", "") for job in jobs]
        assert any(re.match(r"counting epoch \d+ level 1: by-id", one) for one in descriptions)
        assert NAME in read(f"{url}/history/{application['id']}/StreamingQuery/")
