"""A job on a cluster of several hosts: where its tasks are, and whether they have standbys."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.processes import until
from tests.support.runs import World

JOB = "shuffling"
HOSTS = 2
"""That the cluster of the fixture has, each of one core."""
PAUSE_S = 0.5


def small_executors() -> tuple[str, ...]:
    """Return settings of a run whose executors are small, and start as quickly as other JVMs."""
    quick = os.environ["SPARK_DAEMON_JAVA_OPTS"]
    names = {"memory": "512m", "extraJavaOptions": quick}
    return tuple(f"spark.conf.spark.executor.{name}={value}" for name, value in names.items())


def world_on(master: str, home: Path, *sets: str) -> World:
    """A home whose jobs run on a cluster, with small executors."""
    return World(home, sets=[f"spark.master={master}", *small_executors(), *sets])


def homes(world: World, job: str = JOB) -> dict[str, str]:
    """The host of each task."""
    return {name: task.host for name, task in world.state(job).tasks.items()}


def feed_until(is_met: Callable[[], bool], feed: Callable[[], object]) -> None:
    """Feed until a condition holds, which takes epochs: each has the CPU of all hosts."""
    while not is_met():
        feed()
        with suppress(TimeoutError):
            until(is_met, "what takes another epoch", PAUSE_S)


def is_covered(world: World) -> bool:
    """Say whether every task has a standby that holds something of its state."""
    state = world.state(JOB)
    held = [state.standbys.get(name, ()) for name in state.tasks]
    return all(found and found[0].epoch >= 0 for found in held)
