"""Stores on a server that others share: Redis, reached over the network.

Read ``store`` for what user code sees and what is promised, ``client`` and ``aio`` for the
two ways to the server, ``cache`` for what is remembered between epochs.
"""

from __future__ import annotations

from headrace.remote_state.client import Stamp
from headrace.remote_state.store import ReadCache, RemoteStore

__all__ = ["ReadCache", "RemoteStore", "Stamp"]
