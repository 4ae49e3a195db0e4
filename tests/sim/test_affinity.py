"""Tasks are where their state is: epoch by epoch, after any restart, and on standbys' hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.cli import done
from tests.support.hosts import (
    MAX_STANDBY_LAG_EPOCHS,
    EventKind,
    TurnedDriver,
    carry_out,
    collected,
    epochs_of,
    homes,
    lose_home,
    orders,
    restoring,
    standby_epochs,
    state_of,
    turn_slots,
)

import headrace as hr
from headrace.errors import NotOwnerError
from headrace.testing import TestDriver

TASKS, SLOTS, HOSTS = 6, 6, 3


class Count:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + 1)


@hr.job("counts")
def counts(g: Any) -> None:
    g.input("events").partition_by("id").process(Count, stores={"n": int}, name="count")


@contextmanager
def driver_of(
    home: Path, kind: type[TestDriver] = TestDriver, **options: Any
) -> Iterator[TestDriver]:
    options = {"tasks": TASKS, "slots": SLOTS, "hosts": HOSTS, "memory_bus": False, **options}
    with kind(counts, home=home, **options) as driver:
        if "events" not in driver.bus.names():
            driver.create("events", {"id": pa.int64()})
        yield driver


def feed(driver: TestDriver, ids: int = 60) -> None:
    driver.feed("events", [{"id": n} for n in range(ids)])
    driver.run()


def test_tasks_return_to_their_hosts_on_every_epoch_and_after_every_restart(
    tmp_path: Path,
) -> None:
    """And of what was committed no more is read than the last epoch, for their stores are there."""
    times = 1
    with driver_of(tmp_path) as driver:
        feed(driver)
        before = homes(driver)
        assert Counter(before.values()) == dict.fromkeys(before.values(), 2)
        for restart in (
            lambda: None,
            driver.start,
            driver.crash,
            driver.runner.kill_all,
            lambda: driver.runner.kill(3),
        ):
            last = state_of(driver).epoch
            with restoring() as read:
                restart()
                for _ in range(2):
                    feed(driver)
                    times += 1
                    assert homes(driver) == before
            assert epochs_of(read) <= {last}
        last = state_of(driver).epoch
    with driver_of(tmp_path, TurnedDriver) as driver, restoring() as read:
        for _ in range(2):
            feed(driver)
            times += 1
            assert homes(driver) == before
        assert epochs_of(read) <= {last}
        assert driver.store("n") == dict.fromkeys(range(60), times)
        found = state_of(driver).counts
        assert "placement.moved" not in found
        assert "placement.lost" not in found


def test_a_slot_on_the_wrong_host_says_so_and_restores_nothing(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path) as driver:
        feed(driver)
        order = next(one for one in orders(driver) if one.level == 1 and one.slot == 0)
        wrong = driver.runner.host(1)
        assert order.host != wrong.host
        before = sorted(wrong.state_dir.rglob("*"))
        next_one = msgspec.structs.replace(order, epoch=order.epoch + 1)
        with restoring() as read:
            report = carry_out(next_one, wrong)
        assert (report.misplaced, report.host, report.tasks) == (True, wrong.host, [])
        assert sorted(wrong.state_dir.rglob("*")) == before
        assert read == []


def test_slots_that_have_changed_places_are_asked_anew_and_tasks_stay_on_their_hosts(
    tmp_path: Path,
) -> None:
    """The driver does not know that they have until one of them says so."""
    with driver_of(tmp_path) as driver:
        feed(driver)
        before = homes(driver)
        driver.runner.kill_all()
        turn_slots(driver)
        with restoring() as read:
            feed(driver)
        assert homes(driver) == before
        assert epochs_of(read) <= {1}
        assert driver.store("n") == dict.fromkeys(range(60), 2)
        (asked,) = [one for one in state_of(driver).host_events if one.what == EventKind.ASKED]
        assert "host" in asked.detail


def test_what_a_standby_holds_is_not_read_again(
    tmp_path: Path,
) -> None:
    """Of the task that goes to it, only files of later epochs are opened."""
    with driver_of(tmp_path, standby_copies=1) as driver:
        for _ in range(6):
            feed(driver)
        held, tasks = standby_epochs(driver), dict(state_of(driver).tasks)
        moved = lose_home(driver)
        assert all(0 <= held[name] < tasks[name].epoch for name in moved)
        files = [(ref, held[name]) for name in moved for ref in tasks[name].files]
        every = {ref.path for ref, _ in files}
        tail = {ref.path for ref, epoch in files if ref.epoch > epoch}
        with restoring() as read:
            feed(driver)
        assert {str(path.relative_to(driver.storage)) for path, _ in read} & every == tail
        assert 0 < len(tail) < len(every)
        assert driver.store("n") == dict.fromkeys(range(60), 7)


def test_from_a_standby_that_has_all_that_is_committed_nothing_is_read(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path, standby_copies=1) as driver:
        for _ in range(4):
            feed(driver)
        for _ in range(6):  # rows of one task, so that the standbys of the others get on
            driver.advance(force=True)
        moved = lose_home(driver)
        held, tasks = standby_epochs(driver), state_of(driver).tasks
        assert [name for name in moved if held[name] < tasks[name].epoch] == []
        with restoring() as read:
            feed(driver)
        assert sum(size for _, size in read) == 0
        assert state_of(driver).counts["standby.failover"] == len(moved) == 2
        assert driver.store("n") == dict.fromkeys(range(60), 5)


def test_a_standby_whose_slot_has_nothing_else_to_do_is_woken_before_it_is_far_behind(
    tmp_path: Path,
) -> None:
    with driver_of(tmp_path, standby_copies=1) as driver:
        feed(driver)
        furthest = 0
        for _ in range(3 * MAX_STANDBY_LAG_EPOCHS):
            driver.feed("events", [{"id": 1}])  # of one task, always the same
            driver.run()
            tasks = state_of(driver).tasks
            behind = {name: tasks[name].epoch - at for name, at in standby_epochs(driver).items()}
            furthest = max(furthest, *behind.values())
        assert MAX_STANDBY_LAG_EPOCHS // 2 < furthest <= MAX_STANDBY_LAG_EPOCHS + 3


def test_an_old_job_adopts_standbys_and_gives_them_up(tmp_path: Path) -> None:
    """Its tasks stay on their hosts; standbys, which have no host yet, are placed beside them."""
    with driver_of(tmp_path) as driver:
        for _ in range(3):
            feed(driver)
        before = homes(driver)
        assert state_of(driver).standbys == {}
    with driver_of(tmp_path, standby_copies=1) as driver:
        feed(driver)
        assert homes(driver) == before
        assert set(standby_epochs(driver).values()) == {-1}
        for _ in range(3):
            feed(driver)
        assert min(standby_epochs(driver).values()) >= 4
        moved = lose_home(driver)
        feed(driver)
        found = state_of(driver).counts
        assert found["standby.failover"] == found["standby.active_lost"] == len(moved)
        homes_now = homes(driver)
    with driver_of(tmp_path) as driver:
        driver.runner.down = {
            n for n in range(SLOTS) if driver.runner.host(n).host == before[moved[0]]
        }
        feed(driver)
        assert state_of(driver).standbys == {}
        assert homes(driver) == homes_now
        assert driver.store("n") == dict.fromkeys(range(60), 9)


def test_jobs_delete_marks_local_state_and_the_collector_removes_it_later(tmp_path: Path) -> None:
    keep_s = 3600.0
    with driver_of(tmp_path) as driver:
        feed(driver)
        driver.crash()
        stores = [driver.state_dir(host) / "counts" for host in range(HOSTS)]
        assert all(any(store.rglob("rocksdb")) for store in stores)
        done("jobs", "delete", "counts", "--yes", "--home", tmp_path)
        assert not driver.storage.exists()
        assert all(any(store.rglob("rocksdb")) for store in stores)
        for host in range(HOSTS):
            assert collected(driver, host, keep_s) == []
        driver.clock.advance(int(keep_s * 1000))
        for host in range(HOSTS):
            gone = collected(driver, host, keep_s)
            assert gone == [stores[host]]
        assert [store for store in stores if store.exists()] == []


def test_a_store_that_an_older_driver_had_opened_in_another_slot_is_released(
    tmp_path: Path,
) -> None:
    """The older driver did not see that a newer one had begun, and placed tasks otherwise."""
    with driver_of(tmp_path, slots=2, hosts=1) as driver:
        feed(driver)
        older, process_of = driver.coordinator, driver.runner.host
        driver.start()
        driver.feed("events", [{"id": n} for n in range(60)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver.runner, "host", lambda slot: process_of(1 - slot))
            with pytest.raises(NotOwnerError):
                older.advance(force=True)
        driver.run()
        assert set(driver.store("n").values()) == {2}
