"""Aggregates per key: running, and per event-time window, on columns from end to end.

Within an epoch partial results are combined in memory, one row for each key (and window);
at its end they meet the stored rows in one batched read and one batched write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.graph.aggregates import Aggregate
from headrace.records.keys import decode_key, encode_columns, encode_key, encode_value
from headrace.records.schema import MAX_EVENT_TIME_MS, normalise
from headrace.state.store import KeyValueStore
from headrace.task.aggregation import Aggregation
from headrace.task.chunk import Chunk, Ints
from headrace.task.node import Node
from headrace.task.orders import NO_WATERMARK
from headrace.task.partials import AggregateTable

FLUSH_ROWS = 1 << 20
CLOSE_ROWS = 1 << 16
_GROUP, _BUCKET, _KEY = "__group", "__bucket", "__key"
_TOTAL = encode_key((None,))

Entry = tuple[bytes, bytes]


class AggregateNode(Node):
    """What running and windowed aggregates share: keys, partials, a table."""

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        aggregates: Sequence[tuple[str, Aggregate]],
        source: pa.Schema,
        schema: pa.Schema,
        store: KeyValueStore,
    ) -> None:
        super().__init__(name)
        self._keys, self._schema = list(keys), schema
        self._key_schema = pa.schema([source.field(key) for key in keys])
        self._aggregation = Aggregation(name, aggregates, source)
        self._table = AggregateTable(store, self._aggregation.codec, self._aggregation.combined)
        self._store = store

    def _full_keys(self, frame: pl.DataFrame, head: pa.Array | None = None) -> list[bytes]:
        columns = normalise(frame.select(self._keys).to_arrow()).columns
        encoded = encode_columns(columns if head is None else [head, *columns])
        return encoded.with_groups(frame[_GROUP].to_numpy())

    def _running(self, keys: list[bytes], rows: pl.DataFrame) -> pl.DataFrame:
        """Add rows to stored totals one after the other; return the totals after each.

        Args:
            keys: distinct full keys, shape (n,).
            rows: partials in order, shape (m,); column ``__key`` is the place in ``keys``.
        """
        old, present = self._table.lookup(keys)
        old = old.with_columns(pl.Series(_KEY, present, dtype=pl.Int64)).select(rows.columns)
        both = pl.concat([old, rows], how="vertical_relaxed")
        totals = self._aggregation.accumulated(both, _KEY)
        self._table.put(keys, totals.group_by(_KEY).last().sort(_KEY))
        return totals.slice(old.height)

    def _results(self, keys: pa.RecordBatch, partials: pl.DataFrame) -> pa.RecordBatch:
        results = normalise(self._aggregation.shown(partials).to_arrow())
        columns = {**_columns(keys), **_columns(results)}
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._schema.names)
        return normalise(batch, self._schema)


class RunningNode(AggregateNode):
    """``aggregate`` without ``every``: totals follow each message, or are only kept."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0

    def push(self, chunk: Chunk) -> None:
        """Combine the rows into the totals."""
        frame = chunk.frame().with_columns(pl.Series(_GROUP, chunk.groups))
        if self.targets:
            self._follow(chunk, frame)
            return
        grouped = self._aggregation.reduced(frame, self._keys, pl.col(_GROUP).first())
        self._pending.append(grouped)
        self._pending_rows += grouped.height
        if self._pending_rows > FLUSH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        frame = pl.concat(self._pending)
        if len(self._pending) > 1:
            frame = self._aggregation.combined(frame, self._keys, pl.col(_GROUP).first())
        frame = frame.sort(_GROUP, *self._keys)  # the store reads neighbours twice as quickly
        self._table.merge(self._full_keys(frame), frame)
        self._pending, self._pending_rows = [], 0

    def _follow(self, chunk: Chunk, frame: pl.DataFrame) -> None:
        # Not by a join: Polars 2.1 finds no partner for NaN where a side has one row.
        indexed = frame.with_row_index(_KEY).select(pl.col(_KEY).first().over(self._keys))
        firsts, numbers = np.unique(indexed.to_series().to_numpy(), return_inverse=True)
        keys = self._full_keys(frame[firsts])
        places = pl.Series(_KEY, numbers.astype(np.int64))
        following = self._running(keys, self._aggregation.lifted(frame, places))
        batch = self._results(chunk.batch.select(self._keys), following)
        self.emit(chunk.with_batch(batch))

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Store what the epoch added."""
        self._flush()


class BucketNode(AggregateNode):
    """Partials per key and bucket of event time, handed on when the watermark passes it.

    A bucket is named by its end, ms; it closes at end + ``grace_ms``. ``groups`` are the
    task's; ``delay_ms`` is how far the node's watermark lags the one that rows came with.
    """

    def __init__(self, *args: object, size_ms: int, grace_ms: int, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._size, self._grace = size_ms, grace_ms
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self._open: set[int] | None = None
        self.groups: tuple[int, int] = (0, 0)
        self.delay_ms = 0

    def _add(self, chunk: Chunk, ends: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if not chunk.rows:
            return
        frame = chunk.frame().with_columns(
            pl.Series(_GROUP, chunk.groups), pl.Series(_BUCKET, ends)
        )
        grouped = self._aggregation.reduced(frame, [_BUCKET, *self._keys], pl.col(_GROUP).first())
        self._pending.append(grouped)
        self._pending_rows += grouped.height
        if self._pending_rows > FLUSH_ROWS:
            self._flush()

    def _flush(self, watermark: int = NO_WATERMARK) -> list[Entry]:
        """Store what is pending; return the entries that the watermark closes unstored.

        A bucket that opens and closes within an epoch never meets the store, which is what
        most do when a job catches up with a long input.
        """
        if not self._pending:
            return []
        frame = pl.concat(self._pending)
        if len(self._pending) > 1:
            frame = self._aggregation.combined(
                frame, [_BUCKET, *self._keys], pl.col(_GROUP).first()
            )
        frame = frame.sort(_GROUP, _BUCKET, *self._keys)
        self._pending, self._pending_rows = [], 0
        ends = frame[_BUCKET].to_numpy()
        fresh = ends + self._grace <= watermark
        if fresh.any():
            fresh &= ~np.isin(ends, np.array(sorted(self._opened()), np.int64))
        kept = frame.filter(~fresh)
        if kept.height:
            self._table.merge(self._full_keys(kept, pa.array(ends[~fresh])), kept)
            self._opened().update(np.unique(ends[~fresh]).tolist())
        closed = frame.filter(fresh)
        keys = self._full_keys(closed, pa.array(ends[fresh])) if closed.height else []
        return list(zip(keys, self._table.encode(closed), strict=True))

    def _opened(self) -> set[int]:
        """The ends of buckets that the store holds; read from it when not yet known."""
        if self._open is None:
            self._open = set()
            for group in range(*self.groups):
                head = group.to_bytes(2, "big")
                low = head + b"\x10"
                while found := next(iter(self._store.scan(low, head + b"\x11")), None):
                    end = decode_key(found[0][2:11])[0]
                    self._open.add(end)
                    low = head + encode_value(end + 1)
        return self._open

    def _closed(self, watermark: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Take the entries of buckets that the watermark closes: keys and values.

        They come in the order of bucket and key, in batches of ``CLOSE_ROWS``.
        """
        entries = self._flush(watermark)
        due = [end for end in self._opened() if end + self._grace <= watermark]
        if due:
            last = encode_value(max(due)) + b"\xff"
            for group in range(*self.groups):
                head = group.to_bytes(2, "big")
                entries += self._store.scan(head + b"\x10", head + last)
        entries.sort(key=_after_group)
        stored = {encode_value(end) for end in due}
        for at in range(0, len(entries), CLOSE_ROWS):
            keys, values = zip(*entries[at : at + CLOSE_ROWS], strict=True)
            held = [key for key in keys if key[2:11] in stored]
            self._store.put_many(held, [None] * len(held))
            yield list(keys), list(values)
        self._opened().difference_update(due)

    def _decode_keys(self, keys: list[bytes]) -> pa.RecordBatch:
        rows = [decode_key(key[11:]) for key in keys]
        columns = zip(*rows, strict=True)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._key_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._key_schema)

    def _emit(self, keys: list[bytes], moments: Mapping[str, Ints], partials: pl.DataFrame) -> None:
        """Push one row for each bucket entry, with its moments; its time is the bucket's last."""
        ends = bucket_ends(keys)
        columns = _columns(self._decode_keys(keys))
        columns |= {name: _moments(moment) for name, moment in moments.items()}
        heads = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        groups = np.array([int.from_bytes(key[:2], "big") for key in keys], np.uint16)
        unknown = np.full(len(keys), NO_WATERMARK, np.int64)
        self.emit(Chunk(self._results(heads, partials), ends - 1, unknown, groups))

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the first open bucket closes."""
        opened = self._opened()
        return (min(opened) + self._grace if opened else None), None


class WindowNode(BucketNode):
    """``window(tumbling(...))``."""

    def push(self, chunk: Chunk) -> None:
        """Add rows to their windows; a late one is counted and dropped."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        ends = (chunk.times // self._size + 1) * self._size
        timely = ends + self._grace > chunk.watermarks - self.delay_ms
        kept = chunk.filter(timely)
        self.counts["late"] += chunk.rows - kept.rows
        self._add(kept, ends[timely])

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Emit and forget the windows that the watermark closes."""
        for keys, values in self._closed(watermark):
            ends = bucket_ends(keys)
            moments = {"window_start": ends - self._size, "window_end": ends}
            self._emit(keys, moments, self._table.decode(values))


class PeriodicNode(BucketNode):
    """``aggregate(every=...)``: totals so far, as of each multiple of event time.

    A record counts from the first instant that is neither before its own time nor before
    the watermark it came with, so no record is ever late and the log alone decides.
    """

    def push(self, chunk: Chunk) -> None:
        """Add rows to the bucket in which they will be counted."""
        assert chunk.times is not None
        assert chunk.watermarks is not None
        effective = np.maximum(chunk.times, chunk.watermarks - self.delay_ms)
        self._add(chunk, (effective // self._size + 1) * self._size)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Bring the totals to each instant that the watermark has passed, and emit them."""
        for keys, values in self._closed(watermark):
            totals = [key[:2] + _TOTAL + key[11:] for key in keys]
            rows = {key: row for row, key in enumerate(dict.fromkeys(totals))}
            numbers = pl.Series(_KEY, [rows[key] for key in totals], dtype=pl.Int64)
            added = self._table.decode(values).with_columns(numbers)
            self._emit(keys, {"at": bucket_ends(keys)}, self._running(list(rows), added))


def bucket_ends(keys: Sequence[bytes]) -> Ints:
    """Return the end of the bucket of each full key, ms; shape (n,)."""
    data = np.frombuffer(b"".join(key[3:11] for key in keys), ">u8")
    return (data.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)


def _after_group(entry: Entry) -> bytes:
    return entry[0][2:]


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _moments(moments_ms: Ints) -> pa.Array:
    # A window of the last year would end beyond what a timestamp's column may hold.
    shown = np.minimum(moments_ms, MAX_EVENT_TIME_MS - 1)
    return pa.array(shown * 1000).cast(pa.timestamp("us", tz="UTC"))
