"""A PySpark program of a user's, in a process of its own, which a test kills.

Run as ``python -m tests.spark.frame_programs HOME``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.spark import register

ROWS = 2_000


def session(home: Path) -> SparkSession:
    """A session of the user's own, with what Headrace would set only where it must be."""
    log = "-Dlog4j2.level=error"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    found = builder.config("spark.driver.extraJavaOptions", log).getOrCreate()
    register(found, home)
    return found


def copy_all(spark: SparkSession, home: Path) -> None:
    """Write what is in a stream to another one by a query with a checkpoint, in three batches."""
    rows = spark.readStream.format("headrace").options(home=str(home), maxRows=1 + ROWS // 3)
    query = (
        rows.load("events").selectExpr("id", "kind", "id * 2 twice")
        .writeStream.format("headrace").options(home=str(home), create=True, stream="copied")
        .option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()


if __name__ == "__main__":
    copy_all(session(Path(sys.argv[1])), Path(sys.argv[1]))
