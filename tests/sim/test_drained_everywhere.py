"""A host that is drained for all jobs: those that run, those that stand still, those to come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import locked
from tests.support.cli import headrace
from tests.support.faults import refused_folder
from tests.support.hosts import (
    DRAINED,
    CordonedHost,
    EventKind,
    HostState,
    drain,
    drained_hosts,
    follow_drains,
    happened,
    homes,
    host,
    state_of,
)
from tests.support.limits import limit

import headrace as hr
from headrace.testing import TestDriver


class Count:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("counts")
def counts(g: Any) -> None:
    g.input("events").partition_by("id").process(Count, stores={"n": int}, name="count")


@contextmanager
def driver_of(home: Path, **options: Any) -> Iterator[TestDriver]:
    with TestDriver(counts, home=home, tasks=6, slots=3, hosts=3, **options) as driver:
        if "events" not in driver.bus.names():
            driver.create("events", {"id": pa.int64()})
        yield driver


def feed(driver: TestDriver, rows: int = 30) -> None:
    driver.feed("events", [{"id": n} for n in range(rows)])


def used(driver: TestDriver) -> set[str]:
    """The hosts that have tasks or standbys."""
    state = state_of(driver)
    copies = {one.host for held in state.standbys.values() for one in held}
    return copies | {task.host for task in state.tasks.values()}


def test_a_job_that_runs_takes_the_mark_over_and_lets_go_of_it(tmp_path: Path) -> None:
    with driver_of(tmp_path, standby_copies=1) as driver:
        feed(driver)
        driver.run()
        gone, note = host(driver, 1), drained_hosts(driver)
        before = homes(driver)
        note.add(CordonedHost(gone, time_ms=driver.clock.now_ms()))
        for _ in range(8):  # nothing is read: it is for the hosts' sake alone
            driver.clock.advance(1_000)
            driver.advance()
        assert gone not in used(driver)
        assert happened(driver, EventKind.DRAIN) == ["host host-1 is to be drained for all jobs"]
        assert happened(driver, EventKind.EMPTY) == ["host host-1 is empty"]
        driver.start()
        feed(driver)
        driver.run()
        assert gone not in used(driver)
        note.remove(CordonedHost(gone))
        for _ in range(8):
            driver.clock.advance(1_000)
            driver.advance()
        assert homes(driver) == before
        assert happened(driver, EventKind.UNDRAIN) == ["host host-1 is used again for all jobs"]
        assert driver.store("n") == dict.fromkeys(range(30), 2)


def test_a_job_that_begins_later_never_uses_the_host(tmp_path: Path) -> None:
    with driver_of(tmp_path / "other") as other:
        gone = host(other, 1)
    with driver_of(tmp_path) as driver:
        gone = host(driver, 1)
        drained_hosts(driver).add(CordonedHost(gone))
        feed(driver)
        driver.advance()
        assert state_of(driver).epoch > 0
        assert used(driver) == {host(driver, 0), host(driver, 2)}
        assert "placement.moved" not in state_of(driver).counts


def test_a_host_that_comes_later_is_known_by_its_address(tmp_path: Path) -> None:
    """No job knew it when it was drained; and when it comes, nothing goes there."""
    with driver_of(tmp_path) as driver:
        driver.lose_host(2)
        drained_hosts(driver).add(CordonedHost("", "host-2"))
        feed(driver)
        driver.run()
        driver.bring_back(2)
        for _ in range(3):
            feed(driver)
            driver.run()
        assert used(driver) == {host(driver, 0), host(driver, 1)}
        assert state_of(driver).hosts[host(driver, 2)].cordoned


def test_a_job_that_stood_still_learns_that_the_host_is_used_again(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        gone, note = host(driver, 0), drained_hosts(driver)
        note.add(CordonedHost(gone))
        feed(driver)
        driver.clock.advance(1_000)
        driver.run()
        assert gone not in used(driver)
        driver.crash()
        note.remove(CordonedHost(gone))
        driver.start()
        feed(driver)
        driver.run()
        assert gone in used(driver)
        assert state_of(driver).hosts[gone] == HostState("host-0", 1)


def test_a_mark_of_the_job_alone_stays_and_one_of_all_is_not_taken_back_by_one(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        note = drained_hosts(driver)
        drain(driver, "host-0")
        note.add(CordonedHost(host(driver, 1)))
        assert drain(driver, "host-1", everywhere=True).host == host(driver, 1)  # at once
        hosts = state_of(driver).hosts
        assert (hosts[host(driver, 0)].drained, hosts[host(driver, 0)].cordoned) == (True, False)
        assert (hosts[host(driver, 1)].drained, hosts[host(driver, 1)].cordoned) == (True, True)
        alone = drain(driver, "host-1", undo=True)
        assert "host host-1 is drained for all jobs" in alone.error
        assert "headrace cluster drain host-1 --undo" in alone.error
        note.remove(CordonedHost(host(driver, 1)))
        assert drain(driver, "host-1", undo=True, everywhere=True).error == ""
        assert not state_of(driver).hosts[host(driver, 1)].drained
        assert state_of(driver).hosts[host(driver, 0)].drained
        note.add(CordonedHost(host(driver, 0)))
        follow_drains(driver)
        note.remove(CordonedHost(host(driver, 0)))
        follow_drains(driver)
        assert state_of(driver).hosts[host(driver, 0)].drained
        assert drain(driver, "host-0", undo=True, everywhere=True).host == host(driver, 0)
        assert state_of(driver).hosts[host(driver, 0)].drained


def test_a_job_that_has_no_other_host_runs_on(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        for number in range(3):
            drained_hosts(driver).add(CordonedHost(host(driver, number)))
        feed(driver)
        driver.run()
        assert len(used(driver)) == 3
        assert driver.store("n") == dict.fromkeys(range(30), 1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_driver_that_dies_with_the_mark_is_followed_by_one_that_has_it(
    tmp_path: Path, times: int
) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        gone = host(driver, 1)
        drained_hosts(driver).add(CordonedHost(gone))
        driver.clock.advance(1_000)
        feed(driver)
        driver.advance_with_crash("drain.committed" if times == 1 else "placement.let_go")
        driver.run()
        assert gone not in used(driver)
        assert len(happened(driver, EventKind.DRAIN)) == 1
        assert driver.store("n") == dict.fromkeys(range(30), 2)


def test_what_cannot_be_read_counts_for_nothing(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        note = drained_hosts(driver)
        one = CordonedHost("x/../y", "10.0.0.1:7000", 5)
        note.add(one)
        (driver.storage.parent / DRAINED / "torn.json").write_text('{"host": "x')
        assert note.read() == (one,)
        note.remove(one)
        assert note.read() == ()


def test_marks_that_cannot_be_listed_end_no_job_and_stay(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        drained_hosts(driver).add(CordonedHost(host(driver, 1)))
        follow_drains(driver)
        with refused_folder(DRAINED):
            feed(driver)
            driver.clock.advance(60_000)
            driver.run()
            assert driver.store("n") == dict.fromkeys(range(30), 2)
            assert state_of(driver).hosts[host(driver, 1)].cordoned
            told = headrace("jobs", "describe", "counts", "--home", tmp_path)
            assert "(all jobs)" in told.out


def test_a_host_that_no_job_knows_is_used_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver_of(tmp_path) as driver:
        note = drained_hosts(driver)
        for address in ("host-8", "host-9"):
            note.add(CordonedHost("", address))
        feed(driver)
        driver.run()
        told = headrace("cluster", "drain", "host-8", "--undo", "--home", tmp_path)
        assert told.code == 0
        assert [one.address for one in note.read()] == ["host-9"]


def test_the_command_is_for_jobs_that_do_not_run_as_well(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        gone, at = host(driver, 1), ("--home", tmp_path)
        told = headrace("cluster", "drain", "host-1", "--json", *at)
        assert json.loads(told.out) == {
            "job": None,
            "host": gone,
            "address": "host-1",
            "status": "drained",
        }
        assert "draining (all jobs)" in headrace("jobs", "describe", "counts", *at).out
        placement = json.loads(headrace("jobs", "describe", "counts", "--json", *at).out)
        (one,) = [one for one in placement["placement"]["hosts"] if one["host"] == gone]
        assert (one["status"], one["everywhere"]) == ("draining", True)
        feed(driver)
        driver.clock.advance(1_000)
        driver.run()
        assert gone not in used(driver)
        assert "drained (all jobs)" in headrace("jobs", "describe", "counts", *at).out
        alone = headrace("cluster", "drain", "host-1", "--undo", "--job", "counts", *at)
        assert alone.code == 1
        assert "host host-1 is drained for all jobs" in alone.err
        again = headrace("cluster", "drain", "host-1", "--undo", *at)
        assert again.out == (
            "all other jobs of this home use host host-1 again when they next run\n"
        )
        assert "drained" not in headrace("jobs", "describe", "counts", *at).out.split("\n\n")[1]
        driver.clock.advance(1_000)
        driver.run()
        assert gone in used(driver)
        unknown = headrace("cluster", "drain", "host-7", *at)
        assert "no host called 'host-7'; the job's hosts are: host-0" in unknown.err


def test_a_job_that_does_not_answer_follows_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver is in a long epoch, or frozen: what is noted beside the jobs stays."""
    limit(monkeypatch, drain_answer_s=0.0)
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.run()
        gone, at = host(driver, 1), ("--home", tmp_path)
        with locked(driver, real_clock=True):
            told = headrace("cluster", "drain", "host-1", "--wait", 0, *at)
            assert told.code == 3
            silent = "job counts does not answer now; it follows what is noted, in its time"
            assert silent in told.err
            assert "after 0 s the host still has counts: 2 tasks" in told.err
            alone = headrace("cluster", "drain", "host-2", "--job", "counts", *at)
            assert "the driver did not take the request" in alone.err
        assert [one.host for one in drained_hosts(driver).read()] == [gone]
        feed(driver)
        driver.clock.advance(1_000)
        driver.run()
        assert used(driver) == {host(driver, 0), host(driver, 2)}
        with locked(driver, real_clock=True):
            again = headrace("cluster", "drain", "host-1", "--undo", *at)
        assert (again.code, silent in again.err) == (0, True)
        assert "counts: host host-1 is used again as soon as its driver continues" in again.out
        assert drained_hosts(driver).read() == ()
        assert gone not in used(driver)
        driver.clock.advance(1_000)
        driver.run()
        assert gone in used(driver)
        assert driver.store("n") == dict.fromkeys(range(30), 2)
