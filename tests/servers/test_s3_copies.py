"""Jobs that commit to a disk, with slots on two hosts and a copy in a real S3 server."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.sim.copies import check_at_least_once, open_driver
from tests.sim.world import World
from tests.support.homes import committed_state
from tests.support.servers import S3Server, free_port
from tests.support.storages import forget_storages, give_up_soon, names_below, remove_object

from headrace.errors import UnavailableError
from headrace.testing import FAULT_POINTS

COPY = [point for point in FAULT_POINTS if point.startswith("copy.")]


def expire_lease(address: str) -> None:
    """Let the driver that held the lease be silent for long."""
    remove_object(f"{address}/world/lease.json")


def held(address: str) -> set[str]:
    """Return the files of state and outputs in the bucket."""
    found = names_below(f"{address}/world")
    return {name for name in found if name.split("/")[0] in {"segment", "snapshot", "output"}}


def test_a_lost_cluster_continues_from_the_bucket(tmp_path: Path, address: str) -> None:
    """A host without the driver costs nothing; all hosts cost what came after the last copy."""
    with open_driver(tmp_path / "home", hosts=2, storage=address) as driver:
        world = World(driver, random.Random(1))
        named: set[str] = set()
        for point in COPY:
            world.feed(30)
            driver.run()
            driver.advance_with_crash(point, step=driver.copy)
            expire_lease(address)
        driver.crash(lose_hosts=[1])
        for _ in range(2):
            world.feed(30)
            driver.run()
            assert driver.copy().failures == 0
            before, named = named, driver.coordinator.state.files()
        assert held(address) == before | named
        kept = driver.coordinator.state
        world.feed(30)
        driver.run()
        driver.crash(lose_hosts=[0, 1])
        expire_lease(address)
        driver.start()
        assert driver.coordinator.state.counts == kept.counts
        driver.finish()
        check_at_least_once(world, driver)


def test_no_epoch_waits_for_a_bucket_that_is_away(
    tmp_path: Path, address: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy catches up when it is back; a start needs it, an epoch does not."""
    with open_driver(tmp_path / "home", hosts=2, storage=address) as driver:
        world = World(driver, random.Random(2))
        world.feed(30)
        driver.run()
        assert driver.copy().failures == 0
        with monkeypatch.context() as away:
            away.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
            give_up_soon(away)
            for _ in range(2):
                world.feed(30)
                driver.run()
                status = driver.copy()
            assert status.failures == 2
            assert "does not answer" in status.problem
            driver.crash()
            with pytest.raises(UnavailableError, match="does not answer"):
                driver.start()
        forget_storages()
        assert driver.copy().failures == 0
        state = driver.coordinator.state
        copied = committed_state(driver.settings.jobs_dir / "world")
        assert (copied.copy_of, copied.counts) == (state.digest, state.counts)
        driver.finish()
        world.check()
