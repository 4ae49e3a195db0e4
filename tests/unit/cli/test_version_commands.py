"""A version of a job beside the live one: run apart, compared, swapped in, dropped."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import with_own_outputs
from tests.support.cli import done, refused

import headrace as hr
from headrace.testing import TestDriver


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user")
    orders.aggregate(name="spent", total=hr.agg.sum("n")).send_to(g.output("totals"), name="out")


@hr.job("shop")
def better(g: hr.Graph) -> None:
    orders = g.input("orders").filter(hr.col("n") > 0).partition_by("user")
    orders.aggregate(name="spent", total=hr.agg.sum("n")).send_to(g.output("totals"), name="out")


@hr.job("last")
def last(g: hr.Graph) -> None:
    rows = g.input("orders").map(timed, returns={"user": str, "n": int, "at": dt.datetime})
    rows.partition_by("user").aggregate(name="spent", at=hr.agg.max("at")).send_to(
        g.output("times"), name="out"
    )


def timed(order: Any) -> dict[str, Any]:
    at = dt.datetime(2013, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=order.n)
    return {"user": order.user, "n": order.n, "at": at}


ROWS = [{"user": "ann", "n": 1}, {"user": "bob", "n": -2}, {"user": "bob", "n": 5}]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with TestDriver(shop, tasks=2, home=tmp_path, memory_bus=False, key_groups=8) as made:
        made.create("orders", {"user": pa.string(), "n": pa.int64()})
        made.feed("orders", ROWS)
        made.run()
        yield made


def go_on(driver: TestDriver, job: Any, name: str, apart: str | None = None) -> None:
    """Let the driver run another version, to what there is now."""
    driver.crash()
    named = dataclasses.replace(job, name=name)
    driver.job = with_own_outputs(driver, named, apart)
    driver.run()


def told(driver: TestDriver, *words: object) -> Any:
    return json.loads(done("jobs", *words, "--json", "--home", driver.home))


def test_versions_are_compared_by_the_last_row_of_each_key(driver: TestDriver) -> None:
    go_on(driver, better, "shop-2", "v2")
    assert sorted(driver.bus.names()) == ["orders", "totals", "totals.v2"]

    found = told(driver, "compare", "shop", "shop-2")

    (one,) = found["outputs"]
    assert found["behind"] == {"shop": {}, "shop-2": {}}
    assert (one["streams"], one["key"]) == (["totals", "totals.v2"], ["user"])
    assert (one["rows"], one["keys"], one["only"]) == ([3, 2], [2, 2], [0, 0])
    assert (one["different"], one["same"], one["is_same"]) == (1, 1, False)
    assert one["examples"] == [
        {
            "key": {"user": "bob"},
            "first": {"user": "bob", "total": 3},
            "second": {"user": "bob", "total": 5},
        }
    ]
    out = done("jobs", "compare", "shop", "shop-2", "--home", driver.home)
    assert "out, user=bob\n  totals: user=bob, total=3\n  totals.v2: user=bob, total=5" in out


def test_keys_that_one_alone_has(driver: TestDriver) -> None:
    driver.feed("orders", [{"user": "cat", "n": -1}])
    go_on(driver, shop, "shop")
    go_on(driver, better, "shop-2", "v2")
    (one,) = told(driver, "compare", "shop", "shop-2")["outputs"]
    assert (one["only"], one["keys"]) == ([1, 0], [3, 2])
    (one,) = told(driver, "compare", "shop", "shop-2", "--key", "total,user")["outputs"]
    assert (one["only"], one["different"]) == ([3, 1], 0)


def test_rows_with_times_are_told(driver: TestDriver) -> None:
    go_on(driver, last, "last")
    driver.feed("orders", [{"user": "bob", "n": 9}])
    go_on(driver, last, "last-2", "v2")
    (one,) = told(driver, "compare", "last", "last-2")["outputs"]
    assert one["examples"][0]["second"] == {"user": "bob", "at": "2013-01-10T00:00:00Z"}
    assert "at=2013-01-10" in done("jobs", "compare", "last", "last-2", "--home", driver.home)


def test_readers_of_an_alias_are_led_over_and_back(driver: TestDriver) -> None:
    """They are led over at once, when the new version has read as far as the old one."""
    go_on(driver, better, "shop-2", "v2")
    words = ("jobs", "swap", "shop", "shop-2", "--home", driver.home)
    assert "create one for them to read: headrace bus alias totals-current" in refused(*words)
    driver.bus.alias("spending", "totals")
    driver.feed("orders", [{"user": "ann", "n": 1}])
    go_on(driver, shop, "shop")
    assert "is behind 'shop': 1 rows of orders" in refused(*words)
    assert driver.bus.aliases() == {"spending": "totals"}
    told(driver, "swap", "shop", "shop-2", "--force")
    assert driver.bus.aliases() == {"spending": "totals.v2"}
    go_on(driver, better, "shop-2")
    assert told(driver, "swap", "shop-2", "shop")["aliases"] == {"spending": "totals"}
    assert driver.output("spending") == driver.output("totals")


def test_a_version_that_is_not_wanted_is_dropped_with_its_outputs(driver: TestDriver) -> None:
    go_on(driver, better, "shop-2", "v2")
    driver.bus.alias("spending", "totals.v2")
    driver.crash()
    drop = ("jobs", "delete", "shop-2", "--yes", "--outputs", "--home", driver.home)
    assert "alias 'spending' points to 'totals.v2'" in refused(*drop)
    driver.bus.unalias("spending")
    assert "deleted; its outputs totals.v2 too" in done(*drop)
    assert sorted(driver.bus.names()) == ["orders", "totals"]
    words = ("jobs", "delete", "shop", "--yes", "--outputs", "--home", driver.home)
    assert "was not run with --output-suffix" in refused(*words)


def test_a_job_keeps_the_outputs_that_it_began_with(driver: TestDriver) -> None:
    """Later runs need not say it, and must not say another."""
    go_on(driver, better, "shop-2", "v2")
    driver.feed("orders", [{"user": "dan", "n": 1}])
    go_on(driver, better, "shop-2")
    assert [row["user"] for row in driver.output("totals.v2")].count("dan") == 1
    assert len(driver.output("totals")) == 3
    with pytest.raises(hr.InvalidInputError, match="began with --output-suffix v2"):
        go_on(driver, better, "shop-2", "v3")
    with pytest.raises(hr.InvalidInputError, match="began without --output-suffix"):
        go_on(driver, shop, "shop", "v2")


def test_what_cannot_be_told_apart_is_refused(driver: TestDriver) -> None:
    go_on(driver, shop, "again")
    words = ("jobs", "compare", "shop", "again", "--home", driver.home)
    assert "both send to totals; run the second with --output-suffix" in refused(*words)

    with pytest.raises(hr.InvalidInputError, match="cannot name a stream"):
        go_on(driver, shop, "odd", "a/b")
