"""Windows whose rows wait each for an instant: sessions, early results, sessions that change late.

``SessionState`` is for sessions without either. The watermark passes slice after slice: then the
rows of a key up to it are put in order, those less than a gap apart are joined, what nothing can
join any more is sent, and what the next slice continues with is kept there, as one row. So records
may come in any order, no key is looked up, and no session is touched but in the slice in which it
may end.

``TriggeredState`` keeps rows that were sent apart from those that wait to be, in one table
(``layouts.Clusters``). Each row that waits has an instant at which it counts: that of an early
result, or that at which its window is sent after its end, whichever is first. When the watermark
has passed instants, the rows are taken in that order, for all keys at once: first those of each
group's first instant, then of its second, and so on. What a row joins that was sent is replaced, or
taken back. A window is over once nothing that is in time can come for it: then what was sent is
forgotten.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import polars as pl

from headrace.durations import MIN_EVENT_TIME_MS
from headrace.graph.windows import RETRACTION
from headrace.runtime.chunk import Ints
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.windows.aggregation import distinct
from headrace.runtime.windows.assigners import (
    PLACE,
    SessionAssigner,
    TriggeredAssigner,
    chained,
)
from headrace.runtime.windows.bucket_state import RunningTotals
from headrace.runtime.windows.layouts import (
    FIRST_COLUMN,
    LAST_COLUMN,
    LAST_SEEN,
    NEVER,
    SEEN,
    TIME,
    Clusters,
)
from headrace.runtime.windows.partial_table import BUCKET
from headrace.runtime.windows.triggers import Accumulation
from headrace.runtime.windows.window_node import WindowNode, WindowState

_GROUP, _UNIT, _AT, _STORED, _FRESH = "__group", "__unit", "__instant", "__stored", "__fresh"
_BEGIN, _END, _WHOLE = "__begin", "__end", "__whole"
_ALL = 1 << 50


class DueState(WindowState):
    """What both kinds share: nothing is read before something is due."""

    _due: int | None = None

    @abstractmethod
    def _earliest(self, clusters: set[int]) -> int:
        """Return a watermark before which nothing is due of rows in clusters, or ``NEVER``."""

    @abstractmethod
    def _fresh_due(self, fresh: pl.DataFrame) -> int:
        """Return the same of folded rows that are not in the table."""

    @abstractmethod
    def _ranges(self, upto: int) -> list[tuple[int, int]]:
        """Return the clusters of rows that may be due at a watermark, or belong to such."""

    @abstractmethod
    def _judge(self, frame: pl.DataFrame, upto: int) -> int:
        """Send rows that are due; keep others, forget what is over; return when the next is due.

        Args:
            frame: all rows that may matter, with ``_STORED``.
            upto: the watermark.
        """

    def _counts_rows(self) -> bool:
        return False

    def store(self, fresh: pl.DataFrame) -> None:
        """Store rows that wait."""
        self.keep(fresh)
        if self._due is not None:
            self._due = min(self._due, self._fresh_due(fresh))

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Send what is due, and forget what is over."""
        due = self._earliest(self.opened()) if self._due is None else self._due
        if fresh is not None:
            due = min(due, self._fresh_due(fresh))
        if due > watermark and (fresh is None or not self._counts_rows()):
            self.keep(fresh)
            self._due = due
            return
        ranges = self._ranges(watermark)
        rows = [
            piece.with_columns(pl.lit(True).alias(_STORED))
            for low, high in ranges
            for piece in self.table.scan(low, high)
        ]
        if fresh is not None:
            near = pl.any_horizontal(pl.col(BUCKET).is_between(*each) for each in ranges)
            self.keep(fresh.filter(~near))
            rows.append(fresh.filter(near).with_columns(pl.lit(False).alias(_STORED)))
        far = {at for at in self.opened() if not any(low <= at <= high for low, high in ranges)}
        self._open, self._due = far, max(self._earliest(far), watermark + 1)
        # A table may name clusters of which it has no row: those of another task, once.
        if any(piece.height for piece in rows):
            next_due = self._judge(pl.concat(rows, how="vertical_relaxed"), watermark)
            self._due = max(min(self._due, next_due), watermark + 1)

    def deadline(self) -> int | None:
        """Return when the next result is due, or one that was sent is over."""
        due = self._earliest(self.opened()) if self._due is None else self._due
        return None if due >= NEVER else due

    def _drop(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self.table.remove(self.table.address(rows.select(self.heads))[0])

    def _put(self, rows: pl.DataFrame) -> None:
        if rows.height:
            keys, order = self.table.address(rows.select(self.heads))
            self.table.put(keys, rows.select(self.table.partials)[order])
            self.opened().update(rows[BUCKET].unique().to_list())


class SessionState(DueState):
    """Sessions, and global windows whose totals are sent when a key is idle."""

    def __init__(self, node: WindowNode) -> None:
        super().__init__(node)
        assert isinstance(node.parts.assigner, SessionAssigner)
        self._assigner, self._gap = node.parts.assigner, node.parts.assigner.gap_ms
        self._totals = RunningTotals(node) if self._assigner.is_global else None

    def columns(self, places: Ints, times: Ints, marks: Ints) -> dict[str, Ints]:
        """Return slice and time; of global windows, the time at which a row counts."""
        return {BUCKET: places, TIME: np.maximum(times, marks) if self._totals else times}

    def _earliest(self, clusters: set[int]) -> int:
        return min(clusters, default=NEVER) + self.trigger.grace_ms

    def _fresh_due(self, fresh: pl.DataFrame) -> int:
        return int(fresh[LAST_COLUMN].to_numpy().min()) + self._gap + self.trigger.grace_ms

    def _ranges(self, upto: int) -> list[tuple[int, int]]:
        return [(NO_WATERMARK, self._assigner.last_place(upto - self.trigger.grace_ms))]

    def _judge(self, frame: pl.DataFrame, upto: int) -> int:
        """Join rows to sessions, send those that are over, keep the others."""
        upto -= self.trigger.grace_ms
        numbers = distinct(frame, self.node.keys)[1]
        first, last = frame[FIRST_COLUMN].to_numpy(), frame[LAST_COLUMN].to_numpy()
        order = np.lexsort((first, numbers))
        frame, first, last = frame[order], first[order], last[order]
        chains = chained(numbers[order], first, last, self._gap)
        ends = np.full(chains[-1] + 1, np.iinfo(np.int64).min)
        np.maximum.at(ends, chains, last)
        is_over = ends + self._gap <= upto
        stored = frame[_STORED].to_numpy()
        is_same = (np.bincount(chains) == 1) & ~is_over
        is_same &= np.bincount(chains, weights=stored) == 1
        touched = ~is_same[chains]
        self._drop(frame.filter(pl.Series(touched & stored)))
        rows = frame.with_columns(pl.Series(_UNIT, chains)).filter(pl.Series(touched))
        beside = [pl.col(key).first() for key in self.node.keys]
        whole = self.aggregation.combined(rows, [_UNIT], *beside)
        whole = whole.with_columns(pl.Series(BUCKET, self._assigner.places(whole)))
        over = pl.col(LAST_COLUMN) + self._gap <= upto
        self._put(whole.filter(~over))
        self.opened().update(frame.filter(pl.Series(~touched))[BUCKET].unique().to_list())
        self._send(whole.filter(over))
        left = ends[~is_over]
        return int(left.min()) + self._gap + self.trigger.grace_ms if len(left) else NEVER

    def _send(self, sessions: pl.DataFrame) -> None:
        if not sessions.height:
            return
        sessions = sessions.sort(LAST_COLUMN, _UNIT)
        if self._totals is not None:
            self._totals.send(sessions)
            return
        moments = self._assigner.moments(sessions)
        self.node.send(sessions, moments, moments["window_end"] - 1)


class TriggeredState(DueState):
    """Early results, and sessions that late records change."""

    def __init__(self, node: WindowNode) -> None:
        super().__init__(node)
        assigner, clusters = node.parts.assigner, node.parts.clusters
        assert isinstance(assigner, TriggeredAssigner | SessionAssigner)
        assert clusters is not None
        self._assigner: TriggeredAssigner | SessionAssigner = assigner
        self._clusters: Clusters = clusters
        self.gathered = [BUCKET, PLACE, *node.keys]

    def columns(self, places: Ints, times: Ints, marks: Ints) -> dict[str, Ints]:
        """Return the step, or ``NEVER`` for none, and the place."""
        seen = np.maximum(times, marks)
        steps = np.full(len(seen), NEVER)
        if self._clusters.step_ms:
            is_open = self._assigner.is_open(places, marks)
            steps = np.where(is_open, self._clusters.steps(seen), NEVER)
        return {BUCKET: steps, PLACE: places, TIME: times, SEEN: seen}

    def store(self, fresh: pl.DataFrame) -> None:
        """Store rows that wait."""
        super().store(self._placed(fresh))

    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Send what is due, and forget what is over."""
        super().advance(None if fresh is None else self._placed(fresh), watermark)

    def _placed(self, fresh: pl.DataFrame) -> pl.DataFrame:
        """Return folded rows by cluster; what panes have, in each of their windows."""
        fresh = fresh.sort(PLACE)
        places, steps = fresh[PLACE].to_numpy(), fresh[BUCKET].to_numpy()
        if isinstance(self._assigner, SessionAssigner):
            clusters = self._clusters.waiting(steps, places)
            return fresh.with_columns(pl.Series(BUCKET, clusters)).drop(PLACE)
        panes, singles = np.flatnonzero(places % 2 == 0), np.flatnonzero(places % 2 == 1)
        rows, ends = self._assigner.made(places[panes] >> 1, -_ALL, _ALL)
        rows = np.concatenate([panes[rows], singles])
        ends = np.concatenate([ends, places[singles] >> 1])
        clusters = self._clusters.waiting(steps[rows], ends)
        placed = fresh[rows].with_columns(pl.Series(BUCKET, clusters)).drop(PLACE)
        if self._assigner.pane_ms < self._assigner.size_ms or len(singles):
            placed = self.aggregation.combined(placed, self.heads)
        return placed

    def _counts_rows(self) -> bool:
        return bool(self.trigger.rows)

    def _fresh_due(self, fresh: pl.DataFrame) -> int:
        return self._earliest(set(fresh[BUCKET].unique().to_list()))

    def _earliest(self, clusters: set[int]) -> int:
        if not clusters:
            return NEVER
        if self.trigger.within_ms:  # only the rows themselves say when
            return -NEVER
        numbers = np.array(list(clusters), np.int64)
        places, steps = self._clusters.read(numbers)
        is_sent = self._clusters.is_sent(numbers)
        ends = places + np.where(is_sent, self.trigger.grace_ms, self.trigger.waits_ms)
        return int(np.minimum(ends, steps).min())

    def _ranges(self, upto: int) -> list[tuple[int, int]]:
        if self.trigger.rows:
            return self._clusters.ranges(_ALL, _ALL)
        step_ms = self._clusters.step_ms
        return self._clusters.ranges(self._assigner.last_place(upto), upto + 2 * step_ms)

    def _judge(self, frame: pl.DataFrame, upto: int) -> int:
        """Send rows whose instants have passed; store, pack and forget others."""
        numbers = distinct(frame, self.node.keys)[1]
        clusters = frame[BUCKET].to_numpy()
        places, steps = self._clusters.read(clusters)
        waits = ~self._clusters.is_sent(clusters)
        frame = frame.with_columns(pl.Series(PLACE, places))
        groups = self._assigner.groups(numbers, places)
        units = self._assigner.units(frame, groups)
        ends = np.full(int(units.max()) + 1, -NEVER)
        np.maximum.at(ends, units, self._assigner.bounds(frame)[1])
        instants, bursts = self.trigger.instants(frame, steps, waits, groups, units, upto)
        instants = self._assigner.early(instants, ends[units], NEVER)
        last = ends[units] + self.trigger.waits_ms
        instants = np.where(waits, np.minimum(instants, last), NEVER)
        fires = waits & (instants <= upto)
        # In the order in which they came to wait; those of no step came last.
        order = np.lexsort((steps, instants))
        named = frame.with_columns(
            pl.Series(_GROUP, groups), pl.Series(_UNIT, units), pl.Series(_AT, instants)
        )
        known = self._fire(named.filter(pl.Series(~waits)), named[order].filter(fires[order]))
        over_at = self._forget(known, ends + self.trigger.grace_ms, upto)
        left = waits & ~fires
        self._leave(frame.filter(pl.Series(left)), steps[left], bursts[left])
        return min(over_at, int(instants[left].min()) if left.any() else NEVER)

    def _fire(self, known: pl.DataFrame, due: pl.DataFrame) -> pl.DataFrame:
        """Take the rows that are due, instant by instant; return what was sent now.

        Args:
            known: what was sent before.
            due: rows, in the order of their instants.
        """
        self._drop(due.filter(pl.col(_STORED)))
        if not due.height:
            return known
        groups = due[_GROUP].to_numpy()
        ranks = _ranks(groups, due[_AT].to_numpy())
        sent: list[pl.DataFrame] = []
        for rank in range(int(ranks.max()) + 1):
            now = due.filter(pl.Series(ranks == rank))
            near = pl.Series(np.isin(known[_GROUP].to_numpy(), groups[ranks == rank]))
            known, changes = self._meet(known.filter(~near), known.filter(near), now)
            sent.append(changes)
        self._send(pl.concat(sent, how="vertical_relaxed"))
        return known

    def _meet(
        self, others: pl.DataFrame, known: pl.DataFrame, now: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Join rows to what was sent; return what was sent now, and the results to send."""
        both = pl.concat(
            [
                known.with_columns(pl.lit(False).alias(_FRESH)),
                now.with_columns(pl.lit(True).alias(_FRESH)),
            ],
            how="vertical_relaxed",
        )
        chosen = self._assigner.units(both, both[_GROUP].to_numpy())
        touched = np.zeros(int(chosen.max()) + 1, bool)
        touched[chosen[both[_FRESH].to_numpy()]] = True
        both = both.with_columns(pl.Series(_WHOLE, chosen))
        same = both.filter(pl.Series(~touched[chosen]))
        both = both.filter(pl.Series(touched[chosen]))
        before = both.filter(~pl.col(_FRESH))
        beside = [pl.col(name).first() for name in (*self.node.keys, PLACE, _GROUP, _UNIT)]
        instant = pl.col(_AT).filter(pl.col(_FRESH)).max()
        whole = self.aggregation.combined(both, [_WHOLE], *beside, instant).sort(_WHOLE)
        places = self._assigner.places(whole)
        whole = whole.with_columns(
            pl.Series(BUCKET, 2 * places), pl.Series(PLACE, places), pl.lit(False).alias(_STORED)
        )
        if self.trigger.within_ms:
            whole = whole.with_columns(pl.col(_AT).alias(LAST_SEEN))
        self._drop(before.filter(_STORED))
        left = [others, same[others.columns], whole[others.columns]]
        shown = self._bounded(whole)
        if self.accumulation is Accumulation.DELTA:
            fresh = self.aggregation.combined(both.filter(_FRESH), [_WHOLE]).sort(_WHOLE)
            shown = shown.with_columns(fresh[self.table.partials].get_columns())
        owners = np.searchsorted(whole[_WHOLE].to_numpy(), before[_WHOLE].to_numpy())
        rows, is_retraction, results = self.accumulation.changes(
            shown, self._bounded(before), owners
        )
        at = shown[_AT].to_numpy()[results]
        changes = rows.with_columns(pl.Series(_AT, at), pl.Series(RETRACTION, is_retraction))
        return pl.concat(left, how="vertical_relaxed"), changes

    def _bounded(self, rows: pl.DataFrame) -> pl.DataFrame:
        begins, ends = self._assigner.bounds(rows)
        return rows.with_columns(pl.Series(_BEGIN, begins), pl.Series(_END, ends))

    def _send(self, rows: pl.DataFrame) -> None:
        """Send results in the order of instants; their time is that, or the last of the window."""
        rows = rows[np.argsort(rows[_AT].to_numpy(), kind="stable")]
        begins, ends = rows[_BEGIN].to_numpy(), rows[_END].to_numpy()
        times = np.clip(rows[_AT].to_numpy(), np.maximum(begins, MIN_EVENT_TIME_MS) + 1, ends)
        moments = {"window_start": begins, "window_end": ends}
        self.node.send(rows, moments, times - 1, rows[RETRACTION].to_numpy())

    def _forget(self, known: pl.DataFrame, over: Ints, upto: int) -> int:
        """Keep what was sent and is not over; return when the next is."""
        until = over[known[_UNIT].to_numpy()]
        is_over = pl.Series(until <= upto)
        self._drop(known.filter(is_over & known[_STORED]))
        kept = known.filter(~is_over)
        self._put(kept.filter(~pl.col(_STORED)))
        self.opened().update(kept[BUCKET].unique().to_list())
        return int(until[until > upto].min()) if kept.height else NEVER

    def _leave(self, rows: pl.DataFrame, steps: Ints, bursts: Ints) -> None:
        """Store rows that continue waiting; those of one burst and place become one."""
        several = np.zeros(rows.height, bool)
        if (bursts >= 0).any():
            pairs = np.unique(
                np.stack([bursts, rows[PLACE].to_numpy()]), axis=1, return_inverse=True
            )
            several = (np.bincount(pairs[1])[pairs[1]] > 1) & (bursts >= 0)
            many = rows.filter(pl.Series(several)).with_columns(
                pl.Series(_WHOLE, pairs[1][several])
            )
            if many.height:
                self._drop(many.filter(_STORED))
                beside = [pl.col(name).first() for name in (*self.node.keys, PLACE)]
                one = self.aggregation.combined(many, [_WHOLE], *beside)
                last = self._clusters.steps(one[LAST_SEEN].to_numpy())
                clusters = self._clusters.waiting(last, one[PLACE].to_numpy())
                self._put(one.with_columns(pl.Series(BUCKET, clusters)))
        same = rows.filter(pl.Series(~several))
        self.opened().update(same[BUCKET].unique().to_list())
        fresh = same.filter(~pl.col(_STORED)).select(*self.heads, *self.table.partials)
        if fresh.height:
            self.table.add(fresh)


def _ranks(groups: Ints, instants: Ints) -> Ints:
    """For each row which of the distinct instants of its group it has, from 0."""
    order = np.lexsort((instants, groups))
    group, instant = groups[order], instants[order]
    is_first = np.concatenate([[True], group[1:] != group[:-1]])
    is_next = np.concatenate([[False], (instant[1:] != instant[:-1]) & ~is_first[1:]])
    steps = np.cumsum(is_next)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = steps - np.maximum.accumulate(np.where(is_first, steps, 0))
    return ranks
