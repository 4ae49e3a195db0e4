"""Leftovers go, what is named or young stays; one driver for each job on a host."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.coordinator.job_storage import (
    FOLDERS,
    DriverLock,
    JobStorage,
    check_job_name,
)
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.files import Files, is_alive
from headrace.testing import ManualClock


def name(epoch: int, generation: int, rest: str = "0000-abcd.seg") -> str:
    return f"{epoch:012d}-{generation:08d}-{rest}"


@pytest.fixture
def storage(tmp_path: Path) -> JobStorage:
    made = JobStorage(tmp_path / "job", Files(sync=False))
    made.create()
    return made


def test_the_job_folder_is_its_owners_alone(storage: JobStorage) -> None:
    assert storage.root.stat().st_mode & 0o777 == 0o700
    storage.create()


def test_sweep_takes_unnamed_files_of_finished_epochs_only(storage: JobStorage) -> None:
    """Later epochs and generations, named files, and files of other shapes stay."""
    kept: list[Path] = []
    gone: list[Path] = []
    for folder in FOLDERS:
        for epoch, generation in [(1, 1), (5, 3), (5, 4), (6, 3), (6, 9)]:
            path = storage.root / folder / name(epoch, generation)
            path.write_bytes(b"x")
            (gone if epoch <= 5 and generation <= 3 else kept).append(path)
        for odd in ("notes.txt", f".{name(1, 1)}.tmp", "1-1-x"):
            path = storage.root / folder / odd
            path.write_bytes(b"x")
            kept.append(path)
    named = storage.root / "segment" / name(1, 1)
    gone.remove(named)
    assert storage.sweep(5, 3, {f"segment/{named.name}"}) == len(gone)
    assert [path for path in gone if path.exists()] == []
    assert [path for path in [*kept, named] if not path.exists()] == []
    assert storage.sweep(5, 3, {f"segment/{named.name}"}) == 0


@pytest.mark.parametrize("good", ["a", "delay-radar", "A.b_c-9", "0" * 100])
def test_job_names_that_name_a_folder(good: str) -> None:
    assert check_job_name(good) == good


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", "-a", "a b", "ä", "a\n", "0" * 101])
def test_job_names_that_do_not(bad: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used; begin with a letter or digit"):
        check_job_name(bad)


def test_a_second_driver_is_refused_and_told_who_is_first(tmp_path: Path) -> None:
    with DriverLock(tmp_path, "radar") as lock:
        with pytest.raises(
            NotOwnerError, match=f"'radar' is already driven by process {os.getpid()}"
        ):
            DriverLock(tmp_path, "radar")
        lock.release()
        lock.release()
        with DriverLock(tmp_path, "radar"):
            pass


def test_a_lock_that_was_seized_while_it_was_opened_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was opened is not the one that is there now."""
    seized = []

    def late(file: int, how: int, flock: Callable[[int, int], None] = fcntl.flock) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        seized.append(DriverLock(tmp_path, "radar", seize=True))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(NotOwnerError, match=f"already driven by process {os.getpid()}"):
        DriverLock(tmp_path, "radar")
    seized[0].release()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Also when that is killed."""
    code = """
import sys, pathlib
from headrace.coordinator.job_storage import DriverLock
lock = DriverLock(pathlib.Path(sys.argv[1]), "radar")
print("held", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(NotOwnerError, match=f"process {other.pid} on this host; stop that"):
            DriverLock(tmp_path, "radar")
        other.kill()
        other.wait(60)
    DriverLock(tmp_path, "radar").release()


def test_a_holder_that_has_just_begun_is_waited_for(tmp_path: Path) -> None:
    """Until it has written who it is, the file names nobody, or a driver that is gone."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    path = tmp_path / "driver.lock"
    path.write_text(gone.stdout)

    class Waiting(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            path.write_text(f"{os.getpid()}\n")

    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotOwnerError, match=f"process {os.getpid()} on this host"):
            DriverLock(tmp_path, "radar", Waiting())


def test_a_holder_that_never_says_who_it_is(tmp_path: Path) -> None:
    """The refusal comes all the same."""
    with (tmp_path / "driver.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotOwnerError, match="process unknown on this host"):
            DriverLock(tmp_path, "radar", ManualClock())


def test_a_process_that_has_ended_is_not_alive_though_nobody_asked_after_it() -> None:
    """Its number stays taken until its parent looks, which after a kill -9 may be never."""
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
    assert not is_alive(process.pid)
