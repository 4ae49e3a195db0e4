"""What every suite shares: Hypothesis profiles and a home of the test's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

# ci draws the same examples every time, so that a red run means a change, not luck;
# nightly looks for what neither has seen.
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it has no types
    """Lets each file be run by one process, and all that start Spark by the same.

    Those share a session, and two Sparks at the same time would be slow enough for each other to
    be taken for frozen.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Share the tests out in this way where there are several processes."""
    return ByFile(config, log)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HEADRACE_HOME that no other test shares; no other setting leaks in from outside."""
    for name in [name for name in os.environ if name.startswith("HEADRACE__")]:
        monkeypatch.delenv(name)
    path = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(path))
    return path
