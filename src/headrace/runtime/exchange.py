"""What a ``partition_by`` sends from one level to the next: exchange files, both sides.

Rows are kept for the epoch's file, or combined to partial results first where that is worth it.
``HotKeySketch`` looks for keys that most rows have, for people to look at; it changes nothing that
is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.files import Files
from headrace.graph.operators import RunningAggregate
from headrace.graph.windows import GlobalWindow, Hopping, Tumbling
from headrace.plan.stages import HIDDEN, UNKEYED, Combined, Exchange
from headrace.records.frame import encode_frame
from headrace.records.keys import encode_columns, group_bounds, key_groups, key_hashes
from headrace.records.schema import normalise
from headrace.records.xxh64 import UInt64s
from headrace.runtime.chunk import Chunk, Groups, Ints, Mask, from_exchange
from headrace.runtime.exchange_file import INDEX, TAIL, ExchangeReader, Starts
from headrace.runtime.node import Node
from headrace.runtime.orders import (
    NO_WATERMARK,
    REPORTED_KEYS,
    HotKey,
    HotKeys,
    SlotOrder,
)
from headrace.runtime.windows.aggregation import Aggregation, together
from headrace.runtime.windows.assigners import HoppingAssigner

COUNTERS = 256
BLOCK_ROWS = 64
DRAWN_ROWS = 2048
DRAWN_A_SECOND = 500
PACE_S = 2.0
REPORT_EVERY_S = 10.0
HALF_LIFE_S = 60.0
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HIGH = np.uint64(32)

Floats = npt.NDArray[np.float64]


class HotKeySketch:
    """A Misra-Gries sketch of the keys of some rows, each of which stands for as many as it was.

    A key with more than ``rows / (COUNTERS + 1)`` of the drawn rows is in it.

    Args:
        operator: the ``partition_by``.
        columns: of its key, at least one.
    """

    def __init__(self, operator: str, columns: tuple[str, ...]) -> None:
        self._operator, self._columns = operator, columns
        self._hashes: UInt64s = np.zeros(0, np.uint64)
        self._counts: Floats = np.zeros(0)
        self._keys: pa.RecordBatch | None = None
        self._rows = self._slack = 0.0
        self._drawn: list[pa.RecordBatch] = []
        self._weights: list[Floats] = []
        self._held, self._step, self._passed, self._lots = 0, 1.0, 0, 0
        self._paced_at: float | None = None
        self._paced_rows = 0
        self._reported_at: float | None = None
        self._reported_rows, self._new_rows = 0.0, 0

    def see(self, chunk: Chunk) -> None:
        """Draw from the rows of a chunk; holds on to none of its memory."""
        self._new_rows += chunk.rows
        self._passed += chunk.rows
        wanted = self._passed / self._step
        if wanted < BLOCK_ROWS and self._step > 1:  # so few from a chunk cost as much as more
            return
        places = self._places(chunk.rows, min(int(wanted), DRAWN_ROWS))
        rows = pa.array(places)
        columns = [chunk.batch.column(name).take(rows) for name in self._columns]
        self._drawn.append(pa.RecordBatch.from_arrays(columns, names=list(self._columns)))
        self._weights.append(np.full(len(places), self._passed / len(places)))
        self._held += len(places)
        self._paced_rows += self._passed
        self._passed = 0
        if self._held >= DRAWN_ROWS:
            self._fold()
            self._step *= 2  # so that many rows in a short time are drawn from more seldom

    def _places(self, rows: int, wanted: int) -> npt.NDArray[np.int64]:
        """Choose rows of a chunk: one of each of so many runs, at a place that does not repeat."""
        if wanted >= rows:
            return np.arange(rows)
        self._lots += wanted
        runs = np.arange(wanted)
        with np.errstate(over="ignore"):
            lots = (runs + self._lots).astype(np.uint64) * _GOLDEN >> _HIGH
        ends = (runs + 1) * rows // wanted
        begins = runs * rows // wanted
        return begins + (lots * (ends - begins).astype(np.uint64) >> _HIGH).astype(np.int64)

    def _fold(self) -> None:
        """Take in what was drawn."""
        if not self._drawn:
            return
        drawn = pa.concat_batches(self._drawn)
        weights = np.concatenate(self._weights)
        self._drawn, self._weights, self._held = [], [], 0
        hashes = np.concatenate([self._hashes, encode_columns(drawn.columns).hashes()])
        known = drawn if self._keys is None else pa.concat_batches([self._keys, drawn])
        every, places, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        sums = np.bincount(inverse, np.concatenate([self._counts, weights]))
        counts: Floats = np.asarray(sums, np.float64)
        self._rows += float(weights.sum())
        if len(counts) > COUNTERS:
            least = len(counts) - COUNTERS - 1
            cut = float(np.partition(counts, least)[least])
            counts, self._slack = counts - cut, self._slack + cut
        keep = counts > 0
        self._hashes, self._counts = every[keep], counts[keep]
        self._keys = known.take(pa.array(places[keep]))

    def report(self, now: float) -> HotKeys | None:
        """Return the heaviest keys, now and then; ``None`` when there is no news.

        First at once, then every ten seconds, or when there are twice as many rows.

        Args:
            now: of a monotonic clock, s.
        """
        self._pace(now)
        if not self._new_rows:
            return None
        since = REPORT_EVERY_S if self._reported_at is None else now - self._reported_at
        if since < REPORT_EVERY_S and self._new_rows < self._reported_rows:
            return None
        self._fold()
        if self._keys is None:
            return None
        if self._reported_at is not None:
            self._age(since)
        self._reported_at, self._reported_rows, self._new_rows = now, self._rows, 0
        order = np.lexsort((self._hashes, -self._counts))[:REPORTED_KEYS]
        names = encode_columns(self._keys.take(pa.array(order)).columns).to_list()
        pairs = zip(names, self._counts[order].tolist(), strict=True)
        keys = [HotKey(name, round(count, 1)) for name, count in pairs]
        rows, slack = round(self._rows, 1), round(self._slack, 1)
        return HotKeys(self._operator, self._columns, rows, slack, keys)

    def _pace(self, now: float) -> None:
        """Draw about so many rows a second, whatever goes through."""
        if self._paced_at is None or now - self._paced_at >= PACE_S:
            if self._paced_at is not None:
                rows = self._paced_rows + self._passed
                self._step = max(1.0, rows / (now - self._paced_at) / DRAWN_A_SECOND)
            self._paced_at, self._paced_rows = now, 0

    def _age(self, seconds: float) -> None:
        left = 0.5 ** (seconds / HALF_LIFE_S)
        self._counts = self._counts * left
        self._rows, self._slack = self._rows * left, self._slack * left


FRAME_ROWS, FRAME_BYTES = 1 << 20, 1 << 20


def _cuts(
    batch: pa.RecordBatch, bounds: Sequence[int], most_bytes: int | None
) -> list[tuple[int, int]]:
    """Return the first row of each frame that rows become, and the one after its last.

    A task that reads its own frames verifies none of other tasks, and they are sent to it as they
    are. So a frame ends where a task does, unless it were small.

    Args:
        batch: the rows.
        bounds: where those of each task begin, and where the last ones end.
        most_bytes: of a frame.
    """
    rows, size = batch.num_rows, max(1, batch.nbytes)
    least = FRAME_BYTES * rows // size
    most = max(1, rows if most_bytes is None else most_bytes * rows // size)
    cuts, begin = [], 0
    for bound in bounds[1:]:
        if bound - begin < least and bound < rows:
            continue
        cuts += [(at, min(at + most, bound)) for at in range(begin, bound, most)]
        begin = bound
    return cuts


def with_lag(chunk: Chunk, delay_ms: int) -> Chunk:
    """Return rows whose watermarks are behind by the lag of the stage that they go to."""
    if not delay_ms or chunk.watermarks is None:
        return chunk
    return replace(chunk, watermarks=chunk.watermarks - delay_ms)


class ExchangeWriter:
    """Collects one task's rows for one exchange and writes them at the end of the epoch.

    Args:
        schema: the exchange's columns, hidden ones included.
        keys: the key columns of the sending side.
        groups: number of key groups of the job.
    """

    def __init__(self, schema: pa.Schema, keys: tuple[str, ...], groups: int) -> None:
        self._schema, self._keys, self._groups = schema, keys, groups
        self._pieces: list[tuple[pa.RecordBatch, Groups]] = []
        self.rows = 0

    def add(self, chunk: Chunk) -> None:
        """Take the rows of a chunk; its columns must not change afterwards."""
        columns = [chunk.batch.column(name) for name in self._keys]
        hashes = key_hashes(columns or [pa.array(np.zeros(chunk.rows, np.int64))])
        groups = key_groups(hashes, self._groups).astype(np.uint16)
        self._pieces.append((chunk.to_exchange(self._schema), groups))
        self.rows += chunk.rows

    def write(
        self, files: Files, path: Path, tasks: int, most_bytes: int | None = None
    ) -> tuple[int, list[int]]:
        """Write the file and return its bytes and the rows for each of the tasks that receive it.

        It is not made durable: after a loss of power its epoch never happened.

        Args:
            files: the file system.
            path: of the file.
            tasks: how many receive it.
            most_bytes: about so large are frames at most; left out, as large as they come.
        """
        bounds = group_bounds(tasks, self._groups)
        positions, starts = [], []
        totals = np.zeros(self._groups, np.int64)

        def encoded() -> Iterator[list[bytes | pa.Buffer]]:
            nonlocal totals
            position = 0
            for batch, begins in self.frames():
                totals += np.diff(begins)
                for at, upto in _cuts(batch, begins[bounds].tolist(), most_bytes):
                    frame = encode_frame(batch.slice(at, upto - at))
                    positions.append(position)
                    starts.append(np.clip(begins, at, upto) - np.uint32(at))
                    yield frame
                    position += sum(map(len, frame))
            columns = [pa.array(positions, pa.int64()), pa.array(starts, INDEX[1].type)]
            yield [*encode_frame(pa.record_batch(columns, schema=INDEX)), TAIL.pack(position)]

        size = files.write_new(path, chain.from_iterable(encoded()), durable=False)
        before = np.concatenate([[0], np.cumsum(totals)])  # of each key group
        return size, np.diff(before[bounds]).tolist()

    def frames(self) -> Iterator[tuple[pa.RecordBatch, Starts]]:
        """Yield the rows sorted by key group, frame by frame, and where each group begins."""
        begin = 0
        while begin < len(self._pieces):
            end, rows = begin, 0
            while end < len(self._pieces) and (end == begin or rows < FRAME_ROWS):
                rows += self._pieces[end][0].num_rows
                end += 1
            batches, own = zip(*self._pieces[begin:end], strict=True)
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            groups = np.concatenate(own)
            order = np.argsort(groups, kind="stable")
            counts = np.bincount(groups, minlength=self._groups)
            begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
            yield batch.take(pa.array(order)), begins
            begin = end


def file_schema(exchange: Exchange, name: str) -> pa.Schema:
    """Return the columns of a file by what its name ends with."""
    return exchange.file_schemas.get(name.partition(".")[2], exchange.schema)


class ExchangeFiles:
    """The exchange files that a process writes and reads in the job's storage; one thread calls.

    Args:
        files: the file system.
        storage: of the job.
    """

    def __init__(self, files: Files, storage: Path) -> None:
        self.files, self._storage = files, storage
        self._readers: dict[Path, ExchangeReader] = {}

    def begin(self, order: SlotOrder) -> None:
        """Turn to an order, whose tasks share the files that they read."""
        self._readers.clear()

    def write(
        self, order: SlotOrder, name: str, writer: ExchangeWriter, tasks: int
    ) -> tuple[str, int, list[int]]:
        """Write a file; returns its path for reports, its bytes, and the rows for each task."""
        path = f"exchange/{name}"
        return path, *writer.write(self.files, self._storage / path, tasks)

    def read(self, order: SlotOrder, exchange: Exchange, first: int, last: int) -> Iterator[Chunk]:
        """Yield the rows that key groups ``first`` to before ``last`` are sent, file by file."""
        for path in order.exchange.get(exchange.operator, []):
            yield from self.rows_of(self._storage / path, exchange, first, last)

    def rows_of(self, path: Path, exchange: Exchange, first: int, last: int) -> Iterator[Chunk]:
        """Yield the rows of one file."""
        if path not in self._readers:
            schema = file_schema(exchange, path.name)
            self._readers[path] = ExchangeReader(self.files, path, schema)
        for batch, sizes in self._readers[path].slices(first, last):
            groups = np.arange(first, last, dtype=np.uint16)
            yield from_exchange(batch, np.repeat(groups, sizes))


SAMPLE_ROWS = 1 << 12
FOLD_ROWS = 1 << 17
HELD_ROWS = 1 << 20
MIN_REDUCTION = 0.5
"""A fold that leaves more than this part of its rows takes longer than it saves."""

_CELL = "__cell"


class ExchangeNode(Node):
    """``partition_by``, on the sending side.

    Args:
        exchange: that the rows go through.
        groups: number of key groups of the job.
        hot: sees the rows before they are combined, where heavy keys are looked for.
    """

    def __init__(self, exchange: Exchange, groups: int, hot: HotKeySketch | None = None) -> None:
        super().__init__(exchange.operator)
        self.exchange, self._groups, self.hot = exchange, groups, hot
        combined = exchange.combined
        self._combiner = None if combined is None else Combiner(exchange, combined)
        self._new_writers()

    def _new_writers(self) -> None:
        keys, schemas = self.exchange.keys, self.exchange.file_schemas.values()
        self._writers = [ExchangeWriter(schema, keys, self._groups) for schema in schemas]

    def push(self, chunk: Chunk) -> None:
        """Keep the rows for the file."""
        if self.hot is not None:
            self.hot.see(chunk)
        chunk = with_lag(chunk, self.exchange.delay_ms)
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
        named = zip(self.exchange.file_schemas, self._writers, strict=True)
        found = [(ending, writer) for ending, writer in named if writer.rows]
        self._new_writers()
        return found


class Combiner:
    """Folds the rows of one task until the epoch ends, or until there are many.

    The first rows of each epoch show whether keys repeat so much that it is worth it.

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
        self._hops: HoppingAssigner | None = None
        if isinstance(window := self._window, Hopping):
            self._hops = HoppingAssigner(window.size_ms, window.every_ms, window.grace_ms)
        self._keys = list(exchange.keys)
        self._by = [_CELL, *(self._keys or [UNKEYED])]
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
                return [*others, *self._rest()], []
            self._chunks = []
        if self._is_worth and self._row_count >= FOLD_ROWS:
            self._fold()
        return others, self._sent() if self._folded_count >= HELD_ROWS else []

    def _hold(self, chunk: Chunk, cells: Ints) -> None:
        more = [pl.Series(_CELL, cells), *([] if self._keys else [together()])]
        self._rows.append(chunk.frame()[self._source].with_columns(more))
        self._row_count += chunk.rows
        if self._is_worth is None:
            self._chunks.append(chunk)

    def flush(self) -> tuple[list[Chunk], list[Chunk]]:
        """End the epoch; return rows and partial results that are left."""
        is_worth, self._is_worth = self._is_worth, None
        if is_worth is None:  # so few that sending them takes less time than looking at them
            return self._rest(), []
        self._fold()
        return [], self._sent()

    def _rest(self) -> list[Chunk]:
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
        return bool(-scaled * np.expm1(-1 / scaled) <= MIN_REDUCTION)

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
        batch = normalise(frame[users.names].to_arrow(), users)
        return [Chunk(batch, times, marks)]
