"""Headrace: a stateful stream processor in Python whose data pipeline runs on Apache Spark.

Importing this package loads neither Spark nor Arrow; each name loads what it needs when it
is first used. Begin with ``job``, ``Graph`` and ``agg``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polars import col, lit

    from headrace import sinks, warehouse
    from headrace.errors import GraphError, HeadraceError, InvalidInputError
    from headrace.graph import agg
    from headrace.graph.asynchronous import AsyncProcessor, Callback
    from headrace.graph.builder import Graph
    from headrace.graph.jobs import Job, job
    from headrace.graph.kept_tables import Table
    from headrace.graph.ledger import Output
    from headrace.graph.processors import (
        MonoidProcessor,
        StatefulProcessor,
        StatelessProcessor,
    )
    from headrace.graph.remote import Remote
    from headrace.graph.sides import to
    from headrace.graph.stores import Store, store
    from headrace.graph.streams import Stream
    from headrace.graph.tables import broadcast
    from headrace.graph.times import confidence, event_time, processing_time
    from headrace.graph.window_makers import (
        count_window,
        global_window,
        hopping,
        session,
        sliding,
        tumbling,
    )
    from headrace.standalone.running import Running, run, start
    from headrace.task.context import Context
    from headrace.task.timers import Timer

__all__ = [
    "AsyncProcessor",
    "Callback",
    "Context",
    "Graph",
    "GraphError",
    "HeadraceError",
    "InvalidInputError",
    "Job",
    "MonoidProcessor",
    "Output",
    "Remote",
    "Running",
    "StatefulProcessor",
    "StatelessProcessor",
    "Store",
    "Stream",
    "Table",
    "Timer",
    "agg",
    "broadcast",
    "col",
    "confidence",
    "count_window",
    "event_time",
    "global_window",
    "hopping",
    "job",
    "lit",
    "processing_time",
    "run",
    "session",
    "sinks",
    "sliding",
    "start",
    "store",
    "to",
    "tumbling",
    "warehouse",
]

_HOMES = {
    "AsyncProcessor": "headrace.graph.asynchronous",
    "Callback": "headrace.graph.asynchronous",
    "Context": "headrace.task.context",
    "Graph": "headrace.graph.builder",
    "GraphError": "headrace.errors",
    "HeadraceError": "headrace.errors",
    "InvalidInputError": "headrace.errors",
    "Job": "headrace.graph.jobs",
    "MonoidProcessor": "headrace.graph.processors",
    "Output": "headrace.graph.ledger",
    "Remote": "headrace.graph.remote",
    "Running": "headrace.standalone.running",
    "StatefulProcessor": "headrace.graph.processors",
    "StatelessProcessor": "headrace.graph.processors",
    "Store": "headrace.graph.stores",
    "Stream": "headrace.graph.streams",
    "Table": "headrace.graph.kept_tables",
    "Timer": "headrace.task.timers",
    "agg": "headrace.graph.agg",
    "broadcast": "headrace.graph.tables",
    "col": "polars",
    "confidence": "headrace.graph.times",
    "count_window": "headrace.graph.window_makers",
    "event_time": "headrace.graph.times",
    "global_window": "headrace.graph.window_makers",
    "hopping": "headrace.graph.window_makers",
    "job": "headrace.graph.jobs",
    "lit": "polars",
    "processing_time": "headrace.graph.times",
    "run": "headrace.standalone.running",
    "session": "headrace.graph.window_makers",
    "sinks": "headrace.sinks",
    "sliding": "headrace.graph.window_makers",
    "start": "headrace.standalone.running",
    "store": "headrace.graph.stores",
    "to": "headrace.graph.sides",
    "tumbling": "headrace.graph.window_makers",
    "warehouse": "headrace.warehouse",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}; it has {__all__}")
    module = importlib.import_module(_HOMES[name])
    value = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
