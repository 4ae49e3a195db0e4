"""Jobs whose storage is on the disk of the driver's host, with slots on others as well."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.sim.copies import check_at_least_once, copied, expire_lease, open_driver
from tests.sim.world import EPOCH, World
from tests.support.soak import more

from headrace.testing import FAULT_POINTS, TestDriver

POINTS = [point for point in FAULT_POINTS if point.startswith(EPOCH)]
COPY = [point for point in FAULT_POINTS if point.startswith("copy.")]


def open_cluster(home: Path, seed: int = 0, store: str = "rocksdb") -> TestDriver:
    return open_driver(home, hosts=2, seed=seed, store=store)


def hosts_of(driver: TestDriver) -> set[str]:
    tasks = driver.coordinator.state.tasks.values()
    return {task.host for task in tasks if task.host}


@pytest.mark.parametrize("store", more(["rocksdb"], ["rocksdb", "columnar"]))
def test_each_step_is_the_last_of_a_process_and_another_host_is_lost(
    tmp_path: Path, store: str
) -> None:
    """The disk of the driver's host has all of it: nothing is lost, and nothing doubled."""
    with open_cluster(tmp_path / "home", store=store) as driver:
        world, died = World(driver, random.Random(7)), 0
        for number, point in enumerate(POINTS):
            world.feed(20)
            died += driver.advance_with_crash(point)
            if number % 3 == 0:
                driver.crash(lose_hosts=[1])
            if number % 5 == 0:
                driver.advance()
                driver.advance_with_crash(COPY[number // 5 % len(COPY)], step=driver.copy)
        assert died > len(POINTS) // 2
        driver.advance(force=True)
        assert len(hosts_of(driver)) == 2
        driver.finish()
        world.check()


def test_tasks_of_a_lost_host_continue_on_another(tmp_path: Path) -> None:
    """With its disk gone, too, and without a copy since."""
    with open_cluster(tmp_path / "home") as driver:
        world = World(driver, random.Random(8))
        for _ in range(3):
            world.feed(40)
            driver.run()
        assert len(hosts_of(driver)) == 2
        driver.lose_host(1)
        world.feed(40)
        driver.run()
        assert len(hosts_of(driver)) == 1
        driver.finish()
        world.check()


def test_without_the_drivers_host_the_job_continues_from_the_copy(tmp_path: Path) -> None:
    """The other host still has stores that are ahead of it, which do not count any more."""
    with open_cluster(tmp_path / "home") as driver:
        world = World(driver, random.Random(9))
        world.feed(80)
        driver.run()
        driver.copy()
        kept = copied(driver)
        world.feed(80)
        driver.run()
        driver.crash(lose_hosts=[0])
        expire_lease(driver)
        driver.start()
        assert driver.coordinator.state.counts == kept.counts
        driver.finish()
        check_at_least_once(world, driver)
        assert len(list(driver.state_dir(1).glob("_remote/host/*/world"))) == 1


@pytest.mark.parametrize("seed", more([1, 2], range(200)))
def test_random_schedules_equal_the_model(tmp_path: Path, seed: int) -> None:
    """Crashes, copies, crashes in copies, and lost disks of either host or both."""
    rng = random.Random(seed)
    store = ("rocksdb", "columnar", "memory")[seed % 3]
    with open_cluster(tmp_path / "home", seed=seed, store=store) as driver:
        world, is_exact = World(driver, rng), True
        for _ in range(rng.randint(5, 9)):
            world.feed(rng.randint(1, 40))
            driver.advance_with_crash(rng.choice(POINTS), rng.randint(1, 3))
            driver.advance(force=True)
            match rng.randrange(4):
                case 0:
                    assert driver.copy().failures == 0
                case 1:
                    driver.advance_with_crash(rng.choice(COPY), step=driver.copy)
                case 2:
                    lost = rng.choice([[0], [1], [0, 1]])
                    is_exact = is_exact and 0 not in lost
                    driver.crash(lose_hosts=lost)
                    expire_lease(driver)
        driver.finish()
        if is_exact:
            world.check()
        else:
            check_at_least_once(world, driver)
