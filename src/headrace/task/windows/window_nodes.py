"""Builds the node of each kind of window."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import InternalError
from headrace.graph.windows import (
    CountWindow,
    GlobalWindow,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    Window,
)
from headrace.task.node import Node
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.clusters import clusters_of
from headrace.task.windows.count_steps import CountStepsNode
from headrace.task.windows.counting import CountNode, TotalNode, WholeNode
from headrace.task.windows.instants import Instants
from headrace.task.windows.pane_updates import UpdatingPaneNode
from headrace.task.windows.panes import PaneNode
from headrace.task.windows.partial_table import PartialTable
from headrace.task.windows.sessions import SessionNode
from headrace.task.windows.so_far import IdleNode, PeriodicTotalsNode
from headrace.task.windows.spans import Hops, Spans, Steps, Trail
from headrace.task.windows.totals import PeriodicNode, WindowNode
from headrace.task.windows.trigger_nodes import SessionTriggerNode, WindowTriggerNode
from headrace.task.windows.triggers import Terms
from headrace.task.windows.updates import RetractingNode, UpdatingNode

Common = tuple[str, Aggregation, PartialTable[Any], pa.Schema, int]
"""Name, aggregation, table, schema of the results, and number of key groups of the job."""


def window_node(window: Window, common: Common, delay_ms: int, *, timed: bool) -> Node:
    """Return the node of a window.

    Args:
        window: of any kind.
        common: what all nodes of aggregates take first.
        delay_ms: how far its watermark lags the one that rows came with.
        timed: whether results need an event time.
    """
    grace_ms = window.grace_ms
    if window.is_triggered and window.is_timed:
        return _trigger_node(window, common, delay_ms)
    match window:
        case Tumbling() if window.early_ms is not None:
            adds_up = window.updates == "add"
            steps = Steps(window.size_ms, window.early_ms, grace_ms, adds_up=adds_up)
            return PaneNode(*common, spans=steps, delay_ms=delay_ms, retracts=bool(window.flags))
        case Tumbling():
            node = WindowNode
            if window.is_updated:
                node = RetractingNode if window.flags else UpdatingNode
            size_ms = window.size_ms
            return node(*common, size_ms=size_ms, grace_ms=grace_ms, delay_ms=delay_ms)
        case Hopping() | Sliding():
            return _pane_node(window, common, delay_ms)
        case Session():
            gap_ms = window.gap_ms
            return SessionNode(*common, gap_ms=gap_ms, grace_ms=grace_ms, delay_ms=delay_ms)
        case CountWindow():
            return _counting_node(window, common, timed=timed)
        case GlobalWindow():
            return _global_node(window, common, delay_ms, timed=timed)
    raise InternalError(f"window of unknown kind {type(window).__name__}")


def _counting_node(window: CountWindow, common: Common, *, timed: bool) -> Node:
    if window.early_rows is None:
        return CountNode(*common, timed=timed, rows=window.rows)
    step, updates = window.early_rows, window.updates
    return CountStepsNode(*common, timed=timed, rows=window.rows, step=step, updates=updates)


def _global_node(window: GlobalWindow, common: Common, delay_ms: int, *, timed: bool) -> Node:
    updates = window.updates
    more: dict[str, Any] = {"grace_ms": 0, "delay_ms": delay_ms, "updates": updates}
    match window:
        case GlobalWindow(every_ms=int(every_ms)) if updates == "replace":
            return PeriodicNode(*common, size_ms=every_ms, grace_ms=0, delay_ms=delay_ms)
        case GlobalWindow(every_ms=int(every_ms)):
            return PeriodicTotalsNode(*common, size_ms=every_ms, **more)
        case GlobalWindow(idle_ms=int(gap_ms)):
            return IdleNode(*common, gap_ms=gap_ms, **more)
        case GlobalWindow(rows=int(rows)) if updates == "replace":
            return TotalNode(*common, timed=timed, rows=rows)
        case GlobalWindow(rows=int(rows)):
            return CountStepsNode(*common, timed=timed, rows=None, step=rows, updates=updates)
    return WholeNode(*common, timed=timed)


def _pane_node(window: Hopping | Sliding, common: Common, delay_ms: int) -> Node:
    def spans(grace_ms: int) -> Spans:
        if isinstance(window, Sliding):
            return Trail(window.size_ms, grace_ms)
        return Hops(window.size_ms, window.every_ms, grace_ms)

    own = spans(window.grace_ms)
    if not window.is_updated:
        return PaneNode(*common, spans=own, delay_ms=delay_ms)
    retracts = bool(window.flags)
    both = (own, spans(0))
    return UpdatingPaneNode(*common, spans=both, delay_ms=delay_ms, retracts=retracts)


def _trigger_node(window: Window, common: Common, delay_ms: int) -> Node:
    waits_ms = 0 if window.is_updated else window.grace_ms
    idle_ms, rows = window.early_idle_ms or 0, window.early_rows or 0
    instants = Instants(window.early_ms or 0, rows, idle_ms)
    more: dict[str, Any] = {
        "terms": Terms(instants, window.updates, waits_ms, window.grace_ms, delay_ms),
        "clusters": clusters_of(window),
    }
    match window:
        case Session():
            return SessionTriggerNode(*common, gap_ms=window.gap_ms, **more)
        case Tumbling(size_ms=size_ms):
            return WindowTriggerNode(*common, hops=Hops(size_ms, size_ms, window.grace_ms), **more)
        case Hopping():
            hops = Hops(window.size_ms, window.every_ms, window.grace_ms)
            return WindowTriggerNode(*common, hops=hops, **more)
    raise InternalError(f"window {type(window).__name__} has no triggers")
