"""Compares what a command prints with what a page shows of it."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d[\d,.]*")
_UNIT = re.compile(r"\b([KMG]i)?B\b")
_DURATION = re.compile(r"\b0 (ms|s|min|h)( 0 (s|min))?\b")


def shape(text: str) -> list[str]:
    """Return the lines without what differs from run to run.

    Numbers, the units of sizes and times, and how wide columns are; at a line of ``...`` the page
    leaves the rest out.
    """
    lines = []
    for line in text.splitlines():
        if line == "...":
            break
        plain = _DURATION.sub("0 s", _UNIT.sub("B", _NUMBER.sub("0", line)))
        lines.append(re.sub(r"\s+", " ", plain).strip())
    return lines


def is_shown(out: str, shown: str) -> bool:
    """Say whether a command printed what a page shows."""
    expected = shape(shown)
    return shape(out)[: len(expected) if "\n..." in f"\n{shown}" else None] == expected
