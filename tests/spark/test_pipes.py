"""``headrace pipe --master`` in the tasks of a session: ends, output, and clients that fail."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.support.cli import Ran, headrace
from tests.support.homes import Home

pytestmark = pytest.mark.spark

PARTITIONS = 3
ROWS = 50


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with a stream of orders, one partition more than there are cores."""
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / "home")
    for name in ("orders", "copy"):
        home.create(name, {"id": pa.int64()}, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        home.send("orders", [{"id": number} for number in range(ROWS)], partition)
    return home


def pipe(home: Home, script: str, *words: str) -> Ran:
    started = ("pipe", "--stream", "orders", "--until", "latest", "--master", "local[2]")
    options = ("--every-rows", "20", "--restart-delay", "0.01", "--home", home.home, *words)
    return headrace(*started, *options, "--", "sh", "-c", script)


@pytest.mark.usefixtures("spark")
def test_clients_run_in_the_tasks_of_slots(orders: Home) -> None:
    ran = pipe(orders, 'echo "client of $HEADRACE_PARTITION" >&2; cat', "--output", "copy")

    assert ran.code == 0, ran.err
    assert "partition 2: 50 rows, 3 checkpoints, 50 output rows, up to 50" in ran.err
    assert [row["id"] for row in orders.rows("copy")] == [*range(ROWS)] * PARTITIONS
    logs = [(orders.home / "logs" / f"pipe-orders.slot-{slot}.log").read_text() for slot in (0, 1)]
    assert "partition 0: client of 0" in logs[0]
    assert "partition 2: client of 2" in logs[0]
    assert "partition 1: client of 1" in logs[1]


@pytest.mark.usefixtures("spark")
def test_a_client_that_fails_ends_the_pipe_with_its_code(orders: Home, spark: SparkSession) -> None:
    fails = 'while read -r row; do case $row in *:45*) exit 7;; "["*) echo "$row";; esac; done'
    ran = pipe(orders, fails, "--partition", "1", "--partition", "2")

    assert ran.code == 7
    assert "error HR118: client exited with 7: because of one record" in ran.err
    assert "offset 45 of partition" in ran.err
    assert "in the worker" not in ran.err
    assert spark.range(3).count() == 3, "the session was not the pipe's to end"

    ran = pipe(orders, fails, "--partition", "1", "--on-poison", "dead-letter")
    assert ran.code == 0, ran.err
    assert "1 dead letter, " in ran.err
    assert [row["offset"] for row in orders.rows("orders.pipe.dead")] == [45]
