"""Broadcast stores: a table that a process holds whole, as it was at given offsets.

Read ``table`` for the rows and how they move on, ``index`` for how keys are found, ``lookup``
for what a processor sees.
"""

from headrace.state.broadcast.index import KeyIndex
from headrace.state.broadcast.lookup import BroadcastStore
from headrace.state.broadcast.table import BroadcastTable

__all__ = ["BroadcastStore", "BroadcastTable", "KeyIndex"]
