"""What stands before the aggregates of a result: keys, numbered, and moments of windows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.plan.stages import TOGETHER
from headrace.records.schema import MAX_EVENT_TIME_MS
from headrace.task.chunk import Ints

_KEY = "__key"


def distinct(frame: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, Ints]:
    """Return the distinct keys of a frame, and for each row the place of its key among them."""
    # Not by a join: Polars 2.1 finds no partner for NaN where a side has one row.
    firsts = frame.with_row_index(_KEY).select(pl.col(_KEY).first().over(keys)).to_series()
    rows, numbers = np.unique(firsts.to_numpy(), return_inverse=True)
    return frame.select(keys)[rows], numbers.astype(np.int64)


def together() -> pl.Expr:
    """Return the key column of messages that are all of one key."""
    return pl.lit(0, pl.Int64).alias(TOGETHER)


def moments(moments_ms: Ints) -> pa.Array:
    """Return event times as a timestamp column."""
    # A window of the first or the last day would reach beyond what an event time may be.
    shown = np.clip(moments_ms, 0, MAX_EVENT_TIME_MS - 1)
    return pa.array(shown * 1000).cast(pa.timestamp("us", tz="UTC"))
