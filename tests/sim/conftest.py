"""What every schedule has: files that are worth merging although they are tiny."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim.copies import open_driver

from headrace.testing.driver import TestDriver


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge often, in several levels, a few rows at a time."""
    monkeypatch.setattr("headrace.state.tiers.FILE_COST_BYTES", 400)
    monkeypatch.setattr("headrace.state.tiers.FAN_IN", 2)
    monkeypatch.setattr("headrace.state.merging.CHUNK_ROWS", 5)
    monkeypatch.setattr("headrace.state.merging.MOST_COVERED", 3)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A job that commits to the host's own disk."""
    with open_driver(tmp_path / "home") as made:
        yield made
