"""Aggregates of a query, found within its expressions: each is computed once.

What they are of are columns, computed before rows are grouped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.graph import agg
from headrace.graph.aggregates import Aggregate
from headrace.graph.row_aggregates import Unique
from headrace.queries.text import near
from headrace.sql.expressions import (
    Compiler,
    is_aggregate,
    name_of,
    text_of,
)
from headrace.sql.functions import UserAggregate


class Aggregates:
    """Compiles the aggregates of a query, and keeps what they need.

    ``arguments`` are columns to compute before, and ``found`` aggregates over them, by name.

    Args:
        within: compiles what aggregates are of; its columns are those before grouping.
        taken: names of the key.
        query: name of the query.
    """

    def __init__(self, within: Compiler, taken: Sequence[str] = (), query: str = "") -> None:
        self._within, self._taken, self._query = within, taken, query
        self.arguments: dict[str, pl.Expr] = {}
        self.found: dict[str, Aggregate] = {}
        self._known: dict[str, pl.Expr] = {}

    def __call__(self, node: Any) -> pl.Expr:
        """Return the expression of an aggregate's result.

        Raises:
            InvalidInputError: it is not known; shows where.
        """
        if (text := text_of(node)) not in self._known:
            self._known[text] = self._compiled(node)
        return self._known[text]

    def add(self, aggregate: Aggregate) -> pl.Expr:
        """Return the column of an aggregate's result."""
        for name, known in self.found.items():
            if known == aggregate:
                return pl.col(name)
        name = f"_agg{len(self.found)}"
        self.found[name] = aggregate
        return pl.col(name)

    def _argument(self, value: pl.Expr) -> str:
        """Return the column that will have a value."""
        for name, known in self.arguments.items():
            if known.meta.eq(value):
                return name
        own = value.meta.output_name() if value.meta.is_column() else ""
        name = own if own and own not in self._taken else f"_of{len(self.arguments)}"
        self.arguments[name] = value
        return name

    def _compiled(self, node: Any) -> pl.Expr:
        within = self._within
        condition: pl.Expr | None = None
        call = node
        while isinstance(call, exp.Filter | exp.IgnoreNulls):
            if isinstance(call, exp.Filter):
                condition = within(call.expression.this)
            call = call.this
        is_distinct = isinstance(call.this, exp.Distinct)
        make = (_DISTINCT if is_distinct else _AGGREGATES).get(type(call))
        if make is None and is_distinct:
            raise within.mistake(node, f"DISTINCT is known in {', '.join(_DISTINCT_NAMES)}")
        if make is None:
            users = [n for n, one in within.functions.items() if isinstance(one, UserAggregate)]
            hint = near(name_of(call), [*_AGGREGATE_NAMES, *users])
            raise within.mistake(node, f"no aggregate {name_of(call)!r}; {hint}")
        for part in call.walk():
            if part is not call and is_aggregate(part):
                raise within.mistake(part, "an aggregate cannot be of another one")

        def value(tree: Any) -> str:
            made = within(tree)
            return self._argument(made if condition is None else pl.when(condition).then(made))

        before = set(self.found)
        made = make(within, call, value, self)
        for name in set(self.found) - before:
            within.source.compiled.append((f"{self._query}.{name}", made, call))
        return made


def _count(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    of = (
        exp.Literal.number(1) if isinstance(call.this, exp.Star) or call.this is None else call.this
    )
    return to.add(agg.count(value(of)))


def _count_if(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    """Of no condition that is known the number is null, as in DuckDB."""
    whether = exp.If(this=call.this.copy(), true=exp.Literal.number(1))
    known = to.add(agg.count(value(call.this)))
    return pl.when(known > 0).then(to.add(agg.count(value(whether))))


def _sum(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    """Of no value the sum is null, where that of ``hr.agg.sum`` is 0."""
    column = value(call.this)
    return pl.when(to.add(agg.count(column)) > 0).then(to.add(agg.sum(column)))


def _of_one(make: Callable[[str], Aggregate]) -> Callable[..., pl.Expr]:
    return lambda compiler, call, value, to: to.add(make(value(call.this)))


def _picked(make: Callable[..., Aggregate]) -> Callable[..., pl.Expr]:
    return lambda compiler, call, value, to: to.add(
        make(value(call.this), by=value(call.expression))
    )


def _ranks(compiler: Compiler, call: Any) -> tuple[list[float], bool]:
    """Return the ranks of quantiles, and whether it is one alone."""
    given = call.args.get("quantile") or call.args.get("expression")
    many = given.expressions if isinstance(given, exp.Array) else None
    ranks = [float(compiler.constant(one, "a rank")) for one in many or filter(None, [given])]
    wrong = [rank for rank in ranks if not 0 <= rank <= 1]
    if wrong or not ranks:
        raise compiler.mistake(call, f"{name_of(call)} takes a rank from 0 to 1")
    return ranks, many is None


def _approx_quantile(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    ranks, is_one = _ranks(compiler, call)
    found = to.add(agg.quantiles(value(call.this), at=tuple(ranks)))
    return found.list.first() if is_one else found


def _quantile(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    """Keep all values: exact, between the two nearest ones."""
    ranks, is_one = _ranks(compiler, call)
    values = to.add(agg.collect(value(call.this)))
    made = [_at_rank(values, rank) for rank in ranks]
    return made[0] if is_one else pl.concat_list(made)


def _at_rank(values: pl.Expr, rank: float) -> pl.Expr:
    known = pl.element().drop_nulls().cast(pl.Float64)
    return values.list.eval(known.quantile(rank, "linear")).list.first()


def _median(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    return _at_rank(to.add(agg.collect(value(call.this))), 0.5)


def _texts(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    """Put texts behind each other in the order in which rows came; of none it is null."""
    separator = call.args.get("separator")
    between = "," if separator is None else str(compiler.constant(separator, "the separator"))
    known = to.add(agg.collect(value(call.this))).list.eval(
        pl.element().drop_nulls().cast(pl.String)
    )
    return pl.when(known.list.len() > 0).then(known.list.join(between))


def _all_are(*, is_so: bool) -> Callable[..., pl.Expr]:
    """Return what says whether all conditions hold, or one does; of none known it is null."""

    def made(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
        condition = exp.Not(this=exp.Paren(this=call.this.copy())) if is_so else call.this.copy()
        some = exp.If(this=condition, true=exp.Literal.number(1))
        count, known = to.add(agg.count(value(some))), to.add(agg.count(value(call.this)))
        return pl.when(known > 0).then(count == 0 if is_so else count > 0)

    return made


def _frequent(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    """Return the most frequent values by a sketch, the most frequent first."""
    count = call.args.get("expression")
    k = 10 if count is None else compiler.constant(count, "how many values")
    if not isinstance(k, int) or k < 1:
        raise compiler.mistake(call, "approx_top_k takes how many values to return, such as 3")
    column = value(call.this)
    return to.add(agg.frequent(column, k)).list.eval(pl.element().struct.field(column))


def _of_user(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
    own = compiler.functions[str(call.name).lower()]
    assert isinstance(own, UserAggregate)
    wrong = own.check(len(call.expressions))
    if wrong is not None or not call.expressions:
        raise compiler.mistake(call, f"{own.name} {wrong or 'needs an argument'}")
    return to.add(own.make(*map(value, call.expressions)))


def _of_different(make: Callable[[str], Aggregate]) -> Callable[..., pl.Expr]:
    def made(compiler: Compiler, call: Any, value: Any, to: Aggregates) -> pl.Expr:
        first, *others = call.this.expressions
        if others:
            raise compiler.mistake(others[0], "DISTINCT is of one expression")
        return to.add(make(value(first)))

    return made


_DISTINCT: dict[type, Callable[..., pl.Expr]] = {
    exp.Count: _of_different(Unique),
    exp.Sum: _of_different(lambda column: Unique(column, "sum")),
    exp.Avg: _of_different(lambda column: Unique(column, "mean")),
    exp.Min: _of_different(agg.min),
    exp.Max: _of_different(agg.max),
}
"""Aggregates of which each value counts once."""

_DISTINCT_NAMES = ("count", "sum", "avg", "min", "max")

_AGGREGATES: dict[type, Callable[..., pl.Expr]] = {
    exp.Count: _count,
    exp.CountIf: _count_if,
    exp.Sum: _sum,
    exp.Avg: _of_one(agg.mean),
    exp.Min: _of_one(agg.min),
    exp.Max: _of_one(agg.max),
    exp.Stddev: _of_one(agg.stddev),
    exp.StddevSamp: _of_one(agg.stddev),
    exp.StddevPop: _of_one(lambda column: agg.stddev(column, 0)),
    exp.Variance: _of_one(agg.variance),
    exp.VariancePop: _of_one(lambda column: agg.variance(column, 0)),
    exp.First: _of_one(agg.first),
    exp.AnyValue: _of_one(agg.first),
    exp.Last: _of_one(agg.last),
    exp.ArgMin: _picked(agg.first),
    exp.ArgMax: _picked(agg.last),
    exp.ArrayAgg: _of_one(agg.collect),
    exp.ApproxDistinct: _of_one(agg.approx_distinct),
    exp.ApproxQuantile: _approx_quantile,
    exp.ApproxTopK: _frequent,
    exp.GroupConcat: _texts,
    exp.LogicalAnd: _all_are(is_so=True),
    exp.LogicalOr: _all_are(is_so=False),
    exp.Median: _median,
    exp.PercentileCont: _quantile,
    exp.AnonymousAggFunc: _of_user,
}
_AGGREGATE_NAMES = sorted(
    {
        "count", "count_if", "sum", "avg", "min", "max", "stddev", "stddev_pop", "variance",
        "var_pop", "first", "any_value", "last", "arg_min", "arg_max", "list",
        "approx_count_distinct", "approx_quantile", "approx_top_k", "string_agg", "bool_and",
        "bool_or", "median", "quantile_cont", "topk",
    }
)  # fmt: skip
