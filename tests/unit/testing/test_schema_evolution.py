"""Jobs whose streams get columns, or wider ones, while they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

ORDERS = pa.schema([("user", pa.int64()), ("price", pa.int32())])
NOTED = ORDERS.append(pa.field("note", pa.string()))
WIDE = ORDERS.set(1, pa.field("price", pa.int64()))


@hr.job("spending")
def spending(g: hr.Graph) -> None:
    orders = g.input("orders")
    orders.send_to(g.output("copies"))
    totals = orders.partition_by("user").aggregate(spent=hr.agg.sum("price"))
    totals.send_to(g.output("totals", partitions=1))


@pytest.fixture(params=[True, False], ids=["memory", "file"])
def driver(request: pytest.FixtureRequest) -> Iterator[TestDriver]:
    with TestDriver(spending, tasks=2, memory_bus=request.param) as driver:
        driver.create("orders", ORDERS)
        driver.feed("orders", [{"user": 1, "price": 5}])
        driver.run()
        yield driver


def order(user: int, price: int, **more: Any) -> dict[str, Any]:
    return {"user": user, "price": price, **more}


def test_a_running_job_goes_on_without_a_column_that_is_added(driver: TestDriver) -> None:
    driver.bus.stream("orders").evolve(NOTED)
    driver.feed("orders", [order(1, 7, note="x")])
    driver.run()

    assert driver.output("copies") == [order(1, 5), order(1, 7)]
    assert [row["spent"] for row in driver.output("totals")] == [5, 12]


def test_a_job_takes_an_added_column_when_it_is_started_again(driver: TestDriver) -> None:
    driver.bus.stream("orders").evolve(NOTED, {"note": "-"})
    driver.feed("orders", [order(1, 7, note="x"), order(2, 9)])
    driver.crash()
    with pytest.raises(
        GraphError,
        match=r"stream 'copies' exists with other columns: 'note' is not expected; add it: "
        r'headrace bus configure copies --add-column "note:string"',
    ):
        driver.start()

    driver.bus.stream("copies").evolve(NOTED)
    driver.start()
    driver.run()

    assert driver.output("copies") == [
        order(1, 5, note=None),
        order(1, 7, note="x"),
        order(2, 9, note="-"),
    ]
    totals = [(row["user"], row["spent"]) for row in driver.output("totals")]
    assert sorted(totals) == [(1, 5), (1, 12), (2, 9)]


@pytest.mark.parametrize(
    "point", ["commit.published", "slot.segment_written", "epoch.output_published"]
)
def test_an_epoch_that_a_crash_left_undone_is_whole_after_a_column_came(point: str) -> None:
    with TestDriver(spending, tasks=2) as driver:
        driver.create("orders", ORDERS)
        driver.feed("orders", [order(1, 5)])
        driver.advance_with_crash(point)
        for stream in ("orders", "copies"):
            if stream in driver.bus.names():
                driver.bus.stream(stream).evolve(NOTED, {"note": "-"})
        driver.feed("orders", [order(1, 7, note="x")])
        driver.run()

        assert [row["price"] for row in driver.output("copies")] == [5, 7]
        assert [row["spent"] for row in driver.output("totals")] == [5, 12]


def test_an_output_that_gets_a_column_is_filled_on(driver: TestDriver) -> None:
    copies = driver.bus.stream("copies")
    copies.evolve(NOTED, {"note": "-"})
    driver.feed("orders", [order(2, 7)])
    driver.run()
    copies.append(0, pa.RecordBatch.from_pylist([order(3, 8, note="own")], NOTED))
    driver.start()
    driver.feed("orders", [order(4, 9)])
    driver.run()

    assert [row["note"] for row in driver.output("copies")] == ["-", "-", "own", "-"]


def test_a_wider_type_is_taken_when_the_job_is_started_again(driver: TestDriver) -> None:
    driver.bus.stream("orders").evolve(WIDE)
    driver.feed("orders", [order(1, 7)])
    driver.run()
    assert [row["spent"] for row in driver.output("totals")] == [5, 12]

    driver.feed("orders", [order(1, 2**40)])
    with pytest.raises(
        InvalidInputError,
        match=r"'price' of stream 'orders' was made wider .* int64, .* int32 cannot hold; start",
    ):
        driver.run()
    driver.bus.stream("copies").evolve(WIDE)
    driver.start()
    driver.run()

    assert [row["spent"] for row in driver.output("totals")] == [5, 12, 12 + 2**40]
    assert [row["price"] for row in driver.output("copies")] == [5, 7, 2**40]


def test_a_broadcast_store_follows_a_stream_that_gets_columns() -> None:
    rates = hr.broadcast("rates", stream="rates", key="currency")

    @hr.job("convert")
    def convert(g: hr.Graph) -> None:
        paid = g.input("paid")
        paid.join_table(rates).send_to(g.output("out"))

    columns = pa.schema([("currency", pa.string()), ("rate", pa.float32())])
    wider = columns.set(1, pa.field("rate", pa.float64())).append(pa.field("unit", pa.int64()))
    with TestDriver(convert) as driver:
        driver.create("rates", columns, key=["currency"])
        driver.create("paid", {"currency": pa.string()})
        driver.feed("rates", [{"currency": "USD", "rate": 0.5}, {"currency": "DM", "rate": 2.0}])
        driver.feed("rates", [{"currency": "DM"}])  # deletes it
        driver.feed("paid", [{"currency": "USD"}])
        driver.run()
        driver.bus.stream("rates").evolve(wider, {"unit": 100})
        driver.feed("rates", [{"currency": "JPY", "rate": 0.25, "unit": 1}])
        driver.feed("paid", [{"currency": "JPY"}])
        driver.run()
        assert [row["rate"] for row in driver.output("out")] == [0.5, 0.25]

        wide = pa.schema([("currency", pa.string()), *wider.remove(0)])
        driver.bus.stream("out").evolve(wide)
        driver.start()
        driver.feed("paid", [{"currency": name} for name in ("USD", "JPY", "DM")])
        driver.run()
        assert [row["unit"] for row in driver.output("out")] == [None, None, 100, 1, None]
