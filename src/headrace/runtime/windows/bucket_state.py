"""Windows that share no rows: one row of partials for each key and window, under its end.

Tumbling windows are sent when the watermark closes them. Where late records change results, rows
stay until their window is over: it has been sent once the watermark of the epoch before has passed
its end, so what is to be sent again follows from watermarks alone.

Totals of global windows are the same: the rows of a bucket wait for an instant, as of which
``RunningTotals`` brings the totals of their keys to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
import polars as pl

from headrace.runtime.chunk import Ints
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.windows.aggregation import distinct
from headrace.runtime.windows.assigners import Assigner, GlobalAssigner
from headrace.runtime.windows.layouts import TIME
from headrace.runtime.windows.partial_table import BUCKET
from headrace.runtime.windows.triggers import Accumulation
from headrace.runtime.windows.window_node import WindowNode, WindowState


class BucketState(WindowState):
    """See the module."""

    def __init__(self, node: WindowNode) -> None:
        super().__init__(node)
        assert isinstance(node.parts.assigner, Assigner)
        self._assigner = node.parts.assigner
        self._totals = None
        if isinstance(self._assigner, GlobalAssigner):
            self._totals = RunningTotals(node)
        self._sent_upto = NO_WATERMARK
        self._changes: list[pl.DataFrame] = []

    def begin(self, watermark: int) -> None:
        """Know which windows were sent, if they are kept: those that ended by the watermark."""
        if self.trigger.updates_late:
            self._sent_upto, self._changes = watermark, []

    def columns(self, places: Ints, times: Ints, marks: Ints) -> dict[str, Ints]:
        """Return the bucket, and for totals the time at which a row counts."""
        if self._totals is None:
            return {BUCKET: places}
        return {BUCKET: places, TIME: np.maximum(times, marks)}

    def store(self, fresh: pl.DataFrame) -> None:
        """Store rows of windows that were not sent."""
        self._keep(fresh, NO_WATERMARK)

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Send what late records change, then the windows that end; forget those that are over."""
        after, upto = self._sent_upto, max(watermark, self._sent_upto)
        whole = None if fresh is None else self._keep(fresh, upto)
        self._correct()
        for rows in self._ended(whole, after, upto):
            if self._totals is None:
                self._send(rows)
            else:
                self._totals.send(rows)
        if self.trigger.updates_late:
            self._forget(upto)
            self._sent_upto = upto

    def _keep(self, fresh: pl.DataFrame, upto: int) -> pl.DataFrame | None:
        """Store folded rows; return those of windows that begin and are over in this epoch.

        A window that opens and closes within an epoch never meets the store, which is what most do
        when a job catches up with a long input.
        """
        ends = fresh[BUCKET].to_numpy()
        is_change = ends <= self._sent_upto
        if is_change.any():
            self._changes.append(fresh.filter(pl.Series(is_change)))
        is_whole = ~is_change & (ends + self.trigger.grace_ms <= upto)
        if is_whole.any():
            is_whole &= ~np.isin(ends, np.array(sorted(self.opened()), np.int64))
        is_kept = ~is_change & ~is_whole
        self.keep(fresh if is_kept.all() else fresh.filter(pl.Series(is_kept)))
        return fresh.filter(pl.Series(is_whole)) if is_whole.any() else None

    def _correct(self) -> None:
        """Combine late rows with windows that were sent, and send the results that they change."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        frame = changes[0]
        if len(changes) > 1:
            frame = self.aggregation.combined(pl.concat(changes), self.heads)
        frame = frame.sort(self.heads)
        added = self.table.add(frame)
        self.opened().update(frame[BUCKET].unique().to_list())
        heads = frame[self.heads][added.order]
        self._send(heads.hstack(added.now), heads[added.at].hstack(added.earlier), added.at)

    def _send(
        self, now: pl.DataFrame, sent: pl.DataFrame | None = None, replaced_by: Ints | None = None
    ) -> None:
        is_retraction = None
        if sent is not None and replaced_by is not None:
            now, is_retraction, _ = self.accumulation.changes(now, sent, replaced_by)
        times = now[BUCKET].to_numpy() - 1
        self.node.send(now, self._assigner.moments(now), times, is_retraction)

    def _ended(self, whole: pl.DataFrame | None, after: int, upto: int) -> Iterator[pl.DataFrame]:
        """Yield the rows of windows that end, in the order of windows."""
        opened, waits_ms = self.opened(), self.trigger.waits_ms
        due = {end: True for end in opened if after < end + waits_ms <= upto}
        if whole is not None:
            due |= dict.fromkeys(whole[BUCKET].unique().to_list(), False)
        for stored, same in groupby(sorted(due.items()), key=lambda item: item[1]):
            ends = [end for end, _ in same]
            if not stored:
                assert whole is not None
                mine = whole.filter(pl.col(BUCKET).is_between(ends[0], ends[-1]))
                yield mine.sort(self.heads)
            elif self.trigger.updates_late:
                yield from self.table.scan(ends[0], ends[-1])
            else:
                yield from self.table.take(ends[0], ends[-1])
                opened.difference_update(ends)

    def _forget(self, upto: int) -> None:
        opened = self.opened()
        over = [end for end in opened if end + self.trigger.grace_ms <= upto]
        if over:
            for _ in self.table.take(min(over), max(over)):
                pass
            opened.difference_update(over)

    def deadline(self) -> int | None:
        """Return when the next window is sent, or one that was sent is over."""
        sent, waits_ms, grace_ms = self._sent_upto, self.trigger.waits_ms, self.trigger.grace_ms
        due = [end + (waits_ms if end > sent else grace_ms) for end in self.opened()]
        return min(due, default=None)


class RunningTotals:
    """Totals of all rows of a key so far, and what fired rows change of them.

    Args:
        node: of a global window; its assigner says as of when totals are.
    """

    def __init__(self, node: WindowNode) -> None:
        assert isinstance(node.parts.assigner, Assigner)
        self._node, self._table, self._assigner = node, node.table, node.parts.assigner

    def send(self, rows: pl.DataFrame) -> None:
        """Bring the totals to each row, in their order, and send what that changes."""
        accumulation, keys = self._node.parts.accumulation, self._node.keys
        if accumulation is Accumulation.DELTA:
            at = self._at(rows)
            self._node.send(rows, {"at": at}, at - 1)
            return
        heads, numbers = distinct(rows, keys)
        stored, owners = None, np.empty(0, np.int64)
        if accumulation.retracts:
            address, order = self._table.address(heads)
            stored, found = self._table.lookup(address)
            owners = order[found]
        totals = self._table.accumulate(heads, numbers, rows)
        now = rows.select(BUCKET, *keys).hstack(totals.select(self._table.partials))
        if stored is None:
            at = self._at(now)
            self._node.send(now, {"at": at}, at - 1)
            return
        # What each replaces: the row of its key before it, or what was stored.
        order = np.argsort(numbers, kind="stable")
        follows = np.flatnonzero(numbers[order][1:] == numbers[order][:-1]) + 1
        first = np.full(heads.height, -1)
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        old = heads[owners].with_columns(pl.lit(0, pl.Int64).alias(BUCKET))
        old = old.hstack(stored[self._table.partials])[now.columns]
        sent = pl.concat([old, now[order[follows - 1]]], how="vertical_relaxed")
        replaced_by = np.concatenate([first[owners], order[follows]])
        shown, is_retraction, results = accumulation.changes(now, sent, replaced_by)
        times = self._at(now)[results] - 1
        self._node.send(shown, {"at": self._at(shown)}, times, is_retraction)

    def _at(self, rows: pl.DataFrame) -> Ints:
        return self._assigner.moments(rows)["at"]
