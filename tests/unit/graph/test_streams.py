"""The fluent API makes plain frozen data, with stable names, and runs nothing."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import msgspec
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.graph.operators import (
    Filter,
    FilterMessages,
    FlatMapMessages,
    Input,
    JobGraph,
    MapBatches,
    MapMessages,
    Merge,
    Operator,
    PartitionBy,
    Process,
    RunningAggregate,
    Select,
    SendTo,
    StoreSpec,
    WindowAggregate,
)
from headrace.graph.windows import Tumbling


class Order(msgspec.Struct, frozen=True):
    customer: str
    price: float


ORDER = pa.schema([("customer", pa.string()), ("price", pa.float64())])


def build(function: Callable[[hr.Graph], None]) -> JobGraph:
    return hr.job("job")(function).build()


def names(function: Callable[[hr.Graph], None]) -> list[str]:
    return [operator.name for operator in build(function).operators]


def step(make: Callable[[hr.Stream], hr.Stream]) -> Operator:
    """The operator that one step makes."""

    def function(g: hr.Graph) -> None:
        make(g.input("orders")).send_to(g.output("out"))

    return build(function).operators[-2]


def kept(make: Callable[[hr.Stream], hr.Stream]) -> Operator:
    return step(lambda stream: make(stream.partition_by("customer")))


def to_order(message: Any) -> Order:
    return Order(message.customer, message.price)


def to_orders(message: Any) -> Iterable[Order]:
    return [to_order(message)]


class Mine:
    def open(self, context: hr.Context) -> None: ...

    def process(self, message: Any, context: hr.Context) -> None:
        context.emit(message)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None: ...

    def close(self) -> None: ...


def test_input_and_output_are_data() -> None:
    def function(g: hr.Graph) -> None:
        source = g.input("orders", time="at", out_of_orderness="1m", schema={"at": int}, name="in")
        source.send_to(g.output("copy", partitions=3), name="out")

    graph = build(function)
    assert graph.name == "job"
    assert graph.operators == (
        Input(
            "in",
            (),
            stream="orders",
            time="at",
            lateness_ms=60_000,
            schema=pa.schema([("at", pa.int64())]),
        ),
        SendTo("out", ("in",), stream="copy", partitions=3),
    )
    assert graph.operator("out") is graph.operators[1]


def test_each_operator_knows_the_users_line() -> None:
    def function(g: hr.Graph) -> None:
        g.input("orders").send_to(g.output("copy"))

    start = function.__code__.co_firstlineno
    sites = [operator.site for operator in build(function).operators]
    assert {site.line for site in sites} == {start + 1}
    assert {Path(site.file).name for site in sites} == {Path(__file__).name}


def test_expressions_and_functions_are_told_apart_by_type() -> None:
    by_expression = step(lambda s: s.map("customer", hr.col("price") * 2))
    assert isinstance(by_expression, Select)
    assert by_expression.text == ('col("customer")', '[(col("price")) * (dyn int: 2)]')
    by_function = step(lambda s: s.map(to_order, uses=["customer", "price"]))
    assert by_function == MapMessages(
        "orders.map", ("orders",), function=None, returns=ORDER, uses=("customer", "price")
    )
    assert isinstance(step(lambda s: s.filter(hr.col("price") > 0)), Filter)
    assert isinstance(step(lambda s: s.filter(lambda m: m.price > 0)), FilterMessages)
    flat = step(lambda s: s.flat_map(to_orders, uses="price"))
    assert flat == FlatMapMessages("orders.flat_map", ("orders",), returns=ORDER, uses=("price",))
    batches = step(lambda s: s.map_batches(lambda frame: frame, returns=ORDER))
    assert batches == MapBatches("orders.map_batches", ("orders",), returns=ORDER)
    conditional = step(lambda s: s.map(pl.when(pl.col("price") > 0).then(1).alias("sign")))
    assert isinstance(conditional, Select)


def test_keyed_operators_hold_their_settings() -> None:
    n, spent = hr.agg.count(), hr.agg.sum("price")
    name = "orders.by_customer"
    assert step(lambda s: s.partition_by("customer")) == PartitionBy(
        name, ("orders",), keys=("customer",)
    )
    assert kept(lambda s: s.aggregate(n=n, spent=spent)) == RunningAggregate(
        f"{name}.aggregate",
        (name,),
        aggregates=(("n", n), ("spent", spent)),
        store=StoreSpec(f"{name}.aggregate", "columnar"),
    )
    every = kept(lambda s: s.aggregate(every="1d", store="memory", n=n, name="daily"))
    assert every == RunningAggregate(
        "daily",
        (name,),
        aggregates=(("n", n),),
        every_ms=86_400_000,
        store=StoreSpec("daily", "memory"),
    )
    hour = datetime.timedelta(hours=1)
    assert kept(
        lambda s: s.window(hr.tumbling(hour, allowed_lateness="90s"), n=n)
    ) == WindowAggregate(
        f"{name}.window",
        (name,),
        window=Tumbling(3_600_000, grace_ms=90_000),
        aggregates=(("n", n),),
        store=StoreSpec(f"{name}.window", "columnar"),
    )


@pytest.mark.parametrize(
    "stores",
    [{"counts": int}, (hr.store("counts", int),), hr.store("counts", int)],
    ids=["dict", "tuple", "one"],
)
def test_stores_of_process_are_given_in_several_ways(stores: Any) -> None:
    operator = kept(lambda s: s.process(Mine, stores, returns=Order))
    assert operator == Process(
        "orders.by_customer.process",
        ("orders.by_customer",),
        returns=ORDER,
        stores=(StoreSpec("counts", "rocksdb", int),),
    )


def test_process_takes_a_factory() -> None:
    operator = kept(lambda s: s.process(lambda: Mine(), returns=Order))  # noqa: PLW0108
    assert isinstance(operator, Process)
    assert operator.factory is not None
    assert isinstance(operator.factory(), Mine)


def test_merge_reads_all_its_streams() -> None:
    def function(g: hr.Graph) -> None:
        parts = [g.input(name) for name in ("a", "b", "c")]
        parts[0].merge(*parts[1:]).send_to(g.output("all"))

    assert build(function).operators[3] == Merge("a.merge", ("a", "b", "c"))


def test_names_follow_the_path_and_clash_only_among_siblings() -> None:
    def function(g: hr.Graph) -> None:
        source = g.input("orders")
        for limit in (1, 2):
            source.filter(hr.col("price") > limit).map("price").send_to(g.output("out"))

    assert names(function) == [
        "orders",
        "orders.filter",
        "orders.filter.map",
        "orders.filter.map.to_out",
        "orders.filter-2",
        "orders.filter-2.map",
        "orders.filter-2.map.to_out",
    ]


def test_an_unrelated_branch_renames_nothing() -> None:
    def plain(g: hr.Graph) -> None:
        source = g.input("orders")
        source.partition_by("customer").aggregate(n=hr.agg.count())

    def branched(g: hr.Graph) -> None:
        source = g.input("orders")
        source.partition_by("price").window(hr.tumbling("1h"), n=hr.agg.count())
        source.filter(hr.col("price") > 0).send_to(g.output("big"))
        source.partition_by("customer").aggregate(n=hr.agg.count())

    assert set(names(plain)) <= set(names(branched))


def test_stateless_steps_in_between_rename_no_state() -> None:
    def function(g: hr.Graph) -> None:
        source = g.input("orders").filter(hr.col("price") > 0, name="big").map("customer")
        source.partition_by("customer").filter(hr.col("customer") != "x").aggregate(
            n=hr.agg.count()
        )

    assert names(function)[-1] == "orders.by_customer.aggregate"


def test_odd_columns_still_make_good_names() -> None:
    assert step(lambda s: s.partition_by("été", "a b")).name == "orders.by_-t-_a-b"


def test_building_twice_gives_equal_graphs_that_travel_to_a_worker() -> None:
    def function(g: hr.Graph) -> None:
        source = g.input("orders").map(to_order).partition_by("customer")
        source.window(hr.tumbling("1h"), n=hr.agg.count()).send_to(g.output("out"))

    graph = build(function)
    assert graph == build(function)
    there = cloudpickle.loads(cloudpickle.dumps(graph))
    assert there == graph
    assert there.operators[1].function is not None


def test_operators_cannot_be_changed() -> None:
    operator = step(lambda s: s.filter(hr.col("price") > 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        operator.name = "other"  # type: ignore[misc]


def test_annotations_kept_as_text_are_resolved_where_they_were_written() -> None:
    class Local(NamedTuple):
        total: int

    def to_local(message: Any) -> Local:
        return Local(message.price)

    def function(g: hr.Graph) -> None:
        _ = Local
        g.input("orders").map(to_local).send_to(g.output("out"))

    operator = build(function).operators[1]
    assert isinstance(operator, MapMessages)
    assert operator.returns == pa.schema([("total", pa.int64())])
