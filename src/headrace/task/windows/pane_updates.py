"""Windows that overlap, whose results late records change: panes are kept until they are over.

What was sent follows from the watermark of the epoch before: all results that had ended. So late
records wait, beside the table, for the end of their epoch; then the results that they are in are
made twice, of the panes without them and of those with them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.task.chunk import Ints
from headrace.task.orders import NO_WATERMARK
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import distinct
from headrace.task.windows.panes import PaneNode
from headrace.task.windows.partial_table import BUCKET, PartialTable
from headrace.task.windows.ranges import combine_ranges
from headrace.task.windows.spans import Spans

_OWN, _FRESH = "__own", "__fresh"


class _Rows(NamedTuple):
    """Rows of partials, by number of the key and cluster."""

    numbers: Ints
    clusters: Ints
    partials: pl.DataFrame

    def filter(self, chosen: npt.NDArray[np.bool_]) -> _Rows:
        """Return some of them."""
        return _Rows(
            self.numbers[chosen], self.clusters[chosen], self.partials.filter(pl.Series(chosen))
        )

    def panes(self) -> tuple[_Rows, _Rows]:
        """Return the rows of panes, and those of single results."""
        is_pane = self.clusters % 2 == 0
        return self.filter(is_pane), self.filter(~is_pane)


class UpdatingPaneNode(PaneNode):
    """Hopping and sliding windows with ``late="update"``.

    Args:
        name: of the operator.
        aggregation: its aggregates.
        table: where panes are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        spans: which results a pane counts in: how long they take records, and without a grace, when
            they are sent first.
        delay_ms: how far the node's watermark lags the one that rows came with.
        retracts: before a result is sent anew, take the one before back.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        spans: tuple[Spans, Spans],
        delay_ms: int,
        retracts: bool,
    ) -> None:
        super().__init__(
            name,
            aggregation,
            table,
            schema,
            key_groups,
            spans=spans[0],
            delay_ms=delay_ms,
            retracts=retracts,
        )
        self._sends = spans[1]
        self._changes: list[pl.DataFrame] = []

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know which results were sent: those that ended by the watermark of the last epoch."""
        super().begin(epoch, wall_ms, watermark)
        self._changes = []

    def _store(self) -> None:
        self._hold(self._folded(self._heads))

    def _hold(self, fresh: pl.DataFrame | None) -> None:
        """Store rows that are of no result that was sent; the others wait for the epoch's end."""
        if fresh is None:
            return
        clusters = fresh[BUCKET].to_numpy()
        places = clusters >> 1
        firsts = np.where(clusters % 2 == 0, self._sends.first(places), places)
        is_change = firsts <= self._sent_upto
        if is_change.any():
            self._changes.append(fresh.filter(pl.Series(is_change)))
            fresh = fresh.filter(pl.Series(~is_change))
        self._keep(fresh)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send the results that late records change and those that end; forget what is over."""
        after, upto = self._sent_upto, max(watermark, self._sent_upto)
        self._hold(self._folded(self._heads))
        self._sent_upto = upto
        changes, self._changes = self._changes, []
        wanted = self._first_wanted(changes, after, upto)
        if wanted is not None:
            # A result looks back from its end, which is not before the first of its panes.
            low = int(self._sends.begin(np.array([wanted]))[0])
            high = min(2 * upto + 1, max(self._opened(), default=-1))
            stored = list(self._table.scan(max(2 * low, 0), high)) if high >= 0 else []
            self._make(stored, changes, after, upto)
        self._forget(upto)

    def _first_wanted(self, changes: list[pl.DataFrame], after: int, upto: int) -> int | None:
        """Return a moment before which no result has to be made; none if none has to be."""
        opened = self._opened()
        panes = np.array(sorted(c >> 1 for c in opened if not c & 1), np.int64)
        ends = self._sends.made(panes, after, upto)[1]
        singles = [c >> 1 for c in opened if c & 1 and after < c >> 1 <= upto]
        wanted = [int(part.min()) for part in (ends, np.array(singles, np.int64)) if len(part)]
        if changes:
            clusters = np.concatenate([frame[BUCKET].to_numpy() for frame in changes])
            wanted.append(int((clusters >> 1).min()))
        return min(wanted, default=None)

    def _make(
        self, stored: list[pl.DataFrame], changes: list[pl.DataFrame], after: int, upto: int
    ) -> None:
        """Make the results that are wanted, with late records and without, and emit them."""
        late = pl.concat(changes, how="vertical_relaxed") if changes else None
        if late is not None and len(changes) > 1:
            late = self._aggregation.combined(late, self._heads)
        pieces = [frame.with_columns(pl.lit(False).alias(_FRESH)) for frame in stored]
        if late is not None:
            pieces.append(late.with_columns(pl.lit(True).alias(_FRESH)))
            self._keep(late)
        if not pieces:
            return
        frame = pl.concat(pieces, how="vertical_relaxed")
        keys, numbers = distinct(frame, self._keys)
        is_late = frame[_FRESH].to_numpy()
        rows = _Rows(numbers, frame[BUCKET].to_numpy(), frame.select(self._table.partials))
        ended = self._asked(rows, after, upto)
        if late is not None:
            changed = self._changed(rows, is_late, after)
            if self._retracts:
                before = rows.filter(~is_late)
                sent = _shared(changed, self._asked(before, NO_WATERMARK, after))
                self._send_totals(keys, before, *sent, is_retraction=True)
            self._send_totals(keys, rows, *changed, is_retraction=False)
        self._send_totals(keys, rows, *ended, is_retraction=False)

    def _asked(self, rows: _Rows, after: int, upto: int) -> tuple[Ints, Ints]:
        """Return key and end of each result that there is because of rows, once."""
        panes, singles = rows.panes()
        of_pane, ends = self._sends.made(panes.clusters >> 1, after, upto)
        own = singles.clusters >> 1
        is_due = (own > after) & (own <= upto)
        numbers = np.concatenate([panes.numbers[of_pane], singles.numbers[is_due]])
        return _once(numbers, np.concatenate([ends, own[is_due]]))

    def _changed(
        self, rows: _Rows, is_late: npt.NDArray[np.bool_], after: int
    ) -> tuple[Ints, Ints]:
        """Return key and end of each result that was sent and that late rows change."""
        own, ends = self._asked(rows.filter(is_late), NO_WATERMARK, after)
        more = self._looking_back(rows, is_late, after)
        return _once(np.concatenate([own, more[0]]), np.concatenate([ends, more[1]]))

    def _looking_back(
        self, rows: _Rows, is_late: npt.NDArray[np.bool_], after: int
    ) -> tuple[Ints, Ints]:
        """Return results there are because of other rows, which have late ones as well."""
        own, ends = self._asked(rows, NO_WATERMARK, after)
        late, _ = rows.filter(is_late).panes()
        panes, at = np.unique(late.clusters >> 1, return_inverse=True)
        width = len(panes) + 1
        codes = np.unique(late.numbers * width + at)
        low = np.searchsorted(
            codes, own * width + np.searchsorted(panes, self._begin(ends), "right")
        )
        high = np.searchsorted(codes, own * width + np.searchsorted(panes, ends, "right"))
        return own[high > low], ends[high > low]

    def _begin(self, ends: Ints) -> Ints:
        return self._sends.begin(ends)

    def _send_totals(
        self, keys: pl.DataFrame, rows: _Rows, own: Ints, ends: Ints, *, is_retraction: bool
    ) -> None:
        """Emit results in the order of their ends, those of which there are rows."""
        made = self._totals(rows, own, ends)
        if made is None:
            return
        own, ends = made[_OWN].to_numpy(), made[BUCKET].to_numpy()
        order = np.lexsort((own, ends))
        flag = is_retraction if self._retracts else None
        self._emit_results(keys, own[order], ends[order], made[order], is_retraction=flag)

    def _totals(self, rows: _Rows, own: Ints, ends: Ints) -> pl.DataFrame | None:
        """Return the partials of each result that has any, with ``_OWN`` and ``BUCKET``."""
        panes, singles = rows.panes()
        pieces = []
        places, at = np.unique(panes.clusters >> 1, return_inverse=True)
        width = len(places) + 1
        codes = panes.numbers * width + at
        order = np.argsort(codes, kind="stable")
        codes, partials = codes[order], panes.partials[order]
        low = np.searchsorted(
            codes, own * width + np.searchsorted(places, self._begin(ends), "right")
        )
        high = np.searchsorted(codes, own * width + np.searchsorted(places, ends, "right"))
        some = high > low
        if some.any():
            totals = combine_ranges(self._aggregation, partials, low[some], high[some])
            pieces.append(
                totals.with_columns(pl.Series(_OWN, own[some]), pl.Series(BUCKET, ends[some]))
            )
        known = np.unique(singles.clusters >> 1)
        wide = len(known) + 1
        at = np.searchsorted(known, ends)
        there = np.append(known, NO_WATERMARK)[at] == ends
        asked = own[there] * wide + at[there]
        mine = np.isin(
            singles.numbers * wide + np.searchsorted(known, singles.clusters >> 1), asked
        )
        if mine.any():
            single = singles.filter(mine)
            columns = [pl.Series(_OWN, single.numbers), pl.Series(BUCKET, single.clusters >> 1)]
            pieces.append(single.partials.with_columns(columns))
        if not pieces:
            return None
        both = pl.concat(pieces, how="vertical_relaxed")
        return self._aggregation.combined(both, [_OWN, BUCKET]) if mine.any() else both

    def _forget(self, upto: int) -> None:
        """Drop panes and single rows that no result needs any more."""
        opened = self._opened()
        panes = np.array(sorted(c >> 1 for c in opened if not c & 1), np.int64)
        over = (2 * panes[self._spans.over_at(panes) <= upto]).tolist()
        over += [c for c in opened if c & 1 and (c >> 1) + self._grace <= upto]
        kept = sorted(opened.difference(over))
        for low, high in _runs(sorted(over), kept):
            for _ in self._table.take(low, high):
                pass
        opened.difference_update(over)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next result is sent, or a pane is over."""
        opened, sent = self._opened(), self._sent_upto
        panes = np.array(sorted(c >> 1 for c in opened if not c & 1), np.int64)
        ends = self._sends.made(panes, sent, 1 << 62)[1]
        due = [int(part.min()) for part in (ends, self._spans.over_at(panes)) if len(part)]
        singles = [c >> 1 for c in opened if c & 1]
        due += [end if end > sent else end + self._grace for end in singles]
        return min(due, default=None), None


def _once(own: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return pairs without those that there are twice."""
    known, at = np.unique(ends, return_inverse=True)
    own, chosen = np.divmod(np.unique(own * max(1, len(known)) + at), max(1, len(known)))
    return own, known[chosen]


def _shared(first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the pairs that are in both."""
    known = np.unique(np.concatenate([first[1], second[1]]))
    one, other = (
        own * (len(known) + 1) + np.searchsorted(known, at) for own, at in (first, second)
    )
    chosen = np.isin(one, other)
    return first[0][chosen], first[1][chosen]


def _runs(wanted: list[int], kept: list[int]) -> list[tuple[int, int]]:
    """Return ranges with all that is wanted and nothing that is kept; both are sorted."""
    places = np.searchsorted(kept, wanted)
    cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(wanted)]
    return [(wanted[a], wanted[b - 1]) for a, b in pairwise(cuts) if b > a]
