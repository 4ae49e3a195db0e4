"""Savepoints of jobs whose storage is in a bucket: there, or in a folder, and begun from."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.world import World, make_job
from tests.support.changes import (
    begin_by_word,
    begin_from,
    delete_savepoint,
    save,
    save_running,
    savepoint_names,
)
from tests.support.soak import more
from tests.support.storages import bucket_of, objects_of

from headrace.errors import CorruptDataError, InvalidInputError
from headrace.testing import FAULT_POINTS, TestDriver, crash_at

JOBS = {
    "rocksdb": make_job("rocksdb", "columnar", small=True),
    "parts": make_job("memory", "columnar", ("id", "window_start"), small=True),
}
STARTING = (
    "savepoint.verified",
    "savepoint.streams_made",
    "savepoint.file_linked",
    "savepoint.files_brought",
    "savepoint.begun",
)
SAVED = "{}/_savepoints/world/s"
POINTS = [one for one in FAULT_POINTS if one.startswith("savepoint.")]
TAKING = [one for one in POINTS if one not in (*STARTING, "savepoint.named")]  # which is no step


def started(kind: str, address: str, home: Path) -> tuple[TestDriver, World]:
    driver = TestDriver(JOBS[kind], tasks=4, hosts=2, home=home, storage=address)
    world = World(driver, random.Random(5))
    for _ in range(2):
        world.feed(40)
        driver.run()
    world.feed(40)
    driver.advance()
    return driver, world


def finish(driver: TestDriver, world: World) -> None:
    world.feed(60)
    driver.finish()
    world.check()


def forget_copies(driver: TestDriver) -> None:
    """Lose what hosts keep of the bucket on their disks."""
    for cache in driver.home.glob("host-*/_remote"):
        shutil.rmtree(cache)


@pytest.mark.parametrize(("kind", "running"), [("rocksdb", False), ("parts", True)])
def test_another_job_goes_on_from_the_bucket_alone(
    kind: str, running: bool, address: str, tmp_path: Path
) -> None:
    """No host has a file of it any more; the name cannot be taken again until it is deleted."""
    driver, world = started(kind, address, tmp_path)
    with driver:
        (save_running if running else save)(driver)
        assert savepoint_names(driver) == ["s"]
        with pytest.raises(InvalidInputError, match=rf"{address}/_savepoints/world/s exists"):
            save(driver)
        driver.crash()
        forget_copies(driver)
        driver.job = replace(driver.job, name="other")
        said = begin_by_word(driver, SAVED.format(address) if running else "s", "world")
        assert f"from savepoint {SAVED.format(address)}" in said
        finish(driver, world)
        delete_savepoint(driver, "s")
        assert objects_of(SAVED.format(address)) == []
        assert savepoint_names(driver) == []


def test_a_savepoint_in_a_folder_of_one_host(address: str, tmp_path: Path) -> None:
    driver, world = started("rocksdb", address, tmp_path)
    folder = tmp_path / "saved"
    with driver:
        save(driver, folder=folder)
        assert objects_of(SAVED.format(address)) == []
        begin_from(driver, folder=folder)
        finish(driver, world)


@pytest.mark.parametrize("point", more(["savepoint.filled", "savepoint.written"], TAKING))
def test_a_writer_that_dies_leaves_no_savepoint(point: str, address: str, tmp_path: Path) -> None:
    """What it left is not listed, and goes when its name is deleted."""
    driver, world = started("parts", address, tmp_path)
    with driver:
        with crash_at(point):
            save(driver)
        is_whole = point == "savepoint.written"
        assert savepoint_names(driver) == (["s"] if is_whole else [])
        if not is_whole:
            if objects_of(SAVED.format(address)):
                delete_savepoint(driver, "s")
            assert objects_of(SAVED.format(address)) == []
            save(driver)
        begin_from(driver)
        finish(driver, world)


@pytest.mark.parametrize("point", more(["savepoint.begun"], STARTING))
def test_a_start_that_dies_is_begun_again(point: str, address: str, tmp_path: Path) -> None:
    driver, world = started("parts", address, tmp_path)
    with driver:
        save(driver)
        with crash_at(point):
            begin_from(driver)
        driver.crash()
        forget_copies(driver)
        begin_from(driver)
        finish(driver, world)


def test_what_is_damaged_or_gone_in_the_bucket_is_refused(address: str, tmp_path: Path) -> None:
    driver, world = started("rocksdb", address, tmp_path)
    bucket = bucket_of(address)
    with driver:
        save(driver)
        name = next(one for one in objects_of(SAVED.format(address)) if "/parts/" in one)
        data = bucket.get(name)
        for harm in (data[:-1], data[:-9] + bytes(9), None):
            bucket.delete(name) if harm is None else bucket.put(name, harm)
            driver.crash()
            forget_copies(driver)
            with pytest.raises(CorruptDataError, match=r"savepoint s3://.* is damaged: file parts"):
                begin_from(driver)
        bucket.put(name, data)
        begin_from(driver)
        finish(driver, world)
