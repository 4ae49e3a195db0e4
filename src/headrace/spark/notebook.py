"""A Spark session for notebooks: streams by name in SQL, and the data source ``headrace``."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from headrace.bus.address import open_bus
from headrace.config import Settings, load_settings
from headrace.coordinator.naming import readable_names
from headrace.errors import InvalidInputError
from headrace.spark.frames.options import READ, WRITE
from headrace.spark.frames.source import NAME, StreamSource
from headrace.spark.sessions import build_session
from headrace.spark.tables import register_tables
from headrace.warehouse import readable_tables

STREAMS, WAREHOUSE = "streams", "warehouse"
_NOT_SQL = re.compile(r"\W")


def session(
    master: str | None = None,
    home: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or take the session that is active, and make Headrace known to it.

    Streams are tables in SQL: ``select * from streams.flights``; a sign that no table's name can
    have is ``_`` there. Tables of the warehouse go by their own names, and have the column ``ds``.
    They are those that there are when this is called; call it again, or
    ``register``, for what came later.

    Args:
        master: as Spark names it; by default what ``headrace.toml`` or the environment say.
        home: folder of streams and jobs; by default that of the settings.
        conf: further Spark settings, of a session that is started.

    Raises:
        InvalidInputError: Spark Connect, or no master.
        UnavailableError: Java does not start.
    """
    settings = _settings(home)
    log = settings.home / "spark" / "spark.log"
    given = {**settings.spark.conf, **(conf or {})}
    found = build_session(master or settings.spark.master, "headrace", log, given)
    register(found, settings.home)
    return found


def register(spark: SparkSession, home: str | os.PathLike[str] | None = None) -> None:
    """Make the data source ``headrace``, and streams and tables of a home, known to a session.

    Tables of the warehouse go by their own names, as their newest snapshots have them.

    Args:
        spark: a session of your own.
        home: folder of streams and jobs; by default that of the settings.
    """
    register_source(spark)
    settings = _settings(home)
    folder = settings.home
    for error in register_tables(spark, settings.warehouse_dir).values():
        warnings.warn(f"passed over: {error}", stacklevel=2)
    with open_bus(folder / "bus") as bus:
        names = [*readable_names(bus), *bus.aliases()]
    place = folder / "spark" / STREAMS
    spark.sql(f"create database if not exists {STREAMS} location '{place.as_uri()}'")
    for table, stream in _tables(names).items():
        source = _source_of(stream, str(folder))
        spark.dataSource.register(source)
        spark.sql(f"drop table if exists {STREAMS}.`{table}`")
        spark.sql(f"create table {STREAMS}.`{table}` using `{source.name()}`")
    _register_warehouse(spark, folder, settings.warehouse_dir)


def _register_warehouse(spark: SparkSession, folder: Path, tables: Path) -> None:
    """Make tables of the warehouse known as ``warehouse.NAME``, beside the views of their names.

    Not those of Delta, for which Spark has no reader of its own.
    """
    place = folder / "spark" / WAREHOUSE
    spark.sql(f"create database if not exists {WAREHOUSE} location '{place.as_uri()}'")
    for table in readable_tables(tables)[0]:
        if not table.is_delta and table.files():
            known = f"{WAREHOUSE}.`{_NOT_SQL.sub('_', table.name).lower()}`"
            files = (tables / table.name).as_uri()
            spark.sql(f"drop table if exists {known}")
            spark.sql(
                f"create table {known} using parquet options (mergeSchema 'true') "
                f"location '{files}'"
            )
            spark.sql(f"msck repair table {known}")


def register_source(spark: SparkSession) -> None:
    """Make the data source alone known."""
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidInputError(
            "Headrace is not for Spark Connect sessions; use one with a SparkContext"
        )

    class HomeSource(StreamSource):
        """Takes what is not said from the process that registers it."""

        folder, home = str(Path.cwd()), str(_settings(None).home)

    spark.dataSource.register(HomeSource)


def _settings(home: str | os.PathLike[str] | None) -> Settings:
    sets = [] if home is None else [f"home={Path(home)}"]
    return load_settings(None, sets, dict(os.environ))


def _tables(streams: list[str]) -> dict[str, str]:
    """Return the stream of each table; of two that would have one name the first alone."""
    found: dict[str, str] = {}
    for stream in sorted(streams):
        found.setdefault(_NOT_SQL.sub("_", stream).lower(), stream)
    return found


def _source_of(stream: str, home: str) -> type[DataSource]:
    """Return a source of one stream: Spark gives a source of a table no options."""

    class TableSource(StreamSource):
        """Reads and writes one stream."""

        def __init__(self, options: MutableMapping[str, str]) -> None:
            super().__init__(options)
            for option in {name.lower() for name in options} - {*READ, *WRITE}:
                del options[option]  # what Spark's catalogue notes of a table
            options["stream"], options["home"] = stream, home

        @classmethod
        def name(cls) -> str:
            """Return the name used with ``using``."""
            return f"{NAME}.{stream}"

    return TableSource
