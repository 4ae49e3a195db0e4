"""How far the watermark of what reaches an operator stays behind that of its stage.

What leaves a window with grace, or a join that sends rows alone, may be further behind than what
reached it; so what follows has to wait for longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.graph.joins import JoinStreams
from headrace.graph.operators import Operator, PartitionBy, WindowAggregate
from headrace.graph.ordering import InOrder
from headrace.graph.several import ProcessSeveral
from headrace.plan.cutting import Cut

Lags = dict[str, int]


def lags(operators: Mapping[str, Operator], cut: Cut, index: int) -> Lags:
    """Return the lag of what reaches each operator of a stage, and each ``partition_by`` it feeds.

    Args:
        operators: of the graph, in its order.
        cut: says which stage each is in.
        index: of the stage.
    """
    held: Lags = {}
    while True:
        reaching = _reaching(operators, cut, index, held)
        wanted = _held(operators, reaching)
        if wanted == held:
            return reaching
        held = wanted


def _reaching(operators: Mapping[str, Operator], cut: Cut, index: int, held: Lags) -> Lags:
    reaching: Lags = {}
    leaving: Lags = {}
    for operator in operators.values():
        name = operator.name
        is_feed = isinstance(operator, PartitionBy)
        if is_feed and cut.stage_of[name] == index:
            leaving[name] = 0
        if is_feed and cut.stage_of[operator.inputs[0]] == index:
            reaching[name] = leaving[operator.inputs[0]]
        elif not is_feed and cut.stage_of[name] == index:
            lag = max((leaving[before] for before in operator.inputs), default=0)
            reaching[name] = lag = max(lag, held.get(name, 0))
            leaving[name] = lag + _own_lag(operator)
    return reaching


def _held(operators: Mapping[str, Operator], reaching: Lags) -> Lags:
    """Return how far behind each ``in_order`` has to be for a class that it feeds.

    Rows of one stream must not come before those of another that are earlier but further behind.
    """
    wanted: Lags = {}
    for operator in reversed(list(operators.values())):
        name = operator.name
        if name not in reaching or isinstance(operator, PartitionBy):
            continue
        if isinstance(operator, ProcessSeveral):
            wanted[name] = max(reaching[name], wanted.get(name, 0))
        if name in wanted and not _own_lag(operator):
            for before in operator.inputs:
                wanted[before] = max(wanted[name], wanted.get(before, 0))
    return {
        name: lag
        for name, lag in wanted.items()
        if isinstance(operators[name], InOrder) and lag > 0
    }


def _own_lag(operator: Operator) -> int:
    """How much further than what reaches an operator what leaves it may be behind, ms."""
    if isinstance(operator, JoinStreams):
        return operator.reach.lag_ms(operator.alone)
    return operator.window.grace_ms if isinstance(operator, WindowAggregate) else 0
