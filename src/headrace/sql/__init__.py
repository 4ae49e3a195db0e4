"""SQL apps: a file of ``CREATE`` statements that is a job, as in Puma (seed 003, section 2.2).

``app`` makes a job of the statements that ``statements`` reads; ``expressions`` compiles what is
computed to Polars. The engine is that of jobs in Python.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.queries.text import SqlText
    from headrace.sql.app import SqlApp, load_app

__all__ = ["SqlApp", "SqlText", "load_app"]


def __getattr__(name: str) -> Any:
    """Load it when it is used: ``--help`` lists the commands of this package."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace.sql' has no attribute {name!r}")
    home = "queries.text" if name == "SqlText" else "sql.app"
    value = getattr(importlib.import_module(f"headrace.{home}"), name)
    globals()[name] = value
    return value
