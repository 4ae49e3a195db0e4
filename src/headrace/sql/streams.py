"""Streams of relations: how the queries of SQL apps, and of ``stream.sql``, become operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.durations import duration_ms
from headrace.errors import InvalidInputError
from headrace.graph import agg
from headrace.graph.builder import Graph, Stream
from headrace.graph.event_times import processing_time
from headrace.graph.introspection import site_at
from headrace.graph.joins import Table
from headrace.graph.operators import IS_DELETED, Site
from headrace.graph.rankings import FirstRows
from headrace.graph.windows import BOUNDS, LATE_SIDE
from headrace.plan.inference import Inference
from headrace.queries.text import SqlText, near
from headrace.sql.functions import given_functions, with_functions
from headrace.sql.mistakes import SqlSite
from headrace.sql.queries import QueryCompiler, in_ms
from headrace.sql.ranking import RANKED, TOP
from headrace.sql.relations import (
    EVENT,
    LATE_COLUMN,
    Joining,
    Late,
    Limiting,
    Merging,
    Reading,
    Relation,
    Selection,
    TableJoining,
    TopK,
    late_of,
)
from headrace.sql.row_numbers import Ranking, ranked
from headrace.sql.statements import OPTIONS, SIDE_OUTPUT, STATE, parse_stream_query

INPUT = "input"
"""The name by which a query reads the stream that it is a method of."""


def query_stream(
    stream: Stream,
    query: str,
    name: str,
    site: Site,
    options: Mapping[str, Any],
    others: Mapping[str, Stream | Table[Stream]],
    functions: Mapping[str, Any] | None = None,
) -> tuple[Stream, dict[str, Stream]]:
    """Return the rows of a query over streams, and its side outputs: what ``Stream.sql`` calls.

    Args:
        stream: known as ``input``, and by its own name.
        query: one ``SELECT``, or a union of several.
        name: that names of stores begin with.
        site: the user's line.
        options: of windows and joins, as of an app.
        others: streams and tables by name.
        functions: of the user, by name.

    Raises:
        InvalidInputError: the query has a mistake, or the columns of a stream are not known.
    """
    source = SqlText(query, f"{site} sql")
    site = SqlSite(site.file, site.line, source)
    tree, emit = parse_stream_query(source)
    given = {INPUT: stream, stream.name: stream, **others}
    relations = {one: _relation(key, one) for key, one in given.items()}
    compiler = QueryCompiler(
        source,
        _options(options),
        {key: relations[one] for key, one in given.items()},
        name,
        site,
        keeps_bounds=False,
        emit=emit,
        functions=(known := given_functions(functions or {})),
    )
    made = compiler(with_functions(tree, known))
    builder = StreamBuilder(given={rows: one for one, rows in relations.items()})
    found, late = builder.stream(made), late_of(made)
    if late is None and options.get("late") == SIDE_OUTPUT:
        raise InvalidInputError("late is 'side_output', which is for aggregates of windows")
    return found, {} if late is None else {LATE_SIDE: builder.stream(late)}


def _relation(name: str, given: Stream | Table[Stream]) -> Relation:
    """Return what a query knows of a stream or table."""
    if not isinstance(given, Stream | Table):
        raise InvalidInputError(f"sql reads streams and tables; {name} is {given!r}")
    stream = given.kept() if isinstance(given, Table) else given
    found = Inference(stream.upstream, {})
    found.run()
    flow = found.flows.get(stream.name)
    if flow is None:
        raise InvalidInputError(
            f"sql needs the columns of stream {stream.name!r}: give schema= to its inputs; "
            f"{found.mistakes[0]}"
        )
    is_timed = flow.time is not None and flow.window_ms is None
    return Relation(
        columns=tuple(flow.schema.names),
        times={flow.time: (0, 0)} if is_timed and flow.time is not None else {},
        is_changing=isinstance(given, Table),
        key=(given.keys or ()) if isinstance(given, Table) else (),
    )


def _options(given: Mapping[str, Any]) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name, value in given.items():
        kind = OPTIONS.get(name)
        if kind is None or name == STATE:
            raise InvalidInputError(f"no option {name!r}; {near(name, set(OPTIONS) - {STATE})}")
        if kind is str:
            found[name] = duration_ms(value, name, least=0)
        elif isinstance(kind, tuple) and value not in kind:
            listed = " or ".join(map(repr, kind))
            raise InvalidInputError(f"{name} is {value!r}; expected {listed}")
        elif kind is int and (not isinstance(value, int) or value < 1):
            raise InvalidInputError(f"{name} is {value!r}; expected at least 1")
        else:
            found[name] = value
    return found


class StreamBuilder:
    """Builds the streams of relations, each once.

    Args:
        g: the graph, for relations that are inputs.
        schemas: of inputs that are declared with types.
        given: streams and tables that relations stand for.
    """

    def __init__(
        self,
        g: Graph | None = None,
        schemas: Mapping[str, pa.Schema] | None = None,
        given: Mapping[Relation, Stream | Table[Stream]] | None = None,
    ) -> None:
        self._graph, self._schemas, self._given = g, schemas or {}, given or {}
        self._streams: dict[Relation, Stream] = {}
        self._windows: dict[Selection, Stream] = {}
        self.read: set[str] = set()

    def stream(self, rows: Relation) -> Stream:
        """Return the stream of a relation."""
        if rows not in self._streams:
            self._streams[rows] = self._made(rows)
        return self._streams[rows]

    def _made(self, rows: Relation) -> Stream:
        given = self._given.get(rows)
        if given is not None:
            return given.kept() if isinstance(given, Table) else given
        if isinstance(rows, Reading):
            return self._input(rows)
        if isinstance(rows, Merging):
            return self._merged(rows)
        if isinstance(rows, Joining):
            return self._joined(rows)
        if isinstance(rows, TableJoining):
            with site_at(rows.site):
                changes = self._table_of(rows, rows.key, rows.name).changes(f"{rows.name}.changes")
                made = [one.alias(name) for name, one in rows.made.items()]
                return changes.select(*made, IS_DELETED)
        if isinstance(rows, Limiting):
            return self._limited(rows)
        if isinstance(rows, Late):
            return self._late(rows)
        assert isinstance(rows, Selection | Ranking)
        origin = self.stream(rows.origin)
        with site_at(rows.site):
            if isinstance(rows, Ranking):
                return ranked(origin, rows)
            return self._selected(origin, rows)

    def _input(self, rows: Reading) -> Stream:
        table = rows.table
        name = table.name.text
        assert self._graph is not None
        self.read.add(name)
        lateness = {}
        if table.lateness_ms is not None:
            lateness = {"out_of_orderness": in_ms(table.lateness_ms)}
        time = processing_time() if table.is_proctime else None
        with site_at(rows.site):
            return self._graph.input(
                table.stream.text,
                time=time if table.time is None else table.time.text,
                schema=self._schemas.get(name),
                name=name,
                **lateness,  # type: ignore[arg-type]
            )

    def _table_of(self, rows: Relation, keys: Sequence[str], name: str) -> Table[Stream]:
        """Return a table of rows by their key; of a join of tables the join."""
        if isinstance(rows, TableJoining):
            left = self._table_of(rows.left, rows.left.key, f"{rows.name}.left")
            right = self._table_of(rows.right, rows.right_keys, f"{rows.name}.right")
            return left.join(right, how=rows.how, columns=rows.added, name=rows.name)
        known = self._given.get(rows)
        if isinstance(known, Table):
            return known
        return self._keyed(rows, keys).table(name=name)

    def _keyed(self, rows: Relation, keys: Sequence[str]) -> Stream:
        """Return the rows of a table, by its key; those that are deleted have no value beside."""
        stream = self.stream(rows)
        if rows.has_deletes:
            stream = stream.select(*rows.columns)
        return stream.partition_by(*keys)

    def _joined(self, rows: Joining) -> Stream:
        left, known = self.stream(rows.left), self._given.get(rows.right)
        with site_at(rows.site):
            if rows.left_made:
                left = left.with_columns(*rows.left_made)
            if not isinstance(rows.left, Joining) or left.keys != rows.left_keys:
                left = left.partition_by(*rows.left_keys)
        options: dict[str, Any] = {"how": rows.how, "columns": rows.added, "name": rows.name}
        if rows.as_of is not None:
            table = known if isinstance(known, Table) else None
            with site_at(rows.site):
                if table is None:
                    keyed = self._keyed(rows.right, rows.right_keys)
                    history = "0s" if rows.as_of == EVENT else None
                    table = keyed.table(name=f"{rows.name}.table", history=history)
                made = left.join(table, as_of=rows.as_of, **options)
        else:
            options["allowed_lateness"] = in_ms(rows.grace_ms)
            if rows.window is None:
                options |= {"before": in_ms(rows.before_ms), "after": in_ms(rows.after_ms)}
            else:
                options["window"] = rows.window
            with site_at(rows.site):
                right = self.stream(rows.right)
                right = right.select(*rows.right_made).partition_by(*rows.right_keys)
                made = left.join(right, **options)
        with site_at(rows.site):
            if rows.where is not None:
                made = made.filter(rows.where)
            return made.select(*rows.after)

    def _limited(self, rows: Limiting) -> Stream:
        origin = self.stream(rows.origin)
        with site_at(rows.site):
            first = FirstRows(rows.kept, rows.order, rows.count)
            found = origin.gather().window(rows.window, {TOP: first}, name=rows.name)
            return _unfolded(found.flat_map(pl.col(TOP), *BOUNDS), rows.columns, rows.kept)

    def _selected(self, stream: Stream, query: Selection) -> Stream:
        if query.where is not None:
            stream = stream.filter(query.where)
        if query.unnested is not None:
            made = dict(zip(query.columns, query.after, strict=True))
            return stream.flat_map(made.pop(query.unnested), *made.values()).select(*query.columns)
        if not query.aggregates:
            return stream.select(*query.after)
        stream = stream.select(*query.before)
        if query.top_k is not None:
            return _ranked(stream, query, query.top_k)
        stream = stream.partition_by(*query.keys) if query.keys else stream.gather()
        if query.window is not None:
            stream = stream.window(query.window, dict(query.aggregates), name=query.name)
            self._windows[query] = stream
        else:
            every = None if query.every_ms is None else in_ms(query.every_ms)
            stream = stream.aggregate(dict(query.aggregates), every=every, name=query.name)
        if query.having is not None:
            stream = stream.filter(query.having)
        return stream.select(*query.after)

    def _late(self, rows: Late) -> Stream:
        self.stream(rows.of)
        late = self._windows[rows.of].side(LATE_SIDE)
        with site_at(rows.of.site):
            return late.select(*[pl.col(f"{LATE_COLUMN}{c}").alias(c) for c in rows.columns])

    def _merged(self, rows: Merging) -> Stream:
        """Merge streams; if they are partitioned differently, each by all columns first."""
        streams = []
        for part, names in rows.parts:
            stream = self.stream(part)
            renamed = zip(part.columns, names, strict=True)
            with site_at(rows.site):
                streams.append(stream.select(*(pl.col(old).alias(new) for old, new in renamed)))
        with site_at(rows.site):
            keys = {stream.keys for stream in streams}
            if len(keys) > 1 or _renames_key(rows, streams):
                shared = [
                    name for name in rows.columns if all(name in names for _, names in rows.parts)
                ]
                streams = [stream.partition_by(*shared) for stream in streams]
            return streams[0].union(*streams[1:])


def _renames_key(rows: Merging, streams: Sequence[Stream]) -> bool:
    """Say whether a key is another column behind the union than before."""
    return any(
        key not in part.columns or names[part.columns.index(key)] != key
        for (part, names), stream in zip(rows.parts, streams, strict=True)
        for key in stream.keys or ()
    )


def _ranked(stream: Stream, query: Selection, top: TopK) -> Stream:
    """Keep the highest score of each ranked value, then the highest of these within the key."""
    assert query.window is not None
    scores = stream.partition_by(*query.keys).window(
        query.window, dict(query.aggregates), name=f"{query.name}.scores"
    )
    best = {TOP: agg.top_k(RANKED, top.count, keep=[top.item])}
    within = scores.partition_by(*top.keys) if top.keys else scores.gather()
    ranked = within.window(query.window, best, name=query.name)
    rows = ranked.flat_map(pl.col(TOP), *top.keys, *BOUNDS)
    field_of = pl.col(TOP).struct.field
    shown = {top.item: field_of(top.item), top.name: field_of(RANKED)}
    return rows.select(*[shown.get(c, pl.col(c)).alias(c) for c in query.columns])


def _unfolded(stream: Stream, columns: Sequence[str], kept: Sequence[str]) -> Stream:
    """Make columns of the fields of rows that were kept."""
    field_of = pl.col(TOP).struct.field
    return stream.select(*[(field_of(c) if c in kept else pl.col(c)).alias(c) for c in columns])
