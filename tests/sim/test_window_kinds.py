"""Windows of every kind equal a brute-force model: any arrival order, any epochs, any crash."""

from __future__ import annotations

from typing import Any

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
@settings(max_examples=25)
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
