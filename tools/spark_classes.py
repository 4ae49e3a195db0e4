"""Does a little of all that tests do on Spark, so that its JVM loads what they need.

Run by ``spark_classes.sh``, whose Java archives those classes when it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession


def _passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _collected(frame: DataFrame, number: int) -> None:
    frame.collect()


def main(folder: Path) -> None:
    """Use Spark in a folder; return when its Java has ended."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False)
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    rows = spark.range(0, 100, 1, 2).selectExpr("id", "id % 3 kind")
    rows.write.parquet(str(folder / "parquet"))
    rows.write.json(str(folder / "json"))
    spark.read.parquet(str(folder / "parquet")).groupBy("kind").count().orderBy("kind").collect()
    rows.mapInArrow(_passed_on, "id bigint, kind bigint").collect()
    source = spark.readStream.schema("id bigint, kind bigint").json(str(folder / "json"))
    query = source.writeStream.foreachBatch(_collected).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to see Java end
    assert gateway is not None
    spark.stop()
    java = gateway.proc
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
