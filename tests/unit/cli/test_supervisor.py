"""When a driver that has ended is started again, and after which wait."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.cli.run.supervisor import Backoff, ChildEnd
from headrace.cli.supervised import ChildReport
from headrace.config.sections import SuperviseSettings


def test_waits_double_up_to_a_bound_and_start_over_after_a_good_while() -> None:
    backoff = Backoff(SuperviseSettings(first_wait_s=1, max_wait_s=5, reset_after_s=100))
    assert [backoff.next_s(3) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert [backoff.next_s(100), backoff.next_s(99)] == [1, 2]
    assert [backoff.next_s(0) for _ in range(2000)][-1] == 5


def test_it_gives_up_after_so_many_restarts_in_a_row() -> None:
    backoff = Backoff(SuperviseSettings(max_restarts=2))
    assert [backoff.next_s(0) for _ in range(3)] == [1, 2, None]
    assert backoff.next_s(300) == 1


@pytest.mark.parametrize("code", [3, 70, 137, -signal.SIGKILL, -signal.SIGSEGV])
def test_what_may_pass_is_tried_again(code: int) -> None:
    assert ChildEnd(1, code, 1.0, ChildReport()).final(is_standby=False) == ""


@pytest.mark.parametrize("code", [0, 1, 2, 4, 5, 130, 141, 143, -signal.SIGTERM])
def test_what_is_done_asked_for_or_would_be_the_same_is_not(code: int) -> None:
    assert ChildEnd(1, code, 1.0, ChildReport()).final(is_standby=False)
    assert bool(ChildEnd(1, code, 1.0, ChildReport()).final(is_standby=True)) == (code != 4)


def test_a_bounded_run_that_was_killed_after_its_end_is_not_begun_once_more(tmp_path: Path) -> None:
    said = ChildReport(storage=str(tmp_path), lineage="a", bounded=True)
    end = ChildEnd(1, -signal.SIGKILL, 1.0, said)
    assert end.final(is_standby=False) == ""
    (tmp_path / "concluded").write_text("b")  # of the run before
    assert end.final(is_standby=False) == ""
    (tmp_path / "concluded").write_text("a")
    assert end.final(is_standby=False) == "its run had come to its end"
