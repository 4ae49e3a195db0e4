"""A real Redis server for each test that asks, on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as client_library

from headrace.bench.redis import RedisServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.servers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def durable_server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", is_durable=True) as server:
        yield server


@pytest.fixture
def backdoor(server: RedisServer) -> Iterator[Any]:
    """The server by the library itself, past the code under test."""
    with client_library.Redis.from_url(server.url) as redis:
        yield redis


def calls(redis: Any, command: str) -> int:
    """How often the server ran a command."""
    return int(redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))
