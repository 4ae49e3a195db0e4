"""Operators without state: on each row, and those that part streams or join them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.expressions import Resolved, broadcast
from headrace.graph.flows import bound_to_class, key_mistakes, merge_mistakes, union_schema
from headrace.graph.introspection import class_mistakes, name_of
from headrace.graph.operator_base import (
    EXCHANGE,
    Flow,
    Operator,
    Planning,
    declared_flow,
    derived_flow,
    listed,
)

Sides = tuple[tuple[str, pa.Schema], ...]
"""The name and the columns of each side that an operator may send messages to."""

Calling = TypeVar("Calling", bound=Operator)


def bound_function(walk: Planning, operator: Calling, before: Flow) -> Calling | None:
    """Bind what the messages of an operator's function are; report what does not fit."""
    operator, wrong = bound_to_class(operator, before.schema, before.takes)
    for text in wrong:
        walk.report(operator, text)
    uses: tuple[str, ...] | None = getattr(operator, "uses", None)
    read = before.schema.names if uses is None else uses
    if wrong or not walk.can_be_message(operator, read, before.schema):
        return None
    walk.operators[operator.name] = operator
    return operator


def columns_of(returns: pa.Schema | None) -> pa.Schema:
    """Return declared columns; none where nothing is declared."""
    return pa.schema([]) if returns is None else returns


def called(function: object, uses: tuple[str, ...] | None) -> str:
    """Return a function's name and the columns that it reads, in words."""
    return name_of(function) + ("" if uses is None else f", uses {listed(uses)}")


@dataclass(frozen=True)
class Select(Operator):
    """``map`` with Polars expressions: each makes one column."""

    expressions: tuple[pl.Expr, ...] = field(default=(), compare=False)
    text: tuple[str, ...] = ()
    is_exploding: ClassVar[bool] = False

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that expressions make; splits those that make several."""
        parts = [Resolved(expression, before.schema) for expression in self.expressions]
        good = [
            walk.resolve(self, part, "flat_map" if self.is_exploding else "map") for part in parts
        ]
        if not all(good):
            return None
        parts = [piece for part in parts for piece in part.split()]
        fields = [column for part in parts for column in part.schema]
        if self.is_exploding:
            if not pa.types.is_list(fields[0].type):
                found = f"{parts[0].expression} is {fields[0].type}"
                mistake = (
                    f"flat_map makes rows of a list; {found}; expected a list, or give a function"
                )
                walk.report(self, mistake)
                return None
            fields[0] = pa.field(fields[0].name, fields[0].type.value_type)
        names = [column.name for column in fields]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            walk.report(self, f"columns {doubled} are made more than once; use .alias()")
            return None
        expressions = tuple(part.expression for part in parts)
        text = tuple(str(expression) for expression in expressions)
        walk.operators[self.name] = replace(self, expressions=expressions, text=text)

        def is_kept(name: str) -> bool:
            kept = parts[1:] if self.is_exploding else parts
            return any(name in part.schema.names and part.keeps(name) for part in kept)

        return derived_flow(self, before, pa.schema(fields), is_kept)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what its expressions read."""
        parts = [Resolved(one, flows[upstream].schema) for one in self.expressions]
        return set().union(*(part.reads for part in parts))

    def pruned(self, flows: Mapping[str, Flow], wanted: set[str]) -> Select:
        """Return it without expressions whose columns nobody wants."""
        source = flows[self.inputs[0]].schema
        parts = [Resolved(expression, source) for expression in self.expressions]
        first = parts[:1] if self.is_exploding else []  # it says how many rows there are
        kept = first + [part for part in parts[len(first) :] if wanted & set(part.names)]
        expressions = [part.expression for part in kept]
        if not any(part.reads for part in kept):
            # Constants alone would make one row, whatever the number of messages.
            expressions[0] = broadcast(expressions[0], kept[0].names[0])
        return replace(
            self, expressions=tuple(expressions), text=tuple(str(part) for part in expressions)
        )

    def describe(self) -> list[str]:
        """Return the expressions."""
        return [f"map to {listed(self.text)}"]


@dataclass(frozen=True)
class Reshape(Operator):
    """``with_columns``, ``drop`` and ``rename``: all columns, but for those that it changes.

    The planner puts the ``Select`` in its place that it comes to with the columns of its input.
    """

    method: str = ""
    expressions: tuple[pl.Expr, ...] = field(default=(), compare=False)
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns of the input with the changes; report names that are not there."""
        schema = before.schema
        wrong = [
            unknown_column(name, schema.names)
            for name in (*self.dropped, *dict(self.renamed))
            if name not in schema.names
        ]
        for text in wrong:
            walk.report(self, text)
        parts = [Resolved(expression, schema) for expression in self.expressions]
        good = [walk.resolve(self, part, self.method) for part in parts]
        if wrong or not all(good):
            return None
        made = {piece.schema.names[0]: piece.expression for part in parts for piece in part.split()}
        renamed = {old: pl.col(old).alias(new) for old, new in self.renamed}
        kept = [
            made.pop(name) if name in made else renamed.get(name, pl.col(name))
            for name in schema.names
            if name not in self.dropped
        ]
        if not kept and not made:
            walk.report(self, f"{self.method} leaves no column; keep one")
            return None
        place = (self.name, self.inputs, self.site, (*kept, *made.values()))
        return Select(*place, on_error=self.on_error, takes=self.takes).flow(walk, before)


@dataclass(frozen=True)
class Explode(Select):
    """``flat_map`` with Polars expressions: a row for each element of the first, a list.

    The other expressions make columns that each of these rows has.
    """

    is_exploding: ClassVar[bool] = True

    def describe(self) -> list[str]:
        """Return the list, and what its rows have beside."""
        beside = [f"with {listed(self.text[1:])}"] if self.text[1:] else []
        return [f"a row for each element of {self.text[0]}", *beside]


@dataclass(frozen=True)
class Filter(Operator):
    """``filter`` with a Polars expression; rows where it is null are dropped."""

    expression: pl.Expr | None = field(default=None, compare=False)
    text: str = ""

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if the expression is a condition."""
        assert self.expression is not None
        return before if walk.condition(self, before, self.expression, "filter") else None

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what the condition reads, and what is passed on."""
        assert self.expression is not None
        return wanted | Resolved(self.expression, flows[upstream].schema).reads

    def describe(self) -> list[str]:
        """Return the condition."""
        return [f"filter {self.text}"]


@dataclass(frozen=True)
class Sample(Operator):
    """``sample``: a fraction of the rows, by a hash of the columns ``by``; empty: of all columns.

    The same keys are in it on every run, and in every stream that is sampled by them.
    """

    fraction: float = 1.0
    by: tuple[str, ...] = ()

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if the columns can be hashed."""
        wrong = key_mistakes(self.by or before.schema.names, before.schema)
        for text in wrong:
            hint = "" if self.by else "; name other columns with by="
            walk.report(self, f"{text}{hint}")
        return None if wrong else before

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the columns of the hash, and what is passed on."""
        return wanted | set(self.by or flows[upstream].schema.names)

    def pruned(self, flows: Mapping[str, Flow], wanted: set[str]) -> Sample:
        """Return it with the columns of the hash, whatever is read later."""
        return self if self.by else replace(self, by=tuple(flows[self.inputs[0]].schema.names))

    def describe(self) -> list[str]:
        """Return the fraction, and what it goes by."""
        return [f"sample {self.fraction:.10g} by {listed(self.by) or 'all columns'}"]


@dataclass(frozen=True)
class MessageFunction(Operator):
    """An operator with a function that is called with each message.

    ``uses`` names the columns that the function reads; ``None``: all.
    """

    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    uses: tuple[str, ...] | None = field(default=None, kw_only=True)

    verb: ClassVar[str] = "map"

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what its function reads."""
        return set(flows[upstream].schema.names if self.uses is None else self.uses)

    def describe(self) -> list[str]:
        """Return the function, and the columns that it reads."""
        return [f"{self.verb} with {called(self.function, self.uses)}"]

    @property
    def message_function(self) -> Any:
        """The function."""
        return self.function


@dataclass(frozen=True)
class MapMessages(MessageFunction):
    """``map`` with a function from one message to one message."""

    returns: pa.Schema | None = None
    sides: Sides = ()

    keeps_columns: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that the function declares."""
        bound = bound_function(walk, self, before)
        return None if bound is None else declared_flow(self, before, columns_of(self.returns))


@dataclass(frozen=True)
class FlatMapMessages(MessageFunction):
    """``flat_map`` with a function from one message to any number of messages.

    The function's results begin with the columns ``beside`` of the message that they do not have
    themselves. With ``like`` its other columns are those of that operator, found by the planner.
    """

    returns: pa.Schema | None = None
    sides: Sides = ()
    beside: tuple[str, ...] = ()
    like: str = ""

    keeps_columns: ClassVar[bool] = True
    verb: ClassVar[str] = "flat_map"

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that the function declares, behind those of the message."""
        bound = bound_function(walk, self, before)
        if bound is None:
            return None
        if bound.beside:
            bound = walk.operators[self.name] = bound._with_beside(walk, before.schema)  # noqa: SLF001
        return declared_flow(self, before, columns_of(bound.returns))

    def _with_beside(self, walk: Planning, source: pa.Schema) -> FlatMapMessages:
        """Put the columns that a function's results begin with before those it returns."""
        returns = walk.flows[self.like].schema if self.like else self.returns
        own = pa.schema([]) if returns is None else returns
        heads = [source.field(name) for name in self.beside if name not in own.names]
        return replace(self, returns=pa.schema([*heads, *own]))


@dataclass(frozen=True)
class FilterMessages(MessageFunction):
    """``filter`` with a function from one message to a truth value."""

    verb: ClassVar[str] = "filter"

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if the function can read it."""
        return None if bound_function(walk, self, before) is None else before

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what the function reads, and what is passed on."""
        return wanted | super().reads(upstream, flows, wanted)


@dataclass(frozen=True)
class InspectMessages(FilterMessages):
    """``inspect`` and ``print``: a function that only looks at messages; all are passed on."""

    label: str | None = None

    verb: ClassVar[str] = "inspect"

    def describe(self) -> list[str]:
        """Return the function, or what stands before printed messages."""
        return super().describe() if self.label is None else [f"print as {self.label}>"]


@dataclass(frozen=True)
class MapBatches(Operator):
    """``map_batches`` with a function from one Polars frame to another of as many rows."""

    function: Callable[[pl.DataFrame], pl.DataFrame] | None = field(default=None, compare=False)
    returns: pa.Schema | None = None
    uses: tuple[str, ...] | None = None

    keeps_columns: ClassVar[bool] = True

    reads_as_attributes: ClassVar[bool] = False

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that the function declares."""
        bound = bound_function(walk, self, before)
        return None if bound is None else declared_flow(self, before, columns_of(self.returns))

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what its function reads."""
        everything = set(flows[upstream].schema.names)
        return everything if self.uses is None else set(self.uses)

    def describe(self) -> list[str]:
        """Return the function, and the columns that it reads."""
        return [f"map_batches with {called(self.function, self.uses)}"]


@dataclass(frozen=True)
class PartitionBy(Operator):
    """``partition_by``: send each row to the task that owns the key group of its key.

    ``via`` is one of ``VIAS``: files of the epoch, or an internal stream of the bus; or the address
    of a log that carries the internal stream. ``tasks`` is how many the receiving stage of a new
    job has; ``None``: as the settings say.
    """

    keys: tuple[str, ...] = ()
    via: str = EXCHANGE
    tasks: int | None = None

    @property
    def is_durable(self) -> bool:
        """Whether rows go through an internal stream, so that each side has its own epochs."""
        return self.via != EXCHANGE

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow by another key."""
        wrong = key_mistakes(self.keys, before.schema)
        for text in wrong:
            walk.report(self, text)
        return None if wrong else replace(before, keys=self.keys, lost=None)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return the key, and what is passed on."""
        return wanted | set(self.keys)

    def describe(self) -> list[str]:
        """Return the key."""
        return [f"partition by {listed(self.keys) or 'nothing: all are together'}"]

    def asks_time(self, upstream: str, after: bool) -> bool:
        """Rows of another stage have event times, unless they only fill tables."""
        return True


@dataclass(frozen=True)
class Merge(Operator):
    """``merge``: several streams of one schema as one."""

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the columns that several streams have as one."""
        flows = [walk.flows[name] for name in self.inputs]
        first = flows[0]
        schemas = {name: walk.flows[name].schema for name in self.inputs}
        schema, wrong = self.joined(schemas, first.keys)
        for text in wrong:
            walk.report(self, text)
        if wrong:
            return None
        untimed = tuple(dict.fromkeys(name for flow in flows for name in flow.untimed))
        lost = next((flow.lost for flow in flows if flow.lost is not None), None)
        time = first.time if len({flow.time for flow in flows}) == 1 else None
        return Flow(schema, first.keys, lost, untimed, time)

    def joined(
        self, schemas: Mapping[str, pa.Schema], keys: Sequence[str]
    ) -> tuple[pa.Schema, list[str]]:
        """Return the columns of all, and what is wrong."""
        return next(iter(schemas.values())), merge_mistakes(schemas)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what is wanted of an input's columns."""
        return wanted & set(flows[upstream].schema.names)

    def describe(self) -> list[str]:
        """Return the streams."""
        return [f"merge of {listed(self.inputs)}"]


@dataclass(frozen=True)
class Union(Merge):
    """``union``: several streams as one that has the columns of all of them."""

    def joined(
        self, schemas: Mapping[str, pa.Schema], keys: Sequence[str]
    ) -> tuple[pa.Schema, list[str]]:
        """Return the columns that any of them has, and what is wrong."""
        return union_schema(schemas, keys)

    def describe(self) -> list[str]:
        """Return the streams."""
        return [f"union of {listed(self.inputs)}"]


@dataclass(frozen=True)
class Branch:
    """A branch of ``split``: its name, and which rows it takes, by expression or function.

    ``takes`` says what messages are made as for the function.
    """

    name: str
    expression: pl.Expr | None = field(default=None, compare=False)
    function: Callable[[Any], Any] | None = field(default=None, compare=False)
    text: str = ""
    takes: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Split(Operator):
    """``split``: each row goes to the first branch that takes it; its branches are ports."""

    branches: tuple[Branch, ...] = ()
    uses: tuple[str, ...] | None = None

    is_end: ClassVar[bool] = True

    def flow(self, walk: Planning, before: Flow) -> Flow | None:
        """Return the flow as it is, if all conditions of branches are good."""
        asked = [branch.expression for branch in self.branches]
        expressions = [expression for expression in asked if expression is not None]
        good = [walk.condition(self, before, one, "split") for one in expressions]
        if len(expressions) < len(asked):
            read = self.uses or before.schema.names
            good.append(walk.can_be_message(self, read, before.schema))
            for text in self._mistakes(before.schema):
                walk.report(self, text)
                good.append(False)
        return before if all(good) else None

    def _mistakes(self, schema: pa.Schema) -> list[str]:
        """Say why messages of some columns cannot be made as what the branches of a split take."""
        known = pa.schema([f for f in schema if self.uses is None or f.name in self.uses])
        return [
            f"branch {branch.name!r} {text}"
            for branch in self.branches
            if branch.takes not in (None, dict)
            for text in class_mistakes(branch.takes, known)
        ]

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what conditions read, and what is passed on."""
        source, read = flows[upstream].schema, set(wanted)
        for branch in self.branches:
            if branch.expression is not None:
                read |= Resolved(branch.expression, source).reads
            else:
                read |= set(self.uses or source.names)
        return read

    def describe(self) -> list[str]:
        """Return the branches, in the order in which they are asked."""
        asked = [f"{branch.name}: {branch.text}" for branch in self.branches]
        return ["split, each row to the first that is true", *asked]


@dataclass(frozen=True)
class Port(Operator):
    """A stream that the operator before has beside its main one: a branch, or a side.

    A branch has the columns of what is split, a side those that it declares, ``returns``.
    """

    port: str = ""
    returns: pa.Schema | None = None

    def infer(self, walk: Planning) -> Flow | None:
        """Return what the operator before says of its port."""
        return walk.operators[self.inputs[0]].port_flow(walk, self, self.port, self.returns)

    def reads(self, upstream: str, flows: Mapping[str, Flow], wanted: set[str]) -> set[str]:
        """Return what is wanted of a branch; a side has columns of its own."""
        return wanted if self.returns is None else set()

    def describe(self) -> list[str]:
        """Return the operator that it is a port of."""
        kind = "branch" if self.returns is None else "side"
        return [f"{kind} {self.port} of {self.inputs[0]}"]
