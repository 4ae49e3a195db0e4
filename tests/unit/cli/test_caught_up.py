"""When a backfill in the place of the live job is over."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

from headrace.cli.run.runner import CatchUpMonitor, Scaling
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup


class TwoParts:
    """Parts of which the second has to read what the first sends."""

    state = SimpleNamespace(ended=False)

    def __init__(self) -> None:
        self.behind = {"first": 5, "second": 0}

    def lags(self) -> dict[str, int]:
        return dict(self.behind)


def done(job: str, lag: int) -> EpochSummary:
    return EpochSummary(1, 5, 1.0, {}, {}, 0, lag, 0, 0, 0, ended=False, job=job)


def test_a_run_of_parts_has_caught_up_when_the_last_one_has() -> None:
    parts, control = TwoParts(), JobControl()
    scaling = Scaling(ends=True)
    scaling.begin(cast("JobGroup", parts), control)

    parts.behind = {"first": 0, "second": 5}
    scaling.observe(done("first", 0), control, 0.0)
    assert not control.stop.is_set()

    parts.behind = {"first": 0, "second": 0}
    scaling.observe(done("second", 0), control, 0.0)
    assert scaling.has_caught_up
    assert control.stop.is_set()


def told_at_each_second(scaling: Scaling, comes: int, reads: int, seconds: int) -> dict[int, str]:
    """What is told, by the second, of a job that is 1,000 rows behind when it begins."""
    control, lag = JobControl(), 1_000
    scaling.begin(cast("JobGroup", OnePart()), control)
    found = {}
    for second in range(seconds):
        lag = max(0, lag + comes - reads)
        summary = dataclasses.replace(done("first", lag), rows=reads)
        line = scaling.observe(summary, control, float(second))
        if line is not None:
            found[second] = line
    return found


class OnePart:
    """A part that is behind."""

    state = SimpleNamespace(ended=False)

    def lags(self) -> dict[str, int]:
        return {"first": 1_000}


def test_a_rate_below_what_comes_in_is_told_with_both_and_what_to_do() -> None:
    told = told_at_each_second(Scaling(ends=True, rate=10), comes=25, reads=10, seconds=700)
    assert list(told) == [30, 330, 630]
    assert told[30] == (
        "the job never catches up at this pace: it reads 10 rows a second (at most 10, by "
        "--rate), and 25 a second come in; 1,465 lie before it. Stop it, and give the same "
        "command with a --rate above 25 that leaves it room, or none; it continues from where it is"
    )


def test_a_job_that_is_too_slow_by_itself_is_told_to_have_more() -> None:
    told = told_at_each_second(Scaling(ends=True), comes=25, reads=25, seconds=32)
    assert "with more tasks, executors or cores (--tasks, --executors, --cores)" in told[30]
    assert "--rate" not in told[30]
    by_rate = told_at_each_second(Scaling(ends=True, rate=90), comes=25, reads=10, seconds=32)
    assert "it reads 10 rows a second, and 25 a second come in" in by_rate[30]


def test_a_job_that_comes_closer_or_is_not_to_end_is_told_nothing() -> None:
    assert not told_at_each_second(Scaling(ends=True, rate=10), comes=9, reads=10, seconds=900)
    assert not told_at_each_second(Scaling(rate=10), comes=25, reads=10, seconds=900)


def test_of_a_job_in_parts_no_rate_is_made_up() -> None:
    pursuit = CatchUpMonitor(rate=10)
    assert pursuit.note(0.0, 10, [5, 5]) is None
    told = pursuit.note(31.0, 310, [5, 50])
    assert told is not None
    assert "it reads 10 rows a second (at most 10, by --rate); 55 lie before it" in told
    assert "with a --rate that leaves it room, or none" in told
