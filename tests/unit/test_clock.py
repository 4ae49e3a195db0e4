"""Clocks and budgets of time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.clock import ClockDeviation, Deadline, SteadyClock, SystemClock
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


DAY = 86_400_000


def steady(path: Path, clock: ManualClock) -> SteadyClock:
    return SteadyClock(clock, record=path / "clock.json")


def test_a_steady_clock_follows_what_is_put_right_in_small_steps() -> None:
    clock = ManualClock()
    believed = SteadyClock(clock)
    for step in (50_000, -59_000, 10, 60_000):
        clock.jump(step)
        assert (believed.now_ms(), believed.doubt) == (clock.now_ms(), None)


def test_a_steady_clock_that_may_jump_as_it_likes_is_the_clock() -> None:
    clock = ManualClock()
    believed = SteadyClock(clock, max_jump_ms=None)
    believed.now_ms()
    clock.jump(DAY)
    assert (believed.now_ms(), believed.doubt) == (clock.now_ms(), None)


def test_processes_of_one_boot_believe_the_same(tmp_path: Path) -> None:
    clock = ManualClock()
    first = steady(tmp_path, clock)
    right = first.now_ms()
    clock.jump(DAY)
    second = steady(tmp_path, clock)
    assert (first.now_ms(), second.now_ms()) == (right, right)
    clock.advance(2_000)
    assert second.accept() == ClockDeviation(right + DAY + 2_000, right + 2_000)
    assert first.now_ms() == right + DAY + 2_000
    assert first.doubt is None
    assert steady(tmp_path, clock).now_ms() == right + DAY + 2_000


def test_better_evidence_counts_more_than_the_record(tmp_path: Path) -> None:
    clock = ManualClock()
    believed = steady(tmp_path, clock)
    right = believed.now_ms() - DAY
    believed.believe(right)
    for _ in range(3):
        clock.advance(2_000)
        right += 2_000
        assert believed.now_ms() == right
    assert believed.doubt == ClockDeviation(right + DAY, right)
    steady(tmp_path, clock).accept()
    clock.advance(2_000)
    assert believed.now_ms() == right + DAY + 2_000


@pytest.mark.parametrize("content", [b"", b"[]", b'{"manual": 5}', b'{"manual": ["x", 1]}'])
def test_a_record_that_cannot_be_read_is_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clock.json").write_bytes(content)
    clock = ManualClock()
    assert steady(tmp_path, clock).now_ms() == clock.now_ms()
    clock.jump(DAY)
    assert steady(tmp_path, clock).now_ms() == clock.now_ms() - DAY


def test_a_machine_that_was_started_again_has_a_time_of_its_own(tmp_path: Path) -> None:
    class Booted(ManualClock):
        def uptime(self) -> tuple[str, float]:
            return "another", super().uptime()[1]

    assert steady(tmp_path, ManualClock()).now_ms() == ManualClock().now_ms()
    later = ManualClock().now_ms() + DAY
    assert steady(tmp_path, Booted(later)).now_ms() == later
    assert steady(tmp_path / "nowhere", Booted(later)).now_ms() == later


def test_the_system_clock_knows_its_boot_and_that_of_files(tmp_path: Path) -> None:
    clock = SystemClock()
    (boot, first), (again, second) = clock.uptime(), clock.uptime()
    assert boot == again
    assert 0 < first <= second
    (tmp_path / "file").touch()
    assert abs(clock.storage_ms(tmp_path / "file") - clock.now_ms()) < 60_000
