"""Mistakes that only the streams' columns show are found at plan, all at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.plans import StreamInfo, plan

import headrace as hr

ORDERS = pa.schema(
    [
        ("at", pa.int64()),
        ("customer", pa.string()),
        ("price", pa.float64()),
        ("items", pa.list_(pa.string())),
    ]
)
STREAMS = {
    "orders": StreamInfo(ORDERS, 2, "at"),
    "untimed": StreamInfo(ORDERS, 2),
    "prices": StreamInfo(pa.schema([("price", pa.int64())]), 2, None),
    "odd": StreamInfo(pa.schema([("a b", pa.int64()), ("__x", pa.int64())]), 1, None),
    "spaced": StreamInfo(pa.schema([("a b", pa.int64())]), 1, None),
}


def mistakes(function: Callable[[hr.Graph], Any]) -> tuple[str, ...]:
    with pytest.raises(hr.GraphError) as caught:
        plan(hr.job("job")(function).build(), STREAMS)
    return caught.value.problems


def name(message: Any) -> dict[str, str]:
    return {"name": message.customer}


class Silent:
    def process(self, message: Any, context: hr.Context) -> None: ...


def test_all_are_told_at_once_with_operator_and_line() -> None:
    def build(g: hr.Graph) -> None:
        orders = g.input("orders")
        orders.filter(hr.col("prise") > 0).send_to(g.output("a"))
        orders.map(hr.col("customer") + 1).send_to(g.output("b"))
        orders.partition_by("custmer").aggregate(n=hr.agg.count(), t=hr.agg.sum("x"))
        orders.partition_by("customer").aggregate(t=hr.agg.sum("x"), u=hr.agg.mean("customer"))

    start = inspect.getsourcelines(build)[1]
    found = mistakes(build)
    expected = [
        ("orders.filter", 2, "no column 'prise'; did you mean 'price'?"),
        ("orders.map", 3, "arithmetic on dtypes str and dyn int is not allowed"),
        ("orders.by_custmer", 4, "no column 'custmer'; did you mean 'customer'?"),
        ("orders.by_customer.aggregate", 5, "t: no column 'x'; columns are ['at', 'customer'"),
        ("orders.by_customer.aggregate", 5, "u: mean('customer') needs numbers; the column is"),
    ]
    assert len(found) == len(expected)
    for text, (operator, line, message) in zip(found, expected, strict=True):
        assert text.startswith(f"operator {operator!r} (")
        assert f"{Path(__file__).name}:{start + line})" in text
        assert message in text
        assert "\n" not in text


STEPS: dict[str, tuple[Callable[[hr.Graph], Any], str]] = {
    "stream that does not exist": (
        lambda g: g.input("order").send_to(g.output("out")),
        "no stream 'order'; create it, or give schema= to plan without it; streams are ['odd',",
    ),
    "time that does not exist": (
        lambda g: g.input("orders", time="att").send_to(g.output("out")),
        "event time: no column 'att'; did you mean 'at'?",
    ),
    "time of another type": (
        lambda g: g.input("orders", time="price").send_to(g.output("out")),
        "event-time column 'price' is double; expected a timestamp or integer ms",
    ),
    "schema that is another": (
        lambda g: g.input("orders", schema={"price": int}).send_to(g.output("out")),
        "stream 'orders' does not have the schema given: 'price' is double, expected int64",
    ),
    "columns that Headrace keeps": (
        lambda g: g.input("odd").send_to(g.output("out")),
        "columns ['__x'] begin with '__', which Headrace keeps",
    ),
    "columns that are no attributes": (
        lambda g: g.input("spaced").filter(len).send_to(g.output("out")),
        "columns ['a b'] cannot be attributes of a message; rename them with map first",
    ),
    "type found only when run": (
        lambda g: g.input("orders").map(hr.col("customer").dt.hour()).send_to(g.output("out")),
        'col("customer").dt.hour(): ',
    ),
    "filter that is no condition": (
        lambda g: g.input("orders").filter(hr.col("price") + 1).send_to(g.output("out")),
        'filter needs one true or false; [(col("price")) + (dyn int: 1)] gives double',
    ),
    "filter of several conditions": (
        lambda g: g.input("orders").filter(pl.col("at", "price") > 0).send_to(g.output("out")),
        "gives bool, bool",
    ),
    "expression over rows": (
        lambda g: g.input("orders").map(hr.col("price").cum_sum()).send_to(g.output("out")),
        'col("price").cum_sum() looks beyond its row',
    ),
    "share of a total": (
        lambda g: (
            g.input("orders").map(hr.col("price") / hr.col("price").max()).send_to(g.output("out"))
        ),
        "looks beyond its row, but rows come in batches of any size: map takes",
    ),
    "filter over rows": (
        lambda g: (
            g.input("orders").filter(hr.col("at") == hr.col("at").max()).send_to(g.output("out"))
        ),
        "filter takes expressions of one row",
    ),
    "rows made by an expression": (
        lambda g: g.input("orders").map(hr.col("items").explode()).send_to(g.output("out")),
        "looks beyond its row",
    ),
    "flat_map of no list": (
        lambda g: g.input("orders").flat_map(hr.col("price")).send_to(g.output("out")),
        'flat_map makes rows of a list; col("price") is double; expected a list',
    ),
    "flat_map over rows": (
        lambda g: g.input("orders").flat_map(hr.col("items").explode()).send_to(g.output("out")),
        "looks beyond its row, but rows come in batches of any size: flat_map takes",
    ),
    "column made twice": (
        lambda g: g.input("orders").map("price", hr.col("price") * 2).send_to(g.output("out")),
        "columns ['price'] are made more than once; use .alias()",
    ),
    "column that cannot be stored": (
        lambda g: g.input("orders").map(hr.col("at").cast(pl.Int128)).send_to(g.output("out")),
        "column 'at' of type Int128 cannot be stored",
    ),
    "uses of no column": (
        lambda g: (
            g.input("orders")
            .map(name, uses=["custmer"], returns={"name": str})
            .send_to(g.output("out"))
        ),
        "uses: no column 'custmer'; did you mean 'customer'?",
    ),
    "key that is a list": (
        lambda g: g.input("orders").partition_by("items").aggregate(n=hr.agg.count()),
        "column 'items' is list<item: string>, which cannot be a key",
    ),
    "key dropped by expressions": (
        lambda g: (
            g.input("orders")
            .partition_by("customer")
            .map("price", name="narrow")
            .aggregate(n=hr.agg.count())
        ),
        "needs the key ['customer'], but operator 'narrow' drops or changes a column of it",
    ),
    "key changed by an expression": (
        lambda g: (
            g.input("orders")
            .partition_by("customer")
            .map(hr.col("customer").str.to_lowercase(), name="lower")
            .window(hr.tumbling("1h"), n=hr.agg.count())
        ),
        "operator 'lower' drops or changes a column of it; keep it, or partition_by again",
    ),
    "key dropped by a function": (
        lambda g: (
            g.input("orders")
            .partition_by("customer")
            .map(name, returns={"name": str}, name="named")
            .process(Silent, {"seen": int})
        ),
        "operator 'named' drops or changes a column of it",
    ),
    "merge of other columns": (
        lambda g: g.input("prices").merge(g.input("orders")).send_to(g.output("out")),
        "streams 'prices' and 'orders' have other columns: 'price' is double, expected int64; 'at'"
        " is not expected",
    ),
    "window without event time": (
        lambda g: (
            g.input("untimed").partition_by("customer").window(hr.tumbling("1h"), n=hr.agg.count())
        ),
        "window needs event time, which input 'untimed' has not: give g.input('untimed', time=",
    ),
    "totals at times without event time": (
        lambda g: (
            g.input("orders")
            .merge(g.input("untimed"))
            .partition_by("customer")
            .aggregate(every="1h", n=hr.agg.count())
        ),
        "aggregate(every=...) needs event time, which input 'untimed' has not",
    ),
    "window keyed by other windows": (
        lambda g: (
            g.input("orders")
            .partition_by("customer")
            .window(hr.tumbling("2h"), n=hr.agg.count())
            .partition_by("window_start")
            .window(hr.tumbling("1h"), m=hr.agg.count())
        ),
        "key columns ['window_start'] have the names of columns it makes: rename them with map",
    ),
    "output with other columns": (
        lambda g: g.input("orders").map("price", "at").send_to(g.output("prices")),
        "stream 'prices' exists with other columns: 'price' is double, expected int64; 'at' is not",
    ),
    "output with other partitions": (
        lambda g: g.input("orders").send_to(g.output("untimed", partitions=5)),
        "stream 'untimed' exists with 2 partitions; found partitions=5: leave it out",
    ),
    "process that emits nothing": (
        lambda g: g.input("orders").process(Silent, name="mute").send_to(g.output("out")),
        "operator 'mute' declares no columns; give it returns=",
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_wrong_plan_is_told(case: str) -> None:
    function, message = STEPS[case]
    found = mistakes(function)
    assert len(found) == 1, found
    assert message in found[0]
    assert f"{Path(__file__).name}:" in found[0]


def test_two_senders_of_one_output_send_the_same_columns() -> None:
    def build(g: hr.Graph) -> None:
        orders = g.input("orders")
        orders.map("price").send_to(g.output("out"))
        orders.map("at").send_to(g.output("out"))

    assert (
        "'orders.map.to_out' sends other columns to 'out': 'price' is missing" in mistakes(build)[0]
    )


def test_a_stage_cannot_wait_for_itself() -> None:
    def build(g: hr.Graph) -> None:
        keyed = g.input("orders").partition_by("customer")
        kept = keyed.filter(hr.col("price") > 0).partition_by("customer", name="again")
        kept.merge(keyed, name="both").send_to(g.output("out"))

    found = mistakes(build)
    assert found[0].startswith("operator 'both'")
    assert "before and after a partition_by of the same stage" in found[0]


def test_one_stage_is_timed_as_a_whole_or_not_at_all() -> None:
    def build(g: hr.Graph) -> None:
        keyed = g.input("orders").partition_by("customer")
        keyed.window(hr.tumbling("1h"), n=hr.agg.count())
        keyed.merge(g.input("untimed").partition_by("customer")).aggregate(n=hr.agg.count())

    found = mistakes(build)
    assert found[0].startswith("operator 'untimed'")
    assert "a later stage needs event time, which it has not" in found[0]


def test_a_broken_operator_is_told_once_and_those_after_it_are_passed_over() -> None:
    def build(g: hr.Graph) -> None:
        broken = g.input("orders").map("nothing").filter(hr.col("more") > 0)
        broken.partition_by("x").aggregate(n=hr.agg.count())

    assert len(mistakes(build)) == 1
