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
from headrace.graph.ranking import TopK
from headrace.graph.types import arrow_type

__all__ = ["Aggregate", "count", "max", "mean", "min", "monoid", "sum", "top_k"]


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
