"""Serving, as Laser does: keys of committed state, streams and daily tables.

``headrace serve`` answers over Redis's protocol and HTTP; ``Client`` asks.

Source: seed 003, section 2.5.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.serving.client import Client, Read
    from headrace.serving.table import StaleError

__all__ = ["Client", "Read", "StaleError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headrace.serving' has no attribute {name!r}")
    value = getattr(importlib.import_module("headrace.serving.client"), name)
    globals()[name] = value
    return value
