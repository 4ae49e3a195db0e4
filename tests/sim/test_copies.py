"""Epochs that commit to the host's own disk: the copy, and the way back from it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.sim.copies import (
    begun,
    check_at_least_once,
    copied,
    job_dir,
    lose_host,
    open_driver,
)
from tests.sim.world import World
from tests.support.changes import locked, readers, with_settings
from tests.support.homes import entries_in, unnamed
from tests.support.limits import limit
from tests.support.watching import described

from headrace.errors import InvalidInputError
from headrace.testing import TestDriver, call_at


def test_epochs_commit_here_and_the_copy_follows(driver: TestDriver) -> None:
    """Nothing but marks is in job_dir before a copy; afterwards all that the state names is."""
    world = World(driver, random.Random(1))
    world.feed(80)
    summary = driver.advance()
    assert summary is not None
    assert summary.copy is not None
    assert (summary.copy.epochs, summary.copy.problem) == (1, "")
    assert not [*(job_dir(driver) / "manifests").iterdir()]
    status = driver.copy()
    assert (status.epoch, status.copies, status.failures) == (1, 1, 0)
    state = copied(driver)
    assert driver.coordinator.state.digest == state.copy_of
    assert state.durability == "backup(30s)"
    for path in state.files():
        assert (job_dir(driver) / path).read_bytes() == (driver.storage / path).read_bytes()
    assert entries_in(job_dir(driver), "n") == driver.raw_store("n")
    driver.finish()
    world.check()


def test_commands_look_where_the_driver_is_also_when_the_copy_is_as_new(
    driver: TestDriver,
) -> None:
    """What a driver leaves of itself, such as its lock, is beside its epochs only."""
    begun(driver, 3)
    with locked(driver, real_clock=True):
        seen = described(driver)
    assert readers(driver)[0].root == driver.storage
    assert (seen.process is not None, seen.host) == (True, os.uname().nodename)
    lose_host(driver)
    assert readers(driver)[0].root == job_dir(driver)


def test_old_copies_are_swept(driver: TestDriver) -> None:
    """The copy holds what the newest two copies name, and no more."""
    world = World(driver, random.Random(2))
    named: list[set[str]] = []
    for _ in range(5):
        world.feed(30)
        driver.advance()
        driver.copy()
        named.append(copied(driver).files())
    assert unnamed(job_dir(driver), named[-1] | named[-2]) == []
    assert all((job_dir(driver) / path).exists() for path in named[-1] | named[-2])
    assert len(list((job_dir(driver) / "manifests").iterdir())) == 2


@pytest.mark.parametrize("store", ["rocksdb", "columnar"])
def test_a_lost_host_steps_back_to_the_last_copy(tmp_path: Path, store: str) -> None:
    """Input is read again from there in a new lineage; the outputs after it appear again."""
    with open_driver(tmp_path / "home", store=store) as driver:
        world = World(driver, random.Random(4))
        world.feed(80)
        driver.run()
        driver.copy()
        kept = driver.coordinator.state
        world.feed(80)
        driver.run()
        lost = driver.coordinator.state
        written = len(driver.output("counts"))
        lose_host(driver)
        driver.start()
        state = driver.coordinator.state
        assert (state.epoch, state.copy_of) == (kept.epoch + 1, "")
        assert state.lineage != kept.lineage
        assert state.generation > lost.generation
        assert state.counts["in"] == kept.counts["in"] < lost.counts["in"]
        driver.run()
        assert len(driver.output("counts")) > written
        driver.finish()
        check_at_least_once(world, driver)


def test_outputs_of_the_copied_epoch_are_not_doubled(driver: TestDriver) -> None:
    """With nothing committed after the copy, a lost host costs nothing and doubles nothing."""
    world = World(driver, random.Random(5))
    world.feed(80)
    driver.run()
    driver.copy()
    lose_host(driver)
    world.feed(80)
    driver.finish()
    world.check()


def test_a_restart_goes_on_from_the_storage_that_is_ahead(driver: TestDriver) -> None:
    world = World(driver, random.Random(6))
    world.feed(80)
    driver.advance()
    driver.copy()
    world.feed(80)
    driver.advance()
    ahead = driver.coordinator.state
    driver.crash()
    driver.start()
    assert (driver.coordinator.state.epoch, driver.coordinator.state.lineage) == (
        ahead.epoch,
        ahead.lineage,
    )
    driver.finish()
    world.check()


@pytest.mark.parametrize(("before", "after"), [("epoch", "backup(30s)"), ("backup(30s)", "epoch")])
def test_the_durability_of_a_job_can_change(tmp_path: Path, before: str, after: str) -> None:
    """From one run to the next; with a copy at the end of the first nothing appears twice."""
    with open_driver(tmp_path / "home", before) as driver:
        world = World(driver, random.Random(14))
        world.feed(80)
        driver.run()
        if before != "epoch":
            driver.copy()
        driver.crash()
        with_settings(driver, "state", durability=after)
        world.feed(80)
        driver.start()
        assert driver.coordinator.state.durability == after
        driver.finish()
        world.check()


def test_a_storage_that_is_ahead_is_not_left_behind(driver: TestDriver) -> None:
    """Who commits to job_dir again is told first of the epochs that are only here."""
    world = begun(driver, 18)
    world.feed(60)
    driver.advance()
    driver.crash()
    with_settings(driver, "state", durability="epoch")
    with pytest.raises(InvalidInputError, match=r"run it once more with state\.durability=backup"):
        driver.start()
    with_settings(driver, "state", durability="backup(30s)")
    driver.start()
    driver.copy()
    driver.crash()
    with_settings(driver, "state", durability="epoch")
    driver.finish()
    world.check()


def test_what_is_being_copied_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs go on meanwhile, and name none of it any more; afterwards it goes."""
    limit(monkeypatch, sweep_every=1)
    with open_driver(tmp_path / "home", keep_epochs=0) as driver:
        world = begun(driver, 21)
        world.feed(60)
        driver.advance()
        begins = driver.coordinator.state
        left: set[str] = set()

        def go_on() -> None:
            for _ in range(12):
                world.feed(20)
                driver.advance()
            left.update(begins.files() - driver.coordinator.kept_files())

        with call_at("copy.file_written", go_on):
            assert driver.copy().failures == 0
        assert left
        assert copied(driver).copy_of == begins.digest
        assert all((job_dir(driver) / path).exists() for path in begins.files())
        assert all((driver.storage / path).exists() for path in left)
        world.feed(20)
        driver.advance()
        assert not any((driver.storage / path).exists() for path in left)
        driver.finish()
        world.check()
