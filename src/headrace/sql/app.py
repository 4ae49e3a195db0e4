"""An SQL app as a job: each query is checked and compiled, then built as a job in Python is.

Source: seed 003, section 2.2 and Figure 2 (Puma).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.graph import agg
from headrace.graph.aggregates import Aggregate
from headrace.graph.builder import Graph, Job, Stream
from headrace.graph.introspection import site_at
from headrace.graph.operators import Site
from headrace.graph.windows import (
    BOUNDS,
    Tumbling,
    Window,
    hopping,
    session,
    sliding,
    tumbling,
)
from headrace.records.schema import normalise_type
from headrace.sql.expressions import (
    Aggregates,
    Compiler,
    data_type,
    has_aggregate,
    is_aggregate,
    text_of,
)
from headrace.sql.statements import (
    WINDOW,
    InputTable,
    Query,
    SqlText,
    Statements,
    WindowText,
    near,
    parse_app,
    place_of,
)

TOP_K = 10
"""How many rows ``topk`` keeps where neither the query nor the app says it."""

_RANKED = "_score"
_TOP = "_top"


@dataclass(frozen=True)
class _TopK:
    """``topk``: the key to rank within, the column to rank, that of its score, and how many."""

    keys: tuple[str, ...]
    item: str
    name: str
    count: int


@dataclass(frozen=True)
class _Compiled:
    """A query, compiled: from where it reads which rows, and to which stream it sends.

    ``before`` are the columns that are grouped and aggregated, ``after`` those of the result.
    Without ``window``, rows are made one by one.
    """

    name: str
    stream: str
    site: Site
    origin: str
    where: pl.Expr | None
    before: tuple[pl.Expr, ...] = ()
    keys: tuple[str, ...] = ()
    window: Window | None = None
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    having: pl.Expr | None = None
    after: tuple[pl.Expr, ...] = ()
    columns: tuple[str, ...] = ()
    top_k: _TopK | None = None


@dataclass(frozen=True)
class SqlApp:
    """An app whose statements were checked.

    ``job`` runs it; ``tables`` has the stream that each table or stream of the app is sent to, and
    ``schemas`` the columns of input tables that are declared with types.
    """

    statements: Statements
    job: Job
    tables: Mapping[str, str]
    schemas: Mapping[str, pa.Schema]


def load_app(source: Path | SqlText) -> SqlApp:
    """Read an app, check it and make its job.

    Args:
        source: the file, or its text.

    Raises:
        InvalidInputError: the file cannot be read, or a statement has a mistake; shows where.
    """
    if isinstance(source, Path):
        try:
            source = SqlText(source.read_text(encoding="utf-8"), str(source))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"cannot read the SQL app {source}: {error}") from error
    statements = parse_app(source)
    checker = _Checker(statements)
    queries = tuple(map(checker.compiled, statements.queries))
    if not queries:
        raise source.mistake(
            "the app makes nothing: add CREATE TABLE ... AS SELECT ..., or CREATE STREAM",
            statements.name.place,
        )
    inputs = tuple(checker.inputs.values())
    job = Job(statements.name.text, partial(_build, source, inputs, queries))
    tables = {query.name: query.stream for query in queries}
    schemas = {i.table.name.text: i.schema for i in inputs if i.schema is not None}
    return SqlApp(statements, job, tables, schemas)


def load_job(path: Path) -> Job:
    """Return the job of a file: what commands run that are given a ``.sql`` file.

    Raises:
        InvalidInputError: as of ``load_app``.
    """
    return load_app(path).job


@dataclass(frozen=True)
class _Input:
    table: InputTable
    schema: pa.Schema | None
    site: Site


class _Checker:
    """Checks the statements of an app in their order, and compiles its queries."""

    def __init__(self, statements: Statements) -> None:
        self._statements, self._source = statements, statements.source
        self.inputs: dict[str, _Input] = {}
        self._columns: dict[str, tuple[str, ...]] = {}
        for table in statements.inputs:
            self._claim(table.name.text, table)
            self.inputs[table.name.text] = _Input(
                table,
                self._schema(table),
                Site(self._source.file, self._source.line(table.name.place)),
            )
            self._columns[table.name.text] = tuple(column.text for column in table.columns)

    def _claim(self, name: str, at: InputTable | Query) -> None:
        if name in self._columns:
            raise self._source.mistake(f"{name!r} is there twice", at.name.place)

    def _schema(self, table: InputTable) -> pa.Schema | None:
        fields = []
        for column, kind in zip(table.columns, table.types, strict=True):
            if kind is None:
                return None
            try:
                found = data_type(self._source, kind)
            except InvalidInputError as error:
                raise self._source.mistake(
                    f"column {column.text!r}: {error.message.split(': ', 1)[1].splitlines()[0]}",
                    column.place,
                ) from error
            made = pl.Series([], dtype=found).to_arrow().type
            fields.append(pa.field(column.text, normalise_type(made)))
        return pa.schema(fields)

    def compiled(self, query: Query) -> _Compiled:
        """Check and compile one query, whose rows later ones may read."""
        self._claim(query.name.text, query)
        made = _compile(self._statements, query, self._columns)
        self._columns[query.name.text] = made.columns
        return made


_PARTS = {
    "joins": "JOIN",
    "laterals": "LATERAL",
    "with_": "WITH",
    "with": "WITH",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "qualify": "QUALIFY",
    "windows": "WINDOW",
    "sample": "USING SAMPLE",
    "pivots": "PIVOT",
    "cluster": "CLUSTER BY",
    "into": "INTO",
}


def _compile(
    statements: Statements, query: Query, tables: Mapping[str, tuple[str, ...]]
) -> _Compiled:
    source, select = statements.source, query.select
    for part, shown in _PARTS.items():
        found = select.args.get(part)
        if found:
            at = found[0] if isinstance(found, list) else found
            raise source.mistake(f"{shown} is not known in a query of an app", place_of(at))
    table = _table_of(source, select, tables)
    window = _window(table.args.get(WINDOW))
    names = (table.name, table.alias_or_name)
    columns = tables[table.name]
    plain = Compiler(source, {name: pl.col(name) for name in columns}, names)
    where = select.args.get("where")
    if where is not None and has_aggregate(where):
        raise source.mistake("WHERE is before grouping: use HAVING", place_of(where.this))
    condition = None if where is None else plain(where.this)
    items = list(_projections(source, select, columns))
    site = Site(source.file, source.line(query.name.place))
    stream = query.name.text if query.is_stream else f"{statements.name.text}.{query.name.text}"
    common = _Compiled(query.name.text, stream, site, table.name, condition)
    is_grouped = any(has_aggregate(node) for _, node in items) or _is_distinct(select)
    if select.args.get("group") is None and not is_grouped:
        made = {name: plain(node).alias(name) for name, node in items}
        if window is not None or not query.is_stream:
            raise source.mistake(
                "a table has aggregates, such as count(*); to pass on rows, use CREATE STREAM "
                "without a window",
                query.name.place,
            )
        return replace(common, after=tuple(made.values()), columns=tuple(made))
    if window is None:
        end = place_of(table)
        raise source.mistake(
            f"aggregates need a window: write {table.name} [5 minutes], [1 hour every 5 minutes], "
            "[sliding 1 hour] or [session 30 minutes]",
            end,
        )
    ranked = next(((n, node) for n, node in items if _is_topk(node)), None)
    if ranked is not None:
        return _compile_top_k(statements, select, window, plain, items, ranked, common)
    return _compile_groups(source, select, window, plain, items, common)


def _table_of(
    source: SqlText, select: exp.Select, tables: Mapping[str, tuple[str, ...]]
) -> exp.Table:
    origin = select.args.get("from_") or select.args.get("from")
    table = None if origin is None else origin.this
    if table is None:
        raise source.mistake("the query reads nothing: add FROM table", place_of(select))
    if not isinstance(table, exp.Table):
        raise source.mistake(
            "queries within queries are not known yet: name the inner one with CREATE STREAM",
            place_of(table),
        )
    if table.name not in tables:
        raise source.mistake(
            f"no table {table.name!r}; {near(table.name, tables)}", place_of(table)
        )
    return table


def _window(text: WindowText | None) -> Window | None:
    if text is None:
        return None
    if text.kind == "hopping":
        return hopping(_ms(text.size_ms), every=_ms(text.step_ms or 0))
    size = _ms(text.size_ms)
    if text.kind == "sliding":
        return sliding(size)
    return session(size) if text.kind == "session" else tumbling(size)


def _ms(duration: int) -> str:
    return f"{duration}ms"


def _is_distinct(select: exp.Select) -> bool:
    return select.args.get("distinct") is not None


def _is_topk(node: Any) -> bool:
    return is_aggregate(node) and isinstance(node, exp.Anonymous)


def _projections(
    source: SqlText, select: exp.Select, columns: Sequence[str]
) -> list[tuple[str, Any]]:
    """Return the names and trees of what a query selects."""
    found: list[tuple[str, Any]] = []
    for item in select.expressions:
        if isinstance(item, exp.Star):
            found += [(name, exp.column(name)) for name in columns]
        elif isinstance(item, exp.Alias):
            found.append((item.alias, item.this))
        elif isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
            found.append((item.name, item))
        else:
            raise source.mistake("a computed column needs a name: ... AS name", place_of(item))
    names = [name for name, _ in found]
    for item, (name, _) in zip(select.expressions, found, strict=False):
        if names.count(name) > 1:
            raise source.mistake(f"column {name!r} is there twice", place_of(item))
    return found


def _group_trees(
    source: SqlText, select: exp.Select, items: Sequence[tuple[str, Any]]
) -> list[tuple[str, Any]]:
    """Return the names and trees of the key: what GROUP BY says, or all that is no aggregate."""
    group = select.args.get("group")
    if group is None or group.args.get("all"):
        own = [(name, node) for name, node in items if not has_aggregate(node)]
        return [(name, node) for name, node in own if not _is_bound(node)]
    aliases = dict(items)
    found: list[tuple[str, Any]] = []
    for node in group.expressions:
        tree = node
        if isinstance(node, exp.Literal) and not node.is_string:
            place = int(node.this)
            if not 1 <= place <= len(items):
                raise source.mistake(f"there is no column {place}", place_of(node))
            name, tree = items[place - 1]
        elif isinstance(node, exp.Column) and not node.table and node.name in aliases:
            name = node.name
            tree = aliases[name]
        else:
            shown = [n for n, t in items if text_of(t) == text_of(node)]
            plain = node.name if isinstance(node, exp.Column) else f"_key{len(found)}"
            name = shown[0] if shown else plain
        if has_aggregate(tree):
            raise source.mistake("the key cannot be an aggregate", place_of(node))
        found.append((name, tree))
    return [(name, tree) for name, tree in found if not _is_bound(tree)]


def _is_bound(node: Any) -> bool:
    return isinstance(node, exp.Column) and node.name in BOUNDS


def _compile_groups(
    source: SqlText,
    select: exp.Select,
    window: Window,
    plain: Compiler,
    items: Sequence[tuple[str, Any]],
    common: _Compiled,
) -> _Compiled:
    keys = _group_trees(source, select, items)
    aggregates = Aggregates([name for name, _ in keys])
    known = {name: pl.col(name) for name in (*(name for name, _ in keys), *BOUNDS)}
    groups = {text_of(node): pl.col(name) for name, node in keys}
    after = Compiler(source, known, plain.table, aggregates, plain, groups)
    made = {name: after(node).alias(name) for name, node in items}
    having = select.args.get("having")
    condition = None if having is None else after(having.this)
    for bound in BOUNDS:
        made.setdefault(bound, pl.col(bound))
    if not aggregates.found:
        aggregates.add(agg.count())
    before = [plain(node).alias(name) for name, node in keys]
    before += [value.alias(name) for name, value in aggregates.arguments.items()]
    return replace(
        common,
        before=tuple(before),
        keys=tuple(name for name, _ in keys),
        window=window,
        aggregates=aggregates.found,
        having=condition,
        after=tuple(made.values()),
        columns=tuple(made),
    )


def _compile_top_k(
    statements: Statements,
    select: exp.Select,
    window: Window,
    plain: Compiler,
    items: Sequence[tuple[str, Any]],
    ranked: tuple[str, Any],
    common: _Compiled,
) -> _Compiled:
    """Rank what is selected before ``topk(score)`` by the highest score that it had in the window.

    The last plain column is what is ranked; those before it are the key that it is ranked within.
    """
    source = statements.source
    name, call = ranked
    place = place_of(call)
    others = [(n, node) for n, node in items if node is not call]
    if not others or any(has_aggregate(node) for _, node in others):
        raise source.mistake(
            "topk stands alone with the columns of the key and what is ranked: "
            "SELECT category, event, topk(score) AS score",
            place,
        )
    if not isinstance(window, Tumbling):
        raise source.mistake("topk is known for windows such as [5 minutes] only", place)
    for part in ("having", "group"):
        if select.args.get(part) is not None:
            raise source.mistake(
                f"{part.upper()} is not known together with topk, which says what is ranked", place
            )
    if not 1 <= len(call.expressions) <= 2:
        raise source.mistake("topk takes a column, and how many rows to keep", place)
    count = statements.options.get("topk", TOP_K)
    if len(call.expressions) > 1:
        count = plain.constant(call.expressions[1], "the number of rows")
        if not isinstance(count, int) or count < 1:
            raise source.mistake("topk keeps at least one row", place)
    before = [plain(node).alias(column) for column, node in others]
    before.append(plain(call.expressions[0]).alias(_RANKED))
    *keys, item = [column for column, _ in others]
    ordered = dict.fromkeys([*(column for column, _ in items), *BOUNDS])
    return replace(
        common,
        before=tuple(before),
        keys=(*keys, item),
        window=window,
        aggregates={_RANKED: agg.max(_RANKED)},
        columns=tuple(ordered),
        top_k=_TopK(tuple(keys), item, name, count),
    )


def _build(
    source: SqlText, inputs: Sequence[_Input], queries: Sequence[_Compiled], g: Graph
) -> None:
    """Build the graph of an app: what its job calls."""
    streams: dict[str, Stream] = {}
    for one in inputs:
        table = one.table
        used = {query.origin for query in queries}
        if table.name.text not in used:
            place = table.name.place
            raise source.mistake(f"no query reads table {table.name.text!r}: remove it", place)
        with site_at(one.site):
            lateness = (
                {} if table.lateness_ms is None else {"out_of_orderness": _ms(table.lateness_ms)}
            )
            streams[table.name.text] = g.input(
                table.stream.text,
                time=table.time.text,
                schema=one.schema,
                name=table.name.text,
                **lateness,  # type: ignore[arg-type]
            )
    for query in queries:
        with site_at(query.site):
            made = _rows(streams[query.origin], query)
            streams[query.name] = made
            made.send_to(g.output(query.stream))


def _rows(stream: Stream, query: _Compiled) -> Stream:
    if query.where is not None:
        stream = stream.filter(query.where)
    if query.window is None:
        return stream.select(*query.after)
    stream = stream.select(*query.before)
    if query.top_k is not None:
        return _ranked(stream, query, query.top_k)
    stream = stream.partition_by(*query.keys) if query.keys else stream.gather()
    stream = stream.window(query.window, dict(query.aggregates), name=query.name)
    if query.having is not None:
        stream = stream.filter(query.having)
    return stream.select(*query.after)


def _ranked(stream: Stream, query: _Compiled, top: _TopK) -> Stream:
    """Keep the highest score of each ranked value, then the highest of these within the key."""
    assert query.window is not None
    scores = stream.partition_by(*query.keys).window(
        query.window, dict(query.aggregates), name=f"{query.name}.scores"
    )
    best = {_TOP: agg.top_k(_RANKED, top.count, keep=[top.item])}
    within = scores.partition_by(*top.keys) if top.keys else scores.gather()
    ranked = within.window(query.window, best, name=query.name)
    rows = ranked.flat_map(pl.col(_TOP), *top.keys, *BOUNDS)
    field_of = pl.col(_TOP).struct.field
    shown = {top.item: field_of(top.item), top.name: field_of(_RANKED)}
    return rows.select(*[shown.get(c, pl.col(c)).alias(c) for c in query.columns])
