"""``headrace state``: what the stores hold, at any kept epoch, without the job's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver


class Spent(msgspec.Struct):
    total: int
    last: datetime
    names: list[str] = []


class Shop:
    """Keeps a record for each user, a flag by item, and a timer."""

    def process(self, message: Any, context: Any) -> None:
        store = context.store("spent")
        before = store.get(message.user)
        total = message.price + (before.total if before else 0)
        if total == 0:
            store.delete(message.user)
        else:
            at = datetime.fromtimestamp(message.at / 1000, UTC)
            store.put(message.user, Spent(total, at, [message.user]))
        items = context.store("items")
        items.put((message.user, message.price), items.get((message.user, message.price), 0) + 1)
        context.store("mixed").put(message.price if message.price % 2 else message.user, "x")
        context.set_timer(message.at + 60_000, name="idle")

    def on_timer(self, timer: Any, context: Any) -> None:
        pass


def build(g: Any, store: str) -> None:
    by_user = g.input("orders", time="at", out_of_orderness="1s").partition_by("user")
    by_user.process(
        Shop,
        stores=(
            hr.store("spent", Spent, kind="memory"),
            hr.store("items", int, kind="memory"),
            hr.store("mixed", str, kind="memory"),
            hr.store("lost", int, kind="memory", changelog=False),
        ),
        returns={"user": str},
        name="shop",
    ).send_to(g.output("seen"))
    by_user.aggregate(
        store=store,
        name="totals",
        n=hr.agg.count(),
        mean=hr.agg.mean("price"),
        best=hr.agg.top_k("price", 2),
        own=hr.agg.monoid(0, lambda v: v, lambda a, b: a + b, returns=int, columns="price"),
    )
    by_user.window(hr.tumbling("10s"), store=store, name="windows", n=hr.agg.count()).send_to(
        g.output("windows")
    )
    by_user.aggregate(every="20s", store=store, name="periodic", total=hr.agg.sum("price")).send_to(
        g.output("periodic")
    )


@hr.job("shop")
def shop(g: Any) -> None:
    build(g, "memory")


@hr.job("shop")
def columnar_shop(g: Any) -> None:
    build(g, "columnar")


COLUMNS = {"user": pa.string(), "price": pa.int64(), "at": pa.int64()}
BASE = 1_600_000_000_000


def order(user: str, price: int, at: int = 0) -> dict[str, Any]:
    return {"user": user, "price": price, "at": BASE + at}


@pytest.fixture(params=["entries", "tables"], scope="module")
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestDriver]:
    """Both forms of aggregates' stores show the same; tests only look."""
    job = shop if request.param == "entries" else columnar_shop
    home = tmp_path_factory.mktemp("shop")
    with TestDriver(job, tasks=3, home=home, key_groups=16) as made:
        made.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        made.feed("orders", [order("ann", 3), order("bob", 4, 5_000), order("cat", 5)])
        made.run()
        made.feed("orders", [order("ann", 7, 15_000), order("bob", -4, 15_000)])
        made.run()
        yield made


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def state(driver: TestDriver, *words: object) -> list[dict[str, Any]]:
    return lines(done("state", *words, "--json", "--home", driver.home))


def test_ls_tells_each_store(driver: TestDriver) -> None:
    found = {row["store"]: row for row in state(driver, "ls", "shop", "--count")}
    newest = driver.coordinator.state.epoch
    assert set(found) == {
        "spent", "items", "mixed", "lost", "shop.timers", "totals", "windows", "periodic",
    }  # fmt: skip
    assert found["spent"]["entries"] == 2
    assert found["spent"]["exact"]
    assert found["spent"]["tasks"] == 3
    assert found["spent"]["form"] == "values"
    assert found["windows"]["newest"] == newest
    assert found["totals"]["bytes"] > 0
    assert found["totals"]["changed"] == newest
    text = done("state", "ls", "shop", "--home", driver.home)
    assert f"job shop, epoch {newest}; kept are epochs 0 to {newest}" in text
    assert "≤" in text


def test_get_a_record_by_the_key_of_the_messages(driver: TestDriver) -> None:
    found = state(driver, "get", "shop", "spent", "ann")
    assert found == [
        {"user": "ann", "total": 10, "last": "2020-09-13T12:26:55+00:00", "names": ["ann"]}
    ]
    assert "ann" in done("state", "get", "shop", "spent", "ann", "--home", driver.home)


def test_get_what_is_not_there(driver: TestDriver) -> None:
    text = refused("state", "get", "shop", "spent", "bob", "--home", driver.home)
    assert "store 'spent' has nothing for key bob at epoch" in text
    assert "--message-key" in text


def test_get_a_key_of_several_values(driver: TestDriver) -> None:
    assert state(driver, "get", "shop", "items", "ann", "7") == [
        {"key_0": "ann", "key_1": 7, "value": 1}
    ]


def test_get_a_key_that_says_nothing_of_the_message(driver: TestDriver) -> None:
    refused("state", "get", "shop", "mixed", "7", "--home", driver.home)
    assert state(driver, "get", "shop", "mixed", "7", "--message-key", "ann") == [
        {"key": 7, "value": "x"}
    ]


def test_get_aggregates(driver: TestDriver) -> None:
    [row] = state(driver, "get", "shop", "totals", "ann")
    assert row == {
        "user": "ann", "n": 2, "mean": 5.0, "best": [{"price": 7}, {"price": 3}], "own.state": "10",
    }  # fmt: skip
    [row] = state(driver, "get", "shop", "totals", "ann", "--partials")
    assert (row["mean.sum"], row["mean.count"]) == (10, 2)
    window = state(driver, "get", "shop", "windows", "ann")[-1]
    assert window == {
        "window_start": "2020-09-13T12:26:50+00:00",
        "window_end": "2020-09-13T12:27:00+00:00",
        "user": "ann",
        "n": 1,
    }
    assert {row["at"] for row in state(driver, "get", "shop", "periodic", "ann")} == {
        "2020-09-13T12:27:00+00:00"
    }


def test_a_key_that_does_not_fit_its_columns(driver: TestDriver) -> None:
    text = refused("state", "get", "shop", "totals", "ann", "3", "--home", driver.home)
    assert "found a key of 2, expected 1: user (string)" in text


def test_timers_are_shown_as_such(driver: TestDriver) -> None:
    rows = state(driver, "get", "shop", "shop.timers", "bob")
    assert rows == [
        {"due": "2020-09-13T12:27:45+00:00", "clock": "event", "name": "idle", "user": "bob"},
        {"due": "2020-09-13T12:27:55+00:00", "clock": "event", "name": "idle", "user": "bob"},
    ]


def test_older_epochs(driver: TestDriver) -> None:
    newest = driver.coordinator.state.epoch
    [before] = state(driver, "get", "shop", "spent", "bob", "--epoch", "-1")
    assert before["total"] == 4
    assert state(driver, "get", "shop", "spent", "bob", "--epoch", newest - 1) == [before]
    text = refused("state", "scan", "shop", "spent", "--epoch", "99", "--home", driver.home)
    assert f"epoch 99 of job 'shop' is not committed; the newest is {newest}" in text


def test_scan(driver: TestDriver) -> None:
    rows = state(driver, "scan", "shop", "spent")
    assert {row["user"]: row["total"] for row in rows} == {"ann": 10, "cat": 5}
    rows = state(driver, "scan", "shop", "spent", "--where", "total > 5 AND \"user\" = 'ann'")
    assert [row["user"] for row in rows] == ["ann"]
    rows = state(driver, "scan", "shop", "spent", "--prefix", "c*")
    assert [row["user"] for row in rows] == ["cat"]
    rows = state(driver, "scan", "shop", "items", "--prefix", "ann")
    assert {row["key_1"] for row in rows} == {3, 7}
    rows = state(driver, "scan", "shop", "totals", "--from", "b", "--before", "c")
    assert [row["user"] for row in rows] == ["bob"]
    assert state(driver, "scan", "shop", "spent", "--limit", "0") == state(
        driver, "scan", "shop", "spent"
    )


def test_a_limited_scan_says_that_there_may_be_more(driver: TestDriver) -> None:
    from tests.support.cli import headrace

    ran = headrace("state", "scan", "shop", "items", "--limit", "2", "--home", driver.home)
    assert ran.code == 0
    assert "the first 2 rows" in ran.err


def test_keys_of_several_kinds_are_text(driver: TestDriver) -> None:
    rows = state(driver, "scan", "shop", "mixed")
    assert {row["key"] for row in rows} == {"3", "5", "7", '"bob"'}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("spent", "--where", "total >"), "--where:1:7: this is no SQL that is known here"),
        (("spent", "--where", "tota > 3"), "--where:1:1: no column 'tota'; did you mean 'total'?"),
        (("spent", "--where", "user"), "the columns are ['user', 'total', 'last', 'names']"),
        (("windows", "--from", "a"), "use --where instead"),
        (("spent", "--from", "a", "--prefix", "b"), "give either --prefix"),
        (("spend",), "has no store 'spend'; it has spent, items, mixed, lost, shop.timers"),
        (("lost",), "store 'lost' is not in the job's files, for it is not logged"),
    ],
)
def test_mistakes_in_a_scan(driver: TestDriver, words: tuple[str, ...], told: str) -> None:
    assert told in refused("state", "scan", "shop", *words, "--home", driver.home)


def test_a_job_that_is_not_there(driver: TestDriver) -> None:
    text = refused("state", "ls", "shoppe", "--home", driver.home)
    assert "no committed epoch of job 'shoppe'" in text
    assert "found shop" in text
    assert not (driver.home / "jobs" / "shoppe").exists()


def test_diff(driver: TestDriver) -> None:
    newest = driver.coordinator.state.epoch
    rows = state(driver, "diff", "shop", "spent", -1, newest)
    found = {row["change"]: row for row in rows}
    assert found["removed"]["before"]["user"] == "bob"
    assert found["removed"]["after"] is None
    assert (found["changed"]["before"]["total"], found["changed"]["after"]["total"]) == (3, 10)
    text = done("state", "diff", "shop", "spent", -1, newest, "--home", driver.home)
    assert f"epoch {newest - 1} to {newest}: 0 added, 1 removed, 1 changed" in text
    assert state(driver, "diff", "shop", "totals", newest, newest) == []
    rows = state(driver, "diff", "shop", "totals", -1, newest, "--partials")
    assert [row["change"] for row in rows] == ["changed", "changed"]
    found = {row["after"]["user"]: row for row in rows}
    assert (found["ann"]["before"]["n"], found["ann"]["after"]["n"]) == (1, 2)
    assert found["bob"]["after"]["mean.sum"] == 0
    rows = state(driver, "diff", "shop", "windows", -1, newest)
    assert {row["change"] for row in rows} == {"added"}


def test_export_is_read_by_others(driver: TestDriver, tmp_path: Path) -> None:
    file = tmp_path / "spent.parquet"
    [told] = state(driver, "export", "shop", "spent", "--out", file)
    assert told["rows"] == 2
    frame = pl.read_parquet(file).sort("user")
    assert frame.schema["last"] == pl.Datetime("us", "UTC")
    assert frame["names"].to_list() == [["ann"], ["cat"]]
    rows = duckdb.read_parquet(str(file)).project("user, total").order("user").fetchall()
    assert rows == [("ann", 10), ("cat", 5)]
    first = file.read_bytes()
    state(driver, "export", "shop", "spent", "--out", file)
    assert file.read_bytes() == first


@pytest.mark.parametrize(
    "store", ["items", "mixed", "shop.timers", "totals", "windows", "periodic"]
)
def test_every_kind_of_store_is_exported(driver: TestDriver, tmp_path: Path, store: str) -> None:
    file = tmp_path / "x.parquet"
    [told] = state(driver, "export", "shop", store, "--out", file, "--partials")
    assert pl.read_parquet(file).to_dicts() == duckdb.read_parquet(str(file)).pl().to_dicts()
    assert told["rows"] == len(state(driver, "scan", "shop", store, "--partials")) > 0


def test_export_of_an_empty_store_has_its_columns(tmp_path: Path) -> None:
    with TestDriver(shop, home=tmp_path) as driver:
        driver.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        driver.run()
        file = tmp_path / "x.parquet"
        state(driver, "export", "shop", "totals", "--out", file)
        assert pl.read_parquet(file).columns == ["user", "n", "mean", "best", "own.state"]
        assert state(driver, "scan", "shop", "spent") == []


def test_nothing_half_written_is_left(driver: TestDriver, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    text = refused(
        "state", "export", "shop", "spent", "--out", folder / "x.parquet", "--home", driver.home
    )
    assert "make it first" in text


def test_a_job_that_keeps_a_copy(tmp_path: Path) -> None:
    """Its storage is read where there is one, and the copy once the host is gone."""
    with TestDriver(shop, tasks=2, home=tmp_path, durability="backup(30s)") as driver:
        (tmp_path / "state").symlink_to(driver.state_dir(0))
        driver.create("orders", COLUMNS, partitions=2, time="at", key=["user"])
        driver.feed("orders", [order("ann", 3)])
        driver.run()
        driver.copy()
        driver.feed("orders", [order("ann", 4)])
        driver.run()
        [row] = state(driver, "get", "shop", "spent", "ann")
        assert row["total"] == 7
        driver.crash(lose_hosts=[0])
        [row] = state(driver, "get", "shop", "spent", "ann")
        assert row["total"] == 3


class Seen:
    def process(self, message: Any, context: Any) -> None:
        context.store("seen").put((message.n, message.day), message.at)


@hr.job("typed")
def typed(g: Any) -> None:
    by_both = g.input("events").partition_by("n", "day")
    by_both.process(Seen, stores=(hr.store("seen", int, kind="memory", ttl="60s"),), name="seen")
    by_both.aggregate(name="counts", n_rows=hr.agg.count())


def test_typed_keys_and_entries_that_expire(tmp_path: Path) -> None:
    """Keys of numbers and moments; what is past its time to live is not there."""
    columns = {"n": pa.int32(), "day": pa.timestamp("us", tz="UTC"), "at": pa.int64()}
    noon = datetime(2020, 1, 2, 12, tzinfo=UTC)
    with TestDriver(typed, tasks=2, home=tmp_path, key_groups=8) as driver:
        driver.create("events", columns)
        driver.feed("events", [{"n": -1, "day": noon, "at": 1}])
        driver.run()
        driver.clock.advance(50_000)
        driver.feed("events", [{"n": 2, "day": noon, "at": 2}])
        driver.run()
        for store in ("seen", "counts"):
            [row] = state(driver, "get", "typed", store, "-1", "2020-01-02T12:00")
            assert (row["n"], row["day"]) == (-1, "2020-01-02T12:00:00+00:00")
        file = tmp_path / "x.parquet"
        state(driver, "export", "typed", "seen", "--out", file)
        assert pl.read_parquet(file).schema == {
            "n": pl.Int32(), "day": pl.Datetime("us", "UTC"), "value": pl.Int64(),
        }  # fmt: skip
        driver.clock.advance(20_000)
        driver.advance(force=True)
        assert [row["n"] for row in state(driver, "scan", "typed", "seen")] == [2]
        words = ("get", "typed", "seen", "-1", "2020-01-02T12:00")
        assert "has nothing for key" in refused("state", *words, "--home", tmp_path)
        assert len(state(driver, "scan", "typed", "counts")) == 2
