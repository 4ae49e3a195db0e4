"""Jobs whose storage is on a real S3 server: processes share that and the streams, no folder."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.sim.world import EPOCH, World, make_job
from tests.support.jobs import counting, model
from tests.support.runs import Driver, MemberInfo, read_members, run_driver, until
from tests.support.soak import more
from tests.support.storages import StoredWorld

import headrace as hr
from headrace.testing import FAULT_POINTS, TestDriver

BOUNDED = ("job.bounded=true", "control.enabled=false", "epoch.max_rows=150")
SHARED = (
    "standalone.lease_s=8",
    "placement.wait_s=0.5",
    "control.enabled=false",
    "job.tasks=6",
    "epoch.max_rows=100",
)


@pytest.mark.parametrize("each", more([2], [1, 2]))
def test_whatever_dies_and_whichever_disk_is_lost_the_storage_has_it_all(
    address: str, each: int
) -> None:
    """Steps of an epoch are the last of a process once; every third time all disks go."""
    points = [one for one in FAULT_POINTS if one.startswith(EPOCH)][each - 1 :: each]
    job = make_job("rocksdb", "columnar", small=True)
    bus = address.replace("/jobs", "/bus")
    with TestDriver(job, tasks=3, hosts=2, max_rows=60, storage=address, bus=bus) as driver:
        world, died = World(driver, random.Random(7)), 0
        for number, point in enumerate(points):
            world.feed(20)
            died += driver.advance_with_crash(point)
            if number % 3 == 0:
                driver.crash(lose_hosts=(0, 1))
        assert died > len(points) // 2
        driver.finish()
        world.check()
        assert not {"jobs", "bus"} & {path.name for path in driver.home.iterdir()}


def test_jobs_end_as_on_a_disk(address: str) -> None:
    """The same rows, the same seed, no crash: the same state and outputs, row for row."""
    found = []
    for storage in ("", address):
        with TestDriver(make_job("rocksdb"), tasks=3, hosts=2, seed=3, storage=storage) as driver:
            world = World(driver, random.Random(11))
            for _ in range(3):
                world.feed(40)
                driver.run()
            driver.finish()
            names = ("counts", "windows", "best")
            found.append([driver.output(name) for name in names] + [driver.store("n")])
    assert found[0] == found[1]


@pytest.fixture
def world(tmp_path: Path, address: str) -> StoredWorld:
    return StoredWorld(tmp_path / "home", address)


def test_a_driver_that_is_killed_is_followed_by_one_with_another_disk(
    world: StoredWorld, tmp_path: Path
) -> None:
    """It dies between commit and publication; the next one has the bucket and the streams."""
    world.feed(300)
    first = (*BOUNDED, f"state.dir={tmp_path / 'first'}")
    said = run_driver("counting", world, *first, die_at=("commit.published", 3), way="standalone")
    assert said["code"] == -signal.SIGKILL, said["story"]
    assert 0 < world.read_so_far("counting") < 600
    result = hr.run(counting(), world.settings(*BOUNDED, f"state.dir={tmp_path / 'second'}"))
    assert result.state.ended
    assert model(world.log) == world.found()
    assert sorted(path.name for path in world.home.iterdir()) == ["bus"]


class Shared:
    """Processes of one job, each with a state directory of its own."""

    def __init__(self, world: StoredWorld, folder: Path, held: ExitStack) -> None:
        self.world, self._folder, self._held = world, folder, held
        self.processes: dict[int, Driver] = {}

    def start(self) -> Driver:
        own = self._folder / f"host-{len(self.processes)}"
        sets = (*SHARED, f"state.dir={own}")
        driver = self._held.enter_context(Driver("counting", self.world, *sets, way="shared"))
        self.processes[driver.process.pid] = driver
        return driver

    def members(self) -> list[MemberInfo]:
        return read_members(self.world.job_dir("counting"))

    def feed(self, count: int) -> None:
        self.world.feed(count)
        fed = sum(map(len, self.world.log))
        until(lambda: self.world.read_so_far("counting") == fed, f"{fed} rows")


@pytest.fixture
def shared(world: StoredWorld, tmp_path: Path) -> Iterator[Shared]:
    with ExitStack() as held:
        yield Shared(world, tmp_path, held)


def test_processes_that_share_no_folder_share_a_job(shared: Shared, tmp_path: Path) -> None:
    """The driver among them is killed: another takes over, with the state of all key groups."""
    first = shared.start()
    shared.feed(30)
    second = shared.start()
    pids = {first.process.pid, second.process.pid}
    until(lambda: {one.process for one in shared.members()} == pids, "both to be in")
    shared.feed(60)
    hosts = {task.host for task in shared.world.state("counting").tasks.values() if task.host}
    assert len(hosts) == 2
    driving = next(one.process for one in shared.members() if one.drives)
    generation = shared.world.state("counting").generation
    shared.world.feed(100)
    shared.processes[driving].kill()
    shared.feed(20)
    assert shared.world.state("counting").generation > generation
    for driver in shared.processes.values():
        if driver.running():
            driver.terminate()
        driver.wait()
    sets = ("job.bounded=true", "control.enabled=false", f"state.dir={tmp_path / 'last'}")
    assert hr.run(counting(), shared.world.settings(*SHARED, *sets)).state.ended
    assert model(shared.world.log) == shared.world.found()
    assert sorted(path.name for path in shared.world.home.iterdir()) == ["bus"]
