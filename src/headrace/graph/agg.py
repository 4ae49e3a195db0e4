"""The aggregates of ``aggregate`` and ``window``, as ``headrace.agg``.

Each function returns a frozen ``Aggregate``; nothing is computed here. The names shadow
builtins on purpose: they are always written ``agg.sum``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from headrace.graph.aggregates import Aggregate, Count, Extreme, Mean, Sum, Variance
from headrace.graph.rankings import TopK
from headrace.graph.row_aggregates import Collect, Monoid, Pick, Unique
from headrace.graph.sketches import Distinct, Frequent, Quantiles
from headrace.graph.types import arrow_type

__all__ = [
    "Aggregate",
    "approx_distinct",
    "collect",
    "count",
    "count_distinct",
    "distinct",
    "first",
    "frequent",
    "last",
    "max",
    "mean",
    "min",
    "monoid",
    "quantiles",
    "stddev",
    "sum",
    "top_k",
    "variance",
]

_ELSEWHERE = {
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("std", "stddev_samp"), "stddev"),
    **dict.fromkeys(("var", "var_samp"), "variance"),
    **dict.fromkeys(("n", "len", "size"), "count"),
    **dict.fromkeys(("n_unique", "nunique", "countDistinct"), "count_distinct"),
    **dict.fromkeys(("unique", "collect_set", "values"), "distinct"),
    **dict.fromkeys(("approx_count_distinct", "hll"), "approx_distinct"),
    **dict.fromkeys(("collect_list", "list", "array_agg"), "collect"),
    **dict.fromkeys(("median", "quantile", "percentile", "percentile_approx"), "quantiles"),
    **dict.fromkeys(("mode", "most_frequent"), "frequent"),
    **dict.fromkeys(("latest", "last_value"), "last"),
    **dict.fromkeys(("earliest", "first_value"), "first"),
    **dict.fromkeys(("nlargest", "top"), "top_k"),
    **dict.fromkeys(("reduce", "fold", "custom"), "monoid"),
}
"""What names of Spark, Flink, SQL, pandas and Polars are called here."""


if not TYPE_CHECKING:  # type checkers are to find what is not there

    def __getattr__(name: str) -> Any:
        near = (
            [_ELSEWHERE[name]]
            if name in _ELSEWHERE
            else difflib.get_close_matches(name, __all__, 1)
        )
        hint = f"; use hr.agg.{near[0]}" if near else f"; it has {', '.join(__all__[1:])}"
        raise AttributeError(f"hr.agg has no {name!r}{hint}")


def count(column: str | None = None) -> Count:
    """Count messages, or those with a value in ``column``; int64."""
    return Count(column)


def sum(column: str) -> Sum:
    """Sum a column: int64 for integers and booleans, float64 for floats; nulls count as 0.

    A sum of integers beyond 64 bits is an error, not a wrong number.
    """
    return Sum(column)


def min(column: str) -> Extreme:
    """Take the smallest value, ignoring nulls and NaN; null if there is none."""
    return Extreme(column)


def max(column: str) -> Extreme:
    """Take the greatest value, ignoring nulls and NaN; null if there is none."""
    return Extreme(column, is_max=True)


def mean(column: str) -> Mean:
    """Take the mean, ignoring nulls; float64, null if there is no value."""
    return Mean(column)


def top_k(column: str, k: int = 10, keep: Sequence[str] = ()) -> TopK:
    """Keep the ``k`` rows with the greatest ``column``, as a list of structs, greatest first.

    Args:
        column: determines the rank; rows where it is null or NaN are ignored.
        k: how many; at least 1.
        keep: other columns of each struct; they also break ties, smallest first.
    """
    return TopK(column, k, (keep,) if isinstance(keep, str) else tuple(keep))


def variance(column: str, ddof: int = 1) -> Variance:
    """Take the variance, ignoring nulls; float64, null for fewer than ``ddof`` + 1 values.

    Args:
        column: of numbers.
        ddof: 1 for a sample, 0 for the population.
    """
    return Variance(column, ddof)


def stddev(column: str, ddof: int = 1) -> Variance:
    """Take the standard deviation: the root of ``variance``."""
    return Variance(column, ddof, is_root=True)


def first(column: str, by: str | None = None) -> Pick:
    """Take the first value that is not null.

    Args:
        column: of any type.
        by: a column whose smallest value counts as first. Default: the order of arrival, which for
            several partitions depends on how they were read.
    """
    return Pick(column, by)


def last(column: str, by: str | None = None) -> Pick:
    """Take the last value that is not null; with ``by``, that of the greatest value."""
    return Pick(column, by, is_last=True)


def collect(*columns: str) -> Collect:
    """Keep all messages as a list, in the order of arrival.

    Args:
        *columns: one column for a list of its values; several for a list of structs; none for all
            columns.
    """
    return Collect(columns, is_bare=len(columns) == 1)


def count_distinct(column: str) -> Unique:
    """Count different values, without nulls; int64, exact.

    Keeps every value, in one row for each key that is written again when one is added: for more
    than some 100,000 values a key use ``approx_distinct``.

    Args:
        column: of numbers, text, times or bytes.
    """
    return Unique(column)


def distinct(column: str) -> Unique:
    """Keep each value once, without nulls, as a list in the order of arrival."""
    return Unique(column, "values")


def approx_distinct(column: str, size: int = 4096) -> Distinct:
    """Count different values, without nulls and NaN; int64.

    Args:
        column: of numbers, text or times.
        size: exact up to this many; beyond it, the standard error is 1 / sqrt(size): 1.6 %. Takes
            8 bytes for each value up to it. A power of two.
    """
    return Distinct(column, size)


def quantiles(column: str, at: Sequence[float] = (0.5,), size: int = 256) -> Quantiles:
    """Take values at ranks, such as the median at 0.5; a list of float64, or null.

    Args:
        column: of numbers; nulls and NaN do not count.
        at: ranks from 0, the smallest value, to 1, the greatest.
        size: exact up to this many values; with 256, ranks are off by less than 1.4 % in 99 of 100
            cases. A power of two.
    """
    ranks = (at,) if isinstance(at, int | float) else tuple(at)
    return Quantiles(column, size, at=ranks)


def frequent(column: str, k: int = 10, size: int = 1024) -> Frequent:
    """Take the most frequent values: structs of the value, ``count`` and ``least``.

    A value occurred at most ``count`` and at least ``least`` times.

    Args:
        column: of text or integers.
        k: how many to show.
        size: both are exact up to 3/4 of this many different values; beyond it, ``count`` is too
            high by at most 3.5 / size of all rows. A power of two.
    """
    return Frequent(column, size, k=k)


def monoid(
    zero: Any,
    lift: Callable[..., Any],
    combine: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    *,
    returns: Any,
    columns: str | Sequence[str],
    state: Any = None,
    fold_frame: Callable[[pl.DataFrame], Any] | None = None,
) -> Monoid:
    """Define your own aggregate; its states must be encodable as MessagePack.

    Args:
        zero: the state of no messages.
        lift: from the values of ``columns``, in order, to a state.
        combine: from two states, the earlier first, to one; must be associative.
        result: from a state to the emitted value; by default the state itself.
        returns: the type of the emitted value, as a Python or Arrow type.
        columns: the columns read; at least one.
        state: the type of states, if MessagePack alone does not preserve it.
        fold_frame: from a Polars frame of ``columns`` to the state of all its rows; an optional
            faster form.
    """
    reads = (columns,) if isinstance(columns, str) else tuple(columns)
    return Monoid(zero, lift, combine, result, arrow_type(returns), reads, state, fold_frame)
