"""What clients are answered: any bytes, requests in any pieces, and each command."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.processes import REAL_CLOCK
from tests.support.serving import (
    ColumnRows,
    DiskEntries,
    MemoryEntries,
    RedisSession,
    RequestLimits,
    RequestReader,
    ServedTable,
    ServerFacts,
    Tables,
    TableVersion,
    encode_rows,
    plain_gets,
    request,
)
from tests.support.soak import examples

from headrace.errors import InvalidInputError

KEYS = pa.schema([("id", pa.string())])
VALUES = pa.schema([("n", pa.int64()), ("city", pa.string())])
ROWS = {"a": (1, "Oslo"), "b": (2, None), "a c": (3, "Rome"), "a\0b": (4, "Bern")}
LIMITS = RequestLimits(request_bytes=4096, arguments=64)


def served(rows: dict[str, tuple[int, str | None]], name: str = "t", **more: Any) -> ServedTable:
    table = ServedTable(name, f"{name}:".encode(), ColumnRows(KEYS, VALUES), REAL_CLOCK, **more)
    entries = MemoryEntries()
    columns = [pa.array([value[at] for value in rows.values()]) for at in range(2)]
    ids = pa.array(list(rows), pa.string())
    entries.load(*encode_rows([ids], dict(zip(VALUES.names, columns, strict=True))))
    table.swap(entries, TableVersion(7, 0, "test"))
    return table


def session(
    *tables: ServedTable, password: str = "", limits: RequestLimits = LIMITS
) -> RedisSession:
    facts = ServerFacts(Tables(tables or (served(ROWS),)), REAL_CLOCK, password, limits)
    return RedisSession(facts, 1)


words = st.lists(st.binary(max_size=12), min_size=1, max_size=5)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(words, max_size=6), st.lists(st.integers(0, 200), max_size=6))
def test_requests_are_the_same_in_whatever_pieces_they_come(
    sent: list[list[bytes]], cuts: list[int]
) -> None:
    data = b"".join(request(*one) for one in sent)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = RequestReader(LIMITS)
    found = []
    for begin, end in itertools.pairwise(places):
        found += reader.feed(data[begin:end])
    assert found == sent
    assert reader.error == ""
    assert reader.is_between


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.binary(max_size=8), min_size=1, max_size=20))
def test_a_buffer_of_gets_is_read_as_one_request_at_a_time_would_be(keys: list[bytes]) -> None:
    data = b"".join(request(b"GET", key) for key in keys)
    quick = plain_gets(data)
    assert quick is None or quick == keys
    assert quick == keys or any(b"\r\n" in key for key in keys)
    assert RequestReader(LIMITS).feed(data) == [[b"GET", key] for key in keys]


PIECES = (
    *(b"*1\r\n", b"*2\r\n", b"*-1\r\n", b"*9999999\r\n", b"$3\r\n", b"$-5\r\n", b"$1_0\r\n"),
    *(b"\r\n", b"GET", b"get\r\n", b"t:a\r\n", b"t:a", b"MGET t:a t:b\r\n", b"HELLO 3\r\n"),
    *(b"SCAN 0\r\n", b"SCAN 0 MATCH [*[^\\ COUNT 5\r\n", b"INFO\r\n", b"HR.TABLES\r\n"),
    *(b"\xff\0", b"*", b"$", b"0", b"+OK\r\n", b"HR.RANGE t \xff \0\r\n", b"COMMAND INFO x\r\n"),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=16), max_size=12), st.booleans())
def test_any_bytes_are_answered(parts: list[bytes], has_password: bool) -> None:
    client = session(password="secret-password" if has_password else "")
    for part in parts:
        answer = client.feed(part)
        assert answer == b"" or (answer[:1] in b"+-:$*%_" and answer.endswith(b"\r\n"))
        assert not has_password or b"Oslo" not in answer
        if client.is_over:
            break


FORMS = (b"t:%b", b"t:\x30%b\0\0", b"%b", b"t:%b\nt:a", b"t:t:%b", b"t: %b", b"\nt:%b", b't:["%b"]')


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FORMS), st.sampled_from([b"a", b"b", b"a c", b"no", b"", b"\xff"])
        ),
        min_size=1,
        max_size=12,
    )
)
def test_many_keys_are_answered_as_each_alone_would_be(wanted: list[tuple[bytes, bytes]]) -> None:
    keys = [form.replace(b"%b", name) for form, name in wanted]
    alone = [session().feed(request("MGET", key)).removeprefix(b"*1\r\n") for key in keys]
    assert session().feed(request("MGET", *keys)) == b"*%d\r\n" % len(keys) + b"".join(alone)
    assert session().feed(b"".join(request("GET", key) for key in keys)) == b"".join(alone)
    for (form, name), reply in zip(wanted, alone, strict=True):
        is_there = name in (b"a", b"b") and form in (FORMS[0], FORMS[1], FORMS[-1])
        assert reply != b"$-1\r\n" or not is_there


def one_by_one(client: RedisSession, data: bytes) -> bytes:
    answers = b""
    for at in range(len(data)):
        answers += client.feed(data[at : at + 1])
        if client.is_over:
            break
    return answers


EQUAL = (
    b"t:a",
    b"t:b",
    b"t:x",
    b"u:a",
    b"v:c",
    b"t:[",
    b"t: ",
    b"t:\n",
    b"t\r\n",
    b"$3\r",
    b"t:\xff",
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(st.sampled_from(EQUAL[:3]), min_size=12, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.sampled_from(EQUAL)), max_size=2),
    st.none() | st.tuples(st.integers(0, 600), st.binary(max_size=2)),
    st.booleans(),
)
def test_keys_of_one_size_are_answered_as_byte_by_byte(
    keys: list[bytes], odd: list[tuple[int, bytes]], damage: tuple[int, bytes] | None, is_one: bool
) -> None:
    for at, key in odd:
        keys[at % len(keys)] = key
    data = request(b"MGET", *keys) if is_one else b"".join(request(b"GET", key) for key in keys)
    if damage is not None:
        at = damage[0] % len(data)
        data = data[:at] + damage[1] + data[at + len(damage[1]) :]
    others = (served({"a": (5, None)}, "u"), served({"c": (6, "x")}, "v"), served(ROWS))
    for tables in ((), others):
        quick, slow = session(*tables), session(*tables)
        assert quick.feed(data) == one_by_one(slow, data)
        counted = [client.feed(b"INFO STATS\r\n") for client in (quick, slow)]
        assert counted[0] == counted[1]


def test_a_namespace_that_begins_another_does_not_take_its_keys() -> None:
    outer, inner = served({"u:a": (1, "outer")}, "t"), served({"a": (2, "inner")}, "t:u")
    keys = [b"t:u:a"] * 20
    found = session(outer, inner).feed(request(b"MGET", *keys))
    assert found.count(b"inner") == 20
    assert b"outer" not in found


@pytest.mark.parametrize("on_disk", [False, True])
def test_of_a_key_that_is_loaded_twice_the_last_value_counts(on_disk: bool, tmp_path: Path) -> None:
    made = DiskEntries(tmp_path / "entries", chunk_rows=40) if on_disk else MemoryEntries()
    with made as entries:
        expected: dict[bytes, bytes] = {}
        for turn in range(8):
            keys = [b"k%03d" % (n * 37 % 50) for n in range(turn, turn + 30)]
            values = [b"v%d-%d" % (turn, n) for n in range(30)]
            entries.load([*keys, keys[0]], [*values, b"last of %d" % turn])
            expected |= dict(zip(keys, values, strict=True)) | {keys[0]: b"last of %d" % turn}
        entries.load([], [])
        entries.loaded()
        assert entries.count() == len(expected)
        assert entries.scan(b"", None, 1000) == sorted(expected.items())
        entries.apply([b"k000", b"new"], [None, b"1"])
        expected = {**expected, b"new": b"1"}
        del expected[b"k000"]
        asked = [b"k001", b"k000", b"new", b"none"]
        found = list(map(expected.get, asked))
        assert found[1:3] == [None, b"1"]
        assert entries.get_many(asked) == found
        shown = [b"_" if one is None else b"$%d\r\n%b\r\n" % (len(one), one) for one in found]
        replies, misses = entries.replies(asked, b"_")
        assert (list(replies), misses) == (shown, found.count(None))
        within = [(k, v) for k, v in sorted(expected.items()) if b"k02" <= k < b"k03"]
        assert entries.scan(b"k02", b"k03", 5) == within[:5]


def test_requests_beyond_the_limits_are_refused_and_end_the_connection() -> None:
    for data, reason in (
        (b"*65\r\n", "invalid multibulk length"),
        (b"*2\r\n$3\r\nGET\r\n$5000\r\n", "invalid bulk length"),
        (request(b"MGET", *[b"x" * 1000] * 5), "invalid bulk length"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n$4\r\nPING!\r\n", "longer than its length says"),
        (b"x" * 70_000, "too big inline request"),
        (b"*a\r\n", "invalid multibulk length"),
    ):
        client = session()
        first = client.feed(request(b"PING"))
        assert first == b"+PONG\r\n"
        assert reason in client.feed(data).decode(), data[:20]
        assert client.is_over


def test_each_command_answers_as_redis_does() -> None:
    client = session()
    for asked, answer in (
        (("GET", "t:a"), b"$14\r\n\x82\xa1n\x01\xa4city\xa4Oslo\r\n"),
        (("get", b"t:0a\0\0"), b"$14\r\n\x82\xa1n\x01\xa4city\xa4Oslo\r\n"),
        (("GET", "t:no"), b"$-1\r\n"),
        (("GET", "other:a"), b"$-1\r\n"),
        (("EXISTS", "t:a", "t:a", "t:no"), b":2\r\n"),
        (("TTL", "t:a"), b":-1\r\n"),
        (("PTTL", "t:no"), b":-2\r\n"),
        (("TYPE", "t:a"), b"+string\r\n"),
        (("HGET", "t:a", "city"), b"$4\r\nOslo\r\n"),
        (("HGET", "t:b", "city"), b"$-1\r\n"),
        (("HMGET", "t:a c", "n", "no"), b"*2\r\n$1\r\n3\r\n$-1\r\n"),
        (("HGETALL", "t:b"), b"*2\r\n$1\r\nn\r\n$1\r\n2\r\n"),
        (("HLEN", "t:a"), b":2\r\n"),
        (("HEXISTS", "t:a", "n"), b":1\r\n"),
        (("PING",), b"+PONG\r\n"),
        (("PING", "x"), b"$1\r\nx\r\n"),
        (("DBSIZE",), b":4\r\n"),
        (("HR.VERSION", "t"), b"*3\r\n:7\r\n:0\r\n"),
        (("SELECT", "1"), b"-ERR DB index is out of range\r\n"),
        (("SET", "t:a", "1"), b"-READONLY You can't write against a read only replica.\r\n"),
        (("GET",), b"-ERR wrong number of arguments for 'get' command\r\n"),
        (("FOO", "x"), b"-ERR unknown command 'FOO'"),
        (("AUTH", "x"), b"-ERR AUTH <password> called without any password"),
        (("HR.READ", "t", "8", "a"), b"-HRSTALE table 't' shows version 7, asked for 8\r\n"),
        (("HR.READ", "u", "1", "a"), b"-ERR no table 'u' is served; found t\r\n"),
    ):
        assert client.feed(request(*asked)).startswith(answer), asked
    assert client.feed(b"GET t:no\r\nPING\r\n") == b"$-1\r\n+PONG\r\n"


def test_resp3_has_maps_and_nulls_of_its_own() -> None:
    client = session()
    assert client.feed(request("HELLO", "3")).startswith(b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n")
    assert client.feed(request("HGETALL", "t:b")) == b"%1\r\n$1\r\nn\r\n$1\r\n2\r\n"
    assert client.feed(request("GET", "t:no")) == b"_\r\n"
    assert client.feed(request("HELLO", "4")) == b"-NOPROTO unsupported protocol version\r\n"


def test_nothing_is_answered_before_the_password() -> None:
    client = session(password="of-this-server")
    for asked in (("GET", "t:a"), ("INFO",), ("FOO",), ("SCAN", "0")):
        assert client.feed(request(*asked)) == b"-NOAUTH Authentication required.\r\n"
    assert client.feed(request("HELLO", "3")).startswith(b"-NOAUTH HELLO must be called")
    assert client.feed(request("AUTH", "wrong")).startswith(b"-WRONGPASS ")
    assert client.feed(request("AUTH", "admin", "of-this-server")).startswith(b"-WRONGPASS ")
    assert client.feed(request("GET", "t:a")) == b"-NOAUTH Authentication required.\r\n"
    assert client.feed(request("AUTH", "default", "of-this-server")) == b"+OK\r\n"
    assert client.feed(request("EXISTS", "t:a")) == b":1\r\n"
    assert client.feed(request("RESET")) == b"+RESET\r\n"
    assert client.feed(request("GET", "t:a")).startswith(b"-NOAUTH")


def test_a_large_request_needs_a_login() -> None:
    """Else anybody could fill the memory of a server, a part of a request at a time."""
    large = request("MGET", *["t:a"] * 4000)
    for login in ((), ("AUTH", "of-this-server")):
        client = session(password="of-this-server", limits=RequestLimits())
        if login:
            assert client.feed(request(*login)) == b"+OK\r\n"
        parts = (large[at : at + 900] for at in range(0, len(large), 900))
        answered = next(filter(None, map(client.feed, parts)))
        if login:
            assert answered.startswith(b"*4000\r\n")
        else:
            assert answered == b"-ERR Protocol error: a request of this size needs a login\r\n"
        assert client.is_over is not bool(login)


def test_a_table_that_loads_says_so() -> None:
    table = ServedTable("t", b"t:", ColumnRows(KEYS, VALUES), REAL_CLOCK)
    client = session(table)
    assert client.feed(request("GET", "t:a")) == b"-LOADING table 't' is loading\r\n"
    assert b"loading:1" in client.feed(request("INFO"))


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="same name or namespace twice"):
        Tables([served(ROWS), served(ROWS)])
