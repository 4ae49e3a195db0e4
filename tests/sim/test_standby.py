"""Standbys: copies of stores on other hosts, which tasks of a lost host go on from."""

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import headrace as hr
from headrace.cli.jobs.text import job_json, show_job
from headrace.control.description import Description, described
from headrace.coordinator.drivers import Driver
from headrace.coordinator.inspection.job_list import view_job
from headrace.coordinator.standby.placing import Standby, violations
from headrace.errors import InternalError
from headrace.graph.types import to_schema
from headrace.state.follower import Counts
from headrace.task.background import InlineBackground, Ticket, Work
from headrace.testing.driver import TestDriver

T = TypeVar("T")

COLUMNS = {"id": int, "v": int}


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
        driver.create("events", to_schema(COLUMNS))
        yield driver


def feed(driver: TestDriver, rng: random.Random, rows: int, model: Counter[int]) -> None:
    made = [{"id": rng.randrange(2_000), "v": rng.randrange(10)} for _ in range(rows)]
    for row in made:
        model[row["id"]] += row["v"]
    driver.feed("events", made)


def state_of(driver: TestDriver) -> Any:
    return driver.parts[0].state


def homes(driver: TestDriver) -> dict[str, str]:
    return {name: task.host for name, task in state_of(driver).tasks.items()}


def test_each_task_has_a_standby_on_another_host_that_follows(driver: TestDriver) -> None:
    model: Counter[int] = Counter()
    for _ in range(6):
        feed(driver, random.Random(1), 60, model)
        driver.run()
    state = state_of(driver)
    assert len(state.standbys) == 6
    assert violations(homes(driver), state.standbys) == []
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


def bytes_read_after_a_loss(home: Path, copies: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lose a host after a while, and return what its tasks read to go on elsewhere."""
    model, rng, read = Counter[int](), random.Random(2), []
    applied = Counts.applied

    def counted(self: Counts, size: int, entries: int) -> None:
        read.append(size)
        applied(self, size, entries)

    with driver_of(home, copies) as driver:
        for _ in range(30):
            feed(driver, rng, 60, model)
            driver.run()
        before, standbys = homes(driver), dict(state_of(driver).standbys)
        lost = min(before.values())
        driver.lose_host(_number(driver, lost))
        with monkeypatch.context() as patch:
            patch.setattr(Counts, "applied", counted)
            feed(driver, rng, 60, model)
            driver.advance()
        after, counts = homes(driver), state_of(driver).counts
        moved = [name for name, host in before.items() if host == lost]
        assert driver.store("n") == model
        assert moved
        if copies:
            assert [after[name] for name in moved] == [standbys[name][0].host for name in moved]
            assert counts["standby.failover"] == counts["standby.active_lost"] == len(moved)
            assert "standby.no_failover" not in counts
            assert violations(after, state_of(driver).standbys) == []
    return sum(read)


def test_a_task_that_goes_to_its_standby_reads_the_tail_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bytes_read_after_a_loss(tmp_path / "without", 0, monkeypatch)
    tail = bytes_read_after_a_loss(tmp_path / "with", 1, monkeypatch)
    assert 0 < tail * 3 < whole


def described_by(driver: TestDriver, *, is_driven: bool = True) -> Description:
    own = Driver(os.getpid(), os.uname().nodename, is_here=True) if is_driven else None
    return described(view_job(driver.settings, "sums", driver.bus, driver.clock, own))


def _number(driver: TestDriver, host: str) -> int:
    return next(n for n in range(3) if driver.runner.host(n).host == host)


def test_describe_tells_of_standbys_and_of_lost_hosts(
    driver: TestDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rng = Counter[int](), random.Random(4)
    for _ in range(4):
        feed(driver, rng, 60, model)
        driver.run()
    lost = min(homes(driver).values())
    driver.lose_host(_number(driver, lost))
    feed(driver, rng, 60, model)
    driver.advance()
    assert not job_json(described_by(driver))["deployed"]
    show_job(described_by(driver))
    assert "not yet: 4 standbys to fill\n" in capsys.readouterr().out
    for _ in range(4):
        feed(driver, rng, 60, model)
        driver.run()
    told = described_by(driver)
    found = job_json(told)
    standby = found["stages"][0]["standby"]
    assert (standby["standbys"], standby["filled"]) == (6, 6)
    assert 0 < standby["epochs"] <= 2
    assert standby["size"] > 0
    assert found["failures"]["failover"] == found["failures"]["active_lost"] == 2
    assert found["deployed"]
    assert not described_by(driver, is_driven=False).deployed
    show_job(told)
    text = capsys.readouterr().out
    assert "under 2 tasks (2 to a standby, 0 without one)" in text
    assert "at most behind" in text
    assert "standby.failover" not in text
    assert "have read " in text
    assert "follow." not in text


def test_a_job_is_deployed_when_all_its_standbys_are_up_and_not_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor while there are too few hosts for them."""
    model, rng = Counter[int](), random.Random(8)
    with driver_of(tmp_path, copies=2) as driver:
        feed(driver, rng, 60, model)
        driver.advance()
        assert (described_by(driver).deployed, described_by(driver).standbys_to_fill) == (False, 12)
        for _ in range(6):
            feed(driver, rng, 60, model)
            driver.run()
        assert (described_by(driver).deployed, described_by(driver).standbys_to_fill) == (True, 0)
        driver.lose_host(0)
        for _ in range(6):
            feed(driver, rng, 60, model)
            driver.run()
        told = described_by(driver)
        assert (told.deployed, told.standbys_to_fill) == (False, 6)
        show_job(told)
        assert "not yet: 6 standbys to fill, 6 for want of hosts" in capsys.readouterr().out
        driver.bring_back(0)
        for _ in range(8):
            feed(driver, rng, 60, model)
            driver.run()
        assert described_by(driver).deployed
        assert driver.store("n") == model


class _AtOnce(InlineBackground):
    """Standbys are where they were told to go before the next epoch begins."""

    def submit(self, work: Work[T]) -> Ticket[T]:
        ticket = super().submit(work)
        self.look(ticket)
        return ticket


def test_a_standby_beside_its_task_would_be_found_before_it_is_committed(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the suites that look at each epoch would prove nothing."""

    def beside(actives: Any, hosts: Any, before: Any, copies: int) -> Any:
        return {name: (Standby(min(own)),) for name, own in actives.items()}

    monkeypatch.setattr("headrace.coordinator.standby.course.place_standbys", beside)
    feed(driver, random.Random(1), 60, Counter())
    with pytest.raises(InternalError, match="and its standby are both on host"):
        driver.run()


class _Never(InlineBackground):
    """Standbys are told where to go, and never get there."""

    def look(self, ticket: Ticket[T]) -> bool:
        del ticket
        return False


def test_standbys_that_never_get_on_hold_up_no_epoch_and_are_told(tmp_path: Path) -> None:
    """And a task whose host is lost does not go by what they never had."""
    model, rng = Counter[int](), random.Random(9)
    with TestDriver(
        sums, tasks=6, slots=6, hosts=3, standby_copies=1, home=tmp_path, background=_Never
    ) as driver:
        driver.create("events", to_schema(COLUMNS))
        for epoch in range(1, 25):
            feed(driver, rng, 60, model)
            assert driver.advance() is not None
            assert state_of(driver).epoch == epoch
        told = described_by(driver)
        assert (told.deployed, told.standbys_to_fill) == (False, 6)
        driver.lose_host(0)
        feed(driver, rng, 60, model)
        driver.run()
        counts = state_of(driver).counts
        assert counts["standby.no_failover"] == counts["standby.active_lost"] == 2
        assert "standby.failover" not in counts
        assert driver.store("n") == model


def test_standbys_are_known_where_processes_end_between_epochs(tmp_path: Path) -> None:
    """Spark ends a process that was idle for a minute, so it never tells of its last epoch."""
    model, rng = Counter[int](), random.Random(5)
    with TestDriver(
        sums, tasks=6, slots=6, hosts=3, standby_copies=1, home=tmp_path, background=_AtOnce
    ) as driver:
        driver.create("events", to_schema(COLUMNS))
        for _ in range(6):
            feed(driver, rng, 60, model)
            driver.run()
            driver.runner.kill_all()
        state = state_of(driver)
        for name, (standby,) in state.standbys.items():
            assert 0 <= state.tasks[name].epoch - standby.epoch <= 2, name
        driver.lose_host(_number(driver, min(homes(driver).values())))
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
        driver.create("events", to_schema(COLUMNS))
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
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # closing would wait for threads that stayed behind
        stores.close()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_host_that_is_back_gets_tasks_again_and_nothing_is_lost(driver: TestDriver) -> None:
    model, rng = Counter[int](), random.Random(3)
    for turn in range(24):
        if turn % 6 == 2:
            driver.lose_host(turn // 6 % 3)
        if turn % 6 == 5:
            driver.bring_back(turn // 6 % 3)
        feed(driver, rng, 40, model)
        driver.run()
        state = state_of(driver)
        assert violations(homes(driver), state.standbys) == []
    assert driver.store("n") == model
    assert set(Counter(homes(driver).values()).values()) == {2}


def test_hosts_that_are_lost_one_after_the_other_leave_room_where_the_standbys_are(
    driver: TestDriver,
) -> None:
    """Tasks that moved back to a host leave the standbys of others' tasks on one host only."""
    model, rng = Counter[int](), random.Random(1)
    for turn in range(5):
        for change in (driver.lose_host, driver.bring_back):
            for _ in range(4):
                feed(driver, rng, 60, model)
                driver.run()
            change(turn % 3)
    feed(driver, rng, 60, model)
    driver.run()
    counts = state_of(driver).counts
    assert counts["standby.failover"] == counts["standby.active_lost"] == 10
    assert driver.store("n") == model


@pytest.mark.parametrize("seed", range(6))
def test_random_failures_lose_nothing(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), Counter[int]()
    copies = 1 + seed % 2
    with TestDriver(
        sums, tasks=5, slots=4, hosts=4, standby_copies=copies, home=tmp_path, seed=seed
    ) as driver:
        driver.create("events", to_schema(COLUMNS))
        down: list[int] = []
        for _ in range(20):
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
            assert violations(homes(driver), state.standbys) == []
            assert all(len(found) <= copies for found in state.standbys.values())
        assert driver.store("n") == model
