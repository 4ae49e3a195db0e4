"""Servers of tables in a thread of a test, and clients that speak to them without a library."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any, Self

from tests.support.processes import until

from headrace.bus import Bus
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.serving.entries import DiskEntries, MemoryEntries
from headrace.serving.listener import ClientLimits
from headrace.serving.redis_session import RedisSession, ServerFacts
from headrace.serving.resp import RequestLimits, RequestReader, plain_gets
from headrace.serving.rows import ColumnRows, encode_rows
from headrace.serving.server import Origin, ServeOptions, TableServer
from headrace.serving.sources import Follower, Source
from headrace.serving.table import ServedTable, Tables, TableVersion
from headrace.state.rocksdb import RocksDBSettings

__all__ = [
    "ClientLimits",
    "ColumnRows",
    "DiskEntries",
    "Follower",
    "MemoryEntries",
    "Origin",
    "RedisSession",
    "RequestLimits",
    "RequestReader",
    "RocksDBSettings",
    "ServedTable",
    "ServerFacts",
    "Source",
    "TableVersion",
    "Tables",
    "encode_rows",
    "plain_gets",
]


class Served:
    """A server in a thread, until the end of the block.

    Args:
        settings: of the home.
        bus: of the home.
        origins: of the tables: kind and source, as on the command line.
        options: other options of ``ServeOptions``.
    """

    def __init__(
        self, settings: Settings, bus: Bus, *origins: tuple[str, str], **options: Any
    ) -> None:
        named = tuple(Origin.of(*origin) for origin in origins)
        self.server = TableServer(ServeOptions(named, **options), settings, bus, SystemClock())
        self._thread = threading.Thread(target=self.server.serve)
        self.port = self.server.port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def table(self, name: str) -> ServedTable:
        return self.server.tables.named(name)

    def reach(self, name: str, version: int) -> None:
        """Wait until a table shows a version."""
        self.table(name).wait(version, 90.0)

    def __enter__(self) -> Self:
        self._thread.start()
        until(
            lambda: all(one.is_loaded or one.problem for one in self.server.tables),
            "tables to be loaded",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._thread.join()


def raw(port: int, data: bytes, *, ends: bool = True, timeout_s: float = 30.0) -> bytes:
    """Send bytes, and return all that comes until the server closes, or has answered QUIT."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as client:
        client.sendall(data)
        if ends:
            client.shutdown(socket.SHUT_WR)
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)


def request(*words: bytes | str | int) -> bytes:
    """Return a request as clients send it."""
    encoded = [one if isinstance(one, bytes) else str(one).encode() for one in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in encoded)


def requests(*words: Sequence[bytes | str | int]) -> bytes:
    return b"".join(request(*one) for one in words)
