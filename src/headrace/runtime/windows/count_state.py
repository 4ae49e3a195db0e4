"""Windows by arrival: every so many messages of a key, and all messages of a key.

A result is sent with the message that completes it; the rest when the inputs end. A window's rows
are in one bucket, so that all of them can be taken. Where a result must say what it adds, or take
back what was sent, what was sent of a window is in that bucket, and what came since in another.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from headrace.runtime.chunk import Chunk, Ints, Mask
from headrace.runtime.orders import END_WATERMARK
from headrace.runtime.windows.aggregation import distinct
from headrace.runtime.windows.assigners import CountAssigner
from headrace.runtime.windows.layouts import COUNT_COLUMN
from headrace.runtime.windows.partial_table import BUCKET
from headrace.runtime.windows.triggers import Accumulation
from headrace.runtime.windows.window_node import WindowNode, WindowState

_SENT, _SINCE = 0, 1
_KEY, _WINDOW, _STEP, _ROW = "__key", "__window", "__step", "__row"
_NEVER = 1 << 62


class WholeState(WindowState):
    """``global_window()``: one row for each key, sent when the inputs end."""

    def take(self, chunk: Chunk) -> None:
        """Combine the rows into the totals."""
        frame = _in(self.node.frame(chunk), _SENT)
        self.node.gather(frame, chunk.groups, self.heads)

    def store(self, fresh: pl.DataFrame) -> None:
        """Add them to the table."""
        self.table.add(fresh)

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Store what the epoch added; at the end of the inputs send everything."""
        if fresh is not None:
            self.store(fresh)
        if watermark >= END_WATERMARK:
            for rows in self.table.take(_SENT, _SENT):
                self.node.send_last(rows)

    def deadline(self) -> int | None:
        """Return None: the end of the inputs is no watermark to wait for."""
        return None


class CountState(WholeState):
    """``count_window(n)``, and ``global_window(rows=n)``."""

    def __init__(self, node: WindowNode) -> None:
        super().__init__(node)
        assert isinstance(node.parts.assigner, CountAssigner)
        self._assigner, self._size = node.parts.assigner, node.parts.assigner.size or _NEVER
        self._step = self.trigger.rows or self._size
        has_windows, self._has_steps = bool(self._assigner.size), self._step < self._size
        self._by = [_KEY, *[_WINDOW] * has_windows, *[_STEP] * self._has_steps]
        self._is_split = node.parts.clusters is not None

    def take(self, chunk: Chunk) -> None:
        """Fill windows step by step; send results with the rows that complete them."""
        frame = self.node.frame(chunk)
        heads, numbers = distinct(frame, self.node.keys)
        sent = self._kept(heads, _SENT)
        since = self._kept(heads, _SINCE) if self._is_split else sent.clear()
        before = np.zeros(heads.height, np.int64)
        for kept in (sent, since):
            before[kept[_KEY].to_numpy()] += kept[COUNT_COLUMN].to_numpy()
        windows, within = self._assigner.assign(numbers, before)
        columns = {_KEY: numbers, _WINDOW: windows}
        if self._has_steps:
            columns[_STEP] = within // self._step
        marked = frame.with_columns(
            *(pl.Series(name, columns[name]) for name in self._by),
            pl.Series(_ROW, np.arange(frame.height)),
        )
        made = self.aggregation.reduced(marked, self._by, pl.col(_ROW).last())
        if self._has_steps:
            made = self._after(since, made.sort(self._by))
            totals = self._totals(sent, made)
        else:  # a result for each window: the first of a key continues with what is kept
            made = totals = self._after(sent, made)
        counts = totals[COUNT_COLUMN].to_numpy()
        is_full = (counts % self._step == 0) | (counts == self._size)
        self._replace((sent, since), heads, made, totals, is_full)
        full = np.flatnonzero(is_full)
        if len(full):
            self._send(chunk, sent, made, totals, full)

    def _kept(self, heads: pl.DataFrame, bucket: int) -> pl.DataFrame:
        """Return what is kept of keys, with their numbers."""
        keys, order = self.table.address(_in(heads, bucket))
        rows, at = self.table.lookup(keys)
        return rows.select(self.table.partials).with_columns(pl.Series(_KEY, order[at]))

    def _after(self, earlier: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
        """Put earlier rows, one of a key, before the first that each key gets."""
        if not earlier.height:
            return made
        own = made[_KEY].to_numpy()
        places = np.full(int(own.max()) + 1, -1)
        places[earlier[_KEY].to_numpy()] = np.arange(earlier.height)
        at = places[own]
        is_first = self._changes(own) if self._has_steps else self._windows(made) == 0
        follows = is_first & (at >= 0)
        later, names = made.filter(pl.Series(follows)), self.table.partials
        whole = self.aggregation.paired(earlier[names][at[follows]], later[names])
        joined = later.with_columns(whole.get_columns())
        rest = made.filter(pl.Series(~follows))
        both = pl.concat([rest, joined], how="vertical_relaxed")
        return both.sort(self._by) if self._has_steps else both

    @staticmethod
    def _changes(own: Ints) -> Mask:
        """Say which rows are the first of their key; rows are in the order of keys."""
        return np.concatenate([[True], own[1:] != own[:-1]])

    def _totals(self, sent: pl.DataFrame, made: pl.DataFrame) -> pl.DataFrame:
        """Return the totals of each window after each step, row by row as ``made``."""
        if not self._assigner.size:
            both = pl.concat([sent, made[sent.columns]], how="vertical_relaxed")
            return self.aggregation.accumulated(both, _KEY).slice(sent.height)
        before = sent.with_columns(pl.lit(0, pl.Int64).alias(_WINDOW))
        both = pl.concat([before, made[before.columns]], how="vertical_relaxed")
        groups = both.select(pl.struct(_KEY, _WINDOW).rank("dense").cast(pl.Int64).alias(_STEP))
        return self.aggregation.accumulated(both.hstack(groups), _STEP).slice(sent.height)

    def _replace(
        self,
        kept: tuple[pl.DataFrame, pl.DataFrame],
        heads: pl.DataFrame,
        made: pl.DataFrame,
        totals: pl.DataFrame,
        is_full: Mask,
    ) -> None:
        """Keep what there is of windows that are open; ``kept`` was before."""
        own, windows = made[_KEY].to_numpy(), self._windows(made)
        newest = np.zeros(heads.height, np.int64)
        np.maximum.at(newest, own, windows)
        is_last = windows == newest[own]
        if self._has_steps:
            is_last &= self._changes(own[::-1])[::-1]
        is_over = np.zeros(heads.height, bool)
        is_over[own[is_last]] = totals[COUNT_COLUMN].to_numpy()[is_last] == self._size
        is_open = (windows == newest[own]) & ~is_over[own]
        gone = kept[0].filter(pl.Series((is_over | (newest > 0))[kept[0][_KEY].to_numpy()]))
        if not self._is_split:
            self._lay(heads, _SENT, totals.filter(pl.Series(is_open & is_last)), gone)
            return
        # The last full step of each key; what follows it is not full.
        full = np.flatnonzero(is_open & is_full)
        full = full[self._changes(own[full][::-1])[: len(full)][::-1]]
        self._lay(heads, _SENT, totals[full], gone)
        self._lay(heads, _SINCE, made.filter(pl.Series(is_open & ~is_full)), kept[1])

    def _windows(self, made: pl.DataFrame) -> Ints:
        if _WINDOW in made.columns:
            return made[_WINDOW].to_numpy()
        return np.zeros(made.height, np.int64)

    def _lay(
        self, heads: pl.DataFrame, bucket: int, rows: pl.DataFrame, gone: pl.DataFrame
    ) -> None:
        """Store rows by number of key; remove those that are ``gone`` of other keys."""
        own = rows[_KEY].to_numpy()
        others = gone[_KEY].to_numpy()
        if len(others) and len(others := np.setdiff1d(others, own)):
            self.table.remove(self.table.address(_in(heads[others], bucket))[0])
        if rows.height:
            keys, order = self.table.address(_in(heads[own], bucket))
            self.table.put(keys, rows.select(self.table.partials)[order])

    def _send(
        self, chunk: Chunk, sent: pl.DataFrame, made: pl.DataFrame, totals: pl.DataFrame, full: Ints
    ) -> None:
        """Send results with the rows that complete them."""
        filling = made[_ROW].to_numpy()[full]
        order = np.argsort(filling, kind="stable")
        names, is_delta = self.table.partials, self.accumulation is Accumulation.DELTA
        now = (made if is_delta else totals)[names][full[order]]
        earlier, replaced_by = now.clear(), full[:0]
        if self.accumulation.retracts:
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            own, windows = made[_KEY].to_numpy()[full], self._windows(made)[full]
            is_next = (own[1:] == own[:-1]) & (windows[1:] == windows[:-1])
            follows = np.flatnonzero(is_next) + 1
            first = np.full(int(made[_KEY].to_numpy().max()) + 1, -1)
            firsts = np.flatnonzero(np.concatenate([[True], ~is_next]) & (windows == 0))
            first[own[firsts[::-1]]] = firsts[::-1]
            after = first[sent[_KEY].to_numpy()]
            before = sent[names].filter(pl.Series(after >= 0))
            earlier = pl.concat([before, totals[names][full[follows - 1]]], how="vertical_relaxed")
            replaced_by = ranks[np.concatenate([after[after >= 0], follows])]
        shown, is_retraction, results = self.accumulation.changes(now, earlier, replaced_by)
        self.node.send_with(chunk.take(filling[order][results]), shown, is_retraction)

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """At the end of the inputs send what came since the last result of each key."""
        if watermark < END_WATERMARK:
            return
        buckets = (_SENT, _SINCE) if self._is_split else (_SENT,)
        pieces = [rows for bucket in buckets for rows in self.table.take(bucket, bucket)]
        if not pieces:
            return
        rows = pl.concat(pieces, how="vertical_relaxed")
        if not self._is_split:
            self._send_rest(rows.filter(pl.col(COUNT_COLUMN) % self._step != 0))
            return
        numbers = distinct(rows, self.node.keys)[1]
        is_since = rows[BUCKET].to_numpy() == _SINCE
        has_rest = np.isin(numbers, numbers[is_since])
        before = rows.filter(pl.Series(has_rest & ~is_since))
        rest = rows.filter(pl.Series(is_since))
        if self.accumulation.retracts:
            self._send_rest(before, is_retraction=True)
        if rest.height and self.accumulation is not Accumulation.DELTA:
            both = pl.concat([before, rest], how="vertical_relaxed")
            rest = self.aggregation.combined(both, self.node.keys)
        self._send_rest(rest)

    def _send_rest(self, rows: pl.DataFrame, *, is_retraction: bool = False) -> None:
        if rows.height:
            self.node.send_last(rows, np.full(rows.height, is_retraction))


def _in(heads: pl.DataFrame, bucket: int) -> pl.DataFrame:
    return heads.with_columns(pl.lit(bucket, pl.Int64).alias(BUCKET))
