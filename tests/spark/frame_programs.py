"""PySpark programs of users, each in a process of its own, which tests kill.

Run as ``python -m tests.spark.frame_programs NAME HOME``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from headrace.spark.notebook import register_source

ROWS = 2_000


def session(master: str) -> SparkSession:
    """A session of the user's own, with what Headrace would set only where it must be."""
    log = "-Dlog4j2.level=error"
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", False)
    found = builder.config("spark.driver.extraJavaOptions", log).getOrCreate()
    register_source(found)
    return found


def dying(batches: Iterator[Any]) -> Iterator[Any]:
    """Hand rows on; the first attempts of each task die when the writer has taken them."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0:
        if context.partitionId() % 2:
            raise ValueError("the first attempt fails")
        os.kill(os.getpid(), signal.SIGKILL)


def attempts(home: Path) -> None:
    """Write a DataFrame whose tasks fail and whose workers are killed at their first attempt."""
    spark = session("local[2,3]")
    rows = spark.range(0, ROWS, 1, 4).mapInArrow(dying, "id bigint")
    options: dict[str, Any] = {"home": str(home), "create": True, "partitions": 3, "key": "id"}
    rows.write.format("headrace").mode("append").options(**options).save("written")


def copying(home: Path) -> None:
    """Copy a stream by a query of the user's own in a session of its own."""
    copy_all(session("local[2]"), home)


def copy_all(spark: SparkSession, home: Path) -> None:
    """Write what is in a stream to another one by a query with a checkpoint, in four batches."""
    rows = spark.readStream.format("headrace").options(home=str(home), maxRows=ROWS // 4)
    query = (
        rows.load("events").selectExpr("id", "kind", "id * 2 twice")
        .writeStream.format("headrace").options(home=str(home), create=True, stream="copied")
        .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


if __name__ == "__main__":
    {"attempts": attempts, "copying": copying}[sys.argv[1]](Path(sys.argv[2]))
