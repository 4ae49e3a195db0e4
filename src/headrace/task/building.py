"""Makes the node of each operator of a stage, for one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.errors import InternalError, InvalidInputError
from headrace.graph.joins import JoinStreams
from headrace.graph.operators import (
    FAIL,
    Deduplicate,
    Explode,
    Filter,
    FilterMessages,
    FlatMapMessages,
    Generate,
    JoinTable,
    MapBatches,
    MapMessages,
    Merge,
    Operator,
    PartitionBy,
    Port,
    Process,
    RunningAggregate,
    Select,
    SendTo,
    SendToSink,
    Split,
    WindowAggregate,
)
from headrace.graph.ordering import InOrder
from headrace.graph.several import ProcessSeveral
from headrace.graph.sites import function_site
from headrace.graph.table_operators import Changes, JoinKept, JoinTables, KeepTable
from headrace.plan.stages import CallLimits, Stage
from headrace.state.broadcast import BroadcastStore, BroadcastTable
from headrace.state.objects import ObjectStore
from headrace.state.remote import RemoteStore
from headrace.state.task_state import TaskState
from headrace.task.asynchronous.loop import CallLoop
from headrace.task.asynchronous.node import AsyncNode
from headrace.task.asynchronous.pending import PendingRows, has_pending
from headrace.task.asynchronous.source import AnswerNode, AskNode
from headrace.task.daily import node_of as sink_node
from headrace.task.deduplicate import DeduplicateNode
from headrace.task.generate import GenerateNode
from headrace.task.in_order import InOrderNode
from headrace.task.join import JoinNode
from headrace.task.joins.node import JoinStreamsNode
from headrace.task.kept.nodes import kept_node
from headrace.task.messages.node import MessageNode
from headrace.task.messages.stateless import (
    ExplodeNode,
    FilterNode,
    ForwardNode,
    MapBatchesNode,
    SelectNode,
)
from headrace.task.node import Node
from headrace.task.origins import Origin
from headrace.task.outputs import OutputNode
from headrace.task.parcels import Parcels
from headrace.task.process import ProcessNode
from headrace.task.processors import runner_of
from headrace.task.remotes import REMOTE, RemoteStores
from headrace.task.several import Kind, SeveralNode
from headrace.task.split import SplitNode
from headrace.task.timers import Timers
from headrace.task.turn import Turn
from headrace.task.undo import Undo
from headrace.task.windows.aggregate_nodes import aggregate_node


@dataclass(frozen=True)
class Surroundings:
    """What is the same for all tasks of a job in a process.

    Args:
        job: its name.
        key_groups: of the job.
        limits: of calls of the user's functions.
        bus: where records are read again that become dead letters.
        loop: of the process, for asynchronous calls.
        hot_keys: whether heavy keys are looked for.
    """

    job: str
    key_groups: int
    limits: CallLimits
    bus: Bus
    loop: CallLoop
    hot_keys: bool = True


@dataclass(frozen=True)
class Build:
    """What nodes of a task are made of.

    Args:
        stage: the stage.
        task: number of the task.
        groups: its key groups, first and after last; unused for source tasks.
        around: what it has in common with the other tasks.
        state: its stores, caught up; ``None`` where the stage has none.
        remotes: opens its remote stores.
        tables: the broadcast stores of the process, at the epoch's offsets.
        keys: the columns that the stage is partitioned by.
        asks: in a stage that reads by offset, what makes its asynchronous calls; else empty.
    """

    stage: Stage
    task: int
    groups: tuple[int, int]
    around: Surroundings
    state: TaskState | None
    remotes: RemoteStores
    tables: Mapping[str, BroadcastTable]
    keys: tuple[str, ...]
    asks: Mapping[str, AskNode] = field(default_factory=dict)

    def source_schema(self, operator: Operator) -> pa.Schema:
        """Return the columns that reach an operator by its first input."""
        return self.stage.schemas[operator.inputs[0]]


def timer_store(operator: Process) -> str:
    """Return the name of the store that holds an operator's timers."""
    return f"{operator.name}.timers"


def made_node(operator: Operator, build: Build) -> Node:
    """Return the node of an operator that is no input and no ``partition_by``."""
    name, schemas, limits = operator.name, build.stage.schemas, build.around.limits
    match operator:
        case Explode():
            return ExplodeNode(name, operator.expressions, schemas[name])
        case Select():
            return SelectNode(name, operator.expressions, schemas[name])
        case Filter():
            assert operator.expression is not None
            return FilterNode(name, operator.expression)
        case Generate():
            delay_ms = build.stage.delays[name]
            return GenerateNode(operator, build.source_schema(operator), limits, delay_ms)
        case MapMessages() | FlatMapMessages() | FilterMessages():
            source = build.source_schema(operator)
            return MessageNode(operator, source=source, schema=schemas[name], limits=limits)
        case MapBatches():
            assert operator.function is not None
            schema = schemas[name]
            return MapBatchesNode(name, operator.function, schema, operator.uses, limits)
        case Split():
            return SplitNode(operator, build.source_schema(operator), limits)
        case Port() | Merge():
            return ForwardNode(name, schemas[name])
        case Deduplicate():
            assert build.state is not None
            table, delay_ms = build.state.table(operator.store.name), build.stage.delays[name]
            keys = build.stage.keys_of(operator)
            return DeduplicateNode(operator, table, keys, delay_ms)
        case InOrder():
            assert build.state is not None
            return InOrderNode(
                operator,
                build.state.table(operator.store.name),
                schemas[name],
                groups=build.around.key_groups,
                delay_ms=build.stage.delays[name],
                streams=build.stage.origins,
            )
        case SendTo():
            binding = next(o for o in build.stage.outputs if o.operator == name)
            return OutputNode(name, binding, build.task)
        case SendToSink():
            sink = next(s for s in build.stage.sinks if s.operator == name)
            return sink_node(name, sink, build.stage.delays.get(name, 0))
        case RunningAggregate() | WindowAggregate():
            assert build.state is not None
            return aggregate_node(
                build.stage, operator, build.state, build.groups, build.around.key_groups
            )
        case ProcessSeveral():
            return _several_node(operator, build)
        case Process():
            return _process_node(operator, build)
        case JoinTable():
            return _join_node(operator, build)
        case KeepTable() | Changes() | JoinKept() | JoinTables():
            return kept_node(operator, build.stage, build.state, build.around.key_groups)
        case JoinStreams():
            assert build.state is not None
            return JoinStreamsNode(operator, build.stage, build.state, build.around.key_groups)
        case PartitionBy():
            raise InternalError(f"partition_by {name!r} is no operator of its stage")
    raise InternalError(f"operator {name!r} of unknown kind {type(operator).__name__}")


def _join_node(operator: JoinTable, build: Build) -> Node:
    table = build.tables[operator.table.name]
    added = operator.columns or tuple((name, name) for name in table.schema.names)
    schema = build.stage.schemas[operator.name]
    before = build.source_schema(operator).names
    return JoinNode(
        operator.name,
        table,
        on=operator.on,
        columns={new: old for new, old in added if new not in before},
        schema=schema,
        keeps_all=operator.how == "left",
    )


def _process_node(operator: Process, build: Build) -> Node:
    source = build.source_schema(operator)
    whole = build.stage.keys_of(operator)
    keys = [key for key in whole if key in source.names]
    assert operator.factory is not None
    if operator.name in build.asks:
        return AnswerNode(build.asks[operator.name], _parcels(operator))
    turn = _turn(operator, build, has_key=len(keys) == len(whole))
    factory = runner_of(operator.factory)
    named = {"source": source, "uses": operator.uses, "keys": keys, "takes": operator.takes}
    if operator.calls is not None:
        return _calling_node(operator, build, turn, named)
    state = build.state
    if state is not None and has_pending(state.store(timer_store(operator)), build.groups):
        raise InvalidInputError(
            f"messages wait for asynchronous calls of operator {operator.name!r}, which is called "
            "one message after the other now: run it as it was until none waits, or begin anew: "
            f"headrace jobs reset {build.around.job}",
            operator=operator.name,
        )
    return ProcessNode(operator.name, factory, turn, **named)


def _calling_node(
    operator: Process, build: Build, turn: Turn, named: Mapping[str, Any]
) -> AsyncNode | AskNode:
    around = build.around
    assert operator.factory is not None
    factory = runner_of(operator.factory)
    calling: dict[str, Any] = {
        "spec": operator.calls,
        "loop": around.loop,
        "owner": (around.job, build.stage.name, build.task, operator.name),
    }
    if build.state is None:
        return AskNode(operator.name, factory, turn, **calling, **named)
    store, origin = build.state.store(timer_store(operator)), Origin(build.stage.origins)
    pending = PendingRows(store, build.groups, origin)
    return AsyncNode(operator.name, factory, turn, pending=pending, **calling, **named)


def _several_node(operator: ProcessSeveral, build: Build) -> Node:
    assert operator.factory is not None
    kinds = [
        Kind(upstream, source, build.stage.schemas[upstream])
        for upstream, source in zip(operator.inputs, operator.sources, strict=True)
    ]
    turn = _turn(operator, build, has_key=True)
    return SeveralNode(operator.name, operator.factory, turn, kinds)


def _turn(operator: Process, build: Build, *, has_key: bool) -> Turn:
    """Open what is at hand for a processor."""
    stores: dict[str, ObjectStore | RemoteStore] = {
        spec.name: build.remotes.open(spec) for spec in operator.stores if spec.kind == REMOTE
    }
    timers = None
    if build.state is not None:
        local = [spec.name for spec in operator.stores if spec.kind != REMOTE]
        stores.update({name: build.state.objects(name) for name in local})
        if has_key:
            timers = Timers(build.state.store(timer_store(operator)), build.groups)
    tables = {
        spec.name: BroadcastStore(spec.name, build.tables[spec.name], spec.origin)
        for spec in operator.tables
    }
    own = _short_names(operator, stores)
    undo = None if operator.on_error == FAIL else Undo(own, timers)
    return Turn(build.task, own, timers, tables, build.around.limits, undo, _parcels(operator))


def _parcels(operator: Process) -> Parcels:
    site = function_site(getattr(operator.factory, "process", None))
    return Parcels(operator.name, operator.returns, operator.sides, site)


def _short_names(
    operator: Process, stores: dict[str, ObjectStore | RemoteStore]
) -> dict[str, ObjectStore | RemoteStore]:
    """Stores by the name that the user declared, without the operator's."""
    return {name.removeprefix(f"{operator.name}."): store for name, store in stores.items()}
