"""The words of ``state.durability``, and what they promise."""

from __future__ import annotations

import pytest

from headrace.config import load_settings
from headrace.config.sections import Durability
from headrace.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "interval_ms", "shown"),
    [
        ("epoch", None, "epoch"),
        ("backup(30s)", 30_000, "backup(30s)"),
        ("backup( 1500 ms )", 1_500, "backup(1500ms)"),
        ("backup(120s)", 120_000, "backup(2m)"),
        ("backup(1h)", 3_600_000, "backup(1h)"),
    ],
)
def test_a_durability_is_read_and_shown(text: str, interval_ms: int | None, shown: str) -> None:
    found = Durability.parse(text)
    assert interval_ms == found.interval_ms
    assert shown == str(found)
    assert Durability.parse(shown) == found
    assert ("at least once" in found.promise) == found.is_backup


@pytest.mark.parametrize(
    "text", ["", "backup", "backup()", "backup(0s)", "backup(3 days)", "Epoch"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"state\.durability.*backup\(30s\)"):
        load_settings(None, [f"state.durability={text}"], {})
