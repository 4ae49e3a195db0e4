"""Bounds on an epoch's input and memory: more epochs, the same result."""

from __future__ import annotations

import random

import pytest
from tests.sim.world import World, make_job
from tests.support.limits import limit

from headrace.testing import TestDriver


def _epochs(
    max_rows: int = 1_000_000, max_bytes: int = 1 << 30, overlay_bytes: int = 128 << 20
) -> int:
    with TestDriver(
        make_job("memory", small=True),
        tasks=1,
        slots=1,
        max_rows=max_rows,
        max_bytes=max_bytes,
        overlay_bytes=overlay_bytes,
    ) as driver:
        world = World(driver, random.Random(5))
        world.feed(300)
        epochs = driver.finish()
        world.check()
        return epochs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few rows at a time."""
    limit(monkeypatch, chunk_rows=8)


def test_input_bytes_bound_an_epoch() -> None:
    """A source task stops when it has read its share, and the rest comes later."""
    assert _epochs() == 2
    assert _epochs(max_bytes=2_000) > 4


def test_large_changes_make_the_next_epochs_smaller() -> None:
    """Once a task's changes were too large, later epochs read what fits."""
    assert _epochs(max_rows=90) == 5
    assert _epochs(max_rows=90, overlay_bytes=4_000) > 7
