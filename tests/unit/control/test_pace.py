"""How long a job needs until nothing lies before it."""

from __future__ import annotations

from tests.support.homes import load_settings

from headrace.control.live_job import CatchUpEstimate, LiveJob
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_records import EpochSummary
from headrace.testing import ManualClock


def paced(*marks: tuple[float, int]) -> CatchUpEstimate:
    pace = CatchUpEstimate()
    for now, lag in marks:
        pace.note(now, lag)
    return pace


def test_the_time_is_at_the_pace_of_the_last_epochs() -> None:
    pace = paced((0, 1_000), (10, 800), (20, 600))
    assert pace.eta_s(20) == 30
    assert pace.eta_s(25) == 25
    pace.note(50, 0)
    assert pace.eta_s(50) is None


def test_it_forgets_the_pace_of_long_ago() -> None:
    pace = paced((0, 10_000), *((second, 1_000 - second) for second in range(100, 200)))
    assert pace.eta_s(199) == 801


def test_a_job_that_comes_no_closer_has_none() -> None:
    assert paced().eta_s(0) is None
    assert paced((0, 5)).eta_s(0) is None
    assert paced((0, 5), (10, 5)).eta_s(10) is None
    assert paced((0, 5), (10, 7)).eta_s(10) is None
    assert paced((0, 5), (0.1, 4)).eta_s(0.1) is None


def test_a_driver_tells_it_unless_it_is_paused() -> None:
    clock = ManualClock()
    live = LiveJob("shop", load_settings(None, [], {}), JobControl(), clock)
    told = []
    for epoch, lag in enumerate((100, 80, 60)):
        live.observe(EpochSummary(epoch, 20, 1.0, {}, {}, 0, lag, 0, 0, 0, ended=False))
        told.append(live.eta_s)
        clock.sleep(10)
    assert told == [None, 40, 30]
    live.control.paused.set()
    assert live.eta_s is None
