"""The job graph: frozen data, and the fluent API that builds it. Nothing here runs.

Read ``operators`` for the data, ``streams`` for the API, ``aggregates`` for the monoids.
"""

from headrace.graph.aggregates import Aggregate
from headrace.graph.builder import Graph, Job, Stream, job
from headrace.graph.diagnostics import Output
from headrace.graph.operators import JobGraph
from headrace.graph.stores import store
from headrace.graph.windows import (
    Tumbling,
    Window,
    count_window,
    global_window,
    hopping,
    session,
    sliding,
    tumbling,
)

__all__ = [
    "Aggregate",
    "Graph",
    "Job",
    "JobGraph",
    "Output",
    "Stream",
    "Tumbling",
    "Window",
    "count_window",
    "global_window",
    "hopping",
    "job",
    "session",
    "sliding",
    "store",
    "tumbling",
]
