"""An SQL app as a job: its statements are checked, and built as a job in Python is.

Source: seed 003, section 2.2 and Figure 2 (Puma).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.builder import Graph, Job
from headrace.graph.introspection import site_at
from headrace.graph.operators import Site
from headrace.graph.windows import Hopping, Tumbling
from headrace.queries.text import Place, SqlText, near
from headrace.records.schema import normalise_type
from headrace.sql import server_tables
from headrace.sql.expressions import data_type
from headrace.sql.functions import load_functions, with_functions
from headrace.sql.mistakes import SqlSite
from headrace.sql.queries import QueryCompiler
from headrace.sql.relations import Late, Reading, Relation, Selection, Served, late_of
from headrace.sql.sinks import SinkTarget, fitted, load_sinks, timed
from headrace.sql.statements import (
    INSERT,
    STATE,
    STREAM,
    TABLE,
    VIEW,
    InputTable,
    Query,
    SinkText,
    Statements,
    parse_app,
)
from headrace.sql.streams import StreamBuilder


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


@dataclass(frozen=True)
class _Output:
    """A table or stream that the app makes, or what it sends to a sink.

    Its name, the stream that it is sent to, if it is to one, its rows, and the sink.
    """

    name: str
    stream: str | None
    site: Site
    rows: Relation
    sink: SinkTarget | None = None
    place: Place | None = None


def load_app(source: Path | SqlText, *, is_trial: bool = False) -> SqlApp:
    """Read an app, check it and make its job.

    Args:
        source: the file, or its text.
        is_trial: rows for sinks go to streams instead, which are among its tables.

    Raises:
        InvalidInputError: the file cannot be read, or a statement has a mistake; shows where.
    """
    if isinstance(source, Path):
        try:
            source = SqlText(source.read_text(encoding="utf-8"), str(source))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"cannot read the SQL app {source}: {error}") from error
    statements = parse_app(source)
    checker = _Checker(statements, is_trial=is_trial)
    for query in statements.queries:
        checker.add(query)
    outputs = tuple(checker.outputs)
    if not outputs:
        raise source.mistake(
            "the app makes nothing: add CREATE TABLE ... AS SELECT ..., or CREATE STREAM",
            statements.name.place,
        )
    sent = {output.name for output in outputs}
    for sink in statements.sinks:
        if sink.name.text not in sent:
            raise source.mistake(
                f"nothing is sent to sink {sink.name.text!r}: remove it, or add INSERT INTO",
                sink.name.place,
            )
    name = statements.name.text
    job = Job(name, partial(_build, name, source, statements.inputs, checker.schemas, outputs))
    tables = {output.name: output.stream for output in outputs if output.stream is not None}
    return SqlApp(statements, job, tables, checker.schemas)


def load_job(path: Path) -> Job:
    """Return the job of a file: what commands run that are given a ``.sql`` file.

    Raises:
        InvalidInputError: as of ``load_app``.
    """
    return load_app(path).job


class _Checker:
    """Checks the statements of an app in their order, and compiles its queries."""

    def __init__(self, statements: Statements, *, is_trial: bool) -> None:
        self._statements, self._source = statements, statements.source
        self._is_trial = is_trial
        self._functions = load_functions(self._source, statements.functions)
        self.schemas: dict[str, pa.Schema] = {}
        self.outputs: list[_Output] = []
        self._relations: dict[str, Relation] = {}
        for table in statements.inputs:
            self._claim(table)
            if (schema := self._schema(table)) is not None:
                self.schemas[table.name.text] = schema
            self._relations[table.name.text] = Reading(
                table=table,
                site=self._site(table),
                columns=tuple(column.text for column in table.columns),
                times={} if table.time is None else {table.time.text: (0, 0)},
                is_changing=bool(table.key),
                key=tuple(column.text for column in table.key),
            )
        self._sinks = load_sinks(self._source, statements.sinks)
        for sink in statements.sinks:
            self._claim(sink)

    def _claim(self, at: InputTable | Query | SinkText) -> None:
        if at.name.text in self._relations:
            raise self._source.mistake(f"{at.name.text!r} is there twice", at.name.place)

    def _site(self, at: InputTable | Query) -> Site:
        line = self._source.line(at.name.place)
        return SqlSite(self._source.file, line, self._source)

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

    def add(self, query: Query) -> None:
        """Check and compile one query, whose rows later ones may read."""
        name, site = query.name.text, self._site(query)
        address = None if self._is_trial or query.kind != TABLE else query.options.get(STATE)
        options = {name: value for name, value in query.options.items() if name != STATE}
        if query.kind == INSERT:
            if name not in self._sinks:
                raise self._source.mistake(
                    f"no sink {name!r}; {near(name, self._sinks)}; declare it with CREATE SINK",
                    query.name.place,
                )
            if any(output.name == name for output in self.outputs):
                raise self._source.mistake(
                    f"sink {name!r} has rows of another INSERT: write one, with UNION ALL",
                    query.name.place,
                )
        elif name in self._sinks:
            raise self._source.mistake(f"{name!r} is there twice", query.name.place)
        else:
            self._claim(query)
        compiler = QueryCompiler(
            self._source,
            options,
            self._relations,
            name,
            site,
            keeps_bounds=query.kind != STREAM,
            emit=query.emit,
            functions=self._functions,
        )
        made = compiler(with_functions(query.tree, self._functions))
        if query.kind == TABLE and not made.is_total and not made.has_deletes:
            raise self._source.mistake(
                "a table has aggregates, such as count(*); to pass on rows, use CREATE STREAM "
                "without a window",
                query.name.place,
            )
        if address is not None:
            made = self._served(query, made, str(address))
        if (late := late_of(made)) is not None:
            self._add_late(query, late)
        if query.kind == INSERT:
            sink = self._sinks[name]
            rows = fitted(self._source, made, sink, query.into, query.tree, site)
            stream = f"{self._statements.name.text}.{name}" if self._is_trial else sink.stream
            to = None if self._is_trial else timed(self._source, sink, rows, query.tree)
            self.outputs.append(_Output(name, stream, site, rows, to))
            return
        self._relations = {**self._relations, name: made}
        if query.kind != VIEW:
            stream = name if query.kind == STREAM else f"{self._statements.name.text}.{name}"
            sent = None if isinstance(made, Served) else stream
            self.outputs.append(_Output(name, sent, site, made, place=query.name.place))

    def _served(self, query: Query, made: Relation, address: str) -> Served:
        """Return a table whose state is on a server.

        Raises:
            InvalidInputError: it cannot be; shows where.
        """
        is_plain = isinstance(made, Selection) and made.aggregates
        window = made.window if isinstance(made, Selection) else None
        if not is_plain or not isinstance(window, Tumbling | Hopping | None):
            raise self._source.mistake(
                "only aggregates of consecutive or hopping windows, or of all rows, can have their "
                "state on a server: leave out the option state",
                query.name.place,
            )
        if query.emit is not None or any(one in query.options for one in ("late", "updates")):
            raise self._source.mistake(
                "a table with its state on a server sends nothing, so EMIT, late and updates have "
                "no meaning: all rows count, and queries see them",
                query.name.place if query.emit is None else query.emit.place,
            )
        assert isinstance(made, Selection)
        return Served(columns=made.columns, of=made, address=address)

    def _add_late(self, query: Query, late: Late) -> None:
        """Name the late rows of a query; those of a view are only read."""
        name = f"{query.name.text}_late"
        if name in self._relations or name in self._sinks:
            raise self._source.mistake(
                f"late rows of {query.name.text!r} are called {name!r}: rename the other one",
                query.name.place,
            )
        self._relations = {**self._relations, name: late}
        if query.kind != VIEW:
            stream = f"{self._statements.name.text}.{name}"
            self.outputs.append(_Output(name, stream, self._site(query), late))


def _build(
    app: str,
    source: SqlText,
    inputs: Sequence[InputTable],
    schemas: Mapping[str, pa.Schema],
    outputs: Sequence[_Output],
    g: Graph,
) -> None:
    """Build the graph of an app: what its job calls."""
    builder = StreamBuilder(g, schemas)
    for output in outputs:
        if isinstance(output.rows, Served):
            kept, name = output.rows, output.name
            read = builder.stream(kept.of.origin)
            try:
                server_tables.keep(read, kept.of, kept.address, app, name)
            except InvalidInputError as error:
                assert output.place is not None
                raise source.mistake(error.message, output.place) from error
            continue
        rows = builder.stream(output.rows)
        with site_at(output.site):
            to = g.output(output.stream or "") if output.sink is None else output.sink.output(g)
            rows.send_to(to, name=None if output.sink is None else f"to_{output.name}")
    for table in inputs:
        if table.name.text not in builder.read:
            raise source.mistake(
                f"no query reads table {table.name.text!r}: remove it", table.name.place
            )
