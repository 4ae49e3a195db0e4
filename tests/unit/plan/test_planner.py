"""A graph becomes stages, levels and tasks that read and send only what is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from tests.support.plans import TIME, WATERMARK, JobPlan, Process, Select, Stage, StreamInfo, plan
from tests.unit.plan.radar import FLIGHTS, MOMENT, STREAMS, radar

import headrace as hr
from headrace.errors import InvalidInputError

ORDERS = pa.schema(
    [("at", pa.int64()), ("customer", pa.string()), ("price", pa.float64()), ("note", pa.string())]
)
INFO = {"orders": StreamInfo(ORDERS, 3, "at"), "untimed": StreamInfo(ORDERS, 2)}
HIDDEN = [TIME, WATERMARK]


def made(function: Callable[[hr.Graph], Any], streams: Any = None, **options: Any) -> JobPlan:
    return plan(hr.job("job")(function).build(), streams or INFO, **options)


def orders(g: hr.Graph, stream: str = "orders") -> hr.Stream:
    return g.input(stream)


class Mine:
    def process(self, message: Any, context: hr.Context) -> None: ...


@pytest.fixture(scope="module")
def whole() -> JobPlan:
    return plan(radar.build(), STREAMS, tasks=8)


def test_stages_are_cut_at_partition_by_and_ordered_by_level(whole: JobPlan) -> None:
    levels = [[stage.name for stage in stages] for stages in whole.levels]
    assert levels == [
        ["flights"],
        ["flights.by_origin_dest", "flights.by_carrier"],
        ["hourly.by_window_start"],
    ]
    assert [stage.index for stage in whole.stages] == [0, 1, 2, 3]
    operators = [[operator.name for operator in stage.operators] for stage in whole.stages]
    assert operators[0] == ["flights", "flights.filter"]
    assert operators[1] == ["hourly", "hourly.to_routes"]


def test_source_stages_have_a_task_a_partition_and_keyed_ones_those_asked_for(
    whole: JobPlan,
) -> None:
    assert [stage.tasks for stage in whole.stages] == [4, 8, 8, 8]
    assert [stage.keyed for stage in whole.stages] == [False, True, True, True]
    default = plan(radar.build(), STREAMS, key_groups=3)
    assert [stage.tasks for stage in default.stages] == [4, 3, 3, 3]


def test_only_used_columns_are_read_and_sent(whole: JobPlan) -> None:
    source, routes, carriers, _ = whole.stages
    assert source.inputs[0].columns == ("origin", "dest", "carrier", "dep_delay")
    assert source.inputs[0].schema == FLIGHTS
    by_route, by_carrier = source.sends
    assert by_route.schema.names == ["origin", "dest", "dep_delay", *HIDDEN]
    assert by_carrier.schema.names == ["carrier", *HIDDEN]
    assert routes.receives == (by_route,)
    assert carriers.receives == (by_carrier,)
    sent_on = routes.sends[0].schema.names
    assert sent_on == ["origin", "dest", "window_start", "mean", *HIDDEN]


def test_exchanges_say_what_they_take_and_how_far_behind_they_are(whole: JobPlan) -> None:
    by_window = whole.stages[1].sends[0]
    assert (by_window.source_stage, by_window.target_stage) == (1, 3)
    assert by_window.keys == ("window_start",)
    assert by_window.upstream == "hourly"
    assert by_window.delay_ms == 300_000
    assert [exchange.delay_ms for exchange in whole.stages[0].sends] == [0, 0]


def test_windows_give_key_bounds_and_aggregates(whole: JobPlan) -> None:
    assert whole.stages[1].schemas["hourly"] == pa.schema(
        [
            ("origin", pa.string()),
            ("dest", pa.string()),
            ("window_start", MOMENT),
            ("window_end", MOMENT),
            ("flights", pa.int64()),
            ("mean", pa.float64()),
            ("worst", pa.float64()),
        ]
    )
    assert whole.stages[2].schemas["flights.by_carrier.aggregate"].names == [
        "carrier",
        "at",
        "flights",
    ]
    assert whole.stages[3].schemas["worst"].names == ["window_start", "window_end", "top"]


def test_outputs_are_placed_by_key_and_as_wide_as_asked_for(whole: JobPlan) -> None:
    outputs = [output for stage in whole.stages for output in stage.outputs]
    assert [(o.stream, o.partitions, o.keys, o.time) for o in outputs] == [
        ("routes", 8, ("origin", "dest"), "window_start"),
        ("carriers", 8, ("carrier",), "at"),
        ("worst", 1, ("window_start",), "window_start"),
    ]


def test_an_existing_output_keeps_its_partitions_and_order_of_columns() -> None:
    turned = pa.schema(list(ORDERS)[::-1])
    existing = INFO | {"copy": StreamInfo(turned, 7, "at")}
    result = made(lambda g: orders(g).send_to(g.output("copy")), existing)
    output = result.stages[0].outputs[0]
    assert (output.partitions, output.schema, output.time) == (7, turned, "at")


def test_a_plan_travels_to_a_worker(whole: JobPlan) -> None:
    there = cloudpickle.loads(cloudpickle.dumps(whole))
    assert there == whole
    assert there.stages[1].operators[0].aggregates[1][1].type == pa.float64()


def test_functions_get_all_columns_unless_they_say_what_they_use() -> None:
    def keep(message: Any) -> bool:
        return bool(message)

    def function(g: hr.Graph, uses: Any) -> None:
        kept = orders(g).filter(keep, uses=uses).partition_by("customer")
        kept.aggregate(spent=hr.agg.sum("price")).send_to(g.output("out"))

    everything = made(lambda g: function(g, None)).stages[0]
    assert everything.inputs[0].columns == ("at", "customer", "price", "note")
    assert everything.sends[0].schema.names == ["customer", "price"]
    some = made(lambda g: function(g, ["note"])).stages[0]
    assert some.inputs[0].columns == ("customer", "price", "note")


def test_expressions_that_nobody_uses_are_left_out() -> None:
    def function(g: hr.Graph) -> None:
        wide = orders(g).map("customer", hr.col("price") * 2, hr.col("note").str.len_chars())
        wide.partition_by("customer").aggregate(spent=hr.agg.sum("price")).send_to(g.output("out"))

    source = made(function).stages[0]
    select = source.operators[1]
    assert isinstance(select, Select)
    assert len(select.expressions) == len(select.text) == 2
    assert source.schemas["orders.map"].names == ["customer", "price"]
    assert source.inputs[0].columns == ("customer", "price")


def test_expressions_over_many_columns_read_what_they_select() -> None:
    def function(g: hr.Graph) -> None:
        flat = orders(g).map(pl.all(), pl.all_horizontal(pl.all().is_null()).alias("empty"))
        flat.map("customer", "empty").send_to(g.output("out"))
        orders(g).map(pl.all()).map("note").send_to(g.output("notes"))

    first, second = made(function).stages
    assert first.inputs[0].columns == tuple(ORDERS.names)
    assert second.inputs[0].columns == ("note",)


def test_constants_alone_make_as_many_rows_as_there_are_messages() -> None:
    def function(g: hr.Graph) -> None:
        orders(g).map(hr.lit(1).alias("one"), hr.lit("x").alias("tag")).send_to(g.output("out"))

    stage = made(function).stages[0]
    select = stage.operators[1]
    assert isinstance(select, Select)
    assert stage.inputs[0].columns == ("at",)
    frame = pl.DataFrame({"at": [1, 2, 3]}).select(select.expressions)
    assert frame.rows() == [(1, "x")] * 3
    assert pl.DataFrame({"at": []}).select(select.expressions).height == 0


def test_hidden_columns_travel_only_where_a_later_stage_needs_them() -> None:
    def function(g: hr.Graph) -> None:
        totals = orders(g).partition_by("customer").aggregate(spent=hr.agg.sum("price"))
        totals.send_to(g.output("totals"))
        totals.partition_by("spent").window(hr.tumbling("1h"), n=hr.agg.count())

    stages = made(function).stages
    assert [stage.timed for stage in stages] == [True, True, True]
    plain = made(lambda g: orders(g).partition_by("customer").aggregate(n=hr.agg.count())).stages
    assert [stage.timed for stage in plain] == [False, False]
    assert plain[0].inputs[0].time is None
    assert plain[0].sends[0].schema.names == ["customer"]


@pytest.mark.parametrize(("stream", "timed"), [("orders", True), ("untimed", False)])
def test_process_stages_are_timed_when_their_input_is(stream: str, timed: bool) -> None:
    def function(g: hr.Graph) -> None:
        orders(g, stream).partition_by("customer").process(Mine, {"seen": int}, uses=["price"])

    source, keyed = made(function).stages
    assert keyed.timed is timed
    assert source.sends[0].schema.names == ["customer", "price", *(HIDDEN if timed else [])]
    assert [spec.name for spec in keyed.stores] == ["seen"]
    assert isinstance(keyed.operators[0], Process)


def test_lag_is_the_greatest_sum_of_graces_along_any_path() -> None:
    def function(g: hr.Graph) -> None:
        source = orders(g).partition_by("customer")
        first = source.window(
            hr.tumbling("1m", allowed_lateness="10s"), name="first", n=hr.agg.count()
        )
        second = first.window(
            hr.tumbling("1m", allowed_lateness="20s"), name="second", n=hr.agg.count()
        )
        side = source.window(
            hr.tumbling("1m", allowed_lateness="5s"), name="side", n=hr.agg.count()
        )
        both = second.merge(side, name="both")
        both.partition_by("n").aggregate(every="1h", m=hr.agg.count(), name="last")

    stages = made(function).stages
    assert stages[1].delays == {"first": 0, "second": 10_000, "side": 0, "both": 30_000}
    assert stages[1].sends[0].delay_ms == 30_000
    assert stages[2].delays == {"last": 0}


def test_merged_streams_share_a_stage_whichever_way_they_came() -> None:
    def function(g: hr.Graph) -> None:
        a = orders(g).partition_by("customer")
        b = g.input("untimed").partition_by("customer")
        a.merge(b).aggregate(n=hr.agg.count(), name="total").send_to(g.output("out"))

    stages = made(function).stages
    assert [stage.level for stage in stages] == [0, 0, 1]
    keyed = stages[2]
    assert keyed.name == "orders.by_customer+untimed.by_customer"
    assert [exchange.source_stage for exchange in keyed.receives] == [0, 1]


def test_merged_inputs_are_one_source_stage_as_wide_as_the_widest() -> None:
    def function(g: hr.Graph) -> None:
        g.input("orders").merge(g.input("untimed")).send_to(g.output("all"))

    stages = made(function).stages
    assert [(stage.tasks, len(stage.inputs)) for stage in stages] == [(3, 2)]
    assert stages[0].outputs[0].keys == ()


def test_a_repartition_may_follow_another_at_once() -> None:
    def function(g: hr.Graph) -> None:
        again = orders(g).partition_by("customer").partition_by("note")
        again.aggregate(n=hr.agg.count())

    first, between, last = made(function).stages
    assert between.operators == ()
    assert between.sends[0].upstream == between.receives[0].operator == "orders.by_customer"
    assert first.sends[0].schema.names == ["note"]
    assert last.receives[0].schema.names == ["note"]


def test_readers_of_one_repartition_share_its_rows() -> None:
    def function(g: hr.Graph) -> None:
        keyed = orders(g).partition_by("customer")
        keyed.aggregate(spent=hr.agg.sum("price")).send_to(g.output("a"))
        keyed.aggregate(notes=hr.agg.count("note")).send_to(g.output("b"))

    stages = made(function).stages
    assert len(stages) == 2
    assert stages[0].sends[0].schema.names == ["customer", "price", "note"]


def test_an_input_with_a_schema_is_planned_without_its_stream() -> None:
    def function(g: hr.Graph) -> None:
        g.input("new", time="at", schema=ORDERS).send_to(g.output("out"))

    stage: Stage = made(function, {"other": INFO["orders"]}).stages[0]
    assert (stage.tasks, stage.inputs[0].partitions, stage.outputs[0].time) == (1, 1, "at")


def test_a_schema_narrows_what_an_input_shows() -> None:
    def function(g: hr.Graph) -> None:
        g.input("orders", schema={"price": float}).send_to(g.output("out"))

    stage = made(function).stages[0]
    assert stage.inputs[0].columns == ("price",)
    assert stage.outputs[0].schema.names == ["price"]


def test_key_of_outputs_is_dropped_with_its_columns() -> None:
    def function(g: hr.Graph) -> None:
        orders(g).partition_by("customer").map("price").send_to(g.output("out"))

    assert made(function).stages[1].outputs[0].keys == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_groups": 0}, "found 0 key groups, expected 1 to 65536"),
        ({"tasks": 0}, "found 0 tasks, expected 1 to 512"),
        ({"tasks": 9, "key_groups": 8}, "found 9 tasks, expected 1 to 8, the key groups"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan(radar.build(), STREAMS, **options)
