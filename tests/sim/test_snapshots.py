"""Snapshots in a whole job: taken when they pay, enough to rebuild from, old segments swept."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sim.world import World, make_job
from tests.support.homes import Files
from tests.support.limits import limit
from tests.support.soak import crossed

import headrace as hr
from headrace.errors import CorruptDataError
from headrace.testing import TestDriver


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files have levels too, so a few epochs of small changes are enough."""
    limit(monkeypatch, snapshot_gain_bytes=1)
    limit(monkeypatch, merge_cost_bytes=500)
    limit(monkeypatch, sweep_every=2)
    limit(monkeypatch, base_every=5)
    limit(monkeypatch, prune_margin=5)


def files(driver: TestDriver, folder: str) -> set[str]:
    return {f"{folder}/{name}" for name in Files(sync=False).names(driver.storage / folder)}


@pytest.mark.parametrize(("store", "seed"), crossed(["memory", "rocksdb"], [1, 2]))
def test_a_lost_disk_comes_back_from_snapshots_and_segments(store: str, seed: int) -> None:
    """Crashes, lost disks and lost processes in between; the result equals the model."""
    rng = random.Random(seed)
    with TestDriver(make_job(store, small=True), tasks=2, hosts=2, keep_epochs=0) as driver:
        world = World(driver, rng)
        for number in range(18):
            world.feed(25)
            driver.run()
            if number % 6 == 5:
                driver.crash(lose_hosts=[number % 4 // 2])
            elif number % 6 == 2:
                driver.runner.kill(0)
        state = driver.coordinator.state
        taken = [task for task in state.tasks.values() if task.snapshots]
        assert taken
        assert all(s.epoch > task.snapshot_epoch for task in taken for s in task.segments)
        driver.finish()
        world.check()
        left = files(driver, "segment") | files(driver, "snapshot") | files(driver, "output")
        assert left <= driver.coordinator.kept_files()


class Last:
    """Overwrites one value for each key: a changelog that outgrows its state."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.store("last").put(message.k, "x" * 200 + str(message.v))


@hr.job("last")
def last(g: hr.Graph) -> None:
    g.input("in").partition_by("k").process(Last, stores={"last": str}, name="p")


def fill(driver: TestDriver, epochs: int) -> None:
    for epoch in range(epochs):
        driver.feed("in", [{"k": k, "v": epoch} for k in range(10)])
        driver.advance()


@pytest.fixture
def driver() -> Any:
    with TestDriver(last, tasks=2, key_groups=4, keep_epochs=0) as made:
        made.create("in", {"k": pa.int64(), "v": pa.int64()})
        yield made


def test_disk_stays_flat_while_values_are_overwritten(driver: TestDriver) -> None:
    fill(driver, 10)
    early = len(files(driver, "segment")) + len(files(driver, "snapshot"))
    fill(driver, 30)
    late = len(files(driver, "segment")) + len(files(driver, "snapshot"))
    assert late <= early + 3
    assert len(list((driver.storage / "manifests").iterdir())) <= 11
    assert files(driver, "exchange") == set()
    driver.crash(lose_hosts=[0])
    assert driver.store("last") == dict.fromkeys(range(10), "x" * 200 + "29")
    fill(driver, 1)
    assert driver.store("last") == dict.fromkeys(range(10), "x" * 200 + "0")


def test_a_damaged_snapshot_is_told_when_it_is_needed(driver: TestDriver) -> None:
    fill(driver, 12)
    held = driver.coordinator.state.tasks
    paths = [driver.storage / ref.path for task in held.values() for ref in task.snapshots]
    assert paths
    _flip(paths[0])
    driver.crash(lose_hosts=[0])
    driver.feed("in", [{"k": k, "v": 99} for k in range(10)])
    with pytest.raises(CorruptDataError, match=paths[0].name):
        driver.advance()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
