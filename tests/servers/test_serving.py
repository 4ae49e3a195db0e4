"""``headrace serve`` with Redis's own clients: jobs that die meanwhile, slow clients, HTTP."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis
from tests.support.homes import Home
from tests.support.processes import Started, is_alive, kill, until
from tests.support.servers import RedisServer, encode_key, free_port
from tests.support.serving import ClientLimits, RequestLimits, Served, raw, request

import headrace as hr
from headrace.errors import UnavailableError
from headrace.testing import TestDriver

JOB = """
import headrace as hr

class Counting:
    def process(self, message, context):
        counts = context.store("counts")
        counts.put(message.user, counts.get(message.user, 0) + 1)

@hr.job("clicks")
def clicks(g: hr.Graph) -> None:
    g.input("clicks").partition_by("user").process(Counting, [hr.store("counts", int)])
"""
USERS = [f"user-{n}" for n in range(50)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    found = Started(tmp_path, tmp_path / "home")
    yield found
    found.end()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "home") as found:
        yield found


def told(started: Started, number: int) -> list[dict[str, Any]]:
    lines = started.said(number).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def redis_cli(port: int, *words: str, stdin: str = "") -> str:
    command = ["redis-cli", "-p", str(port), *words]
    ran = subprocess.run(
        command, input=stdin or None, capture_output=True, text=True, timeout=60, check=True
    )
    return ran.stdout


def test_counts_are_served_while_their_job_is_killed_and_started_again(
    home: Home, started: Started, tmp_path: Path
) -> None:
    file = tmp_path / "clicks.py"
    file.write_text(JOB)
    home.create("clicks", {"user": pa.string()}, partitions=2, key=("user",))
    expected: Counter[str] = Counter()

    def click(rows: int) -> None:
        users = [USERS[(n * n + rows) % 50] for n in range(rows)]
        expected.update(users)
        home.send("clicks", [{"user": user} for user in users])

    def run() -> subprocess.Popen[str]:
        return started.start("run", str(file), "--standalone", "--set", "epoch.max_rows=200")

    click(500)
    job = run()
    until(lambda: home.has_begun("clicks"), "the first epoch")
    served = started.start("serve", "--job", "clicks:counts", "--port", "0", "--json")
    until(lambda: len(told(started, 1)) > 1, "the table to be loaded")
    port = int(told(started, 1)[0]["address"].rpartition(":")[2])
    keys = [f"counts:{user}" for user in USERS]
    with redis.Redis(port=port) as client:
        last = [0] * len(keys)

        def follow() -> bool:
            """Read all keys; no count ever falls, and none is above what was clicked."""
            nonlocal last
            found = [0 if one is None else msgspec.msgpack.decode(one) for one in client.mget(keys)]
            wanted = [expected[user] for user in USERS]
            assert all(a <= b for a, b in zip(last, found, strict=True))
            assert all(a <= b for a, b in zip(found, wanted, strict=True))
            last = found
            return found == wanted

        for _ in range(2):
            click(700)
            until(lambda: home.read_so_far("clicks") > sum(expected.values()) - 600, "an epoch")
            follow()
            job.kill()
            job.wait()
            follow()
            job = run()
        until(follow, "all clicks to be served")
        assert home.store("clicks", "counts") == expected
        assert client.get(b"counts:" + encode_key(("user-1",))) == client.get("counts:user-1")
        assert redis_cli(port, "--raw", "hgetall", "counts:user-1").split() == [
            "value",
            str(expected["user-1"]),
        ]
    job.kill()
    served.send_signal(signal.SIGTERM)
    assert served.wait(60) == 0
    assert list((home.home / "serving").glob("*")) == []


PEOPLE = {"id": pa.string(), "age": pa.int64(), "city": pa.string()}


@pytest.fixture
def people(home: Home) -> Home:
    home.create("people", PEOPLE, key=("id",))
    home.send("people", [{"id": f"p{n:03}", "age": n, "city": f"c{n % 9}"} for n in range(200)])
    return home


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_reads_a_stream_by_either_protocol(people: Home, protocol: int) -> None:
    with (
        Served(people.settings(), people.bus, ("stream", "people")) as served,
        redis.Redis(port=served.port, protocol=protocol, decode_responses=False) as client,
    ):
        assert client.ping()
        assert client.exists("people:p001", "people:nobody") == 1
        assert client.ttl("people:p001") == -1
        assert client.hget("people:p007", "city") == b"c7"
        assert client.hmget("people:p007", "age", "no") == [b"7", None]
        assert client.hgetall("people:p010") == {b"age": b"10", b"city": b"c1"}
        assert client.dbsize() == 200
        assert client.info("server")["server_name"] == "headrace"
        assert client.info("Headrace")["table0"]["version"] == 200
        assert client.command_count() == len(client.command()) > 30
        assert client.command()["get"]["arity"] == 2
        scanned = list(client.scan_iter(count=7))
        assert scanned == [b"people:" + encode_key((f"p{n:03}",)) for n in range(200)]
        assert len(list(client.scan_iter("people:p01*", count=5))) == 10
        assert len(list(client.scan_iter("*p?5[0-3]*", count=50))) == 8
        with client.pipeline(transaction=False) as pipe:
            for n in range(100):
                pipe.get(f"people:p{n:03}")
            pipe.set("people:x", 1)
            found = pipe.execute(raise_on_error=False)
        values = [msgspec.msgpack.decode(one) for one in found[:100]]
        assert values == [{"age": n, "city": f"c{n % 9}"} for n in range(100)]
        assert isinstance(found[100], redis.exceptions.ReadOnlyError)


def test_a_password_is_asked_for_over_redis_and_http(people: Home, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("a-password-of-tests\n")
    options = {"password_file": tmp_path / "password", "http_port": 0}
    with Served(people.settings(), people.bus, ("stream", "people"), **options) as served:
        refused = pytest.raises(redis.exceptions.AuthenticationError)
        with redis.Redis(port=served.port) as client, refused:
            client.get("people:p001")
        with redis.Redis(port=served.port, password="a-password-of-tests") as client:
            assert client.exists("people:p001") == 1
        with hr.serving.Client(served.address, "people", password="a-password-of-tests") as reader:
            assert reader.get("p001")["age"] == 1
        with pytest.raises(hr.InvalidInputError, match="password"):
            hr.serving.Client(served.address, "people")
        place = served.server.place
        assert place is not None
        with pytest.raises(urllib.error.HTTPError, match="401") as unknown:
            urllib.request.urlopen(f"{place.url}/v1/tables", timeout=30)
        assert f"with the token in {tmp_path / 'password'}" in unknown.value.read().decode()


ARROW = "application/vnd.apache.arrow.stream"


def fetched(place: Any, path: str, body: Any = None, accept: str = "*/*") -> tuple[Any, bytes]:
    headers = {"Authorization": f"Bearer {place.token}", "Accept": accept}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    asked = urllib.request.Request(place.url + path, data, headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.headers, answer.read()


def test_http_answers_in_json_and_arrow_with_the_version(people: Home) -> None:
    with Served(people.settings(), people.bus, ("stream", "people"), http_port=0) as served:
        place = served.server.place
        [table] = json.loads(fetched(place, "/v1/tables")[1])
        assert (table["table"], table["keys"], table["version"]) == ("people", 200, 200)
        one = json.loads(fetched(place, "/v1/tables/people/rows?key=p004")[1])
        assert one["rows"] == [{"id": "p004", "age": 4, "city": "c4"}]
        assert one["version"] == 200
        some = json.loads(fetched(place, "/v1/tables/people/rows?prefix=p01&limit=3")[1])
        assert [row["id"] for row in some["rows"]] == ["p010", "p011", "p012"]
        assert some["more"] is True
        path = "/v1/tables/people/rows?from=p198&before=p3"
        headers, data = fetched(place, path)
        assert [row["age"] for row in json.loads(data)["rows"]] == [198, 199]
        assert 0 <= json.loads(data)["staleness_ms"] < 60_000
        assert 0 <= int(headers["X-Headrace-Staleness-Ms"]) < 60_000
        rows = pa.ipc.open_stream(fetched(place, path, None, ARROW)[1]).read_all()
        assert rows.column("id").to_pylist() == ["p198", "p199"]
        asked = {"keys": [["p001"], ["nobody"], ["p002"]], "at_least": 200, "wait_s": 5}
        assert json.loads(fetched(place, "/v1/tables/people/lookup", asked)[1])["rows"] == [
            {"id": "p001", "age": 1, "city": "c1"},
            {"id": "p002", "age": 2, "city": "c2"},
        ]
        headers, data = fetched(place, "/v1/tables/people/lookup", asked, ARROW)
        rows = pa.ipc.open_stream(data).read_all()
        assert rows.schema == pa.schema(PEOPLE)
        assert rows.column("age").to_pylist() == [1, 2]
        assert headers["X-Headrace-Version"] == "200"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            fetched(place, "/v1/tables/people/rows?key=p004&at_least=201")
        people.send("people", [{"id": "p004", "age": 5, "city": "c4"}])
        one = fetched(place, "/v1/tables/people/rows?key=p004&at_least=201&wait_s=30")[1]
        assert json.loads(one)["rows"][0]["age"] == 5


def test_slow_clients_and_those_beyond_the_limit_are_cut_off(people: Home) -> None:
    limits = ClientLimits(clients=2, slow_s=0.5, waiting_bytes=64 << 20)
    with Served(people.settings(), people.bus, ("stream", "people"), clients=limits) as served:
        with (
            socket.create_connection(("127.0.0.1", served.port)) as slow,
            redis.Redis(port=served.port) as client,
        ):
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asked = request("MGET", *["people:p001"] * 1000)
            slow.settimeout(60)

            def is_cut() -> bool:
                return bool(client.info("stats")["clients_cut"])

            slow.setblocking(False)

            def asks_on() -> bool:
                try:
                    slow.send(asked * 20)
                except BlockingIOError:
                    pass
                except OSError:
                    return True
                return is_cut()

            until(asks_on, "the slow client to be cut off")
            assert client.exists("people:p001") == 1
        with redis.Redis(port=served.port) as one, redis.Redis(port=served.port) as two:
            until(lambda: one.ping() and two.ping(), "room for two")
            assert b"max number of clients" in raw(served.port, b"")


def test_replies_that_pile_up_and_requests_that_are_too_large_end_a_client(people: Home) -> None:
    limits = ClientLimits(waiting_bytes=20_000)
    options: Any = {"clients": limits, "requests": RequestLimits(request_bytes=50_000)}
    with (
        Served(people.settings(), people.bus, ("stream", "people"), **options) as served,
        redis.Redis(port=served.port) as client,
    ):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asked = request("MGET", *["people:p001"] * 2000) * 200
            with contextlib.suppress(ConnectionError):  # that is what is wanted
                greedy.sendall(asked)
            until(lambda: client.info("stats")["clients_cut"] == 1, "the client to be cut off")
        assert b"invalid bulk length" in raw(served.port, b"*2\r\n$3\r\nGET\r\n$60000\r\n")
        assert client.exists("people:p001") == 1


def test_http_has_the_same_limits(people: Home) -> None:
    options: Any = {"clients": ClientLimits(clients=2), "requests": RequestLimits(1000)}
    with Served(people.settings(), people.bus, ("stream", "people"), http_port=0, **options) as one:
        place = one.server.place
        assert place is not None
        path, many = "/v1/tables/people/lookup", {"keys": [[f"p{n:03}"] for n in range(200)]}
        with pytest.raises(urllib.error.HTTPError, match="413") as refused:
            fetched(place, path, many)
        assert "expected 1,000 at most" in refused.value.read().decode()
        chunks = (json.dumps(many).encode()[at : at + 100] for at in range(0, 2000, 100))
        asked = urllib.request.Request(
            f"{place.url}{path}",
            chunks,
            {"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError, match="422"):  # its length is not said
            urllib.request.urlopen(asked, timeout=30)
        assert len(json.loads(fetched(place, path, {"keys": [["p001"]]})[1])["rows"]) == 1
        port = int(place.url.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            until(lambda: is_full(place), "the third client to be refused")
        until(lambda: not is_full(place), "room again")


def test_those_who_wait_for_a_version_do_not_hold_up_others(people: Home) -> None:
    with Served(people.settings(), people.bus, ("stream", "people"), http_port=0) as served:
        place = served.server.place
        assert place is not None
        port, head = int(place.url.rpartition(":")[2]), "GET /v1/tables/people/rows?key=p004"
        token = f"Host: localhost\r\nAuthorization: Bearer {place.token}\r\n\r\n"
        with contextlib.ExitStack() as stack:
            waiting = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                for _ in range(60)
            ]
            for one in waiting:
                one.sendall(f"{head}&at_least=201&wait_s=30 HTTP/1.1\r\n{token}".encode())
            for _ in range(5):
                assert b"p004" in fetched(place, "/v1/tables/people/rows?key=p004")[1]
            answered = select.poll()
            for one in waiting:
                answered.register(one, select.POLLIN)
            assert answered.poll(0) == []
            people.send("people", [{"id": "p004", "age": 5, "city": "c4"}])
            assert {one.recv(12) for one in waiting} == {b"HTTP/1.1 200"}


def test_who_does_not_log_in_is_cut_off(people: Home, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("a-password-of-tests")
    options = {"password_file": tmp_path / "password", "clients": ClientLimits(slow_s=0.3)}
    with (
        Served(people.settings(), people.bus, ("stream", "people"), **options) as served,
        redis.Redis(port=served.port, password="a-password-of-tests") as client,
        socket.create_connection(("127.0.0.1", served.port), timeout=60) as silent,
    ):
        number = client.client_id()
        assert silent.recv(1) == b""
        assert client.client_id() == number  # by the same connection
        assert client.info("stats")["clients_cut"] == 1


def test_clients_beyond_the_files_that_may_be_open_are_refused(people: Home) -> None:
    """As many are served as the hard limit allows, although fewer files may be open at first."""
    port = free_port()
    command = f"{sys.executable} -m headrace.cli.main serve --stream people --port {port}"
    limits = "ulimit -Sn 100 && ulimit -Hn 330 && exec "
    words = ["sh", "-c", f"{limits}{command} --home {people.home}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        lines = list(iter(serving.stdout.readline, "table people: 200 keys\n"))
        assert lines[1].startswith("room for 74 clients, not 1,000")
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                for _ in range(90)
            ]
            answers = []
            for one in clients:
                with contextlib.suppress(ConnectionError):
                    one.sendall(request("PING"))
                    answers.append(one.recv(64))
        assert answers.count(b"+PONG\r\n") == 74
        assert {answer[:20] for answer in answers} == {b"+PONG\r\n", b"-ERR max number of c"}
        serving.terminate()


def test_files_of_servers_that_were_killed_are_removed(people: Home, started: Started) -> None:
    words = ("serve", "--stream", "people", "--port", "0", "--keep", "disk", "--json")

    def serve(number: int) -> subprocess.Popen[str]:
        found = started.start(*words)
        until(lambda: len(told(started, number)) > 1, "the table to be loaded")
        return found

    def folders() -> list[str]:
        return [one.name.rpartition("-")[2] for one in (people.home / "serving").iterdir()]

    first, beside = serve(0), serve(1)
    kill(first.pid)
    last = serve(2)
    assert sorted(folders()) == sorted([str(beside.pid), str(last.pid)])
    for one in (beside, last):
        one.terminate()
        assert one.wait(60) == 0
    assert folders() == []


def is_full(place: Any) -> bool:
    try:
        fetched(place, "/v1/tables")
    except urllib.error.HTTPError as refused:
        return refused.code == 503
    return False


def test_processes_share_a_port(people: Home, started: Started) -> None:
    port = free_port()
    words = ("serve", "--stream", "people", "--port", str(port), "--processes", "2", "--json")
    serving = started.start(*words)
    until(lambda: len(told(started, 0)) == 4, "both processes to be loaded")

    def answering() -> int:
        with redis.Redis(port=port) as client:
            assert client.exists("people:p001") == 1
            return int(client.info("server")["process_id"])

    found = {answering() for _ in range(40)}
    assert len(found) == 2
    kill(found.pop())
    assert serving.wait(60) == 3
    assert "a process that serves ended with -9; the others were stopped" in started.said(0)
    until(lambda: not is_alive(found.pop()), "the other process to end")
    with pytest.raises(redis.exceptions.ConnectionError), redis.Redis(port=port) as client:
        client.ping()


def test_servers_stand_in_for_one_that_is_killed(people: Home, started: Started) -> None:
    """Of two halves of the keys one is served twice, the other once."""
    groups = ("0-255", "256-511", "256-511")
    ports = [str(free_port()) for _ in groups]

    def serve(*places: int) -> list[subprocess.Popen[str]]:
        known = len(started.started)
        made = [
            started.start(
                *("serve", "--stream", "people", "--json"),
                *("--groups", groups[at], "--port", ports[at]),
            )
            for at in places
        ]
        for number in range(known, len(started.started)):
            until(lambda: len(told(started, number)) > 1, "the table to be loaded")  # noqa: B023
        return made

    servers = serve(0, 1, 2)
    keys = [f"p{n:03}" for n in range(200)]
    values = [{"age": n, "city": f"c{n % 9}"} for n in range(200)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with hr.serving.Client(addresses, "people", retry_timeout="1s") as client:

        def check() -> None:
            assert client.get_many(keys) == values
            assert [*client.range()] == [*zip(keys, values, strict=True)]

        check()
        kill(servers[1].pid)
        check()
        with hr.serving.Client(addresses, "people") as later:
            assert later.get_many(keys) == values
        [servers[1]] = serve(1)
        kill(servers[2].pid)
        check()
        kill(servers[0].pid)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{ports[0]} does not answer"):
            client.get_many(keys)
        assert {answers(client, key) for key in keys[:6]} == {True, False}
        serve(0)
        check()


def answers(client: hr.serving.Client, key: str) -> bool:
    try:
        return bool(client.get(key))
    except UnavailableError:
        return False


class Joining:
    """Looks the city of a person up, in the table that is served."""

    def process(self, message: Any, context: hr.Context) -> None:
        person = context.store("people").get(message.id)
        context.emit({"id": message.id, "city": "?" if person is None else person["city"]})


def test_jobs_look_up_keys_of_a_served_table_batched_and_cached(
    people: Home, tmp_path: Path
) -> None:
    with Served(people.settings(), people.bus, ("stream", "people")) as served:
        url = f"redis://{served.address}/0"
        remote = hr.Remote(namespace="people:", load=("id",), cache="10m")

        @hr.job("joining")
        def joining(g: hr.Graph) -> None:
            store = hr.store("people", dict, kind="remote", url=url, remote=remote)
            found = g.input("asked").process(
                Joining, [store], returns={"id": pa.string(), "city": pa.string()}
            )
            found.send_to(g.output("answered"))

        def commands() -> int:
            with redis.Redis(port=served.port) as client:
                return int(client.info("stats")["total_commands_processed"])

        asked = [{"id": f"p{n % 210:03}"} for n in range(600)]
        with TestDriver(joining, home=tmp_path / "other") as driver:
            driver.create("asked", {"id": pa.string()})
            driver.feed("asked", asked)
            driver.run()
            answered = {row["id"]: row["city"] for row in driver.output("answered")}
            assert answered == {f"p{n:03}": f"c{n % 9}" if n < 200 else "?" for n in range(210)}
            assert (batched := commands()) < 20
            driver.feed("asked", [one for one in asked if one["id"] < "p200"])
            driver.run()
            assert len(driver.output("answered")) > 1000
            assert commands() - batched < 8  # those of connections


class Keeping:
    """Keeps values of all kinds under keys of all kinds."""

    def process(self, message: Any, context: hr.Context) -> None:
        store, n = context.store("kept"), message.n
        for key, value in (
            (n, {"n": n, "at": None, "list": [1, 2.5, "x"]}),
            ((message.user, n), [n, n / 3, True]),
            (message.user, "näh\0"),
            ((message.user, b"\xff\0", -n), b"\0\xff"),
            ((1.5, n), 1 << 40),
        ):
            store.put(key, value)


def keeping(**options: Any) -> hr.Job:
    @hr.job("keeping")
    def found(g: hr.Graph) -> None:
        store = hr.store("kept", Any, **options)
        g.input("asked").partition_by("user").process(Keeping, [store])

    return found


def test_keys_and_values_are_as_remote_stores_write_them(
    server: RedisServer, tmp_path: Path
) -> None:
    """A job writes to Redis, the same job to its own store, which is served: the same bytes."""
    rows = [{"user": f"u{n % 7}", "n": n} for n in range(40)]
    remote = hr.Remote(namespace="kept:")
    for folder, job in (
        ("remote", keeping(kind="remote", url=server.url, remote=remote)),
        ("own", keeping()),
    ):
        with TestDriver(job, home=tmp_path / folder, memory_bus=False) as driver:
            driver.create("asked", {"user": pa.string(), "n": pa.int64()})
            driver.feed("asked", rows)
            driver.run()
    with (
        Served(driver.settings, driver.bus, ("job", "keeping:kept")) as served,
        redis.Redis(port=served.port) as found,
        redis.Redis.from_url(server.url) as real,
    ):
        wanted = {key: real.get(key) for key in real.keys("kept:*")}
        assert len(wanted) == 40 * 4 + 7
        assert {key: found.get(key) for key in found.scan_iter(count=1000)} == wanted
