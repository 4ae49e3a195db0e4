"""What many tasks of one slot cost: as often as there are more, and no more than that.

Counted in calls of Python functions, which do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import TestDriver

FEW, MANY = 12, 36
LINEAR = 1.3 * MANY / FEW


class Seen:
    def process(self, message: Any, context: hr.Context) -> None:
        context.store("seen").put(message.k, 1)


@hr.job("counts")
def counts(g: hr.Graph) -> None:
    g.input("in").partition_by("k").aggregate(n=hr.agg.count(), name="n").send_to(g.output("out"))


@hr.job("seen")
def seen(g: hr.Graph) -> None:
    stores = (hr.store("seen", int, kind="memory"),)
    g.input("in").partition_by("k").process(Seen, stores=stores, name="p")


def calls(work: Callable[[], object]) -> int:
    count = 0

    def counts(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counts)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def after_epochs(job: hr.Job, tasks: int) -> TestDriver:
    """A job that has had three epochs of eight rows a task, all in one slot."""
    driver = TestDriver(job, tasks=tasks, slots=1, key_groups=4 * MANY)
    driver.create("in", {"k": pa.int64()})
    for _ in range(3):
        driver.feed("in", [{"k": k} for k in range(8 * tasks)])
        driver.advance()
    return driver


@pytest.mark.parametrize("job", [counts, seen])
def test_reading_the_state_of_many_tasks_is_linear_in_them(job: hr.Job) -> None:
    found = {}
    for tasks in (FEW, MANY):
        with after_epochs(job, tasks) as driver:
            read = driver.table if job is counts else driver.store
            name = "n" if job is counts else "seen"
            assert len(read(name)) == 8 * tasks
            found[tasks] = calls(partial(read, name))
    assert found[MANY] < LINEAR * found[FEW]


def test_an_epoch_over_tables_of_many_tasks_is_linear_in_them() -> None:
    """Each finds its own part of the files that the tasks of its slot share."""
    found = {}
    for tasks in (FEW, 2 * MANY):
        with after_epochs(counts, tasks) as driver:
            driver.feed("in", [{"k": k} for k in range(8 * tasks)])
            found[tasks] = calls(driver.advance)
    assert found[2 * MANY] < 2 * LINEAR * found[FEW]
