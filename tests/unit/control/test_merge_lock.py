"""A driver that is still as long as somebody merges into its job, and no longer."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.clock import Deadline, SystemClock
from headrace.config import Settings, load_settings
from headrace.control import merge_lock
from headrace.control.merge_lock import MergeHold, MergeLock, Merger, merger_of
from headrace.coordinator.loop import Control
from headrace.coordinator.reprocessing.unmerged import (
    Note,
    begun,
    check_goes_on,
    is_noted,
    merging,
)
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.files import Files
from headrace.testing.processes import wait_until

CLOCK = SystemClock()
HOLDER = """
import sys
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.control.merge_lock import MergeLock

with MergeLock(load_settings(None, ["home=" + sys.argv[1]], {}), "shop", "old", SystemClock()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, [f"home={tmp_path}"], {})


def until_free(control: Control) -> None:
    wait_until(lambda: not control.merging.is_set(), Deadline(CLOCK, 30), "the end of the hold")


def test_one_process_at_a_time_merges_into_a_job(settings: Settings) -> None:
    with MergeLock(settings, "shop", "old", CLOCK), MergeLock(settings, "other", "old", CLOCK):
        held = merger_of(settings, "shop")
        assert held is not None
        assert held.other == "old"
        with pytest.raises(NotOwnerError, match="is being merged with 'old' by process"):
            MergeLock(settings, "shop", "older", CLOCK)
    assert merger_of(settings, "shop") is None
    MergeLock(settings, "shop", "older", CLOCK).close()


def test_a_driver_goes_on_when_the_merge_is_done(settings: Settings) -> None:
    control, told = Control(), list[str]()
    hold = MergeHold(settings, "shop", control, told.append)
    assert not hold.look()
    with MergeLock(settings, "shop", "old", CLOCK):
        assert hold.look()
        assert control.is_paused
        control.paused.set()  # somebody pauses the job meanwhile, which the merge does not undo
    until_free(control)
    assert (control.is_paused, told) == (True, [])
    hold.close()


def test_a_driver_goes_on_when_who_merges_is_killed_and_tells_so(settings: Settings) -> None:
    control, told = Control(), list[str]()
    hold = MergeHold(settings, "shop", control, told.append)
    words = (sys.executable, "-c", HOLDER, str(settings.home))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        began = Note("r", {"a": 3}, ("k",), by_function=True)
        with pytest.raises(RuntimeError), merging(settings, "old", began, Files(), CLOCK):
            raise RuntimeError  # as far as the process came
        assert hold.look()
        assert hold.look()
        process.kill()
    until_free(control)
    wait_until(lambda: told, Deadline(CLOCK, 30), "word of it")
    assert told == [
        "the merge of old into job shop ended before it was done, and the job goes on; to complete "
        "it, give the command that began it again, in the same words"
    ]
    assert begun(settings, "old", "r") == began
    with pytest.raises(InvalidInputError, match="merge of an earlier run of 'old' was begun and"):
        begun(settings, "old", "another run")
    assert is_noted(settings, "old")
    hold.close()


def test_a_lock_that_cannot_be_looked_at_for_once_holds_nobody_for_good(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*given: Any) -> Merger | None:
        if not failed:
            failed.append(OSError(errno.ENOLCK, "No locks available"))
            raise failed[0]
        return merger_of(*given)

    control, failed = Control(), list[OSError]()
    hold = MergeHold(settings, "shop", control, lambda line: None)
    with MergeLock(settings, "shop", "old", CLOCK):
        assert hold.look()
        monkeypatch.setattr(merge_lock, "merger_of", look)
        wait_until(lambda: bool(failed), Deadline(CLOCK, 30), "a look that fails")
    until_free(control)
    hold.close()


def test_a_merge_that_an_older_version_began_has_one_part(settings: Settings) -> None:
    note = settings.jobs_dir / "old" / "merging"
    note.parent.mkdir(parents=True)
    note.write_text("run")
    found = begun(settings, "old", "run")
    assert found == Note("run", {})
    check_goes_on(found, "old", ("k",), by_function=True)
    note.write_text('{"run":"run","parts":{"a":3}}')
    later = begun(settings, "old", "run")
    assert later == Note("run", {"a": 3}, None, None)
    check_goes_on(later, "old", (), by_function=False)
