"""Windows that overlap: rows are folded into panes once, and windows made of panes as they end.

A pane's rows are kept under the cluster 2 * end. What came too late for the first windows of its
pane, but not for the last, is kept for each of these by itself, under 2 * end of the window + 1.

What was sent follows from the watermark of the epoch before: all results that had ended. Where late
records change results, panes are kept until they are over, and late rows wait beside the table for
the end of their epoch; then the results that they are in are made twice, of the panes without them
and of those with them.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from headrace.runtime.chunk import Ints, Mask
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.runtime.windows.aggregation import Aggregation, combine_ranges, distinct
from headrace.runtime.windows.assigners import PaneAssigner, SteppedAssigner
from headrace.runtime.windows.partial_table import BUCKET
from headrace.runtime.windows.window_node import WindowNode, WindowState

_FRESH = "__fresh"
_MOST = 1 << 61


class _Results(NamedTuple):
    """Results by the number of their key and their end; each pair is there once."""

    numbers: Ints
    ends: Ints

    def shared(self, others: _Results) -> _Results:
        """Return those that are among others, too."""
        known = np.unique(np.concatenate([self.ends, others.ends]))
        mine, theirs = (
            each.numbers * (len(known) + 1) + np.searchsorted(known, each.ends)
            for each in (self, others)
        )
        chosen = np.isin(mine, theirs)
        return _Results(self.numbers[chosen], self.ends[chosen])

    def with_others(self, others: _Results) -> _Results:
        """Return these and others, in the order of keys."""
        return _once(*(np.concatenate(each) for each in zip(self, others, strict=True)))


class _Rows:
    """Rows of partials, by number of the key and cluster.

    Args:
        numbers: of the key of each row.
        clusters: as in the table.
        partials: the rows.
    """

    def __init__(self, numbers: Ints, clusters: Ints, partials: pl.DataFrame) -> None:
        self.numbers, self.clusters, self.partials = numbers, clusters, partials

    def filter(self, chosen: Mask) -> _Rows:
        """Return some of them."""
        if chosen.all():
            return self
        partials = self.partials.filter(pl.Series(chosen))
        return _Rows(self.numbers[chosen], self.clusters[chosen], partials)

    @cached_property
    def panes(self) -> _Rows:
        """The rows of panes."""
        return self.filter(self.clusters % 2 == 0)

    @cached_property
    def singles(self) -> _Rows:
        """The rows of single results."""
        return self.filter(self.clusters % 2 == 1)

    @cached_property
    def distinct_panes(self) -> tuple[Ints, Ints]:
        """The panes that there are, and the place among them of that of each row of a pane."""
        found, at = np.unique(self.panes.clusters >> 1, return_inverse=True)
        return found, at

    @cached_property
    def by_pane(self) -> tuple[Ints, pl.DataFrame]:
        """The rows of panes in the order of keys and panes, with a number that rises with both."""
        present, at = self.distinct_panes
        codes = self.panes.numbers * (len(present) + 1) + at
        order = np.argsort(codes, kind="stable")
        return codes[order], self.panes.partials[order]

    def results(self, assigner: PaneAssigner, after: int, upto: int) -> _Results:
        """Return each result that there is because of rows, and that watermarks send."""
        panes, singles = self.panes, self.singles
        present, at = self.distinct_panes
        of_pane, ends = assigner.made(present, after, upto)
        due, own = assigner.due(singles.clusters >> 1), singles.clusters >> 1
        is_due = (due > after) & (due <= upto)
        known, end_places = np.unique(np.concatenate([ends, own[is_due]]), return_inverse=True)
        if not len(known):
            return _Results(known, known)
        firsts = np.searchsorted(of_pane, np.arange(len(present) + 1))
        counts = np.diff(firsts)[at]
        rows = np.repeat(np.arange(len(at)), counts)
        steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        codes = panes.numbers[rows] * len(known) + end_places[firsts[at[rows]] + steps]
        if is_due.any():
            more = singles.numbers[is_due] * len(known) + end_places[len(ends) :]
            codes = np.concatenate([codes, more])
        numbers, chosen = np.divmod(np.unique(codes), len(known))
        return _Results(numbers, known[chosen])

    def totals(
        self,
        aggregation: Aggregation,
        assigner: PaneAssigner,
        asked: _Results,
        *,
        but_last: bool = False,
    ) -> tuple[pl.DataFrame, Ints]:
        """Return the partials of those results that have any, and which of ``asked`` they are.

        Args:
            aggregation: of the partials.
            assigner: says which panes a result is made of.
            asked: which results.
            but_last: leave the last row of each out; rows are by distinct keys and panes.
        """
        present, (codes, ordered) = self.distinct_panes[0], self.by_pane
        base = asked.numbers * (len(present) + 1)
        begins = np.searchsorted(present, assigner.begin(asked.ends), "right")
        low = np.searchsorted(codes, base + begins)
        stops = np.searchsorted(present, asked.ends, "right")
        high = np.searchsorted(codes, base + stops) - but_last
        which = np.flatnonzero(high > low)
        made = self.partials.clear()
        if len(which):
            made = combine_ranges(aggregation, ordered, low[which], high[which])
        return self._with_singles(aggregation, self.singles, asked, made, which)

    @staticmethod
    def _with_singles(
        aggregation: Aggregation, singles: _Rows, asked: _Results, made: pl.DataFrame, which: Ints
    ) -> tuple[pl.DataFrame, Ints]:
        """Add the rows that are of one result alone."""
        known = np.unique(singles.clusters)
        if not len(known):
            return made, which
        width = len(known) + 1
        codes = asked.numbers * width + np.searchsorted(known, 2 * asked.ends + 1)
        codes[~np.isin(2 * asked.ends + 1, known)] = -1
        order = np.argsort(codes, kind="stable")
        own = singles.numbers * width + np.searchsorted(known, singles.clusters)
        at = np.minimum(np.searchsorted(codes[order], own), len(codes) - 1)
        there = codes[order][at] == own if len(codes) else np.zeros(len(own), bool)
        if not there.any():
            return made, which
        more = singles.partials.filter(pl.Series(there))
        owners = np.concatenate([which, order[at[there]]])
        both = pl.concat([made, more], how="vertical_relaxed").with_columns(
            pl.Series(BUCKET, owners)
        )
        both = aggregation.combined(both, [BUCKET]).sort(BUCKET)
        return both[made.columns], both[BUCKET].to_numpy()


class PaneState(WindowState):
    """See the module."""

    def __init__(self, node: WindowNode) -> None:
        super().__init__(node)
        assert isinstance(node.parts.assigner, PaneAssigner)
        self._assigner = node.parts.assigner
        self._sends = self._assigner.with_grace(self.trigger.waits_ms)
        # A result of a step replaces that of the step before: the same panes but for the last.
        self._replaces_steps = (
            isinstance(self._assigner, SteppedAssigner) and self.accumulation.retracts
        )
        self._sent_upto = NO_WATERMARK
        self._changes: list[pl.DataFrame] = []

    def begin(self, watermark: int) -> None:
        """Know which results are out: those that the watermark of the last epoch sent."""
        self._sent_upto, self._changes = watermark, []

    def store(self, fresh: pl.DataFrame) -> None:
        """Store rows that are of no result that was sent; the others wait for the epoch's end."""
        if self.trigger.updates_late:
            clusters = fresh[BUCKET].to_numpy()
            places = clusters >> 1
            firsts = np.where(clusters % 2 == 0, self._sends.first(places), places)
            is_change = firsts <= self._sent_upto
            if is_change.any():
                self._changes.append(fresh.filter(pl.Series(is_change)))
                fresh = fresh.filter(pl.Series(~is_change))
        self.keep(fresh)

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Send the results that late records change and those that end; forget what is over."""
        after, upto = self._sent_upto, max(watermark, self._sent_upto)
        if self.trigger.updates_late:
            if fresh is not None:
                self.store(fresh)
            self._advance_kept(after, upto)
            self._forget(upto)
        else:
            self._advance_once(fresh, after, upto)
        self._sent_upto = upto

    def _panes(self, clusters: set[int]) -> Ints:
        return np.array(sorted(c >> 1 for c in clusters if not c & 1), np.int64)

    def _advance_once(self, fresh: pl.DataFrame | None, after: int, upto: int) -> None:
        """Send the results that end; take rows with the last result that needs them."""
        opened = self.opened()
        present = set(opened)
        if fresh is not None:
            present.update(fresh[BUCKET].unique().to_list())
        panes = self._panes(present)
        bound = 2 * min(max(self._assigner.reach(upto), -_MOST), _MOST) + 1
        extras = sorted(c for c in present if c & 1 and c <= bound)
        _, ends = self._assigner.made(panes, after, upto)
        over = panes[self._assigner.over_at(panes) <= upto]
        if not len(ends) and not extras and not len(over):
            self.keep(fresh)
            return
        last_over = 2 * int(over[-1]) if len(over) else -2 * _MOST
        stored = self._take(opened, extras, last_over, bound)
        pieces = list(stored)
        if fresh is not None:
            clusters = fresh[BUCKET].to_numpy()
            is_over = clusters <= np.where(clusters % 2 == 1, bound, last_over)
            self.keep(fresh.filter(pl.Series(~is_over)))
            pieces.append(fresh.filter(pl.Series(clusters <= bound)))
        if not pieces:  # a table may name panes of which it has no row: those of another task, once
            return
        frame = pl.concat(pieces, how="vertical_relaxed")
        if stored and fresh is not None:
            frame = self.aggregation.combined(frame, self.heads)
        keys, rows = self._rows(frame)
        self._send(keys, rows, rows.results(self._assigner, after, upto))

    def _take(
        self, opened: set[int], extras: list[int], last_over: int, bound: int
    ) -> list[pl.DataFrame]:
        """Take the stored rows that end here, and read those that later results need as well."""
        pieces: list[pl.DataFrame] = []
        for cluster in opened.intersection(extras):
            pieces += self.table.take(cluster, cluster)
            opened.discard(cluster)
        over = [cluster for cluster in opened if cluster <= last_over]
        if over:
            pieces += self.table.take(min(over), max(over))
            opened.difference_update(over)
        needed = [cluster for cluster in opened if cluster <= bound]
        if needed:
            pieces += self.table.scan(min(needed), max(needed))
        return pieces

    def _rows(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, _Rows]:
        keys, numbers = distinct(frame, self.node.keys)
        return keys, _Rows(numbers, frame[BUCKET].to_numpy(), frame[self.table.partials])

    def _send(
        self,
        keys: pl.DataFrame,
        rows: _Rows,
        asked: _Results,
        before: tuple[_Rows, _Results] | None = None,
    ) -> None:
        """Send results in the order of their ends, those of which there are rows.

        Args:
            keys: by number.
            rows: what results are made of.
            asked: which results.
            before: what those were made of that these replace, and which there were.
        """
        now, at = self._made(keys, rows, asked)
        if not now.height:
            return
        if self._replaces_steps:
            sent, was = self._made(keys, rows, asked, but_last=True)
        elif before is not None:
            sent, was = self._made(keys, *before)
        else:
            sent, was = now.clear(), _Results(at.numbers[:0], at.ends[:0])
        order = np.lexsort((at.numbers, at.ends))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        replaced_by = ranks[_places(at, was)]
        shown, is_retraction, results = self.accumulation.changes(now[order], sent, replaced_by)
        times = at.ends[order][results] - 1
        moments = self._assigner.moments(shown)
        self.node.send(shown, moments, times, is_retraction)

    def _made(
        self, keys: pl.DataFrame, rows: _Rows, asked: _Results, *, but_last: bool = False
    ) -> tuple[pl.DataFrame, _Results]:
        partials, which = rows.totals(self.aggregation, self._assigner, asked, but_last=but_last)
        made = _Results(asked.numbers[which], asked.ends[which])
        heads = keys[made.numbers].with_columns(pl.Series(BUCKET, made.ends))
        return heads.hstack(partials), made

    def _advance_kept(self, after: int, upto: int) -> None:
        """Send the results that late records change, and those that end."""
        changes, self._changes = self._changes, []
        wanted = self._first_wanted(changes, after, upto)
        if wanted is None:
            return
        # A result looks back from its end, which is not before the first of its panes.
        low = int(self._sends.begin(np.array([wanted]))[0])
        high = min(2 * upto + 1, max(self.opened(), default=NO_WATERMARK))
        stored = list(self.table.scan(2 * low, high)) if 2 * low <= high else []
        pieces = [frame.with_columns(pl.lit(False).alias(_FRESH)) for frame in stored]
        if changes:
            late = pl.concat(changes, how="vertical_relaxed")
            if len(changes) > 1:
                late = self.aggregation.combined(late, self.heads)
            pieces.append(late.with_columns(pl.lit(True).alias(_FRESH)))
            self.keep(late)
        if not pieces:
            return
        frame = pl.concat(pieces, how="vertical_relaxed")
        is_late = frame[_FRESH].to_numpy()
        keys, rows = self._rows(frame)
        ended = rows.results(self._sends, after, upto)
        if changes:
            changed = self._changed(rows, is_late, after)
            before = None
            if self.accumulation.retracts:
                old = rows.filter(~is_late)
                before = (old, changed.shared(old.results(self._sends, NO_WATERMARK, after)))
            self._send(keys, rows, changed, before)
        self._send(keys, rows, ended)

    def _first_wanted(self, changes: list[pl.DataFrame], after: int, upto: int) -> int | None:
        """Return a moment before which no result has to be made; none if none has to be."""
        opened = self.opened()
        ends = self._sends.made(self._panes(opened), after, upto)[1].tolist()
        ends += [c >> 1 for c in opened if c & 1 and after < c >> 1 <= upto]
        ends += [int(frame[BUCKET].to_numpy().min()) >> 1 for frame in changes]
        return min(ends, default=None)

    def _changed(self, rows: _Rows, is_late: Mask, after: int) -> _Results:
        """Return each result that was sent and that late rows change."""
        late = rows.filter(is_late)
        own = late.results(self._sends, NO_WATERMARK, after)
        # And those that there are because of other rows, which have late ones as well.
        sent = rows.results(self._sends, NO_WATERMARK, after)
        panes, codes = late.distinct_panes[0], late.by_pane[0]
        base = sent.numbers * (len(panes) + 1)
        begins = np.searchsorted(panes, self._sends.begin(sent.ends), "right")
        low = np.searchsorted(codes, base + begins)
        high = np.searchsorted(codes, base + np.searchsorted(panes, sent.ends, "right"))
        looking_back = _Results(sent.numbers[high > low], sent.ends[high > low])
        return own.with_others(looking_back)

    def _forget(self, upto: int) -> None:
        """Drop panes and single rows that no result needs any more."""
        opened = self.opened()
        panes = self._panes(opened)
        over = (2 * panes[self._assigner.over_at(panes) <= upto]).tolist()
        over += [c for c in opened if c & 1 and (c >> 1) + self.trigger.grace_ms <= upto]
        kept = sorted(opened.difference(over))
        for low, high in _runs(sorted(over), kept):
            for _ in self.table.take(low, high):
                pass
        opened.difference_update(over)

    def deadline(self) -> int | None:
        """Return when the next result is sent, or a pane is over."""
        opened, sent, waits_ms = self.opened(), self._sent_upto, self.trigger.waits_ms
        panes = self._panes(opened)
        ends = self._sends.made(panes, sent, END_WATERMARK)[1]
        due = [int(self._sends.due(ends).min())] if len(ends) else []
        if self.trigger.updates_late and len(panes):
            due.append(int(self._assigner.over_at(panes).min()))
        singles = [c >> 1 for c in opened if c & 1]
        due += [
            end + (waits_ms if end > sent - waits_ms else self.trigger.grace_ms) for end in singles
        ]
        return min(due, default=None)


def _once(numbers: Ints, ends: Ints) -> _Results:
    """Return pairs without those that there are twice."""
    known, at = np.unique(ends, return_inverse=True)
    width = max(1, len(known))
    numbers, chosen = np.divmod(np.unique(numbers * width + at), width)
    return _Results(numbers, known[chosen])


def _places(results: _Results, some: _Results) -> Ints:
    """Return where each of some results is among all."""
    known = np.unique(results.ends)
    codes, asked = (
        each.numbers * len(known) + np.searchsorted(known, each.ends) for each in (results, some)
    )
    order = np.argsort(codes, kind="stable")
    found: Ints = order[np.searchsorted(codes[order], asked)]
    return found


def _runs(wanted: list[int], kept: list[int]) -> list[tuple[int, int]]:
    """Return ranges with all that is wanted and nothing that is kept; both are sorted."""
    places = np.searchsorted(kept, wanted)
    cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(wanted)]
    return [(wanted[a], wanted[b - 1]) for a, b in pairwise(cuts) if b > a]
