"""``SELECT`` over the tables of an app: checked, given the rows that it can use, run by DuckDB.

A query has no access to files, to the network or to settings, and limits on rows and time. What
its ``WHERE`` says about single columns goes to ``query_tables``, so that few rows are read; DuckDB
looks at it once more, so it may say less than the query, but never more.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace import extras
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.queries.duck import locked_duckdb, refusal, watchdog
from headrace.queries.text import Place, SqlText, near, place_of
from headrace.sql.lookups import Lookup, lookup_of
from headrace.sql.past_rows import MOMENT, TRIES, Wanted
from headrace.sql.query_tables import IS_OPEN, OFFSET, AppTables, Snapshot, Windows
from headrace.sql.statements import WINDOW, parse_query

_IDLE_SESSIONS = 16


@dataclass(frozen=True)
class QueryLimits:
    """What a query may take.

    Args:
        rows: of the answer.
        read_rows: of each table, after what the conditions leave out.
        seconds: for DuckDB; reading what it gets comes before.
        memory: that DuckDB may use for all queries of a process.
    """

    rows: int = 10_000
    read_rows: int = 10_000_000
    seconds: float = 10.0
    memory: str = "512MB"


@dataclass(frozen=True)
class Reading:
    """One table in a query: the name of the app's table, the one in its place, what is wanted."""

    table: str
    alias: str
    wanted: Wanted


@dataclass(frozen=True)
class Query:
    """A query that was checked against the tables of an app.

    ``tree`` has a name of its own for each time that a table is read. ``lookup`` is the query
    where it needs no DuckDB.
    """

    source: SqlText
    tree: exp.Query
    readings: tuple[Reading, ...]
    lookup: Lookup | None = None

    @cached_property
    def sql(self) -> str:
        """As DuckDB writes it."""
        return self.tree.sql("duckdb")

    def by_offset(self) -> Query:
        """Return it with the offset of the row that each row of the answer is made of.

        Raises:
            InvalidInputError: rows of the answer are made of several, or in another order.
        """
        tree = self.tree
        parts = ("distinct", "group", "having", "order", "limit", "offset", "qualify", "joins")
        several = (exp.AggFunc, exp.Window, exp.CTE, exp.Unnest, exp.Explode, exp.Select)
        inner = [node for node in tree.find_all(*several) if node is not tree]
        has_parts = any(tree.args.get(name) for name in parts)
        if not isinstance(tree, exp.Select) or has_parts or inner or len(self.readings) != 1:
            raise self.source.mistake(
                "only SELECT columns FROM a table, with WHERE, can be followed row by row",
                Place(0, len(self.source.text)),
            )
        tree = tree.select(f'"{OFFSET}" AS "{_ID}"', dialect="duckdb")
        return Query(self.source, tree, self.readings)


_ID = "__id"


@dataclass(frozen=True)
class Answer:
    """The rows of a query, and the epoch that they are of; -1: the app has committed none."""

    job: str
    epoch: int
    rows: pa.Table


def parse(text: str, tables: AppTables, windows: Windows) -> Query:
    """Check a query, and find out which rows it can use.

    Args:
        text: one ``SELECT``.
        tables: of the app.
        windows: which ones it sees.

    Raises:
        InvalidInputError: it is none, or names what is not there; shows where.
    """
    source = SqlText(text)
    tree = parse_query(source)
    for read in tree.find_all(exp.Table, exp.Subquery):
        if read.args.get(WINDOW) is not None:
            raise source.mistake("windows are those of tables; a query gives none", place_of(read))
    _check_functions(source, tree)
    inner = {one.alias.lower() for one in tree.find_all(exp.CTE)}
    readings = []
    for number, table in enumerate(list(tree.find_all(exp.Table))):
        if isinstance(table.this, exp.Identifier) and table.name.lower() in inner and not table.db:
            continue
        name = _named(source, table, tables)
        schema, alias = tables.schema(name), f"__table{number}"
        if windows != "past" and IS_OPEN in schema.names:
            raise source.mistake(
                f"table {name!r} has a column {IS_OPEN!r} of its own; ask for windows=past",
                place_of(table),
            )
        readings.append(Reading(name, alias, _wanted(table, schema, tree)))
        table.set("alias", table.args.get("alias") or exp.TableAlias(this=table.this.copy()))
        table.set("this", exp.to_identifier(alias, quoted=True))
        table.set("db", None)
        table.set("catalog", None)
    lookup = None
    if len(readings) == 1 and not inner:
        columns = tables.schema(readings[0].table)
        columns = columns if windows == "past" else columns.append(pa.field(IS_OPEN, pa.bool_()))
        lookup = lookup_of(tree, columns)
    return Query(source, tree, tuple(readings), lookup)


def _named(source: SqlText, table: exp.Table, tables: AppTables) -> str:
    """Return the app's table that one of a query means: by its name, or that of its stream."""
    known, streams = tables.names, tables.streams
    place = place_of(table)
    stream = f"{table.db}.{table.name}"
    for name in known:
        if not isinstance(table.this, exp.Identifier):  # a function
            break
        if name.lower() == table.name.lower() and not table.db:
            return name
        if table.db and streams.get(name, "").lower() == stream.lower():
            return name
    raise source.mistake(
        f"app {tables.job!r} has no table {table.sql('duckdb')!r}; {near(table.name, known)}", place
    )


_AMPLIFIERS = frozenset(
    [
        *("array_resize", "bitstring", "format", "generate_series"),
        *("list_resize", "pad", "printf", "repeat"),
    ]
)
"""Functions, as sqlglot names them, that make a value of any size: DuckDB is not ended in one."""


def _check_functions(source: SqlText, tree: exp.Query) -> None:
    for call in tree.find_all(exp.Func):
        names = [call.name] if isinstance(call, exp.Anonymous) else type(call).sql_names()
        if not _AMPLIFIERS.isdisjoint(one.lower() for one in names):
            raise source.mistake(
                f"a query cannot call {names[0].lower()}, which makes values of any size",
                place_of(call),
            )


def _wanted(table: exp.Table, schema: pa.Schema, tree: exp.Query) -> Wanted:
    """Return what the ``WHERE`` around a table says about its columns by themselves."""
    select = table.find_ancestor(exp.Select)
    where = None if select is None else select.args.get("where")
    if where is None or select is None or table.args.get("pivots"):
        return Wanted()
    # Which rows these join depends on rows that a condition would leave out.
    if any(one.method in ("ASOF", "POSITIONAL") for one in tree.find_all(exp.Join)):
        return Wanted()
    name = table.alias_or_name.lower()
    is_alone = not select.args.get("joins") and not select.args.get("laterals")
    lowered = [one.lower() for one in schema.names]
    values: dict[str, tuple[Any, ...]] = {}
    times: dict[str, tuple[int | None, int | None]] = {}
    for condition in _conditions(where.this):
        for column, kind, literals in _compared(condition):
            at = column.name.lower()
            mine = column.table.lower() == name or (not column.table and is_alone)
            if not mine or lowered.count(at) != 1:
                continue
            field = schema.field(lowered.index(at))
            if kind == "=" and (found := _values(literals, field.type)) is not None:
                before = values.get(field.name)
                values[field.name] = found if before is None else _both(before, found)
            if field.type == MOMENT:
                _narrow(times, field.name, kind, literals)
    return Wanted(values, times)


def _both(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value for value in one if value in other) or one[:1]


def _conditions(node: Any) -> Iterator[Any]:
    """Yield the conditions that all have to hold."""
    if isinstance(node, exp.Paren):
        yield from _conditions(node.this)
    elif isinstance(node, exp.And):
        yield from _conditions(node.left)
        yield from _conditions(node.right)
    else:
        yield node


_COMPARED = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">", exp.LT: "<", exp.LTE: "<"}
_TURNED = {"=": "=", ">": "<", "<": ">"}


def _compared(node: Any) -> Iterator[tuple[exp.Column, str, list[Any]]]:
    """Yield columns that are compared with literals: how, and with which; bounds are included."""
    kind = _COMPARED.get(type(node))
    if kind is not None:
        if isinstance(node.left, exp.Column):
            yield node.left, kind, [node.right]
        elif isinstance(node.right, exp.Column):
            yield node.right, _TURNED[kind], [node.left]
    elif isinstance(node, exp.In) and isinstance(node.this, exp.Column) and node.expressions:
        yield node.this, "=", list(node.expressions)
    elif isinstance(node, exp.Between) and isinstance(node.this, exp.Column):
        yield node.this, ">", [node.args["low"]]
        yield node.this, "<", [node.args["high"]]


def _values(literals: Sequence[Any], kind: pa.DataType) -> tuple[Any, ...] | None:
    """Return literals as values of a column; ``None`` where they are not plainly of its type."""
    found: list[Any] = []
    for literal in literals:
        if isinstance(literal, exp.Literal) and literal.is_string and pa.types.is_string(kind):
            found.append(str(literal.this))
        elif _is_integer(literal) and pa.types.is_integer(kind):
            value = int(literal.sql())
            try:
                pa.scalar(value, kind)
            except (pa.ArrowInvalid, OverflowError):
                return None
            found.append(value)
        elif isinstance(literal, exp.Boolean) and pa.types.is_boolean(kind):
            found.append(bool(literal.this))
        else:
            return None
    return tuple(found)


def _is_integer(node: Any) -> bool:
    plain = node.this if isinstance(node, exp.Neg) else node
    return isinstance(plain, exp.Literal) and not plain.is_string and plain.is_int


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _moment_us(node: Any) -> int | None:
    """Return a moment that is written out, as microseconds since 1970; ``None``: it is not."""
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal):
        if node.to.this.value not in ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ"):
            return None
        node = node.this
    if not isinstance(node, exp.Literal) or not node.is_string:
        return None
    try:
        found = datetime.datetime.fromisoformat(str(node.this).strip())
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
    return (found - _EPOCH) // datetime.timedelta(microseconds=1)


def _narrow(
    times: dict[str, tuple[int | None, int | None]], name: str, kind: str, literals: Sequence[Any]
) -> None:
    moments = [_moment_us(one) for one in literals]
    known = [one for one in moments if one is not None]
    if not known or len(known) < len(moments):
        return
    low, high = times.get(name, (None, None))
    # DuckDB may round what has more digits, so a bound is one further.
    least, greatest = min(known) - 1, max(known) + 1
    if kind in "=>":
        low = least if low is None else max(low, least)
    if kind in "=<":
        high = greatest if high is None else min(high, greatest)
    times[name] = low, high


class QueryEngine:
    """DuckDB in this process, for queries of any thread over rows that are given to it.

    Args:
        limits: of each query.
    """

    def __init__(self, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._duckdb = extras.load("duckdb", "headrace sql query")
        # The app has the other cores; a point query needs none.
        self._connection = locked_duckdb("headrace sql query", memory=self.limits.memory, threads=1)
        self._idle: list[_Session] = []
        self._lock = threading.Lock()

    def answer(
        self, tables: AppTables, query: Query, windows: Windows, most: int | None = None
    ) -> Answer:
        """Answer a query as of one committed epoch.

        Args:
            tables: of the app.
            query: checked against them.
            windows: which ones it sees.
            most: how many rows it may return; ``None``: as the limits say.

        Raises:
            InvalidInputError: DuckDB refuses it, or it takes more than the limits.
            UnavailableError: files of each snapshot were swept before they could be read.
        """
        for _ in range(TRIES):
            asked = tables.snapshot()
            try:
                rows = {one.alias: self.rows(tables, one, windows, asked) for one in query.readings}
            except CorruptDataError:
                if tables.snapshot().version == asked.version:
                    raise
                continue
            return Answer(asked.job, asked.epoch, self.run(query, rows, most))
        raise UnavailableError(
            f"job {tables.job!r} swept its files {TRIES} times before they could be read; raise "
            "state.keep_epochs"
        )

    def rows(
        self, tables: AppTables, reading: Reading, windows: Windows, snapshot: Snapshot
    ) -> pa.Table:
        """Return the rows of a table that a query can use."""
        found = []
        if windows != "current":
            past = tables.past(reading.table, snapshot, reading.wanted, self.limits.read_rows)
            found.append(past if windows == "past" else _marked(past, is_open=False))
        if windows != "past":
            found.append(self._open(tables, reading, windows, snapshot))
        return pa.concat_tables(found)

    def by_row(
        self, query: Query, rows: pa.Table, windows: Windows
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of an answer, each with the offset that it is of.

        Args:
            query: ``by_offset``.
            rows: of its table, with offsets; of windows that were sent.
            windows: which ones the query sees.
        """
        if windows != "past":
            rows = _marked(rows, is_open=False)
        found = self.run(query, {query.readings[0].alias: rows}, rows.num_rows)
        for row in found.to_pylist():
            row.pop(OFFSET, None)
            yield row.pop(_ID), row

    def open_rows(
        self, tables: AppTables, query: Query, windows: Windows, snapshot: Snapshot
    ) -> list[dict[str, Any]]:
        """Return the rows of an answer that are of open windows, as of a snapshot.

        Args:
            tables: of the app.
            query: ``by_offset``.
            windows: which ones it sees, open ones among them.
            snapshot: of an epoch.

        Raises:
            CorruptDataError: files of the snapshot were swept, or damaged.
        """
        reading = query.readings[0]
        rows = self._open(tables, reading, windows, snapshot)
        rows = rows.append_column(OFFSET, pa.nulls(rows.num_rows, pa.int64()))
        found = self.run(query, {reading.alias: rows}).to_pylist()
        return [{n: value for n, value in row.items() if n not in (OFFSET, _ID)} for row in found]

    def _open(
        self, tables: AppTables, reading: Reading, windows: Windows, snapshot: Snapshot
    ) -> pa.Table:
        """Return the rows of open windows that a query can use."""
        rows = tables.current(reading.table, snapshot, reading.wanted)
        if rows is None and windows == "current":
            raise InvalidInputError(
                f"table {reading.table!r} has no windows: its rows are sent as they come; ask for "
                "windows=past"
            )
        rows = tables.schema(reading.table).empty_table() if rows is None else rows
        return _marked(rows, is_open=True)

    def run(self, query: Query, rows: Mapping[str, pa.Table], most: int | None = None) -> pa.Table:
        """Return the answer to a query over the rows of its tables.

        Args:
            query: checked.
            rows: by the names that it has for them.
            most: how many rows it may return; ``None``: as the limits say.

        Raises:
            InvalidInputError: DuckDB refuses it, or the answer takes more than the limits.
        """
        limits = self.limits
        most = limits.rows if most is None else most
        if query.lookup is not None:
            [table] = rows.values()
            return _few(query.lookup.rows(table), most)
        session, is_done = self._session(rows), False
        try:
            with watchdog().limit(limits.seconds, session.cursor.interrupt):
                found = session.cursor.sql(query.sql).to_arrow_reader(most + 1)
                batches, size = [], 0
                for batch in found:
                    batches.append(batch)
                    size += batch.num_rows
                    if size > most:
                        break
                else:
                    is_done = True
        except self._duckdb.InterruptException as error:
            raise InvalidInputError(
                f"the query took more than {limits.seconds:g} s; add conditions to it"
            ) from error
        except self._duckdb.Error as error:
            names = {name for table in rows.values() for name in table.column_names}
            raise refusal(query.source, names - {OFFSET}, error) from error
        finally:
            self._leave(session, is_done=is_done)
        table = _few(pa.Table.from_batches(batches, found.schema), most)
        names = table.column_names
        return pa.table([_whole(table.column(at)) for at in range(len(names))], names)

    def _session(self, rows: Mapping[str, pa.Table]) -> _Session:
        """Return a session that has tables, one that waits if there is one for their columns."""
        columns = {name: table.schema for name, table in rows.items()}
        with self._lock:
            at = next((at for at, one in enumerate(self._idle) if one.columns == columns), None)
            found = None if at is None else self._idle.pop(at)
        if found is None:
            return _Session(self._connection.cursor(), rows)
        found.give(rows)
        return found

    def _leave(self, session: _Session, *, is_done: bool) -> None:
        """Keep a session for the next query, unless this one was broken off."""
        with self._lock:
            if is_done:
                session.clear()
                self._idle.append(session)
            over = self._idle.pop(0) if len(self._idle) > _IDLE_SESSIONS else None
        for one in (over, None if is_done else session):
            if one is not None:
                one.cursor.close()


class _Rows:
    """What DuckDB reads under a name: the rows that are there then, always of the same columns."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.table.schema.__arrow_c_schema__()


class _Session:
    """A connection to DuckDB that knows tables by name: to name them takes longer than a query.

    Args:
        cursor: the connection.
        rows: tables by name.
    """

    def __init__(self, cursor: Any, rows: Mapping[str, pa.Table]) -> None:
        self.cursor = cursor
        self.columns = {name: table.schema for name, table in rows.items()}
        self._rows = {name: _Rows(table) for name, table in rows.items()}
        for name, one in self._rows.items():
            cursor.register(name, one)

    def give(self, rows: Mapping[str, pa.Table]) -> None:
        """Have the tables show other rows, of the same columns."""
        for name, one in self._rows.items():
            one.table = rows[name]

    def clear(self) -> None:
        """Forget the rows."""
        for name, one in self._rows.items():
            one.table = self.columns[name].empty_table()


def _few(rows: pa.Table, most: int) -> pa.Table:
    if rows.num_rows > most:
        raise InvalidInputError(
            f"the answer has more than {most:,} rows; add LIMIT or conditions, or ask for more "
            "with limit"
        )
    return rows


def _marked(rows: pa.Table, *, is_open: bool) -> pa.Table:
    return rows.append_column(IS_OPEN, pa.repeat(pa.scalar(is_open), rows.num_rows))


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return sums of integers, which have 128 bits in DuckDB, as integers where they fit.

    Moments have ``UTC`` as everywhere, for which DuckDB has another name.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp(column.type.unit, "UTC"))
    if not pa.types.is_decimal(column.type) or column.type.scale:
        return column
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return column
