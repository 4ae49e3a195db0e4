"""``inspect`` and ``print`` look at messages and change nothing."""

from __future__ import annotations

from typing import Any, TypedDict

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"user": pa.string(), "cents": pa.int64()}
ROWS = [{"user": "ann", "cents": 5}, {"user": "bob", "cents": 7}]
SEEN: list[Any] = []


class Order(TypedDict):
    user: str
    cents: int


def note(order: Any) -> None:
    SEEN.append((order.user, order.cents))


@hr.job("watched")
def watched(g: hr.Graph) -> None:
    orders = g.input("orders").inspect(note).print("paid", uses=["user"])
    orders.partition_by("user").print().aggregate(cents=hr.agg.sum("cents")).send_to("totals")


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def test_messages_are_seen_and_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with TestDriver(watched, tasks=1) as driver:
        driver.create("orders", COLUMNS)
        driver.feed("orders", ROWS)
        driver.finish()
        assert SEEN == [("ann", 5), ("bob", 7)]
        assert driver.output("totals") == ROWS
    out, err = capsys.readouterr()
    assert out == "", "which may be read by programs"
    lines = err.splitlines()
    assert lines[:2] == ["paid> Message(user='ann')", "paid> Message(user='bob')"]
    assert "orders.by_user> Message(user='ann', cents=5)" in lines


@pytest.mark.parametrize(
    "point", ["slot.ran", "slot.segment_written", "epoch.before_commit", "commit.published"]
)
def test_after_a_crash_all_are_seen_and_results_are_right(point: str) -> None:
    with TestDriver(watched, tasks=2) as driver:
        driver.create("orders", COLUMNS)
        driver.feed("orders", ROWS)
        assert driver.advance_with_crash(point)
        driver.finish()
        assert set(SEEN) == {("ann", 5), ("bob", 7)}
        found = driver.output("totals")
        assert sorted(found, key=lambda row: row["user"]) == ROWS


def test_what_it_raises_is_handled_as_in_other_operators() -> None:
    def fails(order: Any) -> None:
        if order.cents == 7:
            raise ValueError("seven")

    @hr.job("failing")
    def failing(g: hr.Graph) -> None:
        g.input("orders").inspect(fails, on_error="drop").send_to("kept")

    with TestDriver(failing, tasks=1) as driver:
        driver.create("orders", COLUMNS)
        driver.feed("orders", ROWS)
        driver.finish()
        assert driver.output("kept") == ROWS[:1]


def test_mistakes_are_found_at_build() -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        rows = g.input("orders", schema=Order)
        rows.inspect("text").send_to("a")  # type: ignore[arg-type]
        rows.inspect(lambda a, b: None).send_to("b")  # type: ignore[misc, arg-type]
        rows.print(5).send_to("c")  # type: ignore[arg-type]

    with pytest.raises(hr.GraphError) as raised:
        wrong.build()
    text = str(raised.value)
    assert "inspect" in text
    assert "print(5); expected a text" in text
    assert "3 mistakes" in text
