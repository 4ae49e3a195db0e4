"""Headrace on Spark: sessions, placed slots, the run of a job, and state for DataFrames.

The only package that imports ``pyspark``, and only when it is used. Read ``run`` first. For Spark
pipelines: ``session`` and ``register`` make streams known to Spark, ``stateful`` runs stateful
code over a DataFrame.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace import extras

if TYPE_CHECKING:
    from headrace.spark.dataframes import register, results, session, stateful, stop

__all__ = ["register", "results", "session", "stateful", "stop"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}; it has {__all__}")
    extras.load("pyspark", f"headrace.spark.{name}")
    value = getattr(importlib.import_module("headrace.spark.dataframes"), name)
    globals()[name] = value
    return value
