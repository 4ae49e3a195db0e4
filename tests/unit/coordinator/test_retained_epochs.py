"""Epochs that are kept can be read as they were, the others are refused, and disk is bounded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changes import JobReader, entries_at, newest_base, readers, with_settings
from tests.support.faults import before_sources_open
from tests.support.limits import limit
from tests.support.soak import more

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.testing import TestDriver


class Last:
    """Overwrites one value for each key, and deletes some."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.v % 5 == 0:
            context.store("last").delete(message.k)
        else:
            context.store("last").put(message.k, message.v)


@hr.job("last")
def last(g: hr.Graph) -> None:
    stream = g.input("in").partition_by("k")
    stream.process(Last, stores=(hr.store("last", int, kind="memory"),), name="p")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases, sweeps and snapshots every few epochs."""
    limit(monkeypatch, base_every=6)
    limit(monkeypatch, sweep_every=1)
    limit(monkeypatch, prune_margin=2)
    limit(monkeypatch, snapshot_gain_bytes=0)
    limit(monkeypatch, merge_cost_bytes=512)


@pytest.fixture
def make() -> Any:
    made: list[TestDriver] = []

    def build(keep: int, seed: int = 0) -> TestDriver:
        driver = TestDriver(last, tasks=2, key_groups=8, keep_epochs=keep, seed=seed)
        driver.create("in", {"k": pa.int64(), "v": pa.int64()})
        made.append(driver)
        return driver

    yield build
    for driver in made:
        driver.close()


def reader(driver: TestDriver) -> JobReader:
    return readers(driver)[0]


def held(driver: TestDriver, epoch: int | None = None) -> dict[Any, Any]:
    return entries_at(driver, "last", epoch)


def feed(driver: TestDriver, number: int) -> None:
    driver.feed("in", [{"k": k, "v": number + k} for k in range(number % 4, 12)])
    driver.run()


@pytest.mark.parametrize("seed", more(range(2), range(40)))
def test_every_kept_epoch_is_as_it_was(make: Callable[..., TestDriver], seed: int) -> None:
    """Through crashes and restarts, snapshots, sweeps and pruned manifests."""
    rng = random.Random(seed)
    keep = rng.choice([1, 3, 10, 25])
    driver = make(keep, seed)
    was: dict[int, dict[Any, Any]] = {}
    for number in range(30):
        feed(driver, number)
        newest = driver.coordinator.state.epoch
        was[newest] = driver.store("last")
        if rng.random() < 0.15:
            driver.crash(lose_hosts=[0] if rng.random() < 0.5 else [])
            driver.start()
        kept = reader(driver).kept()
        assert kept.newest == newest
        assert kept.oldest == max(0, newest - keep)
        for epoch in range(max(1, kept.oldest), newest + 1):
            assert was[epoch] == held(driver, epoch)


def test_what_is_no_longer_kept_is_refused(make: Callable[..., TestDriver]) -> None:
    driver = make(3)
    for number in range(9):
        feed(driver, number)
    told = "epoch 5 of job 'last' is no longer kept; the oldest that is kept is 6, the newest 9"
    with pytest.raises(InvalidInputError, match=told):
        reader(driver).state(5)
    with pytest.raises(InvalidInputError, match="the oldest that is kept is 6"):
        reader(driver).state(-4)


def test_what_is_gone_does_not_come_back_with_another_setting(
    make: Callable[..., TestDriver],
) -> None:
    driver = make(2)
    for number in range(9):
        feed(driver, number)
    state = replace(driver.settings.state, keep_epochs=50)
    driver.settings = replace(driver.settings, state=state)
    driver.crash()
    feed(driver, 9)
    assert reader(driver).kept() == (7, 10)
    feed(driver, 10)
    assert reader(driver).kept() == (7, 11)


def test_disk_is_bounded(make: Callable[..., TestDriver]) -> None:
    """Files and manifests are those of the kept epochs, however long the job runs."""
    counts = []
    driver = make(5)
    for number in range(60):
        feed(driver, number)
        counts.append(sum(1 for path in driver.storage.rglob("*") if path.is_file()))
    assert max(counts[40:]) <= max(counts[:30])


def test_fewer_epochs_are_kept_where_their_files_are_many(
    make: Callable[..., TestDriver],
) -> None:
    """The bound is on bytes as well, and what is said to be kept can be read."""
    driver = make(50)
    with_settings(driver, "state", keep_bytes=20_000)
    for number in range(40):
        feed(driver, number)
        kept = reader(driver).kept()
        held(driver, kept.oldest)
    files = driver.coordinator.kept_files() - driver.coordinator.state.files()
    size = sum((driver.storage / path).stat().st_size for path in files)
    assert 10_000 < size <= 25_000  # what the newest epoch replaced is counted with the next
    assert 30 > kept.newest - kept.oldest > 2


def test_the_manifests_that_are_left_begin_with_a_base(make: Callable[..., TestDriver]) -> None:
    """Also where the epoch that should have been a base only fixed the end of the inputs."""
    driver = make(4)
    for number in range(5):
        feed(driver, number)
    driver.coordinator.end_at_present()
    driver.run()
    assert newest_base(driver, 6) == 0
    assert reader(driver).kept().oldest == 3
    assert held(driver, 4)


def test_files_that_go_while_they_are_looked_for(
    make: Callable[..., TestDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver sweeps between the look at the manifests and the opening of the files."""
    driver = make(0)
    for number in range(5):
        feed(driver, number)
    passed: list[int] = []

    def meanwhile() -> None:
        if len(passed) < 3:
            passed.append(1)
            for number in range(8):
                feed(driver, number + len(passed))

    before_sources_open(monkeypatch, meanwhile)
    newest = held(driver)
    assert len(passed) == 3
    assert newest == driver.store("last")
    passed.clear()
    with pytest.raises(InvalidInputError, match="no longer kept"):
        held(driver, driver.coordinator.state.epoch)


def test_a_file_that_is_kept_and_missing_is_damage(make: Callable[..., TestDriver]) -> None:
    driver = make(10)
    for number in range(5):
        feed(driver, number)
    ref = next(ref for task in driver.coordinator.state.tasks.values() for ref in task.files)
    (driver.storage / ref.path).unlink()
    with pytest.raises(CorruptDataError, match=ref.path):
        held(driver)
