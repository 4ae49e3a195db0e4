"""What every suite shares: Hypothesis profiles and a home of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each file be run by one process, and all that start Spark by the same.

    Those share a session, and two Sparks at the same time would be slow enough for each other to
    be taken for frozen.
    """
    for item in items:
        is_spark = item.path.parent.name == "spark" and item.path.parents[1].name == "tests"
        group = "spark" if is_spark else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HEADRACE_HOME that no other test shares; no other setting leaks in from outside."""
    for name in [name for name in os.environ if name.startswith("HEADRACE__")]:
        monkeypatch.delenv(name)
    path = tmp_path / "home"
    monkeypatch.setenv("HEADRACE_HOME", str(path))
    return path
