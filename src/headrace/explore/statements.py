"""A query as DuckDB's SQL: where its rows come from, what is figured out of them, in which groups.

Every statement reads ``rows``: the rows of the time and the filters, with the columns ``b`` (bucket
of time), ``g0``... (groups), ``x0``... (what metrics are of) and ``w`` (how many rows one stands
for). Where all rows stand for as many, metrics are plain and multiplied; else each row is weighed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from headrace.durations import moment_ms
from headrace.errors import InvalidInputError
from headrace.explore.columns import Source, find_column, quoted, text_literal
from headrace.explore.query import Filter, Metric, Query, Span
from headrace.explore.segments import RATE, TIME, Segment

QUANTILES = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99}
_NUMERIC = ("sum", "avg", "sum_rate", *QUANTILES)
TAIL, TOP = "tail", "top"
"""Names of the tables in memory: the newest rows, and the groups that are shown."""


class Rows(msgspec.Struct, frozen=True):
    """Where the rows of a query come from.

    ``rate`` is how many rows each stands for; ``None``: some for more than others.
    """

    segments: tuple[Segment, ...]
    schema: pa.Schema
    time: str | None
    rate: int | None

    def source(self, span: Span, stored: Sequence[str]) -> str:
        """Return SQL of the rows of a time in files and memory.

        Args:
            span: of time. A file whose rows are all in it is not asked for its times.
            stored: columns of the stream that are wanted.
        """
        names = list(dict.fromkeys([TIME, RATE, *stored]))
        time = quoted(TIME)
        within = f" WHERE {time} >= {span.from_ms} AND {time} < {span.to_ms}"
        whole = [one for one in self.segments if one.is_within(span.from_ms, span.to_ms)]
        others = [one for one in self.segments if one not in whole]
        parts = files_parts(whole, self.schema, names)
        parts += [part + within for part in files_parts(others, self.schema, names)]
        parts.append(f"SELECT {', '.join(map(quoted, names))} FROM {TAIL}{within}")
        return " UNION ALL ".join(parts)


def files_parts(segments: Sequence[Segment], schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return SQL of the rows of some files, a ``SELECT`` for those of one form.

    A column that a file does not have is null there. So is a value that was written when the
    column had another type, and cannot be cast to the type that it has now.

    Args:
        segments: the files.
        schema: the columns of the stream as they are now.
        names: columns that are wanted, in their order.
    """
    forms: dict[tuple[str, ...], list[Segment]] = {}
    for one in segments:
        forms.setdefault(tuple(_odd_types(one.schema, schema, names)), []).append(one)
    parts = []
    for odd, group in forms.items():
        there = {name for one in group for name in one.schema.names}
        listed = []
        for name in names:
            if name not in there:
                listed.append(f"NULL AS {quoted(name)}")
            elif name in odd:
                listed.append(f"{_cast(name, schema.field(name).type)} AS {quoted(name)}")
            else:
                listed.append(quoted(name))
        parts.append(f"SELECT {', '.join(listed)} FROM {_files_sql(group)}")
    return parts


def _odd_types(written: pa.Schema, schema: pa.Schema, names: Sequence[str]) -> Iterator[str]:
    """Yield the columns that have a type in a file which does not widen to that of the stream."""
    for name in names:
        at, now = written.get_field_index(name), schema.get_field_index(name)
        if at >= 0 and now >= 0 and not _widens(written.field(at).type, schema.field(now).type):
            yield name


def _widens(written: pa.DataType, now: pa.DataType) -> bool:
    if written == now or (_is_numeric(written) and _is_numeric(now)):
        return True
    try:
        pair = [pa.schema([("a", one)]) for one in (written, now)]
        wide = pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return bool(wide == now)


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _cast(name: str, kind: pa.DataType) -> str:
    known = _DUCKDB_TYPES.get(str(kind))
    if known is None and pa.types.is_timestamp(kind):
        known = "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    return f"TRY_CAST({quoted(name)} AS {known})" if known else "NULL"


_DUCKDB_TYPES = {
    "bool": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER",
    "int64": "BIGINT", "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER",
    "uint64": "UBIGINT", "float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR",
    "date32[day]": "DATE", "binary": "BLOB",
}  # fmt: skip


def _files_sql(segments: Sequence[Segment]) -> str:
    """Return SQL that reads some files."""
    paths = ", ".join(text_literal(str(one.path)) for one in segments)
    is_same = all(one.schema.equals(segments[0].schema) for one in segments)
    by_name = "" if is_same else ", union_by_name = true"
    return f"read_parquet([{paths}]{by_name})"


class Figures:
    """The metrics of a query over ``rows``.

    Args:
        query: whose metrics they are.
        rows: that are read.
    """

    def __init__(self, query: Query, rows: Rows) -> None:
        self._query, self._rows = query, rows
        self.inputs: list[str] = []
        self.stored: list[str] = []
        self._metrics = [self._metric(at, one) for at, one in enumerate(query.metrics)]

    def source_of(self, name: str) -> Source:
        """Return how a column is read, and note that it is."""
        found = find_column(name, self._rows.schema, self._rows.time)
        self.stored.append(found.stored)
        return found

    def _metric(self, at: int, metric: Metric) -> str:
        if metric.column is None:
            return ""
        source = self.source_of(metric.column)
        sql = source.sql
        if metric.fn in _NUMERIC and source.kind not in ("number", "json"):
            raise InvalidInputError(
                f"{metric.label}: column {metric.column!r} is {source.kind}; {metric.fn} needs a "
                "number; choose another column, or count or distinct"
            )
        if source.kind == "json" and metric.fn != "distinct":
            sql = f"TRY_CAST({sql} AS DOUBLE)"
        elif source.arrow is not None and metric.fn in ("sum", "sum_rate"):
            sql = f"CAST({sql} AS HUGEINT)" if pa.types.is_integer(source.arrow) else sql
        self.inputs.append(f"{sql} AS x{at}")
        return f"x{at}"

    def rows(self, span: Span, groups: Sequence[Source], bucket: str = "NULL") -> str:
        """Return the text of ``rows``.

        Args:
            span: of time.
            groups: what is grouped by.
            bucket: SQL of the bucket of time.
        """
        where = conditions(self._query.filters, self.source_of)
        stored = [*self.stored, *(one.stored for one in groups)]
        wanted = [f"{bucket} AS b", f"{quoted(RATE)} AS w"]
        wanted += [f"{one.sql} AS g{at}" for at, one in enumerate(groups)]
        wanted += self.inputs
        source = self._rows.source(span, stored)
        return f"SELECT {', '.join(wanted)} FROM ({source}){where_sql(where)}"

    def grouped(self, keys: Sequence[str], names: Sequence[int] | None = None) -> str:
        """Return a statement of one row for each group of ``rows``: the keys, then the metrics.

        Args:
            keys: columns of ``rows``.
            names: places of the metrics that are wanted; ``None``: all.
        """
        places = range(len(self._metrics)) if names is None else names
        weighed = [at for at in places if self._is_weighed_quantile(at)]
        plain = [f"{self._sql(at)} AS m{at}" for at in places if at not in weighed]
        by = f" GROUP BY {', '.join(keys)}" if keys else ""
        listed = ", ".join([*keys, *plain]) or "COUNT(*) AS one"
        first = f"SELECT {listed} FROM rows{by}"
        if not weighed:
            return first
        parts, joins = [f"a AS ({first})"], []
        over = f"PARTITION BY {', '.join(keys)}" if keys else ""
        for at in weighed:
            inner = ", ".join([*keys, f"x{at}", f"SUM(w) OVER ({over} ORDER BY x{at}) AS upto"])
            percent = QUANTILES[self._query.metrics[at].fn]
            reached = f"MIN(x{at}) FILTER (upto * 100 >= total * {percent}) AS m{at}"
            parts.append(
                f"q{at} AS (SELECT {', '.join([*keys, reached])} FROM (SELECT {inner}, "
                f"SUM(w) OVER ({over}) AS total FROM rows WHERE x{at} IS NOT NULL){by})"
            )
            same = [f"a.{key} IS NOT DISTINCT FROM q{at}.{key}" for key in keys] or ["TRUE"]
            joins.append(f" LEFT JOIN q{at} ON {' AND '.join(same)}")
        shown = [f"a.{key}" for key in keys]
        shown += [f"q{at}.m{at}" if at in weighed else f"a.m{at}" for at in places]
        return f"WITH {', '.join(parts)} SELECT {', '.join(shown)} FROM a{''.join(joins)}"

    def _is_weighed_quantile(self, at: int) -> bool:
        return self._rows.rate is None and self._query.metrics[at].fn in QUANTILES

    def _sql(self, at: int) -> str:
        """Return a metric over ``rows``; rates are counts here, which are divided later."""
        fn, x, rate = self._query.metrics[at].fn, f"x{at}", self._rows.rate
        times = "" if rate in (None, 1) else f" * {rate}"
        if fn in ("count", "rate"):
            return f"COUNT(*){times}" if rate is not None else "COALESCE(SUM(w), 0)"
        if fn in ("sum", "sum_rate"):
            return f"SUM({x}){times}" if rate is not None else f"SUM({x} * w)"
        if fn == "avg":
            weighed = f"SUM({x} * w) / SUM(w) FILTER ({x} IS NOT NULL)"
            return f"AVG({x})" if rate is not None else weighed
        if fn == "distinct":
            return f"COUNT(DISTINCT {x})"
        if fn in QUANTILES:
            return f"quantile_disc({x}, {QUANTILES[fn] / 100})"
        return f"{fn.upper()}({x})"


def where_sql(every: Sequence[str]) -> str:
    """Return the clause of conditions that all have to hold."""
    return f" WHERE {' AND '.join(every)}" if every else ""


def conditions(filters: Sequence[Filter], source_of: Any) -> list[str]:
    """Return filters as SQL; all have to hold."""
    return [_condition(one, source_of(one.column)) for one in filters]


_COMPARED = {"=", "<", "<=", ">", ">="}


def _condition(one: Filter, source: Source) -> str:
    sql, op, value = source.sql, one.op, one.value
    if op == "is null":
        return f"{sql} IS NULL"
    if op == "is not null":
        return f"{sql} IS NOT NULL"
    if isinstance(value, list):
        listed = ", ".join(_literal(one, source, each) for each in value)
        found = f"{_typed(sql, source, value[0])} IN ({listed})"
        return found if op == "in" else f"({found}) IS NOT TRUE"
    if op in _COMPARED or op == "!=":
        said = "IS DISTINCT FROM" if op == "!=" else op
        return f"{_typed(sql, source, value)} {said} {_literal(one, source, value)}"
    text = f"CAST({sql} AS VARCHAR)"
    wanted = text_of(str(value), one)
    if op == "contains":
        return f"contains({text}, {wanted})"
    if op == "not contains":
        return f"contains({text}, {wanted}) IS NOT TRUE"
    if op == "starts with":
        return f"starts_with({text}, {wanted})"
    return f"regexp_matches({text}, {wanted})"


def text_of(value: str, one: Filter) -> str:
    """Return a text as SQL has it."""
    if "\0" in value:
        raise InvalidInputError(f"filter {one.column} {one.op}: the value has a zero byte")
    return text_literal(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _typed(sql: str, source: Source, value: object) -> str:
    """Return a value of JSON as what it is compared with."""
    if source.kind == "json" and _is_number(value):
        return f"TRY_CAST({sql} AS DOUBLE)"
    return f"CAST({sql} AS VARCHAR)" if source.arrow and source.kind == "json" else sql


def _literal(one: Filter, source: Source, value: Any) -> str:
    """Return the value of a filter as SQL, of the type of its column."""
    kind = source.kind
    if kind == "time":
        return _time_literal(one, source, value)
    if kind == "number" and isinstance(value, str):
        value = _number(one, value)
    if kind == "number" and isinstance(value, bool):
        raise _unfit(one, "a number", value)
    if kind == "bool":
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not isinstance(value, bool):
            raise _unfit(one, "true or false", value)
    if isinstance(value, bool):
        found = "true" if value else "false"
        return found if kind == "bool" else text_literal(found)
    if kind == "bytes":
        return _bytes_literal(one, value)
    if _is_number(value) and kind in ("number", "json"):
        if isinstance(value, float) and not math.isfinite(value):
            raise _unfit(one, "a finite number", value)
        return repr(value) if isinstance(value, int) else f"CAST({value!r} AS DOUBLE)"
    return text_of(str(value), one)


def _number(one: Filter, value: str) -> int | float:
    for read in (int, float):
        try:
            return read(value.strip())
        except ValueError:
            continue
    raise _unfit(one, "a number", value)


def _unfit(one: Filter, expected: str, found: object) -> InvalidInputError:
    return InvalidInputError(
        f"filter {one.column} {one.op}: expected {expected}, found {str(found)[:100]!r}"
    )


def _bytes_literal(one: Filter, value: object) -> str:
    try:
        held = bytes.fromhex(str(value))
    except ValueError:
        raise _unfit(one, "bytes as hexadecimal digits", value) from None
    return "'" + "".join(f"\\x{byte:02X}" for byte in held) + "'::BLOB"


def _time_literal(one: Filter, source: Source, value: Any) -> str:
    ms: int
    if _is_number(value):
        ms = int(value)
    else:
        try:
            ms = moment_ms(datetime.fromisoformat(str(value)))
        except ValueError:
            raise _unfit(one, "a time such as 2026-01-31T05:15Z", value) from None
    if source.arrow is not None and pa.types.is_integer(source.arrow):
        return str(ms)
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise _unfit(one, "a time of the years 1 to 9999", value) from None
    kind = "DATE" if source.arrow is not None and pa.types.is_date(source.arrow) else "TIMESTAMPTZ"
    return f"CAST({text_literal(at.isoformat())} AS {kind})"
