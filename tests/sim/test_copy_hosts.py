"""Who drives a job with a copy: two hosts, their leases, and what is left of either."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.sim.copies import (
    begun,
    check_at_least_once,
    copied,
    expire_lease,
    job_dir,
    lose_host,
    on_another_host,
    open_driver,
)
from tests.sim.world import World
from tests.support.faults import refuse_lease_once, stall_files, wait_at_the_start
from tests.support.homes import Files

import headrace as hr
from headrace.errors import NotOwnerError
from headrace.testing import TestDriver, call_at, crash_at


def test_a_second_host_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """Its lease says so; once it has run out, the newer host takes over and fences the older."""
    home = tmp_path / "home"
    with open_driver(home) as first:
        world = begun(first, 11)
        second = on_another_host(first)
        with pytest.raises(NotOwnerError, match=r"driven by process \d+ on host"):
            second.start()
        expire_lease(first)
        second.start()
        assert second.coordinator.state.counts["in"] == 60
        world.feed(60)
        with pytest.raises(NotOwnerError, match=r"newer driver \(generation 2\)"):
            first.advance()  # it has not looked at job_dir again yet
        first.copy()
        with pytest.raises(NotOwnerError, match="taken over by a newer driver"):
            first.advance(force=True)
        second.finish()
        second.copy()
        check_at_least_once(world, second)
        second.crash()
        expire_lease(second)
        first.crash()
        first.start()
        assert first.coordinator.state.counts == copied(second).counts
        assert first.coordinator.state.ended


def test_an_older_driver_stops_once_its_copying_was_refused(tmp_path: Path) -> None:
    """Of a job that sends nothing, so that no stream refuses it."""

    @hr.job("world")
    def kept(g: hr.Graph) -> None:
        g.input("events").partition_by("id").aggregate(name="totals", n=hr.agg.count())

    home = tmp_path / "home"
    with TestDriver(kept, tasks=1, home=home, durability="backup(30s)") as first:
        first.create("events", {"id": pa.int64()})
        first.feed("events", [{"id": 1}])
        first.advance()
        first.copy()
        expire_lease(first)
        on_another_host(first).start()
        first.feed("events", [{"id": 2}])
        first.copy()
        with pytest.raises(NotOwnerError, match="taken over by a newer driver"):
            first.advance()


def test_a_refused_lease_after_the_claim_does_not_end_the_driver(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation in job_dir is this driver's own: it is not fenced by itself."""
    world = World(driver, random.Random(1))
    world.feed(20)
    driver.run()
    assert driver.copy()
    driver.crash()
    refuse_lease_once(monkeypatch)
    world.feed(20)
    driver.run()
    assert driver.copy()
    world.feed(20)
    driver.run()


class StandsStill(Files):
    """Does something else before it removes the first file of the copy."""

    meanwhile: Callable[[], None] | None = None

    def rename(self, path: Path, name: Path) -> None:
        meanwhile = self.meanwhile
        if meanwhile is not None and "jobs" in path.parts and name.name.startswith("gone-"):
            self.meanwhile = None
            meanwhile()
        super().rename(path, name)


@pytest.mark.parametrize(
    "point", ["copy.files_done", "commit.written", "copy.published", "a removal"]
)
def test_a_driver_that_stood_still_removes_nothing_of_its_successor(
    tmp_path: Path, point: str
) -> None:
    """It wakes in the middle of its copying, after another host has taken over and copied."""
    with open_driver(tmp_path / "home", keep_epochs=0) as first:
        files = StandsStill(sync=False)
        stall_files(first, files)
        world = begun(first, 22)
        for _ in range(3):
            world.feed(30)
            first.advance()
            first.copy()
        for _ in range(5):
            world.feed(10)
            first.advance()
        second = on_another_host(first)
        taken = []

        def take_over() -> None:
            taken.append(point)
            expire_lease(first)
            for _ in range(2):
                world.feed(30)
                second.advance()
                second.copy()

        if point == "a removal":
            files.meanwhile = take_over
            first.copy()
        else:
            with call_at(point, take_over):
                first.copy()
        assert taken
        first.copy()  # at the latest here it finds out
        with pytest.raises(NotOwnerError, match="taken over by a newer driver"):
            first.advance(force=True)
        state = copied(second)
        assert state.copy_of == second.coordinator.state.digest
        assert all((job_dir(second) / path).exists() for path in state.files())
        lose_host(second)
        second.start()
        assert second.coordinator.state.counts == state.counts
        second.finish()
        check_at_least_once(world, second)


def test_a_host_that_died_before_it_drove_has_overtaken_nobody(tmp_path: Path) -> None:
    """It had taken a generation; where the job was driven, nothing is lost and nothing doubled."""
    with open_driver(tmp_path / "home") as first:
        world = begun(first, 23)
        world.feed(60)
        first.advance()
        ahead = first.coordinator.state
        first.crash()
        expire_lease(first)
        second = on_another_host(first)
        with crash_at("copy.file_linked"):
            second.start()
        second.crash()
        expire_lease(first)
        first.start()
        state = first.coordinator.state
        assert (state.epoch, state.lineage) == (ahead.epoch, ahead.lineage)
        first.finish()
        world.check()


def test_a_host_that_copied_nothing_is_overtaken_itself(tmp_path: Path) -> None:
    """What it committed was on its own disk alone; the older storage is the newest elsewhere."""
    with open_driver(tmp_path / "home") as first:
        world = begun(first, 24)
        world.feed(60)
        first.advance()
        ahead = first.coordinator.state
        first.crash()
        expire_lease(first)
        second = on_another_host(first)
        world.feed(30)
        second.run()
        second.crash()
        expire_lease(first)
        first.start()
        assert first.coordinator.state.epoch == ahead.epoch
        first.run()
        first.copy()
        first.crash()
        expire_lease(first)
        second.start()
        assert second.coordinator.state.counts == copied(first).counts
        second.finish()
        check_at_least_once(world, second)


def test_a_host_steps_back_to_what_another_has_copied(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home") as first:
        world = begun(first, 25)
        world.feed(60)
        first.advance()
        first.crash()
        expire_lease(first)
        second = on_another_host(first)
        second.start()
        second.copy()
        second.crash()
        expire_lease(first)
        first.start()
        assert first.coordinator.state.counts["in"] == 60
        first.finish()
        check_at_least_once(world, first)


@pytest.mark.parametrize("durability", ["backup(1s)", "backup(30s)"])
def test_a_driver_that_waits_at_its_start_keeps_its_lease(tmp_path: Path, durability: str) -> None:
    """It has no epoch to copy yet, as while a sink is away."""
    with open_driver(tmp_path / "home", durability) as driver:
        World(driver, random.Random(26))
        renew = wait_at_the_start(driver)
        expire_lease(driver)
        driver.clock.advance(6_000)
        renew()
        with pytest.raises(NotOwnerError, match=r"driven by process \d+ on host"):
            on_another_host(driver).start()
