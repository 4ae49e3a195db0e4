"""The warehouse: tables with a partition for each day, committed by epochs, read by anyone.

``g.output_table`` writes them. ``Table`` returns the files with the committed rows; other readers
use ``warehouse/NAME/*/*.parquet``. The steps of a commit are in ``receiver``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.warehouse.table import (
        DayInfo,
        Table,
        named_table,
        readable_tables,
        table_names,
    )

__all__ = ["DayInfo", "Table", "named_table", "readable_tables", "table_names"]

_HOMES = {**dict.fromkeys(__all__, "table"), "table_sink": "sink"}
"""Loaded when used: ``--help`` lists the commands of this package, and must not load Arrow."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.warehouse' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace.warehouse.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
