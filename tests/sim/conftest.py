"""What every schedule has: files that are worth merging although they are tiny."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sim.copies import open_driver

from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.machines.life import Life
from headrace.coordinator.machines.membership import Membership
from headrace.coordinator.machines.turn import Turn
from headrace.coordinator.manifest import Manifest
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


@pytest.fixture(autouse=True)
def sound_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure after each event that the machines of drivers are what they can be.

    And of each epoch, before it is committed, that what it leaves of standbys is.
    """
    for kind in (Turn, Life, Membership):
        monkeypatch.setattr(kind, "after", _validated(kind.after))
    manifest = EpochRun.manifest

    def checked(run: EpochRun, *act: Any, **more: Any) -> Manifest:
        run.standbys.validate(run.tasks)
        return manifest(run, *act, **more)

    monkeypatch.setattr(EpochRun, "manifest", checked)


def _validated(after: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(machine: Any, event: Any) -> Any:
        found = after(machine, event)
        found.validate()
        return found

    return checked
