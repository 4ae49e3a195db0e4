"""What an epoch reads, when a run is at its end, and how far event time has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.epoch_ranges import (
    has_read_all,
    keyed_tasks,
    next_wall_deadline,
    plan_ranges,
    source_tasks,
    task_name,
)
from headrace.coordinator.manifest import InputPosition, JobState, TaskState
from headrace.coordinator.watermarks import keyed_watermark, source_watermark
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.plan.stages import (
    JobPlan,
)
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, InputRange, StateTarget

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64())])


def plan_of(partitions: int = 3, others: int = 2) -> JobPlan:
    @hr.job("j")
    def job(g: hr.Graph) -> None:
        first = g.input("a", time="at", out_of_orderness="5ms").partition_by("k", name="ka")
        second = g.input("b", time="at").partition_by("k", name="kb")
        first.merge(second).aggregate(every="10ms", n=hr.agg.count()).send_to(g.output("out"))

    streams = {
        "a": StreamInfo(SCHEMA, partitions, "at"),
        "b": StreamInfo(SCHEMA, others, "at"),
    }
    return plan(job.build(), streams, key_groups=16, tasks=2)


PLAN = plan_of()


def state_of(positions: dict[str, dict[int, InputPosition]] | None = None, **more: Any) -> JobState:
    return JobState("j", "line", 1, 4, 0, "d", 16, {}, positions or {}, **more)


@given(
    lags=st.lists(st.integers(0, 1000), min_size=5, max_size=5),
    starts=st.lists(st.integers(0, 50), min_size=5, max_size=5),
    max_rows=st.integers(1, 3000),
)
def test_ranges_are_dealt_fairly_within_the_bound(
    lags: list[int], starts: list[int], max_rows: int
) -> None:
    """Each partition with news moves on; what one leaves goes to those that have more."""
    at = {"a": dict(enumerate(starts[:3])), "b": dict(enumerate(starts[3:]))}
    news = {"a": lags[:3], "b": lags[3:]}
    state = state_of({n: {p: InputPosition(o, 7) for p, o in own.items()} for n, own in at.items()})
    ends = {n: [at[n][p] + lag for p, lag in enumerate(own)] for n, own in news.items()}
    found = plan_ranges(PLAN, state, ends, max_rows)
    shares = {(r.operator, r.partition): r.stop - r.start for r in found}
    lag_of = {(n, p): lag for n, own in news.items() for p, lag in enumerate(own) if lag}
    assert shares.keys() == lag_of.keys()
    assert all(r.start == at[r.operator][r.partition] for r in found)
    assert all(r.max_time == 7 for r in found)
    assert all(1 <= shares[where] <= lag for where, lag in lag_of.items())
    assert sum(shares.values()) <= max(max_rows, len(lag_of))
    cut = [shares[where] for where, lag in lag_of.items() if shares[where] < lag]
    if cut:
        # Those that wait get about the same, and no less than any that is done.
        assert max(cut) - min(cut) <= 1
        assert all(shares[where] <= min(cut) + 1 for where, lag in lag_of.items())
        assert sum(shares.values()) >= min(max_rows, sum(lag_of.values()))


def test_a_bounded_run_reads_to_its_end_and_no_further() -> None:
    until = {"a": [5, 0, 2], "b": [1, 1]}
    state = state_of({"a": {0: InputPosition(3)}}, until=until)
    ends = {"a": [9, 9, 2], "b": [1, 8]}
    found = {
        (r.operator, r.partition): (r.start, r.stop) for r in plan_ranges(PLAN, state, ends, 99)
    }
    assert found == {("a", 0): (3, 5), ("a", 2): (0, 2), ("b", 0): (0, 1), ("b", 1): (0, 1)}
    assert not has_read_all(PLAN, state)
    done = {n: {p: InputPosition(u) for p, u in enumerate(own)} for n, own in until.items()}
    assert has_read_all(PLAN, state_of(done, until=until))
    assert not has_read_all(PLAN, state_of(done))
    assert plan_ranges(PLAN, state_of(done, until=until), ends, 99) == []
    almost = {**done, "b": {0: InputPosition(1), 1: InputPosition(0)}}
    assert not has_read_all(PLAN, state_of(almost, until=until))


def test_an_empty_input_is_at_its_end_at_once() -> None:
    assert has_read_all(PLAN, state_of(until={"a": [0, 0, 0], "b": [0, 0]}))


A = PLAN.stages[0]


def positions(*times: int | None, offset: int = 1) -> dict[str, dict[int, InputPosition]]:
    seen = {p: InputPosition(offset, t) for p, t in enumerate(times) if t is not None}
    return {"a": seen}


@pytest.mark.parametrize(
    ("times", "until", "expected"),
    [
        ((100, 50, 70), None, 45),
        ((100, None, 70), None, NO_WATERMARK),
        ((None, None, None), None, NO_WATERMARK),
        ((100, 50, 70), [1, 1, 2], 65),
        ((100, None, 70), [2, 0, 2], 65),
        ((100, 50, 70), [1, 1, 1], 95),
        ((None, None, None), [0, 0, 0], NO_WATERMARK),
    ],
)
def test_a_source_is_as_far_as_its_slowest_partition(
    times: tuple[int | None, ...], until: list[int] | None, expected: int
) -> None:
    """A partition that is read to the end of the run holds nothing back; only END closes all."""
    state = state_of(until=None if until is None else {"a": until, "b": [0, 0]})
    assert source_watermark(A, state, positions(*times)) == expected


def test_a_keyed_stage_is_as_far_as_its_slowest_sender() -> None:
    keyed = next(stage for stage in PLAN.stages if stage.keyed)
    names = {stage.index: stage.name for stage in PLAN.stages}
    assert len(keyed.receives) == 2
    first, second = (names[exchange.source_stage] for exchange in keyed.receives)
    assert keyed_watermark(keyed, names, {first: 10, second: 7}) == 7
    assert keyed_watermark(keyed, names, {first: 10}) == NO_WATERMARK
    assert keyed_watermark(keyed, names, {first: END_WATERMARK, second: 7}) == 7
    both = {first: END_WATERMARK, second: END_WATERMARK}
    assert keyed_watermark(keyed, names, both) == END_WATERMARK
    delayed = tuple(replace(exchange, delay_ms=3) for exchange in keyed.receives)
    lagging = replace(keyed, receives=delayed)
    assert keyed_watermark(lagging, names, {first: 10, second: 7}) == 4
    assert keyed_watermark(lagging, names, both) == END_WATERMARK


def test_only_tasks_with_rows_or_something_due_run() -> None:
    keyed = next(stage for stage in PLAN.stages if stage.keyed)
    held = {
        task_name(keyed.name, 0): TaskState(epoch=3, attempt="x", event_deadline=50),
        task_name(keyed.name, 1): TaskState(wall_deadline=900),
    }
    state = state_of(tasks=held)

    def due(rows: list[int], watermark: int, wall: int, **more: Any) -> list[int]:
        return [o.task for o in keyed_tasks(keyed, state, rows, watermark, wall, **more)]

    assert due([0, 0], 49, 899) == []
    assert due([0, 0], 50, 899) == [0]
    assert due([0, 0], 49, 900) == [1]
    assert due([0, 3], 0, 0) == [1]
    assert due([0, 0], 0, 0, all_tasks=True) == [0, 1]
    orders = keyed_tasks(keyed, state, [1, 1], 0, 0)
    assert [order.groups for order in orders] == [(0, 8), (8, 16)]
    assert orders[0].state == StateTarget(3, "x")
    assert orders[1].state == StateTarget(-1, "")
    assert next_wall_deadline(state) == 900
    assert next_wall_deadline(state_of()) is None


def test_a_source_task_reads_its_partition_of_every_input_of_its_stage() -> None:
    ranges = [InputRange("a", 2, 0, 5), InputRange("b", 2, 0, 5), InputRange("a", 0, 1, 2)]
    found = source_tasks(A, ranges)
    assert [(order.task, order.ranges) for order in found] == [(0, [ranges[2]]), (2, [ranges[0]])]
