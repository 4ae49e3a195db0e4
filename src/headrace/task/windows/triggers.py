"""Windows with early results, and sessions that late records change.

Rows that were sent are kept apart from those that wait to be, in one table (``clusters``). Each row
that waits has an instant at which it counts: that of an early result, or that at which its window
is sent after its end, whichever is first. When the watermark has passed instants, the
rows are taken in that order, for all keys at once: first those of each group's first instant, then
of its second, and so on. What a row joins that was sent is replaced, or taken back.

A window is over once nothing that is in time can come for it: then what was sent is forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.windows import BOUNDS, RETRACTION
from headrace.task.chunk import Chunk, Ints
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.clusters import NEVER, Clusters
from headrace.task.windows.heads import distinct
from headrace.task.windows.instants import LAST_SEEN, SEEN, Instants
from headrace.task.windows.partial_table import BUCKET, PartialTable
from headrace.task.windows.sessions import TIME
from headrace.task.windows.shapes import PLACE, Shape
from headrace.task.windows.totals import BucketNode

_GROUP, _UNIT, _AT, _STORED, _FRESH = "__group", "__unit", "__instant", "__stored", "__fresh"
_BEGIN, _END, _WHOLE = "__begin", "__end", "__whole"
ALL = 1 << 50
Mask = npt.NDArray[np.bool_]


class Terms(NamedTuple):
    """How results of a window follow each other.

    ``waits_ms`` is how long after its end a window is sent, ``grace_ms`` how long it takes records;
    ``updates`` is one of ``graph.windows.UPDATES``; ``delay_ms`` how far the node's watermark lags
    the one that rows came with.
    """

    instants: Instants
    updates: str
    waits_ms: int
    grace_ms: int
    delay_ms: int


class TriggerNode(BucketNode):
    """See the module.

    Args:
        name: of the operator.
        aggregation: the user's aggregates, and those that shape and instants need.
        table: where rows are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        shape: which rows go together.
        terms: when results are sent.
        clusters: how rows are kept.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        shape: Shape,
        terms: Terms,
        clusters: Clusters,
    ) -> None:
        super().__init__(
            name,
            aggregation,
            table,
            schema,
            key_groups,
            size_ms=0,
            grace_ms=terms.grace_ms,
            delay_ms=terms.delay_ms,
        )
        self._shape, self._terms, self._clusters = shape, terms, clusters
        self._raw = [BUCKET, PLACE, *self._keys]
        self._due: int | None = None

    def _wait(self, chunk: Chunk, steps: Ints, places: Ints) -> None:
        """Gather rows by step, or 0 for none, and place."""
        if chunk.rows:
            assert chunk.times is not None
            assert chunk.watermarks is not None
            seen = np.maximum(chunk.times, chunk.watermarks - self._delay)
            beside = {BUCKET: steps, PLACE: places, TIME: chunk.times, SEEN: seen}
            columns = [pl.Series(name, values) for name, values in beside.items()]
            self._gather(self._frame(chunk).with_columns(columns), chunk.groups, self._raw)

    def _steps(self, seen: Ints) -> Ints:
        """Return the step of each moment; 0 where rows wait for no step."""
        step_ms = self._clusters.step_ms
        return self._clusters.steps(seen) if step_ms else np.zeros(len(seen), np.int64)

    @abstractmethod
    def _placed(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return folded rows by cluster."""

    def _fresh(self) -> pl.DataFrame | None:
        frame = self._folded(self._raw)
        return None if frame is None else self._placed(frame.sort(PLACE))

    def _store(self) -> None:
        self._keep(self._fresh())

    def _keep(self, fresh: pl.DataFrame | None) -> None:
        """Store rows that wait."""
        if fresh is not None and fresh.height:
            self._table.add(fresh)
            clusters = fresh[BUCKET].unique().to_list()
            self._opened().update(clusters)
            if self._due is not None:
                self._due = min(self._due, self._earliest(clusters))

    def _earliest(self, clusters: list[int]) -> int:
        """Return a watermark before which nothing is due of rows in clusters."""
        if not clusters:
            return NEVER
        numbers = np.array(clusters, np.int64)
        places, steps = self._clusters.read(numbers)
        is_sent = self._clusters.is_sent(numbers)
        ends = places + np.where(is_sent, self._grace, self._terms.waits_ms)
        return int(np.minimum(ends, steps).min())

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send what is due, and forget what is over."""
        fresh = self._fresh()
        due = self._due if self._due is not None else self._earliest(list(self._opened()))
        if fresh is not None:
            due = min(due, self._earliest(fresh[BUCKET].unique().to_list()))
        counts_rows = self._terms.instants.rows and fresh is not None
        if due > watermark and not counts_rows:
            self._keep(fresh)
            self._due = due
            return
        ranges = self._ranges(watermark)
        rows = [
            piece.with_columns(pl.lit(True).alias(_STORED))
            for low, high in ranges
            for piece in self._table.scan(low, high)
        ]
        if fresh is not None:
            near = pl.any_horizontal(pl.col(BUCKET).is_between(*each) for each in ranges)
            self._keep(fresh.filter(~near))
            rows.append(fresh.filter(near).with_columns(pl.lit(False).alias(_STORED)))
        far = {at for at in self._opened() if not any(low <= at <= high for low, high in ranges)}
        self._open, self._due = far, max(self._earliest(list(far)), watermark + 1)
        if any(piece.height for piece in rows):
            self._judge(pl.concat(rows, how="vertical_relaxed"), watermark)

    def _ranges(self, upto: int) -> list[tuple[int, int]]:
        """Return the clusters of rows that may be due, or belong to such."""
        if self._terms.instants.rows:
            return self._clusters.ranges(ALL, ALL)
        step_ms = self._clusters.step_ms
        return self._clusters.ranges(self._shape.last_place(upto), upto + 2 * step_ms)

    def _judge(self, frame: pl.DataFrame, upto: int) -> None:
        """Send rows whose instants have passed; store, pack and forget others.

        Args:
            frame: all rows that may matter, with ``_STORED``.
            upto: the watermark.
        """
        numbers = distinct(frame, self._keys)[1]
        clusters = frame[BUCKET].to_numpy()
        places, steps = self._clusters.read(clusters)
        waits = ~self._clusters.is_sent(clusters)
        frame = frame.with_columns(pl.Series(PLACE, places))
        groups = self._shape.groups(numbers, places)
        units = self._shape.units(frame, groups)
        ends = np.full(int(units.max()) + 1, -NEVER)
        np.maximum.at(ends, units, self._shape.bounds(frame)[1])
        instants, bursts = self._terms.instants.of(frame, steps, waits, groups, units, upto)
        instants = self._shape.early(instants, ends[units], NEVER)
        instants = np.where(waits, np.minimum(instants, ends[units] + self._terms.waits_ms), NEVER)
        fires = waits & (instants <= upto)
        # In the order in which they came to wait; those of no step came last.
        order = np.lexsort((steps, instants))
        named = frame.with_columns(
            pl.Series(_GROUP, groups), pl.Series(_UNIT, units), pl.Series(_AT, instants)
        )
        known = self._fire(named.filter(pl.Series(~waits)), named[order].filter(fires[order]))
        self._forget(known, ends + self._grace, upto)
        left = waits & ~fires
        self._leave(frame.filter(pl.Series(left)), steps[left], bursts[left])
        if left.any():
            self._due = max(min(self._due or NEVER, int(instants[left].min())), upto + 1)

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
            known, results = self._meet(known.filter(~near), known.filter(near), now)
            sent += results
        self._emit_changes(pl.concat(sent, how="diagonal_relaxed"))
        return known

    def _meet(
        self, others: pl.DataFrame, known: pl.DataFrame, now: pl.DataFrame
    ) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """Join rows to what was sent; return what was sent now, and the changes to emit."""
        both = pl.concat(
            [
                known.with_columns(pl.lit(False).alias(_FRESH)),
                now.with_columns(pl.lit(True).alias(_FRESH)),
            ],
            how="vertical_relaxed",
        )
        chosen = self._shape.units(both, both[_GROUP].to_numpy())
        is_fresh = both[_FRESH].to_numpy()
        touched = np.zeros(int(chosen.max()) + 1, bool)
        touched[chosen[is_fresh]] = True
        both = both.with_columns(pl.Series(_WHOLE, chosen))
        same = both.filter(pl.Series(~touched[chosen])).drop(_WHOLE, _FRESH)
        both = both.filter(pl.Series(touched[chosen]))
        before, fresh = both.filter(~pl.col(_FRESH)), both.filter(_FRESH)
        beside = [pl.col(name).first() for name in (*self._keys, PLACE, _GROUP, _UNIT)]
        instant = pl.col(_AT).filter(pl.col(_FRESH)).max()
        whole = self._aggregation.combined(both, [_WHOLE], *beside, instant)
        places = self._shape.places(whole)
        whole = whole.with_columns(
            pl.Series(BUCKET, 2 * places), pl.Series(PLACE, places), pl.lit(False).alias(_STORED)
        )
        self._drop(before.filter(_STORED))
        begins, stops = self._shape.bounds(whole)
        shown = whole.with_columns(pl.Series(_BEGIN, begins), pl.Series(_END, stops))
        results = [shown.with_columns(pl.lit(False).alias(RETRACTION))]
        if self._terms.updates == "retract":
            results.insert(0, self._taken_back(before, shown))
        elif self._terms.updates == "add":
            only = self._aggregation.combined(fresh, [_WHOLE])
            bounds = shown.select(_WHOLE, *self._keys, _BEGIN, _END, _AT).sort(_WHOLE)
            results = [only.sort(_WHOLE).drop(_WHOLE).hstack(bounds)]
        left = pl.concat([others, same, whole.select(others.columns)], how="vertical_relaxed")
        return left, results

    def _taken_back(self, before: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
        """Return results that others take the place of, as they were, at the instants of these."""
        begins, stops = self._shape.bounds(before)
        instants = np.zeros(int(now[_WHOLE].max()) + 1, np.int64)  # type: ignore[arg-type]
        instants[now[_WHOLE].to_numpy()] = now[_AT].to_numpy()
        return before.with_columns(
            pl.Series(_BEGIN, begins),
            pl.Series(_END, stops),
            pl.Series(_AT, instants[before[_WHOLE].to_numpy()]),
            pl.lit(True).alias(RETRACTION),
        )

    def _emit_changes(self, sent: pl.DataFrame) -> None:
        """Emit results in the order of instants; their time is that, or the last of the window."""
        sent = sent[np.argsort(sent[_AT].to_numpy(), kind="stable")]
        begins, stops = sent[_BEGIN].to_numpy(), sent[_END].to_numpy()
        times = np.clip(sent[_AT].to_numpy(), np.maximum(begins, 0) + 1, stops)
        flags = {}
        if self._terms.updates == "retract":
            flags = {RETRACTION: sent[RETRACTION].to_numpy()}
        heads = dict(zip(BOUNDS, (begins, stops), strict=True))
        self._emit(sent.with_columns(pl.Series(BUCKET, times)), heads, sent, flags)

    def _forget(self, known: pl.DataFrame, over: Ints, upto: int) -> None:
        """Keep what was sent and is not over."""
        until = over[known[_UNIT].to_numpy()]
        is_over = pl.Series(until <= upto)
        self._drop(known.filter(is_over & known[_STORED]))
        kept = known.filter(~is_over)
        self._put(kept.filter(~pl.col(_STORED)))
        if kept.height:
            self._opened().update(kept[BUCKET].unique().to_list())
            self._due = min(self._due or NEVER, int(until[until > upto].min()))

    def _leave(self, rows: pl.DataFrame, steps: Ints, bursts: Ints) -> None:
        """Store rows that go on waiting; those of one burst and place become one."""
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
                beside = [pl.col(name).first() for name in (*self._keys, PLACE)]
                one = self._aggregation.combined(many, [_WHOLE], *beside)
                last = self._clusters.steps(one[LAST_SEEN].to_numpy())
                places = one[PLACE].to_numpy()
                one = one.with_columns(pl.Series(BUCKET, self._clusters.waiting(last, places)))
                self._put(one)
                self._opened().update(one[BUCKET].unique().to_list())
        same = rows.filter(pl.Series(~several))
        self._opened().update(same[BUCKET].unique().to_list())
        fresh = same.filter(~pl.col(_STORED)).select(*self._heads, *self._table.partials)
        if fresh.height:
            self._table.add(fresh)

    def _drop(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self._table.remove(self._table.address(rows.select(self._heads))[0])

    def _put(self, rows: pl.DataFrame) -> None:
        if rows.height:
            keys, order = self._table.address(rows.select(self._heads))
            self._table.put(keys, rows.select(self._table.partials)[order])

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next result is due, or one that was sent is over."""
        due = self._due if self._due is not None else self._earliest(list(self._opened()))
        return (None if due >= NEVER else due), None


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
