"""A plan with other numbers of tasks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.support.plans import StreamInfo, explain, plan, with_task_counts

import headrace as hr
from headrace.errors import InvalidInputError

STREAMS = {"in": StreamInfo(pa.schema([("a", pa.int64()), ("b", pa.int64())]), 2)}


@hr.job("two")
def two(g: hr.Graph) -> None:
    stream = g.input("in")
    stream.partition_by("a", name="by-a").aggregate(n=hr.agg.count()).send_to(g.output("x"))
    stream.partition_by("b", name="by-b").aggregate(n=hr.agg.count())


def test_only_keyed_stages_that_are_named_change() -> None:
    made = plan(two.build(), STREAMS, key_groups=16, tasks=4)
    changed = with_task_counts(made, {"by-a": 7, "in": 9})
    assert [(s.name, s.tasks) for s in changed.stages] == [("in", 2), ("by-a", 7), ("by-b", 4)]
    assert changed.fingerprint == made.fingerprint
    assert [o.partitions for s in changed.stages for o in s.outputs] == [4]
    assert "7 tasks" in explain(changed)


def test_nothing_new_is_the_same_plan() -> None:
    made = plan(two.build(), STREAMS, key_groups=16, tasks=4)
    assert with_task_counts(made, {"by-a": 4}) is made


def test_a_plan_takes_no_more_tasks_than_key_groups() -> None:
    with pytest.raises(InvalidInputError, match="found 17 tasks, expected 1 to 16"):
        plan(two.build(), STREAMS, key_groups=16, tasks=17)
