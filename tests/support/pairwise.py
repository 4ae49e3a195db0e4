"""Few combinations of many factors in which every two values of two factors are met together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

Cell = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]
DRIVER, SLOT = ("point", "then", "third", "last"), ("slot", "and", "also")
POINTS = (*DRIVER, *SLOT)
"""Factors of which each is the place of a crash: of the driver, or of a slot's process."""


def pairs_of(cell: Mapping[str, str]) -> set[Pair]:
    """Return all pairs of values that are met in a cell; of later points as of the first one."""
    points = {cell[name] for name in POINTS if name in cell}
    rest = {name: value for name, value in cell.items() if name not in POINTS}
    each = ({**rest, "point": point} for point in points) if points else [rest]
    return {pair for one in each for pair in itertools.combinations(sorted(one.items()), 2)}


def choices(
    base: Cell, factors: Mapping[str, Sequence[str]], allows: Callable[[Cell], bool]
) -> Iterable[Cell]:
    """Yield the cells that a base can become, with a value of each factor."""
    for values in itertools.product(*factors.values()):
        cell = {**base, **dict(zip(factors, values, strict=True))}
        if allows(cell):
            yield cell


def pairwise(
    bases: Sequence[Cell], factors: Mapping[str, Sequence[str]], allows: Callable[[Cell], bool]
) -> list[Cell]:
    """Return a cell for each base, and more until every pair is met that any allowed cell has.

    Greedy, and always the same for the same arguments.

    Args:
        bases: values of some factors, all of which are to be met.
        factors: values of each of the others, by name.
        allows: says of a whole cell whether it can be.
    """
    can_be = [[(cell, pairs_of(cell)) for cell in choices(b, factors, allows)] for b in bases]
    left = {pair for cells in can_be for _, pairs in cells for pair in pairs}
    met: Counter[Pair] = Counter()
    found: list[Cell] = []

    def worth(one: tuple[Cell, set[Pair]]) -> tuple[int, int]:
        """By the pairs that are new; then by how seldom the others were met."""
        return len(one[1] & left), -sum(met[pair] for pair in one[1])

    def take(cells: list[tuple[Cell, set[Pair]]]) -> None:
        cell, pairs = max(cells, key=worth)
        left.difference_update(pairs)
        met.update(pairs)
        found.append(cell)

    for cells in can_be:
        take(cells)
    for cells in can_be:
        while any(not left.isdisjoint(pairs) for _, pairs in cells):
            take(cells)
    return found
