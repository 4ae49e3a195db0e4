"""Executors, hosts and drivers of a real cluster that are killed, frozen, drained and come back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.hosts import HOSTS, JOB, feed_until, homes, is_covered, world_on
from tests.spark.story import story
from tests.support.homes import FILES
from tests.support.hosts import EventKind
from tests.support.jobs import GATED_ID
from tests.support.processes import REAL_CLOCK, Deadline, kill
from tests.support.runs import Drain, Driver, Restart, RunningHandle, World, until

from headrace.coordinator.host_state import violations
from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

WAIT_S = 60.0
FED_S = 240.0
TASKS = 6


def host_id(cluster: SparkCluster, number: int) -> str:
    """Return the identity of a host, which its stores' folder has."""
    return (cluster.state_dir(number) / "host-id").read_text()


def is_spread(world: World) -> bool:
    """Say whether all hosts have tasks: an executor may come a little later than the others."""
    return len(set(homes(world).values())) == HOSTS


class Fed:
    """Feeds the streams of a world, and waits until a driver has kept all rows."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._deadline = Deadline(REAL_CLOCK, FED_S)

    @property
    def rows(self) -> int:
        return sum(map(len, self.world.log))

    def feed(self, driver: Driver, count: int = 25) -> None:
        self.world.feed(count)
        self.await_all(driver)
        assert not self._deadline.expired, "what was waited for never came"

    def await_all(self, driver: Driver) -> None:
        until(lambda: self.world.count("kept") == self.rows, "all records", driver)

    def feed_until_covered(self, driver: Driver) -> None:
        """Feed until each host has tasks, and each task a standby that holds something."""
        self.feed(driver)
        feed_until(
            lambda: is_spread(self.world) and is_covered(self.world), lambda: self.feed(driver)
        )

    def feed_to_gate(self, driver: Driver, partition: int = 0) -> int:
        """Feed rows of which the last stops its worker; return that process."""
        self.world.close_gate("draw")
        self.world.feed(100)
        last = {**self.world.log[partition][-1], "id": GATED_ID}
        self.world.append(partition, [{**last, "at": last["at"] + 1}])
        until(lambda: self.world.at_gate("draw"), "a message at the gate", driver)
        (stopped,) = self.world.at_gate("draw")
        return stopped

    def check(self) -> None:
        """Every record was kept once, and counted once under whatever key it drew."""
        fed = Counter((row["id"], row["v"]) for rows in self.world.log for row in rows)
        assert fed == Counter((row["id"], row["v"]) for row in self.world.rows("kept"))
        assert sum(fed.values()) == sum(self.world.store(JOB, "n").values())


def waits_again(world: World) -> bool:
    """Say whether another process stands at the gate as well."""
    return len(world.at_gate("draw")) >= 2


def freeze(fed: Fed, driver: Driver, cluster: SparkCluster) -> None:
    """Freeze a host, which closes no connection: its tasks go to their standbys, until it wakes."""
    world = fed.world
    before, copies = homes(world), world.state(JOB).standbys
    assert violations(before, copies) == []
    _, number = cluster.executor_of(fed.feed_to_gate(driver))
    lost, address = host_id(cluster, number), cluster.address(number)
    cluster.freeze(number)
    world.open_gate("draw")
    fed.await_all(driver)
    for name, host in homes(world).items():
        assert host == (copies[name][0].host if before[name] == lost else before[name])
    moved = sum(host == lost for host in before.values())
    assert world.state(JOB).counts["standby.failover"] == moved
    told = story(world, JOB)
    assert any("have sent no heartbeat for" in text for text in told), told
    assert any(text.startswith(f"host {address} was lost") for text in told), told
    assert any("standby; first commit after" in text for text in told), told
    cluster.thaw(number)
    fed.feed_until_covered(driver)
    assert f"host {address} came back" in story(world, JOB)
    assert "standby.no_failover" not in world.state(JOB).counts


def kill_executor(fed: Fed, driver: Driver, cluster: SparkCluster) -> None:
    """Kill the executor of a slot that stands at the gate: it runs again, elsewhere or there."""
    world = fed.world
    executor, _ = cluster.executor_of(fed.feed_to_gate(driver))
    kill(executor)
    until(lambda: waits_again(world), "the slot to run again", driver)
    assert world.read_so_far(JOB) < fed.rows
    world.open_gate("draw")
    fed.await_all(driver)
    told = story(world, JOB)
    assert any(text.startswith("slots were looked up again: executors ") for text in told), told


def test_a_host_freezes_an_executor_dies_then_a_host_and_the_driver_at_once(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    """The job goes on and ends; the draws of a dead attempt are not mixed with the next one's."""
    sets = ("placement.wait_s=1", "job.slot_silence_s=5")
    copies = ("job.hotstandby.enabled=true", "job.hotstandby.replicationcount=1")
    world = world_on(cluster.url, tmp_path / "home", *sets, *copies)
    fed = Fed(world)
    with Driver(JOB, world) as driver:
        fed.feed_until_covered(driver)
        freeze(fed, driver, cluster)
        kill_executor(fed, driver, cluster)
        _, number = cluster.executor_of(fed.feed_to_gate(driver, 1))
        cluster.kill_worker(number)
        driver.kill()
    with Driver(JOB, world, "placement.wait_s=0") as driver:
        until(lambda: waits_again(world), "the slot to run elsewhere", driver)
        assert world.read_so_far(JOB) < fed.rows
        world.open_gate("draw")
        fed.await_all(driver)
        driver.terminate()
        said = driver.wait()
    assert said["interrupted"], driver.story
    assert world.read_so_far(JOB) == fed.rows
    told = story(world, JOB)
    lost = f"host {cluster.address(number)} was lost: "
    assert any(text.startswith(lost) for text in told), told
    assert sum(text.startswith("a driver began") for text in told) == 2
    assert host_id(cluster, number) not in homes(world).values()
    fed.check()


def is_even(world: World) -> bool:
    return [*Counter(homes(world).values()).values()] == [TASKS // HOSTS] * HOSTS


@contextmanager
def feeding(world: World) -> Iterator[None]:
    """Append rows all the time."""
    done = threading.Event()

    def feed() -> None:
        while not done.wait(0.05):
            world.feed(5)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.soak
def test_a_host_is_drained_and_gets_its_tasks_back(tmp_path: Path, cluster: SparkCluster) -> None:
    """While rows come in; it is used again, and gets new processes."""
    sets = (f"job.tasks={TASKS}", "placement.max_moves=1", "job.slot_silence_s=60")
    world = world_on(cluster.url, tmp_path / "home", *sets)
    fed = Fed(world)
    with Driver(JOB, world) as driver:
        fed.feed(driver, 50)
        until(lambda: is_even(world), "tasks on all hosts", driver)  # with nothing to read
        before, address = homes(world), cluster.address(1)
        moved = world.state(JOB).counts.get("placement.moved", 0)
        with feeding(world):
            states = {world.job_dir(JOB): world.state(JOB)}
            handle = RunningHandle(world.settings(), JOB, states, FILES, REAL_CLOCK)
            gone = handle.drain(Drain(address), WAIT_S)
            until(lambda: gone not in homes(world).values(), "the host to be empty", driver)
            assert gone == host_id(cluster, 1)
            cluster.kill_worker(1)  # which is nothing to anybody now
            until(lambda: not world.state(JOB).hosts[gone].slots, "the loss to be seen", driver)
            assert "placement.lost" not in world.state(JOB).counts
            cluster.start_worker(1)
            cluster.await_worker(1)
            until(lambda: world.state(JOB).hosts[gone].slots, "the host to be back", driver)
            assert gone not in homes(world).values()
            handle.drain(Drain(address, undo=True), WAIT_S)
            until(lambda: is_even(world), "the tasks to be back", driver)
            renewed = handle.restart(Restart(rolling=True), WAIT_S)
            assert renewed == sorted({*before.values()})
        fed.await_all(driver)
        driver.terminate()
        driver.wait()
    state = world.state(JOB)
    assert is_even(world)
    # On a busy machine an executor may be late, and its tasks go elsewhere for an epoch.
    assert state.counts["placement.moved"] >= moved + TASKS
    told = [one.what for one in state.host_events if one.host == gone]
    assert [what for what in told if what != EventKind.JOINED] == [
        EventKind.DRAIN,
        EventKind.EMPTY,
        EventKind.LOST,
        EventKind.RETURNED,
        EventKind.UNDRAIN,
        EventKind.RENEWED,
    ]
    fed.check()
