"""The lease of a job's driver: who holds it, when it counts, and who may let go of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.coordinator.backup.lease import LEASE_S, Holder, Lease, _machine
from headrace.errors import NotOwnerError
from headrace.files import Files
from headrace.testing.clock import ManualClock

FILES = Files(sync=False)


def lease_of(root: Path, host_id: str) -> Lease:
    return Lease(root, "job", host_id, FILES, ManualClock(seed=ord(host_id)))


def write(root: Path, process: int, machine: str) -> None:
    """Let a driver of another host have renewed its lease this instant."""
    holder = Holder("b", "elsewhere", process, machine)
    (root / "lease.json").write_bytes(msgspec.json.encode(holder))


@pytest.fixture
def living() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate()


@pytest.fixture
def dead() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_lease_of_another_host_refuses_until_it_has_run_out(tmp_path: Path) -> None:
    mine, others = lease_of(tmp_path, "a"), lease_of(tmp_path, "b")
    others.take(1)
    with pytest.raises(NotOwnerError, match=f"driven by process {os.getpid()} on host"):
        mine.refuse_others()
    others.refuse_others()
    seen = (tmp_path / "lease.json").stat().st_mtime - LEASE_S - 1
    os.utime(tmp_path / "lease.json", (seen, seen))
    mine.refuse_others()


def test_a_holder_that_is_dead_on_this_machine_is_not_waited_for(
    tmp_path: Path, dead: int, living: int
) -> None:
    """Its number says nothing on another machine, where it may be anybody's or nobody's."""
    mine = lease_of(tmp_path, "a")
    write(tmp_path, dead, _machine())
    mine.refuse_others()
    write(tmp_path, living, _machine())
    with pytest.raises(NotOwnerError, match=f"driven by process {living} on host elsewhere"):
        mine.refuse_others()
    write(tmp_path, dead, "another boot")
    with pytest.raises(NotOwnerError, match=f"driven by process {dead} on host elsewhere"):
        mine.refuse_others()


def test_a_driver_lets_go_of_its_own_lease_only(tmp_path: Path) -> None:
    """One that was taken over from ends later, and the newer driver still lives."""
    older, newer = lease_of(tmp_path, "a"), lease_of(tmp_path, "b")
    older.take(1)
    newer.take(2)
    older.release()
    assert newer.holder()[0] == Holder("b", os.uname().nodename, os.getpid(), _machine())
    newer.release()
    assert newer.holder()[0] is None


def test_a_driver_that_was_taken_over_from_takes_nothing_back(tmp_path: Path) -> None:
    older, newer = lease_of(tmp_path, "a"), lease_of(tmp_path, "b")
    older.take(1)
    older.check()
    newer.take(2)
    for ask in (older.check, lambda: older.take(1), lambda: older.take(2)):
        with pytest.raises(NotOwnerError, match="taken over by generation 2"):
            ask()
    newer.check()
    newer.take(2)  # after a claim whose answer was lost


def test_nothing_but_the_lease_is_left_by_asking(tmp_path: Path) -> None:
    mine = lease_of(tmp_path, "a")
    mine.take(1)
    mine.holder()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["lease.json"]
