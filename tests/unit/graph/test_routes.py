"""``split``, ``side``, ``union`` and ``deduplicate`` as data, and every mistake in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import polars as pl
import pyarrow as pa
import pytest
from tests.support.plans import (
    Deduplicate,
    FlatMapMessages,
    JobGraph,
    Merge,
    Operator,
    Port,
    Process,
    Split,
    StoreSpec,
    Union,
    changes,
    explain,
    mermaid,
    plan,
)

import headrace as hr

SCHEMA: dict[str, Any] = {"at": int, "customer": str, "order": int, "tags": list[str]}
Build = Callable[[hr.Graph], Any]


class Late(TypedDict):
    customer: str


class Mine:
    def process(self, message: Any, context: hr.Context) -> None: ...


def orders(g: hr.Graph, time: str | None = "at") -> hr.Stream:
    return g.input("orders", time=time, schema=SCHEMA)


def keyed(g: hr.Graph) -> hr.Stream:
    return orders(g).partition_by("customer")


def build(function: Build) -> JobGraph:
    return hr.job("job")(function).build()


def operators(function: Build) -> dict[str, Operator]:
    return {operator.name: operator for operator in build(function).operators}


def problems(function: Build) -> tuple[str, ...]:
    """All mistakes of building, or else of planning."""
    with pytest.raises(hr.GraphError) as caught:
        plan(build(function), {})
    return caught.value.problems


def even(message: Any) -> bool:
    return bool(message.order % 2 == 0)


def kept(message: Any) -> Late:
    return {"customer": message.customer}


def test_a_split_has_a_port_for_each_branch_and_one_for_the_rest_when_asked() -> None:
    def function(g: hr.Graph) -> None:
        parts = orders(g).split(odd=hr.col("order") % 2 == 1, even=even, uses=["order"])
        assert list(parts) == ["odd", "even"]
        assert len(parts) == 2
        assert "default" in parts
        assert "other" not in parts
        parts["odd"].send_to(g.output("odd"))
        parts["even"].merge(parts["default"], parts["odd"]).send_to(g.output("even"))
        assert parts["default"] is parts["default"]

    found = operators(function)
    split = found["orders.split"]
    assert isinstance(split, Split)
    assert [branch.name for branch in split.branches] == ["odd", "even"]
    assert split.uses == ("order",)
    for name in ("odd", "even", "default"):
        port = found[f"orders.split.{name}"]
        assert port == Port(f"orders.split.{name}", ("orders.split",), port=name)
        assert port.site.line


def test_state_behind_a_branch_is_named_by_the_branch() -> None:
    def function(g: hr.Graph) -> None:
        parts = keyed(g).filter(hr.col("order") > 0).split(odd=hr.col("order") % 2 == 1)
        for name in ("odd", "default"):
            parts[name].aggregate(n=hr.agg.count())

    names = [name for name in operators(function) if name.endswith("aggregate")]
    assert [f"orders.by_customer.{branch}.aggregate" for branch in ("odd", "default")] == names


def test_sides_are_ports_with_columns_of_their_own() -> None:
    def function(g: hr.Graph) -> None:
        many = orders(g).flat_map(lambda m: [m], returns={"order": int}, sides={"late": Late})
        many.send_to(g.output("on"))
        many.side("late").send_to(g.output("late"))
        done = keyed(g).process(Mine, sides={"done": {"order": int}}, name="mine")
        done.side("done").process(Mine)

    found = operators(function)
    late = pa.schema([("customer", pa.string())])
    many, mine = found["orders.flat_map"], found["mine"]
    assert isinstance(many, FlatMapMessages)
    assert (("late", late),) == many.sides
    assert isinstance(mine, Process)
    assert [name for name, _ in mine.sides] == ["done"]
    port = Port("orders.flat_map.late", ("orders.flat_map",), port="late", returns=late)
    assert port == found["orders.flat_map.late"]
    assert "mine.done.process" in found


def test_a_union_is_a_merge_of_other_columns() -> None:
    def function(g: hr.Graph) -> None:
        orders(g).union(orders(g).map("at"), name="both").send_to(g.output("out"))

    both = operators(function)["both"]
    assert Union("both", ("orders", "orders-2.map")) == both
    assert isinstance(both, Merge)


def test_ids_begin_with_the_key() -> None:
    def function(g: hr.Graph) -> None:
        keyed(g).deduplicate("order", "customer", within="1h").deduplicate(ttl="1d", name="b")
        keyed(g).deduplicate(name="c").send_to(g.output("out"))

    with pytest.raises(hr.GraphError, match=r"operator 'b' .*nothing reads this stream"):
        build(function)

    def good(g: hr.Graph) -> None:
        first = keyed(g).deduplicate("order", "customer", within="1h")
        first.deduplicate(ttl="1d", name="b").deduplicate(name="c").send_to(g.output("out"))

    found = operators(good)
    name = "orders.by_customer.deduplicate"
    assert found[name] == Deduplicate(
        name,
        ("orders.by_customer",),
        columns=("customer", "order"),
        within_ms=3_600_000,
        store=StoreSpec(name, "columnar", ttl_ms=3_600_000),
    )
    store = StoreSpec("b", "columnar", ttl_ms=86_400_000)
    assert found["b"] == Deduplicate("b", (name,), columns=("customer",), store=store)
    assert found["c"] == Deduplicate(
        "c", ("b",), columns=("customer",), store=StoreSpec("c", "columnar")
    )


def wrong_split(**arguments: Any) -> Build:
    def function(g: hr.Graph) -> None:
        parts = orders(g).split(**arguments)
        for name in parts:
            parts[name].send_to(g.output(name))

    return function


def sent(make: Callable[[hr.Graph], hr.Stream]) -> Build:
    return lambda g: make(g).send_to(g.output("out"))


WRONG: dict[str, tuple[Build, str]] = {
    "no branch": (wrong_split(), "split has no branches; add one such as cheap="),
    "a branch named default": (
        wrong_split(default=hr.col("order") > 1),
        "branch 'default' has the rows that no other takes: rename it",
    ),
    "a branch by a number": (
        wrong_split(a=7),
        "branch 'a' takes an expression or a function; found 7 (int)",
    ),
    "a function that forgets to return": (
        wrong_split(a=lambda message: None),
        "branch 'a': function <lambda> never returns a value",
    ),
    "a function of two arguments": (
        wrong_split(a=lambda message, other: True),
        "branch 'a': function <lambda> takes (message, other)",
    ),
    "uses for expressions": (
        wrong_split(a=hr.col("order") > 1, uses=["order"]),
        "uses= is for functions; the columns of expressions are known",
    ),
    "a column that functions cannot use": (
        wrong_split(a=even, uses=["ordr"]),
        "uses: no column 'ordr'; did you mean 'order'?",
    ),
    "a condition that is none": (
        wrong_split(a=hr.col("order")),
        'split needs one true or false; col("order") gives int64',
    ),
    "a condition beyond its row": (
        wrong_split(a=hr.col("order") > hr.col("order").mean()),
        "looks beyond its row",
    ),
    "a condition on no column": (
        wrong_split(a=hr.col("ordr") > 1),
        "no column 'ordr'; did you mean 'order'?",
    ),
    "a branch that nobody reads": (
        lambda g: orders(g).split(a=hr.col("order") > 1)["default"].send_to(g.output("out")),
        "operator 'orders.split.a'",
    ),
    "a branch that is not there": (
        lambda g: orders(g).split(a=hr.col("order") > 1)["b"].send_to(g.output("out")),
        "operator 'orders.split' (FILE): no branch 'b'; its branches are ['a', 'default']",
    ),
    "a side that is not there": (
        sent(lambda g: orders(g).map(kept).side("late")),
        "operator 'orders.map' (FILE): has no side 'late'; it declares none: add it to sides",
    ),
    "sides of an expression": (
        sent(lambda g: orders(g).map("order", sides={"late": Late})),
        "sides= is for functions",
    ),
    "sides that are no dict": (
        sent(lambda g: orders(g).map(kept, sides=Late)),  # type: ignore[arg-type]
        'sides= takes a dict such as {"late": Late}; found',
    ),
    "a side without columns": (
        sent(lambda g: orders(g).map(kept, sides={"late": {}})),
        "side 'late' has no columns",
    ),
    "a side of no record": (
        sent(lambda g: orders(g).map(kept, sides={"late": int})),
        "side 'late': int describes no record",
    ),
    "a side that cannot be a name": (
        sent(lambda g: orders(g).map(kept, sides={"late ones": Late})),
        "side 'late ones': 'late ones' cannot name a side",
    ),
    "a side that nobody reads": (
        sent(lambda g: orders(g).map(kept, sides={"late": Late})),
        "operator 'orders.map.late' (FILE): nothing reads this stream",
    ),
    "a map of which only the side is read": (
        sent(lambda g: orders(g).map(kept, sides={"late": Late}).side("late")),
        "operator 'orders.map' (FILE): nothing reads this stream",
    ),
    "a union of nothing": (
        sent(lambda g: orders(g).union()),
        "union takes at least one other stream",
    ),
    "a union of keyed and unkeyed": (
        sent(lambda g: keyed(g).union(orders(g))),
        "partition both by the same columns",
    ),
    "types that no type holds": (
        sent(lambda g: orders(g).union(orders(g).map(hr.col("order").cast(str)))),
        "column 'order' is int64 in 'orders', but string in 'orders-2.map', and no type holds both",
    ),
    "keys that differ by their type": (
        sent(
            lambda g: (
                orders(g)
                .map(hr.col("order").cast(pl.Int32))
                .partition_by("order")
                .union(orders(g).map(hr.col("order").cast(float)).partition_by("order"))
            )
        ),
        "key column 'order' is int32 in",
    ),
    "a merge of other columns": (
        sent(lambda g: orders(g).merge(orders(g).map("at"))),
        "union takes streams of different columns",
    ),
    "ids without a key": (
        sent(lambda g: orders(g).deduplicate("order")),
        "deduplicate keeps ids for each key: put partition_by('order') before it",
    ),
    "ids without the key in them": (
        sent(lambda g: keyed(g).deduplicate("order")),
        "would not see copies under another key: partition by columns of the id, or add "
        "['customer'] to it",
    ),
    "an id twice": (
        sent(lambda g: keyed(g).deduplicate("customer", "customer")),
        "deduplicate names a column twice in ['customer', 'customer']",
    ),
    "an id that is no name": (
        sent(lambda g: keyed(g).deduplicate(7)),  # type: ignore[arg-type]
        "deduplicate takes names of columns; found [7]",
    ),
    "an id that is not there": (
        sent(lambda g: keyed(g).deduplicate("customer", "ordr")),
        "no column 'ordr'; did you mean 'order'?",
    ),
    "an id of lists": (
        sent(lambda g: keyed(g).deduplicate("customer", "tags")),
        "column 'tags' is list<item: string>, which cannot be a key",
    ),
    "a span that is none": (
        sent(lambda g: keyed(g).deduplicate(within="0s")),
        "within is '0s'; expected more than zero",
    ),
    "two clocks": (
        sent(lambda g: keyed(g).deduplicate(within="1s", ttl="1s")),
        "within= counts event time and ttl= the wall clock: give one of them",
    ),
    "within without event time": (
        sent(lambda g: orders(g, None).partition_by("customer").deduplicate(within="1s")),
        "within= counts event time, which input 'orders' has not: give g.input('orders', time=",
    ),
    "a key that is gone": (
        sent(lambda g: keyed(g).map("order", "at").deduplicate()),
        "needs the key ['customer'], but operator 'orders.by_customer.map' drops or changes",
    ),
    "a store of the same name": (
        sent(lambda g: keyed(g).deduplicate(name="a").process(Mine, {"a": int}, returns=Late)),
        "store 'a' is already used by operator 'a'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_with_operator_and_line(case: str) -> None:
    function, said = WRONG[case]
    found = [text for text in problems(function) if said.split(" (FILE)")[0] in text]
    assert len(found) == 1, problems(function)
    assert Path(__file__).name in found[0]
    assert said.split("(FILE)")[-1] in found[0]


def routed(
    within: str | None = "1h", columns: tuple[str, ...] = (), *, ttl: str | None = None
) -> JobGraph:
    def function(g: hr.Graph) -> None:
        parts = orders(g).split(odd=hr.col("order") % 2 == 1, even=even)
        made = parts["even"].map(kept, sides={"late": Late})
        made.side("late").union(parts["odd"], made).send_to(g.output("late"))
        by = parts["default"].partition_by("customer", name="by")
        by.deduplicate(*columns, within=within, name="first", ttl=ttl).send_to(g.output("out"))

    return build(function)


def test_explain_tells_branches_sides_and_how_long_ids_are_kept() -> None:
    text = explain(plan(routed(), {}))
    for part in (
        "split, each row to the first that is true",
        "odd: ",
        "even: with even",
        "branch odd of orders.split",
        "side late of orders.split.even.map",
        "union of orders.split.even.map.late, orders.split.odd, orders.split.even.map",
        "first row of each (customer) within 1h of event time",
        "store first (columnar)",
    ):
        assert part in text
    assert "ids kept forever" in explain(plan(routed(None), {}))
    assert "store first (columnar, 2d to live)" in explain(plan(routed(None, ttl="2d"), {}))


def test_the_diagram_draws_each_branch_and_side() -> None:
    drawn = mermaid(plan(routed(), {}))
    assert drawn.count("branch odd of orders.split") == 1
    assert drawn.count("side late of orders.split.even.map") == 1
    assert "None" not in drawn


def test_old_ids_fit_another_span_but_no_other_id_or_clock() -> None:
    def marks(*arguments: Any, ttl: str | None = None) -> dict[str, str]:
        return plan(routed(*arguments, ttl=ttl), {}).fingerprint

    kept = marks("1h")
    assert changes(kept, marks("2d")) == []
    assert changes(marks(None, ttl="1h"), marks(None, ttl="2h")) == []
    [by] = changes(kept, marks("1h", ("customer", "order")))
    assert by.startswith("deduplicate 'first': by was customer: string, is now customer: string, o")
    clocks = changes(kept, marks(None, ttl="1h"))
    assert clocks[0].startswith("deduplicate 'first': kept by was event time, is now wall clock")
    assert any("kept by was event time, is now nothing" in s for s in changes(kept, marks(None)))
