"""When a standby driver begins: not while another lives, nor while one that has just begun does."""

from __future__ import annotations

import pytest

from headrace.coordinator.driver_standby import LeaderView, StandbyStep, next_step
from headrace.coordinator.leader_lease import LeaseHolder

HOLDER = LeaseHolder("a", "alpha", 7, "m", 30.0)
CASES = {
    "there was never a driver": (LeaderView(), StandbyStep.DRIVE),
    "a driver has just begun": (LeaderView(locked_by=8), StandbyStep.WAIT),
    "a driver lives": (LeaderView(HOLDER, 29.0, locked_by=7), StandbyStep.WAIT),
    "a driver elsewhere lives": (LeaderView(HOLDER, 29.0), StandbyStep.WAIT),
    "a driver here was killed": (LeaderView(HOLDER, 1.0, is_dead=True), StandbyStep.DRIVE),
    "another follows it already": (
        LeaderView(HOLDER, 1.0, is_dead=True, locked_by=8),
        StandbyStep.WAIT,
    ),
    "another follows one that died long ago": (
        LeaderView(HOLDER, 99.0, locked_by=8),
        StandbyStep.WAIT,
    ),
    "a driver here is frozen": (LeaderView(HOLDER, 31.0, locked_by=7), StandbyStep.FENCE),
    "a driver elsewhere is silent": (LeaderView(HOLDER, 31.0), StandbyStep.FENCE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_standby_driver_begins_once_nobody_drives(case: str) -> None:
    seen, step = CASES[case]
    assert next_step(seen) is step
