"""A job on a cluster of several hosts: where its tasks are, and whether they have standbys."""

from __future__ import annotations

from pathlib import Path

from tests.spark.runs import World

from headrace.testing.cluster import SparkCluster

JOB = "shuffling"


def world_on(cluster: SparkCluster, home: Path, *sets: str) -> World:
    """A home whose jobs run on a cluster, with small executors."""
    small = "spark.conf.spark.executor.memory=512m"
    return World(home, sets=[f"spark.master={cluster.url}", small, *sets])


def homes(world: World) -> dict[str, str]:
    """The host of each task."""
    return {name: task.host for name, task in world.state(JOB).tasks.items()}


def is_covered(world: World) -> bool:
    """Say whether every task has a standby that holds something of its state."""
    state = world.state(JOB)
    held = [state.standbys.get(name, ()) for name in state.tasks]
    return all(found and found[0].epoch >= 0 for found in held)
