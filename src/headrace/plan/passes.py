"""Passes over a graph on the way to a plan, each a function of operators and what is known.

``cut``: into stages, by level. ``wanted_tasks``: of new jobs. ``prune``: the columns that later
operators use. ``lags``: how far the watermark of what reaches an operator stays behind that of its
stage: what leaves a window with grace, or a join that sends rows alone, may be further behind than
what reached it. ``read_first``, ``timeless``: inputs that only fill tables. ``combining``: which
``partition_by`` may send partial results in the place of rows. ``with_threads``, ``check_calls``:
asynchronous calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.operator_base import Flow
from headrace.graph.operators import (
    THREAD,
    CallPolicy,
    InOrder,
    Input,
    JobGraph,
    KeepTable,
    Operator,
    PartitionBy,
    Port,
    Process,
    RunningAggregate,
    WindowAggregate,
)
from headrace.graph.processors import ProcessSeveral, contract_of
from headrace.graph.row_aggregates import Monoid
from headrace.graph.windows import GlobalWindow, Hopping, Tumbling, Window
from headrace.plan.dead_letters import letter_columns
from headrace.plan.parts import waiting_columns
from headrace.plan.stages import HIDDEN, Combined, Exchange


@dataclass(frozen=True)
class StageCut:
    """Which stage each operator is in; a ``partition_by`` counts to the stage it feeds."""

    stage_of: dict[str, int]
    levels: tuple[int, ...]


def cut_stages(
    operators: Mapping[str, Operator], report: Callable[[Operator, str], None]
) -> StageCut | None:
    """Return the stages, numbered by level and then by their first operator.

    All readers of one ``partition_by`` are in one stage, so its rows are written once. A
    graph in which a stage would feed itself is reported, and ``None`` returned.
    """
    parent = {name: name for name in operators}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]  # or 900 streams of a pattern would take long
            name = parent[name]
        return name

    for operator in operators.values():
        if not isinstance(operator, PartitionBy):
            for before in operator.inputs:
                parent[find(operator.name)] = find(before)
    edges: dict[str, set[str]] = {find(name): set() for name in operators}
    for operator in operators.values():
        if isinstance(operator, PartitionBy):
            edges[find(operator.name)].add(find(operator.inputs[0]))
    levels = _levels(edges)
    if levels is None:
        for operator in operators.values():
            if len(operator.inputs) > 1:
                report(
                    operator,
                    "joins rows from before and after a partition_by of the same stage, which "
                    "would have to wait for itself: put a partition_by of its own before each",
                )
                break
        return None
    first = {find(name): at for at, name in reversed(list(enumerate(operators)))}
    order = sorted(edges, key=lambda root: (levels[root], first[root]))
    number = {root: index for index, root in enumerate(order)}
    return StageCut(
        {name: number[find(name)] for name in operators}, tuple(levels[root] for root in order)
    )


def _levels(edges: dict[str, set[str]]) -> dict[str, int] | None:
    """Longest way from a stage without senders, or ``None`` where there is a ring."""
    levels: dict[str, int] = {}
    while len(levels) < len(edges):
        ready = [
            root for root, senders in edges.items() if root not in levels and senders <= set(levels)
        ]
        if not ready:
            return None
        for root in ready:
            levels[root] = max((levels[sender] + 1 for sender in edges[root]), default=0)
    return levels


def wanted_tasks(
    operators: Mapping[str, Operator],
    cut: StageCut,
    key_groups: int,
    report: Callable[[Operator, str], None],
) -> dict[int, int]:
    """Return the tasks of the stages whose ``partition_by`` asks for a number, by their index.

    Args:
        operators: of the graph.
        cut: says which stage a ``partition_by`` feeds.
        key_groups: of the job; a task needs one.
        report: takes mistakes.
    """
    asked: dict[int, PartitionBy] = {}
    for operator in operators.values():
        if not isinstance(operator, PartitionBy) or operator.tasks is None:
            continue
        if operator.tasks > key_groups:
            report(
                operator,
                f"tasks={operator.tasks}, but the job has {key_groups} key groups, and a task "
                "needs one: take fewer tasks, or a new job with more job.key_groups",
            )
        other = asked.setdefault(cut.stage_of[operator.name], operator)
        if other.tasks != operator.tasks:
            report(
                operator,
                f"tasks={operator.tasks}, but {other.name!r} feeds the same stage and asks for "
                f"{other.tasks}: give both the same, or leave one out",
            )
    return {index: operator.tasks for index, operator in asked.items() if operator.tasks}


WatermarkLags = dict[str, int]


def watermark_lags(operators: Mapping[str, Operator], cut: StageCut, index: int) -> WatermarkLags:
    """Return the lag of what reaches each operator of a stage, and each ``partition_by`` it feeds.

    Args:
        operators: of the graph, in its order.
        cut: says which stage each is in.
        index: of the stage.
    """
    held: WatermarkLags = {}
    while True:
        reaching = _reaching(operators, cut, index, held)
        wanted = _held(operators, reaching)
        if wanted == held:
            return reaching
        held = wanted


def _reaching(
    operators: Mapping[str, Operator], cut: StageCut, index: int, held: WatermarkLags
) -> WatermarkLags:
    reaching: WatermarkLags = {}
    leaving: WatermarkLags = {}
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
            leaving[name] = lag + operator.lag_ms
    return reaching


def _held(operators: Mapping[str, Operator], reaching: WatermarkLags) -> WatermarkLags:
    """Return how far behind each ``in_order`` has to be for a class that it feeds.

    Rows of one stream must not come before those of another that are earlier but further behind.
    """
    wanted: WatermarkLags = {}
    for operator in reversed(list(operators.values())):
        name = operator.name
        if name not in reaching or isinstance(operator, PartitionBy):
            continue
        if isinstance(operator, ProcessSeveral):
            wanted[name] = max(reaching[name], wanted.get(name, 0))
        if name in wanted and not operator.lag_ms:
            for before in operator.inputs:
                wanted[before] = max(wanted[name], wanted.get(before, 0))
    return {
        name: lag
        for name, lag in wanted.items()
        if isinstance(operators[name], InOrder) and lag > 0
    }


def with_combiner(exchange: Exchange, operators: Mapping[str, Operator]) -> Exchange:
    """Return an exchange that may send partial results, where that changes no result.

    Args:
        exchange: through files.
        operators: of the job, bound.
    """
    readers = _readers(operators, exchange.operator)
    reader = readers[0] if len(readers) == 1 else None
    if not isinstance(reader, RunningAggregate | WindowAggregate):
        return exchange
    if isinstance(reader, RunningAggregate):
        if reader.every_ms is None and _readers(operators, reader.name):
            return exchange  # the totals after each message
    elif not _is_plain(reader.window):
        return exchange
    if not all(_is_cheap(aggregate) for _, aggregate in reader.aggregates):
        return exchange
    hidden = [field for field in exchange.schema if field.name in HIDDEN]
    users = pa.schema([field for field in exchange.schema if field.name not in HIDDEN])
    partials = [
        pa.field(f"{name}.{part}", kind)
        for name, aggregate in reader.aggregates
        for part, kind in aggregate.partial_types(users).items()
    ]
    if {field.name for field in partials} & set(users.names):
        return exchange  # readers could not distinguish them from rows
    keys = [users.field(key) for key in exchange.keys]
    schema = pa.schema([*keys, *partials, *hidden])
    return replace(exchange, combined=Combined(reader, schema))


def _readers(operators: Mapping[str, Operator], name: str) -> list[Operator]:
    return [operator for operator in operators.values() if name in operator.inputs]


def _is_plain(window: Window) -> bool:
    """Say whether rows count in it by key and a span of event time alone, or are dropped."""
    match window:
        case Tumbling():
            return window == Tumbling(window.size_ms, grace_ms=window.grace_ms)
        case Hopping():
            return window == Hopping(window.size_ms, window.every_ms, grace_ms=window.grace_ms)
    return window == GlobalWindow()


def _is_cheap(aggregate: Aggregate) -> bool:
    """Say whether two partial results combine at about the cost of taking a row in.

    A sketch takes rows in by the thousand, but combines one by one.
    """
    return isinstance(aggregate, Monoid) or aggregate.combine_pair("<", "") is not None


def bootstrap_inputs(operators: Mapping[str, Operator]) -> set[str]:
    """Return the inputs that are read to their end before others: what tables are made of.

    Those that say so themselves are, or are not, whatever they feed.
    """
    above: set[str] = set()
    for operator in reversed(list(operators.values())):
        if isinstance(operator, KeepTable) or operator.name in above:
            above.update(operator.inputs)
    inputs = [operator for operator in operators.values() if isinstance(operator, Input)]
    return {
        operator.name
        for operator in inputs
        if operator.bootstrap or (operator.bootstrap is None and operator.name in above)
    }


def untimed_exchanges(operators: Mapping[str, Operator], asking: Collection[str]) -> set[str]:
    """Return the ``partition_by`` operators whose rows end in tables that nobody asks the time of.

    Such rows carry no event times, and hold no watermark back.

    Args:
        operators: in graph order.
        asking: those that need event time themselves.
    """
    readers: dict[str, list[Operator]] = {name: [] for name in operators}
    for operator in operators.values():
        for before in operator.inputs:
            readers[before].append(operator)
    asks: dict[str, bool] = {}
    tables: dict[str, bool] = {}
    for operator in reversed(list(operators.values())):
        name = operator.name
        tables[name] = isinstance(operator, KeepTable) or any(
            tables[reader.name] and not isinstance(reader, PartitionBy) for reader in readers[name]
        )
        asks[name] = name in asking or any(
            one.asks_time(name, asks.get(one.name, False)) for one in readers[name]
        )
    repartitions = [o.name for o in operators.values() if isinstance(o, PartitionBy)]
    return {name for name in repartitions if tables[name] and not asks[name]}


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
                operator = replace(operator, calls=CallPolicy(THREAD, threads=threads))  # noqa: PLW2901
        elif follows and not isinstance(operator, PartitionBy):
            plain.add(operator.name)
        made.append(operator)
    return replace(graph, operators=tuple(made))


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


def prune(
    operators: dict[str, Operator], flows: dict[str, Flow]
) -> tuple[dict[str, Operator], dict[str, pa.Schema]]:
    """Return the operators without unused expressions, and the columns that leave each.

    Args:
        operators: in graph order, bound.
        flows: all columns that leave each.
    """
    needed: dict[str, set[str]] = {name: set() for name in operators}
    for kept in (waiting_columns(operators, flows), letter_columns(operators, flows)):
        for name, columns in kept.items():
            needed[name] |= columns
    pruned = dict(operators)
    for name in reversed(operators):
        wanted = needed[name] or set(flows[name].schema.names[:1])
        needed[name] = wanted
        operator = pruned[name] = operators[name].pruned(flows, wanted)
        for before in operator.inputs:
            source = (
                operators[before].port_rows(operator.port) if isinstance(operator, Port) else None
            )
            if source is not None:  # late records, as they came
                needed[source] |= wanted
                continue
            needed[before] |= operator.reads(before, flows, wanted)
    schemas = {}
    for name, flow in flows.items():
        keep = set(flow.schema.names) if operators[name].keeps_columns else needed[name]
        schemas[name] = pa.schema([column for column in flow.schema if column.name in keep])
    return pruned, schemas
