"""Windows without event time: every so many messages of a key, and all messages of a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate, Count
from headrace.task.chunk import Chunk, Groups, Ints
from headrace.task.orders import END_WATERMARK, NO_WATERMARK
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import distinct
from headrace.task.windows.partial_table import BUCKET, PartialTable
from headrace.task.windows.totals import AggregateNode

NUMBER = "__n"
COUNT_COLUMN = f"{NUMBER}.count"
_KEY, _WINDOW, _ROW = "__key", "__window", "__row"
_ONLY = 0
"""The bucket of all rows: they are in one so that all of them can be taken."""


COUNTING: tuple[tuple[str, Aggregate], ...] = ((NUMBER, Count()),)
"""What is kept of count windows beside the user's aggregates."""


class WholeNode(AggregateNode):
    """``window(global_window())``: one row for each key, sent when the inputs end.

    Args:
        name: of the operator.
        aggregation: its aggregates.
        table: where partials are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        timed: whether results need an event time: that of the watermark before the end.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        timed: bool,
    ) -> None:
        super().__init__(name, aggregation, table, schema, key_groups)
        self._timed, self._before = timed, NO_WATERMARK
        self._heads = [BUCKET, *self._keys]

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know the watermark before the end of the inputs."""
        self._before = watermark

    def push(self, chunk: Chunk) -> None:
        """Combine the rows into the totals."""
        frame = self._frame(chunk).with_columns(_only())
        self._gather(frame, chunk.groups, self._heads)

    def _store(self) -> None:
        frame = self._folded(self._heads)
        if frame is not None:
            self._table.add(frame)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Store what the epoch added; at the end of the inputs send everything."""
        self._store()
        if watermark >= END_WATERMARK:
            for rows in self._table.take(_ONLY, _ONLY):
                self._send_rest(rows)

    def _send_rest(self, rows: pl.DataFrame) -> None:
        keys, groups = self._key_columns(rows)
        self._send_last(self._results(keys, rows), groups)

    def _send_last(self, batch: pa.RecordBatch, groups: Groups) -> None:
        """Send results at the end of the inputs, at the watermark before it."""
        times = watermarks = None
        if self._timed:
            times = np.full(batch.num_rows, max(self._before, 0))
            watermarks = np.full(batch.num_rows, NO_WATERMARK)
        self.emit(Chunk(batch, times, watermarks, groups))


class CountNode(WholeNode):
    """``window(count_window(n))``: sent with the message that fills it, the rest at the end.

    Args:
        name: of the operator.
        aggregation: the user's aggregates, and ``COUNTING``.
        table: where open windows are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
        timed: whether results need an event time.
        rows: how many messages fill a window.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        timed: bool,
        rows: int,
    ) -> None:
        super().__init__(name, aggregation, table, schema, key_groups, timed=timed)
        self._size = rows

    def push(self, chunk: Chunk) -> None:
        """Fill the open windows and begin new ones; send those that are full."""
        frame = self._frame(chunk)
        heads, numbers = distinct(frame, self._keys)
        keys, order = self._table.address(heads.with_columns(_only()))
        open_rows, at = self._table.lookup(keys)
        owners = order[at]
        before = np.zeros(heads.height, np.int64)
        before[owners] = open_rows[COUNT_COLUMN].to_numpy()
        windows = (before[numbers] + ordinals(numbers)) // self._size
        made = self._aggregation.reduced(
            frame.with_columns(
                pl.Series(_KEY, numbers),
                pl.Series(_WINDOW, windows),
                pl.Series(_ROW, np.arange(frame.height)),
            ),
            [_KEY, _WINDOW],
            pl.col(_ROW).last(),
        )
        self._use(chunk, heads, before, made, open_rows.with_columns(pl.Series(_KEY, owners)))

    def _use(
        self,
        chunk: Chunk,
        heads: pl.DataFrame,
        before: Ints,
        made: pl.DataFrame,
        open_rows: pl.DataFrame,
    ) -> None:
        """Join what came to what was kept.

        Args:
            chunk: the rows.
            heads: their distinct keys.
            before: how many rows each key had.
            made: partials of each key and window, with the last row of each.
            open_rows: what was kept, with the numbers of its keys.
        """
        made = self._continued(made, open_rows)
        is_full = pl.col(COUNT_COLUMN) == self._size
        left = made.filter(~is_full)
        self._replace(heads, before, left)
        self._send_full(chunk, made.filter(is_full))

    def _send_full(self, chunk: Chunk, full: pl.DataFrame) -> None:
        """Send results with the rows that fill them."""
        if full.height:
            full = full.sort(_ROW)
            filling = chunk.take(full[_ROW].to_numpy())
            self.emit(filling.with_batch(self._results(self._own_keys(filling), full)))

    def _continued(self, made: pl.DataFrame, open_rows: pl.DataFrame) -> pl.DataFrame:
        """Put the open window of each key before the first rows that it gets."""
        places = np.full(int(made[_KEY].max()) + 1, -1)  # type: ignore[arg-type]
        places[open_rows[_KEY].to_numpy()] = np.arange(open_rows.height)
        at = places[made[_KEY].to_numpy()]
        follows = (made[_WINDOW].to_numpy() == 0) & (at >= 0)
        if not follows.any():
            return made
        later, names = made.filter(pl.Series(follows)), self._table.partials
        whole = self._aggregation.paired(open_rows.select(names)[at[follows]], later.select(names))
        joined = later.select(_KEY, _WINDOW, _ROW).hstack(whole)
        rest = made.filter(pl.Series(~follows))
        return pl.concat([rest, joined.select(rest.columns)], how="vertical_relaxed")

    def _replace(self, heads: pl.DataFrame, before: Ints, left: pl.DataFrame) -> None:
        """Keep the windows that are open now; forget those of keys that have none."""
        own = left[_KEY].to_numpy()
        gone = before > 0
        gone[own] = False
        if gone.any():
            ended = heads.filter(pl.Series(gone)).with_columns(_only())
            self._table.remove(self._table.address(ended)[0])
        if left.height:
            keys, order = self._table.address(heads[own].with_columns(_only()))
            self._table.put(keys, left.select(self._table.partials)[order])


class TotalNode(CountNode):
    """``window(global_window(rows=...))``: totals so far with each so many messages."""

    def _use(
        self,
        chunk: Chunk,
        heads: pl.DataFrame,
        before: Ints,
        made: pl.DataFrame,
        open_rows: pl.DataFrame,
    ) -> None:
        names = [_KEY, *self._table.partials]
        steps = pl.concat([open_rows.select(names), made.sort(_WINDOW).select(names)])
        totals = self._aggregation.accumulated(steps, _KEY)
        newest = totals.group_by(_KEY).last()
        keys, order = self._table.address(heads[newest[_KEY].to_numpy()].with_columns(_only()))
        self._table.put(keys, newest.select(self._table.partials)[order])
        so_far = totals.slice(open_rows.height).with_columns(made.sort(_WINDOW)[_ROW])
        self._send_full(chunk, so_far.filter(pl.col(COUNT_COLUMN) % self._size == 0))

    def _send_rest(self, rows: pl.DataFrame) -> None:
        rest = rows.filter(pl.col(COUNT_COLUMN) % self._size != 0)
        if rest.height:
            super()._send_rest(rest)


def _only() -> pl.Expr:
    return pl.lit(_ONLY, pl.Int64).alias(BUCKET)


def ordinals(numbers: Ints) -> Ints:
    """How many rows before each have its number."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.concatenate([starts, [len(ordered)]]))
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers)) - np.repeat(starts, counts)
    return places
