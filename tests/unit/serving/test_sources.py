"""What fills served tables: state of jobs by epochs, streams, daily tables."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import redis
from tests.support.changes import rescale
from tests.support.faults import refuse_loading_once
from tests.support.homes import Home
from tests.support.limits import limit
from tests.support.processes import REAL_CLOCK, until
from tests.support.servers import encode_key
from tests.support.serving import (
    ColumnRows,
    Follower,
    MemoryEntries,
    Served,
    ServedTable,
    Source,
    TableVersion,
)

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.serving import Client, StaleError
from headrace.testing import TestDriver

CLICKS = {"user": pa.string(), "n": pa.int64()}


class Counting:
    def process(self, message: Any, context: hr.Context) -> None:
        counts = context.store("counts")
        total = counts.get(message.user, 0) + message.n
        if total:
            counts.put(message.user, total)
        else:
            counts.delete(message.user)


@hr.job("clicks")
def clicks(g: hr.Graph) -> None:
    keyed = g.input("clicks").partition_by("user")
    keyed.process(Counting, [hr.store("counts", int)])


@hr.job("totals")
def totals(g: hr.Graph) -> None:
    keyed = g.input("clicks").partition_by("user")
    keyed.aggregate(n=hr.agg.sum("n"), most=hr.agg.max("n")).send_to(g.output("totals"))


class Owning:
    """Has the same key under each key of its messages."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.store("seen").put("newest", message.n)


@hr.job("owning")
def owning(g: hr.Graph) -> None:
    g.input("clicks").partition_by("user").process(Owning, [hr.store("seen", int)])


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(clicks, home=tmp_path / "home", memory_bus=False, tasks=3) as found:
        found.create("clicks", CLICKS, partitions=2)
        yield found


def rows(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"user": user, "n": n} for user, n in pairs]


def shown(table: Any) -> dict[Any, Any]:
    """Everything that a table shows, by the only column of its key."""
    found = table.scan(b"", None, 10_000)[1]
    shape = table.shape
    return {shape.batch([k], [v]).column(0)[0].as_py(): msgspec.msgpack.decode(v) for k, v in found}


def test_state_of_a_job_is_served_epoch_by_epoch_whatever_dies(driver: TestDriver) -> None:
    expected: Counter[str] = Counter()

    def feed(*pairs: tuple[str, int]) -> None:
        for user, n in pairs:
            expected[user] += n
        driver.feed("clicks", rows(*pairs))

    feed(*((f"u{n % 7}", n) for n in range(40)))
    driver.run()
    with Served(driver.settings, driver.bus, ("job", "clicks:counts")) as served:
        table = served.table("counts")
        assert shown(table) == +expected
        for turn in range(6):
            feed((f"u{turn}", -expected[f"u{turn}"]), (f"new{turn}", 1), ("u6", 5))
            if turn in (1, 2):  # what is on disk and not committed is never shown
                before = shown(table)
                driver.advance_with_crash(("epoch.before_commit", "commit.written")[turn - 1])
                assert shown(table) == before
            if turn == 4:
                driver.crash(lose_hosts=[0])
            driver.run()
            served.reach("counts", driver.state.epoch)
            assert shown(table) == +expected == driver.store("counts")
            assert table.version.number == driver.state.epoch
        assert table.problem == ""


def test_who_knows_an_epoch_reads_what_it_committed(driver: TestDriver) -> None:
    driver.feed("clicks", rows(("ann", 1)))
    driver.run()
    with (
        Served(driver.settings, driver.bus, ("job", "clicks:counts")) as served,
        Client(served.address, "counts", int) as client,
        Client(served.address, "counts", int, retry_timeout="100ms") as in_a_hurry,
    ):
        for turn in range(2, 12):
            driver.feed("clicks", rows(("ann", 1)))
            driver.run()  # the driver's epoch is known before it is served
            read = client.read(["ann", "bob"], at_least=driver.state.epoch)
            assert read.values == [turn, None]
            assert read.version == driver.state.epoch
            assert 0 <= read.staleness_ms < 60_000
        with pytest.raises(StaleError, match=f"asked for {driver.state.epoch + 1}"):
            in_a_hurry.get("ann", at_least=driver.state.epoch + 1)


def test_a_key_that_is_under_several_keys_of_messages_is_refused(tmp_path: Path) -> None:
    with TestDriver(owning, home=tmp_path / "home", memory_bus=False) as driver:
        driver.create("clicks", CLICKS)
        driver.feed("clicks", rows(*((f"u{n}", n) for n in range(20))))
        driver.run()
        with Served(driver.settings, driver.bus, ("job", "owning:seen")) as served:
            assert "keys more than once" in served.table("seen").problem
            assert not served.table("seen").is_loaded


def test_a_key_that_comes_under_several_keys_of_messages_later_is_refused(tmp_path: Path) -> None:
    with TestDriver(owning, home=tmp_path / "home", memory_bus=False, tasks=3) as driver:
        driver.create("clicks", CLICKS)
        driver.feed("clicks", rows(("ann", 1)))
        driver.run()
        with Served(driver.settings, driver.bus, ("job", "owning:seen")) as served:
            table = served.table("seen")
            assert shown(table) == {"newest": 1}
            driver.feed("clicks", rows(*((f"u{n}", n) for n in range(20))))
            driver.run()
            until(lambda: "keys more than once" in table.problem, "the store to be refused")
            assert shown(table) == {"newest": 1}


class Holding:
    """Has a key where its owner is, which changes."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.n:
            context.store("held").put("it", message.n)
        else:
            context.store("held").delete("it")


@hr.job("holding")
def holding(g: hr.Graph) -> None:
    g.input("clicks").partition_by("user").process(Holding, [hr.store("held", int)])


def test_a_key_that_goes_from_one_key_of_messages_to_another_stays(tmp_path: Path) -> None:
    with TestDriver(holding, home=tmp_path / "home", memory_bus=False, tasks=3) as driver:
        driver.create("clicks", CLICKS)
        driver.feed("clicks", rows(("u0", 1)))
        driver.run()
        with Served(driver.settings, driver.bus, ("job", "holding:held")) as served:
            for owner in range(1, 9):
                driver.feed("clicks", rows((f"u{owner - 1}", 0), (f"u{owner}", owner + 1)))
                driver.run()
                served.reach("held", driver.state.epoch)
                assert shown(served.table("held")) == {"it": owner + 1}


@pytest.mark.parametrize("on_disk", [False, True])
def test_totals_follow_epoch_by_epoch_whatever_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """They are loaded whole at first, and where a new driver began or tasks are others."""
    limit(monkeypatch, merge_fan_in=3)
    dice, sums, most = random.Random(5), Counter[str](), dict[str, int]()
    with TestDriver(totals, home=tmp_path / "home", memory_bus=False, tasks=3) as driver:
        driver.create("clicks", CLICKS, partitions=2)

        def feed(count: int) -> None:
            pairs = [(f"u{dice.randrange(40)}", dice.randrange(1, 100)) for _ in range(count)]
            for user, n in pairs:
                sums[user] += n
                most[user] = max(n, most.get(user, 0))
            driver.feed("clicks", rows(*pairs))

        feed(100)
        driver.run()
        source = ("job", "totals:aggregate=sums")
        with Served(driver.settings, driver.bus, source, on_disk=on_disk) as served:
            table, loads = served.table("sums"), 1
            for turn in range(24):
                feed(dice.randrange(8))
                if turn % 8 == 3:
                    driver.advance_with_crash("epoch.before_commit")
                    loads += 1
                elif turn == 15:
                    driver.crash()
                    rescale(driver, 2)
                    loads += 1
                driver.run()
                served.reach("sums", driver.state.epoch)
                assert shown(table) == {u: {"n": n, "most": most[u]} for u, n in sums.items()}
            assert 1 < table.describe()["loads"] <= loads
            assert table.problem == ""


def test_totals_are_right_behind_epochs_whose_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More epochs than are looked at, while files are merged into others and swept."""
    for name, value in {"base_every": 2, "sweep_every": 3, "prune_margin": 1}.items():
        limit(monkeypatch, **{name: value})
    sums = Counter[str]()
    with TestDriver(totals, home=tmp_path / "home", memory_bus=False, keep_epochs=2) as driver:
        driver.create("clicks", CLICKS)

        def click(number: int) -> None:
            sums[f"u{number}"] += number
            driver.feed("clicks", rows((f"u{number}", number)))
            driver.run()

        click(1)
        server = Served(driver.settings, driver.bus, ("job", "totals:aggregate=sums")).server
        [source] = server.sources
        for begin in range(2, 62, 6):
            while source.follow():
                pass
            found = shown(source.table)
            assert {user: row["n"] for user, row in found.items()} == sums
            for number in range(begin, begin + 6):
                click(number)
        server.close()


def test_damage_is_said_though_epochs_since_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were swept are looked for once more in a newer epoch; damaged ones are not."""
    for name, value in {"base_every": 2, "sweep_every": 3, "prune_margin": 1}.items():
        limit(monkeypatch, **{name: value})
    with TestDriver(clicks, home=tmp_path / "home", memory_bus=False, keep_epochs=2) as driver:
        driver.create("clicks", CLICKS)

        def click(times: int) -> None:
            for _ in range(times):
                driver.feed("clicks", rows(("ann", 1)))
                driver.run()

        click(1)
        server = Served(driver.settings, driver.bus, ("job", "clicks:counts")).server
        [source] = server.sources
        assert not source.follow()
        click(30)
        for file in (tmp_path / "home" / "jobs").rglob("*.seg"):
            file.write_bytes(b"damaged")
        with pytest.raises(CorruptDataError):
            any(not source.follow() for _ in range(100))
        assert shown(source.table) == {"ann": 1}
        server.close()


@hr.job("minutes")
def minutes(g: hr.Graph) -> None:
    clicks = g.input("clicks", time="at").partition_by("user")
    counts = clicks.window(hr.tumbling("1m"), n=hr.agg.sum("n"), name="counts")
    counts.send_to(g.output("sent"))


@pytest.mark.parametrize("on_disk", [False, True])
def test_open_windows_are_served_by_key_and_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """A window is there from its first row until it is sent; others are not loaded for that."""
    limit(monkeypatch, merge_fan_in=3)
    minute, crashes = 60_000, 0
    dice, open_now = random.Random(3), dict[tuple[str, int], int]()
    with TestDriver(minutes, home=tmp_path / "home", memory_bus=False, tasks=2) as driver:
        driver.create("clicks", {**CLICKS, "at": pa.int64()}, time="at")
        with contextlib.ExitStack() as stack:
            for turn in range(30):
                begin = turn // 3 * minute
                fed = [(f"u{dice.randrange(9)}", dice.randrange(1, 9)) for _ in range(10)]
                at = begin + turn % 3 * 10_000
                driver.feed("clicks", [{"user": u, "n": n, "at": at} for u, n in fed])
                if turn in (11, 21):  # as windows are sent, and as they are not
                    driver.advance_with_crash("epoch.before_commit")
                    crashes += 1
                driver.run()
                for user, n in fed:
                    open_now[user, begin] = open_now.get((user, begin), 0) + n
                open_now = {key: n for key, n in open_now.items() if key[1] + minute > at}
                if turn == 0:
                    source = ("job", "minutes:counts")
                    made = Served(driver.settings, driver.bus, source, on_disk=on_disk)
                    table = stack.enter_context(made).table("counts")
                made.reach("counts", driver.state.epoch)
                found = table.shape.batch(*zip(*table.scan(b"", None, 1000)[1], strict=True))
                rows_now = found.set_column(1, "at", found.column(1).cast(pa.int64())).to_pylist()
                assert {(r["user"], r["at"] // 1000): r["n"] for r in rows_now} == open_now
            assert table.describe()["loads"] <= 1 + crashes
            assert table.problem == ""


class Visiting:
    def process(self, message: Any, context: hr.Context) -> None:
        for name in ("recent", "today"):
            context.store(name).put(message.user, message.n)


@hr.job("visits")
def visits(g: hr.Graph) -> None:
    stores = [hr.store("recent", int, ttl=timedelta(days=9000)), hr.store("today", int, ttl="1d")]
    g.input("clicks").partition_by("user").process(Visiting, stores)


def test_entries_are_served_as_long_as_they_live(tmp_path: Path) -> None:
    """The job's clock is in 2023: what lived a day then is gone, what lives 25 years is there."""
    with TestDriver(visits, home=tmp_path / "home", memory_bus=False) as driver:
        driver.create("clicks", CLICKS)
        driver.feed("clicks", rows(("ann", 1), ("bob", 2)))
        driver.run()
        sources = (("job", "visits:recent"), ("job", "visits:today"))
        with (
            Served(driver.settings, driver.bus, *sources) as served,
            Client(served.address, "recent", int) as recent,
            Client(served.address, "today", int) as today,
            redis.Redis(port=served.port) as client,
        ):
            assert recent.get_many(["ann", "bob", "eve"]) == [1, 2, None]
            assert [*recent.range()] == [("ann", 1), ("bob", 2)]
            assert 0 < client.ttl("recent:ann") < 9000 * 86_400 < client.pttl("recent:ann")
            assert today.get_many(["ann", "bob"]) == [None, None]
            assert [*today.range()] == []
            assert client.ttl("today:ann") == client.ttl("recent:eve") == -2
            assert client.exists("today:ann", "recent:ann") == 1


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Home(tmp_path / "home") as found:
        yield found


PRICES = {"symbol": pa.string(), "day": pa.int64(), "price": pa.float64(), "note": pa.string()}


def price(symbol: str, day: int, value: float | None, note: str | None = None) -> dict[str, Any]:
    return {"symbol": symbol, "day": day, "price": value, "note": note}


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_stream_is_served_as_the_latest_value_of_each_key(home: Home, on_disk: bool) -> None:
    home.create("prices", PRICES, partitions=3, key=("symbol", "day"))
    home.send("prices", [price(s, d, d * 1.0) for s in ("ab", "ac", "b") for d in range(20)])
    home.send("prices", [price("ab", 3, 7.5, "late"), price("ac", 4, None)])
    with (
        Served(home.settings(), home.bus, ("stream", "prices"), on_disk=on_disk) as served,
        Client(served.address, "prices") as client,
    ):
        assert client.get(("ab", 3)) == {"price": 7.5, "note": "late"}
        assert client.get(("ac", 4), "none") == "none"
        assert client.get_many([("b", 1), ("b", 99)]) == [{"price": 1.0, "note": None}, None]
        assert [key for key, _ in client.prefix("a")] == [
            *(("ab", d) for d in range(20)),
            *(("ac", d) for d in range(20) if d != 4),
        ]
        assert [key for key, _ in client.prefix(("b",), limit=2)] == [("b", 0), ("b", 1)]
        ranged = [key for key, _ in client.range(("ab", 18), ("ac", 2))]
        assert ranged == [("ab", 18), ("ab", 19), ("ac", 0), ("ac", 1)]
        home.send("prices", [price("b", 1, None), price("b", 2, 9.0), price("z", 0, 0.0)])
        read = client.read([("b", 1), ("b", 2), ("z", 0)], at_least=65)
        assert read.values == [None, {"price": 9.0, "note": None}, {"price": 0.0, "note": None}]
        assert read.version == client.wait(65) == 65
        assert client.get(("b", 1)) is None
        assert [key for key, _ in client.range(("b", 19))] == [("b", 19), ("z", 0)]


def test_several_servers_share_the_keys_and_a_client_knows_which_has_which(home: Home) -> None:
    home.create("users", {"id": pa.int64(), "name": pa.string()}, key=("id",))
    home.send("users", [{"id": n, "name": f"n{n}"} for n in range(300)])
    source = ("stream", "users")
    settings, cuts = home.settings(), [(0, 100), (100, 300), (300, 512)]
    options = {"is_bare": True}
    one, two, three = (
        Served(settings, home.bus, source, groups=groups, **options) for groups in cuts
    )
    with one, two, three:
        addresses = [three.address, one.address, two.address]
        counts = [served.table("users").count() for served in (one, two, three)]
        assert sum(counts) == 300
        assert min(counts) > 0
        with Client(addresses, "users", str) as client:
            assert client.get_many(range(301)) == [*(f"n{n}" for n in range(300)), None]
            assert list(client.range(5, 9)) == [(n, f"n{n}") for n in range(5, 9)]
            assert len(list(client.range())) == 300
        with pytest.raises(InvalidInputError, match="no server has key group 100"):
            Client([one.address, three.address], "users")
        for n in range(6):  # a key is refused where it is not, never absent
            found = sorted(str(answer(served.port, n)) for served in (one, two, three))
            assert found == ["HRMOVED", "HRMOVED", f"n{n}"]


def answer(port: int, key: int) -> object:
    """Return what a server says of a key: its value, or the word that its error begins with."""
    with redis.Redis(port=port) as client:
        try:
            [raw] = client.execute_command("HR.READ", "users", -1, encode_key((key,)))[2]
        except redis.exceptions.ResponseError as refused:
            return str(refused).split()[0]
        return raw and msgspec.msgpack.decode(raw)


def test_keys_that_several_servers_have_come_once(home: Home) -> None:
    home.create("users", {"id": pa.int64(), "name": pa.string()}, key=("id",))
    home.send("users", [{"id": n, "name": f"n{n}"} for n in range(300)])
    settings, source = home.settings(), ("stream", "users")
    cuts = ((0, 300), (200, 512), (0, 512))
    one, two, all_of_them = (Served(settings, home.bus, source, groups=cut) for cut in cuts)
    wanted = [(n, {"name": f"n{n}"}) for n in range(300)]
    with one, two:
        with Client([two.address, one.address], "users") as client:
            assert [*client.range()] == wanted
            assert client.get_many(range(300)) == [value for _, value in wanted]
        with all_of_them, Client([s.address for s in (all_of_them, one, two)], "users") as client:
            assert [*client.range(10, 20)] == wanted[10:20]
            assert client.get_many(range(300)) == [value for _, value in wanted]


def test_a_server_that_is_behind_is_stood_in_for(home: Home, tmp_path: Path) -> None:
    sent = [{"id": n, "name": f"n{n}"} for n in range(20)]
    source = ("stream", "users")
    with Home(tmp_path / "behind") as behind:
        for one, rows_of in ((home, sent), (behind, sent[:10])):
            one.create("users", {"id": pa.int64(), "name": pa.string()}, key=("id",))
            one.send("users", rows_of)
        with (
            Served(behind.settings(), behind.bus, source) as first,
            Served(home.settings(), home.bus, source) as second,
            Client([first.address, second.address], "users", retry_timeout="0s") as client,
        ):
            assert client.get(15) is None
            assert client.read([15], at_least=20).values == [{"name": "n15"}]
            assert client.get(15) == {"name": "n15"}  # it stays with the one that answered
            with pytest.raises(StaleError):
                client.get(15, at_least=21)


def test_a_stream_that_is_created_again_is_read_again(home: Home) -> None:
    columns = {"id": pa.int64(), "name": pa.string()}
    home.create("users", columns, key=("id",))
    home.send("users", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    with Served(home.settings(), home.bus, ("stream", "users")) as served:
        assert shown(served.table("users")) == {1: {"name": "a"}, 2: {"name": "b"}}
        home.bus.remove("users")
        until(lambda: served.table("users").problem, "the stream to be missed")
        assert shown(served.table("users")) == {1: {"name": "a"}, 2: {"name": "b"}}
        home.create("users", columns, key=("id",))
        home.send("users", [{"id": 3, "name": "c"}])
        until(lambda: shown(served.table("users")) == {3: {"name": "c"}}, "the new stream")


def test_a_stream_without_a_key_is_not_followed_to_more_partitions(home: Home) -> None:
    """Of rows in several partitions it is not known which is the latest."""
    home.create("users", {"id": pa.int64(), "name": pa.string()})
    home.send("users", [{"id": 1, "name": "a"}])
    with Served(home.settings(), home.bus, ("stream", "users"), keys=("id",)) as served:
        table = served.table("users")
        assert shown(table) == {1: {"name": "a"}}
        home.bus.stream("users").configure(partitions=2)
        until(lambda: "has 2 partitions by no key" in table.problem, "the stream to be refused")
        assert shown(table) == {1: {"name": "a"}}


def test_a_stream_that_does_not_fit_the_disk_is_never_shown_in_part(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create("users", {"id": pa.int64(), "name": pa.string()}, key=("id",))
    home.send("users", [{"id": n, "name": f"u{n}"} for n in range(50)])
    refused = refuse_loading_once(monkeypatch)
    with Served(home.settings(), home.bus, ("stream", "users"), on_disk=True) as served:
        table = served.table("users")
        until(lambda: table.is_loaded, "the table to be loaded")
        assert len(refused) == 1
        assert shown(table) == {n: {"name": f"u{n}"} for n in range(50)}


class Waiting(Source):
    """A source that takes as long as it is held, as one of a large table takes long."""

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        columns = pa.schema([("id", pa.string())]), pa.schema([("n", pa.int64())])
        table = ServedTable("waiting", b"waiting:", ColumnRows(*columns), REAL_CLOCK)
        super().__init__(table, lambda: MemoryEntries(is_over), look_s=60.0)
        self.is_held, self.turns = True, 0

    def follow(self) -> bool:
        self.turns += 1
        with self.made() as entries:
            while self.is_held:
                entries.load([b"key"], [b"value"])
        return False


@contextmanager
def following(*sources: Source, changed: Callable[[Any], None] = lambda _: None) -> Iterator[Any]:
    follower = Follower(sources, REAL_CLOCK, changed)
    follower.start()
    try:
        yield follower
    finally:
        follower.stop()


def test_a_table_is_followed_while_another_one_is_loaded() -> None:
    held, other = Waiting(), Waiting()
    other.is_held, other.look_s = False, 0.0
    with following(held, other):
        until(lambda: held.turns and other.turns > 10, "the other one to be looked at")
        assert held.turns == 1
        held.is_held = False


def test_what_is_loaded_is_as_old_as_the_look_that_found_it() -> None:
    held = Waiting()
    with following(held):
        until(lambda: held.turns, "the look")
        began = REAL_CLOCK.monotonic()
        until(lambda: held.table.staleness_ms >= 200, "some time")
        held.table.problem = "is not there once it is followed"
        held.is_held = False
        until(lambda: not held.table.problem, "the end of it")
        assert held.table.staleness_ms >= (REAL_CLOCK.monotonic() - began) * 1000 - 1


def test_tables_are_followed_though_nobody_reads_what_is_said_of_them() -> None:
    source, said = Waiting(), list[str]()
    source.is_held, source.look_s = False, 0.0

    def changed(table: Any) -> None:
        said.append(table.name)
        raise BrokenPipeError

    with following(source, changed=changed):
        source.table.swap(MemoryEntries(), TableVersion(0, 0, ""))
        until(lambda: said, "something to be said")
        before = source.turns
        until(lambda: source.turns > before + 5, "the next looks")


def test_a_table_that_is_loaded_does_not_hold_up_the_end() -> None:
    over, said = threading.Event(), list[str]()
    held = Waiting(over.is_set)
    with following(held, changed=lambda table: said.append(table.problem)) as follower:
        until(lambda: held.turns, "the table to be loaded")
        threading.Timer(0.05, over.set).start()
        follower.stop()
    assert held.is_held
    assert said == []


def test_what_cannot_be_served_is_refused_at_the_start(home: Home) -> None:
    columns = {"id": pa.int64(), "name": pa.string()}
    home.create("events", columns, partitions=2)
    home.create("named", columns, partitions=2, key=("name",))
    settings = home.settings()
    for source, options, reason in (
        (("stream", "events"), {}, "needs columns of a key and a value"),
        (("stream", "events"), {"keys": ("no",)}, "has no columns"),
        (("stream", "events"), {"keys": ("id",)}, "has 2 partitions by no key"),
        (("stream", "named"), {"keys": ("id",)}, "let --key have name, too"),
        (("stream", "nothing"), {"keys": ("id",)}, "nothing"),
        (("job", "none:store"), {}, "no committed epoch of job 'none'"),
        (("table", "days"), {"keys": ("id",)}, "no table 'days'"),
        (("stream", "events"), {"keys": ("id",), "host": "0.0.0.0"}, "without a password"),
        (("stream", "events"), {"keys": ("id",), "groups": (5, 5)}, "expected a part of 0-511"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            Served(settings, home.bus, source, **options)


@contextmanager
def reading(read: Callable[[], object]) -> Iterator[None]:
    """Read again and again in another thread, while a block runs."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            read()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            over.set()
        running.result()


DAY_US = 86_400_000_000
TOPICS = {"at": pa.timestamp("us", tz="UTC"), "tag": pa.string(), "topic": pa.string()}


@hr.job("topics")
def topics(g: hr.Graph) -> None:
    g.input("tagged").send_to(g.output_table("topics", time="at"))


def tagged(day: int, *tags: str) -> list[dict[str, Any]]:
    return [{"at": day * DAY_US, "tag": tag, "topic": f"{tag} of {day}"} for tag in tags]


def test_a_daily_table_is_loaded_whole_and_swapped_when_a_day_is_complete(
    tmp_path: Path,
) -> None:
    with TestDriver(topics, home=tmp_path / "home", memory_bus=False) as driver:
        driver.create("tagged", TOPICS, time="at")
        driver.feed("tagged", tagged(0, "a", "b") + tagged(1, "b"))
        driver.run()
        options: Any = {"keys": ("tag",), "values": ("topic",), "is_bare": True, "look_s": 0.02}
        with (
            Served(driver.settings, driver.bus, ("table", "topics"), **options) as served,
            Served(
                driver.settings, driver.bus, ("table", "topics"), days="all", **options
            ) as every,
            Client(served.address, "topics", str) as client,
        ):
            first = client.version()
            assert shown(served.table("topics")) == {"a": "a of 0", "b": "b of 0"}
            assert shown(every.table("topics")) == {"a": "a of 0", "b": "b of 1"}
            driver.feed("tagged", tagged(1, "c") + tagged(2, "d"))
            seen = []
            with reading(lambda: seen.append((*client.get_many(["a", "b", "c"]),))):
                until(lambda: seen, "a read")
                driver.run()
                client.wait(first + 1)
                until(lambda: seen[-1][0] is None, "the next day")
            days = [key for key, _ in groupby(seen)]
            assert days == [("a of 0", "b of 0", None), (None, "b of 1", "c of 1")]
            assert client.get_many(["a", "b", "c", "d"]) == [None, "b of 1", "c of 1", None]
            assert served.table("topics").version.label == "table topics, 1970-01-02"
