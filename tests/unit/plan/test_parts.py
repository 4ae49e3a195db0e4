"""A plan falls into parts where rows go through the bus, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import (
    GROUP,
    MARK,
    TIME,
    WATERMARK,
    JobPlan,
    StreamInfo,
    explain,
    internal_stream_name,
    mermaid,
    plan,
    plan_object,
    split_parts,
)

import headrace as hr
from headrace.errors import GraphError

ORDERS = pa.schema(
    [("at", pa.int64()), ("customer", pa.string()), ("price", pa.float64()), ("note", pa.string())]
)
INFO = {"orders": StreamInfo(ORDERS, 3, "at"), "returns": StreamInfo(ORDERS, 2, "at")}
N: dict[str, Any] = {"n": hr.agg.count()}


def made(function: Callable[[hr.Graph], Any], streams: Any = None, **options: Any) -> JobPlan:
    return plan(hr.job("job")(function).build(), streams or INFO, **options)


def chain(g: hr.Graph) -> None:
    by = g.input("orders").partition_by("customer", via="bus", name="by")
    counts = by.window(hr.tumbling("1m"), **N)
    counts.partition_by("n").aggregate(m=hr.agg.count()).send_to(g.output("sizes"))


def test_without_the_bus_a_plan_is_its_only_part() -> None:
    def job(g: hr.Graph) -> None:
        g.input("orders").partition_by("customer").aggregate(**N)

    found = made(job)
    assert split_parts(found) == (found,)
    assert "internal stream" not in explain(found)
    assert "\npart " not in explain(found)


def test_what_is_joined_to_nothing_shares_epochs_with_the_first_part() -> None:
    def apart(g: hr.Graph) -> None:
        g.input("orders").partition_by("customer").aggregate(**N)
        g.input("returns").partition_by("customer").aggregate(**N)

    def beside(g: hr.Graph) -> None:
        g.input("returns").partition_by("customer").aggregate(**N)
        chain(g)

    found = made(apart)
    assert split_parts(found) == (found,)
    first, second = split_parts(made(beside))
    assert [stage.name for stage in first.stages if not stage.keyed] == ["returns", "orders"]
    assert second.job == "job@by"


def test_stages_that_share_files_share_epochs() -> None:
    first, second = split_parts(made(chain, tasks=2))
    assert (first.job, second.job) == ("job", "job@by")
    assert [[s.name for s in part.stages] for part in (first, second)] == [
        ["orders"],
        ["by", "by.window.by_n"],
    ]
    assert [[stage.level for stage in part.stages] for part in (first, second)] == [[0], [0, 1]]
    assert set(first.fingerprint) == {"job", "orders", "job.by.exchange"}
    assert set(second.fingerprint) == {"job", "by", "by.window", "by.window.by_n.aggregate"}


def test_the_stream_has_a_partition_for_each_task_unless_it_is_there() -> None:
    (sent,) = made(chain, tasks=2).stages[0].sends
    assert (sent.stream, sent.partitions) == ("job.by.exchange", 2)
    there = {internal_stream_name("job", "by"): StreamInfo(sent.stream_schema, 8)}
    assert made(chain, INFO | there, tasks=2).stages[0].sends[0].partitions == 8


def test_all_columns_are_sent_for_rows_may_wait_for_other_code() -> None:
    (sent,) = made(chain).stages[0].sends
    assert sent.schema.names == [*ORDERS.names, TIME, WATERMARK]
    assert sent.stream_schema.names[-2:] == [GROUP, MARK]


def test_parts_come_after_those_that_feed_them() -> None:
    def job(g: hr.Graph) -> None:
        late = g.input("returns").partition_by("customer", via="bus", name="late")
        early = g.input("orders").partition_by("customer", name="early")
        counts = late.merge(early).window(hr.tumbling("1m"), **N)
        counts.partition_by("n", via="bus").aggregate(m=hr.agg.count())

    parts = split_parts(made(job))
    assert [part.job for part in parts] == ["job", "job@orders", "job@late.window.by_n"]
    middle = parts[1].stages
    assert [(stage.name, stage.level) for stage in middle] == [("orders", 0), ("late+early", 1)]
    assert [feed.operator for feed in parts[1].feeds] == ["late"]


@pytest.mark.parametrize("way", ["exchange", "bus"])
def test_parts_that_would_wait_for_each_other_are_refused(way: str) -> None:
    """What the bus parts must not meet again in the epoch of either."""

    def job(g: hr.Graph) -> None:
        orders = g.input("orders")
        ahead = orders.partition_by("customer", via="bus", name="ahead")
        back = ahead.map("customer", "price", "at").partition_by("price", via=way, name="back")
        direct = orders.map("customer", "price", "at").partition_by("price", name="direct")
        back.merge(direct).aggregate(**N)

    with pytest.raises(GraphError, match=r"operator 'ahead'.*meets what comes after it again"):
        made(job)


def test_a_wrong_way_is_told_with_the_right_ones() -> None:
    def job(g: hr.Graph) -> None:
        g.input("orders").partition_by("customer", via="kafka").aggregate(**N)

    with pytest.raises(
        GraphError, match="via is 'kafka'; expected 'exchange', 'bus' or an address"
    ):
        made(job)


def test_a_name_that_no_stream_can_have_is_told() -> None:
    def job(g: hr.Graph) -> None:
        g.input("orders").partition_by("customer", via="bus", name="x" * 140).filter(
            hr.col("price") > 0, name="f"
        ).send_to(g.output("out"), name="end")

    with pytest.raises(GraphError, match="too long a name; give name="):
        plan(hr.job("j" * 60)(job).build(), INFO)


def test_parts_are_told_by_explain() -> None:
    found = made(chain, tasks=2)
    text = explain(found)
    assert "4 tasks" not in text.splitlines()[0]
    assert "2 parts with epochs of their own" in text.splitlines()[0]
    assert text.count("through internal stream job.by.exchange, 2 partitions") == 2
    assert "part job@by\n\nlevel 0\n  stage 1" in text
    assert "through job.by.exchange" in mermaid(found)
    stages = plan_object(found)["stages"]
    assert [stage["part"] for stage in stages] == ["job", "job@by", "job@by"]
    assert stages[0]["sends"][0]["through"] == "job.by.exchange"
