"""Durations are read from text and timedeltas, and written back in the shortest form."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.durations import duration_ms, duration_text
from headrace.errors import InvalidInputError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("1m", 60_000),
        ("1h30m", 5_400_000),
        (" 2d ", 172_800_000),
        ("1w", 604_800_000),
        ("10 seconds", 10_000),
        ("1 minute", 60_000),
        ("5min", 300_000),
        ("2 hours 30 minutes", 9_000_000),
        ("1h 30m", 5_400_000),
        ("250 milliseconds", 250),
        ("1 day", 86_400_000),
        ("2 weeks", 1_209_600_000),
        (datetime.timedelta(hours=1), 3_600_000),
    ],
)
def test_durations_are_milliseconds(written: Any, expected: int) -> None:
    assert duration_ms(written, "size") == expected


@pytest.mark.parametrize(
    "written",
    ["", "10", "s", "1.5h", "ten", 10, None, "-1s", "1 month", "1 fortnight", "5 s 3"],
    ids=repr,
)
def test_what_is_no_duration_is_refused(written: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"size is .*; expected a duration such as '10s'"):
        duration_ms(written, "size")


def test_durations_have_a_least() -> None:
    with pytest.raises(InvalidInputError, match="size is '0s'; expected more than zero"):
        duration_ms("0s", "size")
    assert duration_ms("0s", "grace", least=0) == 0
    with pytest.raises(InvalidInputError, match="expected whole milliseconds"):
        duration_ms(datetime.timedelta(microseconds=1500), "size")


@given(st.integers(1, 10**12))
def test_text_reads_back(milliseconds: int) -> None:
    assert duration_ms(duration_text(milliseconds), "size") == milliseconds


def test_text_is_short() -> None:
    assert [duration_text(n) for n in (0, 1, 5_400_000, 86_400_000)] == ["0s", "1ms", "1h30m", "1d"]
