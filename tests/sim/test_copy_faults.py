"""Copies and copying when something is damaged, away, full or does not answer."""

from __future__ import annotations

import os
import random
import shutil
import threading
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
from tests.support.faults import hanging_lease
from tests.support.limits import limit
from tests.support.processes import Deadline, SystemClock, until
from tests.support.storages import waiting_bucket

from headrace.errors import CorruptDataError, HeadraceError, UnavailableError
from headrace.testing import TestDriver


def test_the_job_goes_on_while_job_dir_is_away(driver: TestDriver) -> None:
    """A mount that is missing is told once, counted, and made up for when it is back."""
    told: list[str] = []
    world = World(driver, random.Random(7))
    driver.start()
    assert driver.copier is not None
    driver.copier.notify = told.append
    world.feed(60)
    driver.advance()
    driver.copy()
    away = job_dir(driver).rename(job_dir(driver).with_name("away"))
    job_dir(driver).mkdir()  # the empty folder that a mount leaves behind
    for failures in (1, 2, 3):
        world.feed(40)
        summary = driver.advance()
        assert summary is not None
        assert driver.copy().failures == failures
    assert [*job_dir(driver).iterdir()] == []
    lag = driver.copier.lag()
    assert lag.epochs == 3
    assert "no mark" in lag.problem
    job_dir(driver).rmdir()
    away.rename(job_dir(driver))
    assert driver.copy().failures == 0
    assert driver.copier.lag().epochs == 0
    assert len(told) == 2
    assert "the job continues" in told[0]
    assert "is back after 3 failed tries" in told[1]
    driver.finish()
    world.check()


def test_a_folder_that_refuses_files_is_told(driver: TestDriver) -> None:
    """What stands in the way of one folder fails the copy, whole; the copy before stays."""
    world = begun(driver, 8)
    kept = copied(driver)
    shutil.rmtree(job_dir(driver) / "segment")
    (job_dir(driver) / "segment").touch()
    world.feed(60)
    driver.advance()
    status = driver.copy()
    assert (status.failures, status.epoch) == (1, kept.epoch)
    assert copied(driver).copy_of == kept.copy_of
    (job_dir(driver) / "segment").unlink()
    assert driver.copy().failures == 0
    lose_host(driver)
    driver.finish()
    check_at_least_once(world, driver)


def test_a_start_without_job_dir_goes_on_from_here(driver: TestDriver) -> None:
    world = begun(driver, 9)
    away = job_dir(driver).rename(job_dir(driver).with_name("away"))
    driver.crash()
    world.feed(60)
    driver.run()
    assert driver.copy().failures
    away.rename(job_dir(driver))
    assert driver.copy().failures == 0
    assert copied(driver).copy_of == driver.coordinator.state.digest
    driver.finish()
    world.check()


def test_a_start_without_storage_and_job_dir_is_refused(driver: TestDriver) -> None:
    """Nobody may take a job whose copy cannot be seen for a new one."""
    begun(driver, 10)
    shutil.rmtree(job_dir(driver))
    job_dir(driver).touch()
    lose_host(driver)
    with pytest.raises(UnavailableError, match=r"no storage on this host.*Not a directory"):
        driver.start()


def test_a_damaged_file_is_not_copied(driver: TestDriver) -> None:
    """The copy before stays, whole, and the message names the file."""
    world = begun(driver, 12)
    kept = copied(driver)
    world.feed(60)
    driver.advance()
    newest = sorted((driver.storage / "segment").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 3] ^= 1
    newest.write_bytes(data)
    status = driver.copy()
    assert newest.name in status.problem
    assert copied(driver).copy_of == kept.copy_of


def test_a_damaged_copy_is_an_error_with_its_name(driver: TestDriver) -> None:
    begun(driver, 13)
    victim = sorted((job_dir(driver) / "segment").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    lose_host(driver)
    with pytest.raises(CorruptDataError, match=victim.name):
        driver.start()


@pytest.mark.parametrize(
    ("store", "hosts"), [("memory", 1), ("rocksdb", 1), ("columnar", 1), ("rocksdb", 2)]
)
def test_a_damaged_segment_is_mended_from_its_copy(tmp_path: Path, store: str, hosts: int) -> None:
    """The store comes back whole, and the file on the driver's host is the good one again."""
    with open_driver(tmp_path / "home", store=store, hosts=hosts) as driver:
        world = World(driver, random.Random(15))
        world.feed(80)
        driver.run()
        driver.copy()
        driver.crash()
        good = damage_segments(driver.storage)
        forget_stores(driver)
        world.feed(80)
        driver.finish()
        world.check()
        assert any(path.exists() and path.read_bytes() == data for path, data in good.items())


def test_a_damaged_segment_stays_where_its_copy_is_damaged_too(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", hosts=2) as driver:
        world = World(driver, random.Random(15))
        world.feed(80)
        driver.run()
        driver.copy()
        driver.crash()
        damaged = damage_segments(driver.storage)
        damage_segments(job_dir(driver))
        forget_stores(driver)
        with pytest.raises(CorruptDataError, match="is damaged"):
            driver.advance(force=True)
        assert all(path.exists() for path in damaged)


def forget_stores(driver: TestDriver) -> None:
    """Let hosts have nothing of the job but its storage."""
    for number in range(driver.hosts):
        for name in ("world", "_remote"):
            shutil.rmtree(driver.state_dir(number) / name, ignore_errors=True)


def test_a_damaged_segment_without_copy_is_an_error_with_file_and_epoch(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", "epoch") as driver:
        world = World(driver, random.Random(16))
        world.feed(80)
        driver.run()
        driver.crash(lose_hosts=[0])
        good = damage_segments(driver.storage)
        with pytest.raises(CorruptDataError) as caught:
            driver.advance(force=True)
        assert Path(caught.value.fields["file"]) in good
        assert 0 < caught.value.fields["epoch"] <= driver.coordinator.state.epoch


def damage_segments(root: Path) -> dict[Path, bytes]:
    """Change a byte of every segment; returns what they were."""
    good = {path: path.read_bytes() for path in (root / "segment").iterdir()}
    for path, data in good.items():
        path.unlink()
        path.write_bytes(bytes([*data[:40], data[40] ^ 1, *data[41:]]))
    return good


def test_the_lease_is_renewed_while_files_are_sent_to_a_bucket(tmp_path: Path) -> None:
    """However long one takes: else another host would take a living driver for lost."""
    with (
        waiting_bucket(tmp_path / "bucket") as bucket,
        open_driver(tmp_path / "home", storage="s3://waiting/jobs") as driver,
    ):
        cached = driver.state_dir(0) / "_remote" / "s3" / "waiting" / "jobs" / "other" / "segment"
        cached.mkdir(parents=True)
        for name, age_s in ((".dead.tmp", 2 * 86_400), (".fetched.tmp", 60)):
            (cached / name).touch()
            seen = (cached / name).stat().st_mtime - age_s
            os.utime(cached / name, (seen, seen))
        world = World(driver, random.Random(18))
        world.feed(60)
        driver.advance()
        driver.clock.advance(31_000)
        renewals = bucket.written["lease.json"]
        bucket.wait = lambda: until(lambda: bucket.written["lease.json"] > renewals, "a renewal")
        assert driver.copy().failures == 0
        assert [path.name for path in cached.iterdir()] == [".fetched.tmp"]
        bucket.wait = lambda: None
        driver.finish()
        world.check()


def test_a_copy_that_gives_no_byte_is_not_waited_for(driver: TestDriver) -> None:
    """A pipe that nobody writes to stands for a disk that does not answer in mid restore."""
    world = begun(driver, 17)
    victim = sorted((job_dir(driver) / "segment").iterdir())[0]
    kept = victim.rename(driver.home / "kept")
    os.mkfifo(victim)
    lose_host(driver)
    errors: list[HeadraceError] = []

    def start() -> None:
        try:
            driver.start()
        except HeadraceError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    deadline = Deadline(SystemClock(), 30)
    while starting.is_alive() and not deadline.expired:
        driver.clock.advance(100_000)
        starting.join(0.05)
    assert isinstance(errors[0], UnavailableError)
    assert "has given no byte for 300 s" in str(errors[0])
    os.close(os.open(victim, os.O_RDWR))  # who waits there goes on, and finds nothing
    victim.unlink()
    kept.rename(victim)
    driver.crash()
    driver.finish()
    check_at_least_once(world, driver)


def test_a_job_dir_that_hangs_at_the_start_does_not_stop_a_job_with_storage(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(driver, random.Random(1))
    world.feed(20)
    driver.run()
    driver.crash()
    limit(monkeypatch, copy_reach_s=0.2)
    world.feed(20)
    with hanging_lease():
        driver.run()
