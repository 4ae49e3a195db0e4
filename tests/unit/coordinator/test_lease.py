"""The lease of a job's driver: who holds it, when it counts, and who may let go of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.clock import SystemClock
from headrace.coordinator.leader_lease import LEASE_S, LeaderLease, LeaseHolder, this_machine
from headrace.errors import NotOwnerError
from headrace.files import Files
from headrace.testing import ManualClock

FILES = Files(sync=False)


def lease_of(root: Path, host_id: str) -> LeaderLease:
    return LeaderLease(root, "job", host_id, FILES, ManualClock(seed=ord(host_id)))


def write(root: Path, process: int, machine: str) -> None:
    """Let a driver of another host have renewed its lease this instant."""
    holder = LeaseHolder("b", "elsewhere", process, machine)
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
    taken = (tmp_path / "lease.json").stat().st_mtime
    os.utime(tmp_path / "lease.json", (taken - LEASE_S / 2,) * 2)
    with pytest.raises(NotOwnerError, match="driven by process"):
        lease_of(tmp_path, "a").refuse_others()
    os.utime(tmp_path / "lease.json", (taken - LEASE_S - 1,) * 2)
    lease_of(tmp_path, "a").refuse_others()  # to who looked on it would be one that was renewed


def test_a_holder_that_is_dead_on_this_machine_is_not_waited_for(
    tmp_path: Path, dead: int, living: int
) -> None:
    """Its number says nothing on another machine, where it may be anybody's or nobody's."""
    mine = lease_of(tmp_path, "a")
    write(tmp_path, dead, this_machine())
    mine.refuse_others()
    write(tmp_path, living, this_machine())
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
    assert newer.holder()[0] == LeaseHolder("b", os.uname().nodename, os.getpid(), this_machine())
    newer.release()
    assert newer.holder()[0] is None


def test_a_driver_that_was_taken_over_from_takes_nothing_back(tmp_path: Path) -> None:
    older, newer = lease_of(tmp_path, "a"), lease_of(tmp_path, "b")
    older.take(1)
    older.check()
    newer.take(2)
    for ask in (older.check, lambda: older.take(1), lambda: older.take(2)):
        with pytest.raises(NotOwnerError, match=r"taken over by a newer driver \(generation 2"):
            ask()
    newer.check()
    newer.take(2)  # after a claim whose answer was lost


def test_nothing_but_the_lease_is_left_by_asking(tmp_path: Path) -> None:
    mine = lease_of(tmp_path, "a")
    mine.take(1)
    mine.holder()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["lease.json"]


def aged(root: Path, by_s: float) -> None:
    """Let a lease have been renewed so long ago, by the clock of the storage; below 0: ahead."""
    at = SystemClock().now_ms() / 1000 - by_s
    os.utime(root / "lease.json", (at, at))


def test_a_lease_of_the_future_counts_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    """The clock of the storage was ahead when it was renewed; nobody is kept out for that long."""
    write(tmp_path, 7, "another boot")
    aged(tmp_path, -86_400)
    clock = ManualClock()
    LeaderLease(tmp_path, "job", "a", FILES, clock).refuse_others()
    assert clock.monotonic() - ManualClock().monotonic() >= LEASE_S

    class Renewed(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            aged(tmp_path, 0)

    aged(tmp_path, -86_400)
    with pytest.raises(NotOwnerError, match="driven by process 7 on host elsewhere"):
        LeaderLease(tmp_path, "job", "a", FILES, Renewed()).refuse_others()


def test_a_process_that_looks_on_knows_a_living_driver_though_the_storages_clock_jumps(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    looking = LeaderLease(tmp_path, "job", "a", FILES, clock)
    write(tmp_path, 7, "another boot")
    assert looking.holder()[1] < 1
    clock.sleep(5)
    aged(tmp_path, -10)  # renewed
    looking.holder()
    clock.sleep(5)
    aged(tmp_path, 86_400)  # renewed again, and since then the clock has gone ahead by a day
    assert looking.holder()[1] < 1
    clock.sleep(LEASE_S + 1)
    assert looking.holder()[1] > LEASE_S
    aged(tmp_path, -86_400)
    assert looking.holder()[1] < 1
    clock.sleep(LEASE_S + 1)
    assert looking.holder()[1] > LEASE_S
