"""Aggregates per key: running, and per event-time window, on columns from end to end.

Within an epoch rows are gathered, then folded to one row of partials for each key (and
window); at its end these meet the stored rows in one batched read and one batched write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.graph.windows import LATE_SIDE
from headrace.plan.stages import TOGETHER
from headrace.records.key_hashes import key_hashes
from headrace.records.keys import key_groups
from headrace.records.schema import normalise
from headrace.task.chunk import Chunk, Groups, Ints
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK
from headrace.task.windows.aggregation import Aggregation
from headrace.task.windows.heads import distinct, moments, together
from headrace.task.windows.partial_table import BUCKET, PartialTable

FLUSH_ROWS = 1 << 22
FLUSH_BYTES = 256 << 20
FOLD_ROWS = 1 << 17
"""Rows folded at a time: what their groups take then stays in the processor's cache."""


class AggregateNode(Node):
    """What running and windowed aggregates share: rows gathered, a table of partials.

    Args:
        name: of the operator.
        aggregation: its aggregates.
        table: where partials are kept.
        schema: of the results.
        key_groups: number of key groups of the job.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
    ) -> None:
        super().__init__(name)
        self._keys, self._schema = table.keys, schema
        self._aggregation, self._table, self._key_groups = aggregation, table, key_groups
        self._rows: list[tuple[pl.DataFrame, Groups]] = []
        self._row_count = self._row_bytes = 0
        self._partials: list[pl.DataFrame] = []
        self._partial_count = 0

    def _frame(self, chunk: Chunk) -> pl.DataFrame:
        """The rows with their key, which is a column of its own where all have the same."""
        frame = chunk.frame()
        return frame.with_columns(together()) if self._keys == [TOGETHER] else frame

    def _gather(self, frame: pl.DataFrame, groups: Groups | None, heads: list[str]) -> None:
        """Keep rows until there are enough to fold; folded rows until enough to store."""
        assert groups is not None
        if self._table.partials[0] in frame.columns:  # folded by who sent them
            self._fold(heads)
            self._partials.append(frame.select(*heads, *self._table.partials))
            self._partial_count += frame.height
        else:
            self._rows.append((frame, groups))
            self._row_count += frame.height
            self._row_bytes += int(frame.estimated_size())
        if self._row_count >= FLUSH_ROWS or self._row_bytes >= FLUSH_BYTES:
            self._fold(heads)
        if self._partial_count >= FLUSH_ROWS:
            self._store()

    def _fold(self, heads: list[str]) -> None:
        if self._rows:
            pieces = [self._aggregation.reduced(part, heads) for part in self._parts()]
            folded = pl.concat(pieces).select(*heads, *self._table.partials)
            self._rows, self._row_count, self._row_bytes = [], 0, 0
            self._partials.append(folded)
            self._partial_count += folded.height

    def _parts(self) -> Iterator[pl.DataFrame]:
        """Yield the gathered rows in parts that share no key: ranges of key groups."""
        count = self._row_count // FOLD_ROWS
        if count < 2 or not all((groups[1:] >= groups[:-1]).all() for _, groups in self._rows):
            yield pl.concat([frame for frame, _ in self._rows])
            return
        low = min(int(groups[0]) for _, groups in self._rows)
        high = max(int(groups[-1]) for _, groups in self._rows) + 1
        bounds = np.linspace(low, high, count + 1).astype(np.int64)
        cuts = [np.searchsorted(groups, bounds).tolist() for _, groups in self._rows]
        for number in range(count):
            slices = [
                frame.slice(cut[number], cut[number + 1] - cut[number])
                for (frame, _), cut in zip(self._rows, cuts, strict=True)
                if cut[number] < cut[number + 1]
            ]
            if slices:
                yield pl.concat(slices)

    def _folded(self, heads: list[str]) -> pl.DataFrame | None:
        """Take what was gathered: one row for each head."""
        self._fold(heads)
        if not self._partials:
            return None
        frame = self._partials[0]
        if len(self._partials) > 1:
            frame = self._aggregation.combined(pl.concat(self._partials), heads)
        self._partials, self._partial_count = [], 0
        return frame

    def _store(self) -> None:
        raise NotImplementedError

    def _own_keys(self, chunk: Chunk) -> pa.RecordBatch:
        """The key columns that messages have."""
        return chunk.batch.select([key for key in self._keys if key != TOGETHER])

    def _key_columns(self, frame: pl.DataFrame) -> tuple[pa.RecordBatch, Groups]:
        """Return the keys of rows, and the key group of each."""
        keys = normalise(frame.select(self._keys).to_arrow())
        groups = key_groups(key_hashes(keys.columns), self._key_groups)
        return keys, groups.astype(np.uint16)

    def _results(self, heads: pa.RecordBatch, partials: pl.DataFrame) -> pa.RecordBatch:
        results = normalise(self._aggregation.shown(partials).to_arrow())
        columns = {**_columns(heads), **_columns(results)}
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._schema.names)
        return normalise(batch, self._schema)


class RunningNode(AggregateNode):
    """``aggregate`` without ``every``: totals follow each message, or are only kept."""

    def push(self, chunk: Chunk) -> None:
        """Combine the rows into the totals."""
        if self.targets:
            self._follow(chunk, self._frame(chunk))
        else:
            self._gather(self._frame(chunk), chunk.groups, self._keys)

    def _store(self) -> None:
        frame = self._folded(self._keys)
        if frame is not None:
            self._table.add(frame)

    def _follow(self, chunk: Chunk, frame: pl.DataFrame) -> None:
        heads, numbers = distinct(frame, self._keys)
        rows = self._aggregation.lifted(frame)
        following = self._table.accumulate(heads, numbers, rows)
        batch = self._results(self._own_keys(chunk), following)
        self.emit(chunk.with_batch(batch))

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Store what the epoch added."""
        self._store()


class BucketNode(AggregateNode):
    """Partials per key and bucket of event time, handed on when the watermark passes it.

    A bucket is named by its end, ms; it closes at end + ``grace_ms``. ``delay_ms`` is how
    far the node's watermark lags the one that rows came with.
    """

    def __init__(
        self,
        name: str,
        aggregation: Aggregation,
        table: PartialTable[Any],
        schema: pa.Schema,
        key_groups: int,
        *,
        size_ms: int,
        grace_ms: int,
        delay_ms: int,
    ) -> None:
        super().__init__(name, aggregation, table, schema, key_groups)
        self._size, self._grace, self._delay = size_ms, grace_ms, delay_ms
        self._heads = [BUCKET, *self._keys]
        self._open: set[int] | None = None

    def _set_aside(self, chunk: Chunk, is_late: npt.NDArray[np.bool_]) -> None:
        """Count late rows, and send them to the side for them, if there is one."""
        if is_late.any():
            late = chunk.filter(is_late)
            self.counts["late"] += late.rows
            self.emit(late, LATE_SIDE)

    def _add(self, chunk: Chunk, ends: Ints) -> None:
        if chunk.rows:
            frame = self._frame(chunk).with_columns(pl.Series(BUCKET, ends))
            self._gather(frame, chunk.groups, self._heads)

    def _opened(self) -> set[int]:
        """The buckets that the table holds; read from it when not yet known."""
        if self._open is None:
            self._open = self._table.buckets()
        return self._open

    def _store(self) -> None:
        self._store_open(NO_WATERMARK)

    def _store_open(self, watermark: int) -> pl.DataFrame | None:
        """Store what is pending; return rows that the watermark closes unstored.

        A bucket that opens and closes within an epoch never meets the store, which is what
        most do when a job catches up with a long input.
        """
        frame = self._folded(self._heads)
        if frame is None:
            return None
        ends = frame[BUCKET].to_numpy()
        fresh = ends + self._grace <= watermark
        if fresh.any():
            fresh &= ~np.isin(ends, np.array(sorted(self._opened()), np.int64))
        kept = frame.filter(~fresh) if fresh.any() else frame
        if kept.height:
            self._table.add(kept)
            self._opened().update(kept[BUCKET].unique().to_list())
        return frame.filter(fresh) if fresh.any() else None

    def _closed(self, watermark: int) -> Iterator[pl.DataFrame]:
        """Take the rows of buckets that the watermark closes, in the order of buckets."""
        fresh = self._store_open(watermark)
        opened = self._opened()
        due = dict.fromkeys((end for end in opened if end + self._grace <= watermark), True)
        if fresh is not None:
            due |= dict.fromkeys(fresh[BUCKET].unique().to_list(), False)
        for stored, same in groupby(sorted(due.items()), key=lambda item: item[1]):
            ends = [end for end, _ in same]
            if stored:
                yield from self._table.take(ends[0], ends[-1])
                opened.difference_update(ends)
            else:
                assert fresh is not None
                mine = fresh.filter(pl.col(BUCKET).is_between(ends[0], ends[-1]))
                yield mine.sort(BUCKET, *self._keys)

    def _emit(
        self,
        frame: pl.DataFrame,
        heads: Mapping[str, Ints],
        partials: pl.DataFrame,
        flags: Mapping[str, bool | npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        """Push one row for each bucket and key, with its moments; its time is the bucket's last."""
        ends = frame[BUCKET].to_numpy()
        keys, groups = self._key_columns(frame)
        columns = _columns(keys)
        columns |= {name: moments(moment) for name, moment in heads.items()}
        for name, value in (flags or {}).items():
            columns[name] = pa.array(np.broadcast_to(value, len(ends)))
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        unknown = np.full(len(ends), NO_WATERMARK, np.int64)
        results = self._results(batch, partials)
        self.emit(Chunk(results, ends - 1, unknown, groups))

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the first open bucket closes."""
        opened = self._opened()
        return (min(opened) + self._grace if opened else None), None


class WindowNode(BucketNode):
    """``window(tumbling(...))``."""

    def push(self, chunk: Chunk) -> None:
        """Add rows to their windows; a late one is set aside."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        ends = (chunk.times // self._size + 1) * self._size
        timely = ends + self._grace > chunk.watermarks - self._delay
        self._set_aside(chunk, ~timely)
        self._add(chunk.filter(timely), ends[timely])

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit and forget the windows that the watermark closes."""
        for frame in self._closed(watermark):
            ends = frame[BUCKET].to_numpy()
            heads = {"window_start": ends - self._size, "window_end": ends}
            self._emit(frame, heads, frame)


class PeriodicNode(BucketNode):
    """``aggregate(every=...)``: totals so far, as of each multiple of event time.

    A record counts from the first instant that is neither before its own time nor before
    the watermark it came with, so no record is ever late and the log alone decides.
    """

    def push(self, chunk: Chunk) -> None:
        """Add rows to the bucket in which they will be counted."""
        self._add(chunk, (self._effective(chunk) // self._size + 1) * self._size)

    def _effective(self, chunk: Chunk) -> Ints:
        """The event time at which each record counts."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        return np.maximum(chunk.times, chunk.watermarks - self._delay)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Bring the totals to each instant that the watermark has passed, and emit them."""
        for frame in self._closed(watermark):
            heads, numbers = distinct(frame, self._keys)
            totals = self._table.accumulate(heads, numbers, frame)
            self._emit(frame, {"at": frame[BUCKET].to_numpy()}, totals)


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
