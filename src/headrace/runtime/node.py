"""The running form of an operator: takes chunks, pushes chunks to the ones after it.

Rows that it refuses go to its ``Guard``, where it has one, so that the others continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from headrace.errors import CallTimeoutError, HeadraceError, InvalidInputError
from headrace.runtime.chunk import Chunk

MOST_TRIES = 4096
"""Calls of a batch function on parts of one batch; beyond, something else than rows is bad."""

T = TypeVar("T")


class Refused(NamedTuple):
    """A row of a chunk, and why it was refused."""

    row: int
    error: HeadraceError


class Guard:
    """Takes the rows that one operator refuses, and drops them.

    Args:
        counts: of the operator.
    """

    counted: ClassVar[str] = "dropped"

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def take(
        self, chunk: Chunk, refused: Sequence[Refused], keys: Sequence[str] | None = None
    ) -> None:
        """Count rows and release them.

        Args:
            chunk: has the rows.
            refused: which, and why.
            keys: columns of its key, where these are not those of the operator's rows.
        """
        if refused:
            self._counts[self.counted] += len(refused)
            self.keep(chunk, refused, keys)

    def take_lost(self, error: HeadraceError, key: Any) -> None:
        """Count what failed without a row, such as a timer."""
        self._counts[self.counted] += 1
        self.keep_lost(error, key)

    def keep(self, chunk: Chunk, refused: Sequence[Refused], keys: Sequence[str] | None) -> None:
        """Keep refused rows of a chunk, if they are wanted."""

    def keep_lost(self, error: HeadraceError, key: Any) -> None:
        """Note what failed without a row, if that is wanted."""

    def parts(self, chunk: Chunk, work: Callable[[Chunk], T]) -> Iterator[T]:
        """Yield what is made of the good rows of a chunk, in their order.

        A batch that fails is cut in two, and so on, until the bad rows stand alone. So ``work``
        is called again on parts of what it was called on before: it has to be pure.

        Raises:
            InvalidInputError: after ``MOST_TRIES`` calls; then few rows are good, if any.
        """
        waiting, tries = [(0, chunk.rows)], 0
        refused: list[Refused] = []
        while waiting:
            begin, end = waiting.pop()
            tries += 1
            try:
                made = work(chunk if end - begin == chunk.rows else chunk.part(begin, end))
            except InvalidInputError as error:
                if tries >= MOST_TRIES or isinstance(error, CallTimeoutError):
                    error.add_note(f"{len(refused)} rows were refused before, one by one")
                    raise
                if end - begin == 1:
                    refused.append(Refused(begin, error))
                    continue
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            yield made
        self.take(chunk, refused)


def without(chunk: Chunk, refused: Sequence[Refused]) -> Chunk:
    """Return the rows of a chunk that were not refused."""
    keep = np.ones(chunk.rows, np.bool_)
    keep[[one.row for one in refused]] = False
    return chunk.filter(keep)


class Node:
    """One operator of one task.

    ``guard`` takes the rows that it refuses; without one, they fail the epoch. ``received`` and
    ``sent`` are the rows of the epoch so far.

    Called by one thread. Within an epoch ``push`` is called any number of times, then
    ``advance`` once, after that of all nodes before it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.targets: list[Node] = []
        self.sides: dict[str, list[Node]] = {}
        self.counts: Counter[str] = Counter()
        self.guard: Guard | None = None
        self.received = self.sent = 0

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch.

        Args:
            epoch: its number.
            wall_ms: its wall clock, the same when Spark runs the slot again.
            watermark: of what reaches the operator, at the end of the last epoch.
        """

    @property
    def has_timers(self) -> bool:
        """Say whether it may have timers, which fire between rows."""
        return False

    def expect(self, watermark: int) -> None:
        """Hear, before the epoch's rows, where it will bring the watermark at least.

        Called in keyed stages only.

        Args:
            watermark: of what reaches the operator.
        """

    def inlet(self, upstream: str) -> Node:
        """Return the node that takes the rows of one operator before this one.

        A node with several inputs that are not alike answers with an ``Inlet`` for each.
        """
        return self

    def push(self, chunk: Chunk) -> None:
        """Take rows; never called with none."""
        raise NotImplementedError

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Do what is due at the end of the epoch's rows.

        Args:
            watermark: of the stage, ms: no record with an earlier event time will come
                that is not late.
            wall_ms: the epoch's wall clock; the same when Spark runs the slot again.
        """

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the watermark and the wall clock at which something is due, if any."""
        return None, None

    def close(self) -> None:
        """Give a class of the user's its chance to release what it took."""

    def emit(self, chunk: Chunk, side: str = "") -> None:
        """Push rows to the operators after this one, or to those after one of its sides."""
        if chunk.rows and (not side or side in self.sides):
            self.sent += chunk.rows
            for target in self.sides[side] if side else self.targets:
                target.received += chunk.rows
                target.push(chunk)


class Inlet(Node):
    """Where rows of one of several inputs enter a node.

    Args:
        owner: the node, which counts the rows as its own.
        take: is given the rows.
    """

    def __init__(self, owner: Node, take: Callable[[Chunk], None]) -> None:
        super().__init__(owner.name)
        self._owner, self._take = owner, take

    def push(self, chunk: Chunk) -> None:
        """Take rows of this input."""
        self._owner.received += chunk.rows
        self._take(chunk)
