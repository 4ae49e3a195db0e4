"""Which tests are of the soak suite, the part of it that CI runs, and how many examples are drawn.

Tests that look for the unlikely (long random schedules, full products of what others meet in pairs)
are marked ``soak`` and left out. ``SOAK=all`` runs them, with many examples of each Hypothesis
test. With ``CI=true`` a tenth is run, or a smaller share of long lists of seeds, which a seed
chooses: the commit's tree of ``src``, or ``SOAK_SEED``. It also draws the examples. So every change
of the code looks elsewhere, and a red run is run again by its seed, which the head of the output
names.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, core, settings
from xxhash import xxh3_64_intdigest

SHARE, MOST = 10, 4
"""CI runs one of ten tests of the soak suite, and about four of one test's parameters at most.

Some have thousands of random seeds, for a night: of those a new few with each change of the code
find as much in the long run as a tenth does, in a small part of the time.
"""

EXAMPLES, TIMES = 12, 50
"""Of a Hypothesis test that does not say how many; the soak suite draws so many times more."""

EDGE_BYTES = 40
"""At each end of a file that is damaged at some places of it."""


def more(quick: Sequence[Any], every: Sequence[Any], share: int = SHARE) -> list[Any]:
    """Return the parameters of a test of which a few are always run, and all by the soak suite.

    Args:
        quick: those that are always run, in any order; the others are left out at once where the
            soak suite is not run. A tuple is the values of several parameters.
        every: all of them.
        share: CI runs one of so many of the others, or fewer, where there are many. A test of
            two lists, of which one is not of the soak suite, names a share for their product.
    """
    if wanted() == "none":
        return list(quick)
    others = [one if isinstance(one, tuple) else (one,) for one in every if one not in quick]
    mark = pytest.mark.soak(share=max(share, len(others) // MOST))
    return [*quick, *(pytest.param(*one, marks=mark) for one in others)]


def crossed(*factors: Sequence[Any]) -> list[Any]:
    """Return parameters that have each value of each factor; their product is of the soak suite.

    Where the values of two factors may be at fault together only, name the pairs instead, with
    ``tests.support.pairwise``.
    """
    most = max(map(len, factors))
    quick = [tuple(values[n % len(values)] for values in factors) for n in range(most)]
    every = list[tuple[Any, ...]]()
    for one in itertools.product(*factors):
        if one not in every:  # some cannot be hashed
            every.append(one)
    return more(quick, every)


def examples(count: int) -> int:
    """Return how many examples a Hypothesis test draws that wants so many at least."""
    return count * TIMES if wanted() == "all" else count


def places(size: int) -> Sequence[int]:
    """Return at which bytes of a file a test damages it: at each, in the soak suite.

    Else at each of the first and the last ones, and at one of five between: what a file holds many
    times has each of its fields hit somewhere.
    """
    step = 1 if wanted() == "all" else 5
    ends = {*range(min(size, EDGE_BYTES)), *range(max(0, size - EDGE_BYTES), size)}
    return sorted(ends | {*range(0, size, step)})


def wanted() -> str:
    """Return which tests of the soak suite are run: ``all``, ``tenth`` or ``none``."""
    asked = os.environ.get("SOAK", "")
    if asked in ("all", "tenth", "none"):
        return asked
    return "tenth" if os.environ.get("CI") == "true" else "none"


@cache
def seed() -> str:
    """Return what chooses the tenth, and draws its examples.

    It is the tree of ``src``, not the commit: what passed stays chosen when the same code is
    committed again, merged or documented.
    """
    if given := os.environ.get("SOAK_SEED"):
        return given
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD:src"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "no commit"


def load_profile() -> None:
    """Set up Hypothesis: the same examples always, those of the seed, or many that nobody knows."""
    asked = wanted()
    settings.register_profile(
        "chosen",
        max_examples=examples(EXAMPLES),
        deadline=None,
        derandomize=asked == "none",
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("chosen")
    if asked == "tenth":
        core.global_force_seed = xxh3_64_intdigest(seed().encode())  # type: ignore[assignment]


def is_left_out(item: pytest.Item, asked: str, of: str) -> bool:
    """Say whether a test is of the soak suite, and not of the part of it that a seed chooses."""
    mark = item.get_closest_marker("soak")
    if mark is None or asked == "all":
        return False
    share = mark.kwargs.get("share", SHARE)
    return asked == "none" or xxh3_64_intdigest(f"{of} {item.nodeid}".encode()) % share != 0


def select(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take out of ``items`` what is not run of the soak suite, and return it."""
    asked, of = wanted(), seed()
    out = [item for item in items if is_left_out(item, asked, of)]
    gone = set(map(id, out))
    items[:] = [item for item in items if id(item) not in gone]
    return out


def header() -> Iterable[str]:
    """Yield what the head of the output says."""
    if wanted() == "tenth":
        yield f"soak: one of {SHARE} tests; the same again with SOAK=tenth SOAK_SEED={seed()}"
    elif wanted() == "all":
        yield f"soak: all tests, and {TIMES} times the examples"
