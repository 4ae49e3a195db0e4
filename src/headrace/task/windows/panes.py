"""Windows that overlap: rows are folded into panes once, and windows made of panes as they close.

A pane's rows are kept under the cluster 2 * end. What came too late for the first windows of its
pane, but not for the last, is kept for each of these by itself, under 2 * end of the window + 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.graph.windows import BOUNDS, RETRACTION
from headrace.task.chunk import Chunk, Ints
from headrace.task.orders import END_WATERMARK, NO_WATERMARK
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import distinct
from headrace.task.windows.partial_table import BUCKET, PartialTable
from headrace.task.windows.ranges import combine_ranges
from headrace.task.windows.spans import Spans
from headrace.task.windows.totals import BucketNode

_ORDER = "__order"


class _Made(NamedTuple):
    """Results: number of the key, end and partials of each.

    ``earlier`` are the partials of results that some of them take back, ``earlier_at`` the place
    there of that of each, or -1; both are empty where nothing is taken back.
    """

    own: Ints
    ends: Ints
    totals: pl.DataFrame
    earlier_at: Ints
    earlier: pl.DataFrame


class PaneNode(BucketNode):
    """``window(hopping(...))``, ``window(sliding(...))`` and ``window(tumbling(..., early=...))``.

    Args:
        name: of the operator.
        aggregation: its aggregates.
        table: where panes are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        spans: which results a pane counts in, and when they are sent.
        delay_ms: how far the node's watermark lags the one that rows came with.
        retracts: before a result that follows another of the same window, take that one back.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        spans: Spans,
        delay_ms: int,
        retracts: bool = False,
    ) -> None:
        super().__init__(
            name,
            aggregation,
            table,
            schema,
            key_groups,
            size_ms=spans.pane_ms,
            grace_ms=spans.grace_ms,
            delay_ms=delay_ms,
        )
        self._spans, self._retracts = spans, retracts
        self._sent_upto = NO_WATERMARK

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know which results are out: those that the watermark of the last epoch sent."""
        self._sent_upto = watermark

    def push(self, chunk: Chunk) -> None:
        """Add rows to their panes; one that is late for all its results is set aside."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        marks = chunk.watermarks - self._delay
        panes, is_whole, is_partly = self._spans.placed(chunk.times, marks)
        self._add(chunk.filter(is_whole), 2 * panes[is_whole])
        if not is_whole.all():
            self._set_aside(chunk, ~is_whole & ~is_partly)
            if is_partly.any():
                rows, ends = self._spans.late_ends(panes[is_partly], marks[is_partly])
                self._add(chunk.filter(is_partly).take(rows), 2 * ends + 1)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit the results that the watermark closes, and forget panes that none needs any more."""
        after, upto = self._sent_upto, max(watermark, self._sent_upto)
        self._sent_upto = upto
        fresh = self._folded(self._heads)
        opened = self._opened()
        present = set(opened)
        if fresh is not None:
            present.update(fresh[BUCKET].unique().to_list())
        panes = np.array(sorted(c >> 1 for c in present if not c & 1), np.int64)
        bound = 2 * self._spans.reach(upto) + 1
        extras = sorted(c for c in present if c & 1 and c <= bound)
        _, ends = self._spans.made(panes, after, upto)
        over = panes[self._spans.over_at(panes) <= upto]
        if not len(ends) and not extras and not len(over):
            self._keep(fresh)
            return
        last_over = int(over[-1]) if len(over) else NO_WATERMARK
        stored = self._stored(opened, extras, 2 * last_over, bound)
        pieces = list(stored)
        if fresh is not None:
            cluster = pl.col(BUCKET)
            is_extra = cluster % 2 == 1
            is_over = (is_extra & (cluster <= bound)) | (~is_extra & (cluster <= 2 * last_over))
            self._keep(fresh.filter(~is_over))
            pieces.append(fresh.filter(cluster <= bound))
        if not pieces:  # a table may name panes of which it has no row: those of another task, once
            return
        frame = pl.concat(pieces, how="vertical_relaxed")
        if stored and fresh is not None:
            frame = self._aggregation.combined(frame, self._heads)
        self._send(frame, after, upto)

    def _keep(self, fresh: pl.DataFrame | None) -> None:
        if fresh is not None and fresh.height:
            self._table.add(fresh)
            self._opened().update(fresh[BUCKET].unique().to_list())

    def _stored(
        self, opened: set[int], extras: list[int], last_over: int, bound: int
    ) -> list[pl.DataFrame]:
        """Take the stored rows that end here, and read those that later results need as well."""
        pieces: list[pl.DataFrame] = []
        for cluster in opened.intersection(extras):
            pieces += self._table.take(cluster, cluster)
            opened.discard(cluster)
        over = [cluster for cluster in opened if cluster <= last_over]
        if over:
            pieces += self._table.take(min(over), max(over))
            opened.difference_update(over)
        needed = [cluster for cluster in opened if cluster <= bound]
        if needed:
            pieces += self._table.scan(min(needed), max(needed))
        return pieces

    def _send(self, frame: pl.DataFrame, after: int, upto: int) -> None:
        """Make results of all rows that they need, and emit them in the order of their ends."""
        keys, numbers = distinct(frame, self._keys)
        clusters = frame[BUCKET].to_numpy()
        partials = frame.select(self._table.partials)
        is_pane = clusters % 2 == 0
        panes = partials.filter(pl.Series(is_pane))
        made = self._made(panes, numbers[is_pane], clusters[is_pane] >> 1, after, upto)
        if not is_pane.all():
            extras = partials.filter(pl.Series(~is_pane))
            made = self._with_extras(made, numbers[~is_pane], clusters[~is_pane] >> 1, extras)
        if not len(made.own):
            return
        order = np.lexsort((made.own, made.ends))
        if not self._retracts:
            self._emit_results(keys, made.own[order], made.ends[order], made.totals[order])
            return
        for own in np.split(order, np.flatnonzero(np.diff(made.ends[order])) + 1):
            back = own[made.earlier_at[own] >= 0]
            before = made.earlier[made.earlier_at[back]]
            self._emit_results(keys, made.own[back], made.ends[back], before, is_retraction=True)
            self._emit_results(
                keys, made.own[own], made.ends[own], made.totals[own], is_retraction=False
            )

    def _emit_results(
        self,
        keys: pl.DataFrame,
        own: Ints,
        ends: Ints,
        totals: pl.DataFrame,
        *,
        is_retraction: bool | None = None,
    ) -> None:
        heads = keys[own].with_columns(pl.Series(BUCKET, ends))
        moments = dict(zip(BOUNDS, self._spans.windows(ends), strict=True))
        flags = {} if is_retraction is None else {RETRACTION: is_retraction}
        self._emit(heads, moments, totals, flags)

    def _made(
        self, partials: pl.DataFrame, numbers: Ints, panes: Ints, after: int, upto: int
    ) -> _Made:
        """Return each result that there is because of panes."""
        none = np.empty(0, np.int64)
        if not len(panes):
            return _Made(none, none, partials, none, partials)
        present, places = np.unique(panes, return_inverse=True)
        width = len(present) + 1
        codes = numbers * width + places
        order = np.argsort(codes, kind="stable")
        own, ends = self._wanted(present, places, numbers, after, upto)
        if not len(own):
            return _Made(none, none, partials.clear(), none, partials.clear())
        begins = np.searchsorted(present, self._spans.begin(ends), "right")
        stops = np.searchsorted(present, ends, "right")
        codes, partials = codes[order], partials[order]
        low = np.searchsorted(codes, own * width + begins)
        high = np.searchsorted(codes, own * width + stops)
        totals = combine_ranges(self._aggregation, partials, low, high)
        if not self._retracts:
            return _Made(own, ends, totals, none, partials.clear())
        follows = np.flatnonzero(high - low > 1)
        earlier_at = np.full(len(own), -1)
        earlier_at[follows] = np.arange(len(follows))
        earlier = partials.clear()
        if len(follows):
            earlier = combine_ranges(self._aggregation, partials, low[follows], high[follows] - 1)
        return _Made(own, ends, totals, earlier_at, earlier)

    def _with_extras(self, made: _Made, own: Ints, ends: Ints, extras: pl.DataFrame) -> _Made:
        """Add the rows that are of one result alone."""
        both = pl.concat([made.totals, extras], how="vertical_relaxed").with_columns(
            pl.Series(_ORDER, np.concatenate([made.own, own])),
            pl.Series(BUCKET, np.concatenate([made.ends, ends])),
        )
        both = self._aggregation.combined(both, [_ORDER, BUCKET])
        own, ends = both[_ORDER].to_numpy(), both[BUCKET].to_numpy()
        totals = both.select(self._table.partials)
        return _Made(own, ends, totals, made.earlier_at, made.earlier)

    def _wanted(
        self, present: Ints, places: Ints, numbers: Ints, after: int, upto: int
    ) -> tuple[Ints, Ints]:
        """Return key number and end of each result, once."""
        of_pane, ends = self._spans.made(present, after, upto)
        firsts = np.searchsorted(of_pane, np.arange(len(present) + 1))
        counts = np.diff(firsts)[places]
        rows = np.repeat(np.arange(len(places)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        known, end_places = np.unique(ends, return_inverse=True)
        chosen = end_places[firsts[places[rows]] + steps]
        wanted = np.unique(numbers[rows] * max(1, len(known)) + chosen)
        own, chosen = np.divmod(wanted, max(1, len(known)))
        return own, known[chosen]

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next result closes."""
        opened = self._opened()
        panes = np.array(sorted(c >> 1 for c in opened if not c & 1), np.int64)
        _, ends = self._spans.made(panes, self._sent_upto, END_WATERMARK)
        due = [(c >> 1) + self._grace for c in opened if c & 1]
        due += [int(self._spans.due(ends).min())] if len(ends) else []
        return min(due, default=None), None
