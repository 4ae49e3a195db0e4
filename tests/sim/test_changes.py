"""A crash at every step of what is done to a job beside its epochs: all of it, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sim.copies import (
    check_at_least_once,
    copied,
    die_at,
    open_driver,
)
from tests.sim.world import PARTITIONS, World

from headrace.coordinator.changes.removal import remove_job, storages_of
from headrace.coordinator.changes.rescale_steps import rescale_stopped
from headrace.coordinator.changes.rewinding import emptied, rewound, set_back
from headrace.coordinator.collector import TRASH
from headrace.coordinator.deploy import open_copier
from headrace.coordinator.inspection.inspection import JobReader
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError
from headrace.faults import FAULT_POINTS, injected
from headrace.files import Files
from headrace.testing.driver import DriverCrash, TestDriver

FILES = Files(sync=False)
BACKUP = "backup(30s)"
BEFORE = ("commit.written", "set_back.published", "rescale.published")
COPY = tuple(point for point in FAULT_POINTS if point.startswith("copy."))
Change = Callable[[TestDriver], JobState]


def reset(driver: TestDriver) -> JobState:
    begins = {"events": [0] * PARTITIONS}
    return placed(driver, lambda state: emptied(state, begins, driver.clock.new_id()))


def rewind(driver: TestDriver) -> JobState:
    """To the second epoch of ``stopped``, whatever was done since."""
    reader = JobReader(driver.storage, "world", FILES, driver.clock)
    return placed(driver, lambda state: rewound(state, reader.state(2), driver.clock.new_id()))


def placed(driver: TestDriver, choose: Callable[[JobState], JobState]) -> JobState:
    return set_back(
        driver.storage,
        "world",
        choose,
        bus=driver.bus,
        files=FILES,
        clock=driver.clock,
        copier=open_copier(driver.settings, "world", driver.clock, FILES),
    )


def rescale(driver: TestDriver) -> JobState:
    return rescale_stopped(
        driver.storage,
        "world",
        5,
        None,
        bus=driver.bus,
        files=FILES,
        clock=driver.clock,
        copier=open_copier(driver.settings, "world", driver.clock, FILES),
    )


CHANGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "reset": (reset, ("set_back.published", "commit.written", "set_back.committed")),
    "rewind": (rewind, ("set_back.published", "commit.written", "set_back.committed")),
    "rescale": (rescale, ("rescale.published", "commit.written", "rescale.committed")),
}
CASES = [
    (name, durability, point)
    for name, (_, points) in CHANGES.items()
    for durability in ("epoch", BACKUP)
    for point in (*points, *(COPY if durability == BACKUP and name != "reset" else ()))
]


def stopped(driver: TestDriver) -> World:
    """A job of three epochs, of which the last has died before its outputs were out."""
    world = World(driver, random.Random(31))
    world.feed(60)
    driver.advance()
    if driver.copier is not None:
        driver.copy()
    world.feed(60)
    driver.advance()
    world.feed(40)
    assert driver.advance_with_crash("commit.published")
    driver.crash()
    return world


def check(driver: TestDriver, world: World, name: str) -> None:
    """What a reset or rewind reads again is published again."""
    driver.finish()
    if name == "rescale":
        world.check()
    else:
        check_at_least_once(world, driver)


@pytest.mark.parametrize(("name", "durability", "point"), CASES)
def test_a_crash_at_every_step(tmp_path: Path, name: str, durability: str, point: str) -> None:
    """The job goes on from before or after the change, and the change can be asked for again."""
    change, _ = CHANGES[name]
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        reader = JobReader(driver.storage, "world", FILES, driver.clock)
        before = reader.state()
        with injected(die_at(point), (point,)), pytest.raises(DriverCrash):
            change(driver)
        after = reader.state()
        assert (after.lineage == before.lineage) == (point in BEFORE)
        again = change(driver)
        assert again.lineage != before.lineage
        world.feed(40)
        check(driver, world, name)


@pytest.mark.parametrize(("name", "durability", "point"), CASES)
def test_a_crash_after_which_nobody_asks_again(
    tmp_path: Path, name: str, durability: str, point: str
) -> None:
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        with injected(die_at(point), (point,)), pytest.raises(DriverCrash):
            CHANGES[name][0](driver)
        driver.start()
        world.feed(40)
        check(driver, world, name)


@pytest.mark.parametrize("name", CHANGES)
def test_the_loss_of_the_host_takes_nothing_back(tmp_path: Path, name: str) -> None:
    """The copy follows the change at once, and another host need not wait for the lease."""
    with open_driver(tmp_path / "home", BACKUP) as driver:
        world = stopped(driver)
        state = CHANGES[name][0](driver)
        assert copied(driver).copy_of == state.digest
        assert not (driver.settings.jobs_dir / "world" / "lease.json").exists()
        driver.crash(lose_hosts=[0])
        driver.start()
        found = driver.coordinator.state
        assert found.counts == state.counts
        assert found.task_counts == state.task_counts
        world.feed(40)
        driver.finish()
        check_at_least_once(world, driver)


def test_a_change_that_is_refused_lets_go_of_the_lease(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", BACKUP) as driver:
        stopped(driver)

        def refuse(state: JobState) -> JobState:
            raise InvalidInputError(f"no such place after epoch {state.epoch}")

        with pytest.raises(InvalidInputError, match="no such place after epoch 3"):
            placed(driver, refuse)
        assert not (driver.settings.jobs_dir / "world" / "lease.json").exists()


def test_a_change_while_job_dir_is_away_is_copied_by_the_next_driver(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", BACKUP) as driver:
        world = stopped(driver)
        away = driver.settings.jobs_dir.rename(driver.home / "away")
        state = reset(driver)
        away.rename(driver.settings.jobs_dir)
        assert copied(driver).copy_of != state.digest
        driver.start()
        assert driver.copy().failures == 0
        assert copied(driver).copy_of == driver.coordinator.state.digest
        driver.finish()
        check_at_least_once(world, driver)


DELETION = ("delete.published", "delete.renamed", "delete.gone")


def delete(driver: TestDriver) -> None:
    remove_job(driver.settings, "world", driver.bus, FILES, driver.clock)


@pytest.mark.parametrize("durability", ["epoch", BACKUP])
@pytest.mark.parametrize("point", DELETION)
def test_a_crash_while_a_job_is_deleted(tmp_path: Path, durability: str, point: str) -> None:
    """It is asked for again until the job is gone; then one of its name begins anew."""
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        with injected(die_at(point), (point,)), pytest.raises(DriverCrash):
            delete(driver)
        left = len(storages_of(driver.settings, "world"))
        is_there = point == "delete.published" or (durability, point) == (BACKUP, "delete.renamed")
        assert bool(left) == is_there
        delete(driver)
        assert storages_of(driver.settings, "world") == []
        world.feed(40)
        driver.finish()
        check_at_least_once(world, driver)
        delete(driver)
        assert list(driver.home.glob(f"**/{TRASH}*")) == []


@pytest.mark.parametrize("durability", ["epoch", BACKUP])
@pytest.mark.parametrize("point", DELETION)
def test_a_job_whose_deletion_died_is_whole_or_gone(
    tmp_path: Path, durability: str, point: str
) -> None:
    """A driver that comes in between finds no half of it, and no step back to an old copy."""
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        with injected(die_at(point), (point,)), pytest.raises(DriverCrash):
            delete(driver)
        is_there = bool(storages_of(driver.settings, "world"))
        epoch = driver.start().state.epoch
        assert epoch == (3 if is_there else 0)
        world.feed(40)
        driver.finish()
        if is_there:
            world.check()
        else:
            check_at_least_once(world, driver)
