"""What a driver does between two turns."""

from __future__ import annotations

import pytest

from headrace.coordinator.driver_loop import (
    ControlSignals,
    DriverAction,
    DriverLifecycle,
    DriverPhase,
    DriverStarted,
    EpochDone,
    StepDone,
)
from headrace.errors import InternalError

RUNNING = DriverLifecycle().after(DriverStarted())


@pytest.mark.parametrize(
    ("signals", "phase", "action"),
    [
        (ControlSignals(), DriverPhase.RUNNING, DriverAction.ADVANCE),
        (ControlSignals(finish=True), DriverPhase.RUNNING, DriverAction.END_INPUTS),
        (ControlSignals(paused=True, finish=True), DriverPhase.PAUSED, DriverAction.SERVE),
        (
            ControlSignals(stop=True, paused=True, finish=True),
            DriverPhase.STOPPED,
            DriverAction.RETURN,
        ),
    ],
)
def test_stop_wins_over_a_pause_and_that_over_all_else(
    signals: ControlSignals, phase: DriverPhase, action: DriverAction
) -> None:
    asked = RUNNING.after(signals)
    assert (phase, action) == (asked.phase, asked.action)
    asked.validate()


def test_a_job_that_has_ended_is_not_paused_and_a_turn_finds_nothing() -> None:
    ended = DriverLifecycle().after(DriverStarted(ended=True)).after(ControlSignals(paused=True))
    assert ended.action is DriverAction.ADVANCE
    assert ended.after(EpochDone(committed=False, ended=True)).phase is DriverPhase.ENDED


def test_after_an_epoch_it_rests_and_without_one_it_waits_for_news() -> None:
    turning = RUNNING.after(ControlSignals())
    assert turning.after(EpochDone(committed=True, ended=False)).action is DriverAction.REST
    assert turning.after(EpochDone(committed=False, ended=False)).action is DriverAction.AWAIT


def test_what_cannot_come_of_an_action_is_refused() -> None:
    with pytest.raises(InternalError, match="met StepDone"):
        RUNNING.after(StepDone())
