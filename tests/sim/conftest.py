"""What every schedule has: files that are worth merging although they are tiny."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge often, in several levels, a few rows at a time."""
    monkeypatch.setattr("headrace.state.tiers.FILE_COST_BYTES", 400)
    monkeypatch.setattr("headrace.state.tiers.FAN_IN", 2)
    monkeypatch.setattr("headrace.state.merging.CHUNK_ROWS", 5)
    monkeypatch.setattr("headrace.state.merging.MOST_COVERED", 3)
