"""Stores on a server that others share: Redis, reached over the network.

Read ``store`` for what user code sees and what is promised, ``client`` and ``aio`` for the
two ways to the server, ``cache`` for what is remembered between epochs.
"""

from headrace.state.remote.cache import ReadCache
from headrace.state.remote.store import RemoteStore

__all__ = ["ReadCache", "RemoteStore"]
