"""One ``SELECT`` that somebody typed: read by sqlglot, and let through where all of it is known.

What is not on the lists below is refused, whatever it may do. What passes is written again from the
tree, so DuckDB reads what was checked; it runs in a process of its own that can do little else: see
``sql_worker``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from headrace.errors import InvalidInputError
from headrace.explore.columns import quoted
from headrace.explore.segments import OFFSET, PARTITION, RATE, TIME
from headrace.explore.statements import files_parts
from headrace.explore.stream_tail import Kept, table_of
from headrace.queries.parsing import parse_words, unlogged
from headrace.queries.text import Place, SqlText, near, place_of

MAX_TEXT = 20_000
MAX_NODES = 2_000
TIME_MS = "_time_ms"
OWN_COLUMNS = ((TIME, "timestamp"), (TIME_MS, "int64"), (RATE, "int32"), (PARTITION, "int32"),
               (OFFSET, "int64"))  # fmt: skip
"""Columns that every table has, beside those of its stream."""

_NODES = str.split(
    """
    Select Union Intersect Except Subquery CTE With From Where Group Having Qualify Order Ordered
    Limit Offset Distinct Join Table TableAlias Alias Aliases Column Identifier Star Literal Boolean
    Null Paren Tuple Not And Or Xor EQ NEQ GT GTE LT LTE Is In Between Like ILike SimilarTo Exists
    NullSafeEQ NullSafeNEQ Add Sub Mul Div IntDiv Mod Neg Pow DPipe SafeDPipe Case If Cast TryCast
    DataType DataTypeParam Interval IntervalSpan Var Window WindowSpec Filter WithinGroup Bracket
    Dot Any All Escape BitwiseAnd BitwiseOr BitwiseXor GroupingSets Rollup Cube NamedWindow
    ColumnDef Slice IgnoreNulls RespectNulls Collate JSONPath JSONPathRoot JSONPathKey
    JSONPathSubscript Array Struct PropertyEQ Unnest Values RegexpLike
    """
)
_FUNCTIONS = frozenset(
    str.split(
        """
    abs acos any_value approx_count_distinct approx_distinct approx_quantile arg_max arg_min argmax
    argmin array_agg array_length array_size arrayagg asin atan atan2 avg bool_and bool_or
    cardinality cbrt ceil ceiling coalesce concat concat_ws contains corr cos cot count count_if
    countif covar_pop covar_samp cume_dist current_date current_timestamp date date_add date_diff
    date_part date_sub date_trunc datediff day dayname dayofmonth dayofweek dayofyear degrees
    dense_rank ends_with entropy epoch epoch_ms epoch_us even exp extract first first_value floor
    from_unixtime gcd greatest hour if ifnull ilike instr is_nan isfinite isinf isnan jaccard
    json_extract json_extract_scalar json_extract_string json_array_length json_keys json_type
    json_valid kurtosis lag last last_day last_value lcm lead least left len length list
    list_contains array_contains list_element list_extract list_value ln log log10 log2 logical_and
    logical_or lower lcase ltrim mad make_date make_timestamp max md5 median mean min minute mod
    mode month monthname now nth_value ntile nullif parse_json percent_rank percentile_cont
    percentile_disc pi pow power product quantile quantile_cont quantile_disc quarter radians rank
    regexp_count regexp_extract regexp_full_match regexp_like regexp_matches regexp_replace regr_r2
    regr_slope regr_intercept replace reverse right round row_number rtrim second sign sin skewness
    split split_part sqrt starts_with startswith endswith stddev stddev_pop stddev_samp str_position
    str_split str_to_time str_to_unix strftime strpos strptime string_agg string_split
    string_to_array struct struct_extract substr substring sum tan time_bucket date_bin time_to_str
    time_to_unix timestamp_trunc timestamptrunc to_timestamp to_days to_hours to_minutes to_seconds
    try_strptime trim trunc ucase unix_to_time upper var_pop var_samp variance variance_pop week
    weekofyear xor year yearweek try_cast cast case array ts_or_ds_to_date ts_or_ds_to_timestamp
    group_concat groupconcat unix_seconds unix_millis unix_micros
        """
    )
)
_ALLOWED = tuple(getattr(exp, name) for name in _NODES if hasattr(exp, name))
_TABLE_ARGS = {"this", "db", "catalog", "alias", "joins"}


class BoxQuery(NamedTuple):
    """A ``SELECT`` that may run: DuckDB's SQL, and which stream each of its tables is."""

    source: SqlText
    sql: str
    tables: dict[str, str]
    columns: frozenset[str] | None
    """Names that can be columns, in lower case; ``None``: all of them may be wanted."""


def read_select(text: str, streams: Iterable[str]) -> BoxQuery:
    """Check a text.

    Args:
        text: one ``SELECT``.
        streams: that may be read.

    Raises:
        InvalidInputError: it is none, or has something that is not known to be harmless; shows
            where.
    """
    source = SqlText(text[:MAX_TEXT])
    if len(text) > MAX_TEXT:
        raise InvalidInputError(f"a query has at most {MAX_TEXT:,} characters; shorten it")
    if not text.strip():
        raise source.mistake("expected a query: SELECT ... FROM ...", Place(0, 1))
    try:
        tree = parse_words(source)
        nodes = list(tree.walk()) if isinstance(tree, exp.Query) else []
    except RecursionError as error:
        raise InvalidInputError("the query is nested too deeply; make it flatter") from error
    if not nodes:
        raise source.mistake("expected one query: SELECT ... FROM ...", Place(0, len(text)))
    if len(nodes) > MAX_NODES:
        raise InvalidInputError(f"a query has at most {MAX_NODES:,} parts; shorten it")
    for node in nodes:
        _check(source, node)
    known = list(streams)
    tables: dict[str, str] = {}
    for table in list(tree.find_all(exp.Table)):
        if not table.db and _is_of_with(table):
            continue
        stream = _stream_of(source, table, known)
        alias = next((a for a, held in tables.items() if held == stream), f"__t{len(tables)}")
        tables[alias] = stream
        table.set("alias", table.args.get("alias") or exp.TableAlias(this=_shown_name(stream)))
        table.set("this", exp.to_identifier(alias, quoted=True))
        table.set("db", None)
        table.set("catalog", None)
    names = {one.name.lower() for one in tree.find_all(exp.Identifier)}
    has_star = any(tree.find_all(exp.Star)) and any(
        not isinstance(one.parent, exp.Count) for one in tree.find_all(exp.Star)
    )
    # SELECT t FROM t is all of a row, too.
    is_whole = has_star or any(held.lower() in names for held in tables.values())
    with unlogged():
        sql = tree.sql("duckdb")
    return BoxQuery(source, sql, tables, None if is_whole else frozenset(names))


def _is_of_with(table: exp.Table) -> bool:
    """Say whether a table is a query of ``WITH``: in a query below it, or in one that follows."""
    name = table.name.lower()
    node: Any = table
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.With):  # node is one of its queries
            seen = parent.expressions[: parent.expressions.index(node)]
            parent = parent.parent
        else:
            given = parent.args.get("with_")
            seen = [] if given is None else given.expressions
        if name in {one.alias.lower() for one in seen}:
            return True
        node = parent
    return False


def _shown_name(stream: str) -> exp.Identifier:
    return exp.to_identifier(stream, quoted=True)


def _check(source: SqlText, node: Any) -> None:
    """Refuse a part of a query that is not known."""
    if isinstance(node, exp.Func) and not isinstance(node, _ALLOWED):
        names = [node.name] if isinstance(node, exp.Anonymous) else type(node).sql_names()
        if isinstance(node, exp.AnonymousAggFunc):
            names = [node.name]
        if not any(one.lower() in _FUNCTIONS for one in names):
            shown = names[0].lower() if names else type(node).__name__.lower()
            raise source.mistake(
                f"function {shown!r} cannot be used here; the guide lists those that can",
                place_of(node),
            )
        return
    if not isinstance(node, _ALLOWED):
        raise source.mistake(
            f"{type(node).__name__.upper()} cannot be used here; a query has SELECT, FROM, JOIN, "
            "WHERE, GROUP BY, ORDER BY and plain functions",
            place_of(node),
        )
    if isinstance(node, exp.With) and node.args.get("recursive"):
        raise source.mistake("WITH RECURSIVE cannot be used here", place_of(node))
    if isinstance(node, exp.Table):
        others = [name for name, value in node.args.items() if value and name not in _TABLE_ARGS]
        if others or not isinstance(node.this, exp.Identifier):
            raise source.mistake("a table is a stream, by its name alone", place_of(node))
    if isinstance(node, exp.Literal | exp.Identifier) and "\0" in str(node.this):
        raise source.mistake("a zero byte cannot be used here", Place(0, 1))


def _stream_of(source: SqlText, table: exp.Table, known: Sequence[str]) -> str:
    """Return the stream that a table means; a name with dots need not be quoted."""
    name = ".".join(part for part in (table.catalog, table.db, table.name) if part)
    for stream in known:
        if stream.lower() == name.lower():
            return stream
    place = place_of(table)
    raise source.mistake(f"no stream {name!r} is kept to explore; {near(name, known)}", place)


class BoxTable(NamedTuple):
    """A table as the worker makes it: a view over files and rows in memory."""

    name: str
    view: str
    paths: list[str]
    rows: pa.Table


def box_table(name: str, kept: Kept, wanted: frozenset[str] | None) -> BoxTable:
    """Return a stream as a table of a query.

    Args:
        name: of the table.
        kept: the rows of the stream.
        wanted: columns in lower case; ``None``: all.
    """
    taken = {column for column, _ in OWN_COLUMNS}
    own = [TIME, RATE, PARTITION, OFFSET]
    columns = [
        one
        for one in kept.schema.names
        if (wanted is None or one.lower() in wanted) and one not in taken
    ]
    rows = table_of(kept)
    rows = rows.select([*own, *columns])
    segments = [one for one in kept.segments if one.facts.rows]
    listed = [*own, *columns]
    parts = [f"SELECT {', '.join(map(quoted, listed))} FROM {quoted(f'{name}_rows')}"]
    parts += files_parts(segments, kept.schema, listed)
    shown = [*map(quoted, columns)]
    shown += [f"CAST(make_timestamp_ms({quoted(TIME)}) AS TIMESTAMPTZ) AS {quoted(TIME)}"]
    shown += [f"{quoted(TIME)} AS {quoted(TIME_MS)}", *map(quoted, own[1:])]
    view = f"SELECT {', '.join(shown)} FROM ({' UNION ALL '.join(parts)})"
    return BoxTable(name, view, [str(one.path) for one in segments], rows)


def schema_of(streams: Mapping[str, pa.Schema]) -> list[dict[str, Any]]:
    """Return tables and columns, for completion."""
    found = []
    for name, schema in streams.items():
        columns = [{"name": one.name, "type": str(one.type)} for one in schema]
        own = [{"name": column, "type": kind} for column, kind in OWN_COLUMNS]
        found.append({"name": name, "columns": columns + own})
    return found
