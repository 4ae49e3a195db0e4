"""Processes that share a job: killed, frozen, joining and leaving, against a model."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.hosts import FAILOVER, NO_FAILOVER
from tests.support.jobs import MAKERS, model
from tests.support.processes import SystemClock
from tests.support.runs import Driver, MemberInfo, World, driver_of, read_members, until

import headrace as hr

SETS = (
    "standalone.lease_s=3",
    "placement.wait_s=0.5",
    "control.enabled=false",
    "job.tasks=6",
    "epoch.max_rows=100",
)


class Shared:
    """A world with processes that share the job in it."""

    def __init__(self, world: World, held: ExitStack) -> None:
        self.world, self._held = world, held
        self.processes: dict[int, Driver] = {}

    def start(self, job: str = "counting", *sets: str) -> Driver:
        driver = Driver(job, self.world, *SETS, *sets, way="shared")
        self._held.enter_context(driver)
        self.processes[driver.process.pid] = driver
        return driver

    def members(self) -> list[MemberInfo]:
        return read_members(self.world.job_dir("counting"))

    def await_members(self, *drivers: Driver) -> None:
        wanted = {driver.process.pid for driver in drivers}
        until(lambda: {one.process for one in self.members()} == wanted, f"members {wanted}")

    def driving(self) -> Driver:
        return self.processes[next(one.process for one in self.members() if one.drives)]

    def following(self) -> list[Driver]:
        return [self.processes[one.process] for one in self.members() if not one.drives]

    def feed(self, count: int = 30) -> None:
        """Feed, and wait until all is read."""
        self.world.feed(count)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until all is read, and what came of it is out."""
        fed = sum(map(len, self.world.log))
        until(lambda: self.world.read_so_far("counting") == fed, f"{fed} rows")
        until(lambda: self._sent() == fed, f"{fed} results")

    def _sent(self) -> int:
        bus = self.world.bus
        return sum(bus.stream("counts").ends()) if "counts" in bus.names() else 0

    def homes(self) -> dict[str, str]:
        """The state directory that each task lives in."""
        tasks = self.world.state("counting").tasks
        return {name: task.host for name, task in tasks.items()}

    def end(self, *sets: str, job: str = "counting") -> None:
        """Let the job read its inputs to their ends, and see that all processes end."""
        for driver in self.processes.values():
            if driver.running():
                driver.terminate()
        for driver in self.processes.values():
            driver.wait()
        chosen = self.world.settings(*SETS, "job.bounded=true", *sets)
        last = hr.run(MAKERS[job](self.world.gates), chosen)
        assert last.state.ended
        assert model(self.world.log) == self.world.found()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with ExitStack() as held:
        yield Shared(World(tmp_path / "home"), held)


def freeze(driver: Driver, world: World) -> None:
    """Stop a process, but not in the middle of an append, which nobody may go on with."""

    def is_apart() -> bool:
        os.kill(driver.process.pid, signal.SIGSTOP)
        until(lambda: _is_still(driver.process.pid), "all of its threads to stand still")
        locks = list(world.home.glob("bus/streams/*/p-*/lock"))
        assert locks
        if all(map(_is_free, locks)):
            return True
        thaw(driver)
        return False

    until(is_apart, "a moment without an append")


def _is_still(process: int) -> bool:
    """Say whether no thread of a process runs: the kernel stops them one after the other."""
    stats = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)


def _is_free(lock: Path) -> bool:
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def thaw(driver: Driver) -> None:
    os.kill(driver.process.pid, signal.SIGCONT)


def test_whoever_is_killed_nothing_is_lost_or_doubled(shared: Shared) -> None:
    """A member, then the driver, each in the middle of things; who comes back has its old place."""
    first = shared.start()
    shared.feed()
    second, third = shared.start(), shared.start()
    shared.await_members(first, second, third)
    shared.feed()
    until(lambda: len(set(shared.homes().values())) == 3, "tasks on three hosts")
    before = shared.homes()
    generation = shared.world.state("counting").generation

    killed = shared.following()[0]
    shared.world.feed(100)
    killed.kill()
    shared.catch_up()
    assert len(set(shared.homes().values())) == 2
    again = shared.start()
    until(lambda: len(shared.members()) == 3, "its return")
    shared.feed()
    until(lambda: _is_even(shared, set(before.values())), "tasks on its state directory again")
    assert shared.world.state("counting").generation == generation

    driver = shared.driving()
    shared.world.feed(100)
    driver.kill()
    shared.catch_up()
    assert shared.world.state("counting").generation == generation + 1
    assert {one.process for one in shared.members()} <= {
        one.process.pid for one in (second, third, again)
    }
    shared.end()


def test_zombies_change_nothing(shared: Shared) -> None:
    """A frozen member loses its tasks, a frozen driver the job; both join when they wake."""
    first, second = shared.start(), shared.start()
    until(lambda: len(shared.members()) == 2, "two processes")
    shared.feed()
    driver, member = shared.driving(), shared.following()[0]
    assert {first, second} == {driver, member}

    freeze(member, shared.world)
    shared.world.feed(100)
    shared.catch_up()
    shared.await_members(driver)
    thaw(member)
    shared.await_members(driver, member)
    shared.feed()

    generation = shared.world.state("counting").generation
    freeze(driver, shared.world)
    shared.world.feed(100)
    shared.catch_up()
    assert shared.world.state("counting").generation == generation + 1
    found = driver_of(
        shared.world.job_dir("counting"),
        shared.world.job_dir("counting"),
        "counting",
        SystemClock(),
    )
    assert found is not None
    assert found.process == member.process.pid
    thaw(driver)
    until(lambda: {one.process.pid for one in shared.following()} == {driver.process.pid}, "it")
    shared.feed()
    assert shared.world.state("counting").generation == generation + 1
    assert shared.driving() is member
    shared.end()


def test_who_leaves_is_let_go_and_who_joins_takes_few_tasks(shared: Shared) -> None:
    first = shared.start()
    shared.feed()
    second = shared.start()
    shared.await_members(first, second)
    shared.feed()
    until(lambda: _is_even(shared, _hosts(shared)), "an even spread")
    two = shared.homes()
    third = shared.start()
    shared.await_members(first, second, third)
    shared.feed()
    until(lambda: _is_even(shared, _hosts(shared)), "an even spread over three")
    moved = [name for name, home in shared.homes().items() if home != two[name]]
    assert len(moved) == 4
    third.terminate()
    said = third.wait()
    assert (said["code"], said["interrupted"]) == (0, True)
    shared.await_members(first, second)
    shared.feed()
    until(lambda: _is_even(shared, _hosts(shared)), "an even spread over those left")
    assert sum(home != two[name] for name, home in shared.homes().items()) <= 4
    first.terminate()
    first.wait()
    until(lambda: [one.process for one in shared.members()] == [second.process.pid], "the next")
    shared.feed()
    shared.end()


@pytest.mark.soak
def test_parts_of_a_job_share_the_processes(shared: Shared) -> None:
    """A member is killed, then the driver: of all its parts."""
    for _ in range(3):
        shared.start("parts")
    until(lambda: len(shared.members()) == 3, "three processes")
    shared.feed()
    parts = [path.name for path in (shared.world.home / "jobs").glob("counting*")]
    assert len(parts) > 1
    until(lambda: all(len(_homes_of(shared, name)) == 3 for name in parts), "all parts on all")
    for killed in (shared.following()[0], shared.driving()):
        shared.world.feed(60)
        killed.kill()
        shared.catch_up()
    shared.end(job="parts")


def _homes_of(shared: Shared, part: str) -> set[str]:
    """The state directories that the tasks of a part live in; feeds what lets them move."""
    state = shared.world.state(part)
    if not state.task_counts:
        return {one.host_id for one in shared.members()}
    shared.feed(5)
    return {task.host for task in state.tasks.values()}


def test_a_process_with_older_code_runs_that_of_the_driver(shared: Shared) -> None:
    """Until it drives itself: then its own goes on with the state that is there."""
    first = shared.start()
    shared.feed(5)
    second = shared.start("older")
    shared.await_members(first, second)
    until(lambda: _is_even(shared, _hosts(shared)), "tasks on both")
    shared.feed(100)  # the third message of many a key
    generation = shared.world.state("counting").generation
    first.kill()
    shared.feed()
    assert shared.driving() is second
    assert shared.world.state("counting").generation == generation + 1
    shared.end()


def _hosts(shared: Shared) -> set[str]:
    return {one.host_id for one in shared.members()}


def _is_even(shared: Shared, hosts: set[str]) -> bool:
    """Say whether these hosts have as many tasks each; feeds what lets them move."""
    homes = list(shared.homes().values())
    if sorted(homes.count(host) for host in hosts) == [len(homes) // len(hosts)] * len(hosts):
        return True
    shared.feed(5)
    return False


@pytest.mark.soak
def test_tasks_of_a_process_that_is_lost_go_to_their_standbys(shared: Shared) -> None:
    """Seed 002, section 4; and no standby is ever beside its task."""
    sets = ("standby.enabled=true", "job.tasks=4")
    for _ in range(3):
        shared.start("counting", *sets)
    until(lambda: len(shared.members()) == 3, "three processes")
    shared.feed()

    def is_filled() -> bool:
        state = shared.world.state("counting")
        filled = [one for found in state.standbys.values() for one in found if one.epoch >= 0]
        if len(filled) == 4:
            return True
        shared.feed(5)
        return False

    until(is_filled, "standbys that have followed")
    state = shared.world.state("counting")
    lost = next(
        one for one in shared.members() if not one.drives and one.host_id in shared.homes().values()
    )
    standbys = {
        name: {one.host for one in found}
        for name, found in state.standbys.items()
        if state.tasks[name].host == lost.host_id
    }
    shared.processes[lost.process].kill()
    shared.feed()
    state = shared.world.state("counting")
    assert standbys
    assert all(state.tasks[name].host in hosts for name, hosts in standbys.items())
    assert state.counts[FAILOVER] == len(standbys)
    assert NO_FAILOVER not in state.counts or not state.counts[NO_FAILOVER]
    shared.end(*sets)
