"""Servers of remote stores: the contract of a client, and Redis.

``RemoteClient`` is what another package gives for an address of its own scheme, by an entry point
of the group ``headrace.stores``.
"""

from headrace.state.remote_store import RemoteClient, Stamp, resolved_url

__all__ = ["RemoteClient", "Stamp", "resolved_url"]
