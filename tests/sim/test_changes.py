"""A crash at every step of what is done to a job beside its epochs: all of it, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sim.copies import check_at_least_once, copied, open_driver
from tests.sim.world import World
from tests.support.changes import JobState, remove, reset, state_at, storages, trash
from tests.support.changes import rescale as rescale_to
from tests.support.changes import rewind as rewind_to
from tests.support.pairwise import Cell, choices, pairwise
from tests.support.soak import crossed, more

from headrace.errors import InvalidInputError
from headrace.testing import FAULT_POINTS, TestDriver, call_at, crash_at

BACKUP = "backup(30s)"
BEFORE = ("commit.written", "set_back.published", "rescale.published")
COPY = tuple(point for point in FAULT_POINTS if point.startswith("copy."))
Change = Callable[[TestDriver], JobState]


def rewind(driver: TestDriver) -> JobState:
    """To the second epoch of ``stopped``, whatever was done since."""
    return rewind_to(driver, 2)


def rescale(driver: TestDriver) -> JobState:
    return rescale_to(driver, 5)


CHANGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "reset": (reset, ("set_back.published", "commit.written", "set_back.committed")),
    "rewind": (rewind, ("set_back.published", "commit.written", "set_back.committed")),
    "rescale": (rescale, ("rescale.published", "commit.written", "rescale.committed")),
}
BASES = [
    {"change": name, "point": point}
    for name, (_, points) in CHANGES.items()
    for point in (*points, *(COPY if name != "reset" else ()))
]
FACTORS = {"durability": ("epoch", BACKUP), "asked": ("again", "once")}


def is_quick(base: Cell) -> bool:
    """Have the copy follow a rewind in some of its steps, and a rescale in the others."""
    halves = {"rewind": COPY[::2], "rescale": COPY[1::2]}
    return base["point"] not in COPY or base["point"] in halves[base["change"]]


def allows(cell: Cell) -> bool:
    return cell["durability"] == BACKUP or not cell["point"].startswith("copy.")


CELLS = pairwise([base for base in BASES if is_quick(base)], FACTORS, allows)
EVERY = [cell for base in BASES for cell in choices(base, FACTORS, allows)]


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


@pytest.mark.parametrize("cell", more(CELLS, EVERY), ids=lambda cell: "-".join(cell.values()))
def test_a_crash_at_every_step(tmp_path: Path, cell: Cell) -> None:
    """The job goes on from before or after the change, which can be asked for again."""
    name, point = cell["change"], cell["point"]
    change, _ = CHANGES[name]
    with open_driver(tmp_path / "home", cell["durability"]) as driver:
        world = stopped(driver)
        before = state_at(driver)
        with crash_at(point):
            change(driver)
        assert (state_at(driver).lineage == before.lineage) == (point in BEFORE)
        if cell["asked"] == "again":
            assert change(driver).lineage != before.lineage
        else:
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


def test_a_change_that_fails_gives_the_lease_back(tmp_path: Path) -> None:
    def fail() -> None:
        raise InvalidInputError("it failed")

    with open_driver(tmp_path / "home", BACKUP) as driver:
        stopped(driver)

        with call_at("commit.written", fail), pytest.raises(InvalidInputError, match="it failed"):
            rescale_to(driver, 8)
        assert not (driver.settings.jobs_dir / "world" / "lease.json").exists()


def test_a_change_that_is_refused_before_it_begins_takes_no_lease(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", BACKUP) as driver:
        stopped(driver)
        reset(driver)

        with pytest.raises(InvalidInputError, match="found 1000 tasks, expected 1 to 64"):
            rescale_to(driver, 1000)
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


def has_epochs(driver: TestDriver) -> bool:
    return any(list(path.glob("manifests/[0-9]*.json")) for path in storages(driver))


@pytest.mark.parametrize(("point", "durability"), crossed(DELETION, [BACKUP, "epoch"]))
def test_a_crash_while_a_job_is_deleted(tmp_path: Path, durability: str, point: str) -> None:
    """It is asked for again until the job is gone; then one of its name begins anew."""
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        with crash_at(point):
            remove(driver)
        is_there = point == "delete.published" or (durability, point) == (BACKUP, "delete.renamed")
        assert has_epochs(driver) == is_there
        remove(driver)
        assert storages(driver) == []
        world.feed(40)
        driver.finish()
        check_at_least_once(world, driver)
        remove(driver)
        assert trash(driver) == []


@pytest.mark.parametrize(("point", "durability"), crossed(DELETION, ["epoch", BACKUP]))
def test_a_job_whose_deletion_died_is_whole_or_gone(
    tmp_path: Path, durability: str, point: str
) -> None:
    """A driver that comes in between finds no half of it, and no step back to an old copy."""
    with open_driver(tmp_path / "home", durability) as driver:
        world = stopped(driver)
        with crash_at(point):
            remove(driver)
        is_there = has_epochs(driver)
        epoch = driver.start().state.epoch
        assert epoch == (3 if is_there else 0)
        world.feed(40)
        driver.finish()
        if is_there:
            world.check()
        else:
            check_at_least_once(world, driver)
