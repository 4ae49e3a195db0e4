"""Broadcast stores in a plan: where each one's rows come from, and the columns that are held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.graph.aggregates import unknown_column
from headrace.graph.operators import JoinTable, Operator, Process
from headrace.graph.tables import BroadcastSpec
from headrace.plan.stages import StreamInfo, TableBinding

_NO_KEY = (pa.types.is_nested, pa.types.is_decimal, pa.types.is_duration)
Report = Callable[[Operator, str], None]


@dataclass(frozen=True)
class TableFile:
    """A file of rows as the job's storage holds it since the start: columns, path, checksum."""

    schema: pa.Schema
    path: str = ""
    digest: str = ""


def tables_of(operator: Operator) -> tuple[BroadcastSpec, ...]:
    """Return the broadcast stores that an operator uses."""
    if isinstance(operator, JoinTable):
        return (operator.table,)
    return operator.tables if isinstance(operator, Process) else ()


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
        """Return a table with all its columns, or ``None`` after its mistakes were told once."""
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
            if kind is not None and any(test(kind) for test in _NO_KEY):
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
            for spec in tables_of(operator):
                bound = self._bound[spec.name]
                assert bound is not None
                wanted = needed.setdefault(spec.name, set(spec.key))
                if isinstance(operator, JoinTable):
                    made = schemas[operator.name].names
                    wanted |= {old for new, old in joined(operator, bound) if new in made}
                else:
                    wanted |= set(bound.schema.names)
        return tuple(
            replace(bound, schema=pa.schema([f for f in bound.schema if f.name in needed[name]]))
            for name, bound in self._bound.items()
            if bound is not None and name in needed
        )


def joined(operator: JoinTable, bound: TableBinding) -> tuple[tuple[str, str], ...]:
    """Return (new name, name in the table) for each column that a join adds."""
    if operator.columns is not None:
        return operator.columns
    return tuple((name, name) for name in bound.schema.names if name not in bound.key)


def join_mistakes(
    operator: JoinTable,
    table: TableBinding,
    columns: Iterable[tuple[str, str]],
    known: pa.Schema,
) -> list[str]:
    """Say what keeps a join from the columns that are there."""
    wrong = []
    for name, key in zip(operator.on, table.key, strict=True):
        mine, theirs = known.field(name).type, table.schema.field(key).type
        both_whole = pa.types.is_integer(mine) and pa.types.is_integer(theirs)
        if not both_whole and not mine.equals(theirs):
            wrong.append(
                f"column {name!r} is {mine}, but {key!r} of {table.name!r} is {theirs}; cast it "
                "with map first"
            )
    names = [new for new, _ in columns]
    taken = sorted({name for name in names if name in known.names or names.count(name) > 1})
    if taken:
        wrong.append(
            f"columns {taken} would be there twice: choose others with columns=[...], or rename "
            'them with columns={"new": "old"}'
        )
    return wrong


def _placed(spec: BroadcastSpec, stream: StreamInfo) -> bool:
    return bool(stream.key) and set(stream.key) <= set(spec.key)
