"""A full disk is waited for: with a word, until there is room, a limit, or a wish to stop."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from headrace.coordinator.driver_loop import RetryPolicy
from headrace.errors import UnavailableError
from headrace.files import DiskFullError, disk_error
from headrace.testing import ManualClock


def refusing(times: int, error: Exception) -> Callable[[], str]:
    left = [times]

    def step() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return step


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/jobs/x.seg")


@pytest.mark.parametrize("error", [full(), disk_error(full()), OSError(errno.EDQUOT, "quota")])
def test_it_goes_on_when_there_is_room(error: Exception) -> None:
    told: list[str] = []
    clock = ManualClock()
    retry = RetryPolicy(clock, threading.Event(), None, told.append)
    began = clock.monotonic()
    assert retry.retry_while_blocked(refusing(5, error)) == "done"
    assert clock.monotonic() - began == pytest.approx(5)
    assert len(told) == 2
    assert "the disk refused" in told[0]
    assert "the job waits for room" in told[0]
    assert told[1] == "there is room again after 5 s; the job continues"


def test_a_limit_ends_the_waiting() -> None:
    clock = ManualClock()
    with pytest.raises(DiskFullError, match=r"/jobs/x\.seg: No space left"):
        RetryPolicy(clock, threading.Event(), 3.0).retry_while_blocked(
            refusing(100, disk_error(full()))
        )
    with pytest.raises(OSError, match="No space left"):
        RetryPolicy(clock, threading.Event(), 0.0).retry_while_blocked(refusing(1, full()))


def test_a_wish_to_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    told: list[str] = []

    def notify(line: str) -> None:
        told.append(line)
        stop.set()

    assert (
        RetryPolicy(ManualClock(), stop, None, notify).retry_while_blocked(refusing(100, full()))
        is None
    )
    assert len(told) == 1


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, "too large"), UnavailableError("no answer"), ValueError("x")]
)
def test_other_errors_are_not_waited_for(error: Exception) -> None:
    with pytest.raises(type(error)):
        RetryPolicy(ManualClock(), threading.Event()).retry_while_blocked(refusing(1, error))
