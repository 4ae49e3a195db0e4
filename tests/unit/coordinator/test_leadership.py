"""How a process comes to drive a job: it is refused, or takes over, and keeps it or loses it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import remove

import headrace as hr
from headrace.clock import SystemClock
from headrace.coordinator import leadership
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_events import JobEventFile
from headrace.coordinator.job_run import end_reported
from headrace.coordinator.job_storage import DriverLock
from headrace.coordinator.leader_lease import LeaderLease
from headrace.coordinator.leadership import keep_leadership, take_leader_lock
from headrace.errors import NotOwnerError
from headrace.files import Files
from headrace.testing import ManualClock, TestDriver, call_at

FILES = Files(sync=False)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[DriverLock]:
    """The lock of a driver of this very process: a lock is one of an open file."""
    lock = DriverLock(tmp_path, "shop")
    log_of(tmp_path).take_generation({"process": 7, "host": "far"})
    yield lock
    lock.release()


def log_of(root: Path) -> FileCommitLog:
    return FileCommitLog(root, FILES)


def taking(root: Path, told: list[str], *, takes_over: bool) -> DriverLock:
    clock = ManualClock()
    return take_leader_lock(root, "shop", clock, FILES, told.append, takes_over=takes_over)


def test_a_second_driver_is_refused_and_told_how_to_take_over(
    tmp_path: Path, held: DriverLock
) -> None:
    with (
        pytest.raises(NotOwnerError, match="already driven by process") as refused,
        taking(tmp_path, [], takes_over=False),
    ):
        pass
    assert refused.value.also == "with --takeover it is fenced, and this one drives"
    assert log_of(tmp_path).newest_generation()[0] == 1


def test_a_driver_that_lets_go_is_fenced_first(tmp_path: Path, held: DriverLock) -> None:
    told: list[str] = []

    class LetsGo(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            assert log_of(tmp_path).newest_generation()[0] == 2
            held.release()

    over = take_leader_lock(tmp_path, "shop", LetsGo(), FILES, told.append, takes_over=True)
    with over, pytest.raises(NotOwnerError):
        DriverLock(tmp_path, "shop", ManualClock())
    assert told == [
        "job 'shop' is taken over from process 7 on far, of generation 1; it has 15 s to stop"
    ]
    (event,) = JobEventFile(tmp_path).read()
    assert event.text == "job 'shop' is taken over from process 7 on far, of generation 1"
    DriverLock(tmp_path, "shop").release()


def test_the_lock_of_a_driver_that_does_not_let_go_is_taken_away(
    tmp_path: Path, held: DriverLock
) -> None:
    told: list[str] = []
    with taking(tmp_path, told, takes_over=True):
        assert "its lock is taken away" in told[-1]
        held.release()  # that of the file that nobody finds
        with pytest.raises(NotOwnerError):
            DriverLock(tmp_path, "shop", ManualClock())
    DriverLock(tmp_path, "shop").release()


class Meanwhile(ManualClock):
    """A clock in whose first sleep something happens; then the driver lets go."""

    def __init__(self, held: DriverLock, happens: Callable[[], object]) -> None:
        super().__init__()
        self._held, self._happens = held, happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._happens()
        self._happens = self._held.release


def test_of_two_that_take_over_at_once_the_last_one_drives(
    tmp_path: Path, held: DriverLock
) -> None:
    """The other does not take the lock away from it, and says who drives."""
    told, log = list[str](), log_of(tmp_path)
    clock = Meanwhile(held, lambda: log.take_generation({"process": 8, "host": "far"}))
    with (
        pytest.raises(NotOwnerError, match="process 8 on far takes job 'shop' over at the same"),
        take_leader_lock(tmp_path, "shop", clock, FILES, told.append, takes_over=True),
    ):
        pass
    assert log.newest_generation() == (3, {"process": 8, "host": "far"})
    assert len(told) == 1
    with pytest.raises(NotOwnerError):  # its lock is as it was
        DriverLock(tmp_path, "shop", ManualClock())


def test_who_takes_over_from_one_that_was_about_to_says_so(
    tmp_path: Path, held: DriverLock
) -> None:
    told, log = list[str](), log_of(tmp_path)
    log.take_generation({"process": 8, "host": "far", "takes_over": 1})
    clock = Meanwhile(held, lambda: None)
    with take_leader_lock(tmp_path, "shop", clock, FILES, told.append, takes_over=True):
        pass
    assert told == [
        "job 'shop' is taken over from process 8 on far, which was about to take it over itself, "
        "of generation 2; it has 15 s to stop"
    ]


def test_a_driver_that_begins_while_it_is_fenced_is_fenced_anew(
    tmp_path: Path, held: DriverLock
) -> None:
    """It takes its generation after the one that was to fence it."""
    log = log_of(tmp_path)
    clock = Meanwhile(held, lambda: log.take_generation({"process": 7, "host": "far"}))
    said = list[str]()
    with take_leader_lock(tmp_path, "shop", clock, FILES, said.append, takes_over=True):
        newest, holder = log.newest_generation()
    assert (newest, holder["process"]) == (4, os.getpid())


def test_without_another_driver_a_takeover_is_a_start(tmp_path: Path) -> None:
    told: list[str] = []
    with taking(tmp_path, told, takes_over=True):
        assert told == []
    assert log_of(tmp_path).newest_generation()[0] == 0


def test_a_driver_that_waits_finds_that_a_newer_one_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LOOK_S", 0.01)
    control, log = JobControl(), log_of(tmp_path)
    lease = LeaderLease(tmp_path, "shop", "here", FILES, SystemClock())
    before = set(threading.enumerate())

    def drive() -> None:
        with keep_leadership(lease, tmp_path, "shop", control, FILES):
            assert lease.holder()[0] == lease.mine
            log.take_generation({"process": 7, "host": "far"})
            assert control.stop.wait(30)

    with pytest.raises(
        NotOwnerError, match=r"by a newer driver \(generation 1, process 7 on far\)"
    ):
        drive()
    assert control.fenced.is_set()
    assert set(threading.enumerate()) <= before
    assert lease.holder()[0] == lease.mine  # it is the next driver's now, or runs out


def test_its_own_generation_is_none_of_another_and_its_lease_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LOOK_S", 0.01)
    control, log = JobControl(), log_of(tmp_path)
    lease = LeaderLease(tmp_path, "shop", "here", FILES, SystemClock())
    with keep_leadership(lease, tmp_path, "shop", control, FILES):
        mine = lease.mine
        log.take_generation({"process": mine.process, "host": mine.host})
        assert not control.stop.wait(0.1)
    assert lease.holder()[0] is None


@hr.job("shop")
def shop(g: hr.Graph) -> None:
    g.input("in").send_to(g.output("out"))


@pytest.mark.parametrize("point", ["epoch.before_commit", "commit.written", "commit.published", ""])
def test_whatever_refuses_a_driver_first_its_end_is_told_in_one_way(
    tmp_path: Path, point: str
) -> None:
    """By a look, by the folder of the job, by a stream, or by the thread that looks by itself."""
    home: dict[str, Any] = {"home": tmp_path, "memory_bus": False}
    with TestDriver(shop, **home) as old, TestDriver(shop, **home) as new:
        old.create("in", {"n": pa.int64()})
        part, control = old.start(), JobControl()
        old.feed("in", [{"n": 1}])
        if point:
            with (
                call_at(point, new.start),
                pytest.raises(NotOwnerError) as raised,
                end_reported(part, control),
            ):
                old.advance()
            assert raised.value.message == REPLACED
        else:
            with end_reported(part, control):
                new.start()
                for asked in (control.fenced, control.stop):
                    asked.set()
        events = [(one.kind, one.text) for one in JobEventFile(old.storage).read()]
        assert ("stopped", f"the driver stopped: {REPLACED}") in events
        assert [kind for kind, _ in events if kind in {"failed", "stopped"}] == ["stopped"]


REPLACED = (
    "job 'shop' was taken over by a newer driver (generation 2, process "
    f"{os.getpid()} on {os.uname().nodename}); this one, of generation 1, stops: headrace jobs ls "
    "shows who runs it"
)


def test_a_driver_of_a_job_that_was_deleted_stops_in_the_same_words(tmp_path: Path) -> None:
    """Its storage is gone, so nothing tells who follows."""
    home: dict[str, Any] = {"home": tmp_path, "memory_bus": False}
    with TestDriver(shop, **home) as old, TestDriver(shop, **home) as other:
        old.create("in", {"n": pa.int64()})
        part = old.start()
        old.feed("in", [{"n": 1}])
        told = "job 'shop' was taken over by a newer driver; this one, of generation 1, stops"
        with (
            call_at("commit.published", lambda: remove(other)),
            pytest.raises(NotOwnerError, match=told),
            end_reported(part, JobControl()),
        ):
            old.advance()
