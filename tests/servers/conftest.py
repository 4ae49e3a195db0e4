"""Real servers, started once for all tests, each of which has an empty one or a database in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis as client_library
from tests.support.kafka import CLIENTS, KafkaServer, RegistryServer, Topics
from tests.support.kafka_proxy import KafkaProxy
from tests.support.secured import Certificates
from tests.support.servers import PostgresServer, RedisServer, S3Server
from tests.support.storages import forget_storages, new_name

USER, PASSWORD, KEY_PASSWORD = "shop", "pw-of-login-831", "pw-of-key-472"
"""A login of the broker, and what locks its client's key."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """An empty server; files whose tests set it or kill it have ``own_server`` in its place."""
    with client_library.Redis.from_url(redis_server.url) as redis:
        redis.flushall()
        redis.script_flush()
        redis.config_resetstat()
        for user in set(redis.acl_users()) - {"default"}:
            redis.acl_deluser(user)
    return redis_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
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


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that nobody kills."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer, request: pytest.FixtureRequest) -> str:
    """A database of its own for each test."""
    name = f"test_{abs(hash(request.node.nodeid))}"
    ask(postgres.url, f"CREATE DATABASE {name}")
    return postgres.url.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of the broker, and of its client with a login."""
    return Certificates(tmp_path_factory.mktemp("certificates"), KEY_PASSWORD)


@pytest.fixture(scope="session")
def between() -> Iterator[KafkaProxy]:
    """The broker, by a proxy before it."""
    proxy = KafkaProxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def kafka(
    certificates: Certificates, between: KafkaProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaServer]:
    """A broker that nobody kills; each test has topics of its own."""
    given = certificates.properties(USER, PASSWORD)
    folder = tmp_path_factory.mktemp("kafka")
    with KafkaServer(folder, given, protocols=("SASL_SSL",), proxy=between.address) as server:
        between.leads_to = server.port_of("PROXIED")
        yield server


@pytest.fixture(autouse=True, scope="module")
def no_readers_left() -> Iterator[None]:
    """Readers of topics that nobody reads again would hold some 500 files open."""
    yield
    CLIENTS.close()


@pytest.fixture
def topics(kafka: KafkaServer) -> Topics:
    return Topics(kafka.address)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """A schema registry that nobody kills."""
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that nobody kills."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The same, found by the environment of the test and of its processes."""
    forget_storages()
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    yield s3_server
    forget_storages()


@pytest.fixture
def address(s3: S3Server) -> str:
    """A storage of its own for each test."""
    return f"s3://{s3.bucket}/{new_name()}/jobs"


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """Have PostgreSQL run a statement; return its rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def calls(redis: Any, command: str) -> int:
    """How often the server ran a command."""
    return int(redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))
