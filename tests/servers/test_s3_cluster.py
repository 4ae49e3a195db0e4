"""A Spark cluster whose hosts share no folder: streams and jobs are on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.hosts import JOB, homes, world_on
from tests.spark.test_cluster_hosts import Fed
from tests.support.runs import Driver
from tests.support.servers import S3Server

from headrace.testing.cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

HOSTS = 2


def test_hosts_that_share_only_a_bucket_lose_one_of_them_and_the_driver(
    tmp_path: Path, s3: S3Server, address: str
) -> None:
    """Each host finds the folders of the driver empty, where the system lets it have its own."""
    home, state = tmp_path / "home", tmp_path / "state"
    home.mkdir()
    bus = address.replace("/jobs", "/bus")
    places = (f"storage.address={address}", f"bus.address={bus}", f"state.dir={state}")
    with SparkCluster(
        tmp_path / "cluster", workers=HOSTS, state_dir=state, without=[home]
    ) as cluster:
        world = world_on(cluster.url, home, *places, "placement.wait_s=1", "job.tasks=4")
        fed = Fed(world)
        with Driver(JOB, world) as driver:
            while not fed.rows or len(set(homes(world).values())) < HOSTS:
                fed.feed(driver)
            cluster.kill_worker(0)
            fed.feed(driver, 60)
            driver.kill()
        world.feed(60)
        with Driver(JOB, world) as driver:
            fed.await_all(driver)
            driver.terminate()
            driver.wait()
        fed.check()
    assert not {"bus", "jobs"} & {path.name for path in home.iterdir()}
