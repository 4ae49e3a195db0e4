"""A host that freezes closes no connection: its tasks go to their standbys all the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.spark.hosts import homes, is_covered, world_on
from tests.spark.jobs import GATED_ID
from tests.spark.runs import Driver, World, until
from tests.spark.story import story

from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture
def world(tmp_path: Path, cluster: SparkCluster) -> World:
    return world_on(
        cluster,
        tmp_path / "home",
        "placement.wait_s=1",
        "job.slot_silence_s=1.5",
        "standby.enabled=true",
    )


def test_a_host_that_freezes_and_wakes_changes_nothing(world: World, cluster: SparkCluster) -> None:
    fed = 0
    with Driver("shuffling", world) as driver:
        while not fed or not is_covered(world):
            world.feed(25)
            fed += 50
            until(lambda: len(world.rows("kept")) == fed, "the records so far", driver)  # noqa: B023
            assert fed < 5_000, "the standbys never came"
        before, copies = homes(world), world.state("shuffling").standbys
        assert len(set(before.values())) == 3

        world.feed(50)
        world.append(0, [{**world.log[0][-1], "id": GATED_ID}])
        until(lambda: world.at_gate("draw"), "a message at the gate", driver)
        (stopped,) = world.at_gate("draw")
        _, number = cluster.executor_of(stopped)
        lost = (cluster.state_dir(number) / "host-id").read_text()
        cluster.freeze(number)
        world.open_gate("draw")
        fed += 101
        until(lambda: len(world.rows("kept")) == fed, "the records after the freeze", driver)
        after, counts = homes(world), world.state("shuffling").counts
        for name, host in before.items():
            assert after[name] == (copies[name][0].host if host == lost else host)
        assert counts["standby.failover"] == sum(host == lost for host in before.values())
        told, address = story(world, "shuffling"), cluster.address(number)
        assert any("have given no sign of life for" in text for text in told), told
        assert any(text.startswith(f"host {address} was lost") for text in told), told
        assert any("standby; first commit after" in text for text in told), told

        cluster.thaw(number)
        while lost not in homes(world).values():
            world.feed(25)
            fed += 50
            until(lambda: len(world.rows("kept")) == fed, "the records after it woke", driver)  # noqa: B023
            assert fed < 5_000, "the host that woke was never used again"
        assert f"host {address} came back" in story(world, "shuffling")
        driver.terminate()
        driver.wait()
    rows = Counter((row["id"], row["v"]) for part in world.log for row in part)
    assert rows == Counter((row["id"], row["v"]) for row in world.rows("kept"))
    assert sum(rows.values()) == sum(world.store("shuffling", "n").values())
