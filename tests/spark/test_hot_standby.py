"""A lost host's tasks go on from the standbys of their stores, on a real cluster of three hosts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.spark.hosts import homes, is_covered, world_on
from tests.spark.runs import Driver, World, until
from tests.spark.story import story

from headrace.coordinator.standby.placing import violations
from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def world(tmp_path: Path, cluster: SparkCluster) -> World:
    return world_on(
        cluster,
        tmp_path / "home",
        "placement.wait_s=1",
        "job.hotstandby.enabled=true",
        "job.hotstandby.replicationcount=1",
    )


def test_tasks_of_a_lost_host_go_to_their_standbys(world: World, cluster: SparkCluster) -> None:
    """And stay there when the whole application is started again."""
    fed = 0
    with Driver("shuffling", world) as driver:
        while not fed or not is_covered(world):
            world.feed(25)
            fed += 50
            until(lambda: len(world.rows("kept")) == fed, "the records so far", driver)  # noqa: B023
            assert fed < 5_000, "the standbys never came"
        before, copies = homes(world), world.state("shuffling").standbys
        assert len(set(before.values())) == 3
        assert violations(before, copies) == []
        lost = min(before.values())
        number = next(n for n in range(3) if (cluster.state_dir(n) / "host-id").read_text() == lost)
        cluster.kill_worker(number)
        world.feed(100)
        fed += 200
        until(lambda: len(world.rows("kept")) == fed, "the records after the loss", driver)
        driver.terminate()
        driver.wait()
    after, counts = homes(world), world.state("shuffling").counts
    for name, host in before.items():
        assert after[name] == (copies[name][0].host if host == lost else host)
    assert counts["standby.failover"] == sum(host == lost for host in before.values())
    told = story(world, "shuffling")
    assert any("standby" in text and "first commit after" in text for text in told), told
    assert "standby.no_failover" not in counts
    with Driver("shuffling", world, "placement.wait_s=60") as driver:  # another application
        world.feed(100)
        fed += 200
        until(lambda: len(world.rows("kept")) == fed, "the records after a restart", driver)
        driver.terminate()
        driver.wait()
    assert homes(world) == after
    rows = Counter((row["id"], row["v"]) for part in world.log for row in part)
    assert rows == Counter((row["id"], row["v"]) for row in world.rows("kept"))
    assert sum(rows.values()) == sum(world.store("shuffling", "n").values())
