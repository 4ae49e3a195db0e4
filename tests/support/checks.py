"""Checks within the code under test, on after each event of a state machine and in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.coordinator.epoch import EpochRun
from headrace.coordinator.manifest import Manifest
from headrace.coordinator.membership import Membership


def validate_machines(patch: pytest.MonkeyPatch) -> None:
    """Make sure after each event that what drivers know of their hosts can be.

    And of each epoch, before it is committed, that what it leaves of standbys is.
    """
    for event in ("doubted", "answered"):
        patch.setattr(Membership, event, _validated(getattr(Membership, event)))
    manifest = EpochRun.manifest

    def checked(run: EpochRun, *act: Any, **more: Any) -> Manifest:
        run.standbys.validate(run.tasks)
        return manifest(run, *act, **more)

    patch.setattr(EpochRun, "manifest", checked)


def _validated(event: Callable[..., Membership]) -> Callable[..., Membership]:
    def checked(members: Membership, *given: Any) -> Membership:
        found = event(members, *given)
        found.validate()
        return found

    return checked
