"""What Redis's own clients are answered by ``headrace serve``, beside what Redis answers them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis
from tests.support.homes import Home
from tests.support.servers import RedisServer, encode_key
from tests.support.serving import Served

PASSWORD = "of-the-served-tables"
COLUMNS = {"id": pa.string(), "age": pa.int64(), "city": pa.string(), "note": pa.string()}
ROWS = [
    {"id": f"p{n:02}", "age": n, "city": f"c{n % 9}", "note": None if n % 2 else f"näh {n}"}
    for n in range(40)
]


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "home") as home:
        home.create("people", COLUMNS, key=("id",))
        home.send("people", ROWS)
        yield home


@pytest.fixture
def served(people: Home, tmp_path: Path) -> Iterator[Served]:
    """The rows, for clients with a password."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    source = ("stream", "people")
    with Served(people.settings(), people.bus, source, password_file=file) as found:
        yield found


def columns(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


def packed(row: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(columns(row))


def cli(port: int, protocol: int, *words: str) -> str:
    """Return what redis-cli shows of a reply, with its types."""
    options = ["-p", str(port), f"-{protocol}", "--no-raw", "--no-auth-warning"]
    ran = subprocess.run(
        ["redis-cli", *options, *words], capture_output=True, text=True, timeout=30, check=True
    )
    return ran.stdout


KEYS = (
    *(("get", "people:p01"), ("get", "people:none"), ("get", "none"), ("strlen", "people:p02")),
    ("mget", "people:p00", "people:none", "people:p39", "people:p00"),
    *(("exists", "people:p00", "people:none", "people:p00"), ("exists", "none")),
    *(("ttl", "people:p00"), ("ttl", "none"), ("pttl", "people:p00"), ("type", "people:p00")),
    *(("type", "none"), ("dbsize",), ("ping",), ("ping", "a b"), ("echo", "x"), ("select", "0")),
    *(
        ("select", "1000"),
        ("auth", "x"),
        ("get",),
        ("mget",),
        ("hget", "people:p00"),
        ("ttl", "a", "b"),
    ),
    *(("hello", "4"), ("client", "getname")),
)
HASHES = (
    *(("hget", "people:p02", "city"), ("hget", "people:p02", "none"), ("hget", "none", "city")),
    *(("hget", "people:p02", "note"), ("hget", "people:p03", "note")),
    *(("hmget", "people:p02", "age", "none", "city"), ("hmget", "none", "age", "city")),
    *(("hgetall", "people:p02"), ("hgetall", "people:p03"), ("hgetall", "none")),
    *(("hkeys", "people:p02"), ("hkeys", "none"), ("hvals", "people:p03"), ("hvals", "none")),
    *(("hlen", "people:p03"), ("hlen", "none"), ("hexists", "people:p03", "note")),
    ("hexists", "people:p02", "note"),
)


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_cli_shows_what_redis_shows(people: Home, server: RedisServer, protocol: int) -> None:
    """Values as strings for commands of keys, and as hashes for those of fields."""
    source = ("stream", "people")
    with (
        Served(people.settings(), people.bus, source) as served,
        redis.Redis.from_url(server.url) as real,
    ):
        for asked, is_hash in ((KEYS, False), (HASHES, True)):
            real.flushall()
            for row in ROWS:
                key, fields = f"people:{row['id']}", columns(row)
                if is_hash:
                    real.hset(key, mapping={k: v for k, v in fields.items() if v is not None})
                else:
                    real.set(key, packed(row))
            for words in asked:
                found, wanted = (cli(port, protocol, *words) for port in (served.port, server.port))
                assert found == wanted, words


def test_commands_are_described_as_redis_describes_them(people: Home, server: RedisServer) -> None:
    facts = ("arity", "first_key_pos", "last_key_pos", "step_count")
    with (
        Served(people.settings(), people.bus, ("stream", "people")) as served,
        redis.Redis(port=served.port) as client,
        redis.Redis.from_url(server.url) as real,
    ):
        wanted, found = real.command(), client.command()
        assert len(found) > 30
        for name, one in found.items():
            if not name.startswith("hr."):
                assert [one[fact] for fact in facts] == [wanted[name][fact] for fact in facts], name


def test_redis_benchmark_asks_each_command(people: Home) -> None:
    with Served(people.settings(), people.bus, ("stream", "people")) as served:
        key = "people:p__rand_int__"
        for words in (
            ("ping",),
            ("get", key),
            ("mget", key, key, key),
            ("exists", key),
            ("hget", key, "city"),
            ("hmget", key, "city", "age"),
            ("hgetall", key),
        ):
            options = ["-p", str(served.port), "-n", "500", "-c", "10", "-P", "4", "-r", "100"]
            ran = subprocess.run(
                ["redis-benchmark", *options, "-q", *words],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert "requests per second" in ran.stdout
        with redis.Redis(port=served.port) as client:
            assert client.info("stats")["total_commands_processed"] >= 7 * 500


def test_redis_cli_logs_in_and_is_told_about_the_server(served: Served) -> None:
    assert "NOAUTH" in cli(served.port, 2, "get", "people:p00")
    assert "WRONGPASS" in cli(served.port, 2, "auth", "wrong")
    assert cli(served.port, 3, "auth", "default", PASSWORD) == "OK\n"
    login = ("-a", PASSWORD)
    assert "headrace" in cli(served.port, 2, *login, "info", "server")
    assert "table0:table=people," in cli(served.port, 2, *login, "info")
    assert int(cli(served.port, 2, *login, "command", "count").split()[-1]) > 30
    scanned = cli(served.port, 2, *login, "--scan", "--pattern", "people:p1*")
    assert len(scanned.splitlines()) == 10


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_asks_each_command(served: Served, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol, password=PASSWORD) as client:
        client.auth(PASSWORD)
        assert client.get("people:p03") == client.get(b"people:" + encode_key(("p03",)))
        assert client.mget("people:p03", "none") == [packed(ROWS[3]), None]
        assert client.exists("people:p00", "none") == 1
        assert (client.ttl("people:p00"), client.ttl("none")) == (-1, -2)
        cursor, keys = client.scan(0, match="people:p0*", count=4)
        assert cursor
        assert len(keys) == 4
        assert client.hget("people:p04", "note") == "näh 4".encode()
        assert client.hmget("people:p04", "age", "none") == [b"4", None]
        assert client.hgetall("people:p03") == {b"age": b"3", b"city": b"c3"}
        assert client.ping() is True
        assert client.info("keyspace")["db0"]["keys"] == 40
        assert client.command()["hgetall"]["arity"] == 2
        version, staleness_ms, [value] = client.execute_command("HR.READ", "people", 40, "p05")
        assert (version, value) == (40, packed(ROWS[5]))
        assert 0 <= staleness_ms < 60_000
        version, staleness_ms, pairs, more = client.execute_command("HR.PREFIX", "people", "p3")
        assert (version, len(pairs), more) == (40, 20, None)
        assert 0 <= staleness_ms < 60_000
        asked = ("HR.RANGE", "people", "p05", "p09", "LIMIT", 2)
        version, _, pairs, more = client.execute_command(*asked)
        assert (version, pairs[::2]) == (40, [encode_key((f"p0{n}",)) for n in (5, 6)])
        assert pairs[1] == packed(ROWS[5])
        _, _, pairs, _ = client.execute_command("HR.RANGE", "people", more, "p09")
        assert pairs[::2] == [encode_key((f"p0{n}",)) for n in (7, 8)]
        with pytest.raises(redis.exceptions.ResponseError, match="HRSTALE"):
            client.execute_command("HR.READ", "people", 41, "p05")


def test_coredis_asks_each_command(served: Served) -> None:
    import coredis  # tests of other files need not load it

    async def asked() -> None:
        async with coredis.Redis(host="127.0.0.1", port=served.port, password=PASSWORD) as client:
            assert await client.get("people:p03") == packed(ROWS[3])
            assert await client.mget(["people:p03", "none"]) == (packed(ROWS[3]), None)
            assert await client.exists(["people:p00", "none"]) == 1
            assert await client.ttl("people:p00") == -1
            cursor, keys = await client.scan(0, match="people:p0*", count=4)
            assert cursor
            assert len(keys) == 4
            assert await client.hget("people:p04", "city") == b"c4"
            assert await client.hmget("people:p04", ["age", "none"]) == (b"4", None)
            assert await client.hgetall("people:p03") == {b"age": b"3", b"city": b"c3"}
            assert await client.ping() == b"PONG"
            assert (await client.info("server"))["server_name"] == "headrace"
            assert await client.command_count() > 30
            assert "hgetall" in await client.command_info("hgetall", "mget")

    asyncio.run(asked())
