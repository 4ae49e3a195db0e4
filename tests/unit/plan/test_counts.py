"""``partition_by(tasks=)`` says how many tasks a stage has, whatever the setting says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import JobPlan, StreamInfo, plan

import headrace as hr
from headrace.errors import GraphError, InvalidInputError, PartsError
from headrace.testing import TestDriver

STREAMS = {"in": StreamInfo(pa.schema({"k": pa.int64(), "v": pa.int64()}), 3)}


def chain(first: int | None, second: int | None, **options: Any) -> Any:
    @hr.job("chain")
    def job(g: hr.Graph) -> None:
        one = g.input("in").partition_by("k", tasks=first).aggregate(n=hr.agg.count())
        two = one.partition_by("n", tasks=second, **options).aggregate(m=hr.agg.count())
        two.send_to(g.output("out"))

    return job


def planned(job: Any, **options: Any) -> JobPlan:
    return plan(job.build(), STREAMS, **options)


@pytest.mark.parametrize(
    ("counts", "setting", "expected"),
    [((2, 5), 4, [3, 2, 5]), ((None, 5), 4, [3, 4, 5]), ((1, None), None, [3, 1, 3])],
)
def test_each_stage_has_the_tasks_asked_for(
    counts: tuple[Any, Any], setting: int | None, expected: list[int]
) -> None:
    made = planned(chain(*counts), tasks=setting)
    assert expected == [stage.tasks for stage in made.stages]


def test_an_internal_stream_has_as_many_partitions() -> None:
    made = planned(chain(2, 6, via="bus"), tasks=4)
    assert [feed.partitions for feed in made.feeds] == [6]


@pytest.mark.parametrize("tasks", [0, -1, 2.0, True, "2"])
def test_no_number_is_refused(tasks: Any) -> None:
    with pytest.raises(GraphError, match="expected a whole number from 1 on"):
        planned(chain(tasks, None))


def test_more_tasks_than_key_groups_are_refused() -> None:
    with pytest.raises(GraphError, match=r"by_k.*tasks=9, but the job has 8 key groups"):
        planned(chain(9, None), key_groups=8)


def test_two_numbers_for_one_stage_are_refused() -> None:
    @hr.job("both")
    def both(g: hr.Graph) -> None:
        source = g.input("in")
        left = source.partition_by("k", tasks=2, name="left")
        right = source.filter(hr.col("v") > 1).partition_by("k", tasks=3, name="right")
        left.merge(right).aggregate(n=hr.agg.count()).send_to(g.output("out"))

    with pytest.raises(GraphError, match="'left' feeds the same stage and asks for 2"):
        planned(both)


ROWS = [{"k": k % 5, "v": k} for k in range(40)]


@pytest.mark.parametrize("via", ["exchange", "bus"])
def test_one_stage_is_rescaled_and_goes_on(via: str) -> None:
    """Only that stage moves; its number in the code is then no more than where it began."""
    with TestDriver(chain(2, 6, via=via), tasks=4, key_groups=24) as driver:
        driver.create("in", {"k": pa.int64(), "v": pa.int64()}, partitions=2)
        driver.feed("in", ROWS)
        driver.run()
        part = driver.parts[-1]
        (stage,) = [name for name in part.state.task_counts if "by_n" in name]
        part.rescale(3, stage)
        counts = {n: c for one in driver.parts for n, c in one.state.task_counts.items()}
        assert sorted(counts.values()) == [2, 3]
        driver.feed("in", ROWS)
        driver.run()
        driver.crash()
        driver.run()
        found = {row["n"]: row["m"] for row in driver.output("out")}
        assert found == dict.fromkeys(range(1, 17), 5)


def test_a_number_that_does_not_divide_an_internal_stream_is_refused() -> None:
    with TestDriver(chain(2, 6, via="bus"), tasks=4, key_groups=24) as driver:
        driver.create("in", {"k": pa.int64(), "v": pa.int64()})
        driver.feed("in", ROWS)
        driver.run()
        with pytest.raises(PartsError, match="expected a number that divides 6"):
            driver.parts[-1].rescale(4)


def test_another_number_in_the_code_over_old_state_says_how_to_move_it() -> None:
    with TestDriver(chain(2, 6), tasks=4, key_groups=24) as driver:
        driver.create("in", {"k": pa.int64(), "v": pa.int64()})
        driver.feed("in", ROWS)
        driver.run()
        driver.job = chain(2, 3)
        with pytest.raises(InvalidInputError, match=r"--tasks 3 --stage .*by_n; or set job.tasks"):
            driver.start()
