"""The story of a job, as ``headrace jobs describe`` tells it."""

from __future__ import annotations

from tests.support.cli import done
from tests.support.runs import World

NEWEST = 2
"""Of the six that are shown, for a driver that runs may add some meanwhile."""


def story(world: World, job: str) -> list[str]:
    """Return what happened to a job; its newest events are in what the command prints."""
    told = world.events(job)
    shown = done("jobs", "describe", job, "--home", world.home)
    assert [text for text in told[-NEWEST:] if text not in shown] == []
    return told
