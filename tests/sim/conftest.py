"""What every schedule has: tiny files that are worth merging, and machines that are checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sim.copies import open_driver
from tests.support.checks import validate_machines
from tests.support.limits import MERGE_OFTEN, limit

from headrace.testing import TestDriver


@pytest.fixture(autouse=True)
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge often, and look at the machines of drivers after each event."""
    limit(monkeypatch, **MERGE_OFTEN)
    validate_machines(monkeypatch)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[TestDriver]:
    """A job that commits to the host's own disk."""
    with open_driver(tmp_path / "home") as made:
        yield made
