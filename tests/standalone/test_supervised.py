"""``headrace run --supervise``: what it starts again, what not, and that nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import done
from tests.support.processes import is_alive, until
from tests.support.shop import EXPECTED, ROWS, Shop, ended, next_line

RUN = ("run", "shop.py:counts", "--standalone", "--supervise", "--json")
QUICK = ("--set", "supervise.first_wait_s=0.01")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    made = Shop(tmp_path)
    yield made
    made.close()


def driver_of(folder: Path) -> int:
    """Return the process that has the lock of the job, once there is one that lives."""
    lock = folder / ".headrace" / "jobs" / "counts" / "driver.lock"

    def holder() -> int:
        text = lock.read_text().strip() if lock.exists() else ""
        return int(text) if text and is_alive(int(text)) else 0

    until(holder, "a driver")
    return holder()


def said(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_killed_driver_is_started_again_and_the_parent_passes_on_a_stop(shop: Shop) -> None:
    """The next one continues; SIGTERM of the parent ends it as if it had got that itself."""
    parent = shop.start(*RUN, *QUICK)
    until(lambda: shop.counted().total() == ROWS, "the first rows")
    first = driver_of(shop.folder)
    assert first != parent.pid
    os.kill(first, signal.SIGKILL)
    lines = iter(lambda: said(next_line(parent.stdout)), None)
    told = next(one for one in lines if one["type"] == "supervisor")
    assert (told["process"], told["signal"], told["restarts"]) == (first, "SIGKILL", 1)
    assert f"process {first}, was killed by SIGKILL" in told["text"]
    shop.order()
    until(lambda: shop.counted().total() == ROWS + 1, "the last row")
    assert driver_of(shop.folder) != first
    parent.send_signal(signal.SIGTERM)
    assert ended(parent)[0] == 130
    events = json.loads(done("jobs", "describe", "counts", "--json"))["events"]
    assert [one["kind"] for one in events if "SIGKILL" in one["text"]] == ["restart"]


def test_a_driver_whose_parent_is_killed_stops(shop: Shop) -> None:
    parent = shop.start(*RUN, *QUICK)
    until(lambda: shop.counted().total() == ROWS, "the first rows")
    child = driver_of(shop.folder)
    parent.kill()
    until(lambda: not is_alive(child), "the child to end")
    events = json.loads(done("jobs", "describe", "counts", "--json"))["events"]
    assert events[-1]["text"] == "the driver stopped, as requested"


def test_what_fails_the_same_again_is_not_started_again(shop: Shop) -> None:
    """A function of the user's that raises, and an end of the inputs."""
    failed = shop.start("run", "shop.py:shares", "--standalone", "--supervise", "--bounded")
    code, _, err = ended(failed)
    assert code == 1
    assert err.count("HR102") == 2  # the child's own words, and why no other follows
    assert "not started again: the job, its settings or its data are invalid" in err
    bounded = shop.start(*RUN, "--bounded")
    assert ended(bounded)[0] == 0
    assert shop.counted() == EXPECTED
