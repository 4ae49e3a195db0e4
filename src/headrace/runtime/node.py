"""The running form of an operator: takes chunks, pushes chunks to the ones after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.runtime.chunk import Chunk

if TYPE_CHECKING:
    from headrace.runtime.dead_letters import Guard


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
