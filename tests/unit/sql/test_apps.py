"""Mistakes in SQL apps, each with its place, and the commands for apps."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import done, headrace, refused
from tests.support.homes import FILES

from headrace.bus import FileBus, StreamSpec
from headrace.errors import InvalidInputError
from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

HEAD = """CREATE APPLICATION shop;
CREATE INPUT TABLE orders(at, user, amount) FROM SCRIBE("orders") TIME at;
"""
TABLE = "CREATE TABLE sums AS SELECT user, sum(amount) AS total FROM orders [5 minutes]"
WITHIN = "CREATE STREAM s AS SELECT q.user FROM (SELECT user, amount FROM orders ORDER) AS q"
CTE = "w AS (SELECT user FROM orders) SELECT user FROM w"
RUNNING = TABLE.replace(" [5 minutes]", "") + " GROUP BY user"
OF_SUMS = "SELECT max(total) AS most FROM sums"
UNION = "CREATE STREAM s AS SELECT user FROM orders UNION ALL SELECT user"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "an app begins with its name"),
        ("CREATE APPLICATION a", "1:20", "the app makes nothing"),
        (HEAD + "DROP TABLE orders", "3:1", "expected CREATE or INSERT INTO; found 'DROP'"),
        (HEAD + "CREATE SOMETHING v", "3:8", "expected CREATE APPLICATION, FUNCTION"),
        (HEAD + "CREATE VIEW v AS SELECT 1", "3:25", "the query reads nothing"),
        (HEAD + TABLE.replace("user,", "usr,"), "3:29", "no column 'usr'; did you mean 'user'?"),
        (HEAD + TABLE.replace("sum(", "summ("), "3:35", "no function 'summ'"),
        (HEAD + TABLE.replace("FROM orders", "FROM order"), "3:61", "did you mean 'orders'?"),
        (HEAD + TABLE.replace("sum(", "topk(").replace(" [5 minutes]", ""), "3:", "topk needs a w"),
        (HEAD + RUNNING + " HAVING sum(amount) > 3", "3:", "HAVING needs a window"),
        (HEAD + RUNNING.replace("user, sum", "sum"), "3:", "select all that is in GROUP BY"),
        (HEAD + RUNNING + " EMIT FINAL", "3:82", "totals without a window have no end"),
        (HEAD + RUNNING + " EMIT EARLY EVERY 3 ROWS", "3:82", "totals without a window have no"),
        (HEAD + RUNNING + " EMIT LATE", "3:87", "expected FINAL, EARLY EVERY, EARLY IDLE or"),
        (HEAD + RUNNING + " EMIT EVERY '3'", "3:93", "a duration is '3'"),
        (HEAD + RUNNING + f"; CREATE TABLE more AS {OF_SUMS}", "3:", "rows of sums replace earl"),
        (HEAD + RUNNING + f"; CREATE TABLE more AS {OF_SUMS} [1 hour]", "3:", "replace earlier"),
        (HEAD + RUNNING + "; CREATE TABLE more AS SELECT user FROM sums", "3:", "a table has aggr"),
        (HEAD + TABLE + " EMIT EVERY '1 minute'", "3:80", "write EMIT EARLY EVERY"),
        (HEAD + TABLE + " EMIT EARLY EVERY '9 minutes'", "3:80", "expected less than the size"),
        (
            HEAD + TABLE.replace("5 minutes", "sliding 5 minutes") + " EMIT EARLY EVERY 3 ROWS",
            "3:",
            "a sliding window has no early results",
        ),
        (HEAD + TABLE.replace("sum(", "topk(") + " EMIT EARLY EVERY 3 ROWS", "3:", "with topk"),
        (HEAD + "CREATE STREAM s AS SELECT user FROM orders EMIT FINAL", "3:44", "EMIT is for agg"),
        (HEAD + UNION + " FROM orders EMIT FINAL", "3:", "EMIT is for one SELECT"),
        (HEAD + TABLE.replace("sums", "sums WITH (late = 'keep')"), "3:32", "expected 'drop' or"),
        (HEAD + TABLE.replace("sums", "sums WITH (late = 'update')"), "3:", "there is none: give"),
        (HEAD + TABLE.replace("sums", "sums WITH (lateness = '1m')"), "3:25", "no option 'laten"),
        (HEAD + TABLE.replace("sums", "sums WITH (updates = 'add')"), "3:", "updates='add' is fo"),
        (HEAD + TABLE.replace("5 minutes", "5"), "3:68", "a window's size is '5'"),
        (HEAD + TABLE.replace("5 minutes]", "5 minutes"), "3:68", "the bracket has no end"),
        (HEAD + TABLE.replace(" AS total", ""), "3:35", "a computed column needs a name"),
        (HEAD + TABLE + " GROUP BY at", "3:29", "column 'user' must be in GROUP BY"),
        (HEAD + TABLE + " WHERE sum(amount) > 1", "3:86", "WHERE is before grouping"),
        (HEAD + TABLE + " ORDER BY user", "3:89", "ORDER BY needs LIMIT, and a window"),
        (HEAD + TABLE + " LIMIT 3", "3:86", "LIMIT needs ORDER BY"),
        (HEAD + TABLE + " ORDER BY total LIMIT 0", "3:101", "LIMIT takes a whole number"),
        (HEAD + TABLE + " ORDER BY totl LIMIT 2", "3:89", "no column 'totl'; did you mean 'total'"),
        (HEAD + TABLE + " ORDER BY amount LIMIT 2", "3:89", "column 'amount' must be in GROUP"),
        (HEAD + TABLE + " ORDER BY 3 LIMIT 2", "3:89", "there is no column 3"),
        (HEAD + TABLE + " ORDER BY 1 LIMIT 2 OFFSET 1", "3:", "OFFSET is not known"),
        (HEAD + RUNNING + " ORDER BY 1 LIMIT 2", "3:", "has the first rows of each window"),
        (
            HEAD + TABLE.replace("[5", "[session 5") + " ORDER BY 1 LIMIT 2",
            "3:",
            "the first rows of each window: write orders [5 minutes]",
        ),
        (HEAD + TABLE + " ORDER BY 1 LIMIT 2 EMIT FINAL", "3:99", "of windows that are sent once"),
        (
            HEAD
            + TABLE.replace("sums", "sums WITH (late = 'side_output')")
            + " ORDER BY 1 LIMIT 2",
            "3:",
            "of windows that are sent once",
        ),
        (
            HEAD
            + "CREATE VIEW sums_late AS SELECT user FROM orders;"
            + TABLE.replace("sums", "sums WITH (late = 'side_output')"),
            "3:",
            "late rows of 'sums' are called 'sums_late': rename the other one",
        ),
        (HEAD + TABLE.replace("sum(", "topk(") + " ORDER BY 1 LIMIT 2", "3:", "with topk"),
        (HEAD + TABLE + " JOIN orders ON true", "3:", "'orders' is there twice: give one a name"),
        (HEAD + TABLE.replace("sum(amount)", "sum(sum(amount))"), "3:", "of another one"),
        (
            HEAD + TABLE.replace("sum(", "stddev(DISTINCT "),
            "3:35",
            "DISTINCT is known in count, sum, avg, min, max",
        ),
        (HEAD + TABLE.replace("sum(", "count(DISTINCT at, "), "3:54", "DISTINCT is of one expr"),
        (HEAD + TABLE.replace("sum(", "count(DISTINCT a"), "3:50", "did you mean 'amount'?"),
        (HEAD + TABLE.replace("sum(amount)", "'x"), "3:", "a quote or a comment has no end"),
        (HEAD + f"{TABLE};\n{TABLE}", "4:14", "'sums' is there twice"),
        (HEAD + "CREATE TABLE t AS SELECT user FROM orders", "3:14", "a table has aggregates"),
        (HEAD + TABLE.replace("sum(amount)", "topk(amount, 0)"), "3:", "at least one row"),
        (
            HEAD + TABLE.replace("5 minutes", "session 5 minutes").replace("sum", "topk"),
            "3:",
            "only",
        ),
        (HEAD.replace("TIME at", "TIME ta") + TABLE, "2:", "table 'orders' has no column 'ta'"),
        (
            HEAD.replace("TIME at", "TIME PROCTIME() LATENESS '1s'") + TABLE,
            "2:",
            "never late: no LATENESS",
        ),
        (HEAD.replace("user,", "user BIGNUM,") + TABLE, "2:", "type"),
        (
            HEAD.replace("user,", "user BIGINT,") + TABLE,
            "2:",
            "the types of all columns, or of none",
        ),
        (HEAD.replace("shop;", "shop WITH (tpk = 3);") + TABLE, "1:", "did you mean 'topk'?"),
        (HEAD + TABLE.replace("user,", "o.user,"), "3:", "no table 'o' here; expected"),
        (HEAD + TABLE.replace("user,", "orders.usr,"), "3:", "no column 'usr' in 'orders'; did"),
        (HEAD + WITHIN.replace("FROM orders", "FROM ordrs"), "3:", "did you mean 'orders'?"),
        (HEAD + WITHIN.replace("ORDER", "LIMIT 3"), "3:78", "LIMIT needs ORDER BY"),
        (HEAD + WITHIN.replace("q.user", "q.usr"), "3:27", "no column 'usr' in 'q'; did you"),
        (HEAD + WITHIN.replace(" AS q", " AS q(a, b)"), "3:", "columns cannot be renamed here"),
        (HEAD + "CREATE STREAM s AS SELECT user FROM orders [1 minute]", "3:44", "a window is for"),
        (HEAD + "CREATE STREAM s AS SELECT user FROM unnest([1])", "3:", "expected a table, or"),
        (HEAD + f"CREATE STREAM s AS WITH RECURSIVE {CTE}", "3:", "a query cannot read itself"),
        (HEAD + f"CREATE STREAM s AS WITH {CTE.replace('FROM w', 'FROM v')}", "3:", "no table 'v'"),
        (HEAD + f"CREATE STREAM s AS WITH {CTE.replace('w AS', 'w(a) AS')}", "3:", "name the col"),
        (HEAD + UNION.replace("ALL", ""), "3:", "only UNION ALL is known; for each row once"),
        (HEAD + UNION.replace("UNION", "EXCEPT"), "3:", "only UNION ALL is known"),
        (HEAD + UNION + ", amount FROM orders", "3:61", "UNION ALL needs as many columns"),
        (HEAD + UNION + " FROM orders ORDER BY user", "3:", "ORDER BY is not known"),
        (
            HEAD + "CREATE TABLE t AS SELECT user FROM orders UNION ALL SELECT user FROM orders",
            "3:14",
            "a table has aggregates",
        ),
        (HEAD + "CREATE VIEW v AS SELECT user FROM orders", "1:20", "the app makes nothing"),
        (HEAD + TABLE.replace("user,", "DISTINCT ON (user) user,"), "3:", "DISTINCT ON is not"),
        (
            HEAD + TABLE.replace("user, sum", "DISTINCT sum") + " GROUP BY user",
            "3:",
            "SELECT DISTINCT of groups is known where",
        ),
        (HEAD + TABLE + " WHERE amount IN (SELECT 1)", "3:", "IN takes a list of values"),
    ],
)
def test_a_mistake_is_shown_where_it_is(text: str, place: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(text, "app.sql"))
    assert str(caught.value).startswith(f"app.sql:{place}")
    assert message in str(caught.value)


SINK = "CREATE SINK files WITH (connector = 'parquet', folder = '/lake')"
INTO = "INSERT INTO files SELECT user, amount FROM orders"


@pytest.mark.parametrize(
    ("sink", "query", "at", "message"),
    [
        (SINK, INTO.replace("files", "fils"), "fils", "no sink 'fils'; did you mean 'files'?"),
        (SINK, INTO.replace("usr", "user").replace("amount", "amout"), "amout", "'amount'?"),
        (SINK, f"{INTO}; {INTO}", "files", "sink 'files' has rows of another INSERT"),
        (SINK, TABLE, "files", "nothing is sent to sink 'files': remove it, or add INSERT INTO"),
        (SINK, f"{INTO}; CREATE VIEW v AS SELECT user FROM files", "files", "no table 'files'"),
        (SINK, f"{INTO}; {TABLE.replace('sums', 'files')}", "files", "'files' is there twice"),
        (SINK.replace("parquet", "parket"), INTO, "connector", "did you mean 'parquet'?"),
        (SINK.replace("connector", "conector"), INTO, "files", "needs a connector"),
        (SINK.replace("folder", "path"), INTO, "path", "has no option 'path'; expected"),
        (SINK.replace(", folder = '/lake'", ""), INTO, "connector", "needs the option 'folder'"),
        (SINK.replace("'/lake'", "lake + 1"), INTO, "lake", "expected a text in quotes, a number"),
        (SINK.replace("'/lake'", "'/lake', merge_bytes = 0"), INTO, "files", "merge_bytes"),
        (
            SINK.replace("files", "files(user)"),
            INTO,
            "user, am",
            "takes user; the query has user, a",
        ),
        (
            SINK.replace("files", "files(u, a)"),
            INTO.replace("files", "files (u, b)"),
            "b)",
            "sink 'files' has no column 'b'; expected a, u",
        ),
        (SINK.replace("files", "files(u INT, a)"), INTO, "files", "the types of all columns"),
        (
            "CREATE SINK files WITH (connector = 'warehouse')",
            INTO,
            "user, amount FROM",
            "select the event time of rows, or add time = 'column'",
        ),
        (SINK, "INSERT files", "files", "expected INTO; found 'files'"),
    ],
)
def test_a_mistake_in_a_sink_is_shown_where_it_is(
    sink: str, query: str, at: str, message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(f"{HEAD}{sink};\n{query}", "app.sql"))
    shown = caught.value.message.splitlines()
    assert message in shown[0]
    assert shown[1][shown[2].index("^") :].startswith(at)


NUMBER = "row_number() OVER (PARTITION BY user ORDER BY amount)"


@pytest.mark.parametrize(
    ("query", "at", "message"),
    [
        (f"SELECT user, {NUMBER} AS n FROM orders", "row_number", "ROW_NUMBER() is known to keep"),
        (f"SELECT user FROM orders QUALIFY {NUMBER} = 2", "row_number", "QUALIFY ROW_NUMBER()"),
        (f"SELECT user FROM orders QUALIFY {NUMBER} <= 0", "row_number", "known to keep the first"),
        (f"SELECT user FROM orders QUALIFY {NUMBER} > 2", "row_number", "known to keep the first"),
        (f"SELECT user FROM orders QUALIFY {NUMBER} <= price", "price", "how many rows to keep"),
        ("SELECT user FROM orders QUALIFY user = 1", "user = 1", "known to keep the first rows"),
        (
            f"SELECT user FROM orders QUALIFY {NUMBER.replace('row_number', 'rank')} <= 2",
            "rank()",
            "known to keep the first rows",
        ),
        (
            "SELECT user FROM orders QUALIFY row_number() OVER (PARTITION BY user) <= 2",
            "row_number",
            "needs ORDER BY in its OVER",
        ),
        (
            f"SELECT amount FROM orders QUALIFY {NUMBER} <= 1",
            "row_number",
            "later rows replace earlier ones by their key: select all of PARTITION BY",
        ),
        (
            f"SELECT user FROM orders QUALIFY {NUMBER} <= 3",
            "row_number",
            "select the row number and all of PARTITION BY",
        ),
        (
            f"SELECT user, count(*) AS n FROM orders QUALIFY {NUMBER} <= 3",
            "count(*)",
            "an aggregate has no row number",
        ),
        (
            f"SELECT user FROM orders GROUP BY user QUALIFY {NUMBER} <= 1",
            "user QUALIFY",
            "GROUP has no row numbers: use a subquery",
        ),
        (
            f"SELECT user, {NUMBER.replace('amount', 'at')} AS n FROM orders QUALIFY {NUMBER} <= 2",
            "row_number",
            "a query has one ROW_NUMBER()",
        ),
        (
            f"SELECT user FROM orders [1 minute] QUALIFY {NUMBER} = 1 EMIT EVERY '1 minute'",
            "EMIT",
            "EMIT is not known together with ROW_NUMBER() and a window",
        ),
    ],
)
def test_a_mistake_of_row_numbers_is_shown_where_it_is(query: str, at: str, message: str) -> None:
    text = f"{HEAD}CREATE TABLE found AS\n{query}"
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(text, "app.sql"))
    assert message in str(caught.value)
    assert f"app.sql:4:{query.index(at) + 1}:" in str(caught.value)


JOIN_HEAD = """CREATE APPLICATION shop;
CREATE INPUT TABLE a(at, k, v) FROM SCRIBE("a") TIME at;
CREATE INPUT TABLE b(at, k, w) FROM SCRIBE("b") TIME at;
CREATE INPUT TABLE t(id, at, x, PRIMARY KEY (id)) FROM SCRIBE("t") TIME at;
CREATE INPUT TABLE u(id, y, PRIMARY KEY (id)) FROM SCRIBE("u");
"""
NEAR = "a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 1 MINUTE"


@pytest.mark.parametrize(
    ("query", "at", "message"),
    [
        ("SELECT v FROM a JOIN b ON a.k = b.k", "b ON", "add AND b.at BETWEEN a.at - INTERVAL 10"),
        (f"SELECT k FROM a JOIN b ON {NEAR}", "k FROM", "column 'k' is in 'a' and 'b': write a.k"),
        (f"SELECT b.v FROM a JOIN b ON {NEAR}", "b.v", "no column 'v' in 'b'; expected at, k, w"),
        (f"SELECT c.v FROM a JOIN b ON {NEAR}", "c.v", "no table 'c' here; expected"),
        (f"SELECT v FROM a JOIN b ON {NEAR.replace('a.k', 'a.kk')}", "a.kk", "did you mean 'k'?"),
        ("SELECT v FROM a, b", "b", "a join needs a condition: ON a.key = b.key"),
        ("SELECT v FROM a CROSS JOIN b", "", "CROSS JOIN is not known; expected JOIN, LEFT"),
        ("SELECT v FROM a SEMI JOIN b USING (k)", "", "SEMI JOIN is not known"),
        (
            "SELECT v FROM a JOIN b ON b.at BETWEEN a.at AND a.at + 1 AND v > w",
            "b ON",
            "a join needs a key",
        ),
        ("SELECT v FROM a JOIN b ON a.k = b.k AND b.at > a.at", "b ON", "must be near in event"),
        (
            "SELECT v FROM a JOIN b ON a.k = b.k AND b.at > a.at + 5 AND b.at < a.at",
            "b ON",
            "no two rows are this near",
        ),
        (f"SELECT v FROM a LEFT JOIN b ON {NEAR} AND v > w", "v > w", "LEFT JOIN is known with"),
        ("SELECT v FROM a [5 minutes] JOIN b ON a.k = b.k", "b ON", "the same window, or none"),
        ("SELECT v FROM a [5 minutes] JOIN b [6 minutes] ON a.k = b.k", "b [", "the same window"),
        (
            "SELECT v FROM a [session 5 minutes] JOIN b [session 5 minutes] ON a.k = b.k",
            "b [",
            "a join is known for windows such as [5 minutes] only",
        ),
        ("SELECT v FROM a JOIN b USING (v)", "v)", "no column 'v' in 'b'"),
        ("SELECT v FROM a JOIN b USING (w)", "w)", "no column 'w' on the left; expected at, k, v"),
        ("SELECT v FROM a RIGHT JOIN b USING (k)", "", "USING is not known for RIGHT JOIN: use ON"),
        (
            "SELECT v FROM (SELECT k, v FROM a) a JOIN b ON a.k = b.k",
            "b ON",
            "the left side has no column with it: select it there",
        ),
        ("SELECT v FROM a JOIN t ON a.v = t.x", "t ON", "PRIMARY KEY; 'id' is missing"),
        ("SELECT v FROM a FULL JOIN t ON a.k = t.id", "", "a stream and a table have no FULL JOIN"),
        ("SELECT x FROM t JOIN a ON a.k = t.id", "a ON", "a table with a PRIMARY KEY is the right"),
        (
            "SELECT x FROM t RIGHT JOIN u ON t.id = u.id",
            "",
            "tables have no RIGHT JOIN: write LEFT",
        ),
        (
            "SELECT x FROM t FULL JOIN u ON t.id = u.id",
            "",
            "a FULL JOIN of tables needs USING (key)",
        ),
        (
            "SELECT x FROM t JOIN u ON t.x = u.id",
            "t.x",
            "compares the columns of their PRIMARY KEYs",
        ),
        (
            "SELECT x FROM t JOIN u ON t.id = u.id AND x > y",
            "x > y",
            "PRIMARY KEYs only: use WHERE",
        ),
        ("SELECT x FROM t [1 hour] JOIN u USING (id)", "u USING", "a join of tables has no window"),
        ("SELECT x FROM t JOIN u USING (id)", "x FROM", "select all of the key; 'id' is missing"),
        ("SELECT x FROM t FULL JOIN u USING (id)", "x FROM", "the column of USING is missing"),
        (
            "SELECT id, x AS is_deleted FROM t JOIN u USING (id)",
            "x AS",
            "have a column 'is_deleted'",
        ),
        ("SELECT id, unnest([x]) AS e FROM t JOIN u USING (id)", "unnest", "have no UNNEST"),
        ("SELECT x FROM a JOIN t [1 minute] ON a.k = t.id", "t [", "has no window"),
        ("SELECT x FROM a LEFT JOIN t ON a.k = t.id AND x > v", "x > v", "LEFT JOIN is known with"),
        ("SELECT x FROM a ASOF JOIN t ON a.k = t.id", "t ON", "ASOF JOIN needs the event times"),
        ("SELECT w FROM a ASOF JOIN b ON a.k = b.k AND a.at >= b.at", "b ON", "declare it with a"),
    ],
)
def test_a_mistake_in_a_join_is_shown_where_it_is(query: str, at: str, message: str) -> None:
    text = f"{JOIN_HEAD}CREATE STREAM s AS {query}"
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(text, "app.sql"))
    shown = caught.value.message.splitlines()
    assert message in shown[0]
    assert shown[0].startswith("app.sql:6:")
    marked = shown[1][shown[2].index("^") :]
    assert marked.startswith(at)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id, x, PRIMARY KEY (y)", "table 't' has no column 'y'; expected id, x"),
        ("id PRIMARY KEY, x PRIMARY KEY", "a table has one PRIMARY KEY (column, ...); found"),
        ("id, x", "expected TIME; found the end of the statement"),
    ],
)
def test_a_mistake_in_a_primary_key_is_shown(columns: str, message: str) -> None:
    text = f'CREATE APPLICATION a; CREATE INPUT TABLE t({columns}) FROM SCRIBE("t")'
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(text, "app.sql"))
    assert message in caught.value.message


FUNCTIONS = """
import headrace as hr
import polars as pl

number = 3

def half(value: float) -> float:
    return value / 2

def bare(value):
    return value

def series(values: pl.Series) -> pl.Series:
    return values

def most(column: str) -> hr.agg.Aggregate:
    return hr.agg.max(column)
"""


@pytest.mark.parametrize(
    ("name", "target", "used", "message"),
    [
        ("half", "nowhere_at_all:half", "1", "no module 'nowhere_at_all'"),
        ("half", "sql_mistakes:hlf", "1", "sql_mistakes has no 'hlf'; did you mean 'half'?"),
        ("half", "sql_mistakes:number", "1", "sql_mistakes:number is no function"),
        ("half", "sql_mistakes", "1", "expected 'module:function' in quotes"),
        ("half", "sql_mistakes:bare", "1", "does not say what it returns: annotate it"),
        ("half", "sql_mistakes:series", "1", "Annotated[pl.Series, int]"),
        ("upper", "sql_mistakes:half", "1", "'upper' is a function of SQL: rename it"),
        ("half", "sql_mistakes:half", "hlf(amount)", "no function 'hlf'; did you mean 'half'?"),
        ("half", "sql_mistakes:half", "half(at, amount)", "half takes (value), but is called with"),
        ("half", "sql_mistakes:half", "half()", "half takes (value), but is called with ()"),
        ("top", "sql_mistakes:most", "top(at, amount)", "top takes (column), but is called with"),
    ],
)
def test_a_mistake_in_a_function_is_shown_where_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    target: str,
    used: str,
    message: str,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sql_mistakes.py").write_text(FUNCTIONS)
    function = f"CREATE FUNCTION {name} USING '{target}';"
    query = f"CREATE TABLE sums AS SELECT max({used}) AS m, {used} AS n FROM orders [5 minutes]"
    if name == "top":
        query = query.replace(f"max({used})", "max(at)")
    with pytest.raises(InvalidInputError) as caught:
        load_app(SqlText(f"{HEAD}{function}\n{query}", str(tmp_path / "app.sql")))
    shown = caught.value.message.splitlines()
    assert message in shown[0]
    assert set(shown[2].strip()) == {"^"}


def test_a_function_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sql_twice.py").write_text(FUNCTIONS)
    text = "CREATE APPLICATION a;" + "CREATE FUNCTION half USING 'sql_twice:half';" * 2
    with pytest.raises(InvalidInputError, match="function 'half' is there twice"):
        load_app(SqlText(text, str(tmp_path / "app.sql")))


def home_with_app(home: Path, rows: int) -> Path:
    """Write an app, and the stream that it reads."""
    file = home / "shop.sql"
    file.write_text(HEAD + TABLE)
    schema = pa.schema({"at": pa.int64(), "user": pa.string(), "amount": pa.int64()}.items())
    with FileBus(home / "bus", files=FILES) as bus:
        stream = bus.create(StreamSpec("orders", 1, schema, "at"))
        made = [{"at": n * 60_000, "user": "ab"[n % 2], "amount": n} for n in range(rows)]
        stream.append(0, pa.RecordBatch.from_pylist(made, schema=schema))
    return file


def test_an_app_is_checked_run_and_queried_by_commands(tmp_path: Path) -> None:
    file = str(home_with_app(tmp_path, 12))
    home = ("--home", str(tmp_path))
    checked = done("sql", "check", file, "--json", *home)
    assert [json.loads(line)["column"] for line in checked.splitlines()] == [
        "user",
        "total",
        "window_start",
        "window_end",
    ]
    early = refused("sql", "query", file, "select * from sums", *home)
    assert "run the app first" in early
    assert headrace("run", file, "--standalone", "--bounded", *home).code == 0
    asked = "select user, sum(total) as all_of from sums group by user order by user"
    found = done("sql", "query", file, asked, "--json", *home)
    rows = [json.loads(line) for line in found.splitlines()]
    assert rows == [{"user": "a", "all_of": 30}, {"user": "b", "all_of": 36}]
    for query, message in (
        ("select * from sum", "did you mean 'sums'?"),
        ("select nothing from sums", "no column 'nothing'; expected total, user"),
        ("select * from read_csv('/etc/passwd')", "has no table"),
        ("drop table sums", "expected one query"),
    ):
        assert message in refused("sql", "query", file, query, *home)


def test_each_statement_is_explained_by_its_operators(tmp_path: Path) -> None:
    file = home_with_app(tmp_path, 1)
    file.write_text(
        f"{HEAD}CREATE VIEW large AS SELECT at, user, amount FROM orders WHERE amount > 3;\n"
        f"{TABLE.replace('FROM orders', 'FROM (SELECT user, amount FROM large)')};\n"
        "CREATE VIEW unused AS SELECT user FROM orders"
    )
    lines = done("sql", "explain", str(file), "--json", "--home", str(tmp_path)).splitlines()
    found = {row["statement"]: row for row in map(json.loads, lines)}
    assert [row["line"] for row in found.values()] == [2, 3, 4, 5]
    stores = {
        name: [store for one in row["operators"] for store in one["stores"]]
        for name, row in found.items()
    }
    assert stores == {
        "CREATE INPUT TABLE orders": [],
        "CREATE VIEW large": [],
        "CREATE TABLE sums": ["sums"],
        "CREATE VIEW unused": [],
    }
    assert any(
        "filter" in row for one in found["CREATE VIEW large"]["operators"] for row in one["does"]
    )
    assert found["CREATE VIEW unused"]["operators"] == []
    text = done("sql", "explain", str(file), "--home", str(tmp_path))
    assert f"{file}:4: CREATE TABLE sums\n" in text
    assert "  sums (stage 1)\n    window of 5m\n" in text


@pytest.mark.parametrize(
    ("query", "mark", "message"),
    [
        (
            TABLE.replace("sum(amount)", "avg(user)"),
            "avg(user)",
            "avg(user) needs numbers; the col",
        ),
        (TABLE.replace("amount)", "upper(amount))"), "upper(amount)", "got `i64`; amount is int64"),
        (TABLE + " WHERE user > 3", "user > 3", "cannot compare string with numeric type"),
        (TABLE + " WHERE amount", "amount", "filter needs one true or false; amount gives int64"),
        (TABLE + " HAVING sum(amount)", "sum(amount)", "filter needs one true or false"),
        (
            "CREATE STREAM s AS SELECT user || 'a' AS u,\n left(user, 2) + amount AS z FROM orders",
            "left(user, 2) + amount",
            "arithmetic on dtypes str and i64 is not allowed",
        ),
        (
            "CREATE STREAM s AS SELECT list_sum(user) AS u FROM orders",
            "list_sum(user)",
            "user is st",
        ),
    ],
)
def test_a_type_that_does_not_fit_is_shown_where_it_is(
    tmp_path: Path, query: str, mark: str, message: str
) -> None:
    file = home_with_app(tmp_path, 1)
    file.write_text(HEAD + query)
    shown = refused("sql", "check", file, "--home", tmp_path).splitlines()
    at = next(n for n, line in enumerate(shown) if f"{file.name}:" in line)
    place, line, marks = shown[at : at + 3]
    assert message in place
    begin = marks.index("^")
    assert line[begin : begin + len(marks.strip())] == mark
    text = HEAD + query
    is_last = "WHERE" in query or "HAVING" in query
    behind = text[: text.rindex(mark) if is_last else text.index(mark, len(HEAD))]
    row, column = behind.count("\n") + 1, len(behind) - behind.rfind("\n")
    assert f"{file.name}:{row}:{column}: " in place


def test_an_app_is_tried_on_files(tmp_path: Path) -> None:
    file = tmp_path / "shop.sql"
    file.write_text(HEAD + TABLE)
    assert "no file" in refused("sql", "test", file)
    given = tmp_path / "shop.test" / "input" / "orders.jsonl"
    given.parent.mkdir(parents=True)
    rows = [{"at": n * 60_000, "user": "a", "amount": n} for n in range(10)]
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "--update writes" in refused("sql", "test", file)
    assert "2 rows written" in done("sql", "test", file, "--update")
    assert "2 rows as expected" in done("sql", "test", file)
    expected = tmp_path / "shop.test" / "expected" / "sums.jsonl"
    lines = [json.loads(line) for line in expected.read_text().splitlines()]
    assert sorted(line["total"] for line in lines) == [10, 35]
    lines[0]["total"] += 1
    expected.write_text("".join(json.dumps(line) + "\n" for line in lines))
    differs = headrace("sql", "test", file)
    assert differs.code == 1
    assert "1 rows are missing, 1 are not expected" in differs.out
    expected.write_text("".join(json.dumps({"user": "a"}) + "\n" for _ in lines))
    done("sql", "test", file)


def test_versions_are_reviewed_deployed_and_taken_back(tmp_path: Path) -> None:
    file = home_with_app(tmp_path, 12)
    first, home = file.read_text(), ("--home", str(tmp_path))
    review = done("sql", "deploy", str(file), *home)
    assert "app shop, version 1:" in review
    assert "+ sums: " in review
    assert "nothing was changed" in review
    assert "deployed" in done("sql", "deploy", str(file), "--yes", *home)
    assert "there is none to go back to" in refused("sql", "deploy", str(file), "--rollback", *home)
    with TestDriver(load_app(file).job, home=tmp_path, memory_bus=False) as driver:
        driver.run()
    file.write_text(first.replace("sum(amount)", "max(amount)"))
    assert "does not fit its state" in refused("sql", "deploy", str(file), "--yes", *home)
    file.write_text(f"{first} HAVING sum(amount) > 3")
    again = json.loads(done("sql", "deploy", str(file), "--yes", "--json", *home))
    assert (again["version"], again["savepoint"]) == (2, "before-v2")
    assert [line[0] for line in again["operators"]]
    assert again["state"] == []
    assert "before-v2" in done("jobs", "savepoints", "shop", *home)
    back = json.loads(done("sql", "deploy", str(file), "--rollback", "--json", *home))
    assert file.read_text() == first
    assert back["version"] == 1
    for step in back["next"][1:]:
        extra = ["--standalone", "--bounded"] if " run " in step else []
        assert headrace(*step.split()[1:], *extra, *home).code == 0
