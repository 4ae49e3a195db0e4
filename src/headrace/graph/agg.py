"""The aggregates that users name in ``aggregate`` and ``window``, as ``headrace.agg``.

Each function returns a frozen ``Aggregate``; nothing is computed here. The names shadow
builtins on purpose: they are always written ``agg.sum``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from headrace.graph.aggregates import Aggregate, Count, Mean, Sum
from headrace.graph.extremes import Extreme
from headrace.graph.monoid import Monoid
from headrace.graph.picking import Collect, Pick
from headrace.graph.ranking import TopK
from headrace.graph.sketches import Distinct, Frequent, Quantiles
from headrace.graph.types import arrow_type
from headrace.graph.variance import Variance

__all__ = [
    "Aggregate",
    "approx_distinct",
    "collect",
    "count",
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


def count(column: str | None = None) -> Count:
    """Count messages, or those with a value in ``column``; int64."""
    return Count(column)


def sum(column: str) -> Sum:
    """Sum a column: int64 for integers and booleans, float64 for floats; nulls count as 0.

    A sum of integers beyond 64 bits is an error, not a wrong number.
    """
    return Sum(column)


def min(column: str) -> Extreme:
    """Take the least value, without nulls and NaN; null when there is none."""
    return Extreme(column)


def max(column: str) -> Extreme:
    """Take the greatest value, without nulls and NaN; null when there is none."""
    return Extreme(column, is_max=True)


def mean(column: str) -> Mean:
    """Take the mean without nulls; float64, null when there is none."""
    return Mean(column)


def top_k(column: str, k: int = 10, keep: Sequence[str] = ()) -> TopK:
    """Keep the ``k`` rows with the greatest ``column``, as a list of structs, greatest first.

    Args:
        column: what ranks; rows where it is null or NaN never do.
        k: how many; at least 1.
        keep: further columns of each struct; they also break ties, least first.
    """
    return TopK(column, k, (keep,) if isinstance(keep, str) else tuple(keep))


def variance(column: str, ddof: int = 1) -> Variance:
    """Take the variance without nulls; float64, null of fewer than ``ddof`` + 1 values.

    Args:
        column: of numbers.
        ddof: 1 for a sample, 0 for the whole.
    """
    return Variance(column, ddof)


def stddev(column: str, ddof: int = 1) -> Variance:
    """Take the standard deviation: the root of ``variance``."""
    return Variance(column, ddof, is_root=True)


def first(column: str, by: str | None = None) -> Pick:
    """Take the first value that is not null.

    Args:
        column: of any type.
        by: a column whose least value counts as first. Default: the order of arrival, which
            over several partitions depends on how they were read.
    """
    return Pick(column, by)


def last(column: str, by: str | None = None) -> Pick:
    """Take the last value that is not null; ``by`` as for ``first``, greatest."""
    return Pick(column, by, is_last=True)


def collect(*columns: str) -> Collect:
    """Keep all messages as a list, in the order of arrival.

    Args:
        *columns: one for a list of its values; several, or none for all, for a list of structs.
    """
    return Collect(columns, is_bare=len(columns) == 1)


def approx_distinct(column: str, size: int = 4096) -> Distinct:
    """Count different values, without nulls and NaN; int64.

    Args:
        column: of numbers, text or times.
        size: exact up to so many; beyond it off by 1 / sqrt(size), as a standard error: 1.6 %.
            Takes 8 bytes for each up to it. A power of two.
    """
    return Distinct(column, size)


def quantiles(column: str, at: Sequence[float] = (0.5,), size: int = 256) -> Quantiles:
    """Take values at some ranks, such as the median at 0.5; a list of float64, null of nothing.

    Args:
        column: of numbers; nulls and NaN do not count.
        at: ranks from 0, the least value, to 1, the greatest.
        size: exact up to so many values; with 256 ranks are off by less than 1.4 % in 99 of 100
            cases. A power of two.
    """
    ranks = (at,) if isinstance(at, int | float) else tuple(at)
    return Quantiles(column, size, at=ranks)


def frequent(column: str, k: int = 10, size: int = 1024) -> Frequent:
    """Take the most frequent values: structs of the value, ``count`` and ``least``.

    A value came at most ``count`` and at least ``least`` times.

    Args:
        column: of text or integers.
        k: how many to show.
        size: both are exact up to 3/4 of so many different values; beyond it ``count`` is too
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
    """Make an aggregate of your own; states must fit into MessagePack.

    Args:
        zero: the state of no messages.
        lift: from the values of ``columns``, in order, to a state.
        combine: from two states, the earlier first, to one; must be associative.
        result: from a state to the value shown; the state itself when left out.
        returns: the type of what is shown, as a Python or Arrow type.
        columns: the columns read; at least one.
        state: the type of states, where MessagePack alone would forget it.
        fold_frame: from a Polars frame of ``columns`` to the state of all its rows; an optional
            quick form of the same thing.
    """
    reads = (columns,) if isinstance(columns, str) else tuple(columns)
    return Monoid(zero, lift, combine, result, arrow_type(returns), reads, state, fold_frame)
