"""Asynchronous calls in a plan: which processors run in threads, and where calls cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.graph.calls import IN, KEY, OUT, THREAD, Calls
from headrace.graph.durations import duration_text
from headrace.graph.operators import JobGraph, Operator, PartitionBy, Process
from headrace.graph.processors import contract_of


def with_threads(graph: JobGraph, threads: int) -> JobGraph:
    """Return a graph whose plain processors run in a pool of threads.

    Those with remote stores or of several streams stay as they are, those made of
    ``hr.StatelessProcessor`` and its like, and those that follow one of these within its stage.

    Args:
        graph: as it was written.
        threads: of the pool; 0: nothing changes.
    """
    if not threads:
        return graph
    plain: set[str] = set()
    made: list[Operator] = []
    for operator in graph.operators:
        follows = not plain.isdisjoint(operator.inputs)
        if isinstance(operator, Process) and operator.calls is None:
            if follows or not _may_run_in_threads(operator):
                plain.add(operator.name)
            else:
                operator = replace(operator, calls=Calls(THREAD, threads=threads))  # noqa: PLW2901
        elif follows and not isinstance(operator, PartitionBy):
            plain.add(operator.name)
        made.append(operator)
    return replace(graph, operators=tuple(made))


def calls_text(calls: Calls) -> str:
    """Return how calls are made, in words."""
    how = f"in {calls.threads} threads" if calls.style == THREAD else f"by {calls.style}"
    most = "as many open as the settings say" if calls.most is None else f"up to {calls.most} open"
    orders = {
        IN: "take effect in the order of messages",
        OUT: "take effect as they end",
        KEY: "one after the other for each key",
    }
    timeout = ""
    if calls.timeout_ms is not None:
        timeout = f", timeout {duration_text(calls.timeout_ms)}"
    return f"calls {how}, {most} in a task, {orders[calls.order]}{timeout}"


def _may_run_in_threads(operator: Process) -> bool:
    is_remote = any(spec.kind == "remote" for spec in operator.stores)
    return type(operator) is Process and not is_remote and contract_of(operator.factory) is None


def check_calls(operators: Mapping[str, Operator], report: Callable[[Operator, str], None]) -> None:
    """Refuse calls behind a plain processor in a stage that reads by offset.

    What leads up to such calls is run once more, which a class with a state of its own would see.
    """
    plain: dict[str, str] = {}
    keyed: set[str] = set()
    for operator in operators.values():
        if isinstance(operator, PartitionBy) or not keyed.isdisjoint(operator.inputs):
            keyed.add(operator.name)
            continue
        before = next((plain[name] for name in operator.inputs if name in plain), None)
        if isinstance(operator, Process) and operator.calls is None:
            before = operator.name
        elif isinstance(operator, Process) and before is not None:
            report(
                operator,
                f"an asynchronous process cannot follow the plain process {before!r} in a stage "
                "without a key: put partition_by between",
            )
        if before is not None:
            plain[operator.name] = before
