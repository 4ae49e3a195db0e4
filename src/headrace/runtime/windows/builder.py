"""Builds the nodes of ``aggregate`` and ``window``: which parts each window is composed of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import InternalError
from headrace.graph.operators import COLUMNAR, WindowAggregate
from headrace.graph.windows import (
    CountWindow,
    GlobalWindow,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    Window,
)
from headrace.runtime.node import Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.windows.aggregation import Aggregation
from headrace.runtime.windows.assigners import (
    Assigner,
    CountAssigner,
    GlobalAssigner,
    HoppingAssigner,
    SessionAssigner,
    SlidingAssigner,
    SteppedAssigner,
    TriggeredAssigner,
    TumblingAssigner,
)
from headrace.runtime.windows.bucket_state import BucketState
from headrace.runtime.windows.count_state import CountState, WholeState
from headrace.runtime.windows.layouts import (
    Aggregating,
    Clusters,
    aggregation_of,
    clusters_of,
    has_buckets,
    key_schema,
    steps_of,
)
from headrace.runtime.windows.pane_state import PaneState
from headrace.runtime.windows.partial_table import ColumnarPartials, KeyValuePartials, PartialTable
from headrace.runtime.windows.triggered_state import SessionState, TriggeredState
from headrace.runtime.windows.triggers import Accumulation, Trigger
from headrace.runtime.windows.window_node import RunningNode, WindowNode, WindowParts, WindowState

Common = tuple[str, Aggregation, PartialTable[Any], pa.Schema, int]
"""Name, aggregation, table, schema of the results, and number of key groups of the job."""


def aggregate_node(operator: Aggregating, build: NodeContext) -> Node:
    """Return the node of an operator over the state of a task."""
    stage, state, key_groups = build.stage, build.stores, build.runtime.key_groups
    aggregation = aggregation_of(stage, operator)
    table: PartialTable[Any]
    if operator.store.kind == COLUMNAR:
        table = ColumnarPartials(state.table(operator.store.name), aggregation)
    else:
        table = KeyValuePartials(
            state.store(operator.store.name),
            aggregation,
            key_schema(stage, operator),
            build.groups,
            key_groups,
            buckets=has_buckets(operator),
        )
    common = (operator.name, aggregation, table, stage.schemas[operator.name], key_groups)
    delay_ms = stage.delays.get(operator.name, 0)
    if isinstance(operator, WindowAggregate):
        return window_node(operator.window, common, delay_ms, timed=stage.timed)
    if operator.every_ms is not None:
        return window_node(GlobalWindow(every_ms=operator.every_ms), common, delay_ms, timed=True)
    return RunningNode(*common)


def window_node(window: Window, common: Common, delay_ms: int, *, timed: bool) -> Node:
    """Return the node of a window.

    Args:
        window: of any kind.
        common: what all nodes of aggregates take first.
        delay_ms: how far its watermark lags the one that rows came with.
        timed: whether results need an event time.
    """
    state, assigner = _state_and_assigner(window)
    trigger = Trigger.of(window)
    clusters = None
    if state is TriggeredState:
        clusters = clusters_of(window)
    elif steps_of(window) is not None:
        clusters = Clusters()
    accumulation = Accumulation(window.updates)
    parts = WindowParts(assigner, trigger, accumulation, clusters, delay_ms, timed)
    return WindowNode(*common, parts=parts, state=state)


def _state_and_assigner(window: Window) -> tuple[type[WindowState], Assigner | CountAssigner]:
    grace_ms = window.grace_ms
    match window:
        case Tumbling(size_ms=size_ms) if window.is_triggered:
            return TriggeredState, TriggeredAssigner(size_ms, size_ms, grace_ms)
        case Tumbling(size_ms=size_ms, early_ms=int(step_ms)):
            is_delta = window.updates == "add"
            return PaneState, SteppedAssigner(size_ms, step_ms, grace_ms, is_delta=is_delta)
        case Tumbling(size_ms=size_ms):
            return BucketState, TumblingAssigner(size_ms, grace_ms)
        case Hopping(size_ms=size_ms, every_ms=every_ms) if window.is_triggered:
            return TriggeredState, TriggeredAssigner(size_ms, every_ms, grace_ms)
        case Hopping(size_ms=size_ms, every_ms=every_ms):
            return PaneState, HoppingAssigner(size_ms, every_ms, grace_ms)
        case Sliding(size_ms=size_ms):
            return PaneState, SlidingAssigner(size_ms, grace_ms)
        case Session(gap_ms=gap_ms):
            state = TriggeredState if window.is_triggered else SessionState
            return state, SessionAssigner(gap_ms, grace_ms)
        case CountWindow(rows=rows):
            return CountState, CountAssigner(rows)
        case GlobalWindow(every_ms=int(every_ms)):
            return BucketState, GlobalAssigner(every_ms)
        case GlobalWindow(idle_ms=int(idle_ms)):
            return SessionState, SessionAssigner(idle_ms, 0, is_global=True)
        case GlobalWindow():
            return WholeState if window.rows is None else CountState, CountAssigner(0)
    raise InternalError(f"window of unknown kind {type(window).__name__}")
