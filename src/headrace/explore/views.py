"""The views of a query: which statements each runs, and what its rows are made of."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.explore.columns import quoted
from headrace.explore.query import COUNTS, OVER_TIME, Query, Span, bucket_of
from headrace.explore.results import (
    ResultColumn,
    plain,
    plain_rows,
    python_rows,
    python_values,
    shown_type,
)
from headrace.explore.segments import OFFSET, PARTITION, RATE, TIME
from headrace.explore.statements import TOP, Figures, Rows, conditions, where_sql

LIMITS = {"table": 100, "bars": 20, "series": 10, "area": 10, "distribution": 5, "samples": 100}
VALUE_BUCKETS = 40
HEAT_TIMES, HEAT_VALUES = 80, 30
LOG_SKEW = 20
"""Values whose greatest is so many times the median, all above 0, get buckets that grow."""

MOST_SERIES_ROWS = 200_000
OTHER = "other"


class Run(Protocol):
    """Runs statements; see ``engine.Session``."""

    def __call__(self, sql: str, most: int) -> pa.Table:
        """Return the rows of a statement."""
        ...

    def give(self, name: str, table: pa.Table) -> None:
        """Have one more table in memory."""
        ...


class Shown(NamedTuple):
    """What a view shows."""

    columns: list[ResultColumn]
    rows: list[list[Any]]
    bucket_ms: int | None = None
    other_groups: int | None = None
    other_label: str | None = None


class QueryView:
    """A view of a query over rows; ``show`` is called once.

    Args:
        query: what is asked.
        span: of time.
        rows: where they are.
        like: the same view at another time, whose groups and buckets of values this one has.
    """

    def __init__(self, query: Query, span: Span, rows: Rows, like: QueryView | None) -> None:
        self.query, self.span, self.source = query, span, rows
        self.figures = Figures(query, rows)
        self.groups = [self.figures.source_of(name) for name in query.group_by]
        self.keys = [f"g{at}" for at in range(len(self.groups))]
        self.top: pa.Table | None = None if like is None else like.top
        self.bounds: list[float] | None = None if like is None else like.bounds
        self.is_other_time = like is not None
        self.limit = query.limit or LIMITS.get(query.view, 100)

    def show(self, run: Run) -> Shown:
        """Run its statements."""
        raise NotImplementedError

    # What several views use.

    def rows_sql(self, bucket: str = "NULL") -> str:
        """Return the text of the rows of the time and the filters."""
        return self.figures.rows(self.span, self.groups, bucket)

    def group_columns(self, table: pa.Table | None = None) -> list[ResultColumn]:
        """Return the columns of groups."""
        found = []
        for at, (name, source) in enumerate(zip(self.query.group_by, self.groups, strict=True)):
            kind = "string" if source.arrow is None else shown_type(source.arrow)
            if table is not None and f"g{at}" in table.column_names:
                kind = shown_type(table.schema.field(f"g{at}").type)
            found.append(ResultColumn(name, kind, "group"))
        return found

    def metric_columns(self, table: pa.Table) -> list[ResultColumn]:
        """Return the columns of metrics; rates are divided later, so they have fractions."""
        found = []
        for at, one in enumerate(self.query.metrics):
            kind = shown_type(table.schema.field(f"m{at}").type)
            is_rate = one.fn in ("rate", "sum_rate")
            found.append(ResultColumn(one.label, "float64" if is_rate else kind, "metric"))
        return found

    def figure(self, at: int, value: Any, seconds: float) -> Any:
        """Return a metric as it is shown: a rate is divided by the time."""
        fn = self.query.metrics[at].fn
        if fn == "sum" and value is None:
            return 0
        if fn not in ("rate", "sum_rate"):
            return plain(value)
        return 0.0 if value is None else float(value) / seconds

    def order_sql(self) -> str:
        """Return how groups are ordered, ties by the groups themselves."""
        order, names = self.query.order, list(self.query.group_by)
        by, is_down = ("m0", True) if order is None else ("", order.descending)
        if order is not None:
            labels = [one.label for one in self.query.metrics]
            if isinstance(order.by, int):
                if not 0 <= order.by < len(labels):
                    raise InvalidInputError(f"order: there is no metric {order.by}; change order")
                by = f"m{order.by}"
            elif order.by in names:
                by = f"g{names.index(order.by)}"
            elif order.by in labels:
                by = f"m{labels.index(order.by)}"
            else:
                raise InvalidInputError(
                    f"order: {order.by!r} is neither a metric nor a group of the query; expected "
                    f"one of {', '.join([*labels, *names])}"
                )
        direction = "DESC NULLS LAST" if is_down else "ASC NULLS LAST"
        return ", ".join([f"{by} {direction}", *(f"{key} ASC NULLS LAST" for key in self.keys)])

    def find_top(self, run: Run) -> int:
        """Find the groups that are shown by themselves; return how many others there are."""
        if not self.keys:
            return 0
        if self.top is None:
            order = self.query.order
            first = order.by if order is not None and isinstance(order.by, int) else 0
            grouped = self.figures.grouped(
                self.keys, sorted({first, 0}) if self.query.metrics else []
            )
            sql = (
                f"WITH rows AS NOT MATERIALIZED ({self.rows_sql()}), top_groups AS ({grouped}) "
                f"SELECT *, COUNT(*) OVER () AS n FROM top_groups ORDER BY {self.order_sql()} "
                f"LIMIT {self.limit}"
            )
            found = run(sql, self.limit)
            self._others = 0
            if found.num_rows:
                self._others = int(found.column("n")[0].as_py()) - found.num_rows
            places = pa.array(range(found.num_rows), pa.int32())
            self.top = found.select(self.keys).append_column("k", places)
        run.give(TOP, self.top)
        return getattr(self, "_others", 0)

    def ranked(self, bucket: str = "NULL", *, only: bool = False) -> str:
        """Return the text of the rows, with ``k``, the place of their group; null: another group.

        Args:
            bucket: SQL of the bucket of time.
            only: leave out the rows of other groups.
        """
        if not self.keys:
            return f"SELECT *, 0 AS k FROM ({self.rows_sql(bucket)})"
        same = " AND ".join(f"r.{key} IS NOT DISTINCT FROM t.{key}" for key in self.keys)
        join = "JOIN" if only else "LEFT JOIN"
        return f"SELECT r.*, t.k FROM ({self.rows_sql(bucket)}) r {join} {TOP} t ON {same}"

    def names_of(self, label: str) -> dict[int | None, list[Any]]:
        """Return the groups by their places."""
        if self.top is None:
            return {0: []}
        named: dict[int | None, list[Any]] = {}
        named.update(enumerate(plain_rows(self.top.select(self.keys))))
        named[None] = [label, *([None] * (len(self.keys) - 1))]
        return named

    def label(self) -> str:
        """Return what the other groups are called, which no group that is shown is."""
        label = OTHER
        firsts = set() if self.top is None else {str(v) for v in python_values(self.top.column(0))}
        while label in firsts:
            label = f"({label})"
        return label


class TableView(QueryView):
    """One row for each group: ``table`` and ``bars``."""

    def show(self, run: Run) -> Shown:
        """Run its statements."""
        order = self.order_sql()
        if self.is_other_time:
            return self._again(run)
        sql = (
            f"WITH rows AS NOT MATERIALIZED ({self.rows_sql()}), found AS "
            f"({self.figures.grouped(self.keys)}) SELECT *, COUNT(*) OVER () AS n FROM found "
            f"ORDER BY {order} LIMIT {self.limit}"
        )
        table = run(sql, self.limit)
        others = int(table.column("n")[0].as_py()) - table.num_rows if table.num_rows else 0
        places = pa.array(range(table.num_rows), pa.int32())
        if self.keys:
            self.top = table.select(self.keys).append_column("k", places)
        columns = [*self.group_columns(table), *self.metric_columns(table)]
        return Shown(columns, self._rows(table), other_groups=others if self.keys else None)

    def _again(self, run: Run) -> Shown:
        """Show the same groups at another time."""
        if not self.keys or self.top is None:
            sql = f"WITH rows AS NOT MATERIALIZED ({self.rows_sql()}) {self.figures.grouped([])}"
            return Shown([], self._rows(run(sql, 1)))
        run.give(TOP, self.top)
        inner = self.figures.grouped(self.keys)
        sql = f"WITH rows AS NOT MATERIALIZED ({self.ranked(only=True)}) SELECT * FROM ({inner})"
        found = self._rows(run(sql, self.limit))
        by_group = {tuple(row[: len(self.keys)]): row for row in found}
        named = plain_rows(self.top.select(self.keys))
        return Shown([], [by_group[tuple(one)] for one in named if tuple(one) in by_group])

    def _rows(self, table: pa.Table) -> list[list[Any]]:
        seconds = self.span.ms / 1000
        metrics = range(len(self.query.metrics))
        found = []
        names = table.column_names
        for values in python_rows(table):
            row = dict(zip(names, values, strict=True))
            group = [plain(row[key]) for key in self.keys]
            found.append([*group, *(self.figure(at, row[f"m{at}"], seconds) for at in metrics)])
        return found


class SeriesView(QueryView):
    """Buckets of time for each of the top groups: ``series`` and ``area``."""

    def show(self, run: Run) -> Shown:
        """Run its statements."""
        bucket = bucket_of(self.query, self.span)
        others = self.find_top(run)
        sql = (
            f"WITH rows AS NOT MATERIALIZED ({self.ranked(bucket_sql(bucket))}) "
            f"SELECT * FROM ({self.figures.grouped(['b', 'k'])})"
        )
        table = run(sql, MOST_SERIES_ROWS)
        label = self.label()
        rows = self._filled(table, bucket, self.names_of(label))
        columns = [
            ResultColumn("time", "timestamp", "time"),
            *self.group_columns(self.top),
            *self.metric_columns(table),
        ]
        is_grouped = bool(self.keys)
        return Shown(
            columns,
            rows,
            bucket,
            others if is_grouped else None,
            label if is_grouped and others else None,
        )

    def _filled(
        self, table: pa.Table, bucket: int, names: Mapping[int | None, list[Any]]
    ) -> list[list[Any]]:
        """Return a row for each bucket and group, also where there is nothing."""
        held: dict[tuple[int, int | None], dict[str, Any]] = {
            (row["b"], row["k"]): row for row in table.to_pylist()
        }
        present = {k for _, k in held}
        places = [k for k in names if k is not None or None in present]
        metrics = range(len(self.query.metrics))
        empty = [0 if one.fn in COUNTS else None for one in self.query.metrics]
        found = []
        for at in buckets_of(self.span, bucket):
            begin, end = max(at, self.span.from_ms), min(at + bucket, self.span.to_ms)
            seconds = (end - begin) / 1000
            for k in places:
                row = held.get((at, k))
                figures = (
                    empty
                    if row is None
                    else [self.figure(m, row[f"m{m}"], seconds) for m in metrics]
                )
                found.append([at, *names[k], *figures])
        return found


class ValuesView(QueryView):
    """How often values are in buckets of values: ``distribution`` and, over time, ``heatmap``."""

    def show(self, run: Run) -> Shown:
        """Run its statements."""
        is_heat = self.query.view == "heatmap"
        bucket = bucket_of(self.query, self.span, HEAT_TIMES) if is_heat else None
        others = self.find_top(run)
        self._find_bounds(run, HEAT_VALUES if is_heat else VALUE_BUCKETS)
        at = "NULL" if bucket is None else bucket_sql(bucket)
        edges = self.bounds or []
        place = "CAST(x0 AS DOUBLE)"
        which = place_sql(place, edges, 0, len(edges) - 1)
        count = self._count_sql()
        sql = (
            f"WITH rows AS NOT MATERIALIZED ({self.ranked(at)}) SELECT b, k, v, {count} AS m0 FROM "
            f"(SELECT b, k, w, {which} AS v FROM rows WHERE x0 IS NOT NULL AND isfinite({place})) "
            "GROUP BY b, k, v"
        )
        table = run(sql, MOST_SERIES_ROWS) if edges else None
        label = self.label()
        return Shown(
            self._columns(is_heat=is_heat),
            [] if table is None else self._rows(table, self.names_of(label), is_heat=is_heat),
            bucket,
            others if self.keys else None,
            label if self.keys and others else None,
        )

    def _count_sql(self) -> str:
        rate = self.source.rate
        return "SUM(w)" if rate is None else "COUNT(*)" if rate == 1 else f"COUNT(*) * {rate}"

    def _columns(self, *, is_heat: bool) -> list[ResultColumn]:
        low = ResultColumn("low", "float64", "bucket_low")
        high = ResultColumn("high", "float64", "bucket_high")
        count = ResultColumn("count", "int64", "metric")
        if is_heat:
            return [ResultColumn("time", "timestamp", "time"), low, high, count]
        return [low, high, *self.group_columns(self.top), count]

    def _rows(
        self, table: pa.Table, names: Mapping[int | None, list[Any]], *, is_heat: bool
    ) -> list[list[Any]]:
        edges = self.bounds or []
        held: dict[tuple[Any, Any, int], int] = {}
        for row in table.to_pylist():
            # A value below the lowest bound can only be there at another time.
            place = min(max(1, row["v"]), len(edges) - 1)
            key = (row["b"], row["k"], place)
            held[key] = held.get(key, 0) + int(row["m0"])
        if is_heat:
            return [[b, edges[v - 1], edges[v], n] for (b, _, v), n in sorted(held.items())]
        present = {k for _, k, _ in held}
        places = [k for k in names if k is not None or None in present]
        return [
            [edges[v - 1], edges[v], *names[k], held.get((None, k, v), 0)]
            for k in places
            for v in range(1, len(edges))
        ]

    def _find_bounds(self, run: Run, wanted: int) -> None:
        if self.bounds is not None:
            return
        value = "CAST(x0 AS DOUBLE)"
        found = run(
            f"WITH rows AS NOT MATERIALIZED ({self.rows_sql()}) SELECT MIN(v), MAX(v), "
            f"quantile_disc(v, 0.5) FROM (SELECT {value} AS v FROM rows) WHERE isfinite(v)",
            1,
        )
        low, high, middle = (column[0].as_py() for column in found.columns)
        self.bounds = [] if low is None else value_bounds(low, high, middle, wanted)


class SamplesView(QueryView):
    """Rows as they are, the newest first."""

    def show(self, run: Run) -> Shown:
        """Run its statements."""
        names = [TIME, *self.source.schema.names, PARTITION, OFFSET, RATE]
        time = self.source.time
        if time is not None:
            names.remove(TIME)
        where = conditions(self.query.filters, self.figures.source_of)
        every = [*names, *([] if TIME in names else [TIME])]
        source = self.source.source(self.span, every)
        shown = ", ".join(map(quoted, names))
        sql = (
            f"SELECT {shown} FROM ({source}){where_sql(where)} "
            f"ORDER BY {quoted(TIME)} DESC, {quoted(PARTITION)}, {quoted(OFFSET)} DESC "
            f"LIMIT {self.limit}"
        )
        table = run(sql, self.limit)
        columns = [
            ResultColumn(
                field.name,
                shown_type(field.type),
                "time" if field.name == (time or TIME) else "value",
            )
            for field in table.schema
        ]
        return Shown(columns, plain_rows(table))


def view_of(query: Query, span: Span, rows: Rows, like: QueryView | None = None) -> QueryView:
    """Return the view that a query asks for.

    Raises:
        InvalidInputError: a column that is not there, or does not fit.
    """
    kind: type[QueryView] = TableView
    if query.view in OVER_TIME:
        kind = SeriesView
    elif query.view in ("distribution", "heatmap"):
        kind = ValuesView
    elif query.view == "samples":
        kind = SamplesView
    return kind(query, span, rows, like)


def bucket_sql(bucket_ms: int) -> str:
    """Return the begin of the bucket of a row's time, also before 1970."""
    time = quoted(TIME)
    return f"({time} - (({time} % {bucket_ms}) + {bucket_ms}) % {bucket_ms})"


def buckets_of(span: Span, bucket_ms: int) -> range:
    """Return the begins of all buckets of a span."""
    return range(span.from_ms // bucket_ms * bucket_ms, span.to_ms, bucket_ms)


def place_sql(value: str, edges: Sequence[float], low: int, high: int) -> str:
    """Return SQL of how many lower bounds are not above a value, found by halves.

    Bounds are compared as they are shown, so no value is in a bucket that does not have it.
    """
    if high <= low:
        return str(low)
    middle = (low + high) // 2
    below = place_sql(value, edges, low, middle)
    above = place_sql(value, edges, middle + 1, high)
    return f"CASE WHEN {value} < CAST({edges[middle]!r} AS DOUBLE) THEN {below} ELSE {above} END"


def value_bounds(low: float, high: float, middle: float, wanted: int) -> list[float]:
    """Return bounds of buckets of values: round numbers, from at most ``low`` to above ``high``.

    Args:
        low: the lowest value.
        high: the highest value.
        middle: the median.
        wanted: about how many buckets.
    """
    if low > 0 and middle > 0 and high / middle > LOG_SKEW:
        first = math.floor(math.log10(low))
        steps = (1, 2, 5) if math.log10(high / low) * 3 <= wanted else (1,)
        bounds = [
            float(f"{digit}e{power}")
            for power in range(first, math.ceil(math.log10(high)) + 2)
            for digit in steps
        ]
        begin = max(0, bisect.bisect_right(bounds, low) - 1)
        end = bisect.bisect_right(bounds, high)
        return bounds[begin : end + 1]
    step = _nice((high - low) / wanted if high > low else max(abs(high), 1.0) / wanted)
    first_step = math.floor(low / step)
    bounds = [float(f"{(first_step + at) * step:.12g}") for at in range(wanted + 4)]
    while bounds[0] > low:
        bounds.insert(0, float(f"{bounds[0] - step:.12g}"))
    end = bisect.bisect_right(bounds, high)
    return bounds[: end + 1] if end < len(bounds) else [*bounds, math.nextafter(high, math.inf)]


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    for digit in (1, 2, 2.5, 5, 10):
        if digit * power >= step:
            return float(f"{digit * power:.12g}")
    return step
