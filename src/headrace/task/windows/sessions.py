"""``window(session(...))``: messages of a key less than a gap apart, kept as columns.

Event time is cut into slices as long as the gap, so what a key has in one slice is one row. The
watermark passes slice after slice: then the rows of a key up to it are put in order, those less
than a gap apart are joined, what nothing can join any more is sent on, and what the next slice
goes on with is kept there, as one row. So records may come in any order, no key is looked up,
and no session is touched but in the slice in which it may end.

A record is late where it is behind the watermark of its own partition by more than the grace.
By then a session may be out that it would have joined or made one of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.graph.extremes import Extreme
from headrace.task.chunk import Chunk, Ints
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import distinct
from headrace.task.windows.partial_table import BUCKET, PartialTable
from headrace.task.windows.totals import BucketNode

TIME = "__time"
FIRST, LAST = "__first", "__last"
FIRST_COLUMN, LAST_COLUMN = f"{FIRST}.min", f"{LAST}.max"
_CHAIN, _STORED = "__chain", "__stored"


def session_aggregates(source: pa.Schema) -> tuple[tuple[tuple[str, Aggregate], ...], pa.Schema]:
    """Return what is kept of sessions beside the user's aggregates, and the columns it is of."""
    whole = source.append(pa.field(TIME, pa.int64()))
    first, last = Extreme(TIME).bind(whole), Extreme(TIME, is_max=True).bind(whole)
    return ((FIRST, first), (LAST, last)), whole


class SessionNode(BucketNode):
    """See the module.

    Args:
        name: of the operator.
        aggregation: the user's aggregates, and ``session_aggregates``.
        table: where slices are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        gap_ms: messages less than it apart are in one session.
        grace_ms: how far behind the watermark a record may come.
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
        gap_ms: int,
        grace_ms: int,
        delay_ms: int,
    ) -> None:
        super().__init__(
            name,
            aggregation,
            table,
            schema,
            key_groups,
            size_ms=gap_ms,
            grace_ms=grace_ms,
            delay_ms=delay_ms,
        )
        self._due: int | None = None

    def push(self, chunk: Chunk) -> None:
        """Add rows to their slices; a late one is set aside."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        timely = chunk.times + self._grace >= chunk.watermarks - self._delay
        kept = chunk.filter(timely)
        self._set_aside(chunk, ~timely)
        if kept.rows:
            assert kept.times is not None
            self._take(kept, kept.times)

    def _take(self, chunk: Chunk, times: Ints) -> None:
        columns = [pl.Series(BUCKET, self._slices(times)), pl.Series(TIME, times)]
        self._gather(self._frame(chunk).with_columns(columns), chunk.groups, self._heads)

    def _slices(self, times: Ints) -> Ints:
        return (times // self._size + 1) * self._size

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit the sessions that the watermark closes."""
        fresh = self._folded(self._heads)
        upto = watermark - self._grace
        due = self._first_due(fresh, upto)
        if due is None or due > upto:
            self._keep(fresh)
            self._due = due
            return
        near = (upto // self._size + 1) * self._size
        rows = [piece.with_columns(pl.lit(1).alias(_STORED)) for piece in self._table.scan(0, near)]
        if fresh is not None:
            self._keep(fresh.filter(pl.col(BUCKET) > near))
            own = fresh.filter(pl.col(BUCKET) <= near)
            rows.append(own.with_columns(pl.lit(0).alias(_STORED)))
        self._open = {end for end in self._opened() if end > near}
        ends: list[int] = []
        if rows:  # a table may name slices of which it has no row: those of another task, once
            left = self._join(pl.concat(rows, how="vertical_relaxed"), upto)
            self._open.update(left[BUCKET].to_list())
            waiting = left.filter(pl.col(BUCKET) <= upto)[LAST_COLUMN].to_numpy()
            ends += [int(waiting.min()) + self._size] if len(waiting) else []
        self._due = min([*ends, *(end for end in self._open if end > upto)], default=None)

    def _first_due(self, fresh: pl.DataFrame | None, upto: int) -> int | None:
        """When, less the grace, the first session may end; a slice not yet looked at: its own."""
        opened = self._opened()
        found = [] if self._due is None else [self._due]
        if self._due is None and opened:
            found.append(min(opened))
        if fresh is not None and fresh.height:
            found.append(int(fresh[LAST_COLUMN].to_numpy().min()) + self._size)
        return min(found, default=None)

    def _store(self) -> None:
        super()._store()
        self._due = None  # not known of what was stored without a look at it

    def _keep(self, fresh: pl.DataFrame | None) -> None:
        if fresh is not None and fresh.height:
            self._table.add(fresh)
            self._opened().update(fresh[BUCKET].unique().to_list())

    def _join(self, frame: pl.DataFrame, upto: int) -> pl.DataFrame:
        """Join rows to sessions, emit those that are over; return slice and end of those left."""
        numbers = distinct(frame, self._keys)[1]
        first, last = frame[FIRST_COLUMN].to_numpy(), frame[LAST_COLUMN].to_numpy()
        order = np.lexsort((first, numbers))
        frame, first, last = frame[order], first[order], last[order]
        chains = chained(numbers[order], first, last, self._size)
        ends = np.full(chains[-1] + 1 if len(chains) else 0, np.iinfo(np.int64).min)
        np.maximum.at(ends, chains, last)
        is_over = ends + self._size <= upto
        stored = frame[_STORED].to_numpy()
        is_same = (np.bincount(chains, minlength=len(ends)) == 1) & ~is_over
        is_same &= np.bincount(chains, weights=stored, minlength=len(ends)) == 1
        touched = ~is_same[chains]
        replaced = frame.filter(pl.Series(touched & (stored == 1)))
        if replaced.height:
            self._table.remove(self._table.address(replaced)[0])
        whole = self._sessions(frame, chains, touched)
        over = pl.col(LAST_COLUMN) + self._size <= upto
        kept = whole.filter(~over)
        if kept.height:
            keys, rows = self._table.address(kept)
            self._table.put(keys, kept.select(self._table.partials)[rows])
        self._send(whole.filter(over))
        same = frame.filter(pl.Series(~touched))
        return pl.concat([same.select(BUCKET, LAST_COLUMN), kept.select(BUCKET, LAST_COLUMN)])

    def _sessions(
        self, frame: pl.DataFrame, chains: Ints, touched: npt.NDArray[np.bool_]
    ) -> pl.DataFrame:
        """Return one row for each chain of touched rows, in the slice of its last record."""
        rows = frame.with_columns(pl.Series(_CHAIN, chains)).filter(pl.Series(touched))
        beside = [pl.col(key).first() for key in self._keys]
        whole = self._aggregation.combined(rows, [_CHAIN], *beside)
        slices = self._slices(whole[LAST_COLUMN].to_numpy())
        return whole.with_columns(pl.Series(BUCKET, slices))

    def _send(self, sessions: pl.DataFrame) -> None:
        if not sessions.height:
            return
        sessions = sessions.sort(LAST_COLUMN, _CHAIN)
        ends = sessions[LAST_COLUMN].to_numpy() + self._size
        heads = {"window_start": sessions[FIRST_COLUMN].to_numpy(), "window_end": ends}
        self._emit(sessions.with_columns(pl.Series(BUCKET, ends)), heads, sessions)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the first session may end."""
        return (None if self._due is None else self._due + self._grace), None


def chained(numbers: Ints, first: Ints, last: Ints, gap: int) -> Ints:
    """Number the sessions of rows sorted by key and first record."""
    begins = np.ones(len(numbers), bool)
    if len(numbers):
        # The latest record so far of each key: no rank of one key reaches those of the next.
        ranks = np.unique(last, return_inverse=True)
        codes = np.maximum.accumulate(numbers * len(ranks[0]) + ranks[1])
        reached = ranks[0][codes % len(ranks[0])]
        begins[1:] = (numbers[1:] != numbers[:-1]) | (first[1:] - reached[:-1] >= gap)
    return np.cumsum(begins).astype(np.int64) - 1
