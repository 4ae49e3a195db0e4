"""A cluster and a home for tests on Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.hosts import HOSTS
from tests.support.processes import MODULES
from tests.support.runs import World

from headrace.testing.cluster import SparkCluster

sys.path += MODULES.split(os.pathsep)  # hosts of a cluster have the path of this process


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two hosts of one core for all tests of a cluster, and no process left at the end."""
    with SparkCluster(tmp_path_factory.mktemp("cluster"), workers=HOSTS) as running:
        yield running
    assert running.processes() == []


@pytest.fixture
def cluster(shared_cluster: SparkCluster) -> SparkCluster:
    """All hosts, also those that the test before has killed."""
    lost = [number for number in range(HOSTS) if not shared_cluster.of(f"worker-{number}")]
    for number in lost:
        shared_cluster.start_worker(number)
    for number in lost:
        shared_cluster.await_worker(number)
    return shared_cluster


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A home of the test's own, with two partitions of events."""
    return World(tmp_path / "home")
