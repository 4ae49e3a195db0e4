"""Numbers of slots: the name by which Spark finds the process of a slot again.

A slot that keeps its number on its executor keeps its Python process. Starting another takes a
second or two, in which no epoch runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.spark.located import Executor


class Numbering:
    """Which number the slots on each executor have.

    Args:
        first: the lowest number.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._placed: Mapping[int, Executor] = {}
        self._promised: Mapping[int, Executor] = {}

    @property
    def placed(self) -> Mapping[int, Executor]:
        """Numbers that slots have, as last placed."""
        return self._placed

    def of(self, places: Sequence[Executor]) -> dict[int, Executor]:
        """Give each place a number: its own, the one promised, or the lowest that is free."""
        left, numbers = list(places), {}
        for number, executor in (*self._placed.items(), *self._promised.items()):
            if executor in left and number not in numbers:
                left.remove(executor)
                numbers[number] = executor
        every = range(self._first, self._first + len(places))
        free = (number for number in every if number not in numbers)
        numbers.update(zip(free, left, strict=False))
        return dict(sorted(numbers.items()))

    def promise(self, places: Sequence[Executor]) -> dict[int, Executor]:
        """Return the numbers of these places, which they have once they are placed."""
        self._promised = self.of(places)
        return dict(self._promised)

    def place(self, numbers: Mapping[int, Executor]) -> None:
        """Take it that slots run under these numbers now."""
        self._placed = numbers
