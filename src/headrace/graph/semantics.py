"""What a job promises when it fails, and by which order of commit steps it keeps that.

State semantics say how often each input record counts in what a job keeps, output semantics how
often each result shows up in an output. Both follow from nothing but the order in which the steps
of a commit are done (``ORDERS``); the coordinator walks it (``commit_actions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from headrace.errors import InvalidInputError


class Semantics(StrEnum):
    """How often something takes effect although processes die."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    EXACTLY_ONCE = "exactly_once"

    @property
    def words(self) -> str:
        """As people are shown it."""
        return self.value.replace("_", "-")


class CommitStep(IntEnum):
    """The steps that an epoch's commit is made of; joined ones are done by one manifest."""

    RESULTS = 1
    """Results are durable in files that nobody looks at."""
    OUTPUT = 2
    """Output goes where readers see it; in a manifest: it will, whatever dies."""
    STATE = 3
    """The manifest names the changes of state."""
    OFFSETS = 4
    """The manifest says how far inputs are read."""


Cell = tuple[Semantics, Semantics]
_LEAST, _MOST, _EXACTLY = Semantics.AT_LEAST_ONCE, Semantics.AT_MOST_ONCE, Semantics.EXACTLY_ONCE
_RESULTS, _OUTPUT, _STATE, _OFFSETS = (frozenset([step]) for step in CommitStep)

ORDERS: Mapping[Cell, tuple[frozenset[CommitStep], ...]] = MappingProxyType(
    {
        (_LEAST, _LEAST): (_RESULTS, _OUTPUT, _STATE, _OFFSETS),
        (_EXACTLY, _LEAST): (_RESULTS, _OUTPUT, _STATE | _OFFSETS),
        (_MOST, _MOST): (_RESULTS, _OFFSETS, _STATE, _OUTPUT),
        (_EXACTLY, _MOST): (_RESULTS, _STATE | _OFFSETS, _OUTPUT),
        (_EXACTLY, _EXACTLY): (_RESULTS, _OUTPUT | _STATE | _OFFSETS),
    }
)
"""The order of steps by (state, output); what is not here is refused."""

_REFUSALS: Mapping[Cell, str] = MappingProxyType(
    {
        (_LEAST, _MOST): "a record that counts again makes its results again, so they would show "
        "up twice",
        (_LEAST, _EXACTLY): "state and offsets are saved one after the other, so no one step could "
        "hold the output with both: records that count again would make results again",
        (_MOST, _LEAST): "a record that is lost to the state makes no result, so results would be "
        "missing",
        (_MOST, _EXACTLY): "offsets and state are saved one after the other, so no one step could "
        "hold the output with both: records that are lost to the state would make no result",
    }
)


@dataclass(frozen=True)
class CommitAction:
    """One thing that is done after the results are durable: a manifest, or output by itself.

    Args:
        saves: what the manifest holds of ``STATE`` and ``OFFSETS``; empty: there is none.
        outputs: semantics of the outputs that go with it.
    """

    saves: frozenset[CommitStep]
    outputs: frozenset[Semantics]


def refusal(state: Semantics, output: Semantics) -> str | None:
    """Say why an output cannot have these semantics with those of the state, or ``None``."""
    if (state, output) in ORDERS:
        return None
    fitting = [cell[1].value for cell in ORDERS if cell[0] == state]
    return (
        f"{output} output does not go with {state} state: {_REFUSALS[state, output]}; give it "
        f"{' or '.join(fitting)}, or the state other semantics"
    )


@cache
def commit_actions(state: Semantics, outputs: frozenset[Semantics]) -> tuple[CommitAction, ...]:
    """Return what a commit does after the first step, in order, for outputs of several kinds.

    All orders of one state semantics save in the same manifests; output stands where its own
    order has it between these.

    Args:
        state: semantics of the state.
        outputs: those in use; with none the manifests are left.
    """
    saves = next(_saves(steps) for cell, steps in ORDERS.items() if cell[0] == state)
    places: dict[tuple[int, bool], CommitAction] = {
        (number, True): CommitAction(held, frozenset()) for number, held in enumerate(saves)
    }
    for output in outputs:
        number = 0
        for joined in ORDERS[state, output][1:]:
            held = joined - _OUTPUT
            if joined & _OUTPUT:
                place = (number, bool(held))
                before = places.get(place, CommitAction(held, frozenset()))
                places[place] = CommitAction(before.saves, before.outputs | {output})
            number += bool(held)
    return tuple(places[place] for place in sorted(places))


def _saves(steps: tuple[frozenset[CommitStep], ...]) -> list[frozenset[CommitStep]]:
    """The manifests of an order: what each holds beside output."""
    return [held for joined in steps if (held := joined & (_STATE | _OFFSETS))]


def read_semantics(value: Any, what: str) -> Semantics | None:
    """Return semantics by their name; ``None`` stays.

    Raises:
        InvalidInputError: there are none of that name; says what it was given for.
    """
    if value is None:
        return None
    try:
        return Semantics(value)
    except ValueError:
        known = ", ".join(repr(one.value) for one in Semantics)
        raise InvalidInputError(f"{what}={value!r}; expected one of {known}") from None
