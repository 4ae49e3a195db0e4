"""Builds the nodes of ``aggregate`` and ``window``, and says what their stores are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import InternalError
from headrace.graph.aggregates import Aggregate
from headrace.graph.operators import COLUMNAR, Operator, RunningAggregate, WindowAggregate
from headrace.graph.windows import (
    CountWindow,
    GlobalWindow,
    Hopping,
    Session,
    Sliding,
    Tumbling,
)
from headrace.plan.stages import TOGETHER, Stage
from headrace.records.layout import TableLayout
from headrace.state.task_state import TaskState
from headrace.task.node import Node
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.columnar_partials import ColumnarPartials, partial_layout
from headrace.task.windows.counting import COUNTING, CountNode, TotalNode, WholeNode
from headrace.task.windows.panes import PaneNode
from headrace.task.windows.partial_table import KeyValuePartials, PartialTable
from headrace.task.windows.sessions import IdleNode, SessionNode, session_aggregates
from headrace.task.windows.spans import Hops, Steps, Trail
from headrace.task.windows.totals import PeriodicNode, RunningNode, WindowNode
from headrace.task.windows.updates import RetractingNode, UpdatingNode

Aggregating = RunningAggregate | WindowAggregate


def table_layouts(stage: Stage) -> dict[str, TableLayout]:
    """Return the layout of each columnar store of a stage, by name."""
    return {
        operator.store.name: partial_layout(
            _aggregation(stage, operator),
            _key_schema(stage, operator),
            buckets=_has_buckets(operator),
            ttl_ms=operator.store.ttl_ms,
        )
        for operator in stage.operators
        if isinstance(operator, RunningAggregate | WindowAggregate)
        and operator.store.kind == COLUMNAR
    }


def aggregate_node(
    stage: Stage,
    operator: Aggregating,
    state: TaskState,
    groups: tuple[int, int],
    key_groups: int,
) -> Node:
    """Return the node of an operator over the state of a task.

    Args:
        stage: its stage.
        operator: to run.
        state: of the task.
        groups: key groups of the task.
        key_groups: of the job.
    """
    aggregation = _aggregation(stage, operator)
    table = _table(stage, operator, aggregation, state, groups, key_groups)
    schema = stage.schemas[operator.name]
    common = (operator.name, aggregation, table, schema, key_groups)
    delay_ms = stage.delays.get(operator.name, 0)
    if isinstance(operator, WindowAggregate):
        return _window_node(stage, operator, common, delay_ms)
    if operator.every_ms is not None:
        return PeriodicNode(*common, size_ms=operator.every_ms, grace_ms=0, delay_ms=delay_ms)
    return RunningNode(*common)


def _window_node(
    stage: Stage,
    operator: WindowAggregate,
    common: tuple[str, Aggregation, PartialTable[Any], pa.Schema, int],
    delay_ms: int,
) -> Node:
    window = operator.window
    grace_ms = window.grace_ms
    match window:
        case Tumbling() if window.early_ms is not None:
            adds_up = window.updates == "add"
            steps = Steps(window.size_ms, window.early_ms, grace_ms, adds_up=adds_up)
            return PaneNode(*common, spans=steps, delay_ms=delay_ms, retracts=bool(window.flags))
        case Tumbling():
            node = WindowNode
            if window.late == "update":
                node = RetractingNode if window.flags else UpdatingNode
            size_ms = window.size_ms
            return node(*common, size_ms=size_ms, grace_ms=grace_ms, delay_ms=delay_ms)
        case Hopping():
            hops = Hops(window.size_ms, window.every_ms, grace_ms)
            return PaneNode(*common, spans=hops, delay_ms=delay_ms)
        case Sliding():
            trail = Trail(window.size_ms, grace_ms)
            return PaneNode(*common, spans=trail, delay_ms=delay_ms)
        case Session():
            gap_ms = window.gap_ms
            return SessionNode(*common, gap_ms=gap_ms, grace_ms=grace_ms, delay_ms=delay_ms)
        case CountWindow():
            return CountNode(*common, timed=stage.timed, rows=window.rows)
        case GlobalWindow(every_ms=int(every_ms)):
            return PeriodicNode(*common, size_ms=every_ms, grace_ms=0, delay_ms=delay_ms)
        case GlobalWindow(idle_ms=int(gap_ms)):
            return IdleNode(*common, gap_ms=gap_ms, grace_ms=0, delay_ms=delay_ms)
        case GlobalWindow(rows=int(rows)):
            return TotalNode(*common, timed=stage.timed, rows=rows)
        case GlobalWindow():
            return WholeNode(*common, timed=stage.timed)
    raise InternalError(f"window of unknown kind {type(window).__name__}")


def kept_aggregates(
    operator: Aggregating, source: pa.Schema
) -> tuple[tuple[tuple[str, Aggregate], ...], pa.Schema]:
    """Return all aggregates that the store of an operator keeps, and the columns they are of.

    Args:
        operator: with the user's aggregates.
        source: schema of the messages.
    """
    window = operator.window if isinstance(operator, WindowAggregate) else None
    if isinstance(window, Session) or getattr(window, "idle_ms", None) is not None:
        own, whole = session_aggregates(source)
        return (*operator.aggregates, *own), whole
    if isinstance(window, CountWindow) or getattr(window, "rows", None) is not None:
        return (*operator.aggregates, *COUNTING), source
    return operator.aggregates, source


def _aggregation(stage: Stage, operator: Aggregating) -> Aggregation:
    return Aggregation(operator.name, *kept_aggregates(operator, stage.schemas[operator.inputs[0]]))


def _table(
    stage: Stage,
    operator: Aggregating,
    aggregation: Aggregation,
    state: TaskState,
    groups: tuple[int, int],
    key_groups: int,
) -> PartialTable[Any]:
    if operator.store.kind == COLUMNAR:
        return ColumnarPartials(state.table(operator.store.name), aggregation)
    return KeyValuePartials(
        state.store(operator.store.name),
        aggregation,
        _key_schema(stage, operator),
        groups,
        key_groups,
        buckets=_has_buckets(operator),
    )


def _key_schema(stage: Stage, operator: Operator) -> pa.Schema:
    source = stage.schemas[operator.inputs[0]]
    keys = stage.keys_of(operator)
    return pa.schema([source.field(key) for key in keys] or [(TOGETHER, pa.int64())])


def _has_buckets(operator: Aggregating) -> bool:
    return isinstance(operator, WindowAggregate) or operator.every_ms is not None
