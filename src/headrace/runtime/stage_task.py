"""One task of one stage: the graph of nodes, fed and advanced once an epoch.

``AsyncWatermarkHold`` is the watermark behind asynchronous calls: no message that waits may become
late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from headrace.errors import InternalError
from headrace.graph.operators import FAIL, Input, Operator, Port, Process, StoreSpec
from headrace.plan.stages import Exchange, Stage
from headrace.records.schema import TableLayout
from headrace.runtime.async_process import AsyncNode, SourceCallNode
from headrace.runtime.chunk import Chunk
from headrace.runtime.context import REMOTE
from headrace.runtime.dead_letters import make_dead_letters, make_guard
from headrace.runtime.exchange import ExchangeNode, HotKeySketch
from headrace.runtime.internal_stream import make_sender
from headrace.runtime.node import Guard, Node
from headrace.runtime.node_factory import NodeContext, layouts_of, make_node
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, HotKeys
from headrace.runtime.outputs import OutputNode, SinkNode
from headrace.state.remote_store import Stamp


class AsyncWatermarkHold:
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
        self.behind = _behind(stage, names)
        """The calls, and the operators that follow them."""
        for node in self.calling:
            node.is_chained = len(_behind(stage, {node.name}) & names) > 1
        self.before = NO_WATERMARK
        self.reached: int | None = None
        self._bound: int | None = None

    def begin(self, before: int) -> None:
        """Turn to an epoch: ``before`` is where the one before brought what follows the calls."""
        self.before, self.reached, self._bound = before, None, None

    def passed(self, node: Node, watermark: int) -> int:
        """Return the stage's watermark as it is for a node; asked in the order of the graph."""
        if isinstance(node, AsyncNode) and (mark := node.mark()) is not None:
            if mark > NO_WATERMARK:
                mark += self._delays.get(node.name, 0)
            self._bound = mark if self._bound is None else min(self._bound, mark)
            self.reached = max(self.before, min(watermark, self._bound))
        if self.reached is None or node.name not in self.behind:
            return watermark
        return self.reached

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(map(attrgetter("waiting"), self.calling))


def _behind(stage: Stage, calling: set[str]) -> set[str]:
    """Return calls, and the operators of a stage that follow them."""
    found = set(calling)
    if found:
        for operator in stage.operators:
            if not found.isdisjoint(operator.inputs):
                found.add(operator.name)
        found |= {sent.operator for sent in stage.sends if sent.upstream in found}
    return found


def stage_before_calls(stage: Stage) -> Stage | None:
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


def store_specs(stage: Stage) -> list[StoreSpec]:
    """Return every store that a task of the stage has: timers' too, and tables with layouts."""
    if "store_specs" not in stage.derived:
        stage.derived["store_specs"] = tuple(_store_specs(stage))
    return list(stage.derived["store_specs"])


def _store_specs(stage: Stage) -> list[StoreSpec]:
    layouts: dict[str, TableLayout] = {}
    for operator in stage.operators:
        layouts |= layouts_of(stage, operator)
    local = [spec for spec in stage.stores if spec.kind != REMOTE]
    specs = [_with_layout(spec, layouts.get(spec.name)) for spec in local]
    for operator in stage.operators:
        if isinstance(operator, Process) and stage.keyed:
            kind = next((spec.kind for spec in operator.stores if spec in local), "rocksdb")
            specs.append(StoreSpec(operator.timer_store, kind))
    return specs


def _with_layout(spec: StoreSpec, layout: TableLayout | None) -> StoreSpec:
    return spec if layout is None else replace(spec, layout=layout, ttl_ms=layout.ttl_ms)


class StageTask:
    """Runs the operators of a stage for one task; kept by a worker between epochs.

    Args:
        build: what its nodes are made of.
        is_ahead: it makes the calls of operators that follow in another one, ahead of that.
    """

    def __init__(self, build: NodeContext, *, is_ahead: bool = False) -> None:
        stage = self._stage = build.stage
        self.task, self._runtime = build.task, build.runtime
        self._state, self.remotes = build.state, build.remotes
        self._delays = {name: delay for name, delay in stage.delays.items() if delay}
        first = None if is_ahead else stage_before_calls(stage)
        self.asking: StageTask | None = None
        if first is not None:
            self.asking = StageTask(replace(build, stage=first), is_ahead=True)
            nodes = self.asking.nodes.values()
            asks = {node.name: node for node in nodes if isinstance(node, SourceCallNode)}
            build = replace(build, asks=asks)
        self._letters = make_dead_letters(stage, build.task, build.runtime)
        self._watched: list[HotKeySketch] = []
        self.nodes: dict[str, Node] = {}
        self._input_counts: dict[str, Counter[str]] = {}
        self._entered: Counter[str] = Counter()
        self.input_guards: dict[str, Guard] = {}
        for operator in stage.operators:
            if not self._is_entry(operator):
                self.nodes[operator.name] = self._made(operator, build)
            elif operator.on_error != FAIL:
                counts = self._input_counts[operator.name] = Counter()
                guard = make_guard(operator, counts, stage, self._letters)
                self.input_guards[operator.name] = guard
        for exchange in stage.sends:
            self.nodes[exchange.operator] = self._sender(exchange)
        self._entries = self._connect()
        self.holds = AsyncWatermarkHold(self.nodes, stage)
        every = list(self.nodes.values())
        self.asks = [node for node in every if isinstance(node, SourceCallNode)]
        """What makes calls ahead of another task's reading."""
        self.exchanges = [node for node in every if isinstance(node, ExchangeNode)]
        self.outputs = [node for node in every if isinstance(node, OutputNode)]
        self.outputs += self._letters
        self.sinks = [node for node in every if isinstance(node, SinkNode)]

    def _sender(self, exchange: Exchange) -> Node:
        hot = None
        if self._runtime.hot_keys and exchange.keys:
            hot = HotKeySketch(exchange.operator, exchange.keys)
            self._watched.append(hot)
        return make_sender(exchange, self._runtime.key_groups, self.task, hot)

    def _is_entry(self, operator: Operator) -> bool:
        received = {exchange.operator for exchange in self._stage.receives}
        return isinstance(operator, Input) or operator.name in received

    def _connect(self) -> dict[str, list[Node]]:
        """Link nodes to their targets; return those that follow each entry."""
        entries: dict[str, list[Node]] = {}
        for binding in self._stage.inputs:
            entries[binding.operator] = []
        for exchange in self._stage.receives:
            entries[exchange.operator] = []
        known = {operator.name: operator for operator in self._stage.operators}
        sends = {exchange.operator: exchange for exchange in self._stage.sends}
        for name, node in self.nodes.items():
            inputs = (sends[name].upstream,) if name in sends else known[name].inputs
            operator = known.get(name)
            for before in inputs:
                if isinstance(operator, Port):
                    self.nodes[before].sides.setdefault(operator.port, []).append(node)
                    continue
                targets = entries[before] if before in entries else self.nodes[before].targets
                targets.append(node.inlet(before))
        return entries

    def _made(self, operator: Operator, build: NodeContext) -> Node:
        node = make_node(operator, build)
        if operator.on_error != FAIL:
            node.guard = make_guard(operator, node.counts, self._stage, self._letters)
        return node

    def begin(
        self,
        epoch: int,
        wall_ms: int,
        watermark: int = NO_WATERMARK,
        held: int | None = None,
        stamp: Stamp | None = None,
    ) -> None:
        """Turn to an epoch.

        Args:
            epoch: its number.
            wall_ms: its wall clock, the same when Spark runs the slot again.
            watermark: of the stage, at the end of the last epoch.
            held: that behind its asynchronous calls, where these held it back.
            stamp: for which driver, for remote stores.
        """
        if self.asking is not None:
            self.asking.begin(epoch, wall_ms, watermark, stamp=stamp)
        self.holds.begin(watermark if held is None else held)
        if self.remotes.opened:
            self.remotes.begin(stamp)
        for counts in self._input_counts.values():
            counts.clear()
        self._entered.clear()
        for letters in self._letters:
            letters.begin(epoch, wall_ms, watermark)
        for name, node in self.nodes.items():
            node.counts.clear()
            node.received = node.sent = 0
            mark = self.holds.before if name in self.holds.behind else watermark
            node.begin(epoch, wall_ms, mark - self._delays.get(name, 0))

    @property
    def has_timers(self) -> bool:
        """Say whether a processor of it may have timers."""
        return any(node.has_timers for node in self.nodes.values())

    def expect(self, watermark: int) -> None:
        """Say, before the epoch's rows, where it will bring the stage's watermark at least."""
        for name, node in self.nodes.items():
            mark = self.holds.before if name in self.holds.behind else watermark
            node.expect(self._behind(name, mark) if self._delays else mark)

    def _behind(self, name: str, watermark: int) -> int:
        """The watermark of what reaches an operator."""
        ended = watermark >= END_WATERMARK
        return watermark if ended else watermark - self._delays.get(name, 0)

    def push(self, entry: str, chunk: Chunk) -> None:
        """Feed rows that an input or a ``partition_by`` brings."""
        if chunk.rows:
            self._entered[entry] += chunk.rows
            for node in self._entries[entry]:
                node.received += chunk.rows
                node.push(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """End the epoch's rows, where nothing is to be waited for."""
        for _ in self.ends(watermark, wall_ms):
            raise InternalError("calls are open that only a slot waits for")

    def ends(self, watermark: int, wall_ms: int) -> Iterator[AsyncNode]:
        """End the epoch's rows: windows close, timers fire, in the order of the graph.

        What reaches an operator through windows with grace lags, and so does its watermark.
        Yields what got rows meanwhile that are to be called, and at the end of the inputs what
        has calls to wait for until they have ended.
        """
        for name, node in self.nodes.items():
            mark = watermark
            if self.holds.calling:
                if isinstance(node, AsyncNode):
                    yield from self._calls_of(node, ended=watermark >= END_WATERMARK)
                mark = self.holds.passed(node, watermark)
            node.advance(self._behind(name, mark) if self._delays else mark, wall_ms)

    def _calls_of(self, node: AsyncNode, *, ended: bool) -> Iterator[AsyncNode]:
        """Yield a node that has calls to wait for before it ends the epoch."""
        if ended:
            while node.is_busy:
                node.calls.rules.resume()  # timers come last
                yield node
        elif node.is_fresh:
            node.is_fresh = False
            yield node

    def hot_keys(self, now: float) -> list[HotKeys]:
        """Return the heaviest keys of what it sends, where there is news of them.

        Args:
            now: of a monotonic clock, s.
        """
        found = []
        for hot in self._watched:
            keys = hot.report(now)
            if keys is not None:
                found.append(keys)
        return found

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the earliest watermark and wall clock at which something is due."""
        delays = self._delays
        events, walls = [], []
        for name, node in self.nodes.items():
            event, wall = node.deadlines()
            events += [] if event is None else [event + delays.get(name, 0)]
            walls += [] if wall is None else [wall]
        return min(events, default=None), min(walls, default=None)

    def counts(self) -> dict[str, int]:
        """Return what the nodes counted in this epoch."""
        total: Counter[str] = Counter()
        for counts in self._input_counts.values():
            total.update(counts)
        for node in self.nodes.values():
            total.update(node.counts)
        if self._state is not None:
            total.update(self._state.counts())
        if self.remotes.opened:
            total.update(self.remotes.counts())
        return {name: count for name, count in total.items() if count}

    def operator_counts(self) -> dict[str, dict[str, int]]:
        """Return the rows that each operator received and sent in this epoch, and what it counted.

        What an input or a ``partition_by`` brought counts as sent by it.
        """
        found: dict[str, dict[str, int]] = {}
        for entry, counts in self._input_counts.items():
            if counts:
                found[entry] = dict(counts)
        for entry, rows in self._entered.items():
            found.setdefault(entry, {})["sent"] = rows
        for name, node in self.nodes.items():
            if not isinstance(node, ExchangeNode):
                own = {"received": node.received, "sent": node.sent, **node.counts}
                if any(own.values()):
                    found[name] = {what: count for what, count in own.items() if count}
        return found

    def close(self) -> None:
        """Close the user's processors and connections."""
        for node in self.nodes.values():
            node.close()
        if self.asking is not None:
            self.asking.close()
        self.abandon_calls()

    def abandon_calls(self) -> None:
        """Let connections go, as the end of the process would; the user is not notified."""
        self.remotes.close()
