"""The test driver as a user's test uses it: feed, advance, look, move the clock, crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import more

import headrace as hr
from headrace.errors import InvalidInputError, UnavailableError, UserFunctionError
from headrace.testing import FAULT_POINTS, ManualClock, SlotCrash, TestDriver, each_at

COLUMNS = {"user": pa.string(), "amount": pa.int64(), "at": pa.int64()}


class Budget:
    """Sums per user, and says so when a user has been quiet for a minute."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("spent")
        total = store.get(message.user, 0) + message.amount
        if total == 0:
            store.delete(message.user)
        else:
            store.put(message.user, total)
        context.emit({"user": message.user, "total": total})
        context.set_timer(context.wall_ms + 60_000, wall=True)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"user": timer.key, "total": -1})


@hr.job("budget")
def budget(g: hr.Graph) -> None:
    payments = g.input("payments", time="at", out_of_orderness="1s").partition_by("user")
    payments.process(
        Budget, stores={"spent": int}, returns={"user": str, "total": int}, name="budget"
    ).send_to(g.output("totals"))
    payments.window(hr.tumbling("10s"), n=hr.agg.count()).send_to(g.output("windows"))


def pay(user: str | None, amount: int, at: int = 0) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": at}


@pytest.fixture(params=["memory bus", "file bus"])
def driver(request: pytest.FixtureRequest) -> Any:
    with TestDriver(budget, memory_bus=request.param == "memory bus") as made:
        made.create("payments", COLUMNS, partitions=2, time="at", key=["user"])
        yield made


def test_feed_advance_and_look(driver: TestDriver) -> None:
    driver.feed("payments", [pay("ann", 3), pay("bob", 4), pay("ann", 5), pay(None, 1)])
    summary = driver.advance()
    assert summary is not None
    assert summary.rows == 4
    assert driver.advance() is None
    ann = [row["total"] for row in driver.output("totals") if row["user"] == "ann"]
    assert ann == [3, 8]
    assert driver.store("spent") == {"ann": 8, "bob": 4, None: 1}
    driver.feed("payments", [pay("ann", -8)])
    driver.run()
    assert driver.store("spent") == {"bob": 4, None: 1}


def test_records_are_where_their_key_belongs(driver: TestDriver) -> None:
    driver.feed("payments", [pay(user, 1) for user in "abcdefgh"])
    parts = driver.partitions("payments")
    assert len(parts) == 2
    assert all(parts)
    assert sorted(row["user"] for row in driver.output("payments")) == list("abcdefgh")


def test_a_partition_may_be_named(driver: TestDriver) -> None:
    driver.feed("payments", [pay("a", 1), pay("b", 2)], partition=1)
    assert [len(part) for part in driver.partitions("payments")] == [0, 2]


def test_tables_and_empty_feeds(driver: TestDriver) -> None:
    driver.feed("payments", [])
    driver.feed("payments", pa.table({"user": ["a"], "amount": [1], "at": [5]}))
    assert driver.run() == 1
    assert driver.store("spent") == {"a": 1}


def test_event_time_closes_windows(driver: TestDriver) -> None:
    """A window closes once the watermark of every partition has passed its end."""
    driver.feed("payments", [pay("a", 1, 5_000), pay("b", 1, 10_999)], partition=0)
    driver.feed("payments", [pay("a", 1, 10_999)], partition=1)
    driver.run()
    assert driver.output("windows") == []
    for partition in range(2):
        driver.feed("payments", [pay("c", 1, 11_000)], partition=partition)
    driver.run()
    assert [row["n"] for row in driver.output("windows")] == [1]
    assert driver.finish() > 0
    assert len(driver.output("windows")) == 4
    assert driver.coordinator.state.ended


def test_the_clock_moves_only_by_hand(driver: TestDriver) -> None:
    driver.feed("payments", [pay("ann", 3)])
    driver.run()
    assert driver.run() == 0
    driver.clock.advance(59_999)
    assert driver.run() == 0
    driver.clock.advance(1)
    assert driver.run() == 1
    assert driver.output("totals")[-1] == {"user": "ann", "total": -1}


POINTS = sorted(
    p
    for p in FAULT_POINTS
    if p.startswith(("epoch.", "commit.", "slot.", "bus.")) and not p.startswith("slot.merge")
)


@pytest.mark.parametrize("point", more(POINTS[::3], POINTS))
def test_a_crash_at_any_point_loses_and_doubles_nothing(point: str, tmp_path: Path) -> None:
    with TestDriver(budget, home=tmp_path, memory_bus=False, hosts=2) as driver:
        driver.create("payments", COLUMNS, time="at")
        driver.feed("payments", [pay("ann", 3), pay("bob", 4)])
        assert driver.advance_with_crash(point)
        driver.run()
        driver.crash(lose_hosts=[0, 1])
        driver.feed("payments", [pay("ann", 1)])
        driver.run()
        assert driver.store("spent") == {"ann": 4, "bob": 4}
        assert [row["total"] for row in driver.output("totals") if row["user"] == "ann"] == [3, 4]


def test_a_point_that_is_not_passed_is_told() -> None:
    with TestDriver(budget) as driver:
        driver.create("payments", COLUMNS, time="at")
        assert not driver.advance_with_crash("slot.ran")
        driver.feed("payments", [pay("ann", 3)])
        assert not driver.advance_with_crash("slot.ran", nth=50)
        assert driver.store("spent") == {"ann": 3}


def test_a_slot_that_always_dies_is_unavailable() -> None:
    def die() -> None:
        raise SlotCrash

    with TestDriver(budget) as driver:
        driver.create("payments", COLUMNS, time="at")
        driver.feed("payments", [pay("ann", 3)])
        with each_at("slot.ran", die), pytest.raises(UnavailableError, match="slot 0 died 4 times"):
            driver.advance()
        driver.run()
        assert driver.store("spent") == {"ann": 3}


def test_a_job_goes_on_in_another_driver_over_the_same_home(tmp_path: Path) -> None:
    for number in range(3):
        with TestDriver(budget, home=tmp_path, memory_bus=False) as driver:
            if number == 0:
                driver.create("payments", COLUMNS, time="at")
            driver.feed("payments", [pay("ann", 1)])
            driver.run()
            assert driver.store("spent") == {"ann": number + 1}
    assert tmp_path.exists()


def test_a_home_of_its_own_is_removed() -> None:
    with TestDriver(budget) as driver:
        home = driver.home
        assert home.exists()
    assert not home.exists()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"user": "a", "amonut": 1, "at": 0}], r"rows have columns \['amonut'\] that the stream"),
        ([{"user": "a", "amount": "x", "at": 0}], "rows do not fit the columns of the stream"),
        ([{"user": "a", "amount": 1}], "event time of .* is null in row 0"),
        ([{"user": "a", "amount": 1, "at": -1 << 47}], "in row 0, outside the years 1 to 9999"),
        ([{"user": "a", "amount": 1, "at": 1 << 60}], "in row 0, outside the years 1 to 9999"),
    ],
    ids=["typo", "type", "no time", "long ago", "huge"],
)
def test_what_does_not_fit_is_refused_at_the_feed(
    driver: TestDriver, rows: list[dict[str, Any]], text: str
) -> None:
    with pytest.raises(InvalidInputError, match=text):
        driver.feed("payments", rows)
    assert driver.output("payments") == []


def test_a_stream_that_is_not_there_names_those_near(driver: TestDriver) -> None:
    with pytest.raises(InvalidInputError, match="no stream 'payment'; did you mean 'payments'"):
        driver.feed("payment", [])


def test_an_endless_run_is_told() -> None:
    with TestDriver(budget, max_rows=1) as driver:
        driver.create("payments", COLUMNS, time="at")
        driver.feed("payments", [pay("ann", 1) for _ in range(5)])
        with pytest.raises(InvalidInputError, match="still not idle after 3 epochs"):
            driver.run(limit=3)


def test_a_store_without_entries_and_a_job_without_state_are_empty() -> None:
    with TestDriver(budget) as driver:
        driver.create("payments", COLUMNS, time="at")
        assert driver.store("spent") == {}
        driver.run()
        assert driver.store("spent") == {}


def test_errors_of_the_users_reach_the_test() -> None:
    @hr.job("broken")
    def broken(g: hr.Graph) -> None:
        g.input("payments").filter(lambda m: m.nope, name="bad").send_to(g.output("out"))

    with TestDriver(broken) as driver:
        driver.create("payments", COLUMNS)
        driver.feed("payments", [pay("ann", 3)])
        with pytest.raises(UserFunctionError, match="operator 'bad' raised AttributeError"):
            driver.run()


def test_names_repeat_with_the_seed() -> None:
    def names(seed: int) -> list[str]:
        clock = ManualClock(seed=seed)
        return [clock.new_id() for _ in range(3)]

    assert names(1) == names(1)
    assert names(1) != names(2)
    assert len({*names(1), *names(2)}) == 6
