"""Jobs whose epochs commit to the host's own disk: what their tests have in common."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

from tests.sim.world import World, make_job, model, rows_of
from tests.support.changes import JobState
from tests.support.homes import committed_state

from headrace.testing import TestDriver


def open_driver(
    home: Path,
    durability: str = "backup(30s)",
    store: str = "rocksdb",
    seed: int = 0,
    keep_epochs: int = 100,
    *,
    small: bool = True,
    hosts: int = 1,
    storage: str = "",
) -> TestDriver:
    tables = ("memory", store) if store == "columnar" else (store, store)
    work = make_job(*tables, small=small)
    return TestDriver(
        work,
        tasks=2,
        hosts=hosts,
        home=home,
        durability=durability,
        seed=seed,
        keep_epochs=keep_epochs,
        storage=storage,
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
    return committed_state(job_dir(driver))


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
    other.bus, other.job = driver.bus, driver.job
    other.state_dir = lambda host: driver.home / "other-host"  # type: ignore[method-assign]
    state = replace(driver.settings.state, dir=driver.home / "other-host")
    other.settings = replace(driver.settings, state=state)
    return other


def check_at_least_once(world: World, driver: TestDriver) -> None:
    """State is as without a loss; of the outputs none is missing, and some may be there twice."""
    log = world.log
    expected = model(log)
    assert expected["store"] == driver.store("n")
    assert sum(map(len, log)) == driver.coordinator.state.counts["in"]
    for stream in {"windows", "best", "periodic"} & set(driver.bus.names()):
        found = rows_of(driver, stream)
        assert expected[stream].keys() == found.keys()
        assert all(found[row] >= count for row, count in expected[stream].items())
    counts = {(row["id"], row["n"]) for row in driver.output("counts") if row["n"] > 0}
    assert counts == {(key, n) for key, last in expected["store"].items() for n in _upto(last)}


def _upto(last: int) -> range:
    return range(1, last + 1)
