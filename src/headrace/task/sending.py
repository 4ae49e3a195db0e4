"""The sending side of a ``partition_by``: rows are kept for the epoch's file, or combined first.

Where nothing but one aggregate reads a ``partition_by``, the sending tasks may fold rows as the
receiver would. Rows and partial results go into files of their own, and the receiver takes both.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.graph.operators import RunningAggregate
from headrace.graph.windows import GlobalWindow, Hopping, Tumbling
from headrace.plan.stages import HIDDEN, TOGETHER, Combined, Exchange
from headrace.records.schema import normalise
from headrace.task.chunk import Chunk, Ints
from headrace.task.exchange import ExchangeWriter, lagging
from headrace.task.hot_keys import KeySketch
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import together
from headrace.task.windows.spans import Hops, Mask

SAMPLE_ROWS = 1 << 12
FOLD_ROWS = 1 << 17
HELD_ROWS = 1 << 20
WORTH = 0.5
"""A fold that leaves more than this part of its rows takes longer than it saves."""

_CELL = "__cell"


class ExchangeNode(Node):
    """``partition_by``, on the sending side.

    Args:
        exchange: that the rows go through.
        groups: number of key groups of the job.
        hot: sees the rows before they are combined, where heavy keys are looked for.
    """

    def __init__(self, exchange: Exchange, groups: int, hot: KeySketch | None = None) -> None:
        super().__init__(exchange.operator)
        self.exchange, self._groups, self.hot = exchange, groups, hot
        combined = exchange.combined
        self._combiner = None if combined is None else Combiner(exchange, combined)
        self._new_writers()

    def _new_writers(self) -> None:
        schemas = [self.exchange.schema]
        if self.exchange.combined is not None:
            schemas.append(self.exchange.combined.schema)
        keys = self.exchange.keys
        self._writers = [ExchangeWriter(schema, keys, self._groups) for schema in schemas]

    def push(self, chunk: Chunk) -> None:
        """Keep the rows for the file."""
        if self.hot is not None:
            self.hot.see(chunk)
        chunk = lagging(chunk, self.exchange.delay_ms)
        if self._combiner is None:
            self._writers[0].add(chunk)
        else:
            self._keep(self._combiner.add(chunk))

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Keep what rows were combined to."""
        if self._combiner is not None:
            self._keep(self._combiner.flush())

    def _keep(self, sent: tuple[list[Chunk], list[Chunk]]) -> None:
        for writer, chunks in zip(self._writers, sent, strict=True):
            for chunk in chunks:
                writer.add(chunk)

    def take(self) -> list[tuple[str, ExchangeWriter]]:
        """Take what the epoch sends: what files end with, and their writers."""
        named = zip(self.exchange.endings, self._writers, strict=False)
        found = [(ending, writer) for ending, writer in named if writer.rows]
        self._new_writers()
        return found


class Combiner:
    """Folds the rows of one task until the epoch ends, or until there are many.

    The first rows of each epoch tell whether keys repeat so much that it is worth it.

    Args:
        exchange: that the rows go through.
        combined: what they are folded for.
    """

    def __init__(self, exchange: Exchange, combined: Combined) -> None:
        self._reader, self._schema = combined.reader, combined.schema
        users = [field for field in exchange.schema if field.name not in HIDDEN]
        self._source = [field.name for field in users]
        self._aggregation = Aggregation(
            combined.reader.name, combined.reader.aggregates, pa.schema(users)
        )
        self._timed = len(users) < len(exchange.schema)
        self._window = getattr(combined.reader, "window", None)
        self._hops: Hops | None = None
        if isinstance(window := self._window, Hopping):
            self._hops = Hops(window.size_ms, window.every_ms, window.grace_ms)
        self._keys = list(exchange.keys)
        self._by = [_CELL, *(self._keys or [TOGETHER])]
        self._is_worth: bool | None = None
        self._chunks: list[Chunk] = []
        self._rows: list[pl.DataFrame] = []
        self._row_count = 0
        self._folded: list[pl.DataFrame] = []
        self._folded_count = 0

    def add(self, chunk: Chunk) -> tuple[list[Chunk], list[Chunk]]:
        """Take rows, with watermarks as the receiver sees them; return what is to be sent.

        Returns:
            Rows, and partial results.
        """
        if self._is_worth is False:
            return [chunk], []
        cells, is_plain = self._placed(chunk)
        others = []
        if is_plain is not None and not is_plain.all():
            others = [chunk.filter(~is_plain)]
            chunk, cells = chunk.filter(is_plain), cells[is_plain]
        if not chunk.rows:
            return others, []
        self._hold(chunk, cells)
        if self._is_worth is None and self._row_count >= SAMPLE_ROWS:
            self._is_worth = self._repeats()
            if not self._is_worth:
                return [*others, *self._let_go()], []
            self._chunks = []
        if self._is_worth and self._row_count >= FOLD_ROWS:
            self._fold()
        return others, self._sent() if self._folded_count >= HELD_ROWS else []

    def _hold(self, chunk: Chunk, cells: Ints) -> None:
        more = [pl.Series(_CELL, cells), *([] if self._keys else [together()])]
        self._rows.append(chunk.frame().select(self._source).with_columns(more))
        self._row_count += chunk.rows
        if self._is_worth is None:
            self._chunks.append(chunk)

    def flush(self) -> tuple[list[Chunk], list[Chunk]]:
        """End the epoch; return rows and partial results that are left."""
        is_worth, self._is_worth = self._is_worth, None
        if is_worth is None:  # so few that sending them takes less time than looking at them
            return self._let_go(), []
        self._fold()
        return [], self._sent()

    def _let_go(self) -> list[Chunk]:
        """Take the first rows as they came."""
        chunks, self._chunks = self._chunks, []
        self._rows, self._row_count = [], 0
        return chunks

    def _repeats(self) -> bool:
        """Say whether so many rows as are folded at a time are likely to leave few enough.

        As many keys as leave so many different ones of the first rows, all as frequent, would
        leave that many of more rows; keys that are not as frequent leave less.
        """
        sample = pl.concat([frame.select(self._by) for frame in self._rows])
        share = sample.n_unique() / sample.height
        low, high = 1e-3, 1e3  # keys for each row of the sample
        for _ in range(40):
            keys = (low * high) ** 0.5
            low, high = (keys, high) if -keys * np.expm1(-1 / keys) < share else (low, keys)
        scaled = low * sample.height / max(FOLD_ROWS, sample.height)
        return bool(-scaled * np.expm1(-1 / scaled) <= WORTH)

    def _placed(self, chunk: Chunk) -> tuple[Ints, Mask | None]:
        """Return the span of event time that each row counts in, and which rows are no others."""
        times, marks, window = chunk.times, chunk.watermarks, self._window
        every = self._reader.every_ms if isinstance(self._reader, RunningAggregate) else None
        if isinstance(window, GlobalWindow) or (window is None and every is None):
            return np.zeros(chunk.rows, np.int64), None
        assert times is not None
        assert marks is not None
        if self._hops is not None:
            panes, is_whole, _ = self._hops.placed(times, marks)
            return panes - 1, is_whole
        if every is not None:
            return np.maximum(times, marks) // every * every, None
        assert isinstance(window, Tumbling)
        ends = (times // window.size_ms + 1) * window.size_ms
        return ends - 1, ends + window.grace_ms > marks

    def _fold(self) -> None:
        if self._rows:
            rows = pl.concat(self._rows)
            cell = rows[_CELL].min()
            if cell == rows[_CELL].max():  # grouping by one column takes half the time
                only = pl.lit(cell, pl.Int64).alias(_CELL)
                folded = self._aggregation.reduced(rows, self._by[1:]).select(only, pl.all())
            else:
                folded = self._aggregation.reduced(rows, self._by)
            self._rows, self._row_count = [], 0
            self._folded.append(folded)
            self._folded_count += folded.height

    def _sent(self) -> list[Chunk]:
        folded, self._folded, self._folded_count = self._folded, [], 0
        if not folded:
            return []
        frame = folded[0]
        if len(folded) > 1:
            frame = self._aggregation.combined(pl.concat(folded), self._by)
        times = marks = None
        if self._timed:
            times = frame[_CELL].to_numpy()
            marks = np.full(frame.height, NO_WATERMARK)
        users = pa.schema([field for field in self._schema if field.name not in HIDDEN])
        batch = normalise(frame.select(users.names).to_arrow(), users)
        return [Chunk(batch, times, marks)]
