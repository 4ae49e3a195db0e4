"""SQL apps played over rows, and what DuckDB makes of the same statements and rows."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp, parse_one

from headrace.control.live_job import LiveJob
from headrace.sql import SqlApp, SqlText, load_app
from headrace.sql.query_engine import Answer, QueryEngine, QueryLimits, parse
from headrace.sql.query_tables import Windows
from headrace.sql.routes import live_tables
from headrace.testing import TestDriver

Row = dict[str, Any]
ORDERS = {
    "at": pa.int64(),
    "user": pa.string(),
    "country": pa.string(),
    "amount": pa.float64(),
    "units": pa.int64(),
    "ok": pa.bool_(),
}
BOUNDS = ("window_start", "window_end")
POINTS = ["epoch.planned", "slot.ran", "epoch.before_commit", "commit.published"]


def orders(dice: random.Random, count: int, every_ms: int = 4_000) -> list[Row]:
    """Return rows in an order that a lateness of a minute allows."""
    rows = [
        {
            "at": 1_700_000_000_000 + number * every_ms,
            "user": dice.choice(["ann", "bob", "cy", None]),
            "country": dice.choice(["de", "at", "ch", "", None]),
            "amount": dice.choice([None, round(dice.uniform(-5, 99), 2)]),
            "units": dice.choice([None, *range(-2, 6)]),
            "ok": dice.choice([True, False, None]),
        }
        for number in range(count)
    ]
    return sorted(rows, key=lambda row: row["at"] + dice.randrange(50_000))


def _windowed(read: Any, names: set[str]) -> Any:
    """Return what is read with a window: each row is there once for each of its windows."""
    window, alias = read.args["window"], read.alias_or_name
    size, step = window.size_ms, window.step_ms or window.size_ms
    timed = [name for name in ("at", "bought", "brought") if name in names]
    at = timed[0] if timed else "(epoch_ms(window_end) - 1)"
    inner = read.copy()
    inner.set("window", None)
    inner.set("alias", None)
    text = inner.sql("duckdb") if isinstance(read, exp.Table) else f"({inner.this.sql('duckdb')})"
    kept = f"exclude ({', '.join(BOUNDS)})" if names >= set(BOUNDS) else ""
    return (
        parse_one(
            f"""select * from (select * {kept}, epoch_ms(w) as window_start,
            epoch_ms(w + {size}) as window_end
        from (select *, unnest(range(({at} // {step}) * {step} - {size} + {step},
                                     ({at} // {step}) * {step} + 1, {step})) as w from {text}))
        as "{alias}" """,
            read="duckdb",
        )
        .args["from_"]
        .this
    )


def _columns(connection: Any, text: str) -> set[str]:
    return {column[0] for column in connection.execute(f"describe {text}").fetchall()}


def _with_windows(connection: Any, select: exp.Select, ctes: str) -> None:
    """Have a select read windows: they are columns, and part of its key."""
    first = select.args["from_"].this
    reads = [first, *(join.this for join in select.args.get("joins") or [])]
    if not any(read.args.get("window") for read in reads):
        return
    name = first.alias_or_name
    for read in reads:
        if not read.args.get("window"):
            continue
        inner = read.copy()
        inner.set("window", None)
        names = _columns(connection, f"{ctes} select * from {inner.sql('duckdb')}")
        read.replace(_windowed(read, names))
    for join in select.args.get("joins") or []:
        if not join.this.find(exp.Column) or "window_start" not in join.this.sql("duckdb"):
            continue
        if join.args.get("using"):
            join.append("using", exp.to_identifier("window_start"))
            continue
        other = join.this.alias_or_name
        same = f"{name}.window_start is not distinct from {other}.window_start"
        join.set("on", exp.and_(join.args["on"], parse_one(same, read="duckdb")))
    places = [*select.expressions, *filter(None, [select.args.get("qualify")])]
    if rankings := [one for place in places for one in place.find_all(exp.Window)]:
        for ranking in rankings:
            own = ranking.args.get("partition_by") or []
            ranking.set("partition_by", [*own, *(exp.column(b, table=name) for b in BOUNDS)])
        select.set(
            "expressions", [*select.expressions, *(exp.column(b, table=name) for b in BOUNDS)]
        )
        return
    _limit_each(select, name)
    is_grouped = any(item.find(exp.AggFunc) for item in select.expressions)
    if not is_grouped and not select.args.get("distinct") and not select.args.get("group"):
        return
    bounds = [exp.column(bound, table=name) for bound in BOUNDS]
    group = select.args.get("group")
    if group is None:
        select.set("group", exp.Group(all=True))
    else:
        group.set("expressions", [*group.expressions, *bounds])
    shown = {item.alias_or_name for item in select.expressions}
    for bound in bounds:
        if bound.name not in shown:
            select.append("expressions", bound.copy())


def _limit_each(select: exp.Select, table: str) -> None:
    """Have ``ORDER BY ... LIMIT`` be of each window."""
    order, limit = select.args.get("order"), select.args.get("limit")
    if order is None or limit is None:
        return
    by = ", ".join(one.sql("duckdb") for one in order.expressions)
    text = f"select 1 qualify row_number() over (partition by {table}.window_start order by {by})"
    ranked = parse_one(f"{text} <= {limit.expression.sql()}", read="duckdb")
    select.set("qualify", ranked.args["qualify"])
    select.set("order", None)
    select.set("limit", None)
    if not select.args.get("group") and not any(i.find(exp.AggFunc) for i in select.expressions):
        for bound in BOUNDS:
            if bound not in {item.alias_or_name for item in select.expressions}:
                select.append("expressions", exp.column(bound, table=table))


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Return the one of this process: to make another takes ten times what a query does."""
    return duckdb.connect(config={"threads": 1})


def duckdb_session() -> duckdb.DuckDBPyConnection:
    """Return a session with settings, registered tables and temporary ones of its own."""
    return _duckdb().cursor()


@cache
def _engine() -> QueryEngine:
    """Return an engine with the usual limits, as a process has one."""
    return QueryEngine(QueryLimits())


@cache
def _app(text: str, file: str = "shop.sql") -> SqlApp:
    """Return an app, which is played and asked of DuckDB."""
    return load_app(SqlText(text, file))


def in_duckdb(text: str, tables: Mapping[str, pa.Table]) -> dict[str, list[Row]]:
    """Return the rows of each query of an app, by its name."""
    app = _app(text)
    found = {}
    with duckdb_session() as connection:
        connection.execute("set error_on_division_by_zero = false")
        for name, table in tables.items():
            connection.register(name, table)
        for query in app.statements.queries:
            tree = query.tree.copy()
            found_with = tree.args.get("with_")
            ctes: list[str] = []
            for cte in found_with.expressions if found_with else []:
                for select in reversed(list(cte.find_all(exp.Select))):
                    _with_windows(connection, select, _head(ctes))
                ctes.append(f"{cte.alias} as ({cte.this.sql('duckdb')})")
            for select in reversed(list(tree.find_all(exp.Select))):
                if select.find_ancestor(exp.CTE) is None:
                    _with_windows(connection, select, _head(ctes))
            connection.execute(f'create temp table "{query.name.text}" as {tree.sql("duckdb")}')
            rows = connection.execute(f'select * from "{query.name.text}"')
            names = [column[0] for column in rows.description]
            found[query.name.text] = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    return found


def _head(ctes: Sequence[str]) -> str:
    return f"with {', '.join(ctes)}" if ctes else ""


def plain(row: Row) -> tuple[Any, ...]:
    """Return a row as values that are compared by, in the order of their names."""

    def shown(value: Any) -> Any:
        if isinstance(value, datetime.datetime):
            return value.replace(tzinfo=None)
        if isinstance(value, bool | str) or value is None:
            return value
        return "NaN" if math.isnan(value) else float(value)

    return tuple(shown(row[name]) for name in sorted(row))


def assert_same(found: list[Row], expected: list[Row], note: str) -> None:
    """Compare rows in any order, by the columns that are expected; numbers up to rounding."""

    def order(row: tuple[Any, ...]) -> list[str]:
        floats = [value for value in row if isinstance(value, float) and abs(value) < 1e9]
        return [*("~" if v in floats else repr(v) for v in row), *(f"{v:.6g}" for v in floats)]

    if expected:
        found = [{name: row[name] for name in expected[0]} for row in found]
    left, right = (sorted(map(plain, rows), key=order) for rows in (found, expected))
    assert len(left) == len(right), note
    for row, other in zip(left, right, strict=True):
        for value, wanted in zip(row, other, strict=True):
            is_number = isinstance(value, float) and isinstance(wanted, float)
            close = math.isclose(value, wanted, rel_tol=1e-9) if is_number else value == wanted
            assert close, (note, row, other)


def played(
    text: str,
    streams: Mapping[str, tuple[Mapping[str, pa.DataType], list[Row]]],
    dice: random.Random,
    *,
    crashes: bool,
    first: Sequence[str] = (),
    file: str = "shop.sql",
    partitions: int = 2,
) -> dict[str, list[Row]]:
    """Run an app over rows in epochs of any size, with crashes; return the rows of its tables.

    Args:
        text: of the app.
        streams: columns and rows of each stream, by its name.
        dice: says where epochs end.
        crashes: whether drivers die.
        first: streams whose rows are all there before the others.
        file: the name of the app's file.
        partitions: of each stream that is not among the first.
    """
    app = _app(text, file)
    with TestDriver(app.job, tasks=2, slots=2) as driver:
        for name, (columns, _) in streams.items():
            time = "at" if "at" in columns else None
            driver.create(
                name, dict(columns), partitions=1 if name in first else partitions, time=time
            )
        left = {name: list(rows) for name, (_, rows) in streams.items()}
        for name in first:
            driver.feed(name, left.pop(name))
        while left:
            for name in list(left):
                cut = dice.randrange(20, 120)
                driver.feed(name, left[name][:cut])
                if not (rest := left.pop(name)[cut:]):
                    continue
                left[name] = rest
            if crashes and dice.random() < 0.3:
                driver.advance_with_crash(dice.choice(POINTS))
            else:
                driver.advance()
        driver.finish()
        return {name: driver.output(stream) for name, stream in app.tables.items()}


def read_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have queries read the state of the keys that they name alone, as where state is large."""
    monkeypatch.setattr("headrace.sql.current_rows._SMALL", 0)


class TableQueries:
    """Queries over the tables of a driver's job, as its API answers them.

    Args:
        live: what the driver shows of the job.
        limits: of each query, where they are others than usual.
    """

    def __init__(self, live: LiveJob, **limits: Any) -> None:
        self._tables = live_tables(live)
        self._engine = QueryEngine(QueryLimits(**limits)) if limits else _engine()

    def answer(self, query: str, windows: Windows = "past") -> Answer:
        """Return the answer, with the epoch that it is of."""
        return self._engine.answer(self._tables, parse(query, self._tables, windows), windows)

    def __call__(self, query: str, windows: Windows = "past") -> list[Row]:
        """Return the rows."""
        rows: list[Row] = self.answer(query, windows).rows.to_pylist()
        return rows
