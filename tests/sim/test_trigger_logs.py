"""What the nodes of windows send of a log, in any order of arrival and epochs of any size."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.trigger_model import expect_early, held, sent, window_of
from tests.sim.window_model import PARTITIONS, Case, Record, expect
from tests.sim.window_nodes import run
from tests.support.soak import examples
from tests.support.windows import Session, Window

import headrace as hr

UPDATES = ["replace", "retract", "add"]
EARLY = [{"early": "5ms"}, {"early": "4ms"}, {"early_idle": "3ms"}, {"early_idle": "5ms"}]
ROWS = {"early_rows": 3}
ROWS_OR_TIME = {"early": hr.on_count_or_time(3, "5ms")}


@st.composite
def logs(draw: Any) -> list[Record]:
    """Records that come about as they happened, some far behind or ahead, around 1970."""
    log: list[Record] = []
    now = draw(st.sampled_from([-40, -15, 0]))
    for _ in range(draw(st.integers(0, 40))):
        now += draw(st.sampled_from([0, 0, 1, 3]))
        behind = draw(st.integers(0, 11))
        at = draw(st.sampled_from([now, now - behind, now + behind]))
        key = draw(st.sampled_from(["a", "b", None]))
        log.append(Record(draw(st.integers(0, PARTITIONS - 1)), key, len(log), at))
    return log


def check(data: Any, window: Window, *, is_exact: bool) -> None:
    """Compare all results with the model's, or what a reader holds in the end."""
    log = data.draw(logs())
    lateness = data.draw(st.sampled_from([0, 6]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    case = Case(window, lateness=lateness)
    ran = run(window, log, lateness, cuts)
    rows = sent(ran.sink.rows)
    expected, late = expect(log, case)
    assert held(rows, window.updates, grow=isinstance(window, Session)) == expected
    assert (late, 0) == (ran.late, ran.left)
    if is_exact:
        every = sorted(expect_early(log, case).elements(), key=repr)
        assert every == sorted(rows, key=repr)


@pytest.mark.parametrize(
    "kind", ["tumbling", "hopping", "hopping that does not divide", "session", "sliding"]
)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_without_a_trigger_each_window_is_sent_once(kind: str, data: Any) -> None:
    grace = data.draw(st.sampled_from(["0ms", "9ms"]))
    check(data, window_of(kind, allowed_lateness=grace), is_exact=False)


@pytest.mark.parametrize("early", EARLY, ids=str)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "hopping that does not divide", "session"])
@given(data=st.data())
@settings(max_examples=examples(3))
def test_early_results_by_event_time_follow_from_the_log(
    kind: str, early: dict[str, Any], data: Any
) -> None:
    grace, updates = data.draw(st.sampled_from(["0ms", "9ms"])), data.draw(st.sampled_from(UPDATES))
    check(data, window_of(kind, allowed_lateness=grace, updates=updates, **early), is_exact=True)


@pytest.mark.parametrize(
    ("kind", "early"),
    [
        *product(
            ["tumbling", "hopping", "hopping that does not divide", "session"],
            [{}, *EARLY[1:3], ROWS, ROWS_OR_TIME],
        ),
        ("sliding", {}),
    ],
    ids=str,
)
@given(data=st.data())
@settings(max_examples=examples(3))
def test_late_records_end_in_what_the_log_has(kind: str, early: dict[str, Any], data: Any) -> None:
    """Whatever came between, a reader that follows the results holds those of the whole log."""
    updates = data.draw(st.sampled_from(UPDATES if early else UPDATES[:2]))
    window = window_of(kind, allowed_lateness="15ms", late="update", updates=updates, **early)
    check(data, window, is_exact=False)


@pytest.mark.parametrize("early", [ROWS, ROWS_OR_TIME], ids=str)
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session"])
@given(data=st.data())
@settings(max_examples=examples(3))
def test_early_results_by_number_end_in_what_the_log_has(
    kind: str, early: dict[str, Any], data: Any
) -> None:
    updates = data.draw(st.sampled_from(UPDATES))
    check(data, window_of(kind, allowed_lateness="9ms", updates=updates, **early), is_exact=False)
