"""What messages that wait for calls hold back in their task: the watermark of what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.graph.operators import Process
from headrace.plan.stages import Stage
from headrace.task.asynchronous.node import AsyncNode
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK


class Holds:
    """The watermark of one task behind its asynchronous calls.

    Nothing that waits may become late, so behind a call no watermark passes the one that the
    message's own partition had just before it. ``reached`` is where it was brought, as a
    watermark of the stage; ``None`` where nothing waits.

    Args:
        nodes: of the task, in the order of the graph.
        stage: that they are of.
    """

    def __init__(self, nodes: Mapping[str, Node], stage: Stage) -> None:
        self.calling = [node for node in nodes.values() if isinstance(node, AsyncNode)]
        self._delays = stage.delays
        names = {node.name for node in self.calling}
        self._behind = _behind(stage, names)
        for node in self.calling:
            node.is_chained = len(_behind(stage, {node.name}) & names) > 1
        self.before = NO_WATERMARK
        self.reached: int | None = None
        self._bound: int | None = None

    def begin(self, before: int) -> None:
        """Turn to an epoch: ``before`` is where the one before brought what follows the calls."""
        self.before, self.reached, self._bound = before, None, None

    def holds(self, name: str) -> bool:
        """Say whether a node is a call, or follows one."""
        return name in self._behind

    def passed(self, node: Node, watermark: int) -> int:
        """Return the stage's watermark as it is for a node; asked in the order of the graph."""
        if isinstance(node, AsyncNode) and (mark := node.mark()) is not None:
            if mark > NO_WATERMARK:
                mark += self._delays.get(node.name, 0)
            self._bound = mark if self._bound is None else min(self._bound, mark)
            self.reached = max(self.before, min(watermark, self._bound))
        if self.reached is None or node.name not in self._behind:
            return watermark
        return self.reached

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(node.waiting for node in self.calling)


def _behind(stage: Stage, calling: set[str]) -> set[str]:
    """Return calls, and the operators of a stage that follow them."""
    found = set(calling)
    if found:
        for operator in stage.operators:
            if not found.isdisjoint(operator.inputs):
                found.add(operator.name)
        found |= {sent.operator for sent in stage.sends if sent.upstream in found}
    return found


def asking_stage(stage: Stage) -> Stage | None:
    """Return what leads up to the calls of a stage that reads by offset; ``None``: it has none."""
    if stage.keyed:
        return None
    known = {operator.name: operator for operator in stage.operators}
    wanted = {o.name for o in stage.operators if isinstance(o, Process) and o.calls is not None}
    if not wanted:
        return None
    todo = list(wanted)
    while todo:
        more = [name for name in known[todo.pop()].inputs if name not in wanted]
        wanted.update(more)
        todo += more
    kept = tuple(operator for operator in stage.operators if operator.name in wanted)
    return replace(stage, operators=kept, sends=(), outputs=(), sinks=())
