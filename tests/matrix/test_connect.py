"""A client of Spark Connect beside a classic driver: what it can read, and what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.processes import ROOT, SOON_S, end_group, until
from tests.support.runs import World
from tests.support.servers import free_port

pytestmark = pytest.mark.spark

JOB = """
import headrace as hr


@hr.job("spent")
def spent(g: hr.Graph) -> None:
    by_user = g.input("orders").partition_by("user")
    by_user.aggregate(name="sums", cents=hr.agg.sum("cents")).send_to(g.output("totals"))
"""

CLIENT = """
import json, os, sys

from pyspark.sql import SparkSession

import headrace as hr
from headrace import spark as headrace_spark

port, home = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
headrace_spark.register(spark, home)
found = {}


def read(**options):
    return spark.read.format("headrace").options(home=home, **options).load()


def tried(name, call):
    try:
        found[name] = call()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"


tried("totals", lambda: sorted([r.user, r.cents] for r in read(stream="totals").collect()))
tried("sql", lambda: [
    read(stream="totals").createOrReplaceTempView("totals"),
    spark.sql("select sum(cents) s from totals").collect()[0].s,
][1])
tried("state", lambda: sorted([r.user, r.cents] for r in read(job="spent", store="sums").collect()))
tried("catalog", lambda: spark.table("headrace.streams.totals").count())
tried("table", lambda: spark.table("streams.totals").count())
aggregate = {"n": hr.agg.count()}
tried("stateful", lambda: headrace_spark.stateful(spark.range(3), "id", aggregate=aggregate))
print(json.dumps(found))
"""


def test_a_client_reads_what_a_job_of_a_classic_driver_sends(tmp_path: Path) -> None:
    """The job is started and followed with commands, and its driver is the server of Connect."""
    world = World(tmp_path / "home")
    world.create("orders", pa.schema([("user", pa.string()), ("cents", pa.int64())]))
    world.send("orders", [{"user": "ada", "cents": 5}, {"user": "bob", "cents": 3}])
    (tmp_path / "shop.py").write_text(JOB)
    port, home = free_port(), str(world.home)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HEADRACE_HOME": home}
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    plugin = "org.apache.spark.sql.connect.SparkConnectPlugin"
    run = [
        *headrace, "run", "shop.py", "--master", "local[2]",
        "--set", f"spark.conf.spark.plugins={plugin}",
        "--set", f"spark.conf.spark.connect.grpc.binding.port={port}",
    ]  # fmt: skip

    def described() -> dict[str, Any]:
        asked = [*headrace, "jobs", "describe", "spent", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen(
            run, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: described().get("epoch", 0) > 0, "an epoch")
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, str(port), home],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
            timeout=SOON_S * 2,
        )  # fmt: skip
    finally:
        end_group(driver)
    found = json.loads(client.stdout.splitlines()[-1])
    assert found["totals"] == found["state"] == [["ada", 5], ["bob", 3]]
    assert found["sql"] == 8
    assert "REQUIRES_SINGLE_PART_NAMESPACE" in found["catalog"]
    assert "TABLE_OR_VIEW_NOT_FOUND" in found["table"]
    assert "run it with headrace run" in found["stateful"]
