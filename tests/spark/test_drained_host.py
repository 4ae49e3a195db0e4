"""A host of a real cluster is drained while rows come in, used again, and gets new processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.hosts import homes, world_on
from tests.spark.runs import FILES, Driver, World, until

from headrace.clock import SystemClock
from headrace.coordinator.hosts.asking import ask_drain, ask_restart
from headrace.coordinator.hosts.record import What
from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

JOB, WAIT_S = "shuffling", 60.0


@pytest.fixture
def world(tmp_path: Path, cluster: SparkCluster) -> World:
    return world_on(
        cluster,
        tmp_path / "home",
        "job.tasks=6",
        "placement.max_moves=1",
        "job.slot_silence_s=60",
    )


def is_even(world: World) -> bool:
    return sorted(Counter(homes(world).values()).values()) == [2, 2, 2]


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


def test_a_host_is_drained_and_gets_its_tasks_back(world: World, cluster: SparkCluster) -> None:
    clock = SystemClock()
    world.feed(50)
    with Driver(JOB, world) as driver:
        until(lambda: len(world.rows("kept")) == 100, "the first records", driver)
        until(lambda: is_even(world), "tasks on all hosts", driver)  # with nothing to read
        before, address = homes(world), cluster.address(1)
        moved = world.state(JOB).counts.get("placement.moved", 0)
        with feeding(world):
            states = {world.job_dir(JOB): world.state(JOB)}
            gone = ask_drain(states, address, FILES, clock, WAIT_S, undo=False)
            until(lambda: gone not in homes(world).values(), "the host to be empty", driver)
            assert gone == (cluster.state_dir(1) / "host-id").read_text()
            cluster.kill_worker(1)  # which is nothing to anybody now
            until(lambda: not world.state(JOB).hosts[gone].slots, "the loss to be seen", driver)
            assert "placement.lost" not in world.state(JOB).counts
            cluster.start_worker(1)
            cluster.await_worker(1)
            until(lambda: world.state(JOB).hosts[gone].slots, "the host to be back", driver)
            assert gone not in homes(world).values()
            ask_drain(states, address, FILES, clock, WAIT_S, undo=True)
            until(lambda: homes(world) == before, "the tasks to be back", driver)
            assert ask_restart(states, FILES, clock, WAIT_S, rolling=True) == sorted(
                {*before.values()}
            )
        fed = sum(map(len, world.log))
        until(lambda: len(world.rows("kept")) == fed, "all records", driver)
        driver.terminate()
        driver.wait()
    state = world.state(JOB)
    assert homes(world) == before
    assert state.counts["placement.moved"] == moved + 4
    told = [one.what for one in state.story if one.host == gone]
    assert [what for what in told if what != What.JOINED] == [
        What.DRAIN,
        What.EMPTY,
        What.LOST,
        What.RETURNED,
        What.UNDRAIN,
        What.RENEWED,
    ]
    rows = Counter((row["id"], row["v"]) for part in world.log for row in part)
    assert rows == Counter((row["id"], row["v"]) for row in world.rows("kept"))
    assert sum(rows.values()) == sum(world.store(JOB, "n").values())
