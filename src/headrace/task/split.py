"""``split``: each row goes to the first branch whose condition is true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.graph.branches import DEFAULT
from headrace.graph.operators import Branch, Split
from headrace.plan.stages import CallLimits
from headrace.task.chunk import Chunk
from headrace.task.messages.mapped import NO_LIMITS, MessageCalls
from headrace.task.messages.stateless import condition_mask
from headrace.task.node import Node

Answer = tuple[Chunk, npt.NDArray[np.bool_]]
"""Rows, and for which of them a condition is true."""


class SplitNode(Node):
    """Asks one condition after the other, each for the rows that are left.

    Args:
        operator: the branches.
        source: schema of the rows.
        limits: of each call of a function.
    """

    def __init__(self, operator: Split, source: pa.Schema, limits: CallLimits = NO_LIMITS) -> None:
        super().__init__(operator.name)
        self._branches = operator.branches
        self._calls = {
            branch.name: MessageCalls(
                operator.name,
                branch.function,
                source=source,
                uses=operator.uses,
                limits=limits,
                convert=bool,
                takes=branch.takes,
            )
            for branch in operator.branches
            if branch.function is not None
        }

    def push(self, chunk: Chunk) -> None:
        """Send each row to its branch; what no branch takes and nobody reads is counted."""
        left = [chunk]
        for branch in self._branches:
            left = list(self._taken(branch, left))
        for rest in left:
            if DEFAULT in self.sides:
                self.emit(rest, DEFAULT)
            else:
                self.counts["unmatched"] += rest.rows

    def _taken(self, branch: Branch, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Send the rows that a branch takes, and yield the others."""
        for chunk in chunks:
            for part, keep in self._answers(branch, chunk):
                self.emit(part.filter(keep), branch.name)
                rest = part.filter(~keep)
                if rest.rows:
                    yield rest

    def _answers(self, branch: Branch, chunk: Chunk) -> Iterable[Answer]:
        """Ask a condition; the rows on which it fails are left out, if that is wanted."""
        if branch.expression is None:
            part, results = self._calls[branch.name].results(chunk, self.guard)
            return [(part, np.fromiter(results, np.bool_, len(results)))] if part.rows else []
        ask = partial(self._masked, branch)
        return [ask(chunk)] if self.guard is None else self.guard.parts(chunk, ask)

    def _masked(self, branch: Branch, chunk: Chunk) -> Answer:
        assert branch.expression is not None
        return chunk, condition_mask(self.name, branch.expression, chunk)
