"""Jobs whose epochs commit to the host's own disk: what their tests have in common."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.sim.world import World, _rows, make_job, model

from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.manifest import JobState
from headrace.files import Files
from headrace.testing.driver import DriverCrash, TestDriver


def open_driver(
    home: Path,
    durability: str = "backup(30s)",
    store: str = "rocksdb",
    seed: int = 0,
    keep_epochs: int = 100,
) -> TestDriver:
    work = make_job("memory", store) if store == "columnar" else make_job(store)
    return TestDriver(
        work, tasks=3, home=home, durability=durability, seed=seed, keep_epochs=keep_epochs
    )


def begun(driver: TestDriver, seed: int) -> World:
    """A world with one epoch, which is copied."""
    world = World(driver, random.Random(seed))
    world.feed(60)
    driver.advance()
    driver.copy()
    return world


def job_dir(driver: TestDriver) -> Path:
    return driver.settings.jobs_dir / "world"


def copied(driver: TestDriver) -> JobState:
    state = load_state(FileCommitLog(job_dir(driver), Files(sync=False), driver.clock))
    assert state is not None
    return state


def lose_host(driver: TestDriver) -> None:
    """Every process of the host ends, and its disk is gone."""
    driver.crash(lose_hosts=[0])
    expire_lease(driver)


def expire_lease(driver: TestDriver) -> None:
    """Let the driver that held the lease be silent for long."""
    lease = job_dir(driver) / "lease.json"
    if lease.exists():
        seen = lease.stat().st_mtime - 31
        os.utime(lease, (seen, seen))


def on_another_host(driver: TestDriver, seed: int = 1) -> TestDriver:
    """A driver of the same job and bus whose state directory is its own."""
    other = open_driver(driver.home, seed=seed)
    other.bus.close()
    other.bus, other._job = driver.bus, driver._job
    other.state_dir = lambda host: driver.home / "other-host"  # type: ignore[method-assign]
    state = driver.settings.state.model_copy(update={"dir": driver.home / "other-host"})
    other.settings = driver.settings.model_copy(update={"state": state})
    return other


def check_at_least_once(world: World, driver: TestDriver) -> None:
    """State is as without a loss; of the outputs none is missing, and some may be there twice."""
    expected = model(world.log)
    assert expected["store"] == driver.store("n")
    assert sum(map(len, world.log)) == driver.coordinator.state.counts["in"]
    for stream in ("windows", "best", "periodic"):
        found = _rows(driver, stream)
        assert expected[stream].keys() == found.keys()
        assert all(found[row] >= count for row, count in expected[stream].items())
    counts = {(row["id"], row["n"]) for row in driver.output("counts") if row["n"] > 0}
    assert counts == {(key, n) for key, last in expected["store"].items() for n in _upto(last)}


def _upto(last: int) -> range:
    return range(1, last + 1)


def die_at(point: str) -> Callable[[str], None]:
    """A hook with which whoever passes a fault point dies there."""

    def hook(name: str) -> None:
        if name == point:
            raise DriverCrash(point)

    return hook
