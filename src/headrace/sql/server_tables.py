"""Tables of an app whose state is on a server: ``WITH (state = 'redis://...')``, or PostgreSQL.

As in Puma, whose apps keep aggregates in HBase (seed 003, section 2.2): an epoch sends what it
adds to each key and window, and queries combine what is there. A job keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

import headrace as hr
from headrace.errors import InvalidInputError, UnavailableError
from headrace.graph.aggregates import Aggregate
from headrace.graph.builder import Stream
from headrace.graph.introspection import site_at
from headrace.graph.operator_base import JobGraph
from headrace.graph.operators import SendToSink
from headrace.graph.processors import MonoidProcessor, PartialSink
from headrace.graph.types import polars_type
from headrace.graph.windows import BOUNDS, Hopping, Tumbling, Window
from headrace.plan.inference import Inference
from headrace.records.schema import normalise_type
from headrace.redaction import without_login
from headrace.sql.relations import Selection, TopK
from headrace.sql.statements import STATE_SCHEMES

START, END = BOUNDS
MOMENT = pa.timestamp("us", tz="UTC")
ONE = "total"
"""The key of a table that has neither a key nor a window."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAKEN = ("partial", "value", "at")


@dataclass(frozen=True)
class ServerTable:
    """How what is on a server becomes the rows of a table.

    ``keys`` are the columns of the key, with that of the window's beginning, and ``names`` what
    they are called there; ``aggregates`` are bound to ``raw`` columns, times among these being
    integers, as partial results hold no others; ``shown`` are the types of their results.
    """

    name: str
    keys: pa.Schema
    names: tuple[str, ...]
    raw: pa.Schema
    aggregates: tuple[tuple[str, Aggregate], ...]
    shown: pa.Schema
    window: tuple[int, int] | None
    having: pl.Expr | None
    after: tuple[pl.Expr, ...]
    columns: tuple[str, ...]
    top_k: TopK | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self.rows([]).schema

    def starts(self, time_ms: int) -> Iterator[datetime]:
        """Yield where the windows of a row begin."""
        assert self.window is not None
        size_ms, step_ms = self.window
        start = time_ms // step_ms * step_ms
        while start > time_ms - size_ms:
            yield _EPOCH + timedelta(milliseconds=start)
            start -= step_ms

    def rows(self, totals: Iterable[tuple[Any, Any]]) -> pa.Table:
        """Return the rows of keys and their totals, as a server has them."""
        found = [(key if isinstance(key, tuple) else (key,), total) for key, total in totals]
        columns: dict[str, pa.Array] = {}
        for at, field in enumerate(self.keys):
            columns[field.name] = pa.array([key[at] for key, _ in found], field.type)
        results = []
        for number, (name, aggregate) in enumerate(self.aggregates):
            prefix = f"{name}."
            types = aggregate.partial_types(self.raw)
            for at, (suffix, kind) in enumerate(types.items()):
                values = [total[number][at] for _, total in found]
                columns[f"{prefix}{suffix}"] = pa.array(values, kind)
            kind = polars_type(self.shown.field(name).type)
            results.append(aggregate.result(prefix).cast(kind).alias(name))
        frame = pl.DataFrame(pl.from_arrow(pa.table(columns))).with_columns(results)
        if self.window is not None:
            frame = frame.with_columns(
                (pl.col(START) + pl.duration(milliseconds=self.window[0])).alias(END)
            )
        if self.having is not None:
            frame = frame.filter(self.having)
        if (top := self.top_k) is not None:
            frame = _ranked(frame, top, self.aggregates[0][0]).select(self.columns)
        else:
            frame = frame.select(*self.after)
        made = frame.to_arrow()
        return made.cast(pa.schema([(one.name, normalise_type(one.type)) for one in made.schema]))


def _ranked(frame: pl.DataFrame, top: TopK, score: str) -> pl.DataFrame:
    """Keep the rows with the highest scores of each key and window; of equal ones the least."""
    known = frame.filter(pl.col(score).is_not_null())
    order = known.sort(score, top.item, descending=[True, False], nulls_last=True)
    kept = order.group_by(*top.keys, START, maintain_order=True).head(top.count)
    return kept.with_columns(pl.col(score).alias(top.name))


class SqlTotals(MonoidProcessor[Any, Any]):
    """What a row adds to the keys and windows of a table: a partial result of each aggregate."""

    def __init__(self, table: ServerTable) -> None:
        self.table = table
        names = {name: f"a{number}" for number, name in enumerate(table.raw.names)}
        self._lifts = [(one, [names[c] for c in one.columns()]) for _, one in table.aggregates]
        self._combines = [one.combine_values for _, one in table.aggregates]
        plain = len(table.keys) - (table.window is not None)
        self._keys = [f"k{number}" for number in range(plain)]

    def process(self, event: Any) -> Iterator[tuple[Any, Any]]:
        """Return the key and windows of a row, each with what the row adds."""
        key = tuple([getattr(event, name) for name in self._keys])
        added = [
            one.lift_values(tuple([getattr(event, name) for name in names]))
            for one, names in self._lifts
        ]
        if self.table.window is None:
            yield key if len(key) > 1 else key[0], added
            return
        for start in self.table.starts(event.t):
            yield (*key, start) if key else start, added

    def identity(self) -> list[Any]:
        """Return the results of no rows."""
        return [one.identity() for _, one in self.table.aggregates]

    def combine(self, first: list[Any], second: list[Any]) -> list[Any]:
        """Return two results as one."""
        return [
            join(one, other) for join, one, other in zip(self._combines, first, second, strict=True)
        ]


def keep(stream: Stream, query: Selection, address: str, job: str, name: str) -> None:
    """Have a job send what rows add to a table to the server that has the table.

    Args:
        stream: that the query reads.
        query: with aggregates.
        address: of the server.
        job: name of the app.
        name: of the table.

    Raises:
        InvalidInputError: types of columns are not known, or it cannot be kept there.
    """
    window = _window_of(query.window)
    with site_at(query.site):
        if query.where is not None:
            stream = stream.filter(query.where)
        columns = [*query.before]
        if window is not None:
            schema = _schema_of(stream, name)
            columns.append(_time(query, schema, name).alias("_time"))
        stream = stream.select(*columns)
        raw = _schema_of(stream, name)
        arguments = pa.schema([f for f in raw if f.name not in (*query.keys, "_time")])
        shown = pa.schema(
            [(n, one.bind(raw).result_type(raw)) for n, one in query.aggregates.items()]
        )
        plain = pa.schema([(f.name, _plain(f.type, name, f.name)) for f in arguments])
        wanted = [pl.col(key).alias(f"k{number}") for number, key in enumerate(query.keys)]
        wanted += [
            pl.col(field.name)
            .to_physical()
            .cast(polars_type(plain.field(field.name).type))
            .alias(f"a{number}")
            for number, field in enumerate(arguments)
        ]
        keys = [(key, raw.field(key).type) for key in query.keys]
        if window is not None:
            wanted.append(pl.col("_time").alias("t"))
            keys.append((START, MOMENT))
        if not keys:
            wanted.append(pl.lit(True).alias("k0"))
            keys = [(ONE, pa.bool_())]
        names = tuple(f"{key}_" if key in _TAKEN else key for key, _ in keys)
        table = ServerTable(
            name,
            pa.schema(keys),
            names,
            plain,
            tuple((n, one.bind(plain)) for n, one in query.aggregates.items()),
            shown,
            window,
            query.having if query.window is not None else None,
            query.after,
            query.columns,
            query.top_k,
        )
        rows = stream.select(*wanted)
        kinds = {own: kind for own, (_, kind) in zip(names, keys, strict=True)}
        target = _target(address, job, name)
        rows.monoid(partial(SqlTotals, table), kinds, target, name=name)


def _schema_of(stream: Stream, name: str) -> pa.Schema:
    found = Inference(stream.upstream, {})
    found.run()
    flow = found.flows.get(stream.name)
    if flow is None:
        raise InvalidInputError(
            f"table {name!r} has its state on a server, for which types must be known: give those "
            f"of the columns of input tables; {found.mistakes[0]}"
        )
    return flow.schema


def _plain(kind: pa.DataType, table: str, column: str) -> pa.DataType:
    """Return the type in which partial results have values: MessagePack has no times."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind):
        raise InvalidInputError(
            f"table {table!r} has its state on a server, where aggregates are of numbers, texts "
            f"and times; {column!r} is {kind}"
        )
    return kind


def _window_of(window: Window | None) -> tuple[int, int] | None:
    if isinstance(window, Hopping):
        return window.size_ms, window.every_ms
    return None if window is None else (_tumbling(window).size_ms,) * 2


def _tumbling(window: Window) -> Tumbling:
    assert isinstance(window, Tumbling)
    return window


def _time(query: Selection, schema: pa.Schema, name: str) -> pl.Expr:
    """Return the event time of a row in milliseconds."""
    exact = [(c, low) for c, (low, high) in query.origin.times.items() if low == high]
    if not exact:
        raise InvalidInputError(
            f"table {name!r} has its state on a server, and a window: what it reads needs a column "
            "with the event time of its rows"
        )
    column, ahead_ms = exact[0]
    at = pl.col(column)
    if pa.types.is_timestamp(schema.field(column).type):
        at = at.dt.epoch("ms")
    return at - ahead_ms


def _target(address: str, job: str, table: str) -> PartialSink:
    if address.startswith(STATE_SCHEMES["postgres"]):
        return hr.sinks.postgres_partials(address, f"{job}_{table}")
    return hr.sinks.redis_partials(address, f"headrace/{job}/{table}/")


@dataclass(frozen=True)
class ServerRows:
    """A table on a server, and where it is: what queries read."""

    table: ServerTable
    sink: Any

    def read(self, values: Mapping[str, Sequence[Any]]) -> pa.Table:
        """Return the rows, all that have one of the values that are wanted among them.

        Raises:
            UnavailableError: the server does not answer, or refuses.
        """
        wanted = {own: values[shown] for shown, own in self._looked_up() if shown in values}
        try:
            with self.sink.totals(partial(SqlTotals, self.table)) as totals:
                return self.table.rows(totals.items(wanted))
        except (OSError, *self.sink.errors()) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise UnavailableError(
                f"table {self.table.name!r}: the server at {without_login(self.sink.url)} does not "
                f"answer: {said}; check that it runs"
            ) from error

    def _looked_up(self) -> Iterator[tuple[str, str]]:
        """Yield columns of the table that are those of the key, with their names on the server."""
        table = self.table
        own = dict(zip(table.keys.names, table.names, strict=True))
        if table.top_k is not None:  # who is first depends on all rows of a key
            yield from ((key, own[key]) for key in table.top_k.keys)
            return
        for expression in table.after:
            plain = expression.meta.undo_aliases()
            if plain.meta.is_column() and (key := plain.meta.output_name()) in own:
                yield expression.meta.output_name(), own[key]


def server_rows(graphs: Iterable[JobGraph]) -> dict[str, ServerRows]:
    """Return the tables of jobs that are on servers, by name."""
    found = {}
    for graph in graphs:
        for operator in graph.operators:
            merge = (
                getattr(operator.sink, "merge", None) if isinstance(operator, SendToSink) else None
            )
            factory = getattr(merge, "factory", None)
            if isinstance(factory, partial) and factory.func is SqlTotals:
                table: ServerTable = factory.args[0]
                assert isinstance(operator, SendToSink)
                found[table.name] = ServerRows(table, operator.sink)
    return found
