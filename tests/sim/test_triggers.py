"""Early results, and late records that change results, of every kind of window."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played_log, records
from tests.sim.trigger_model import expect_early, held, sent, window_of
from tests.sim.window_model import Case, expect, make_job

import headrace as hr
from headrace.graph.windows import Session, Window
from headrace.testing import TestDriver

EARLY = [{"early": "5ms"}, {"early_idle": "3ms"}, {"early_rows": 3}]
UPDATES = ["replace", "retract", "add"]


def run(data: Any, window: Window) -> tuple[list[Any], list[Any], Case]:
    """Run a log in any order through any epochs, with crashes; return it and the results."""
    log = data.draw(st.lists(records, max_size=40))
    store = data.draw(st.sampled_from(["columnar", "columnar", "memory"]))
    keyed = data.draw(st.sampled_from([True, True, False]))
    case = Case(window, store, data.draw(st.sampled_from([0, 6])), keyed)
    with played_log(make_job(case), log, data) as driver:
        rows = sent(driver.output("out"))
        expected, late = expect(log, case)
        assert held(rows, window.updates, grow=isinstance(window, Session)) == expected
        assert late == driver.coordinator.state.counts.get("late", 0)
        kept = driver.table("w") if store == "columnar" else driver.raw_store("w")
        assert not kept
    return log, rows, case


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("early", EARLY[:2], ids=str)
@pytest.mark.parametrize("kind", ["tumbling", "hopping that does not divide", "session"])
@given(data=st.data())
@settings(max_examples=4)
def test_early_results_by_event_time_follow_from_the_log(
    kind: str, early: dict[str, Any], updates: str, data: Any
) -> None:
    """All results, and not the last ones alone, equal the model's."""
    grace = data.draw(st.sampled_from(["0ms", "9ms"]))
    window = window_of(kind, grace=grace, updates=updates, **early)
    log, rows, case = run(data, window)
    assert sorted(expect_early(log, case).elements(), key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize("updates", UPDATES)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
@given(data=st.data())
@settings(max_examples=4)
def test_early_results_by_number_add_up_to_the_last(kind: str, updates: str, data: Any) -> None:
    grace = data.draw(st.sampled_from(["0ms", "9ms"]))
    run(data, window_of(kind, grace=grace, updates=updates, early_rows=3))


@pytest.mark.parametrize("updates", UPDATES[:2])
@pytest.mark.parametrize(
    "kind", ["tumbling", "hopping", "hopping that does not divide", "sliding", "session"]
)
@given(data=st.data())
@settings(max_examples=4)
def test_late_records_change_what_was_sent(kind: str, updates: str, data: Any) -> None:
    """Within the grace; a reader that follows the results holds those of all records in the end."""
    run(data, window_of(kind, grace="15ms", late="update", updates=updates))


@pytest.mark.parametrize("early", EARLY, ids=str)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
@given(data=st.data())
@settings(max_examples=4)
def test_early_results_and_late_records_go_together(
    kind: str, early: dict[str, Any], data: Any
) -> None:
    updates = data.draw(st.sampled_from(UPDATES))
    run(data, window_of(kind, grace="15ms", late="update", updates=updates, **early))


def test_by_processing_time_a_quiet_key_is_sent_although_nothing_comes() -> None:
    """The clock of epochs goes on by itself, and an epoch runs when something is due."""

    @hr.job("quiet")
    def quiet(g: hr.Graph) -> None:
        keyed = g.input("in", time=hr.processing_time()).partition_by("k")
        visits = hr.session("30m", early_idle="5m")
        keyed.window(visits, n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(quiet, tasks=1) as driver:
        driver.create("in", {"k": pa.string()})
        driver.feed("in", [{"k": "a"}, {"k": "a"}])
        driver.run()
        assert driver.output("out") == []
        driver.clock.advance(5 * 60_000)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [2]
        driver.feed("in", [{"k": "a"}])
        driver.run()
        driver.clock.advance(40 * 60_000)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [2, 3]
