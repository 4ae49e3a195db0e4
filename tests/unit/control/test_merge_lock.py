"""A driver that is still as long as somebody merges into its job, and no longer."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.bus.memory import MemoryBus
from headrace.clock import Deadline, SystemClock
from headrace.config import Settings, load_settings
from headrace.control import quiesce
from headrace.control.quiesce import MergeHold, MergeHolder, MergeLock, merge_holder
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.operations.paired_jobs import (
    MergeMarker,
    check_same_merge,
    has_merge_marker,
    merge_marker,
    unfinished_merge,
)
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.files import Files
from headrace.testing.servers import wait_until

CLOCK = SystemClock()
HOLDER = """
import sys
from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.control.quiesce import MergeLock

with MergeLock(load_settings(None, ["home=" + sys.argv[1]], {}), "shop", "old", SystemClock()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, [f"home={tmp_path}"], {})


def until_free(control: JobControl) -> None:
    wait_until(lambda: not control.merging.is_set(), Deadline(CLOCK, 30), "the end of the hold")


def test_one_process_at_a_time_merges_into_a_job(settings: Settings) -> None:
    with MergeLock(settings, "shop", "old", CLOCK), MergeLock(settings, "other", "old", CLOCK):
        held = merge_holder(settings, "shop")
        assert held is not None
        assert held.other == "old"
        with pytest.raises(NotOwnerError, match="is being merged with 'old' by process"):
            MergeLock(settings, "shop", "older", CLOCK)
    assert merge_holder(settings, "shop") is None
    MergeLock(settings, "shop", "older", CLOCK).close()


def test_a_driver_goes_on_when_the_merge_is_done(settings: Settings) -> None:
    control, told = JobControl(), list[str]()
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
    control, told = JobControl(), list[str]()
    hold = MergeHold(settings, "shop", control, told.append)
    words = (sys.executable, "-c", HOLDER, str(settings.home))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        context = JobContext(settings, "shop", MemoryBus(), Files(), CLOCK)
        began = MergeMarker("r", {"a": 3}, ("k",), by_function=True)
        with pytest.raises(RuntimeError), merge_marker(context, "old", began):
            raise RuntimeError  # as far as the process came
        assert hold.look()
        assert hold.look()
        process.kill()
    until_free(control)
    wait_until(lambda: told, Deadline(CLOCK, 30), "word of it")
    assert told == [
        "the merge of old into job shop ended before it was done, and the job continues; to "
        "complete it, give the command that began it again, in the same words"
    ]
    assert unfinished_merge(settings, "old", "r") == began
    with pytest.raises(InvalidInputError, match="merge of an earlier run of 'old' was begun and"):
        unfinished_merge(settings, "old", "another run")
    assert has_merge_marker(settings, "old")
    hold.close()


def test_a_lock_that_cannot_be_looked_at_for_once_holds_nobody_for_good(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*given: Any) -> MergeHolder | None:
        if not failed:
            failed.append(OSError(errno.ENOLCK, "No locks available"))
            raise failed[0]
        return merge_holder(*given)

    control, failed = JobControl(), list[OSError]()
    hold = MergeHold(settings, "shop", control, lambda line: None)
    with MergeLock(settings, "shop", "old", CLOCK):
        assert hold.look()
        monkeypatch.setattr(quiesce, "merge_holder", look)
        wait_until(lambda: bool(failed), Deadline(CLOCK, 30), "a look that fails")
    until_free(control)
    hold.close()


def test_a_merge_that_an_older_version_began_has_one_part(settings: Settings) -> None:
    note = settings.jobs_dir / "old" / "merging"
    note.parent.mkdir(parents=True)
    note.write_text("run")
    found = unfinished_merge(settings, "old", "run")
    assert found == MergeMarker("run", {})
    check_same_merge(found, "old", ("k",), by_function=True)
    note.write_text('{"run":"run","parts":{"a":3}}')
    later = unfinished_merge(settings, "old", "run")
    assert later == MergeMarker("run", {"a": 3}, None, None)
    check_same_merge(later, "old", (), by_function=False)
