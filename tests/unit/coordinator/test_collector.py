"""Local state that nobody needs goes, after a while; what is needed, open or unclear stays."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.homes import Files
from tests.support.hosts import DELETED_MARK, STORAGES, collected

import headrace as hr
from headrace.testing import TestDriver

FILES = Files(sync=False)
KEEP_S = 3600.0


@hr.job("counted")
def counted(g: hr.Graph) -> None:
    g.input("events").partition_by("id").aggregate(store="rocksdb", n=hr.agg.count()).send_to(
        g.output("counts")
    )


def open_driver(home: Path, durability: str = "epoch") -> TestDriver:
    driver = TestDriver(counted, tasks=2, home=home, durability=durability)
    driver.create("events", {"id": pa.int64()})
    driver.feed("events", [{"id": n} for n in range(50)])
    driver.run()
    return driver


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with open_driver(tmp_path) as made:
        yield made


def later(driver: TestDriver) -> list[str]:
    """Collect twice, with the pause between; returns what went by its name."""
    assert collected(driver, 0, KEEP_S) == []
    driver.clock.advance(int(KEEP_S * 1000))
    return [path.name for path in collected(driver, 0, KEEP_S)]


def tasks(driver: TestDriver) -> list[Path]:
    return sorted(p for p in (driver.state_dir(0) / "counted").iterdir() if p.is_dir())


def test_the_state_of_a_running_job_stays(driver: TestDriver) -> None:
    before = tasks(driver)
    assert len(before) == 2
    assert later(driver) == []
    driver.crash()
    assert later(driver) == []
    assert tasks(driver) == before


def test_a_removed_job_goes_after_a_while(driver: TestDriver) -> None:
    """And with it what is cached of its storage on the disk of its driver's host."""
    driver.crash()
    shutil.rmtree(driver.storage)
    cached = driver.state_dir(0) / "_remote" / "host" / "there" / "counted"
    (cached / "segment").mkdir(parents=True)
    assert later(driver) == ["counted"]
    assert not (driver.state_dir(0) / "counted").exists()
    assert not cached.exists()
    assert later(driver) == []


def test_a_job_that_is_marked_deleted_goes(driver: TestDriver) -> None:
    driver.crash()
    (driver.storage / DELETED_MARK).touch()
    assert later(driver) == ["counted"]


def test_what_a_process_has_open_stays(driver: TestDriver) -> None:
    """Also when its job is gone: it goes when the process has ended."""
    shutil.rmtree(driver.storage)
    assert later(driver) == []
    driver.crash()
    assert collected(driver, 0, KEEP_S)


def test_a_job_dir_that_is_not_there_says_nothing(driver: TestDriver) -> None:
    driver.crash()
    driver.settings.jobs_dir.rename(driver.home / "away")
    assert later(driver) == []
    assert len(tasks(driver)) == 2


def test_tasks_of_other_key_groups_go(driver: TestDriver) -> None:
    """As a rescale leaves them; the job's own stay."""
    driver.crash()
    own = tasks(driver)
    old = own[0].with_name("s1-0-7")
    shutil.copytree(own[0], old)
    assert later(driver) == ["s1-0-7"]
    assert tasks(driver) == own


def test_tasks_that_moved_to_another_host_go(tmp_path: Path) -> None:
    """A host that came back after a while, and another one that has its tasks for good."""
    with TestDriver(counted, tasks=4, slots=2, hosts=2, home=tmp_path) as driver:
        driver.create("events", {"id": pa.int64()})
        driver.feed("events", [{"id": n} for n in range(50)])
        driver.run()
        own = tasks(driver)
        assert 0 < len(own) < 4
        folder = driver.state_dir(0) / "counted"
        elsewhere = [path for path in (driver.state_dir(1) / "counted").iterdir() if path.is_dir()]
        driver.crash()
        for path in elsewhere:
            shutil.copytree(path, folder / path.name)
        assert sorted(path.name for path in elsewhere) == sorted(later(driver))
        assert tasks(driver) == own
        driver.feed("events", [{"id": 1}])
        driver.run()
        assert later(driver) == []


def test_what_is_needed_again_is_no_longer_marked(driver: TestDriver) -> None:
    driver.crash()
    away = driver.storage.rename(driver.home / "away")
    assert collected(driver, 0, KEEP_S) == []
    driver.clock.advance(int(KEEP_S * 1000))
    away.rename(driver.storage)
    assert collected(driver, 0, KEEP_S) == []
    driver.storage.rename(away)
    assert collected(driver, 0, KEEP_S) == []


def test_a_storage_on_the_host_goes_only_when_it_is_marked(tmp_path: Path) -> None:
    """That job_dir is away is no reason: epochs since the last copy are nowhere else."""
    with open_driver(tmp_path, "backup(30s)") as driver:
        driver.crash()
        shutil.rmtree(driver.settings.jobs_dir)
        assert later(driver) == []
        (driver.storage / DELETED_MARK).touch()
        assert sorted(later(driver)) == ["counted", "counted"]
        assert not [*(driver.state_dir(0) / STORAGES).iterdir()]


def test_only_one_process_collects(driver: TestDriver) -> None:
    driver.crash()
    shutil.rmtree(driver.storage)
    collected(driver, 0, KEEP_S)
    driver.clock.advance(int(KEEP_S * 1000))
    descriptor = os.open(driver.state_dir(0) / "COLLECTOR", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert collected(driver, 0, KEEP_S) == []
    os.close(descriptor)
    assert collected(driver, 0, KEEP_S)
