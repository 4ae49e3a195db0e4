"""Finds the columns, key and event time that leave each operator, and all mistakes on the way.

An operator whose input is broken is passed over, so that one mistake is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import (
    Deduplicate,
    EventTime,
    Filter,
    FilterMessages,
    FlatMapMessages,
    Input,
    JobGraph,
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
    Union,
    WindowAggregate,
)
from headrace.graph.windows import Tumbling
from headrace.plan.columns import differences, output_differences
from headrace.plan.expressions import Resolved
from headrace.plan.routing import (
    deduplicate_mistakes,
    key_mistakes,
    merge_mistakes,
    union_schema,
)
from headrace.plan.stages import StreamInfo
from headrace.plan.tables import TableBinder, TableFile, join_mistakes, joined
from headrace.plan.taking import branch_mistakes, with_class

MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Flow:
    """What leaves an operator.

    ``lost`` names the operator that dropped or changed the key, ``untimed`` the inputs
    without event time, ``time`` the column that holds the event time, where one does.
    ``window_ms`` is the size of the windows whose start is ``time``. ``takes`` is the class that an
    input gave for its messages.
    """

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    lost: str | None = None
    untimed: tuple[str, ...] = ()
    time: str | None = None
    window_ms: int | None = None
    takes: Any = None


@dataclass
class Inference:
    """Walks a graph once, in order; ``flows``, ``operators`` and ``mistakes`` are the result.

    ``operators`` are those of the graph with expressions split and aggregates bound.
    """

    graph: JobGraph
    streams: Mapping[str, StreamInfo]
    files: Mapping[str, TableFile] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    @cached_property
    def tables(self) -> TableBinder:
        """The broadcast stores."""
        return TableBinder(self.streams, self.files, self.report)

    def run(self) -> None:
        """Infer every operator that can be."""
        for operator in self.graph.operators:
            self.operators[operator.name] = operator
            if all(name in self.flows for name in operator.inputs):
                flow = self._infer(operator)
                if flow is not None and self._names_fit(operator, flow.schema):
                    self.flows[operator.name] = flow
        self._check_outputs()

    def report(self, operator: Operator, text: str) -> None:
        """Take a mistake, with the operator and the user's line."""
        where = f" ({operator.site})" if str(operator.site) else ""
        self.mistakes.append(f"operator {operator.name!r}{where}: {text}")

    def _names_fit(self, operator: Operator, schema: pa.Schema) -> bool:
        hidden = [name for name in schema.names if name.startswith("__")]
        if hidden:
            self.report(operator, f"columns {hidden} begin with '__', which Headrace keeps")
        return not hidden

    def _infer(self, operator: Operator) -> Flow | None:
        if isinstance(operator, Input):
            return self._input(operator)
        before = self.flows[operator.inputs[0]]
        owner = self.operators[operator.inputs[0]]
        if isinstance(operator, Port) and isinstance(owner, WindowAggregate):
            return self.flows[owner.inputs[0]]  # late records, as they came
        if isinstance(operator, Port) and operator.returns is not None:
            return _declared(operator, self.flows[owner.inputs[0]], operator.returns)
        if not len(before.schema):
            text = f"operator {operator.inputs[0]!r} declares no columns; give it returns="
            self.report(operator, text)
            return None
        match operator:
            case Select():
                return self._select(operator, before)
            case Filter():
                assert operator.expression is not None
                good = self._condition(operator, before, operator.expression, "filter")
                return before if good else None
            case Split():
                return self._split(operator, before)
            case MapMessages() | FlatMapMessages() | FilterMessages() | MapBatches() | Process():
                return self._function(operator, before)
            case PartitionBy():
                return self._partition_by(operator, before)
            case JoinTable():
                return self._join_table(operator, before)
            case Merge():
                return self._merge(operator)
            case Deduplicate():
                return self._deduplicate(operator, before)
            case RunningAggregate() | WindowAggregate():
                return self._aggregate(operator, before)
            case SendToSink():
                for text in operator.sink.column_mistakes(before.schema) if operator.sink else ():
                    self.report(operator, text)
        return before

    def _input(self, operator: Input) -> Flow | None:
        info = self.streams.get(operator.stream)
        if info is None and operator.schema is None:
            known = f"; streams are {sorted(self.streams)}" if self.streams else ""
            text = f"no stream {operator.stream!r}; create it, or give schema= to plan without it"
            self.report(operator, text + known)
            return None
        schema = operator.schema if info is None else info.schema
        assert schema is not None
        if info is not None and operator.schema is not None:
            differ = differences(operator.schema, info.schema, extra_allowed=True)
            if differ:
                text = f"stream {operator.stream!r} does not have the schema given: {differ}"
                self.report(operator, text)
                return None
            schema = operator.schema
        if operator.event is not None:
            return self._made_time(operator, operator.event, schema)
        time = operator.time or (info.time if info is not None else None)
        whole = schema if info is None else info.schema
        if time is not None:
            if time not in whole.names:
                self.report(operator, f"event time: {unknown_column(time, whole.names)}")
                return None
            kind = whole.field(time).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
                text = f"event-time column {time!r} is {kind}; expected a timestamp or integer ms"
                self.report(operator, text)
                return None
        shown = time if time in schema.names else None
        untimed = () if time is not None else (operator.name,)
        return Flow(schema, untimed=untimed, time=shown, takes=operator.takes)

    def _made_time(self, operator: Input, event: EventTime, schema: pa.Schema) -> Flow | None:
        """The flow of an input whose event times are made; finds the columns they need."""
        if event.expression is not None:
            resolved = Resolved(event.expression, schema)
            if not self._resolve(operator, resolved, "time="):
                return None
            kinds = [column.type for column in resolved.schema]
            if len(kinds) != 1 or not (
                pa.types.is_timestamp(kinds[0]) or pa.types.is_integer(kinds[0])
            ):
                found = ", ".join(map(str, kinds))
                text = f"time={event.text} gives {found}; expected a timestamp or integer ms"
                self.report(operator, text)
                return None
            uses = tuple(name for name in schema.names if name in resolved.reads)
            event = replace(event, uses=uses)
        elif event.function is not None:
            event, wrong = with_class(event, schema, operator.takes)
            for text in wrong:
                self.report(operator, text)
            uses = tuple(schema.names) if event.uses is None else event.uses
            asking = replace(operator, takes=event.takes)
            if wrong or not self._can_be_message(asking, uses, schema):
                return None
            event = replace(event, uses=uses)
        self.operators[operator.name] = replace(operator, event=event)
        return Flow(schema, takes=operator.takes)

    def _can_be_message(
        self, operator: Operator, columns: Sequence[str], schema: pa.Schema
    ) -> bool:
        """Report columns that a function cannot read, unless there are none."""
        missing = [name for name in columns if name not in schema.names]
        for name in missing:
            self.report(operator, f"uses: {unknown_column(name, schema.names)}")
        bad = [name for name in columns if not name.isidentifier()]
        needs_names = operator.takes is not dict and not isinstance(operator, MapBatches)
        if bad and not missing and needs_names:
            text = f"columns {bad} cannot be attributes of a message; rename them with map first"
            self.report(operator, text)
            return False
        return not missing

    def _resolve(self, operator: Operator, resolved: Resolved, method: str) -> bool:
        try:
            _ = resolved.schema
        except InvalidInputError as error:
            self.report(operator, error.message)
            return False
        if resolved.beyond_its_row():
            text = (
                f"{resolved.expression!s} looks beyond its row, but rows come in batches of any "
                f"size: {method} takes expressions of one row; use aggregate or window"
            )
            self.report(operator, text)
            return False
        return True

    def _select(self, operator: Select, before: Flow) -> Flow | None:
        parts = [Resolved(expression, before.schema) for expression in operator.expressions]
        good = [self._resolve(operator, part, "map") for part in parts]
        if not all(good):
            return None
        parts = [piece for part in parts for piece in part.split()]
        fields = [column for part in parts for column in part.schema]
        names = [column.name for column in fields]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            self.report(operator, f"columns {doubled} are made more than once; use .alias()")
            return None
        expressions = tuple(part.expression for part in parts)
        text = tuple(str(expression) for expression in expressions)
        self.operators[operator.name] = replace(operator, expressions=expressions, text=text)

        def is_kept(name: str) -> bool:
            return any(name in part.schema.names and part.keeps(name) for part in parts)

        return _follow(operator, before, pa.schema(fields), is_kept)

    def _condition(
        self, operator: Operator, before: Flow, expression: pl.Expr, method: str
    ) -> bool:
        resolved = Resolved(expression, before.schema)
        if not self._resolve(operator, resolved, method):
            return False
        kinds = [column.type for column in resolved.schema]
        if kinds != [pa.bool_()]:
            found = ", ".join(map(str, kinds))
            text = f"{method} needs one true or false; {expression!s} gives {found}"
            self.report(operator, text)
            return False
        return True

    def _split(self, operator: Split, before: Flow) -> Flow | None:
        asked = [branch.expression for branch in operator.branches]
        expressions = [expression for expression in asked if expression is not None]
        good = [self._condition(operator, before, one, "split") for one in expressions]
        if len(expressions) < len(asked):
            read = operator.uses or before.schema.names
            good.append(self._can_be_message(operator, read, before.schema))
            for text in branch_mistakes(operator, before.schema):
                self.report(operator, text)
                good.append(False)
        return before if all(good) else None

    def _function(self, operator: Operator, before: Flow) -> Flow | None:
        operator, wrong = with_class(operator, before.schema, before.takes)
        for text in wrong:
            self.report(operator, text)
        uses: tuple[str, ...] | None = getattr(operator, "uses", None)
        read = before.schema.names if uses is None else uses
        if wrong or not self._can_be_message(operator, read, before.schema):
            return None
        self.operators[operator.name] = operator
        if isinstance(operator, FilterMessages):
            return before
        if isinstance(operator, Process):
            for table in operator.tables:
                bound = self.tables.bind(operator, table)
                if bound is not None:
                    self.tables.check_message(operator, bound)
            local = [spec for spec in operator.stores if spec.kind != "remote"]
            self._need_key(operator, before, bool(local))
            for spec in operator.stores:
                for name in spec.remote.load if spec.remote is not None else ():
                    if name not in before.schema.names:
                        where = f"store {spec.name!r}, load="
                        self.report(
                            operator, f"{where}: {unknown_column(name, before.schema.names)}"
                        )
        if isinstance(operator, FlatMapMessages) and operator.beside:
            operator = self.operators[operator.name] = self._with_beside(operator, before.schema)
        returns: pa.Schema | None = getattr(operator, "returns", None)
        return _declared(operator, before, pa.schema([]) if returns is None else returns)

    def _with_beside(self, operator: FlatMapMessages, source: pa.Schema) -> FlatMapMessages:
        """Put the columns that a function's results begin with before those it returns."""
        returns = self.flows[operator.like].schema if operator.like else operator.returns
        own = pa.schema([]) if returns is None else returns
        heads = [source.field(name) for name in operator.beside if name not in own.names]
        return replace(operator, returns=pa.schema([*heads, *own]))

    def _join_table(self, operator: JoinTable, before: Flow) -> Flow | None:
        table = self.tables.bind(operator, operator.table)
        if table is None:
            return None
        columns, known = joined(operator, table), before.schema
        wrong = [
            f"on: {unknown_column(name, known.names)}"
            for name in operator.on
            if name not in known.names
        ]
        wrong += [
            f"columns: {unknown_column(old, table.schema.names)}"
            for _, old in columns
            if old not in table.schema.names
        ]
        if not wrong:
            wrong += join_mistakes(operator, table, columns, known)
        for text in wrong:
            self.report(operator, text)
        if wrong:
            return None
        made = [pa.field(new, table.schema.field(old).type) for new, old in columns]
        return replace(before, schema=pa.schema([*known, *made]))

    def _need_key(self, operator: Operator, before: Flow, needed: bool) -> bool:
        if needed and before.lost is not None:
            text = (
                f"needs the key {list(before.keys)}, but operator {before.lost!r} drops or changes "
                "a column of it; keep it, or partition_by again"
            )
            self.report(operator, text)
            return False
        return True

    def _partition_by(self, operator: PartitionBy, before: Flow) -> Flow | None:
        wrong = key_mistakes(operator.keys, before.schema)
        for text in wrong:
            self.report(operator, text)
        return None if wrong else replace(before, keys=operator.keys, lost=None)

    def _merge(self, operator: Merge) -> Flow | None:
        flows = [self.flows[name] for name in operator.inputs]
        first = flows[0]
        schemas = {name: self.flows[name].schema for name in operator.inputs}
        if isinstance(operator, Union):
            schema, wrong = union_schema(schemas, first.keys)
        else:
            schema, wrong = first.schema, merge_mistakes(schemas)
        for text in wrong:
            self.report(operator, text)
        if wrong:
            return None
        untimed = tuple(dict.fromkeys(name for flow in flows for name in flow.untimed))
        lost = next((flow.lost for flow in flows if flow.lost is not None), None)
        time = first.time if len({flow.time for flow in flows}) == 1 else None
        return Flow(schema, first.keys, lost, untimed, time)

    def _deduplicate(self, operator: Deduplicate, before: Flow) -> Flow | None:
        wrong = deduplicate_mistakes(operator, before.schema, before.untimed)
        for text in wrong:
            self.report(operator, text)
        return before if self._need_key(operator, before, needed=True) and not wrong else None

    def _aggregate(self, operator: RunningAggregate | WindowAggregate, before: Flow) -> Flow | None:
        window = operator.window if isinstance(operator, WindowAggregate) else None
        is_periodic = isinstance(operator, RunningAggregate) and operator.every_ms is not None
        needs_time = is_periodic if window is None else window.is_timed
        good = self._need_key(operator, before, needed=True)
        if needs_time and before.untimed:
            what = "aggregate(every=...)" if is_periodic else "window"
            source = before.untimed[0]
            hint = f'give g.input({source!r}, time="...")'
            text = f"{what} needs event time, which input {source!r} has not: {hint}"
            self.report(operator, text)
            good = False
        fields, bound = [], []
        for name, aggregate in operator.aggregates:
            try:
                fields.append((name, aggregate.result_type(before.schema)))
                bound.append((name, aggregate.bind(before.schema)))
            except InvalidInputError as error:
                self.report(operator, f"{name}: {error.message}")
                good = False
        if not good:
            return None
        self.operators[operator.name] = replace(operator, aggregates=tuple(bound))
        heads = ["at"] if is_periodic else []
        size = window.size_ms if isinstance(window, Tumbling) else None
        if window is not None:
            heads = list(window.heads)
        time = heads[0] if heads else None
        if size is not None and before.time == "window_start" and before.window_ms == size:
            # The start of a window of the same size is that of the window it falls into.
            heads = [name for name in heads if name != "window_start" or name not in before.keys]
        clash = [name for name in heads if name in before.keys]
        if clash:
            text = f"key columns {clash} have the names of columns it makes: rename them with map"
            self.report(operator, text)
            return None
        keys = [(key, before.schema.field(key).type) for key in before.keys]
        made = [(name, MOMENT) for name in heads]
        flags = [(name, pa.bool_()) for name in (window.flags if window is not None else ())]
        schema = pa.schema([*keys, *made, *fields, *flags])
        return replace(before, schema=schema, time=time, window_ms=size)

    def _check_outputs(self) -> None:
        first: dict[str, SendTo] = {}
        for operator in self.graph.operators:
            if not isinstance(operator, SendTo) or operator.name not in self.flows:
                continue
            schema = self.flows[operator.name].schema
            info = self.streams.get(operator.stream)
            other = first.setdefault(operator.stream, operator)
            if info is not None:
                differ = output_differences(operator.stream, info, schema)
                if differ:
                    text = f"stream {operator.stream!r} exists with other columns: {differ}"
                    self.report(operator, text)
                if operator.partitions not in (None, info.partitions):
                    text = (
                        f"stream {operator.stream!r} exists with {info.partitions} partitions; "
                        f"found partitions={operator.partitions}: leave it out"
                    )
                    self.report(operator, text)
            elif other is not operator:
                differ = differences(self.flows[other.name].schema, schema)
                if differ:
                    text = f"{other.name!r} sends other columns to {operator.stream!r}: {differ}"
                    self.report(operator, text)


def _declared(operator: Operator, before: Flow, schema: pa.Schema) -> Flow:
    """The flow after an operator whose columns are declared: those of one name may be the same."""

    def is_kept(name: str) -> bool:
        at = schema.get_field_index(name)
        return at >= 0 and bool(schema.field(at).type.equals(before.schema.field(name).type))

    return _follow(operator, before, schema, is_kept)


def _follow(
    operator: Operator, before: Flow, schema: pa.Schema, is_kept: Callable[[str], bool]
) -> Flow:
    """The flow after an operator that makes new columns."""
    lost = before.lost
    if lost is None and not all(is_kept(key) for key in before.keys):
        lost = operator.name
    time = before.time if before.time is not None and is_kept(before.time) else None
    return replace(before, schema=schema, lost=lost, time=time)
