"""Old state fits a graph whose stateless parts changed; any other change is told, with advice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import StreamInfo, changes, plan
from tests.unit.plan.radar import STREAMS, radar

import headrace as hr

ORDERS = pa.schema(
    [("at", pa.int64()), ("customer", pa.string()), ("shop", pa.string()), ("price", pa.float64())]
)
Build = Callable[[hr.Graph], Any]


def marks(function: Build, partitions: int = 2, key_groups: int = 16) -> dict[str, str]:
    streams = {"orders": StreamInfo(ORDERS, partitions, "at")}
    graph = hr.job("job")(function).build()
    return plan(graph, streams, key_groups=key_groups).fingerprint


class Mine:
    def process(self, message: Any, context: hr.Context) -> None: ...


class Other(Mine): ...


def keyed(g: hr.Graph, *keys: str) -> hr.Stream:
    return g.input("orders").partition_by(*(keys or ("customer",)), name="keyed")


def before(g: hr.Graph) -> None:
    source = keyed(g)
    source.window(hr.tumbling("1h"), name="hourly", n=hr.agg.count())
    source.process(Mine, {"seen": int}, name="mine")


def test_the_same_graph_fits() -> None:
    assert changes(marks(before), marks(before)) == []
    same = plan(radar.build(), STREAMS).fingerprint
    assert changes(same, plan(radar.build(), STREAMS, tasks=7).fingerprint) == []


def test_stateless_changes_fit() -> None:
    def after(g: hr.Graph) -> None:
        kept = g.input("orders", out_of_orderness="1h").filter(hr.col("price") > 0)
        source = kept.partition_by("customer", name="keyed")
        hourly = source.window(hr.tumbling("1h"), name="hourly", n=hr.agg.count())
        hourly.map("n").send_to(g.output("counts"))
        source.process(Other, {"seen": int}, uses=["price"], name="mine")

    assert changes(marks(before), marks(after)) == []


def test_a_step_put_before_fits_even_under_derived_names() -> None:
    def plain(g: hr.Graph) -> None:
        g.input("orders").partition_by("customer").aggregate(n=hr.agg.count())

    def filtered(g: hr.Graph) -> None:
        kept = g.input("orders").filter(hr.col("price") > 0).partition_by("customer")
        kept.filter(hr.col("price") > 1).aggregate(n=hr.agg.count())

    assert changes(marks(plain), marks(filtered)) == []


def window(size: str = "1h", store: str = "rocksdb", keys: Any = (), **aggregates: Any) -> Build:
    def function(g: hr.Graph) -> None:
        kept = aggregates or {"n": hr.agg.count()}
        keyed(g, *keys).window(hr.tumbling(size), store=store, name="hourly", **kept)

    return function


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (window("2h"), "window 'hourly': size was 1h, is now 2h; change it back, or start over"),
        (window(store="memory"), "stores was hourly: Any (rocksdb), is now hourly: Any (memory)"),
        (window(keys=["shop"]), "key was customer: string, is now shop: string"),
        (window(n=hr.agg.count("price")), "aggregates was n = count(), is now n = count(price)"),
    ],
    ids=["size", "store", "key", "aggregates"],
)
def test_what_changed_is_told(after: Build, message: str) -> None:
    found = changes(marks(window()), marks(after))
    assert len(found) == 1, found
    assert message in found[0]
    assert found[0].endswith("or start over: headrace jobs reset JOB")


@pytest.mark.parametrize(
    "make",
    [
        hr.tumbling,
        functools.partial(hr.tumbling, late="update"),
        functools.partial(hr.tumbling, early="1m"),
        functools.partial(hr.hopping, every="5m"),
        hr.sliding,
        hr.session,
    ],
)
def test_grace_says_which_results_are_out(make: Any) -> None:
    """With less, those that wait for it would be lost; with more, some would come twice."""

    def build(grace: str) -> dict[str, str]:
        def function(g: hr.Graph) -> None:
            keyed(g).window(make("10m", allowed_lateness=grace), name="w", n=hr.agg.count())

        return marks(function)

    for old, new in (("5s", "1m"), ("1m", "5s")):
        [found] = changes(build(old), build(new))
        assert found.startswith(f"window 'w': grace was {old}, is now {new}; it says which results")
    unknown = {name: text.replace('"grace": "5s", ', "") for name, text in build("5s").items()}
    assert unknown != build("5s")
    assert changes(unknown, build("1m")) == []


def test_a_column_of_another_type_does_not_fit() -> None:
    def total(kind: Any) -> Build:
        def function(g: hr.Graph) -> None:
            source = g.input("orders").map("customer", hr.col("price").cast(kind))
            source.partition_by("customer").aggregate(name="total", t=hr.agg.sum("price"))

        return function

    found = changes(marks(total(float)), marks(total(int)))
    assert "aggregate 'total': types was double, is now int64" in found[0]


def test_a_renamed_operator_is_recognised() -> None:
    def after(g: hr.Graph) -> None:
        keyed(g).window(hr.tumbling("1h"), name="by_hour", n=hr.agg.count())

    assert changes(marks(window()), marks(after)) == [
        "window 'hourly' is now called 'by_hour', and state is kept by name: rename it back with "
        "name='hourly', or start over: headrace jobs reset JOB"
    ]


def test_gone_and_new_operators_are_told() -> None:
    def after(g: hr.Graph) -> None:
        keyed(g).aggregate(name="total", t=hr.agg.sum("price"))

    gone, new = changes(marks(window()), marks(after))
    assert gone.startswith("window 'hourly' is gone, but its state is not: give the operator")
    assert new.startswith("aggregate 'total' is new: it would begin in the middle of the inputs")


def test_the_partition_by_before_state_keeps_its_name() -> None:
    def after(g: hr.Graph) -> None:
        source = g.input("orders").partition_by("customer", name="renamed")
        source.window(hr.tumbling("1h"), name="hourly", n=hr.agg.count())

    found = changes(marks(window()), marks(after))
    assert "window 'hourly': stage was keyed, is now renamed; its state is kept by the" in found[0]


def test_partitions_are_never_fewer_and_key_groups_are_fixed() -> None:
    found = changes(marks(before), marks(before, partitions=1, key_groups=32))
    assert found == [
        "the job: key groups was 16, is now 32; they are fixed when a job is created: set them "
        "back, or start over: headrace jobs reset JOB",
        "input 'orders': partitions was 2, is now 1; offsets are kept by partition: use a stream "
        "with as many, or start over: headrace jobs reset JOB",
    ]
    assert changes(marks(before), marks(before, partitions=3)) == []
