"""``headrace jobs savepoint|savepoints`` and ``run --from-savepoint``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import MANIFEST, begin_by_word
from tests.support.cli import done, headrace, refused

import headrace as hr
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(name="spent", n=hr.agg.sum("n")).send_to(g.output("totals"))


@hr.job("shop")
def by_shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("n")
    orders.aggregate(name="spent", total=hr.agg.sum("n")).send_to(g.output("by_n"))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, tasks=2, home=tmp_path, memory_bus=False, key_groups=8) as made:
        made.create("orders", {"user": pa.string(), "n": pa.int64()})
        made.feed("orders", [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}])
        made.run()
        made.crash()
        yield made


def told(driver: TestDriver, *words: object) -> Any:
    return json.loads(done("jobs", *words, "--json", "--home", driver.home))


def begin(driver: TestDriver, word: str, job: str, function: Any = shop) -> str:
    driver.crash()
    driver.job = dataclasses.replace(function, name=job)
    return begin_by_word(driver, word, "shop")


def test_a_stopped_job_is_saved_listed_and_begun_from(driver: TestDriver) -> None:
    saved = told(driver, "savepoint", "shop", "--name", "first")
    assert (saved["job"], saved["name"], saved["epoch"]) == ("shop", "first", 1)
    assert saved["path"] == str(driver.home / "jobs" / "_savepoints" / "shop" / "first")
    listed = told(driver, "savepoints", "shop")
    assert [one["name"] for one in listed["savepoints"]] == ["first"]
    assert "first" in done("jobs", "savepoints", "shop", "--home", driver.home)

    line = begin(driver, "first", "shop-2")

    assert line.startswith("job shop-2 begins with epoch 2, from savepoint")
    driver.feed("orders", [{"user": "ann", "n": 10}])
    driver.run()
    assert [row["n"] for row in driver.output("totals")] == [1, 2, 11]
    assert told(driver, "describe", "shop-2")["rows"] == 3
    assert told(driver, "describe", "shop")["rows"] == 2


def test_what_is_printed_is_the_command_that_goes_on(driver: TestDriver, tmp_path: Path) -> None:
    out = done("jobs", "savepoint", "shop", "--dir", tmp_path / "here", "--home", driver.home)

    assert out.startswith("job shop: savepoint ")
    path = out.rsplit("--from-savepoint ", 1)[1].strip()
    assert Path(path).parent == tmp_path / "here"
    assert "begins with epoch 2" in begin(driver, path, "copy")
    found = told(driver, "savepoints", "shop", "--dir", tmp_path / "here")
    assert [one["path"] for one in found["savepoints"]] == [path]


def test_it_outlives_the_job_until_it_is_deleted(driver: TestDriver) -> None:
    told(driver, "savepoint", "shop", "--name", "first")
    done("jobs", "delete", "shop", "--yes", "--home", driver.home)
    begin(driver, "first", "shop")
    driver.feed("orders", [{"user": "bob", "n": 1}])
    driver.run()
    assert driver.output("totals")[-1]["n"] == 3
    told(driver, "savepoints", "shop", "--delete", "first")
    assert told(driver, "savepoints", "shop")["savepoints"] == []
    assert not list((driver.home / "jobs" / "_savepoints" / "shop").iterdir())


def test_a_damaged_one_is_listed_as_such_and_can_go(driver: TestDriver) -> None:
    path = Path(told(driver, "savepoint", "shop", "--name", "first")["path"])
    (path / MANIFEST).write_bytes(b"{}\n")
    (one,) = told(driver, "savepoints", "shop")["savepoints"]
    assert "does not match its digest" in one["problem"]
    assert "damaged" in done("jobs", "savepoints", "shop", "--home", driver.home)
    told(driver, "savepoints", "shop", "--delete", "first")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("savepoint none", "no committed epoch of job 'none'"),
        ("savepoint shop --name first", "first exists already, and savepoints are never"),
        ("savepoint shop --name a/b", "savepoint name 'a/b' cannot be used"),
        ("savepoints none", "no committed epoch of job 'none'"),
        ("savepoints shop --delete other", "does not exist; expected a folder with"),
        ("stop shop --savepoint", "job 'shop' does not run"),
    ],
)
def test_mistakes_are_told(driver: TestDriver, words: str, message: str) -> None:
    told(driver, "savepoint", "shop", "--name", "first")
    assert message in refused("jobs", *words.split(), "--home", driver.home)


def test_begin_refuses_what_does_not_fit(driver: TestDriver) -> None:
    told(driver, "savepoint", "shop", "--name", "first")
    with pytest.raises(hr.InvalidInputError, match=r"no savepoint 'second': .* has first"):
        begin(driver, "second", "new")
    with pytest.raises(hr.InvalidInputError, match="leave --from-savepoint out to continue"):
        begin(driver, "first", "shop")
    with pytest.raises(hr.InvalidInputError, match="key was user"):
        begin(driver, "first", "new", by_shop)
    assert "new" not in [
        one.name for one in (driver.home / "jobs").iterdir() if (one / "manifests").exists()
    ]
    begin(driver, "first", "new")


def test_streams_that_no_longer_hold_what_is_next(driver: TestDriver) -> None:
    told(driver, "savepoint", "shop", "--name", "first")
    driver.bus.remove("orders")
    with pytest.raises(hr.InvalidInputError, match="stream 'orders', which is not on the bus"):
        begin(driver, "first", "new")
    driver.create("orders", {"user": pa.string(), "n": pa.int64()})
    with pytest.raises(hr.InvalidInputError, match=r"offset 2 of stream 'orders'.* holds 0 to 0"):
        begin(driver, "first", "new")


def test_a_job_that_has_ended_is_not_saved(driver: TestDriver) -> None:
    driver.finish()
    driver.crash()
    assert "has ended" in refused("jobs", "savepoint", "shop", "--home", driver.home)
    assert headrace("jobs", "savepoint", "--help").code == 0
