"""One Spark session for all tests of this folder that need no process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.runs import World

from headrace.spark.sessions import build_session
from headrace.testing.cluster import SparkCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two slots; it ends with the tests."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = build_session("local[2]", "headrace tests", log)
    yield session
    session.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """Three hosts of one core, and no process of theirs left at the end."""
    with SparkCluster(tmp_path / "cluster", workers=3) as running:
        yield running
    assert running.processes() == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A home of the test's own, with two partitions of events."""
    return World(tmp_path / "home")
