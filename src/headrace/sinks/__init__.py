"""Receivers of outputs outside Headrace: folders of files, and databases.

``parquet``, ``json_lines`` and ``csv`` commit each epoch into a folder; ``committed_files``
returns the committed files of one. ``postgres`` commits each epoch into a table,
``redis_partials`` appends to the totals of a monoid. For the contract of sinks, see
``headrace.graph.sinks``.
"""

from headrace.graph.sinks import (
    Prepared,
    Receiver,
    ReceiverAwayError,
    Sink,
    SinkEpoch,
    SinkSite,
)
from headrace.sinks.files import FileSink, committed_files, csv, json_lines, parquet
from headrace.sinks.postgres import PostgresSink, postgres
from headrace.sinks.redis import RedisPartials, RedisTotals, redis_partials

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
