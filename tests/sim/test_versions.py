"""Joins as of event time are a function of the logs, whatever the epochs, crashes and tasks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

LATENESS, HISTORY = 3, 5
RATES = {"money": pa.int64(), "rate": pa.int64(), "at": pa.int64()}
ORDERS = {"money": pa.int64(), "n": pa.int64(), "at": pa.int64()}
NEVER = -(1 << 62)


class Item(NamedTuple):
    """One record of the log: a rate (null deletes) or an order."""

    is_rate: bool
    money: int | None
    rate: int | None
    at: int


def valued(how: str = "left", via: str = "exchange") -> hr.Job:
    @hr.job("valued")
    def made(g: hr.Graph) -> None:
        rates = g.table(
            "rates", "money", time="at", out_of_orderness="3ms", history="5ms", name="held"
        )
        orders = g.input("orders", time="at", out_of_orderness="3ms").partition_by("money", via=via)
        joined = orders.join(rates, how=how, columns=["rate"], as_of="event", name="valued")
        joined.send_to(g.output("out"))
        joined.window(hr.tumbling("10ms"), n=hr.agg.sum("n")).send_to(g.output("win"))

    return made


def opened(**more: Any) -> TestDriver:
    driver = TestDriver(more.pop("job", valued()), key_groups=16, **{"tasks": 2, **more})
    driver.create("rates", RATES, partitions=2, time="at")
    driver.create("orders", ORDERS, partitions=2, time="at")
    return driver


def partition_of(item: Item) -> int:
    return (item.money or 0) % 2


def feed(driver: TestDriver, log: Sequence[Item], begin: int, end: int) -> None:
    for number, item in enumerate(log[begin:end], begin):
        where = partition_of(item)
        if item.is_rate:
            row = {"money": item.money, "rate": item.rate, "at": item.at}
            driver.feed("rates", [row], partition=where)
        else:
            row = {"money": item.money, "n": number, "at": item.at}
            driver.feed("orders", [row], partition=where)


def expected(log: Sequence[Item], how: str) -> dict[int, int | None]:
    """Fold the log: the rate of each order, by its number."""
    highest: dict[tuple[bool, int], int] = {}
    versions: dict[int, dict[int, int | None]] = {}
    moments: dict[int, int] = {}
    for number, item in enumerate(log):
        place = (item.is_rate, partition_of(item))
        watermark = highest[place] - LATENESS if place in highest else NEVER
        highest[place] = max(highest.get(place, item.at), item.at)
        if not item.is_rate:
            moments[number] = max(item.at, watermark - HISTORY)
        elif item.money is not None:
            versions.setdefault(item.money, {})[max(item.at, watermark)] = item.rate
    found = {}
    for number, moment in moments.items():
        money = log[number].money
        own = {} if money is None else versions.get(money, {})
        held = max((begin for begin in own if begin <= moment), default=None)
        rate = None if held is None else own[held]
        if rate is not None or how == "left":
            found[number] = rate
    return found


ITEM = st.builds(
    Item,
    st.booleans(),
    st.sampled_from([None, 0, 1, 1, 2]),
    st.sampled_from([None, 1, 2, 3]),
    st.integers(-20, 20),
)
LOG = st.lists(ITEM, max_size=40)
AT_THE_WATERMARK = [
    Item(True, 0, 1, 0),
    Item(False, 0, None, 10),
    *(Item(is_rate, money, 1, 10 + LATENESS) for is_rate in (True, False) for money in (1, 2)),
    Item(True, 0, 2, 10),
]
"""The last rate is of the moment of the first order, which the watermark has reached by then."""

DELETED_FIRST = [Item(False, 0, None, 1), Item(True, 0, None, 1), Item(True, 0, 1, 0)]
"""A rate comes after the one that deletes it; they are in two epochs."""

CRASHES = ["slot.ran", "slot.segment_written", "epoch.before_commit", "commit.published"]


def run(log: Sequence[Item], cuts: Sequence[int], how: str, **more: Any) -> dict[str, Any]:
    crash, tasks = more.pop("crash", None), more.pop("rescale", None)
    with opened(job=valued(how, more.pop("via", "exchange")), **more) as driver:
        driver.start()
        bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
        for begin, end in itertools.pairwise(bounds):
            feed(driver, log, begin, end)
            if crash is not None:
                driver.advance_with_crash(crash)
            driver.run()
            if tasks is not None:
                driver.coordinator.rescale(tasks if begin else 1)
        driver.finish()
        found = driver.output("out")
        assert len({row["n"] for row in found}) == len(found)
        assert driver.table("valued") == []
        windows = sorted((str(row["money"]), row["n"]) for row in driver.output("win"))
        return {"rates": {row["n"]: row["rate"] for row in found}, "windows": windows}


@settings(deadline=None)
@given(
    log=LOG,
    cuts=st.lists(st.integers(0, 40), max_size=4),
    crash=st.sampled_from([None, None, *CRASHES]),
    rescale=st.sampled_from([None, None, 3]),
)
@example(log=AT_THE_WATERMARK, cuts=[6], crash=None, rescale=None)
@example(log=DELETED_FIRST, cuts=[2], crash=None, rescale=None)
@pytest.mark.parametrize("how", ["left", "inner"])
def test_each_order_takes_the_rate_of_its_time(
    how: str, log: list[Item], cuts: list[int], crash: str | None, rescale: int | None
) -> None:
    found = run(log, cuts, how, crash=crash, rescale=rescale)
    assert expected(log, how) == found["rates"]


@settings(max_examples=examples(6))
@given(
    log=LOG,
    cuts=st.lists(st.integers(0, 40), max_size=4),
    crash=st.sampled_from([None, None, *CRASHES]),
)
def test_rows_that_come_by_way_of_the_bus_take_the_same(
    log: list[Item], cuts: list[int], crash: str | None
) -> None:
    found = run(log, cuts, "left", via="bus", crash=crash)
    assert expected(log, "left") == found["rates"]


@settings(max_examples=examples(5))
@given(log=LOG, cuts=st.lists(st.integers(0, 40), max_size=4), max_rows=st.integers(1, 20))
def test_windows_of_joined_rows_do_not_depend_on_epochs(
    log: list[Item], cuts: list[int], max_rows: int
) -> None:
    assert run(log, [], "left") == run(log, cuts, "left", max_rows=max_rows)


def test_versions_that_nobody_can_ask_for_go() -> None:
    with opened(tasks=1) as driver:
        log = [Item(True, 0, rate, at) for rate, at in enumerate(range(0, 400, 2))]
        log += [Item(False, 0, None, 400), Item(True, 1, 5, 400), Item(False, 1, None, 400)]
        feed(driver, log, 0, len(log))
        driver.run()
        feed(driver, [Item(True, 2, None, 390), Item(True, 0, 7, 402)], 0, 2)
        driver.run()
        kept = {row["money"]: row["rate"] for row in driver.table("held")}
        assert len(kept[0]) <= 8
        assert kept == {0: kept[0], 1: [5]}  # no rate of 2 can come before that moment


def test_keys_that_never_change_again_keep_nothing() -> None:
    """Each of 80 an epoch has a row, the next and a deletion; 400 others stay."""
    with opened(tasks=1) as driver:
        driver.feed("rates", [{"money": -key, "rate": 1, "at": 0} for key in range(1, 401)], 0)
        for at in range(0, 180, 6):
            for one in (0, 1):
                keys = [1_000 * at + 2 * key + one for key in range(40)]
                changes = [(1, at), (2, at + 1), (None, at + 2)]
                rates = [{"money": k, "rate": rate, "at": t} for k in keys for rate, t in changes]
                driver.feed("rates", rates, one)
                driver.feed("orders", [{"money": keys[0], "n": at, "at": at}], one)
            driver.run()
        kept = driver.table("held")
        assert len(kept) <= 1_200
        assert sum(len(row["rate"]) for row in kept) <= 400 + 3 * 800


def test_rows_that_wait_are_in_one_epoch_and_leave_in_another() -> None:
    with opened(tasks=1) as driver:
        feed(driver, [Item(False, 0, None, 10), Item(False, 1, None, 10)], 0, 2)
        driver.run()
        driver.crash(lose_hosts=[0])
        assert sorted(row["money"] for row in driver.table("valued")) == [0, 1]
        assert driver.output("out") == []
        feed(driver, [Item(True, 0, 5, 8), Item(True, 1, 6, 11)], 0, 2)
        driver.run()
        assert driver.output("out") == []  # the watermark of the rates may still be behind 10
        later = [Item(is_rate, money, 9, 30) for is_rate in (True, False) for money in (0, 1)]
        feed(driver, later, 0, 4)
        driver.run()
        found = sorted((row["money"], row["rate"]) for row in driver.output("out"))
        assert found == [(0, 5), (1, None)]
        feed(driver, later, 0, 4)
        driver.run()
        assert all(row["at"] == 30 for row in driver.table("valued"))


def test_late_orders_find_versions_that_newer_ones_followed() -> None:
    """In the very epoch that brings the newer ones, and brings the watermark past them."""
    with opened(tasks=1) as driver:
        feed(driver, [Item(True, 0, 9, 0)], 0, 1)
        driver.run()
        rates = [Item(True, 0, 1, 5), Item(True, 0, 2, 10)]
        orders = [Item(False, 0, None, 12), Item(False, 0, None, 7)]
        ends = [Item(is_rate, money, 3, 40) for is_rate in (True, False) for money in (1, 2)]
        feed(driver, [*rates, *orders, *ends], 0, 8)
        driver.run()
        assert driver.coordinator.state.watermarks["rates.by_money+orders.by_money"] == 37
        found = {row["at"]: row["rate"] for row in driver.output("out")}
        assert found == {12: 2, 7: 1}


def test_versions_within_the_history_stay_when_another_follows() -> None:
    """The watermark is past the second rate, and a late order may still ask for the first."""
    with opened(tasks=1) as driver:
        ends = [Item(is_rate, money, 3, 40) for is_rate in (True, False) for money in (1, 2)]
        feed(driver, [Item(True, 0, 1, 30), Item(True, 0, 2, 35), *ends], 0, 6)
        driver.run()
        feed(driver, [Item(True, 0, 9, 41)], 0, 1)
        driver.run()
        feed(driver, [Item(False, 0, None, 33)], 0, 1)
        driver.finish()
        assert [row["rate"] for row in driver.output("out") if row["money"] == 0] == [1]


def test_a_table_that_is_idle_holds_no_order_back() -> None:
    @hr.job("valued")
    def job(g: hr.Graph) -> None:
        rates = g.table("rates", "money", time="at", idle="1m", history="5ms")
        orders = g.input("orders", time="at").partition_by("money")
        orders.join(rates, columns=["rate"], as_of="event").send_to(g.output("out"))

    with opened(job=job) as driver:
        feed(driver, [Item(True, 0, 5, 0), Item(True, 1, 6, 0)], 0, 2)
        feed(driver, [Item(False, money, None, at) for at in (50, 60) for money in (0, 1)], 0, 4)
        driver.run()
        assert driver.output("out") == []
        driver.clock.advance(61_000)
        driver.run()
        found = sorted((row["at"], row["rate"]) for row in driver.output("out"))
        assert found == [(50, 5), (50, 6)]
        feed(driver, [Item(True, 0, 9, 40)], 0, 1)  # behind what was passed without it
        feed(driver, [Item(False, money, None, 90) for money in (0, 1)], 0, 2)
        driver.run()
        driver.clock.advance(61_000)
        driver.finish()
        found = sorted((row["at"], row["rate"]) for row in driver.output("out"))
        assert found[2:] == [(60, 6), (60, 9), (90, 6), (90, 9)]
        assert driver.coordinator.state.counts["late"] == 1


def test_rows_of_a_key_leave_in_the_order_of_their_times() -> None:
    times = [20, 19, 22, 21, 21, 25, 23, 27, 24, 30, 28, 40]
    found = []
    for step in (1, 2, 5, len(times)):
        with opened(tasks=1) as driver:
            driver.feed("rates", [{"money": 1, "rate": at, "at": at} for at in range(18, 60)], 0)
            driver.feed("rates", [{"money": 2, "rate": 0, "at": 90}], partition=1)
            driver.feed("orders", [{"money": 2, "n": 0, "at": 90}], partition=1)
            for begin in range(0, len(times), step):
                some = list(enumerate(times))[begin : begin + step]
                rows = [{"money": 1, "n": n, "at": at} for n, at in some]
                driver.feed("orders", rows, partition=0)
                driver.run()
            driver.finish()
            out = [row for row in driver.output("out") if row["money"] == 1]
            found.append([(row["at"], row["n"], row["rate"]) for row in out])
    in_order = sorted((at, n, at) for n, at in enumerate(times))
    assert found == [in_order] * 4
