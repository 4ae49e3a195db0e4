"""A cluster whose hosts have a network and a bucket in common, and no folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.hosts import homes, small_executors
from tests.support.jobs import counting, model
from tests.support.processes import kill
from tests.support.runs import Driver, until
from tests.support.servers import S3Server
from tests.support.storages import StoredWorld, exchange_servers, forget_storages, new_name

import headrace as hr
from headrace.testing.cluster import SparkCluster
from headrace.testing.host_network import HostNetwork, can_make_networks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.skipif(not can_make_networks(), reason="makes networks, which only root may"),
]

HOSTS, JOB = 2, "counting"


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    with HostNetwork() as made:
        yield made


@pytest.fixture
def server(
    tmp_path: Path, network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    """A bucket that all hosts reach, with the login in the environment."""
    with S3Server(tmp_path / "s3", host=network.gateway) as running:
        forget_storages()
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SPARK_LOCAL_IP", network.gateway)
        yield running
        forget_storages()


@pytest.fixture
def cluster(tmp_path: Path, network: HostNetwork, server: S3Server) -> Iterator[SparkCluster]:
    """Hosts that find the home and each other's disks empty."""
    (tmp_path / "home").mkdir()
    state = tmp_path / "state"
    with SparkCluster(
        tmp_path / "cluster",
        HOSTS,
        1024,
        state_dir=state,
        without=[tmp_path / "home"],
        network=network,
    ) as running:
        yield running
    assert running.processes() == []


@pytest.fixture
def world(
    tmp_path: Path, network: HostNetwork, server: S3Server, cluster: SparkCluster
) -> StoredWorld:
    address = f"s3://{server.bucket}/{new_name()}"
    return StoredWorld(
        tmp_path / "home",
        f"{address}/jobs",
        f"bus.address={address}/bus",
        f"state.dir={tmp_path / 'state'}",
        f"spark.master={cluster.url}",
        f"spark.conf.spark.driver.host={network.gateway}",
        f"spark.conf.spark.driver.bindAddress={network.gateway}",
        "control.enabled=false",
        "job.tasks=4",
        "placement.wait_s=0.5",
        *small_executors(),
    )


def feed(world: StoredWorld, driver: Driver, count: int) -> None:
    """Append rows, and wait until they are committed."""
    world.feed(count)
    rows = sum(map(len, world.log))
    until(lambda: world.read_so_far(JOB) == rows, f"{rows} rows", driver)


def hosts_of(world: StoredWorld) -> set[str]:
    return set(homes(world, JOB).values())


def check(world: StoredWorld, tmp_path: Path) -> None:
    """End the job on a disk of its own: each row counts once."""
    last = world.settings("job.bounded=true", f"state.dir={tmp_path / 'last'}")
    assert hr.run(counting(), last).state.ended
    assert model(world.log) == world.found()


def test_a_job_survives_a_server_of_exchange_files_and_then_a_host(
    tmp_path: Path, world: StoredWorld, cluster: SparkCluster
) -> None:
    with Driver(JOB, world) as driver:
        feed(world, driver, 40)
        while len(hosts_of(world)) < HOSTS:  # one may come a little later
            feed(world, driver, 10)
        servers = exchange_servers(cluster.of("worker-1"))
        assert servers
        for process in servers:
            kill(process)
        feed(world, driver, 40)
        world.feed(100)
        cluster.kill_worker(1)
        feed(world, driver, 40)
        assert len(hosts_of(world)) == 1
        driver.terminate()
        assert driver.wait()["interrupted"], driver.story
    check(world, tmp_path)
