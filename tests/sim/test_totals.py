"""Windows, running and periodic totals equal a brute-force fold, wherever epochs are cut."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played
from tests.sim.totals_model import PARTITIONS, Record, Shape, check, create, feed, make_job
from tests.support.limits import limited
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

MOMENT = pa.timestamp("us", tz="UTC")
DAY = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
KEYS: dict[str, tuple[dict[str, pa.DataType], st.SearchStrategy[tuple[Any, ...]]]] = {
    "int": ({"k": pa.int64()}, st.tuples(st.sampled_from([0, -1, 7, 1 << 62, None]))),
    "string": ({"k": pa.string()}, st.tuples(st.sampled_from(["", "a", "ä\0", "1", None]))),
    "float": (
        {"k": pa.float64()},
        st.tuples(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), None])),
    ),
    "several": (
        {"k": pa.int32(), "name": pa.string(), "flag": pa.bool_()},
        st.tuples(
            st.sampled_from([1, 2, None]),
            st.sampled_from(["a", None]),
            st.sampled_from([True, False, None]),
        ),
    ),
    "moments": (
        {"k": MOMENT, "day": pa.date32()},
        st.tuples(st.sampled_from([DAY, None]), st.sampled_from([DAY.date(), None])),
    ),
}
STEPS = ("advance", "run", "restart", "force", "lose disk")


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
@settings(max_examples=examples(5))
def test_totals_do_not_depend_on_epochs_restarts_or_arrival(kind: str, data: Any) -> None:
    """Any order over several partitions, any cuts: state, outputs and lateness equal the fold."""
    columns, keys = KEYS[kind]
    record = st.builds(
        Record,
        st.integers(0, PARTITIONS - 1),
        keys,
        st.none() | st.integers(-5, 5),
        st.integers(-60, 60),
    )
    log = data.draw(st.lists(record, max_size=60))
    kinds = st.sampled_from(["columnar", "columnar", "memory"])
    lateness, grace = data.draw(st.sampled_from([0, 7])), data.draw(st.sampled_from([0, 12]))
    shape = Shape(columns, lateness, grace, data.draw(kinds))
    with played(
        make_job(shape),
        len(log),
        data,
        lambda driver: create(driver, shape),
        lambda driver, begin, end: feed(driver, shape, log, begin, end),
        lambda driver, data: take_step(driver, data.draw(st.sampled_from(STEPS))),
    ) as driver:
        check(driver, shape, log)


def take_step(driver: TestDriver, step: str) -> None:
    """Do something between two feeds."""
    if step == "run":
        driver.run()
    elif step == "force":
        driver.advance(force=True)
    else:
        driver.advance()
        if step != "advance":
            driver.crash(lose_hosts=[0] if step == "lose disk" else [])


def test_a_window_takes_what_is_on_its_edge() -> None:
    """Start is in, end is out; grace holds it open to the very millisecond."""
    shape = Shape({"k": pa.int64()}, lateness=0, grace=3)
    times = [0, 9, 10, 12, 9, 13, 9, 23, 19]
    log = [Record(0, (1,), 1, at) for at in times]
    with TestDriver(make_job(shape), tasks=1) as driver:
        create(driver, shape)
        for number in range(len(log)):
            feed(driver, shape, log, number, number + 1)
            driver.run()
        driver.finish()
        check(driver, shape, log)
        assert driver.coordinator.state.counts["late"] == 2


def test_the_last_moment_of_time_ends_no_job() -> None:
    """Users' stand-in for "never": its bucket ends in the year 10000, which no column can hold."""

    @hr.job("never")
    def never(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        keyed.aggregate(every="1d", n=hr.agg.count()).send_to(g.output("periodic"))
        keyed.window(hr.tumbling("1d"), n=hr.agg.count()).send_to(g.output("windows"))

    with TestDriver(never) as driver:
        driver.create("in", {"k": pa.int64(), "at": MOMENT}, time="at")
        last = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
        driver.feed("in", [{"k": 1, "at": DAY}, {"k": 1, "at": last}])
        driver.finish()
        assert [row["n"] for row in driver.output("periodic")] == [1, 2]
        assert [row["window_end"].year for row in driver.output("windows")] == [2024, 9999]


def test_rows_that_are_folded_in_parts_all_count() -> None:
    """Those of the first key group and of the last one, too."""

    @hr.job("parts")
    def parts(g: hr.Graph) -> None:
        by_key = g.input("in", time="at").partition_by("k")
        by_key.window(hr.tumbling("10ms"), store="memory", n=hr.agg.count()).send_to(
            g.output("out")
        )

    with limited(totals_fold_rows=5), TestDriver(parts, tasks=1, key_groups=8) as driver:
        driver.create("in", {"k": pa.int64(), "at": pa.int64()}, partitions=1, time="at")
        driver.feed("in", [{"k": n % 40, "at": 1} for n in range(80)])
        driver.finish()
        assert {row["k"]: row["n"] for row in driver.output("out")} == dict.fromkeys(range(40), 2)
