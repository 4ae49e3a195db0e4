"""What older versions of PySpark cannot do is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.support.runs import World

from headrace.spark import register
from headrace.spark.versions import LIMITS_BATCHES

pytestmark = pytest.mark.spark


def test_rows_of_a_batch_are_limited_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path / "home")
    world.feed(20)
    register(spark, world.home)
    rows = spark.readStream.format("headrace").options(home=str(world.home), maxRows=10)
    query = (
        rows.load("events").writeStream.format("noop").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    if LIMITS_BATCHES:
        query.awaitTermination()
        assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [10] * 4
    else:
        with pytest.raises(StreamingQueryException, match=r"option maxRows needs PySpark 4\.2"):
            query.awaitTermination()
