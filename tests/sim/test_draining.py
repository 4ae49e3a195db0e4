"""Hosts that are drained, come back, or get new processes: tasks move in order, nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.asking import wish_restart
from tests.support.hosts import (
    EventKind,
    drain,
    happenings,
    homes,
    host,
    loads,
    state_of,
    violations,
)
from tests.support.limits import limit
from tests.support.soak import more

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "v": pa.int64()}
TASKS, SLOTS, HOSTS = 12, 6, 3


class Sum:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + message.v)


def job_of(store: str) -> hr.Job:
    @hr.job("sums")
    def sums(g: Any) -> None:
        by_id = g.input("events").partition_by("id")
        by_id.process(Sum, stores=[hr.store("n", int, store)], name="sum")

    return sums


@contextmanager
def driver_of(home: Path, **options: Any) -> Iterator[TestDriver]:
    """A driver of the job; only stores of RocksDB have standbys."""
    made = {"tasks": TASKS, "slots": SLOTS, "hosts": HOSTS, **options}
    job = job_of("rocksdb" if options.get("standby_copies") else "memory")
    with TestDriver(job, home=home, **made) as driver:
        driver.create("events", COLUMNS)
        yield driver


class Feed:
    """Rows, and what the stores are to hold after them."""

    def __init__(self, driver: TestDriver, seed: int = 1) -> None:
        self.driver, self.rng, self.model = driver, random.Random(seed), Counter[int]()

    def rows(self, count: int = 60) -> None:
        made = [{"id": self.rng.randrange(500), "v": self.rng.randrange(10)} for _ in range(count)]
        for row in made:
            self.model[row["id"]] += row["v"]
        self.driver.feed("events", made)

    def check(self) -> None:
        assert self.driver.store("n") == self.model


def test_a_drained_host_is_emptied_within_the_limit_and_gets_its_tasks_back(tmp_path: Path) -> None:
    with driver_of(tmp_path, placement={"max_moves": 2}) as driver:
        feed = Feed(driver)
        feed.rows(200)
        driver.run()
        before, gone = homes(driver), host(driver, 1)
        assert drain(driver, "host-1").host == gone
        steps = [before]
        while driver.advance() is not None:
            steps.append(homes(driver))
            moved = sum(steps[-2][name] != now for name, now in steps[-1].items())
            assert moved <= 2
        assert gone not in steps[-1].values()
        assert len(steps) == 3  # four tasks, two at a time
        driver.start()  # the mark is in the manifest
        feed.rows()
        driver.run()
        assert gone not in homes(driver).values()
        assert all(o.slot % HOSTS != 1 for o in driver.runner.history[-8:] if not o.leaves)
        drain(driver, gone, undo=True)
        driver.run()
        assert homes(driver) == before
        feed.rows()
        driver.run()
        feed.check()
        assert [w for w in happenings(driver) if w not in (EventKind.DRIVER, EventKind.JOINED)] == [
            EventKind.DRAIN,
            EventKind.EMPTY,
            EventKind.UNDRAIN,
        ]
        assert state_of(driver).counts["placement.moved"] == 8


def test_a_host_that_was_lost_gets_its_tasks_back_within_the_limit(tmp_path: Path) -> None:
    with driver_of(tmp_path, placement={"max_moves": 1}) as driver:
        feed = Feed(driver)
        feed.rows(200)
        driver.run()
        before, gone = homes(driver), host(driver, 2)
        driver.lose_host(2)
        feed.rows()
        driver.run()
        assert gone not in homes(driver).values()
        lost = sum(home == gone for home in before.values())
        assert state_of(driver).counts["placement.lost"] == lost
        driver.bring_back(2)
        last = homes(driver)
        for _ in range(lost):
            feed.rows()
            driver.advance()
            now = homes(driver)
            assert sum(last[name] != home for name, home in now.items()) <= 1
            last = now
        driver.run()
        assert homes(driver) == before
        assert {EventKind.LOST, EventKind.RETURNED} <= set(happenings(driver))
        feed.check()


def test_a_host_that_comes_back_with_nothing_to_read_gets_its_tasks_all_the_same(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path) as driver:
        feed = Feed(driver)
        feed.rows()
        driver.run()
        before = homes(driver)
        driver.lose_host(0)
        driver.start()
        driver.run()
        assert loads(driver) == {host(driver, 1): 6, host(driver, 2): 6}
        driver.bring_back(0)
        driver.start()
        driver.run()
        assert homes(driver) == before
        feed.check()


def test_a_task_leaves_a_drained_host_once_its_standby_has_caught_up(tmp_path: Path) -> None:
    with driver_of(tmp_path, standby_copies=1, placement={"max_moves": 12}) as driver:
        feed = Feed(driver)
        feed.rows(200)
        driver.advance()
        standbys = dict(state_of(driver).standbys)
        assert {one.epoch for held in standbys.values() for one in held} == {-1}
        before, gone = homes(driver), host(driver, 0)
        drain(driver, "host-0")
        left: dict[str, int] = {}
        for _ in range(20):
            ready = {
                name: {one.host for one in held if one.epoch >= 0}
                for name, held in state_of(driver).standbys.items()
            }
            driver.clock.advance(1_000)
            driver.advance()
            for name, home in homes(driver).items():
                if before[name] == gone != home and name not in left:
                    assert home in ready[name]
                    left[name] = state_of(driver).epoch
        assert len(left) == 4
        state = state_of(driver)
        assert gone not in homes(driver).values()
        assert gone not in {one.host for held in state.standbys.values() for one in held}
        assert violations(driver) == []
        feed.rows()
        driver.run()
        feed.check()


def test_tasks_that_have_committed_nothing_leave_a_drained_host_without_standbys(
    tmp_path: Path,
) -> None:
    """A standby of nothing never says that it has caught up; nobody waits for it."""
    with driver_of(tmp_path, standby_copies=1) as driver:
        driver.feed("events", [{"id": 1, "v": 1}])
        driver.advance(force=True)  # all tasks have a host by that, and one has state
        gone = host(driver, 0)
        assert list(homes(driver).values()).count(gone) == 4
        drain(driver, "host-0")
        for _ in range(12):
            driver.clock.advance(600)
            driver.advance()
        assert gone not in homes(driver).values()
        driver.clock.advance(600)
        assert driver.advance() is None  # it is over


def test_standbys_leave_a_drained_host_although_nothing_is_read(tmp_path: Path) -> None:
    with driver_of(tmp_path, standby_copies=1, tasks=1, hosts=3, slots=3) as driver:
        feed = Feed(driver)
        for _ in range(3):
            feed.rows()
            driver.run()
        ((standby,),) = state_of(driver).standbys.values()
        drain(driver, standby.host)
        for _ in range(3):
            driver.clock.advance(600)
            driver.advance()
        ((after,),) = state_of(driver).standbys.values()
        assert after.host not in {standby.host, *homes(driver).values()}
        assert EventKind.EMPTY in happenings(driver)
        driver.clock.advance(600)
        assert driver.advance() is None


def test_the_last_host_and_an_unknown_one_are_refused(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        Feed(driver).rows()
        driver.run()
        assert (
            "no host called 'host-7'; the job's hosts are: host-0" in drain(driver, "host-7").error
        )
        assert drain(driver, "host-0").error == drain(driver, "host-1").error == ""
        assert "is the only one that job 'sums' can run on" in drain(driver, "host-2").error
        assert drain(driver, "host-0").error == ""  # as it is already
        driver.run()
        driver.lose_host(2)
        Feed(driver).rows()
        driver.run()  # rather than nowhere, on hosts that are to be empty
        assert host(driver, 2) not in homes(driver).values()


@pytest.mark.parametrize("rolling", [True, False])
def test_a_restart_gives_every_host_new_processes_while_rows_are_read(
    tmp_path: Path, rolling: bool
) -> None:
    with driver_of(tmp_path) as driver:
        feed = Feed(driver)
        feed.rows()
        driver.run()
        before, processes = homes(driver), [driver.runner.host(n) for n in range(SLOTS)]
        asked = wish_restart(driver, rolling=rolling)
        new: list[int] = []
        while (done := asked.answer()) is None:
            feed.rows(20)
            assert driver.advance() is not None
            now = [driver.runner.host(n) for n in range(SLOTS)]
            new.append(sum(a is not b for a, b in zip(processes, now, strict=True)))
            assert len(new) < 9
        assert new == ([2, 4, 6, 6] if rolling else [6, 6])
        assert sorted(done.hosts) == sorted(set(before.values()))
        assert homes(driver) == before
        assert happenings(driver).count(EventKind.RENEWED) == HOSTS
        feed.check()


def test_a_restart_that_is_taken_back_ends_where_it_is(tmp_path: Path) -> None:
    with driver_of(tmp_path) as driver:
        feed = Feed(driver)
        feed.rows()
        driver.run()
        processes = [driver.runner.host(n) for n in range(SLOTS)]
        asked = wish_restart(driver, rolling=True)
        feed.rows()
        driver.advance()
        asked.take_back()
        feed.rows()
        driver.run()
        now = [driver.runner.host(n) for n in range(SLOTS)]
        assert sum(a is not b for a, b in zip(processes, now, strict=True)) == 2
        feed.check()


@pytest.mark.parametrize(
    ("affinity", "bytes_s", "wait_s"),
    [("strict", 1.0, 30.0), ("strict", None, 0.0), ("best-effort", 1.0, 0.0), ("none", 1.0, 0.0)],
    ids=["strict", "strict with little state", "best-effort", "none"],
)
def test_a_lost_host_is_waited_for_only_with_strict_affinity(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    affinity: str,
    bytes_s: float | None,
    wait_s: float,
) -> None:
    if bytes_s is not None:
        limit(monkeypatch, restore_bytes_s=bytes_s)
    with driver_of(tmp_path, placement={"affinity": affinity, "wait_s": 30.0}) as driver:
        feed = Feed(driver)
        feed.rows()
        driver.run()
        driver.lose_host(1)
        began, told = driver.clock.monotonic(), list[str]()
        driver.parts[0].members.notify = told.append
        feed.rows()
        driver.run()
        assert driver.clock.monotonic() - began == wait_s
        assert ("wait for it for up to 30.0 s" in told[0]) == bool(wait_s)
        assert "its 4 tasks go elsewhere" in told[-1]
        assert set(loads(driver).values()) == {6}
        driver.bring_back(1)
        feed.rows()
        driver.run()
        assert set(loads(driver).values()) == {4}
        feed.check()


@pytest.mark.parametrize("seed", more(range(1), range(60), share=30))
def test_random_hosts_drains_and_crashes_change_no_result(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    copies = seed % 2
    with driver_of(
        tmp_path, standby_copies=copies, hosts=4, slots=7, placement={"max_moves": 3}
    ) as driver:
        feed, down = Feed(driver, seed), set[int]()
        feed.rows()
        driver.run()
        for _ in range(22):
            match rng.randrange(7):
                case 0 if len(down) < 2:
                    number = rng.randrange(4)
                    down.add(number)
                    driver.lose_host(number)
                case 1 if down:
                    driver.bring_back(down.pop())
                case 2 | 3:
                    drain(driver, f"host-{rng.randrange(4)}", undo=rng.random() < 0.6)
                case 4:
                    _crash(driver, rng.choice(["placement.let_go", "epoch.level_done", "slot.ran"]))
                case 5:
                    _crash(driver, "drain.committed", f"host-{rng.randrange(4)}")
            feed.rows(rng.randrange(0, 40))
            before = homes(driver)
            driver.clock.advance(600)
            driver.advance()
            state = state_of(driver)
            there = {name for name, one in state.hosts.items() if one.slots}
            after = homes(driver)
            moved = [n for n, home in before.items() if home in there and after[n] != home]
            assert len(moved) <= 3
            assert violations(driver) == []
        for number in list(down):
            driver.bring_back(number)
        for number in range(4):
            drain(driver, f"host-{number}", undo=True)
        for _ in range(20):
            driver.clock.advance(600)
            feed.rows(5)
            driver.advance()
        counts = loads(driver)
        slots = {host(driver, n): len([s for s in range(7) if s % 4 == n]) for n in range(4)}
        for name, cores in slots.items():
            assert TASKS // 7 * cores <= counts[name] <= -(-TASKS // 7) * cores
        driver.run()
        feed.check()


def _crash(driver: TestDriver, point: str, named: str = "") -> None:
    if not named:
        driver.advance_with_crash(point)
        return
    driver.advance_with_crash(point, step=lambda: drain(driver, named))
