"""Homes in which the commands that pages show are run: jobs that have run, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.bus import FileBus, StreamSpec
from headrace.testing import TestDriver

EPOCHS = 120
HOME = ".headrace"

JOBS = """\
import headrace as hr


def in_cents(order):
    return {"cents": int(order.price)}


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    raw = g.input("shop.raw")
    cents = raw.map(in_cents, returns={"cents": int})
    cents.send_to(g.output("cents"))
"""


class Spent:
    """Sums what each user spends."""

    def process(self, order: Any, context: hr.Context) -> None:
        """Add one order."""
        store = context.store("spent")
        store.put(order.user, store.get(order.user, 0) + order.cents)


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    orders = g.input("orders").partition_by("user", name="by-user")
    orders.process(Spent, stores={"spent": int})
    orders.aggregate(name="totals", n=hr.agg.count(), cents=hr.agg.sum("cents"))


def make_shop(here: Path) -> None:
    """A job of 120 epochs, one a second, with a processor's store and totals."""
    columns = {"user": pa.string(), "cents": pa.int64()}
    with TestDriver(shop, home=here / HOME, memory_bus=False, tasks=4, key_groups=512) as driver:
        driver.create("orders", columns, partitions=2, key=["user"])
        users = ["ann", *(f"user-{number}" for number in range(500))]
        driver.feed("orders", [{"user": user, "cents": 100} for user in users * 3])
        for epoch in range(EPOCHS):
            first = epoch * 40 % 500
            rows = [{"user": user, "cents": epoch} for user in ["ann", *users[first : first + 40]]]
            driver.feed("orders", rows)
            driver.advance()
            driver.clock.advance(1_000)


def parse(payment: Any) -> dict[str, int]:
    """Refuse what is no number."""
    return {"cents": int(payment.text)}


@hr.job("payments")
def payments(g: hr.Graph) -> None:
    raw = g.input("payments.raw")
    raw.map(parse, returns={"cents": int}, on_error="dead_letter").send_to(g.output("payments"))


def make_payments(here: Path) -> None:
    """A job that has set two payments aside."""
    with TestDriver(payments, home=here / HOME, memory_bus=False) as driver:
        driver.create("payments.raw", {"text": pa.string()})
        driver.feed("payments.raw", [{"text": "5"}, {"text": "five"}, {"text": ""}])
        driver.run()


def make_mistake(here: Path) -> None:
    """A job with a function that fails on a record of its sample data."""
    (here / "jobs.py").write_text(JOBS)
    (here / "data").mkdir()
    (here / "data" / "shop.raw.jsonl").write_text(
        '{"id": 6, "price": "3"}\n{"id": 7, "price": "five"}\n'
    )


def make_orders(here: Path) -> None:
    """A stream, and a file with a column that it has not."""
    schema = pa.schema([("user", pa.string()), ("price", pa.int32())])
    with FileBus(here / HOME / "bus") as bus:
        bus.create(StreamSpec("orders", 1, schema))
    (here / "new.jsonl").write_text('{"user": "ann", "price": 5, "shop": "north"}\n')
