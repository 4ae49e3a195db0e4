"""Spark's place: sessions, placed slots, the streaming query and the run of a job.

The only package that imports ``pyspark``, and only once it is used. Read ``run`` first. For people
with Spark pipelines: ``session`` and ``register`` make streams known to Spark, ``stateful`` runs
state of Headrace's over a DataFrame.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.spark.keyed_frames import stateful, stop
    from headrace.spark.notebook import register, session

__all__ = ["register", "session", "stateful", "stop"]

_HOMES = {
    "register": "notebook",
    "session": "notebook",
    "stateful": "keyed_frames",
    "stop": "keyed_frames",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}; it has {__all__}")
    value = getattr(importlib.import_module(f"headrace.spark.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
