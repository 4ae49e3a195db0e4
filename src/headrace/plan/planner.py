"""Makes a plan of a graph: columns, stages, levels, tasks, and every mistake at once.

**Why a watermark lags behind windows.** A stage's watermark W promises that no record it
still gets has an event time below W. A window ``[a, e)`` with grace G is sent on when W
reaches e + G, with event time e - 1 ms. When W has been handled, windows with e + G <= W
are out, so what comes later has e > W - G, an event time of at least W - G. So behind the
window W - G is a watermark, and no greater one is: its lag is the grace, not the size.

``aggregate(every=E)`` sends totals of instant e, with event time e - 1 ms, when W reaches e,
so by the same argument with G = 0 it adds nothing. A join of streams sends a pair, with the
later time of its rows, when the second one comes, and a row without a partner once W is past
its time plus the span in which one may come: that span is the lag. Other operators send on
what they get at once, with the event time it had, and timers fire at or after the watermark
before them.

Lags add up along a path. What reaches an operator over several paths is behind by the
greatest of their sums: the least watermark of all keeps every promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.errors import GraphError, InvalidInputError
from headrace.graph.operator_base import Flow, StreamInfo
from headrace.graph.operators import (
    Input,
    JobGraph,
    Operator,
    PartitionBy,
    SendTo,
    SendToSink,
)
from headrace.plan.compatibility import fingerprint
from headrace.plan.dead_letters import (
    ORIGINS,
    dead_bindings,
    dead_stream,
    traced_operators,
    with_dead_letters,
)
from headrace.plan.inference import Inference, TableFile
from headrace.plan.parts import check_parts, through_bus
from headrace.plan.passes import (
    StageCut,
    bootstrap_inputs,
    check_calls,
    cut_stages,
    prune,
    untimed_exchanges,
    wanted_tasks,
    watermark_lags,
    with_combiner,
    with_threads,
)
from headrace.plan.semantics import RequestedSemantics, with_semantics
from headrace.plan.stages import (
    TIME,
    WATERMARK,
    CallLimits,
    Exchange,
    InputBinding,
    JobPlan,
    OutputBinding,
    SinkBinding,
    Stage,
)

KEY_GROUPS = 512
_HIDDEN = [pa.field(TIME, pa.int64()), pa.field(WATERMARK, pa.int64())]


def plan(
    graph: JobGraph,
    streams: Mapping[str, StreamInfo],
    *,
    key_groups: int = KEY_GROUPS,
    tasks: int | None = None,
    files: Mapping[str, TableFile] | None = None,
    dead_letters: str | None = None,
    limits: CallLimits | None = None,
    semantics: RequestedSemantics | None = None,
) -> JobPlan:
    """Return the plan of a graph against the streams that exist.

    Args:
        graph: from ``Job.build``.
        streams: by name, at least the inputs, and the outputs that exist. An input with a
            schema of its own may be absent: it is planned with one partition.
        key_groups: of the job, fixed when it is created.
        tasks: of each keyed stage whose ``partition_by`` does not say; by default as many as the
            widest input has partitions.
        files: of broadcast stores, by the path that the user gave.
        dead_letters: stream of what operators refuse; by default that of the job.
        limits: of calls of the user's functions; by default none.
        semantics: of jobs and outputs that do not say so themselves; by default exactly once.

    Raises:
        GraphError: every mistake, each with its operator and the user's line.
        InvalidInputError: ``key_groups`` or ``tasks`` is out of range.
    """
    if not 1 <= key_groups <= 65_536:
        raise InvalidInputError(f"found {key_groups} key groups, expected 1 to 65536")
    if tasks is not None and not 1 <= tasks <= key_groups:
        raise InvalidInputError(f"found {tasks} tasks, expected 1 to {key_groups}, the key groups")
    graph = with_threads(graph, (limits or CallLimits()).threads)
    inference = Inference(graph, streams, files or {})
    inference.run()
    check_calls(inference.operators, inference.report)
    found = cut_stages(inference.operators, inference.report)
    counts: dict[int, int] = {}
    if found is not None:
        counts = wanted_tasks(inference.operators, found, key_groups, inference.report)
    if found is not None and not inference.mistakes:
        _check_times(inference, found)
    dead = dead_bindings(graph, dead_stream(graph.name, dead_letters), streams, inference.mistakes)
    if inference.mistakes or found is None:
        raise GraphError(graph.name, inference.mistakes)
    operators, schemas = prune(inference.operators, inference.flows)
    timed, without = _timed_stages(operators, inference.flows, found)
    flows = inference.flows
    draft = _PlanBuilder(graph, operators, schemas, flows, found, streams, timed, without)
    stages = draft.stages(min(tasks or draft.widest_input(), key_groups), counts)
    stages = with_dead_letters(stages, dead)
    check_parts(stages, operators, inference.report)
    if inference.mistakes:
        raise GraphError(graph.name, inference.mistakes)
    marks = fingerprint(stages, inference.flows, key_groups)
    tables = inference.tables.held(operators.values(), schemas)
    made = JobPlan(graph, stages, key_groups, marks, tables, limits or CallLimits())
    return with_semantics(made, semantics or RequestedSemantics())


def _timed_stages(
    operators: Mapping[str, Operator], flows: Mapping[str, Flow], found: StageCut
) -> tuple[set[int], set[str]]:
    """The stages whose rows carry event time and watermark: they or later ones need them.

    And the repartitions whose rows need none, whatever their stages do.
    """
    asking = {name for name, operator in operators.items() if operator.is_timed(flows)}
    without = untimed_exchanges(operators, asking)
    timed = {found.stage_of[name] for name in asking}
    before = -1
    while before < len(timed):
        before = len(timed)
        for operator in operators.values():
            is_feed = isinstance(operator, PartitionBy) and operator.name not in without
            if is_feed and found.stage_of[operator.name] in timed:
                timed.add(found.stage_of[operator.inputs[0]])
    return timed, without


def _check_times(inference: Inference, found: StageCut) -> None:
    """Refuse a stage that needs event time where one of its inputs has none."""
    timed, _ = _timed_stages(inference.operators, inference.flows, found)
    for operator in inference.operators.values():
        if isinstance(operator, Input):
            flow = inference.flows[operator.name]
            if flow.untimed and found.stage_of[operator.name] in timed:
                text = 'a later stage needs event time, which it has not: give time="..."'
                inference.report(operator, text)


@dataclass(frozen=True)
class _PlanBuilder:
    """All that is known before stages are made."""

    graph: JobGraph
    operators: dict[str, Operator]
    schemas: dict[str, pa.Schema]
    flows: dict[str, Flow]
    cut: StageCut
    streams: Mapping[str, StreamInfo]
    timed: set[int]
    timeless: set[str]

    @cached_property
    def first(self) -> set[str]:
        return bootstrap_inputs(self.operators)

    @cached_property
    def traced(self) -> set[str]:
        return traced_operators(self.operators)

    @cached_property
    def origins(self) -> dict[str, str]:
        """The stream of each input."""
        return {o.name: o.stream for o in self.operators.values() if isinstance(o, Input)}

    def partitions(self, operator: Input) -> int:
        info = self.streams.get(operator.stream)
        return 1 if info is None else info.partitions

    def of_stage(self, index: int) -> list[Operator]:
        """The operators of a stage in graph order, without ``partition_by``."""
        return [
            operator
            for operator in self.operators.values()
            if self.cut.stage_of[operator.name] == index and not isinstance(operator, PartitionBy)
        ]

    def widest_input(self) -> int:
        inputs = [o for o in self.operators.values() if isinstance(o, Input)]
        return max((self.partitions(operator) for operator in inputs), default=1)

    def stages(self, keyed_tasks: int, counts: Mapping[int, int]) -> tuple[Stage, ...]:
        tasks, delays = [], []
        for index in range(len(self.cut.levels)):
            inputs = [o for o in self.of_stage(index) if isinstance(o, Input)]
            own = counts.get(index, keyed_tasks)
            tasks.append(max((self.partitions(o) for o in inputs), default=own))
            delays.append(watermark_lags(self.operators, self.cut, index))
        exchanges = [
            self._exchange(operator, delays)
            for operator in self.operators.values()
            if isinstance(operator, PartitionBy)
        ]
        origins = tuple(self.origins.values())
        exchanges = through_bus(exchanges, self.graph, self.streams, tasks, origins)
        widths = self._output_partitions(tasks)
        return tuple(
            self._stage(index, tasks[index], delays[index], exchanges, widths)
            for index in range(len(self.cut.levels))
        )

    def _stage(
        self,
        index: int,
        tasks: int,
        delays: dict[str, int],
        exchanges: list[Exchange],
        widths: dict[str, int],
    ) -> Stage:
        members = self.of_stage(index)
        receives = tuple(e for e in exchanges if e.target_stage == index)
        names = [o.name for o in members] + [e.operator for e in receives]
        known = {operator.name for operator in members}
        return Stage(
            index,
            self.cut.levels[index],
            tasks,
            tuple(members),
            {name: self.schemas[name] for name in self.schemas if name in names},
            timed=index in self.timed,
            inputs=tuple(self._input(o, index) for o in members if isinstance(o, Input)),
            receives=receives,
            sends=tuple(e for e in exchanges if e.source_stage == index),
            outputs=tuple(
                self._output(o, widths, is_keyed=bool(receives))
                for o in members
                if isinstance(o, SendTo)
            ),
            sinks=tuple(
                SinkBinding(o.name, o.sink, self.flows[o.name].schema)
                for o in members
                if isinstance(o, SendToSink) and o.sink is not None
            ),
            stores=tuple(spec for o in members for spec in o.state_stores),
            delays={name: delay for name, delay in delays.items() if name in known},
            tables=tuple(dict.fromkeys(t.name for o in members for t in o.broadcast_stores)),
            origins=tuple(self.origins.values()),
            keys={name: self.flows[name].keys for name in names} if receives else {},
        )

    def _input(self, operator: Input, index: int) -> InputBinding:
        info = self.streams.get(operator.stream)
        schema = operator.schema if info is None else info.schema
        is_timed = index in self.timed
        time = operator.time or (None if info is None else info.time)
        return InputBinding(
            operator.name,
            operator.stream,
            self.partitions(operator),
            schema,
            tuple(self.schemas[operator.name].names),
            time if is_timed and operator.event is None else None,
            operator.lateness_ms,
            list(self.origins).index(operator.name) if operator.name in self.traced else None,
            operator.ahead_ms,
            pattern=operator.pattern,
            event=operator.event if is_timed else None,
            confidence=operator.confidence,
            idle_ms=operator.idle_ms,
            closes_after_ms=self._closes_after(operator.name) if operator.idle_closes else None,
            bootstrap=operator.name in self.first,
            priority=operator.priority,
            source="" if info is None else info.source,
        )

    def _closes_after(self, name: str) -> int:
        """How far beyond a record event time must pass until all that it is part of is sent."""
        behind: dict[str, int] = {}
        for operator in reversed(self.operators.values()):
            # A result has the last moment of its window, and is sent when that has passed.
            own = operator.closes_after_ms + 1
            further = behind.get(operator.name, 0)
            for before in operator.inputs:
                behind[before] = max(behind.get(before, 0), own + further)
        return behind.get(name, 0) + 1

    def _exchange(self, operator: PartitionBy, delays: list[dict[str, int]]) -> Exchange:
        before = operator.inputs[0]
        source, target = self.cut.stage_of[before], self.cut.stage_of[operator.name]
        columns = list(self.schemas[operator.name])
        is_timeless = operator.name in self.timeless
        if target in self.timed and not is_timeless:
            columns += _HIDDEN
        if operator.name in self.traced:
            columns += ORIGINS
        made = Exchange(
            operator.name,
            source,
            target,
            operator.keys,
            pa.schema(columns),
            delays[source][operator.name],
            before,
            timeless=is_timeless,
        )
        return made if operator.name in self.traced else with_combiner(made, self.operators)

    def _output_partitions(self, tasks: list[int]) -> dict[str, int]:
        widths: dict[str, int] = {}
        for operator in self.operators.values():
            if isinstance(operator, SendTo):
                own = operator.partitions or tasks[self.cut.stage_of[operator.name]]
                widths[operator.stream] = max(own, widths.get(operator.stream, 1))
        return widths | {name: i.partitions for name, i in self.streams.items() if name in widths}

    def _output(self, operator: SendTo, widths: dict[str, int], *, is_keyed: bool) -> OutputBinding:
        flow = self.flows[operator.name]
        info = self.streams.get(operator.stream)
        keys = flow.keys if is_keyed and flow.lost is None else ()
        if info is not None:
            width = info.written or info.partitions
            defaults = tuple(one for one in info.added if one[0] not in flow.schema.names)
            return OutputBinding(
                operator.name,
                operator.stream,
                width,
                info.schema,
                keys,
                info.time,
                info.version,
                defaults,
            )
        width = widths[operator.stream]
        return OutputBinding(operator.name, operator.stream, width, flow.schema, keys, flow.time)
