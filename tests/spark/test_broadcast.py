"""Broadcast stores on real Spark: one version for all workers, also after one of them dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import World

import headrace as hr
from headrace.bus.spec import StreamSpec
from headrace.spark.run import run_job

pytestmark = pytest.mark.spark

KINDS = pa.schema([("kind", pa.string()), ("factor", pa.int64())])


class Multiply:
    """Multiplies by the kind's factor; the first worker that comes to an id dies there."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def process(self, message: Any, context: Any) -> None:
        if message.id == 21 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        kind = context.store("kinds").get(message.kind)
        n = context.store("n")
        n.put(message.id, n.get(message.id, 0) + 1)
        context.emit((message.id, message.v, message.v * kind.factor, message.label))


def multiplying(folder: Path) -> hr.Job:
    kinds = hr.broadcast("kinds", stream="kinds", key="kind")
    labels = hr.broadcast("labels", file=str(folder / "labels.csv"), key="kind")
    mark = folder / "died"

    @hr.job("multiplying")
    def job(g: hr.Graph) -> None:
        labelled = g.input("events").join_table(labels, columns=["label"])
        labelled.partition_by("id").process(
            lambda: Multiply(mark),
            stores=[hr.store("n", int), kinds],
            returns={"id": int, "v": int, "times": int, "label": str},
        ).send_to(g.output("times"))

    return job


@pytest.mark.parametrize("loop", ["direct", "query"])
def test_every_message_sees_the_table_as_it_was_at_the_end(
    spark: SparkSession, world: World, tmp_path: Path, loop: str
) -> None:
    """Several epochs, a worker that is killed, a table from a stream and one from a file."""
    (tmp_path / "labels.csv").write_text("kind,label\na,first\nb,second\n")
    stream = world.bus.create(StreamSpec("kinds", 2, KINDS, None, ("kind",)))
    for factor in (1, 3):
        rows = [{"kind": kind, "factor": factor * place} for place, kind in enumerate("abc", 1)]
        stream.append_rows(pa.Table.from_pylist(rows, schema=KINDS))
    world.feed(150)
    settings = world.settings("job.bounded=true", f"spark.loop={loop}", "epoch.max_rows=100")
    result = run_job(multiplying(tmp_path), settings)
    assert (tmp_path / "died").exists()
    factors = {"a": 3, "b": 6, "c": 9}
    labels = {"a": "first", "b": "second", "c": None}
    expected = [
        (row["id"], row["v"], row["v"] * factors[row["kind"]], labels[row["kind"]])
        for rows in world.log
        for row in rows
    ]
    found = [tuple(row.values()) for row in world.rows("times")]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert sum(result.state.tables["kinds"]) == 6
