"""Results of a count or a global window with each so many messages, and what they replace.

What was sent of a key's open window is kept in one bucket, what came since in another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.windows import RETRACTION, CountWindow, GlobalWindow, Window
from headrace.task.chunk import Chunk, Ints
from headrace.task.orders import END_WATERMARK
from headrace.task.windows.counting import COUNT_COLUMN, WholeNode, ordinals
from headrace.task.windows.heads import distinct
from headrace.task.windows.partial_table import BUCKET

_SENT, _SINCE = 0, 1
_KEY, _WINDOW, _STEP, _ROW = "__key", "__window", "__step", "__row"
_HEADS = [_KEY, _WINDOW]
Mask = npt.NDArray[np.bool_]


class CountStepsNode(WholeNode):
    """``count_window(..., early_rows=...)``, and ``global_window(rows=..., updates=...)``.

    Args:
        common: what all nodes of windows without time take.
        timed: whether results need an event time.
        rows: how many messages fill a window; ``None``: none does.
        step: results are sent with each so many messages of a window.
        updates: how they follow each other.
    """

    def __init__(
        self, *common: Any, timed: bool, rows: int | None, step: int, updates: str
    ) -> None:
        super().__init__(*common, timed=timed)
        self._size, self._step, self._updates = rows or 1 << 62, step, updates

    def push(self, chunk: Chunk) -> None:
        """Fill windows step by step; send results with the rows that fill one."""
        frame = self._frame(chunk)
        heads, numbers = distinct(frame, self._keys)
        sent, since = (self._kept(heads, bucket) for bucket in (_SENT, _SINCE))
        before = np.zeros(heads.height, np.int64)
        for kept in (sent, since):
            before[kept[_KEY].to_numpy()] += kept[COUNT_COLUMN].to_numpy()
        windows, within = np.divmod(before[numbers] + ordinals(numbers), self._size)
        marks = {_KEY: numbers, _WINDOW: windows, _STEP: within // self._step}
        columns = [pl.Series(name, values) for name, values in marks.items()]
        columns.append(pl.Series(_ROW, np.arange(frame.height)))
        by = [_KEY, _WINDOW, _STEP]
        made = self._aggregation.reduced(frame.with_columns(columns), by, pl.col(_ROW).last())
        made = self._joined(since, made).sort(_WINDOW, _STEP)
        totals = self._totals(sent, made)
        counts = totals[COUNT_COLUMN].to_numpy()
        is_full = (counts % self._step == 0) | (counts == self._size)
        self._replace((sent, since), heads, made, totals, is_full)
        full = np.flatnonzero(is_full)
        if len(full):
            self._send_steps(chunk, sent, made, totals, full)

    def _kept(self, heads: pl.DataFrame, bucket: int) -> pl.DataFrame:
        """Return what is kept of keys, with their numbers."""
        keys, order = self._table.address(_in(heads, bucket))
        rows, at = self._table.lookup(keys)
        return rows.select(self._table.partials).with_columns(pl.Series(_KEY, order[at]))

    def _joined(self, since: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
        """Put what came since the last result before the first step of each key."""
        first = made.sort(_WINDOW, _STEP).unique(_KEY, keep="first").select(_KEY, _WINDOW, _STEP)
        where = since.join(first, on=_KEY)
        where = where.with_columns(pl.lit(-1, pl.Int64).alias(_ROW)).select(made.columns)
        both = pl.concat([where, made], how="vertical_relaxed")
        return self._aggregation.combined(both, [_KEY, _WINDOW, _STEP], pl.col(_ROW).max())

    def _totals(self, sent: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
        """Return the totals of each window after each step."""
        before = sent.with_columns(pl.lit(0, pl.Int64).alias(_WINDOW))
        names = [*_HEADS, *self._table.partials]
        both = pl.concat([before.select(names), made.select(names)], how="vertical_relaxed")
        groups = both.select(pl.struct(_HEADS).rank("dense").cast(pl.Int64).alias(_STEP))
        totals = self._aggregation.accumulated(both.hstack(groups), _STEP)
        return totals.slice(sent.height)

    def _replace(
        self,
        kept: tuple[pl.DataFrame, pl.DataFrame],
        heads: pl.DataFrame,
        made: pl.DataFrame,
        totals: pl.DataFrame,
        is_full: Mask,
    ) -> None:
        """Keep what was sent of windows that are open, and what came since; ``kept`` was before."""
        keys, windows = made[_KEY].to_numpy(), made[_WINDOW].to_numpy()
        newest = np.zeros(heads.height, np.int64)
        np.maximum.at(newest, keys, windows)
        is_newest = windows == newest[keys]
        is_over = np.zeros(heads.height, bool)
        is_over[keys[is_newest & (totals[COUNT_COLUMN].to_numpy() == self._size)]] = True
        is_open = is_newest & ~is_over[keys]
        sent = totals.filter(pl.Series(is_open & is_full)).group_by(_KEY, maintain_order=True)
        gone = kept[0].filter(pl.Series((is_over | (newest > 0))[kept[0][_KEY].to_numpy()]))
        self._lay(heads, _SENT, sent.last(), gone)
        self._lay(heads, _SINCE, made.filter(pl.Series(is_open & ~is_full)), kept[1])

    def _lay(
        self, heads: pl.DataFrame, bucket: int, rows: pl.DataFrame, gone: pl.DataFrame
    ) -> None:
        """Store rows by number of key; remove those that are ``gone`` of other keys."""
        own = rows[_KEY].to_numpy()
        others = np.setdiff1d(gone[_KEY].to_numpy(), own)
        if len(others):
            self._table.remove(self._table.address(_in(heads[others], bucket))[0])
        if rows.height:
            keys, order = self._table.address(_in(heads[own], bucket))
            self._table.put(keys, rows.select(self._table.partials)[order])

    def _send_steps(
        self, chunk: Chunk, sent: pl.DataFrame, made: pl.DataFrame, totals: pl.DataFrame, full: Ints
    ) -> None:
        """Send results with the rows that fill their steps."""
        filling = made[_ROW].to_numpy()[full]
        if self._updates != "retract":
            order = np.argsort(filling, kind="stable")
            shown = (made if self._updates == "add" else totals)[full[order]]
            self._push_rows(chunk, filling[order], shown, np.zeros(len(full), bool))
            return
        names = [*_HEADS, *self._table.partials]
        old = sent.with_columns(pl.lit(0, pl.Int64).alias(_WINDOW)).select(names)
        known = pl.concat([old, totals.select(names)], how="vertical_relaxed")
        at = np.concatenate([np.arange(sent.height), sent.height + full])
        pairs = known[at].select(pl.struct(_HEADS).rank("dense")).to_series().to_numpy()
        order = np.argsort(pairs, kind="stable")
        follows = np.concatenate([[False], pairs[order][1:] == pairs[order][:-1]])
        after, before = order[follows], order[:-1][follows[1:]]
        rows = np.concatenate([filling[after - sent.height], filling])
        shown = pl.concat([known[at[before]], known[at[sent.height :]]])
        is_back = np.arange(len(rows)) < len(after)
        chosen = np.lexsort((~is_back, rows))
        self._push_rows(chunk, rows[chosen], shown[chosen], is_back[chosen])

    def _push_rows(self, chunk: Chunk, rows: Ints, shown: pl.DataFrame, is_back: Mask) -> None:
        filling = chunk.take(rows)
        keys = self._flagged(self._own_keys(filling), is_back)
        self.emit(filling.with_batch(self._results(keys, shown)))

    def _flagged(self, keys: pa.RecordBatch, is_back: Mask) -> pa.RecordBatch:
        if self._updates != "retract":
            return keys
        arrays = [*keys.columns, pa.array(is_back)]
        return pa.RecordBatch.from_arrays(arrays, names=[*keys.schema.names, RETRACTION])

    def advance(self, watermark: int, wall_ms: int) -> None:
        """At the end of the inputs send what came since the last result of each key."""
        if watermark < END_WATERMARK:
            return
        pieces = [rows for bucket in (_SENT, _SINCE) for rows in self._table.take(bucket, bucket)]
        if not pieces:
            return
        rows = pl.concat(pieces, how="vertical_relaxed")
        numbers = distinct(rows, self._keys)[1]
        is_since = rows[BUCKET].to_numpy() == _SINCE
        has_rest = np.isin(numbers, numbers[is_since])
        before, rest = (
            rows.filter(pl.Series(has_rest & ~is_since)),
            rows.filter(pl.Series(is_since)),
        )
        if not rest.height:
            return
        if self._updates == "retract" and before.height:
            self._send_flagged(before, is_back=True)
        if self._updates != "add":
            both = pl.concat([before, rest], how="vertical_relaxed")
            rest = self._aggregation.combined(both, self._keys)
        self._send_flagged(rest, is_back=False)

    def _send_flagged(self, rows: pl.DataFrame, *, is_back: bool) -> None:
        keys, groups = self._key_columns(rows)
        batch = self._results(self._flagged(keys, np.full(rows.height, is_back)), rows)
        self._send_last(batch, groups)


def steps_of(window: Window) -> int | None:
    """Return with each how many messages a window sends results, if what was sent is kept apart."""
    if isinstance(window, CountWindow):
        return window.early_rows
    if isinstance(window, GlobalWindow) and window.updates != "replace":
        return window.rows
    return None


def _in(heads: pl.DataFrame, bucket: int) -> pl.DataFrame:
    return heads.with_columns(pl.lit(bucket, pl.Int64).alias(BUCKET))
