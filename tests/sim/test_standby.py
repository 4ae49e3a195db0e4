"""Standbys: copies of stores on other hosts, which tasks of a lost host go on from."""

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.faults import standbys_beside_their_tasks
from tests.support.hosts import (
    AtOnce,
    Never,
    carry_out,
    homes,
    lose_home,
    number_of,
    orders,
    restoring,
    state_of,
    violations,
)
from tests.support.soak import more
from tests.support.watching import described, described_json, described_text

import headrace as hr
from headrace.errors import InternalError
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "v": pa.int64()}


class Sum:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.id, store.get(message.id, 0) + message.v)


@hr.job("sums")
def sums(g: Any) -> None:
    g.input("events").partition_by("id").process(Sum, stores={"n": int}, name="sum")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with driver_of(tmp_path, copies=1) as made:
        yield made


@contextmanager
def driver_of(home: Path, copies: int) -> Iterator[TestDriver]:
    """Six tasks on three hosts."""
    with TestDriver(sums, tasks=6, slots=6, hosts=3, standby_copies=copies, home=home) as driver:
        driver.create("events", COLUMNS)
        yield driver


def feed(driver: TestDriver, rng: random.Random, rows: int, model: Counter[int]) -> None:
    made = [{"id": rng.randrange(2_000), "v": rng.randrange(10)} for _ in range(rows)]
    for row in made:
        model[row["id"]] += row["v"]
    driver.feed("events", made)


def test_each_task_has_a_standby_on_another_host_that_follows(driver: TestDriver) -> None:
    model: Counter[int] = Counter()
    for _ in range(6):
        feed(driver, random.Random(1), 60, model)
        driver.run()
    state = state_of(driver)
    assert len(state.standbys) == 6
    assert violations(driver) == []
    for name, found in state.standbys.items():
        assert 0 <= state.tasks[name].epoch - found[0].epoch <= 2, name


def test_what_standbys_cost_is_counted(driver: TestDriver) -> None:
    """Each change is read once by the standby of its task, and no standby reads without one."""
    for seed in range(8):
        feed(driver, random.Random(seed), 60, Counter())
        driver.run()
    state = state_of(driver)
    [followed] = [n for name, n in state.counts.items() if name.startswith("follow.bytes.")]
    written = sum(ref.size for task in state.tasks.values() for ref in task.segments)
    assert 0 < followed <= written


def bytes_read_after_a_loss(home: Path, copies: int) -> int:
    """Lose a host after a while, and return what its tasks read to go on elsewhere."""
    model, rng = Counter[int](), random.Random(2)
    with driver_of(home, copies) as driver:
        for _ in range(12):
            feed(driver, rng, 60, model)
            driver.run()
        standbys = dict(state_of(driver).standbys)
        moved = lose_home(driver)
        with restoring(standbys=True) as read:
            feed(driver, rng, 60, model)
            driver.advance()
        after, counts = homes(driver), state_of(driver).counts
        assert driver.store("n") == model
        assert moved
        if copies:
            assert [after[name] for name in moved] == [standbys[name][0].host for name in moved]
            assert counts["standby.failover"] == counts["standby.active_lost"] == len(moved)
            assert "standby.no_failover" not in counts
            assert violations(driver) == []
    return sum(size for _, size in read)


def test_a_task_that_goes_to_its_standby_reads_the_tail_only(tmp_path: Path) -> None:
    whole = bytes_read_after_a_loss(tmp_path / "without", 0)
    tail = bytes_read_after_a_loss(tmp_path / "with", 1)
    assert 0 < tail * 3 < whole


def test_describe_tells_of_standbys_and_of_lost_hosts(
    driver: TestDriver,
) -> None:
    model, rng = Counter[int](), random.Random(4)
    for _ in range(4):
        feed(driver, rng, 60, model)
        driver.run()
    lost = min(homes(driver).values())
    driver.lose_host(number_of(driver, lost))
    feed(driver, rng, 60, model)
    driver.advance()
    assert not described_json(described(driver, is_driven=True))["deployed"]
    assert "not yet: 4 standbys to fill\n" in described_text(described(driver, is_driven=True))
    for _ in range(4):
        feed(driver, rng, 60, model)
        driver.run()
    told = described(driver, is_driven=True)
    found = described_json(told)
    standby = found["stages"][0]["standby"]
    assert (standby["standbys"], standby["filled"]) == (6, 6)
    assert 0 < standby["epochs"] <= 2
    assert standby["size"] > 0
    assert found["failures"]["failover"] == found["failures"]["active_lost"] == 2
    assert found["deployed"]
    assert not described(driver).deployed
    text = described_text(told)
    assert "under 2 tasks (2 to a standby, 0 without one)" in text
    assert "at most behind" in text
    assert "standby.failover" not in text
    assert "have read " in text
    assert "follow." not in text


def test_a_job_is_deployed_when_all_its_standbys_are_up_and_not_before(
    tmp_path: Path,
) -> None:
    """Nor while there are too few hosts for them."""
    model, rng = Counter[int](), random.Random(8)
    with driver_of(tmp_path, copies=2) as driver:
        feed(driver, rng, 60, model)
        driver.advance()
        assert (
            described(driver, is_driven=True).deployed,
            described(driver, is_driven=True).standbys_to_fill,
        ) == (False, 12)
        for _ in range(4):
            feed(driver, rng, 60, model)
            driver.run()
        assert (
            described(driver, is_driven=True).deployed,
            described(driver, is_driven=True).standbys_to_fill,
        ) == (True, 0)
        driver.lose_host(0)
        for _ in range(4):
            feed(driver, rng, 60, model)
            driver.run()
        told = described(driver, is_driven=True)
        assert (told.deployed, told.standbys_to_fill) == (False, 6)
        assert "not yet: 6 standbys to fill, 6 for want of hosts" in described_text(told)
        driver.bring_back(0)
        for _ in range(6):
            feed(driver, rng, 60, model)
            driver.run()
        assert described(driver, is_driven=True).deployed
        assert driver.store("n") == model


def test_a_standby_beside_its_task_would_be_found_before_it_is_committed(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the suites that look at each epoch would prove nothing."""

    standbys_beside_their_tasks(monkeypatch)
    feed(driver, random.Random(1), 60, Counter())
    with pytest.raises(InternalError, match="and its standby are both on host"):
        driver.run()


def test_standbys_that_never_get_on_hold_up_no_epoch_and_are_told(tmp_path: Path) -> None:
    """And a task whose host is lost does not go by what they never had."""
    model, rng = Counter[int](), random.Random(9)
    with TestDriver(
        sums, tasks=6, slots=6, hosts=3, standby_copies=1, home=tmp_path, background=Never
    ) as driver:
        driver.create("events", COLUMNS)
        for epoch in range(1, 13):
            feed(driver, rng, 60, model)
            assert driver.advance() is not None
            assert state_of(driver).epoch == epoch
        told = described(driver, is_driven=True)
        assert (told.deployed, told.standbys_to_fill) == (False, 6)
        driver.lose_host(0)
        feed(driver, rng, 60, model)
        driver.run()
        counts = state_of(driver).counts
        assert counts["standby.no_failover"] == counts["standby.active_lost"] == 2
        assert "standby.failover" not in counts
        assert driver.store("n") == model


def test_a_process_that_is_given_a_task_lets_go_of_its_standby_by_itself(tmp_path: Path) -> None:
    """Whether or not it was told to before."""
    with TestDriver(
        sums, tasks=2, slots=2, hosts=2, standby_copies=1, home=tmp_path, background=AtOnce
    ) as driver:
        driver.create("events", COLUMNS)
        for seed in range(3):
            feed(driver, random.Random(seed), 20, Counter())
            driver.run()
        one, other = [order for order in orders(driver) if order.level == 1][-2:]
        assert [(len(order.tasks), len(order.standbys)) for order in (one, other)] == [(1, 1)] * 2
        both = msgspec.structs.replace(
            other, tasks=[*one.tasks, *other.tasks], standbys=[], exchange={}
        )
        report = carry_out(both, driver.runner.host(other.slot))
        assert report.error is None
        assert sorted(task.task for task in report.tasks) == [0, 1]


def test_standbys_are_known_where_processes_end_between_epochs(tmp_path: Path) -> None:
    """Spark ends a process that was idle for a minute, so it never tells of its last epoch."""
    model, rng = Counter[int](), random.Random(5)
    with TestDriver(
        sums, tasks=6, slots=6, hosts=3, standby_copies=1, home=tmp_path, background=AtOnce
    ) as driver:
        driver.create("events", COLUMNS)
        for _ in range(6):
            feed(driver, rng, 60, model)
            driver.run()
            driver.runner.kill_all()
        state = state_of(driver)
        for name, (standby,) in state.standbys.items():
            assert 0 <= state.tasks[name].epoch - standby.epoch <= 2, name
        driver.lose_host(number_of(driver, min(homes(driver).values())))
        feed(driver, rng, 60, model)
        driver.run()
        counts = state_of(driver).counts
        assert counts["standby.failover"] == counts["standby.active_lost"] == 2
        assert driver.store("n") == model


def test_a_standbys_host_takes_over_whatever_its_load_and_gives_tasks_away_after(
    tmp_path: Path,
) -> None:
    model, rng = Counter[int](), random.Random(6)
    with TestDriver(sums, tasks=14, slots=9, hosts=3, standby_copies=1, home=tmp_path) as driver:
        driver.create("events", COLUMNS)
        driver.runner.down |= {5, 8}  # of the third host, which has one slot left
        for _ in range(4):
            feed(driver, rng, 200, model)
            driver.run()
        before, standbys = homes(driver), dict(state_of(driver).standbys)
        lost = driver.runner.host(0).host
        driver.lose_host(0)
        feed(driver, rng, 200, model)
        driver.advance()
        after, counts = homes(driver), state_of(driver).counts
        moved = [name for name, host in before.items() if host == lost]
        assert moved
        assert all(after[name] == standbys[name][0].host for name in moved)
        assert counts["standby.failover"] == len(moved)
        assert "standby.no_failover" not in counts
        driver.run()
        load = Counter(homes(driver).values())
        slots = {driver.runner.host(1).host: 3, driver.runner.host(2).host: 1}
        assert all(14 // 4 * n <= load[host] <= -(-14 // 4) * n for host, n in slots.items())
        assert driver.store("n") == model


def test_a_forked_child_leaves_the_stores_of_standbys_alone(driver: TestDriver) -> None:
    feed(driver, random.Random(7), 60, Counter())
    driver.run()
    stores = driver.runner.host(0).standbys
    gc.collect()  # or the child closes what crashes of other tests left open
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's would let it go on as a test
        signal.alarm(60)  # closing would wait for threads that stayed behind
        stores.close()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_host_that_is_back_gets_tasks_again_and_nothing_is_lost(driver: TestDriver) -> None:
    model, rng = Counter[int](), random.Random(3)
    for turn in range(12):
        if turn % 6 == 2:
            driver.lose_host(turn // 6 % 3)
        if turn % 6 == 5:
            driver.bring_back(turn // 6 % 3)
        feed(driver, rng, 40, model)
        driver.run()
        assert violations(driver) == []
    assert driver.store("n") == model
    assert set(Counter(homes(driver).values()).values()) == {2}


def test_hosts_that_are_lost_one_after_the_other_leave_room_where_the_standbys_are(
    driver: TestDriver,
) -> None:
    """Tasks that moved back to a host leave the standbys of others' tasks on one host only."""
    model, rng = Counter[int](), random.Random(1)
    for turn in range(3):
        for change in (driver.lose_host, driver.bring_back):
            for _ in range(3):
                feed(driver, rng, 60, model)
                driver.run()
            change(turn % 3)
    feed(driver, rng, 60, model)
    driver.run()
    counts = state_of(driver).counts
    assert counts["standby.failover"] == counts["standby.active_lost"] == 6
    assert driver.store("n") == model


@pytest.mark.parametrize("seed", more(range(2), range(100), share=50))
def test_random_failures_lose_nothing(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), Counter[int]()
    copies = 1 + seed % 2
    with TestDriver(
        sums, tasks=5, slots=4, hosts=4, standby_copies=copies, home=tmp_path, seed=seed
    ) as driver:
        driver.create("events", COLUMNS)
        down: list[int] = []
        for _ in range(11):
            chance = rng.random()
            if chance < 0.15 and len(down) < 3:
                down.append(rng.choice([host for host in range(4) if host not in down]))
                driver.lose_host(down[-1])
            elif chance < 0.3 and down:
                driver.bring_back(down.pop(rng.randrange(len(down))))
            elif chance < 0.4:
                driver.crash(lose_hosts=[rng.randrange(4)] if rng.random() < 0.5 else [])
            feed(driver, rng, 20, model)
            if chance > 0.85:
                point = rng.choice(["slot.ran", "epoch.before_commit", "commit.published"])
                driver.advance_with_crash(point, rng.randrange(1, 3))
            driver.run()
            state = state_of(driver)
            assert violations(driver) == []
            assert all(len(found) <= copies for found in state.standbys.values())
        assert driver.store("n") == model
