"""SQL over the tables of a warehouse: on DuckDB, or on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.config import Settings
from headrace.errors import InvalidInputError
from headrace.graph.daily import PARTITION
from headrace.warehouse import Table, readable_tables
from headrace.warehouse.queries import apart, passed_over

Row = dict[str, Any]


def on_duckdb(query: str, warehouse: Path) -> Iterator[Row]:
    """Yield the rows of a query, on DuckDB in this process.

    Raises:
        InvalidInputError: it is no query of these tables, or DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InvalidInputError(
            "warehouse sql needs the library duckdb; install headrace[sql], or give --engine spark"
        ) from error
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        tables, failed = readable_tables(warehouse)
        for table in tables:
            _view(connection, table)
        try:
            if not connection.extract_statements(query):
                raise InvalidInputError(
                    "there is no query; expected SQL such as 'select * from TABLE'"
                )
            found = connection.execute(query)
        except duckdb.Error as error:
            told = f"DuckDB: {str(error).splitlines()[0]}"
            raise InvalidInputError(passed_over(told, failed)) from error
        names = apart([column[0] for column in found.description])
        while rows := found.fetchmany(1000):
            yield from (dict(zip(names, row, strict=True)) for row in rows)


def _view(connection: Any, table: Table) -> None:
    name = '"' + table.name.replace('"', '""') + '"'
    if files := table.files():
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        # The day is taken from the file's own folder: folders above may look like partitions.
        day = f"regexp_extract(__file, '{PARTITION}=([^/]*)/[^/]*$', 1)"
        connection.execute(
            f"CREATE VIEW {name} AS SELECT * EXCLUDE (__file), CAST({day} "
            f"AS DATE) AS {PARTITION} FROM read_parquet([{listed}], hive_partitioning = false, "
            "filename = '__file', union_by_name = true)"
        )
        return
    connection.register(table.name, table.to_arrow())


def on_spark(query: str, settings: Settings) -> Iterator[Row]:
    """Yield the rows of a query, on the Spark of the settings.

    Raises:
        InvalidInputError: it is no query of these tables.
        UnavailableError: Java does not start.
    """
    from headrace.spark.sessions import build_session
    from headrace.spark.tables import query_rows

    log = settings.home / "spark" / "spark.log"
    spark = build_session(settings.spark.master, "headrace", log, settings.spark.conf)
    yield from query_rows(spark, settings.warehouse_dir, query)
