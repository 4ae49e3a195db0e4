"""Receivers of outputs outside Headrace: folders of files, databases, and what plug-ins add.

``parquet``, ``json_lines`` and ``csv`` commit each epoch into a folder; ``committed_files``
returns the committed files of one. ``postgres`` commits each epoch into a table,
``redis_partials`` and
``postgres_partials`` add to the totals of a monoid. Other packages add names by entry points of
the group ``headrace.sinks``. For the contract of sinks, see ``headrace.graph.sinks``.
"""

from __future__ import annotations

from typing import Any

from headrace import plugins
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
from headrace.sinks.postgres_totals import (
    PostgresPartials,
    PostgresTotals,
    postgres_partials,
)
from headrace.sinks.redis import RedisPartials, RedisTotals, redis_partials

__all__ = [
    "FileSink",
    "PostgresPartials",
    "PostgresSink",
    "PostgresTotals",
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
    "postgres_partials",
    "redis_partials",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # asked for by Python and its tools
        raise AttributeError(name)
    own = [one for one in __all__ if one.islower()]
    if (text := plugins.mistake(plugins.SINKS, name, own)) is not None:
        raise AttributeError(text)
    return plugins.load(plugins.SINKS, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *plugins.names(plugins.SINKS)})
