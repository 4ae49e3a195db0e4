"""Early results, and late records that change results, of every kind of window."""

from __future__ import annotations

from itertools import chain, cycle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import played_log, records
from tests.sim.trigger_model import expect_early, held, sent, window_of
from tests.sim.window_model import Case, expect, make_job
from tests.support.soak import crossed, examples
from tests.support.windows import Session, Window

import headrace as hr
from headrace.testing import TestDriver

EARLY = [{"early": "5ms"}, {"early_idle": "3ms"}, {"early_rows": 3}]
UPDATES = ["replace", "retract", "add"]
CRASHES = ["slot.segment_written", "commit.written", "commit.published"]


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


@pytest.mark.parametrize(
    ("kind", "early", "updates"),
    crossed(
        ["tumbling", "hopping that does not divide", "session"],
        EARLY[1::-1],
        ["retract", "replace", "add"],
    ),
    ids=str,
)
@given(data=st.data())
@settings(max_examples=examples(4))
def test_early_results_by_event_time_follow_from_the_log(
    kind: str, early: dict[str, Any], updates: str, data: Any
) -> None:
    """All results, and not the last ones alone, equal the model's."""
    grace = data.draw(st.sampled_from(["0ms", "9ms"]))
    window = window_of(kind, allowed_lateness=grace, updates=updates, **early)
    log, rows, case = run(data, window)
    assert sorted(expect_early(log, case).elements(), key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize(
    ("kind", "updates"), crossed(["tumbling", "hopping", "session"], ["replace", "add", "retract"])
)
@given(data=st.data())
@settings(max_examples=examples(4))
def test_early_results_by_number_add_up_to_the_last(kind: str, updates: str, data: Any) -> None:
    grace = data.draw(st.sampled_from(["0ms", "9ms"]))
    run(data, window_of(kind, allowed_lateness=grace, updates=updates, early_rows=3))


@pytest.mark.parametrize(
    ("kind", "updates"),
    crossed(
        ["tumbling", "hopping", "hopping that does not divide", "sliding", "session"],
        ["retract", "replace"],
    ),
)
@given(data=st.data())
@settings(max_examples=examples(2))
def test_late_records_change_what_was_sent(kind: str, updates: str, data: Any) -> None:
    """Within the grace; a reader that follows the results holds those of all records in the end."""
    run(data, window_of(kind, allowed_lateness="15ms", late="update", updates=updates))


@pytest.mark.parametrize(
    ("kind", "early"), crossed(["tumbling", "hopping", "session"], EARLY), ids=str
)
@given(data=st.data())
@settings(max_examples=examples(4))
def test_early_results_and_late_records_go_together(
    kind: str, early: dict[str, Any], data: Any
) -> None:
    updates = data.draw(st.sampled_from(UPDATES))
    run(data, window_of(kind, allowed_lateness="15ms", late="update", updates=updates, **early))


def test_late_records_grow_a_session_that_was_sent_one_after_the_other() -> None:
    """Each takes the place of all that was sent before, as long as the grace lasts."""

    @hr.job("grows")
    def grows(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        visits = hr.session("5ms", allowed_lateness="15ms", late="update", updates="retract")
        keyed.window(visits, store="memory", n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(grows, tasks=1) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, partitions=1, time="at")
        for key, at in (("a", 100), ("b", 113), ("a", 104), ("a", 107), ("a", 108)):
            driver.feed("in", [{"k": key, "at": at}])
            driver.run()
        found = [(row["n"], row["is_retraction"]) for row in driver.output("out")]
        changes = [[(n, True), (n + 1, False)] for n in (1, 2, 3)]
        assert found == [(1, False), *chain(*changes)]


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


@pytest.mark.parametrize(
    ("window", "sent"),
    [
        (
            hr.tumbling("1h", early=hr.on_count_or_time(3, "10m")),
            {0: [], 2: [3], 9: [], 12: [4], 15: [], 21: [], 22: [5], 39: [], 40: [6], 61: []},
        ),
        (
            hr.hopping("1h", "30m", early=hr.on_count_or_time(3, "10m"), updates="add"),
            {0: [], 2: [3, 3], 9: [], 12: [1, 1], 15: [], 22: [1, 1], 40: [1], 49: [], 50: [1]},
        ),
        (
            hr.session("30m", early=hr.on_count_or_time(3, "10m"), updates="retract"),
            {0: [], 2: [3], 9: [], 12: [-3, 4], 15: [], 22: [-4, 5], 40: [-5, 6], 80: []},
        ),
    ],
    ids=["tumbling", "hopping", "session"],
)
def test_results_by_number_or_time_come_with_whichever_is_first(
    window: Any, sent: dict[int, list[int]]
) -> None:
    """Messages are of minutes 0, 1, 2, 9, 15 and 40; each epoch ends at a minute, after a crash.

    Three have come in minute 2. The fourth is sent ten minutes after that, in minute 12, the fifth
    ten minutes later. The last result is long ago when the sixth comes, so that is sent at once.
    """

    @hr.job("early")
    def early(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        keyed.window(window, n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(early, tasks=1) as driver:
        driver.create("in", {"k": pa.string(), "at": pa.int64()}, time="at")
        minutes, seen = [0, 1, 2, 9, 15, 40], 0
        for point, (minute, expected) in zip(cycle(CRASHES), sent.items(), strict=False):
            rows = [{"k": "a", "at": at * 60_000} for at in minutes if at <= minute]
            minutes = [at for at in minutes if at > minute]
            # One of another key, so that the watermark is the minute.
            driver.feed("in", [*rows, {"k": None, "at": minute * 60_000 + 1}])
            driver.advance_with_crash(point)
            driver.run()
            out = [row for row in driver.output("out") if row["k"] == "a"]
            found, seen = out[seen:], len(out)
            assert expected == [
                -row["n"] if row.get("is_retraction") else row["n"] for row in found
            ], f"minute {minute}"
