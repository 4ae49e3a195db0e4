"""Windows that overlap: rows are folded into panes once, and windows made of panes as they close.

A pane's rows are kept under the cluster 2 * end. What came too late for the first windows of its
pane, but not for the last, is kept for each of these by itself, under 2 * end of the window + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.task.aggregation import Aggregation
from headrace.task.chunk import Chunk, Ints
from headrace.task.heads import distinct
from headrace.task.orders import END_WATERMARK, NO_WATERMARK
from headrace.task.partial_table import BUCKET, PartialTable
from headrace.task.ranges import combine_ranges
from headrace.task.spans import Spans
from headrace.task.windows import BucketNode

_ORDER = "__order"


class PaneNode(BucketNode):
    """``window(hopping(...))`` and ``window(sliding(...))``.

    Args:
        name: of the operator.
        aggregation: its aggregates.
        table: where panes are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        spans: which results a pane counts in.
        grace_ms: how long after its end a result still takes records.
        delay_ms: how far the node's watermark lags the one that rows came with.
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
        grace_ms: int,
        delay_ms: int,
    ) -> None:
        super().__init__(
            name,
            aggregation,
            table,
            schema,
            key_groups,
            size_ms=spans.pane_ms,
            grace_ms=grace_ms,
            delay_ms=delay_ms,
        )
        self._spans = spans
        self._sent_upto = NO_WATERMARK

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know which results are out: those that ended by the watermark of the last epoch."""
        self._sent_upto = watermark - self._grace

    def push(self, chunk: Chunk) -> None:
        """Add rows to their panes; one that is late for all its results is set aside."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        panes = self._spans.panes(chunk.times)
        out = chunk.watermarks - self._delay - self._grace
        is_whole = self._spans.first(panes) > out
        self._add(chunk.filter(is_whole), 2 * panes[is_whole])
        if not is_whole.all():
            is_partly = ~is_whole & (self._spans.last(panes) > out)
            self._set_aside(chunk, ~is_whole & ~is_partly)
            if is_partly.any():
                self._add_partly(chunk.filter(is_partly), panes[is_partly], out[is_partly])

    def _add_partly(self, chunk: Chunk, panes: Ints, out: Ints) -> None:
        rows, ends = self._spans.made(panes, int(out.min()), END_WATERMARK)
        timely = ends > out[rows]
        self._add(chunk.take(rows[timely]), 2 * ends[timely] + 1)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit the results that the watermark closes, and forget panes that none needs any more."""
        after, upto = self._sent_upto, max(watermark - self._grace, self._sent_upto)
        self._sent_upto = upto
        fresh = self._folded(self._heads)
        opened = self._opened()
        present = set(opened)
        if fresh is not None:
            present.update(fresh[BUCKET].unique().to_list())
        panes = np.array(sorted(c >> 1 for c in present if not c & 1), np.int64)
        extras = sorted(c for c in present if c & 1 and c >> 1 <= upto)
        _, ends = self._spans.made(panes, after, upto)
        if not len(ends) and not extras:
            self._keep(fresh)
            return
        over = panes[self._spans.kept_until(panes) <= upto]
        last_over = int(over[-1]) if len(over) else NO_WATERMARK
        stored = self._stored(opened, extras, last_over, upto)
        pieces = list(stored)
        if fresh is not None:
            cluster = pl.col(BUCKET)
            is_extra = cluster % 2 == 1
            is_over = (is_extra & (cluster <= 2 * upto + 1)) | (
                ~is_extra & (cluster <= 2 * last_over)
            )
            self._keep(fresh.filter(~is_over))
            pieces.append(fresh.filter(cluster <= 2 * upto + 1))
        frame = pl.concat(pieces, how="vertical_relaxed")
        if stored and fresh is not None:
            frame = self._aggregation.combined(frame, self._heads)
        self._send(frame, after, upto)

    def _keep(self, fresh: pl.DataFrame | None) -> None:
        if fresh is not None and fresh.height:
            self._table.add(fresh)
            self._opened().update(fresh[BUCKET].unique().to_list())

    def _stored(
        self, opened: set[int], extras: list[int], last_over: int, upto: int
    ) -> list[pl.DataFrame]:
        """Take the stored rows that end here, and read those that later results need as well."""
        pieces: list[pl.DataFrame] = []
        for cluster in opened.intersection(extras):
            pieces += self._table.take(cluster, cluster)
            opened.discard(cluster)
        over = [cluster for cluster in opened if cluster <= 2 * last_over]
        if over:
            pieces += self._table.take(min(over), max(over))
            opened.difference_update(over)
        needed = [cluster for cluster in opened if cluster <= 2 * upto]
        if needed:
            pieces += self._table.scan(min(needed), max(needed))
        return pieces

    def _send(self, frame: pl.DataFrame, after: int, upto: int) -> None:
        """Make results of all rows that they need, and emit them in the order of their ends."""
        keys, numbers = distinct(frame, self._keys)
        clusters = frame[BUCKET].to_numpy()
        partials = frame.select(self._table.partials)
        is_pane = clusters % 2 == 0
        own, ends, totals = self._made(
            partials.filter(pl.Series(is_pane)),
            numbers[is_pane],
            clusters[is_pane] >> 1,
            after,
            upto,
        )
        if not is_pane.all():
            extras = partials.filter(pl.Series(~is_pane))
            own = np.concatenate([own, numbers[~is_pane]])
            ends = np.concatenate([ends, clusters[~is_pane] >> 1])
            both = pl.concat([totals, extras], how="vertical_relaxed")
            by = [pl.Series(_ORDER, own), pl.Series(BUCKET, ends)]
            both = self._aggregation.combined(both.with_columns(by), [_ORDER, BUCKET])
            own, ends = both[_ORDER].to_numpy(), both[BUCKET].to_numpy()
            totals = both.select(self._table.partials)
        order = np.lexsort((own, ends))
        own, ends, totals = own[order], ends[order], totals[order]
        heads = keys[own].with_columns(pl.Series(BUCKET, ends))
        moments = {"window_start": self._spans.begin(ends), "window_end": ends}
        self._emit(heads, moments, totals)

    def _made(
        self, partials: pl.DataFrame, numbers: Ints, panes: Ints, after: int, upto: int
    ) -> tuple[Ints, Ints, pl.DataFrame]:
        """Return key number, end and partials of each result that there is because of panes."""
        if not len(panes):
            return np.empty(0, np.int64), np.empty(0, np.int64), partials
        present, places = np.unique(panes, return_inverse=True)
        width = len(present) + 1
        codes = numbers * width + places
        order = np.argsort(codes, kind="stable")
        own, ends = self._wanted(present, places, numbers, after, upto)
        begins = np.searchsorted(present, self._spans.begin(ends), "right")
        stops = np.searchsorted(present, ends, "right")
        codes = codes[order]
        totals = partials.clear()
        if len(own):
            low = np.searchsorted(codes, own * width + begins)
            high = np.searchsorted(codes, own * width + stops)
            totals = combine_ranges(self._aggregation, partials[order], low, high)
        return own, ends, totals

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
        due = [c >> 1 for c in opened if c & 1]
        due += [int(ends.min())] if len(ends) else []
        return (min(due) + self._grace if due else None), None
