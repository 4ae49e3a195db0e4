"""What becomes of late records is checked and explained before a job runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import JobPlan, StreamInfo, changes, explain, plan

import headrace as hr
from headrace.errors import GraphError

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.int64()), ("name", pa.string()), ("at", pa.int64())]
)
STREAMS = {"events": StreamInfo(SCHEMA, 2, "at")}


def windowed(window: Any, side: str = "", **aggregates: Any) -> JobPlan:
    @hr.job("windowed")
    def windowed(g: hr.Graph) -> None:
        events = g.input("events").partition_by("id")
        results = events.window(window, name="w", **(aggregates or {"n": hr.agg.count()}))
        results.send_to(g.output("out"))
        if side:
            results.side(side).send_to(g.output("late"))

    return plan(windowed.build(), STREAMS)


def told(window: Any, **aggregates: Any) -> list[str]:
    side = "late" if window.late == "side_output" else ""
    text = explain(windowed(window, side, **aggregates), width=200)
    return [line.strip() for line in text.splitlines()]


def columns(made: JobPlan, stream: str) -> list[str]:
    outputs = [output for stage in made.stages for output in stage.outputs]
    return list(next(o.schema.names for o in outputs if o.stream == stream))


def test_late_records_have_the_columns_that_they_came_with() -> None:
    made = windowed(hr.tumbling("1m", late="side_output"), "late")
    assert columns(made, "late") == SCHEMA.names
    assert columns(made, "out") == ["id", "window_start", "window_end", "n"]
    sent = made.stages[0].sends[0].schema.names
    assert set(SCHEMA.names) <= set(sent)
    without = windowed(hr.tumbling("1m")).stages[0].sends[0].schema.names
    assert not {"v", "name"} & set(without)


def test_retractions_have_a_column_of_their_own() -> None:
    made = windowed(hr.tumbling("1m", allowed_lateness="1h", late="update", updates="retract"))
    assert columns(made, "out") == ["id", "window_start", "window_end", "n", "is_retraction"]
    plain = windowed(hr.tumbling("1m", allowed_lateness="1h", late="update"))
    assert "is_retraction" not in columns(plain, "out")


@pytest.mark.parametrize(
    ("window", "lines"),
    [
        (
            hr.tumbling("1m", allowed_lateness="1h", late="update"),
            [
                "window of 1m, grace 1h",
                "results of late records are replaced until 1h after the end",
                "keeps 24 B and tops for each key and window, until 1h after its end",
            ],
        ),
        (
            hr.tumbling("1m", allowed_lateness="1h", late="update", updates="retract"),
            ["results of late records are taken back and sent again until 1h after the end"],
        ),
        (
            hr.hopping("1h", every="25m", late="side_output"),
            ["late records go to side late", "keeps 24 B and tops for each key and pane of 5m"],
        ),
        (hr.sliding("1h"), ["keeps 24 B and tops for each key and moment"]),
        (hr.session("30m"), ["keeps 24 B and tops for each key and 30m that have messages"]),
        (hr.count_window(5), ["keeps 24 B and tops for each key"]),
        (
            hr.hopping("1h", "30m", "2h", late="update"),
            [
                "results of late records are replaced until 2h after the end",
                "keeps 24 B and tops for each key and pane of 30m, until 2h after its last window",
            ],
        ),
        (
            hr.session("30m", "2h", late="update", updates="retract"),
            [
                "results of late records are taken back and sent again until 2h after the end",
                "keeps 24 B and tops for each key and session sent, until 2h after its end, and "
                "for gap that waits",
            ],
        ),
        (
            hr.hopping("1h", "30m", early="5m", updates="add"),
            [
                "window of 1h every 30m, early every 5m",
                "keeps 24 B and tops for each key and window sent, and for window and 5m that "
                "waits",
            ],
        ),
        (hr.tumbling("1h", early_idle="5m"), ["window of 1h, early after 5m without any"]),
        (hr.session("1h", early_rows=7), ["session window, gap 1h, early every 7 messages"]),
        (
            hr.tumbling("1h", early=hr.on_count_or_time(7, "5m")),
            ["window of 1h, early every 7 messages, early within 5m of the last result"],
        ),
    ],
    ids=[
        *("update", "retract", "panes", "sliding", "session", "count", "hopping update"),
        *("session update", "hopping early", "idle", "rows", "rows or time"),
    ],
)
def test_explain_says_what_is_kept_and_for_how_long(window: Any, lines: list[str]) -> None:
    found = told(window, n=hr.agg.count(), mean=hr.agg.mean("v"), tops=hr.agg.top_k("v", 3))
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (hr.tumbling("1m", late="ignore"), "late is 'ignore'; expected one of"),
        (
            hr.tumbling("1m", late="update"),
            "for their allowed lateness, but there is none",
        ),
        (hr.tumbling("1m", "1m", late="update", updates="both"), "updates is 'both'; expected"),
        (hr.tumbling("1m", "1m", updates="retract"), "updates='retract' is for late=\"update\""),
        (
            hr.session("1m", late="update"),
            "for their allowed lateness, but there is none",
        ),
        (
            hr.sliding("1m", "1m", late="update", updates="add"),
            'updates="add" is for early results',
        ),
        (hr.hopping("1h", "5m", early="1h"), "early is '1h'; expected less than the size"),
        (hr.tumbling("1h", early="1ms"), "early is '1ms'; expected at least the size by 10,000"),
        (
            hr.session("5m", "1h", early="1ms"),
            "least gap and allowed lateness by 10,000",
        ),
        (
            hr.session("5m", "30d", early_idle="1s"),
            "least gap and allowed lateness by 10,000",
        ),
        (hr.session("5m", early_idle="5m"), "early_idle is '5m'; expected less than the gap"),
        (hr.tumbling("1h", early_idle="1ms"), "expected at least the size of the window by 10,000"),
        (hr.tumbling("1h", early="1m", early_rows=3), "takes one of early, early_rows, early_idle"),
        (hr.tumbling("1h", early_rows=0), "early_rows is 0; expected a number above zero"),
        (
            hr.hopping("1h", "5m", early=hr.on_count_or_time(3, "1h")),
            "within is '1h'; expected less than the size",
        ),
        (
            hr.session("5m", early=hr.on_count_or_time(0, "1m")),
            "rows of on_count_or_time is 0; expected a number above zero",
        ),
        (
            hr.tumbling("1h", early=hr.on_count_or_time(3, "1m"), early_rows=3),
            "takes one of early, early_rows, early_idle",
        ),
        (hr.count_window(5, early_rows=5), "early_rows is 5; expected less than rows, 5"),
        (
            hr.count_window(5, updates="add"),
            "updates='add' is for late=\"update\" or early results",
        ),
        (hr.global_window(updates="add"), "updates='add' is for rows, every or idle"),
        (hr.global_window(rows=2, updates="both"), "updates is 'both'; expected one of"),
        (hr.sliding("1m", late="ignore"), "late is 'ignore'"),
        (
            hr.hopping("1m", "2m"),
            "every is '2m', more than the size of '1m'; records would be lost",
        ),
        (
            hr.hopping("365d", "1s"),
            "would be in 31,536,000 windows; expected at most 100,000: make every longer than '1s'",
        ),
    ],
)
def test_mistakes_are_told(window: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        windowed(window)


def test_a_side_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(GraphError, match="has no side 'late'"):
        windowed(hr.tumbling("1m"), "late")


def test_an_aggregate_cannot_have_the_name_of_the_flag() -> None:
    window = hr.tumbling("1m", "1h", late="update", updates="retract")
    with pytest.raises(GraphError, match="'is_retraction' has the name of a column of window"):
        windowed(window, is_retraction=hr.agg.count())


def test_windows_that_wait_for_their_grace_cannot_begin_to_update() -> None:
    """Those that ended, and wait, would never be sent."""
    waiting = windowed(hr.tumbling("1m", "1h")).fingerprint
    updating = windowed(hr.tumbling("1m", "1h", late="update")).fingerprint
    retracting = windowed(hr.tumbling("1m", "1h", late="update", updates="retract")).fingerprint
    aside = windowed(hr.tumbling("1m", "1h", late="side_output"), "late").fingerprint
    assert "late was" in changes(waiting, updating)[0]
    assert changes(updating, retracting) == changes(waiting, aside) == []


def test_explain_says_what_is_kept_of_messages() -> None:
    @hr.job("messages")
    def messages(g: hr.Graph) -> None:
        keyed = g.input("events").partition_by("id")
        window = hr.session("30m", "1h", late="update")
        made = keyed.fold(window, {"n": 0}, lambda state, message: state, {"n": int}, name="w")
        made.send_to(g.output("out"))

    text = explain(plan(messages.build(), STREAMS), width=200)
    assert "keeps all messages (24 B and name each) for each key and session sent, until 1h" in text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (hr.tumbling("1h", early_rows=3), hr.tumbling("1h", early_rows=4), "early_rows was 3"),
        (hr.session("1h"), hr.session("1h", early_idle="1m"), "early_idle"),
        (
            hr.tumbling("1h", early=hr.on_count_or_time(3, "1m")),
            hr.tumbling("1h", early=hr.on_count_or_time(3, "2m")),
            "early_within was 1m",
        ),
        (hr.session("1h", "1h"), hr.session("1h", "1h", late="update"), "late"),
        (hr.global_window(rows=3), hr.global_window(rows=3, updates="add"), "updates"),
        (
            hr.hopping("1h", "30m", early="5m"),
            hr.hopping("1h", "30m", early="5m", updates="add"),
            "updates",
        ),
    ],
)
def test_triggers_may_not_change_under_old_state(before: Any, after: Any, said: str) -> None:
    old, new = windowed(before).fingerprint, windowed(after).fingerprint
    assert said in changes(old, new)[0]
    assert changes(old, old) == []
