"""Receivers of outputs outside Headrace: folders of files, and databases.

``parquet``, ``json_lines`` and ``csv`` commit each epoch into a folder; ``committed_files`` tells
readers what is in one. ``postgres`` commits each into a table,
``redis_partials`` appends to the totals of a monoid. What every sink promises, and how
to write another, is in ``headrace.graph.sinks``.
"""

from headrace.graph.sinks import (
    Prepared,
    Receiver,
    ReceiverAwayError,
    Sink,
    SinkEpoch,
    SinkSite,
)
from headrace.sinks.files import FileSink, csv, json_lines, parquet
from headrace.sinks.folder import committed_files
from headrace.sinks.postgres import PostgresSink, postgres
from headrace.sinks.redis_appending import RedisPartials, redis_partials
from headrace.sinks.redis_totals import RedisTotals

__all__ = [
    "FileSink",
    "PostgresSink",
    "Prepared",
    "Receiver",
    "ReceiverAwayError",
    "RedisPartials",
    "RedisTotals",
    "Sink",
    "SinkEpoch",
    "SinkSite",
    "committed_files",
    "csv",
    "json_lines",
    "parquet",
    "postgres",
    "redis_partials",
]
