"""kill -9 of an executor, then of a host and the driver, while a job routes with random keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.jobs import GATED_ID
from tests.spark.runs import Driver, World, until
from tests.spark.story import story

from headrace.testing.cluster import SparkCluster
from headrace.testing.processes import kill

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Two hosts of one core, and no process of theirs left at the end."""
    with SparkCluster(tmp_path / "cluster") as running:
        yield running
    assert running.processes() == []


@pytest.fixture
def world(tmp_path: Path, cluster: SparkCluster) -> World:
    return World(
        tmp_path / "home",
        sets=[f"spark.master={cluster.url}", "spark.conf.spark.executor.memory=512m"],
    )


def feed_with_gate(world: World, partition: int) -> None:
    """Feed both partitions; the last record of one of them stops at the gate."""
    world.feed(150)
    last = {**world.log[partition][-1], "id": GATED_ID}
    last["at"] += 1
    world.append(partition, [last])


def hosts(world: World) -> set[str]:
    """The hosts that the stores are on, by the identity of their folders."""
    return {task.host for task in world.state("shuffling").tasks.values()}


def check(world: World) -> None:
    """Every record was kept once, and counted once under whatever key it drew."""
    fed = Counter((row["id"], row["v"]) for rows in world.log for row in rows)
    assert fed == Counter((row["id"], row["v"]) for row in world.rows("kept"))
    assert sum(fed.values()) == sum(world.store("shuffling", "n").values())


def test_a_killed_executor_then_a_host_and_the_driver_at_once(
    world: World, cluster: SparkCluster
) -> None:
    """The job goes on and ends; the draws of a dead attempt are not mixed with the next one's."""
    fed = 0
    with Driver("shuffling", world) as driver:
        while not fed or len(hosts(world)) < 2:  # one may come a little later
            world.feed(50)
            fed += 100
            until(lambda: len(world.rows("kept")) == fed, "the first records", driver)  # noqa: B023
            assert fed < 5_000, "the stores are not on both hosts"

        feed_with_gate(world, 0)
        until(lambda: world.at_gate("draw"), "a message at the gate", driver)
        (stopped,) = world.at_gate("draw")
        executor, _ = cluster.executor_of(stopped)
        kill(executor)
        until(lambda: len(world.at_gate("draw")) >= 2, "the slot to run again", driver)
        fed += 301
        assert world.read_so_far("shuffling") < fed
        world.open_gate("draw")
        until(lambda: len(world.rows("kept")) == fed, "the next records", driver)
        told = story(world, "shuffling")
        assert any(text.startswith("slots were asked anew: executors ") for text in told), told
        assert world.state("shuffling").counts["placement.missed"] > 0

        world.close_gate("draw")
        feed_with_gate(world, 1)
        until(lambda: world.at_gate("draw"), "a message at the gate", driver)
        (stopped,) = world.at_gate("draw")
        _, host = cluster.executor_of(stopped)
        cluster.kill_worker(host)
        driver.kill()
    with Driver("shuffling", world, "placement.wait_s=0") as driver:
        until(lambda: len(world.at_gate("draw")) >= 2, "the slot to run elsewhere", driver)
        fed += 301
        assert world.read_so_far("shuffling") < fed
        world.open_gate("draw")
        until(lambda: len(world.rows("kept")) == fed, "all records", driver)
        driver.terminate()
        said = driver.wait()
    assert said["interrupted"], driver.story
    assert world.read_so_far("shuffling") == fed
    told = story(world, "shuffling")
    lost = f"host {cluster.address(host)} was lost: "
    assert any(text.startswith(lost) for text in told), told
    assert sum(text.startswith("a driver began") for text in told) == 2
    assert hosts(world) == {(cluster.state_dir(1 - host) / "host-id").read_text()}
    check(world)
