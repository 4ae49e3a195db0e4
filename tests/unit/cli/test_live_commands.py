"""Commands on a job that runs: its driver is asked, and files are read where it does not answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.cli import done, refused
from tests.support.faults import answer_posts, loopback_is_far, no_route
from tests.support.limits import limit
from tests.support.processes import Deadline, SystemClock, wait_until
from tests.support.watching import API_FILE, ApiAddress, Client, UnreachableError

import headrace as hr
from headrace import Running
from headrace.bus import StreamSpec, open_bus

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])
WATCHED = ("status", "live", "process", "host", "events", "hot_keys", "alerts")
"""What a driver knows better than its files."""


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(name="spent", n=hr.agg.sum("n")).send_to(g.output("totals"))


class Shop:
    """A home with a job, run in threads of this very process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.rows = 0
        with open_bus(home / "bus") as bus:
            bus.create(StreamSpec("orders", 1, SCHEMA))

    def start(self, *, join: bool = False, **settings: object) -> Running:
        found = {"job.tasks": 2, **{key.replace("__", "."): v for key, v in settings.items()}}
        return hr.start(shop, found, home=self.home, join=join)

    def feed(self, running: Running) -> None:
        """Feed a row, and wait until it is read and what came of it is out."""
        self.rows += 1
        with open_bus(self.home / "bus") as bus:
            bus.stream("orders").append(0, pa.table({"user": ["ann"], "n": [self.rows]}, SCHEMA))

        def is_read() -> bool:
            return running.state is not None and running.state.counts.get("in") == self.rows

        wait_until(is_read, Deadline(SystemClock(), 30), "the row to be read")

    @property
    def word(self) -> Path:
        return self.home / "jobs" / "shop" / API_FILE

    def __call__(self, *words: object) -> Any:
        return json.loads(done("jobs", *words, "--json", "--home", self.home))

    def text(self, *words: object) -> str:
        return done("jobs", *words, "--home", self.home)


@pytest.fixture
def home(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "home")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A job that runs, and has read a row."""
    found = Shop(tmp_path_factory.mktemp("live"))
    with found.start() as running:
        found.feed(running)
        # The first request loads the API, for which commands would not wait on a busy machine.
        Client(found.word.parent, "shop", 60).read("/v1/description")
        yield found


@pytest.fixture
def alone(live: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The same, without the word of its driver."""
    kept = live.word.rename(live.word.with_name("kept"))
    yield live
    kept.rename(live.word)


READS = [
    ["ls"], ["describe", "shop"], ["why", "shop"], ["history", "shop"],
    ["history", "shop", "--events"],
]  # fmt: skip


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_running_driver_is_asked(live: Shop, words: list[str]) -> None:
    assert live(*words)["live"] is True


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_files_tell_the_same_of_it(live: Shop, words: list[str]) -> None:
    told = live(*words)
    kept = live.word.rename(live.word.with_name("kept"))
    try:
        found = live(*words)
    finally:
        kept.rename(live.word)
    assert (told.pop("live"), found.pop("live")) == (True, False)
    if words[0] in {"ls", "describe"}:
        assert (told["status"], found["status"]) == ("running", "running")
        assert told["process"] == found["process"] == os.getpid()
        assert told["events"] == found["events"]
        for name in WATCHED[1:]:
            told.pop(name, None), found.pop(name, None)
    if words[-1] == "history":
        return
    if words != ["history", "shop"]:  # which also has this very moment
        assert told == found


def test_what_is_told_of_a_driver_without_an_api_says_so(alone: Shop) -> None:
    assert "shop: its driver does not answer" in alone.text("ls")
    told = alone.text("describe", "shop")
    assert f"running by process {os.getpid()}" in told
    assert "not live" in told
    for words in (["top", "shop"], ["pause", "shop"], ["resume", "shop"]):
        assert "no driver of job 'shop' answers" in refused("jobs", *words, "--home", alone.home)


def test_a_live_job_says_nothing_of_that(live: Shop) -> None:
    assert "does not answer" not in live.text("ls")
    assert "not live" not in live.text("describe", "shop")


def test_history_of_a_running_job_goes_up_to_now(live: Shop) -> None:
    """Its last sample may be ten seconds old."""
    assert sum(one["rows"] for one in live("history", "shop")["stretches"]) >= 0
    assert live("history", "shop")["stretches"][-1]["epochs"] >= 0
    assert "rows" in live.text("history", "shop")


def test_what_happened_is_told_by_the_driver(live: Shop) -> None:
    told = live("history", "shop", "--events")["events"]
    assert next(one["kind"] for one in told) == "driver"
    assert told == live("describe", "shop")["events"]


def test_a_driver_that_takes_requests_and_answers_none_is_not_waited_for(
    live: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is frozen: the kernel takes the connection, and nobody reads."""
    limit(monkeypatch, asked_s=0.2)
    word = live.word.read_bytes()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        place = ApiAddress(f"http://127.0.0.1:{listener.getsockname()[1]}", "t", os.getpid())
        live.word.write_bytes(msgspec.json.encode(place))
        try:
            assert [live(*words)["live"] for words in READS] == [False] * len(READS)
        finally:
            live.word.write_bytes(word)


def test_what_no_driver_of_this_version_says_is_not_believed(live: Shop) -> None:
    word = live.word.read_bytes()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        body = b'{"job": 7}'

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.recv(65536)
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    connection.sendall(head + body)
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        place = ApiAddress(f"http://127.0.0.1:{listener.getsockname()[1]}", "t", os.getpid())
        live.word.write_bytes(msgspec.json.encode(place))
        try:
            assert live("describe", "shop")["live"] is False
        finally:
            live.word.write_bytes(word)
            listener.shutdown(socket.SHUT_RDWR)


def test_a_word_that_a_killed_driver_left_is_passed_over(home: Shop) -> None:
    with home.start() as running:
        home.feed(running)
    place = ApiAddress("http://127.0.0.1:9", "t", 2**22 + 1)  # above all process numbers
    home.word.write_bytes(msgspec.json.encode(place))
    told = home("describe", "shop")
    assert (told["live"], told["status"], told["process"]) == (False, "stopped", None)
    assert "does not run; its status is stopped" in refused(
        "jobs", "stop", "shop", "--home", home.home
    )
    assert "no driver" in refused("jobs", "pause", "shop", "--home", home.home)


def test_a_driver_of_another_host_is_asked_where_it_can_be_reached(
    home: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one by its word alone; its API is bound to all addresses of this host."""
    loopback_is_far(monkeypatch)
    with home.start(control__host="0.0.0.0") as running:
        home.feed(running)
        wait_until(home.word.exists, Deadline(SystemClock(), 30), "the word of the driver")
        place = msgspec.json.decode(home.word.read_bytes(), type=ApiAddress)
        assert place.url.startswith(f"http://{os.uname().nodename}:")
        assert home("describe", "shop")["live"] is True

        port = place.url.rpartition(":")[2]
        for address, is_asked in ((os.uname().nodename, True), ("127.0.0.1", False)):
            other = msgspec.structs.replace(
                place, host="elsewhere", process=2**22 + 1, url=f"http://{address}:{port}"
            )
            home.word.write_bytes(msgspec.json.encode(other))
            assert home("ls")["live"] is is_asked
        told = refused("jobs", "pause", "shop", "--home", home.home)
        assert "runs on host elsewhere" in told


def test_a_name_that_means_this_host_is_not_another_one(
    home: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens here must not get the token of a driver elsewhere."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        own, port = socket.getaddrinfo, listener.getsockname()[1]
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest, **named: own("127.0.0.1", *rest, **named)
        )
        place = ApiAddress(f"http://far.test:{port}", "secret", 2**22 + 1, "elsewhere")
        home.word.parent.mkdir(parents=True)
        home.word.write_bytes(msgspec.json.encode(place))
        found = Client(home.word.parent, "shop")
        with pytest.raises(UnreachableError, match=r"far\.test is this host"):
            found.get("/v1/job")
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(100) == b""


def test_stop_goes_by_the_driver_that_got_the_signal(
    home: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word of a driver that died elsewhere stays, and says nothing of who drives now."""
    with home.start(control__enabled=False) as running:
        home.feed(running)
        place = ApiAddress("http://192.0.2.1:9", "t", 2**22 + 1, "elsewhere")
        home.word.write_bytes(msgspec.json.encode(place))
        no_route(monkeypatch)

        def kill(process: int, number: int) -> None:
            if number == signal.SIGTERM:
                running._control.stop.set()
                running.wait(30)
                raise ProcessLookupError(process)
            real(process, number)

        real = os.kill
        monkeypatch.setattr(os, "kill", kill)
        told = home("stop", "shop", "--wait", 30)
        assert (told["by"], told["process"]) == ("signal", os.getpid())


def test_stop_ends_a_job_by_its_api_alone(home: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal would end the whole program that the job is a part of."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", _without_signals(os.kill, sent))
    running = home.start()
    home.feed(running)
    told = home("stop", "shop", "--savepoint", "--name", "last")
    assert (told["by"], told["process"], told["goes_on_in"]) == ("api", os.getpid(), [])
    assert sent == []
    result = running.wait(30)
    assert (result.interrupted, result.rows, result.state.ended) == (True, 1, False)
    assert told["epoch"] == result.state.epoch == told["savepoint"]["epoch"]
    assert told["savepoint"]["live"] is False
    assert not home.word.exists()
    assert home("ls")["status"] == "stopped"


def test_stop_lets_a_process_leave_a_job_that_is_shared(home: Shop) -> None:
    """As Ctrl-C does; the process ends, and does not join whoever drives next."""
    running = home.start(join=True)
    home.feed(running)
    assert home("stop", "shop")["by"] == "api"
    result = running.wait(30)
    assert (result.interrupted, running.status) == (True, "stopped")


def _without_signals(kill: Any, sent: list[int]) -> Any:
    def recorded(process: int, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            sent.append(number)
        else:
            kill(process, number)

    return recorded


def test_stop_of_a_driver_whose_api_is_gone_is_a_signal(
    home: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its word is there, and nobody at that port."""
    with ExitStack() as held:
        running = held.enter_context(home.start(control__enabled=False))
        home.feed(running)
        place = ApiAddress("http://127.0.0.1:9", "t", os.getpid())
        home.word.write_bytes(msgspec.json.encode(place))
        sent: list[int] = []

        def kill(process: int, number: int) -> None:
            if number == signal.SIGTERM:
                sent.append(process)
                running._control.stop.set()
                home.word.unlink()
            else:
                real(process, number)

        real = os.kill
        monkeypatch.setattr(os, "kill", kill)
        assert home("stop", "shop")["by"] == "signal"
        assert sent == [os.getpid()]


def test_a_stop_that_is_not_answered_is_asked_for_all_the_same(
    home: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is frozen does it when it wakes; a signal on top of it would end it at once."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", _without_signals(os.kill, sent))
    limit(monkeypatch, answer_s=0.2)
    with home.start() as running, closing(socket.create_server(("127.0.0.1", 0))) as listener:
        home.feed(running)
        word = home.word.read_bytes()
        place = ApiAddress(f"http://127.0.0.1:{listener.getsockname()[1]}", "t", os.getpid())
        home.word.write_bytes(msgspec.json.encode(place))
        told = refused("jobs", "stop", "shop", "--wait", "0.1", "--home", home.home, code=3)
        home.word.write_bytes(word)
        assert "was asked to stop and still runs" in told
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(65536).startswith(b"POST /v1/stop ")
        assert sent == []


def test_a_second_stop_ends_it_at_once(home: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", _without_signals(os.kill, sent))
    with home.start() as running:
        home.feed(running)
        answer_posts(monkeypatch, {"status": "stopping", "was": "stopping"})
        told = refused("jobs", "stop", "shop", "--wait", "0.1", "--home", home.home, code=3)
        assert "was asked to stop and still runs" in told
        assert sent == [signal.SIGTERM]


def test_a_savepoint_is_made_by_the_driver(live: Shop, tmp_path: Path) -> None:
    told = live("savepoint", "shop", "--name", "one")
    assert (told["job"], told["name"], told["live"]) == ("shop", "one", True)
    assert (Path(told["path"]) / "savepoint.json").is_file()
    (kept,) = live("savepoints", "shop")["savepoints"]
    assert {**kept, "live": True} == {**told, "problem": None}
    assert "exists already" in refused(
        "jobs", "savepoint", "shop", "--name", "one", "--home", live.home
    )
    elsewhere = live("savepoint", "shop", "--dir", tmp_path / "there")
    assert elsewhere["live"] is False
    assert elsewhere.keys() == told.keys()
    assert "begin from it with" in live.text("savepoint", "shop")
