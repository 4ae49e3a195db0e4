"""``global_window(every=...)`` and ``global_window(idle=...)``: totals of all messages so far.

Rows wait in buckets of event time, each of which is one result of a key: the totals with it, the
bucket alone, or the totals before it taken back and those with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.graph.windows import RETRACTION
from headrace.task.chunk import Chunk, Ints
from headrace.task.windows.heads import distinct
from headrace.task.windows.partial_table import BUCKET
from headrace.task.windows.sessions import LAST_COLUMN, TIME, SessionNode
from headrace.task.windows.totals import BucketNode, PeriodicNode

_AT, _IS_NEW = "__at", "__is_new"


class _SoFar(BucketNode):
    """Sends totals in the way of ``updates``; partials have the last record's time."""

    _updates: str

    def _ends(self, rows: pl.DataFrame) -> Ints:
        """Return as of when each row is, by the time of its last record."""
        raise NotImplementedError

    def _send_totals(self, frame: pl.DataFrame) -> None:
        """Bring the totals to each row, in their order, and emit what that changes."""
        if self._updates == "add":
            self._emit_at(frame, np.zeros(frame.height, bool))
            return
        heads, numbers = distinct(frame, self._keys)
        keys, order = self._table.address(heads)
        stored, at = self._table.lookup(keys)
        totals = self._table.accumulate(heads, numbers, frame)
        own = frame.select(self._keys)
        news = own.hstack(totals.select(self._table.partials))
        if self._updates == "replace":
            self._emit_at(news, np.zeros(news.height, bool))
            return
        # What each takes back: the row of its key before it, or what was stored.
        first = np.full(heads.height, -1)
        first[order[at]] = np.arange(stored.height)
        sorted_rows = np.argsort(numbers, kind="stable")
        ordered = numbers[sorted_rows]
        follows = np.concatenate([[False], ordered[1:] == ordered[:-1]])
        before = first[numbers]
        before[sorted_rows[follows]] = stored.height + sorted_rows[:-1][follows[1:]]
        known = pl.concat([stored, totals], how="diagonal_relaxed").select(self._table.partials)
        taken = np.flatnonzero(before >= 0)
        olds = own[taken].hstack(known[before[taken]])
        both = pl.concat([olds, news], how="vertical_relaxed")
        is_back = np.arange(both.height) < olds.height
        places = np.concatenate([taken, np.arange(news.height)])
        chosen = np.lexsort((~is_back, places))
        self._emit_at(both[chosen], is_back[chosen], self._ends(news)[places[chosen]])

    def _emit_at(
        self, rows: pl.DataFrame, is_back: npt.NDArray[np.bool_], now: Ints | None = None
    ) -> None:
        """Emit rows as they are or were; the time of all is that of what is sent now."""
        ends = self._ends(rows)
        flags = {RETRACTION: is_back} if self._updates == "retract" else {}
        frame = rows.with_columns(pl.Series(BUCKET, ends if now is None else now))
        self._emit(frame, {"at": ends}, rows, flags)


class PeriodicTotalsNode(_SoFar, PeriodicNode):
    """Totals at each multiple of event time at which a key has changed."""

    def __init__(self, *common: Any, updates: str, **more: Any) -> None:
        super().__init__(*common, **more)
        self._updates = updates

    def push(self, chunk: Chunk) -> None:
        """Add rows to the bucket in which they will be counted, with the time at which they are."""
        seen = self._effective(chunk)
        columns = [pl.Series(BUCKET, (seen // self._size + 1) * self._size), pl.Series(TIME, seen)]
        self._gather(self._frame(chunk).with_columns(columns), chunk.groups, self._heads)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit what the watermark has passed."""
        for frame in self._closed(watermark):
            self._send_totals(frame)

    def _ends(self, rows: pl.DataFrame) -> Ints:
        ends: Ints = (rows[LAST_COLUMN].to_numpy() // self._size + 1) * self._size
        return ends


class IdleNode(_SoFar, SessionNode):
    """Totals each time a key has become quiet.

    A record counts from its own time, or from the watermark it came with if that is later, so
    none is ever late.
    """

    def __init__(self, *common: Any, updates: str, **more: Any) -> None:
        super().__init__(*common, **more)
        self._updates = updates

    def push(self, chunk: Chunk) -> None:
        """Add rows to their slices."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        self._take(chunk, np.maximum(chunk.times, chunk.watermarks - self._delay))

    def _send(self, sessions: pl.DataFrame) -> None:
        if sessions.height:
            self._send_totals(sessions.sort(LAST_COLUMN))

    def _ends(self, rows: pl.DataFrame) -> Ints:
        ends: Ints = rows[LAST_COLUMN].to_numpy() + self._size
        return ends
