"""Headrace: a stateful stream processor in Python whose data pipeline runs on Apache Spark.

Importing this package loads neither Spark nor Arrow; each name loads what it needs when it is
first used. Start with ``job``, ``Graph`` and ``agg``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polars import col, lit

    from headrace import serving, sinks, warehouse
    from headrace.bus.stream_rows import read
    from headrace.errors import GraphError, HeadraceError, InvalidInputError
    from headrace.graph import agg
    from headrace.graph.builder import Graph, Job, Stream, job
    from headrace.graph.diagnostics import Output
    from headrace.graph.event_times import confidence, event_time, processing_time
    from headrace.graph.joins import Table
    from headrace.graph.processors import (
        AsyncProcessor,
        Callback,
        MonoidProcessor,
        StatefulProcessor,
        StatelessProcessor,
    )
    from headrace.graph.shared_stores import Remote, broadcast
    from headrace.graph.side_outputs import to
    from headrace.graph.stores import Store, store
    from headrace.graph.windows import (
        count_window,
        global_window,
        hopping,
        on_count_or_time,
        session,
        sliding,
        tumbling,
    )
    from headrace.runtime.context import Context
    from headrace.runtime.timers import Timer
    from headrace.standalone.running import Running, run, start

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
    "on_count_or_time",
    "processing_time",
    "read",
    "run",
    "serving",
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
    "AsyncProcessor": "headrace.graph.processors",
    "Callback": "headrace.graph.processors",
    "Context": "headrace.runtime.context",
    "Graph": "headrace.graph.builder",
    "GraphError": "headrace.errors",
    "HeadraceError": "headrace.errors",
    "InvalidInputError": "headrace.errors",
    "Job": "headrace.graph.builder",
    "MonoidProcessor": "headrace.graph.processors",
    "Output": "headrace.graph.diagnostics",
    "Remote": "headrace.graph.shared_stores",
    "Running": "headrace.standalone.running",
    "StatefulProcessor": "headrace.graph.processors",
    "StatelessProcessor": "headrace.graph.processors",
    "Store": "headrace.graph.stores",
    "Stream": "headrace.graph.builder",
    "Table": "headrace.graph.joins",
    "Timer": "headrace.runtime.timers",
    "agg": "headrace.graph.agg",
    "broadcast": "headrace.graph.shared_stores",
    "col": "polars",
    "confidence": "headrace.graph.event_times",
    "count_window": "headrace.graph.windows",
    "event_time": "headrace.graph.event_times",
    "global_window": "headrace.graph.windows",
    "hopping": "headrace.graph.windows",
    "job": "headrace.graph.builder",
    "lit": "polars",
    "on_count_or_time": "headrace.graph.windows",
    "processing_time": "headrace.graph.event_times",
    "read": "headrace.bus.stream_rows",
    "run": "headrace.standalone.running",
    "serving": "headrace.serving",
    "session": "headrace.graph.windows",
    "sinks": "headrace.sinks",
    "sliding": "headrace.graph.windows",
    "start": "headrace.standalone.running",
    "store": "headrace.graph.stores",
    "to": "headrace.graph.side_outputs",
    "tumbling": "headrace.graph.windows",
    "warehouse": "headrace.warehouse",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("headrace")
    if name.startswith("__"):  # pytest and others ask modules often
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    if name not in _HOMES:
        near = importlib.import_module("difflib").get_close_matches(name, __all__, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {__all__}"
        raise AttributeError(f"module 'headrace' has no attribute {name!r}; {hint}")
    module = importlib.import_module(_HOMES[name])
    value = module if module.__name__.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
