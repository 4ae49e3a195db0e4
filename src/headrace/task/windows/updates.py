"""Windows whose results late records change: sent when they end, and again until they are over.

A window has been sent once the watermark of the epoch before has passed its end, so what is to
be sent anew follows from watermarks alone; nothing of it is kept beside the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import polars as pl

from headrace.graph.windows import RETRACTION
from headrace.task.orders import NO_WATERMARK
from headrace.task.windows.partial_table import BUCKET
from headrace.task.windows.totals import WindowNode


class UpdatingNode(WindowNode):
    """``window(tumbling(..., late="update"))``: results are replaced."""

    _retracts = False
    _sent_upto = NO_WATERMARK
    _changes: list[pl.DataFrame]

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know which windows were sent: those that ended by the watermark of the last epoch."""
        self._sent_upto = watermark
        self._changes = []

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send what late records change, then the windows that end; forget those that are over."""
        after, upto = self._sent_upto, max(watermark, self._sent_upto)
        whole = self._keep(upto)
        self._correct()
        for frame in self._ended(whole, after, upto):
            self._send(frame, frame)
        self._forget(upto)
        self._sent_upto = upto

    def _store(self) -> None:
        self._keep(NO_WATERMARK)

    def _keep(self, upto: int) -> pl.DataFrame | None:
        """Store what is pending; return rows of windows that begin and are over in this epoch."""
        fresh = self._folded(self._heads)
        if fresh is None:
            return None
        end = pl.col(BUCKET)
        changes = fresh.filter(end <= self._sent_upto)
        if changes.height:
            self._changes.append(changes)
        is_whole = (end > self._sent_upto) & (end + self._grace <= upto)
        is_whole &= ~end.is_in(sorted(self._opened()))
        kept = fresh.filter((end > self._sent_upto) & ~is_whole)
        if kept.height:
            self._table.add(kept)
            self._opened().update(kept[BUCKET].unique().to_list())
        whole = fresh.filter(is_whole)
        return whole if whole.height else None

    def _correct(self) -> None:
        """Combine late rows with windows that were sent, and send the results that they change."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        frame = changes[0]
        if len(changes) > 1:
            frame = self._aggregation.combined(pl.concat(changes), self._heads)
        frame = frame.sort(self._heads)
        added = self._table.add(frame)
        self._opened().update(frame[BUCKET].unique().to_list())
        heads = frame.select(self._heads)[added.order]
        if self._retracts and len(added.at):
            self._send(heads[added.at], added.earlier, is_retraction=True)
        self._send(heads, added.now)

    def _ended(self, whole: pl.DataFrame | None, after: int, upto: int) -> Iterator[pl.DataFrame]:
        """Yield the rows of windows that end, in the order of windows."""
        due = {end: True for end in self._opened() if after < end <= upto}
        if whole is not None:
            due |= dict.fromkeys(whole[BUCKET].unique().to_list(), False)
        for stored, same in groupby(sorted(due.items()), key=lambda item: item[1]):
            ends = [end for end, _ in same]
            if stored:
                yield from self._table.scan(ends[0], ends[-1])
            else:
                assert whole is not None
                mine = whole.filter(pl.col(BUCKET).is_between(ends[0], ends[-1]))
                yield mine.sort(BUCKET, *self._keys)

    def _forget(self, upto: int) -> None:
        opened = self._opened()
        over = [end for end in opened if end + self._grace <= upto]
        if over:
            for _ in self._table.take(min(over), max(over)):
                pass
            opened.difference_update(over)

    def _send(
        self, heads: pl.DataFrame, partials: pl.DataFrame, *, is_retraction: bool = False
    ) -> None:
        ends = heads[BUCKET].to_numpy()
        moments = {"window_start": ends - self._size, "window_end": ends}
        flags = {RETRACTION: is_retraction} if self._retracts else {}
        self._emit(heads, moments, partials, flags)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next window ends, or one that was sent is over."""
        sent = self._sent_upto
        due = [end if end > sent else end + self._grace for end in self._opened()]
        return min(due, default=None), None


class RetractingNode(UpdatingNode):
    """The same with ``updates="retract"``: a result is taken back before the new one is sent."""

    _retracts = True
