"""Fault points: free without a hook, and none that a test names can be missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from headrace.errors import InvalidInputError
from headrace.faults import fault, injected
from headrace.testing import FAULT_POINTS


def test_without_a_hook_nothing_happens() -> None:
    for point in FAULT_POINTS:
        fault(point)


def test_a_hook_sees_every_point_while_it_lasts() -> None:
    seen: list[str] = []
    with injected(seen.append, ("epoch.planned",)):
        fault("epoch.planned")
        with injected(lambda point: seen.append(f"inner {point}")):
            fault("epoch.swept")
        fault("commit.written")
    fault("epoch.planned")
    assert seen == ["epoch.planned", "inner epoch.swept", "commit.written"]


def test_a_hook_may_raise_and_is_gone_after_that() -> None:
    def stop(point: str) -> None:
        raise KeyboardInterrupt(point)

    with pytest.raises(KeyboardInterrupt, match=r"slot\.ran"), injected(stop):
        fault("slot.ran")
    fault("slot.ran")


def test_a_point_that_does_not_exist_is_refused() -> None:
    with (
        pytest.raises(InvalidInputError, match=r"unknown fault points \['epoch.nowhere'\]; known"),
        injected(fault, ("epoch.planned", "epoch.nowhere")),
    ):
        pass


def test_every_point_says_where_it_is() -> None:
    assert all(text and "." in point for point, text in FAULT_POINTS.items())


def test_the_points_are_those_that_the_code_passes() -> None:
    """So a test cannot name one that nothing passes, nor code pass one that no test can name."""
    files = Path(headrace.__file__).parent.rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    passed = set(re.findall(r'\bfault\(\s*"([a-z_]+\.[a-z_]+)"', text))
    assert set(FAULT_POINTS) == passed
