"""Clocks and budgets of time."""

from __future__ import annotations

import time

import pytest

from headrace.clock import Deadline, SystemClock
from headrace.testing import ManualClock


def test_the_system_clock_is_the_machines() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= before + 60_000
    first = clock.monotonic()
    clock.sleep(0)
    assert clock.monotonic() >= first


def test_names_are_sixteen_digits_and_never_repeat() -> None:
    names = {SystemClock().new_id() for _ in range(1000)}
    assert len(names) == 1000
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)


def test_a_deadline_is_one_budget_for_all() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, 10)
    assert (deadline.remaining(), deadline.remaining(3), deadline.expired) == (10, 3, False)
    clock.sleep(8)
    assert deadline.remaining(3) == pytest.approx(2)
    clock.sleep(2)
    assert (deadline.remaining(), deadline.expired) == (0, True)
    clock.sleep(5)
    assert deadline.remaining() == 0


def test_no_budget_never_ends() -> None:
    clock = ManualClock()
    deadline = Deadline(clock, None)
    clock.advance(10**12)
    assert deadline.remaining() == float("inf")
    assert deadline.remaining(5) == 5
    assert not deadline.expired


def test_a_budget_of_nothing_is_over() -> None:
    assert Deadline(ManualClock(), 0).expired
