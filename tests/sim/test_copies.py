"""Epochs that commit to the host's own disk: the copy, its loss, and the loss of the host."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim.world import World, _rows, make_job, model

from headrace.clock import Deadline, SystemClock
from headrace.coordinator.backup.lease import Lease
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.inspection.inspection import committed_entries
from headrace.coordinator.manifest import JobState
from headrace.coordinator.recovery import RecoveryStalledError
from headrace.errors import (
    CorruptDataError,
    HeadraceError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
)
from headrace.faults import FAULT_POINTS, injected
from headrace.files import Files
from headrace.testing.driver import DriverCrash, TestDriver

POINTS = [point for point in FAULT_POINTS if point.startswith("copy.")]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    with open_driver(tmp_path / "home") as made:
        yield made


def open_driver(
    home: Path, durability: str = "backup(30s)", store: str = "rocksdb", seed: int = 0
) -> TestDriver:
    work = make_job("memory", store) if store == "columnar" else make_job(store)
    return TestDriver(work, tasks=3, home=home, durability=durability, seed=seed)


def job_dir(driver: TestDriver) -> Path:
    return driver.settings.jobs_dir / "world"


def copied(driver: TestDriver) -> JobState:
    state = load_state(FileCommitLog(job_dir(driver), Files(sync=False), driver.clock))
    assert state is not None
    return state


def lose_host(driver: TestDriver) -> None:
    """Every process of the host ends, and its disk is gone."""
    driver.crash(lose_hosts=[0])
    expire_lease(driver)


def check_at_least_once(world: World, driver: TestDriver) -> None:
    """State is as without a loss; of the outputs none is missing, and some may be there twice."""
    expected = model(world.log)
    assert expected["store"] == driver.store("n")
    assert sum(map(len, world.log)) == driver.coordinator.state.counts["in"]
    for stream in ("windows", "best", "periodic"):
        found = _rows(driver, stream)
        assert expected[stream].keys() == found.keys()
        assert all(found[row] >= count for row, count in expected[stream].items())
    counts = {(row["id"], row["n"]) for row in driver.output("counts") if row["n"] > 0}
    assert counts == {(key, n) for key, last in expected["store"].items() for n in _upto(last)}


def _upto(last: int) -> range:
    return range(1, last + 1)


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
    entries = committed_entries(state, job_dir(driver), "n", Files(sync=False))
    assert entries == driver.raw_store("n")
    driver.finish()
    world.check()


def test_old_copies_are_swept(driver: TestDriver) -> None:
    """The copy holds what the newest two copies name, and no more."""
    world = World(driver, random.Random(2))
    named: list[set[str]] = []
    for _ in range(5):
        world.feed(30)
        driver.advance()
        driver.copy()
        named.append(copied(driver).files())
    held = {
        f"{folder}/{name}"
        for folder in ("segment", "snapshot", "output")
        for name in Files().names(job_dir(driver) / folder)
    }
    assert named[-1] | named[-2] == held
    assert len(list((job_dir(driver) / "manifests").iterdir())) == 2


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_step_of_a_copy(driver: TestDriver, point: str, loses: bool) -> None:
    """The driver dies there; with the host the job steps back to a whole copy, else not at all."""
    world = World(driver, random.Random(3))
    world.feed(60)
    driver.advance()
    driver.copy()
    before = driver.coordinator.state.epoch
    world.feed(60)
    driver.advance()

    def die(name: str) -> None:
        if name == point:
            raise DriverCrash(point)

    with injected(die, (point,)), pytest.raises(DriverCrash):
        driver.copy()
    expected = {before, driver.coordinator.state.epoch}
    newest = driver.coordinator.state.epoch
    if loses:
        lose_host(driver)
        driver.start()
        assert driver.coordinator.state.epoch - 1 in expected
        if point == "copy.swept":
            assert driver.coordinator.state.epoch - 1 == newest
    else:
        driver.crash()
        driver.start()
        assert driver.coordinator.state.epoch == newest
    world.feed(60)
    driver.advance()
    assert driver.copy().failures == 0
    driver.finish()
    driver.copy()
    if loses:
        check_at_least_once(world, driver)
    else:
        world.check()
    assert not list(job_dir(driver).glob("*/.*.tmp"))


@pytest.mark.parametrize("store", ["memory", "rocksdb", "columnar"])
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


def test_the_job_goes_on_while_job_dir_is_away(driver: TestDriver) -> None:
    """A mount that is missing is told once, counted, and made up for when it is back."""
    told: list[str] = []
    world = World(driver, random.Random(7))
    driver.start()
    assert driver.copier is not None
    driver.copier.tell = told.append
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
    assert "the job goes on" in told[0]
    assert "is back after 3 failed tries" in told[1]
    driver.finish()
    world.check()


def test_a_folder_that_refuses_files_is_told(driver: TestDriver) -> None:
    """What stands in the way of one folder fails the copy, whole; the copy before stays."""
    world = World(driver, random.Random(8))
    world.feed(60)
    driver.advance()
    driver.copy()
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
    world = World(driver, random.Random(9))
    world.feed(60)
    driver.advance()
    driver.copy()
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
    world = World(driver, random.Random(10))
    world.feed(60)
    driver.advance()
    driver.copy()
    shutil.rmtree(job_dir(driver))
    job_dir(driver).touch()
    lose_host(driver)
    with pytest.raises(UnavailableError, match=r"no storage on this host.*Not a directory"):
        driver.start()


def test_a_second_host_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """Its lease says so; once it has run out, the newer host takes over and fences the older."""
    home = tmp_path / "home"
    with open_driver(home) as first:
        world = World(first, random.Random(11))
        world.feed(60)
        first.advance()
        first.copy()
        second = on_another_host(first)
        with pytest.raises(NotOwnerError, match=r"driven by process \d+ on host"):
            second.start()
        expire_lease(first)
        second.start()
        assert second.coordinator.state.counts["in"] == 60
        world.feed(60)
        first.advance()  # it has not looked at job_dir again yet
        first.copy()
        with pytest.raises(NotOwnerError, match="taken over by generation"):
            first.advance(force=True)
        second.finish()
        second.copy()
        check_at_least_once(world, second)
        second.crash()
        expire_lease(second)
        first.crash()
        first.start()
        assert first.coordinator.state.counts == second_counts(second)
        assert first.coordinator.state.ended


def second_counts(driver: TestDriver) -> dict[str, int]:
    return copied(driver).counts


def on_another_host(driver: TestDriver) -> TestDriver:
    """A driver of the same job and bus whose state directory is its own."""
    other = open_driver(driver.home, seed=1)
    other.bus.close()
    other.bus = driver.bus
    other.state_dir = lambda host: driver.home / "other-host"  # type: ignore[method-assign]
    state = other.settings.state.model_copy(update={"dir": driver.home / "other-host"})
    other.settings = other.settings.model_copy(update={"state": state})
    return other


def expire_lease(driver: TestDriver) -> None:
    """Let the driver that held the lease be silent for long."""
    lease = job_dir(driver) / "lease.json"
    if lease.exists():
        seen = lease.stat().st_mtime - 31
        os.utime(lease, (seen, seen))


def test_a_damaged_file_is_not_copied(driver: TestDriver) -> None:
    """The copy before stays, whole, and the message names the file."""
    world = World(driver, random.Random(12))
    world.feed(60)
    driver.advance()
    driver.copy()
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
    world = World(driver, random.Random(13))
    world.feed(60)
    driver.advance()
    driver.copy()
    victim = sorted((job_dir(driver) / "segment").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    lose_host(driver)
    with pytest.raises(CorruptDataError, match=victim.name):
        driver.start()


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
        state = driver.settings.state.model_copy(update={"durability": after})
        driver.settings = driver.settings.model_copy(update={"state": state})
        world.feed(80)
        driver.start()
        assert driver.coordinator.state.durability == after
        driver.finish()
        world.check()


@pytest.mark.parametrize("store", ["memory", "rocksdb", "columnar"])
def test_a_damaged_segment_is_mended_from_its_copy(tmp_path: Path, store: str) -> None:
    """The store comes back whole, and the file on this host is the good one again."""
    with open_driver(tmp_path / "home", store=store) as driver:
        world = World(driver, random.Random(15))
        world.feed(80)
        driver.run()
        driver.copy()
        driver.crash()
        good = damage_segments(driver)
        shutil.rmtree(driver.state_dir(0) / "world")
        world.feed(80)
        driver.finish()
        world.check()
        assert any(path.exists() and path.read_bytes() == data for path, data in good.items())


def test_a_damaged_segment_without_copy_is_an_error_with_file_and_epoch(tmp_path: Path) -> None:
    with open_driver(tmp_path / "home", "epoch") as driver:
        world = World(driver, random.Random(16))
        world.feed(80)
        driver.run()
        driver.crash(lose_hosts=[0])
        good = damage_segments(driver)
        with pytest.raises(CorruptDataError) as caught:
            driver.advance(force=True)
        assert Path(caught.value.fields["file"]) in good
        assert 0 < caught.value.fields["epoch"] <= driver.coordinator.state.epoch


def damage_segments(driver: TestDriver) -> dict[Path, bytes]:
    """Change a byte of every segment; returns what they were."""
    good = {path: path.read_bytes() for path in (driver.storage / "segment").iterdir()}
    for path, data in good.items():
        path.unlink()
        path.write_bytes(bytes([*data[:40], data[40] ^ 1, *data[41:]]))
    return good


def test_a_copy_that_gives_no_byte_is_not_waited_for(driver: TestDriver) -> None:
    """A pipe that nobody writes to stands for a disk that does not answer in mid restore."""
    world = World(driver, random.Random(17))
    world.feed(60)
    driver.advance()
    driver.copy()
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
    assert isinstance(errors[0], RecoveryStalledError)
    assert "has given no byte for 300 s" in str(errors[0])
    os.close(os.open(victim, os.O_RDWR))  # who waits there goes on, and finds nothing
    victim.unlink()
    kept.rename(victim)
    driver.crash()
    driver.finish()
    check_at_least_once(world, driver)


def test_a_storage_that_is_ahead_is_not_left_behind(driver: TestDriver) -> None:
    """Who commits to job_dir again is told first of the epochs that are only here."""
    world = World(driver, random.Random(18))
    world.feed(60)
    driver.advance()
    driver.copy()
    world.feed(60)
    driver.advance()
    driver.crash()
    backup = driver.settings
    state = backup.state.model_copy(update={"durability": "epoch"})
    driver.settings = backup.model_copy(update={"state": state})
    with pytest.raises(InvalidInputError, match=r"run it once more with state\.durability=backup"):
        driver.start()
    driver.settings = backup
    driver.start()
    driver.copy()
    driver.crash()
    driver.settings = backup.model_copy(update={"state": state})
    driver.finish()
    world.check()


def test_slots_of_several_hosts_are_refused(tmp_path: Path) -> None:
    """A prefix over the disks of several hosts would not be consistent."""
    home = tmp_path / "home"
    job = make_job("memory")
    with TestDriver(job, tasks=3, hosts=2, home=home, durability="backup(30s)") as driver:
        World(driver, random.Random(19))
        with pytest.raises(InvalidInputError, match="its slots are on 2 hosts"):
            driver.start()


def test_a_refused_lease_after_the_claim_does_not_end_the_driver(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation in job_dir is this driver's own: it is not fenced by itself."""
    world = World(driver, random.Random(1))
    world.feed(20)
    driver.run()
    assert driver.copy()
    driver.crash()
    renew, refusals = Lease.renew, ["once"]

    def full(lease: Lease) -> None:
        if refusals:
            refusals.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        renew(lease)

    monkeypatch.setattr(Lease, "renew", full)
    world.feed(20)
    driver.run()
    assert driver.copy()
    world.feed(20)
    driver.run()


def test_a_job_dir_that_hangs_at_the_start_does_not_stop_a_job_with_storage(
    driver: TestDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(driver, random.Random(1))
    world.feed(20)
    driver.run()
    driver.crash()
    hang = threading.Event()
    monkeypatch.setattr("headrace.coordinator.backup.copier.REACH_S", 0.2)
    take = Lease.take
    monkeypatch.setattr(Lease, "take", lambda lease, number: hang.wait() and take(lease, number))
    world.feed(20)
    try:
        driver.run()
    finally:
        hang.set()
