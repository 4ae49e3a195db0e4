"""Makes the nodes of ``process``: called one message after the other, or without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidInputError
from headrace.graph.introspection import function_site
from headrace.graph.operators import FAIL, Process
from headrace.graph.processors import KeyedBatchProcessor, ProcessSeveral, class_of
from headrace.runtime.async_process import (
    AsyncNode,
    PendingRows,
    SourceCallNode,
    SourceResultNode,
    has_pending,
)
from headrace.runtime.chunk import OriginIds
from headrace.runtime.context import REMOTE, CallRollback, ProcessorCall
from headrace.runtime.keyed_batches import KeyedBatchNode
from headrace.runtime.multi_input import MultiInput, MultiInputNode
from headrace.runtime.node import Node
from headrace.runtime.node_factory import NodeContext
from headrace.runtime.process import ProcessNode
from headrace.runtime.processors import runner_of
from headrace.runtime.timers import Timers
from headrace.runtime.user_calls import SideOutputRouter
from headrace.state.broadcast import BroadcastStore
from headrace.state.object_store import ObjectStore
from headrace.state.remote_store import RemoteStore


def process_node(operator: Process, build: NodeContext) -> Node:
    """Return the node of ``process``, by how its class is called."""
    source = build.source_schema(operator)
    whole = build.stage.keys_of(operator)
    keys = [key for key in whole if key in source.names]
    assert operator.factory is not None
    if operator.name in build.asks:
        asks = build.asks[operator.name]
        assert isinstance(asks, SourceCallNode)
        return SourceResultNode(asks, _router_of(operator))
    current = _call_for(operator, build, has_key=len(keys) == len(whole))
    factory = runner_of(operator.factory)
    named = {"source": source, "uses": operator.uses, "keys": keys, "takes": operator.takes}
    if operator.calls is not None:
        return _calling_node(operator, build, current, named)
    state = build.state
    if state is not None and has_pending(state.store(operator.timer_store), build.groups):
        raise InvalidInputError(
            f"messages wait for asynchronous calls of operator {operator.name!r}, which is called "
            "one message after the other now: run it as it was until none waits, or start over: "
            f"headrace jobs reset {build.runtime.job}",
            operator=operator.name,
        )
    made = class_of(operator.factory)
    is_batched = made is not None and issubclass(made, KeyedBatchProcessor)
    return (KeyedBatchNode if is_batched else ProcessNode)(operator.name, factory, current, **named)


def _calling_node(
    operator: Process, build: NodeContext, current: ProcessorCall, named: Mapping[str, Any]
) -> AsyncNode | SourceCallNode:
    runtime = build.runtime
    assert operator.factory is not None
    factory = runner_of(operator.factory)
    calling: dict[str, Any] = {
        "spec": operator.calls,
        "loop": runtime.loop,
        "owner": (runtime.job, build.stage.name, build.task, operator.name),
    }
    if build.state is None:
        return SourceCallNode(operator.name, factory, current, **calling, **named)
    store, origin = build.state.store(operator.timer_store), OriginIds(build.stage.origins)
    pending = PendingRows(store, build.groups, origin)
    return AsyncNode(operator.name, factory, current, pending=pending, **calling, **named)


def multi_input_node(operator: ProcessSeveral, build: NodeContext) -> Node:
    """Return the node of ``process`` of several streams."""
    assert operator.factory is not None
    kinds = [
        MultiInput(upstream, source, build.stage.schemas[upstream])
        for upstream, source in zip(operator.inputs, operator.sources, strict=True)
    ]
    current = _call_for(operator, build, has_key=True)
    return MultiInputNode(operator.name, operator.factory, current, kinds)


def _call_for(operator: Process, build: NodeContext, *, has_key: bool) -> ProcessorCall:
    """Open what is at hand for a processor."""
    stores: dict[str, ObjectStore | RemoteStore] = {
        spec.name: build.remotes.open(spec) for spec in operator.stores if spec.kind == REMOTE
    }
    timers = None
    if build.state is not None:
        local = [spec.name for spec in operator.stores if spec.kind != REMOTE]
        stores.update({name: build.state.objects(name) for name in local})
        if has_key:
            timers = Timers(build.state.store(operator.timer_store), build.groups)
    tables = {
        spec.name: BroadcastStore(spec.name, build.tables[spec.name], spec.origin)
        for spec in operator.tables
    }
    own = _short_names(operator, stores)
    undo = None if operator.on_error == FAIL else CallRollback(own, timers)
    return ProcessorCall(
        build.task, own, timers, tables, build.runtime.limits, undo, _router_of(operator)
    )


def _router_of(operator: Process) -> SideOutputRouter:
    site = function_site(getattr(operator.factory, "process", None))
    return SideOutputRouter(operator.name, operator.returns, operator.sides, site)


def _short_names(
    operator: Process, stores: dict[str, ObjectStore | RemoteStore]
) -> dict[str, ObjectStore | RemoteStore]:
    """Stores by the name that the user declared, without the operator's."""
    return {name.removeprefix(f"{operator.name}."): store for name, store in stores.items()}
