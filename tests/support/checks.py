"""Checks within the code under test, on after each event of a state machine and in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.manifest import Manifest
from headrace.coordinator.membership import Membership


def validate_machines(patch: pytest.MonkeyPatch) -> None:
    """Make sure after each event that the machines of drivers are in a state that can be.

    And of each epoch, before it is committed, that what it leaves of standbys is.
    """
    for kind in (Membership,):
        patch.setattr(kind, "after", _validated(kind.after))
    manifest = EpochRun.manifest

    def checked(run: EpochRun, *act: Any, **more: Any) -> Manifest:
        run.standbys.validate(run.tasks)
        return manifest(run, *act, **more)

    patch.setattr(EpochRun, "manifest", checked)


def _validated(after: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(machine: Any, event: Any) -> Any:
        found = after(machine, event)
        found.validate()
        return found

    return checked
