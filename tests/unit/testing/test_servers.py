"""What servers of tests get before they start."""

from __future__ import annotations

import socket
from pathlib import Path

from headrace.testing.servers import free_port


def test_a_free_port_is_none_that_connections_get() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) > 10  # others that ask at once get others
    assert not any(first <= port <= last for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert all(free_port() != ports[0] for _ in range(100))
