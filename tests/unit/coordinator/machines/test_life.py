"""What a driver does between two turns."""

from __future__ import annotations

import pytest

from headrace.coordinator.machines.life import Action, Begun, Done, Life, Phase, Turned, Wishes
from headrace.errors import InternalError

RUNNING = Life().after(Begun())


@pytest.mark.parametrize(
    ("wishes", "phase", "action"),
    [
        (Wishes(), Phase.RUNNING, Action.TURN),
        (Wishes(finish=True), Phase.RUNNING, Action.END_INPUTS),
        (Wishes(paused=True, finish=True), Phase.PAUSED, Action.SERVE),
        (Wishes(stop=True, paused=True, finish=True), Phase.STOPPED, Action.RETURN),
    ],
)
def test_stop_wins_over_a_pause_and_that_over_all_else(
    wishes: Wishes, phase: Phase, action: Action
) -> None:
    asked = RUNNING.after(wishes)
    assert (phase, action) == (asked.phase, asked.action)
    asked.validate()


def test_a_job_that_has_ended_is_not_paused_and_a_turn_finds_nothing() -> None:
    ended = Life().after(Begun(ended=True)).after(Wishes(paused=True))
    assert ended.action is Action.TURN
    assert ended.after(Turned(committed=False, ended=True)).phase is Phase.ENDED


def test_after_an_epoch_it_rests_and_without_one_it_waits_for_news() -> None:
    turning = RUNNING.after(Wishes())
    assert turning.after(Turned(committed=True, ended=False)).action is Action.REST
    assert turning.after(Turned(committed=False, ended=False)).action is Action.AWAIT


def test_what_cannot_come_of_an_action_is_refused() -> None:
    with pytest.raises(InternalError, match="met Done"):
        RUNNING.after(Done())
