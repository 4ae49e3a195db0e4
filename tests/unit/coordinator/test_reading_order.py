"""Which inputs an epoch reads: tables first, then by priority, then those furthest behind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.epoch_ranges import bootstrap_ends, plan_ranges
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.plan.stages import (
    JobPlan,
)

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("v", pa.string())])
STREAMS = {name: StreamInfo(SCHEMA, 2) for name in "abc"}


def plan_of(**options: dict[str, Any]) -> JobPlan:
    @hr.job("j")
    def job(g: hr.Graph) -> None:
        first, *others = [g.input(name, **options.get(name, {})) for name in "abc"]
        rows = first.merge(*others)
        if "a" in options and "time" in options["a"]:
            rows = rows.partition_by("k").aggregate(every="1s", n=hr.agg.count())
        rows.send_to(g.output("out"))

    return plan(job.build(), STREAMS, key_groups=16, tasks=2)


def state_of(read: dict[str, list[int]], **more: Any) -> JobState:
    inputs = {
        name: {p: InputPosition(at, max_time=at) for p, at in enumerate(own)}
        for name, own in read.items()
    }
    return JobState("j", "line", 1, 4, 0, "d", 16, {}, inputs, **more)


def shares(found: list[Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in found:
        total[one.operator] = total.get(one.operator, 0) + one.stop - one.start
    return total


ENDS = {"a": [100, 100], "b": [100, 100], "c": [100, 100]}
NONE = {name: [0, 0] for name in "abc"}


def test_inputs_of_tables_are_read_first_unless_told_otherwise() -> None:
    @hr.job("j")
    def job(g: hr.Graph) -> None:
        names = g.input("a").partition_by("k").table()
        plans = g.table("b", key="k", bootstrap=False)
        rows = g.input("c", bootstrap=True).partition_by("k")
        for number, table in enumerate((names, plans)):
            rows.join(table, suffix="_r", name=f"j{number}").send_to(g.output(f"out{number}"))

    made = plan(job.build(), STREAMS)
    assert bootstrap_ends(made, ENDS) == {"a": [100, 100], "c": [100, 100]}


@given(read=st.lists(st.integers(0, 100), min_size=6, max_size=6), max_rows=st.integers(1, 700))
def test_nothing_else_is_read_before_tables_are_filled(read: list[int], max_rows: int) -> None:
    at = {"a": read[:2], "b": read[2:4], "c": read[4:]}
    state = state_of(at, bootstrap={"b": [40, 60]})
    found = plan_ranges(plan_of(), state, ENDS, max_rows)
    left = [end - own for end, own in zip((40, 60), at["b"], strict=True)]
    if any(rows > 0 for rows in left):
        assert {one.operator for one in found} == {"b"}
        assert all(one.stop <= (40, 60)[one.partition] for one in found)
        waiting = {p for p, rows in enumerate(left) if rows > 0}
        assert waiting == {one.partition for one in found}
    else:
        assert found == plan_ranges(plan_of(), state_of(at), ENDS, max_rows)


def test_a_bounded_run_that_ends_before_a_table_is_whole_reads_to_its_end() -> None:
    until = {"a": [10, 10], "b": [20, 0], "c": [10, 10]}
    state = state_of(NONE, bootstrap={"b": [40, 60]}, until=until)
    assert shares(plan_ranges(plan_of(), state, ENDS, 1000)) == {"b": 20}
    state = state_of({**NONE, "b": [20, 0]}, bootstrap={"b": [40, 60]}, until=until)
    assert shares(plan_ranges(plan_of(), state, ENDS, 1000)) == {"a": 20, "c": 20}


def test_higher_priorities_get_all_they_need_first() -> None:
    made = plan_of(b={"priority": 1}, c={"priority": -1})
    at = state_of(NONE)
    assert shares(plan_ranges(made, at, ENDS, 100)) == {"b": 100}
    assert shares(plan_ranges(made, at, ENDS, 300)) == {"b": 200, "a": 100}
    assert shares(plan_ranges(made, at, ENDS, 500)) == {"b": 200, "a": 200, "c": 100}
    assert shares(plan_ranges(made, at, {**ENDS, "b": [0, 0]}, 100)) == {"a": 100}


def test_a_budget_smaller_than_the_partitions_still_moves_the_first_class() -> None:
    made = plan_of(b={"priority": 1})
    assert shares(plan_ranges(made, state_of(NONE), ENDS, 1)) == {"b": 2}


def test_with_lagging_the_oldest_watermark_goes_first() -> None:
    times = {name: {"time": "at"} for name in "abc"}
    times["c"] = {"time": "at", "out_of_orderness": "50ms"}
    made = plan_of(**times)
    at = state_of({"a": [60, 90], "b": [30, 70], "c": [70, 75]})
    assert shares(plan_ranges(made, at, ENDS, 20, "lagging")) == {"c": 20}
    assert shares(plan_ranges(made, at, ENDS, 60, "lagging")) == {"c": 55, "b": 5}
    done = state_of({"a": [60, 90], "b": [100, 70], "c": [100, 100]})
    assert shares(plan_ranges(made, done, ENDS, 20, "lagging")) == {"a": 20}


def test_without_event_time_the_most_unread_rows_count() -> None:
    at = state_of({"a": [60, 90], "b": [30, 70], "c": [70, 75]})
    assert shares(plan_ranges(plan_of(), at, ENDS, 20, "lagging")) == {"b": 20}


def test_priorities_count_before_lag() -> None:
    made = plan_of(a={"priority": 1})
    at = state_of({"a": [99, 99], "b": [0, 0], "c": [0, 0]})
    assert shares(plan_ranges(made, at, ENDS, 100, "lagging")) == {"a": 2, "b": 98}
