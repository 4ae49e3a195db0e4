"""Windows of every kind equal a brute-force model: any arrival order, any epochs, any crash."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played_log, records
from tests.sim.window_model import (
    PARTITIONS,
    Case,
    Record,
    check,
    create,
    feed,
    make_job,
)
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

WINDOWS = {
    "tumbling": lambda grace: hr.tumbling("10ms", grace),
    "hopping": lambda grace: hr.hopping("10ms", "2ms", grace),
    "hopping that does not divide": lambda grace: hr.hopping("10ms", "4ms", grace),
    "sliding": lambda grace: hr.sliding("10ms", grace),
    "session": lambda grace: hr.session("5ms", grace),
}


@pytest.mark.parametrize("kind", WINDOWS)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_windows_equal_the_model_wherever_epochs_are_cut(kind: str, data: Any) -> None:
    """Records in any order over several partitions; crashes, lost disks and small batches."""
    log = data.draw(st.lists(records, max_size=40))
    case = Case(
        WINDOWS[kind](f"{data.draw(st.sampled_from([0, 7]))}ms"),
        data.draw(st.sampled_from(["columnar", "columnar", "memory"])),
        data.draw(st.sampled_from([0, 6])),
        data.draw(st.sampled_from([True, True, False])),
    )
    with played_log(make_job(case), log, data) as driver:
        check(driver, case, log)


@pytest.mark.parametrize(
    "window", [hr.hopping("10ms", "5ms"), hr.sliding("10ms"), hr.tumbling("10ms", early="3ms")]
)
@pytest.mark.parametrize("store", ["columnar", "memory"])
def test_panes_are_forgotten_although_no_result_is_due(window: Any, store: str) -> None:
    """The last result of a pane is out before it is over, and nothing follows in its task."""

    @hr.job("panes")
    def panes(g: hr.Graph) -> None:
        by_key = g.input("in", time="at").filter(hr.col("v") > 0).partition_by("k")
        by_key.window(window, store=store, name="w", n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(panes, tasks=1) as driver:
        create(driver)
        for record in (Record(0, "a", 1, 1), Record(0, "a", 0, 6), Record(0, "a", 0, 40)):
            feed(driver, [record])
            for other in range(1, PARTITIONS):
                feed(driver, [Record(other, "a", 0, record.at)])
            driver.run()
        driver.finish()
        assert driver.output("out")
        assert not (driver.table("w") if store == "columnar" else driver.raw_store("w"))


@pytest.mark.parametrize("store", ["columnar", "memory"])
def test_a_moment_reaches_back_to_the_last_record_that_is_within_its_size(store: str) -> None:
    """The oldest record is kept until the watermark has passed all moments that may need it."""

    @hr.job("moments")
    def moments(g: hr.Graph) -> None:
        by_key = g.input("in", time="at").partition_by("k")
        window = by_key.window(hr.sliding("10ms"), store=store, n=hr.agg.count())
        window.send_to(g.output("out"))

    with TestDriver(moments) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, partitions=1, time="at")
        for key, at in (("a", 0), ("b", 8), ("a", 9), ("b", 17), ("a", 19)):
            driver.feed("in", [{"k": key, "at": at}])
            driver.run()
        driver.finish()
        assert [row["n"] for row in driver.output("out") if row["k"] == "a"] == [1, 2, 1]


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_record_at_the_watermark_is_not_late(kind: str) -> None:
    """The first record of a moment brings the watermark there; others of it follow."""

    @hr.job("timely")
    def timely(g: hr.Graph) -> None:
        by_key = g.input("in", time="at").partition_by("k")
        by_key.window(WINDOWS[kind]("0ms"), n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(timely) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, partitions=1, time="at")
        driver.feed("in", [{"k": "a", "at": 13}, {"k": "a", "at": 13}])
        driver.finish()
        assert {row["n"] for row in driver.output("out")} == {2}
        assert driver.coordinator.state.counts.get("late", 0) == 0


@pytest.mark.parametrize(
    ("window", "epochs", "closed", "wanted"),
    [
        (hr.tumbling("10ms"), [[103], [116]], [(100, 1)], [(100, 1), (110, 1)]),
        (
            hr.hopping("10ms", "5ms"),
            [[103], [111], [118]],
            [(95, 1), (100, 1)],
            [(95, 1), (100, 1), (105, 1), (110, 2), (115, 1)],
        ),
        (hr.session("5ms"), [[100, 105]], [], [(100, 1), (105, 1)]),
        (hr.session("5ms"), [[100, 104], [103, 108]], [], [(100, 4)]),
        (hr.session("5ms"), [[100, 104], [103, 108, 120]], [(100, 4)], [(100, 4), (120, 1)]),
        (hr.session("5ms"), [[98, 101], [109]], [], [(98, 2), (109, 1)]),
    ],
)
def test_windows_end_where_their_borders_are(
    window: Any, epochs: list[list[int]], closed: list[Any], wanted: list[Any]
) -> None:
    """Rows and watermarks just at a border, in epochs of their own."""

    @hr.job("borders")
    def borders(g: hr.Graph) -> None:
        by_key = g.input("in", time="at", out_of_orderness="6ms").partition_by("k")
        by_key.window(window, n=hr.agg.count()).send_to(g.output("out"))

    def found() -> list[tuple[int, int]]:
        rows = driver.output("out")
        return sorted((round(row["window_start"].timestamp() * 1000), row["n"]) for row in rows)

    with TestDriver(borders) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, partitions=1, time="at")
        for times in epochs:
            driver.feed("in", [{"k": "a", "at": at} for at in times])
            driver.run()
        assert found() == closed
        driver.finish()
        assert found() == wanted
