"""Finds the columns, key and event time that leave each operator, and all mistakes on the way.

The rules are those of the operators' classes; ``Inference`` asks them, in the order of the graph.
``TableBinder`` binds broadcast tables to the streams and files that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.aggregates import unknown_column
from headrace.graph.expressions import Resolved
from headrace.graph.flows import differences
from headrace.graph.operator_base import Flow, StreamInfo, TableBinding
from headrace.graph.operators import JobGraph, Operator, SendTo
from headrace.graph.shared_stores import BroadcastSpec
from headrace.records.evolution import is_wider
from headrace.records.schema import schema_text


def output_differences(stream: str, info: StreamInfo, found: pa.Schema) -> str:
    """Say how columns that are sent differ from those of a stream that was there before.

    Columns that were added to it may be missing, and types may be narrower than its own.
    """
    added = dict(info.added)
    expected = []
    for column in info.schema:
        at = found.get_field_index(column.name)
        if at >= 0 and is_wider(found.field(at).type, column.type):
            expected.append(found.field(at))
        elif at >= 0 or column.name not in added:
            expected.append(column)
    differ = differences(pa.schema(expected), found)
    new = [column for column in found if column.name not in info.schema.names]
    if not new or any(name not in found.names for name in pa.schema(expected).names):
        return f"{differ}; make the columns it has, or send to another stream" if differ else ""
    words = schema_text(pa.schema(new))
    return f'{differ}; add it: headrace bus configure {stream} --add-column "{words}"'


_NO_TABLE_KEY = (pa.types.is_nested, pa.types.is_decimal, pa.types.is_duration)
Report = Callable[[Operator, str], None]


@dataclass(frozen=True)
class TableFile:
    """A file of rows as the job's storage holds it since the start: columns, path, checksum."""

    schema: pa.Schema
    path: str = ""
    digest: str = ""


class TableBinder:
    """Binds broadcast stores to the streams and files that exist.

    Args:
        streams: by name.
        files: by the path that the user gave.
        report: takes mistakes.
    """

    def __init__(
        self,
        streams: Mapping[str, StreamInfo],
        files: Mapping[str, TableFile],
        report: Report,
    ) -> None:
        self._streams, self._files, self._report = streams, files, report
        self._bound: dict[str, TableBinding | None] = {}

    def bind(self, operator: Operator, spec: BroadcastSpec) -> TableBinding | None:
        """Return a table with all its columns, or ``None`` after reporting its mistakes once."""
        if spec.name not in self._bound:
            self._bound[spec.name] = self._bind(operator, spec)
        return self._bound[spec.name]

    def _bind(self, operator: Operator, spec: BroadcastSpec) -> TableBinding | None:
        stream = None if spec.stream is None else self._streams.get(spec.stream)
        file = None if spec.file is None else self._files.get(spec.file)
        source = stream or file
        schema = spec.schema if source is None else source.schema
        if schema is None:
            text = f"broadcast store {spec.name!r}: no {spec.origin}; create it, or give schema="
            self._report(operator, text)
            return None
        wrong = [unknown_column(key, schema.names) for key in spec.key if key not in schema.names]
        for key in spec.key:
            kind = None if key not in schema.names else schema.field(key).type
            if kind is not None and any(test(kind) for test in _NO_TABLE_KEY):
                wrong.append(f"column {key!r} is {kind}, which cannot be a key")
        is_loose = stream is not None and stream.partitions > 1 and not _placed(spec, stream)
        if stream is not None and is_loose and not wrong:
            wrong.append(
                f"stream {spec.stream!r} has {stream.partitions} partitions that are not by "
                f"columns of the key {list(spec.key)}, so which row is the latest is not defined: "
                f"create it with key={list(spec.key)}, or with one partition"
            )
        if stream is not None and stream.compact and set(stream.key) != set(spec.key):
            wrong.append(
                f"stream {spec.stream!r} keeps the last record of each {list(stream.key)}, so a "
                f"table by {list(spec.key)} would lose rows: give the store that key"
            )
        hidden = [name for name in schema.names if name.startswith("__")]
        if hidden:
            wrong.append(f"columns {hidden} begin with '__', which Headrace keeps")
        for text in wrong:
            self._report(operator, f"broadcast store {spec.name!r}: {text}")
        if wrong:
            return None
        time = None if stream is None else stream.time
        # Rows from before a column was added have its default in it: that deletes no less.
        filled = (
            () if stream is None else [name for name, value in stream.added if value is not None]
        )
        values = [name for name in schema.names if name not in (*spec.key, *filled, time)]
        return TableBinding(
            spec.name,
            spec.key,
            schema,
            tuple(values),
            stream=spec.stream,
            partitions=0 if spec.stream is None else 1 if stream is None else stream.partitions,
            file="" if file is None else file.path,
            digest="" if file is None else file.digest,
            origin=spec.origin,
        )

    def check_message(self, operator: Operator, bound: TableBinding) -> None:
        """Report columns that cannot be attributes of the messages that a processor gets."""
        bad = [name for name in bound.schema.names if not name.isidentifier()]
        if bad:
            self._report(
                operator,
                f"broadcast store {bound.name!r}: columns {bad} cannot be attributes of a message; "
                "rename them at their source, or use join_table",
            )

    def held(
        self, operators: Iterable[Operator], schemas: Mapping[str, pa.Schema]
    ) -> tuple[TableBinding, ...]:
        """Return the tables that operators use, with only the columns that they use.

        Args:
            operators: of the job, pruned.
            schemas: the columns that leave each.
        """
        needed: dict[str, set[str]] = {}
        for operator in operators:
            for spec in operator.broadcast_stores:
                bound = self._bound[spec.name]
                assert bound is not None
                wanted = needed.setdefault(spec.name, set(spec.key))
                wanted |= operator.columns_of_table(bound, schemas[operator.name].names)
        return tuple(
            replace(bound, schema=pa.schema([f for f in bound.schema if f.name in needed[name]]))
            for name, bound in self._bound.items()
            if bound is not None and name in needed
        )


def _placed(spec: BroadcastSpec, stream: StreamInfo) -> bool:
    return bool(stream.key) and set(stream.key) <= set(spec.key)


@dataclass
class Inference:
    """Walks a graph once, in order: what is known so far, by operator, and the mistakes.

    ``flows``, ``operators`` and ``mistakes`` are the result. ``operators`` are those of the graph
    with expressions split and aggregates bound.
    """

    graph: JobGraph
    streams: Mapping[str, StreamInfo]
    files: Mapping[str, TableFile] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)
    operators: dict[str, Operator] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Infer every operator that can be."""
        for operator in self.graph.operators:
            self.operators[operator.name] = operator
            if all(name in self.flows for name in operator.inputs):
                flow = operator.infer(self)
                if flow is not None and self._names_fit(operator, flow.schema):
                    self.flows[operator.name] = flow
        self._check_outputs()

    def _names_fit(self, operator: Operator, schema: pa.Schema) -> bool:
        hidden = [name for name in schema.names if name.startswith("__")]
        if hidden:
            self.report(operator, f"columns {hidden} begin with '__', which Headrace keeps")
        return not hidden

    def _check_outputs(self) -> None:
        """Report outputs that are sent other columns or partitions than the stream has."""
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

    @cached_property
    def tables(self) -> TableBinder:
        """The broadcast stores."""
        return TableBinder(self.streams, self.files, self.report)

    def report(self, operator: Operator, text: str) -> None:
        """Take a mistake, with the operator and the user's line."""
        before = self.flows.get(operator.inputs[0]) if operator.inputs else None
        columns = None if before is None else before.schema
        self.mistakes.append(operator.site.mistake(operator.name, text, columns))

    def bind_table(self, operator: Operator, spec: BroadcastSpec) -> TableBinding | None:
        """Return a broadcast table with all its columns, or ``None`` after its mistakes."""
        return self.tables.bind(operator, spec)

    def check_message(self, operator: Operator, bound: TableBinding) -> None:
        """Report columns of a table that cannot be attributes of a message."""
        self.tables.check_message(operator, bound)

    def can_be_message(self, operator: Operator, columns: Sequence[str], schema: pa.Schema) -> bool:
        """Report columns that a function cannot read, unless there are none."""
        missing = [name for name in columns if name not in schema.names]
        for name in missing:
            self.report(operator, f"uses: {unknown_column(name, schema.names)}")
        bad = [name for name in columns if not name.isidentifier()]
        needs_names = operator.takes is not dict and operator.reads_as_attributes
        if bad and not missing and needs_names:
            text = f"columns {bad} cannot be attributes of a message; rename them with map first"
            self.report(operator, text)
            return False
        return not missing

    def resolve(self, operator: Operator, resolved: Resolved, method: str) -> bool:
        """Report an expression that has no type here, or looks beyond its row."""
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

    def condition(self, operator: Operator, before: Flow, expression: pl.Expr, method: str) -> bool:
        """Report an expression that is not one truth value for each row."""
        resolved = Resolved(expression, before.schema)
        if not self.resolve(operator, resolved, method):
            return False
        kinds = [column.type for column in resolved.schema]
        if kinds != [pa.bool_()]:
            found = ", ".join(map(str, kinds))
            text = f"{method} needs one true or false; {expression!s} gives {found}"
            self.report(operator, text)
            return False
        return True

    def need_key(self, operator: Operator, before: Flow, needed: bool) -> bool:
        """Report a key that was lost on the way, where one is needed."""
        if needed and before.lost is not None:
            text = (
                f"needs the key {list(before.keys)}, but operator {before.lost!r} drops or changes "
                "a column of it; keep it, or partition_by again"
            )
            self.report(operator, text)
            return False
        return True
