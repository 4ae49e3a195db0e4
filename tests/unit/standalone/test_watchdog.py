"""A process that is frozen is told from one that is busy, waits, or is looked at."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.standalone import slots
from headrace.standalone.slots import ProcessActivity, Watchdog, process_activity


def beats(
    monkeypatch: pytest.MonkeyPatch, seen: Iterator[ProcessActivity | None], count: int
) -> int:
    """Return after how many beats a process is frozen; 0: it is not."""
    monkeypatch.setattr(slots, "process_activity", lambda process: next(seen))
    found = Watchdog(1, 2.0)
    return next((n for n in range(1, count + 1) if found.beat(0.5)), 0)


@pytest.mark.parametrize("state", ["T", "S", "D"])
def test_who_is_silent_and_does_not_run_is_frozen(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The first beat waits for an answer, the second notes how far it has run."""
    assert beats(monkeypatch, itertools.repeat(ProcessActivity(state, 7)), 20) == 6


@pytest.mark.parametrize(
    "seen",
    [
        itertools.repeat(ProcessActivity("R", 7)),
        itertools.repeat(ProcessActivity("t", 7)),
        (ProcessActivity("S", ticks) for ticks in itertools.count()),
        itertools.repeat(None),
    ],
    ids=["waits for a processor", "is debugged", "runs", "is not known"],
)
def test_who_is_silent_for_another_reason_is_not(
    monkeypatch: pytest.MonkeyPatch, seen: Iterator[ProcessActivity | None]
) -> None:
    assert beats(monkeypatch, seen, 50) == 0


def test_a_sign_of_life_begins_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "process_activity", lambda process: ProcessActivity("S", 7))
    found = Watchdog(1, 2.0)
    for _ in range(40):
        found.heard()
        assert [found.beat(0.5) for _ in range(4)] == [False] * 4


@contextmanager
def sleeping() -> Iterator[int]:
    code = "import signal\nprint('here', flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_what_the_kernel_says_of_a_stopped_process() -> None:
    with sleeping() as process:
        found = process_activity(process)
        assert found is not None
        assert found.state in "RSD"
        os.kill(process, signal.SIGSTOP)
        while (found := process_activity(process)) is not None and found.state != "T":
            os.sched_yield()
        assert found is not None
        assert process_activity(process) == found
    assert process_activity(process) is None
    own = process_activity(os.getpid())
    assert own is not None
    assert own.ticks > 0
