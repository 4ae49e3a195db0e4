"""A cluster and a home for tests on Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes import MODULES
from tests.support.runs import World

from headrace.testing.cluster import SparkCluster

sys.path += MODULES.split(os.pathsep)  # hosts of a cluster have the path of this process


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
