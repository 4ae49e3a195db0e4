"""Tables of the warehouse as tables of Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DateType, StructField, StructType

from headrace.errors import HeadraceError, InvalidInputError
from headrace.spark.runner import first_line
from headrace.warehouse import Table, readable_tables
from headrace.warehouse.queries import apart, passed_over


def register_tables(spark: SparkSession, warehouse: Path) -> dict[str, HeadraceError]:
    """Make the tables of a warehouse known to a session, each as its newest snapshot has it.

    Args:
        spark: the session.
        warehouse: folder of the tables.

    Returns:
        Why the others cannot be read.
    """
    tables, failed = readable_tables(warehouse)
    for table in tables:
        register_table(spark, table)
    return failed


def register_table(spark: SparkSession, table: Table, days: str | None = None) -> None:
    """Make the snapshot of one table known to a session, under its name.

    Args:
        spark: the session.
        table: with the snapshot.
        days: only these, as ``Table.files`` takes them.
    """
    files = table.files(days)
    base = str(Path(files[0]).parent.parent) if files else ""
    columns = from_arrow_schema(table.schema)
    kind: DataType = DateType()
    schema = StructType([*columns.fields, StructField("ds", kind)])
    if files:
        reader = spark.read.schema(schema).option("basePath", base)
        frame = reader.parquet(*files)
    else:
        frame = spark.createDataFrame([], schema)
    frame.createOrReplaceTempView(f"`{table.name}`")


def query_rows(spark: SparkSession, warehouse: Path, query: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query over the tables of a warehouse.

    Args:
        spark: the session.
        warehouse: folder of the tables.
        query: in Spark's SQL.

    Raises:
        InvalidInputError: Spark refuses it.
    """
    failed = register_tables(spark, warehouse)
    try:
        found = spark.sql(query)
        for row in found.toDF(*apart(found.columns)).toLocalIterator():
            yield row.asDict(recursive=True)
    except PySparkException as error:
        raise InvalidInputError(passed_over(f"Spark: {first_line(error)}", failed)) from error
