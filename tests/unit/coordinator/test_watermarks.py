"""Which partitions count for a watermark, and when it moves on although no row comes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator.catalog import TimeEntry
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.watermarks import (
    Now,
    input_watermark,
    is_idle,
    next_wake,
    source_watermark,
)
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.plan.stages import (
    JobPlan,
)
from headrace.runtime.orders import NO_WATERMARK

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64())])
ENDS = {"a": [5, 5, 5]}
IDLE = TimeEntry("a", "a", 3, lateness_ms=5, idle_ms=100)


def plan_of(**more: Any) -> JobPlan:
    @hr.job("j")
    def job(g: hr.Graph) -> None:
        first = g.input("a", **more).partition_by("k")
        counts = first.window(
            hr.tumbling("10ms", allowed_lateness="3ms"), name="w", n=hr.agg.count()
        )
        counts.partition_by("n", name="by-n").window(hr.tumbling("10ms"), m=hr.agg.count())

    return plan(job.build(), {"a": StreamInfo(SCHEMA, 3, "at")}, key_groups=16, tasks=2)


def state_of(**more: Any) -> JobState:
    return JobState("j", "line", 1, 4, 0, "d", 16, {}, {}, **more)


def read(*partitions: tuple[int, int, int]) -> dict[int, InputPosition]:
    """Positions of (next offset, highest event time, when read)."""
    return {p: InputPosition(*position) for p, position in enumerate(partitions)}


@pytest.mark.parametrize(
    ("position", "time_ms", "expected"),
    [((5, 50, 900), 999, False), ((5, 50, 900), 1000, True), ((4, 50, 0), 1000, False)],
    ids=["not yet", "now", "with rows to read"],
)
def test_a_partition_is_idle_once_it_was_read_and_brought_nothing(
    position: tuple[int, int, int], time_ms: int, expected: bool
) -> None:
    assert is_idle(IDLE, 1, InputPosition(*position), Now(time_ms, ENDS)) is expected


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([(5, 50, 1000), (5, 40, 1000), (5, 30, 1000)], 25),
        ([(5, 50, 1000), (5, 40, 1000), (5, 30, 850)], 35),
        ([(5, 50, 1000), (5, 40, 850), (5, NO_WATERMARK, 850)], 45),
        ([(5, 50, 850), (5, 40, 850), (5, 30, 850)], 45),
        ([(5, 50, 850), (5, 40, 850), (4, 30, 850)], 25),
        ([(5, 50, 1000), (5, 40, 1000), (5, NO_WATERMARK, 1000)], NO_WATERMARK),
    ],
    ids=["none", "one", "two", "all", "unread", "empty"],
)
def test_what_is_idle_holds_nothing_back(
    positions: list[tuple[int, int, int]], expected: int
) -> None:
    made = plan_of(out_of_orderness="5ms", idle="100ms")
    now, inputs = Now(1000, ENDS), {"a": read(*positions)}
    assert source_watermark(made.stages[0], state_of(), inputs, now) == expected
    shown = input_watermark(IDLE, inputs["a"], now)
    assert shown == (expected if expected > NO_WATERMARK else None)


def test_an_epoch_is_wanted_when_the_next_partition_becomes_idle() -> None:
    made = plan_of(idle="100ms")
    inputs = {"a": read((5, 50, 1000), (5, 40, 970), (5, 30, 850))}
    assert next_wake(made, state_of(), inputs, Now(1000, ENDS), {}) == 1070
    assert next_wake(made, state_of(), inputs, Now(1070, ENDS), {}) == 1100
    assert next_wake(made, state_of(), inputs, Now(1100, ENDS), {}) is None
    assert next_wake(plan_of(), state_of(), inputs, Now(1000, ENDS), {"w": 7}) is None
    ended = state_of(until={"a": [5, 5, 5]})
    assert next_wake(made, ended, inputs, Now(1000, ENDS), {}) is None


def test_by_the_clock_an_epoch_is_wanted_when_a_window_is_due() -> None:
    """A stage behind windows with grace is behind the clock by that."""
    made = plan_of(time=hr.processing_time())
    first, second = (stage.name for stage in made.stages if stage.keyed)
    now, inputs = Now(1000, ENDS), {"a": read((5, 1000, 1000), (0, NO_WATERMARK, 0))}
    assert source_watermark(made.stages[0], state_of(), inputs, now) == 1000
    assert next_wake(made, state_of(), inputs, now, {}) is None
    assert next_wake(made, state_of(), inputs, now, {first: 1013, second: 1020}) == 1013
    assert next_wake(made, state_of(), inputs, now, {second: 1020}) == 1023
