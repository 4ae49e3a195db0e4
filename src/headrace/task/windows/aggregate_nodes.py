"""Builds the nodes of ``aggregate`` and ``window``, and says what their stores are made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.operators import COLUMNAR, Operator, RunningAggregate, WindowAggregate
from headrace.graph.windows import (
    CountWindow,
    GlobalWindow,
    Session,
    Window,
)
from headrace.plan.stages import TOGETHER, Stage
from headrace.records.layout import TableLayout
from headrace.state.task_state import TaskState
from headrace.task.node import Node
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.columnar_partials import ColumnarPartials, partial_layout
from headrace.task.windows.counting import COUNTING
from headrace.task.windows.instants import SEEN, seen_aggregates
from headrace.task.windows.partial_table import KeyValuePartials, PartialTable
from headrace.task.windows.sessions import session_aggregates
from headrace.task.windows.totals import PeriodicNode, RunningNode
from headrace.task.windows.window_nodes import window_node

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
        return window_node(operator.window, common, delay_ms, timed=stage.timed)
    if operator.every_ms is not None:
        return PeriodicNode(*common, size_ms=operator.every_ms, grace_ms=0, delay_ms=delay_ms)
    return RunningNode(*common)


def kept_aggregates(
    operator: Aggregating, source: pa.Schema
) -> tuple[tuple[tuple[str, Aggregate], ...], pa.Schema]:
    """Return all aggregates that the store of an operator keeps, and the columns they are of.

    Args:
        operator: with the user's aggregates.
        source: schema of the messages.
    """
    window = operator.window if isinstance(operator, WindowAggregate) else None
    if window is not None and window.is_triggered and window.is_timed:
        return _triggered_aggregates(operator, window, source)
    changes_totals = isinstance(window, GlobalWindow) and window.updates != "replace"
    is_periodic = changes_totals and getattr(window, "every_ms", None) is not None
    if isinstance(window, Session) or getattr(window, "idle_ms", None) is not None or is_periodic:
        own, whole = session_aggregates(source)
        return (*operator.aggregates, *own), whole
    if isinstance(window, CountWindow) or getattr(window, "rows", None) is not None:
        return (*operator.aggregates, *COUNTING), source
    return operator.aggregates, source


def _triggered_aggregates(
    operator: Aggregating, window: Window, source: pa.Schema
) -> tuple[tuple[tuple[str, Aggregate], ...], pa.Schema]:
    own, whole = session_aggregates(source)
    whole = whole.append(pa.field(SEEN, pa.int64()))
    kept = [*operator.aggregates, *(own if isinstance(window, Session) else ())]
    if window.early_rows is not None:
        kept += COUNTING
    if window.early_idle_ms is not None:
        kept += seen_aggregates(whole)
    return tuple(kept), whole


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
