"""The node of aggregates and windows: rows gathered, folded, and results sent, all on columns.

Within an epoch rows are gathered, then folded to one row of partials for each key (and place of a
window); at its end these meet the stored rows in one batched read and one batched write.
``WindowNode`` is the one node of all windows: its assigner places rows, and its ``WindowState``
keeps them until its trigger says that results are due.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.graph.windows import LATE_SIDE, RETRACTION
from headrace.plan.stages import UNKEYED
from headrace.records.keys import key_groups, key_hashes
from headrace.records.schema import normalise
from headrace.runtime.chunk import Chunk, Groups, Ints, Mask
from headrace.runtime.node import Node
from headrace.runtime.orders import NO_WATERMARK, emit_time
from headrace.runtime.windows.aggregation import Aggregation, distinct, event_times, together
from headrace.runtime.windows.assigners import Assigner, CountAssigner
from headrace.runtime.windows.layouts import Clusters
from headrace.runtime.windows.partial_table import BUCKET, PartialTable
from headrace.runtime.windows.triggers import Accumulation, Trigger

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
        self.aggregation, self.table, self.keys = aggregation, table, table.keys
        self._schema, self._key_groups = schema, key_groups
        self._rows: list[tuple[pl.DataFrame, Groups]] = []
        self._row_count = self._row_bytes = 0
        self._partials: list[pl.DataFrame] = []
        self._partial_count = 0

    def frame(self, chunk: Chunk) -> pl.DataFrame:
        """Return rows with their key, which is a column of its own where all have the same."""
        frame = chunk.frame()
        return frame.with_columns(together()) if self.keys == [UNKEYED] else frame

    def gather(self, frame: pl.DataFrame, groups: Groups | None, heads: list[str]) -> None:
        """Keep rows until there are enough to fold; folded rows until enough to store."""
        assert groups is not None
        if self.table.partials[0] in frame.columns:  # folded by who sent them
            self._fold(heads)
            self._partials.append(frame[[*heads, *self.table.partials]])
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
            pieces = [self.aggregation.reduced(part, heads) for part in self._parts()]
            folded = pl.concat(pieces)[[*heads, *self.table.partials]]
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

    def folded(self, heads: list[str]) -> pl.DataFrame | None:
        """Take what was gathered: one row for each head."""
        self._fold(heads)
        if not self._partials:
            return None
        frame = self._partials[0]
        if len(self._partials) > 1:
            frame = self.aggregation.combined(pl.concat(self._partials), heads)
        self._partials, self._partial_count = [], 0
        return frame

    def _store(self) -> None:
        raise NotImplementedError

    def own_keys(self, chunk: Chunk) -> pa.RecordBatch:
        """Return the key columns that messages have."""
        return chunk.batch.select([key for key in self.keys if key != UNKEYED])

    def key_columns(self, frame: pl.DataFrame) -> tuple[pa.RecordBatch, Groups]:
        """Return the keys of rows, and the key group of each."""
        keys = normalise(frame[self.keys].to_arrow())
        groups = key_groups(key_hashes(keys.columns), self._key_groups)
        return keys, groups.astype(np.uint16)

    def results(
        self,
        keys: pa.RecordBatch,
        partials: pl.DataFrame,
        more: Mapping[str, pa.Array] | None = None,
    ) -> pa.RecordBatch:
        """Return messages: keys, ``more`` columns, and what users see of partials."""
        shown = normalise(self.aggregation.shown(partials).to_arrow())
        columns = {**_columns(keys), **(more or {}), **_columns(shown)}
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._schema.names)
        return normalise(batch, self._schema)


class RunningNode(AggregateNode):
    """``aggregate`` without ``every``: totals follow each message, or are only kept."""

    def push(self, chunk: Chunk) -> None:
        """Combine the rows into the totals."""
        if self.targets:
            heads, numbers = distinct(frame := self.frame(chunk), self.keys)
            following = self.table.accumulate(heads, numbers, self.aggregation.lifted(frame))
            self.emit(chunk.with_batch(self.results(self.own_keys(chunk), following)))
        else:
            self.gather(self.frame(chunk), chunk.groups, self.keys)

    def _store(self) -> None:
        frame = self.folded(self.keys)
        if frame is not None:
            self.table.add(frame)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Store what the epoch added."""
        self._store()


class WindowParts(NamedTuple):
    """What a window is composed of.

    ``clusters`` is how rows are numbered where what was sent is kept apart from what waits;
    ``delay_ms`` how far the node's watermark lags the one that rows came with; ``timed`` says
    whether results need an event time.
    """

    assigner: Assigner | CountAssigner
    trigger: Trigger
    accumulation: Accumulation
    clusters: Clusters | None = None
    delay_ms: int = 0
    timed: bool = True


class WindowNode(AggregateNode):
    """Windows of any kind.

    Args:
        common: what every ``AggregateNode`` takes.
        parts: assigner, trigger and accumulation mode.
        state: the class that keeps rows until they are due.
    """

    def __init__(self, *common: Any, parts: WindowParts, state: type[WindowState]) -> None:
        super().__init__(*common)
        self.parts, self._before = parts, NO_WATERMARK
        self._state = state(self)

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Know the watermark of the last epoch, from which it follows what was sent."""
        self._before = watermark
        self._state.begin(watermark)

    def push(self, chunk: Chunk) -> None:
        """Gather rows by key and place; one that is late for all windows is set aside."""
        assigner = self.parts.assigner
        if isinstance(assigner, CountAssigner):
            self._state.take(chunk)
            return
        assert chunk.times is not None
        assert chunk.watermarks is not None
        marks = chunk.watermarks - self.parts.delay_ms
        assigned = assigner.assign(chunk.times, marks)
        if not assigned.whole.all():
            self._set_aside(chunk, assigned.is_late)
        self._place(chunk.filter(assigned.whole), assigned.places)
        if len(assigned.rows):
            self._place(chunk.take(assigned.rows), assigned.more_places)

    def _set_aside(self, chunk: Chunk, is_late: Mask) -> None:
        """Count late rows, and send them to the side for them, if there is one."""
        if is_late.any():
            late = chunk.filter(is_late)
            self.counts["late"] += late.rows
            self.emit(late, LATE_SIDE)

    def _place(self, chunk: Chunk, places: Ints) -> None:
        if chunk.rows:
            assert chunk.times is not None
            assert chunk.watermarks is not None
            marks = chunk.watermarks - self.parts.delay_ms
            more = self._state.columns(places, chunk.times, marks)
            columns = [pl.Series(name, values) for name, values in more.items()]
            self.gather(self.frame(chunk).hstack(columns), chunk.groups, self._state.gathered)

    def _store(self) -> None:
        fresh = self.folded(self._state.gathered)
        if fresh is not None:
            self._state.store(fresh)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Send what the watermark makes due, and forget what is over."""
        self._state.advance(self.folded(self._state.gathered), watermark)

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the watermark at which something is due."""
        return self._state.deadline(), None

    def send(
        self,
        rows: pl.DataFrame,
        moments: Mapping[str, Ints],
        times: Ints,
        is_retraction: Mask | None = None,
    ) -> None:
        """Push a result for each row of keys and partials.

        Args:
            rows: in order.
            moments: columns of event times.
            times: the event time of each.
            is_retraction: which are taken back; ``None``: none.
        """
        keys, groups = self.key_columns(rows)
        more = {name: event_times(moment) for name, moment in moments.items()}
        batch = self.results(keys, rows, more | self._flags(len(times), is_retraction))
        unknown = np.full(len(times), NO_WATERMARK, np.int64)
        self.emit(Chunk(batch, times, unknown, groups))

    def send_with(
        self, chunk: Chunk, rows: pl.DataFrame, is_retraction: Mask | None = None
    ) -> None:
        """Push results with the messages that fill them, one for one."""
        flags = self._flags(chunk.rows, is_retraction)
        self.emit(chunk.with_batch(self.results(self.own_keys(chunk), rows, flags)))

    def send_last(self, rows: pl.DataFrame, is_retraction: Mask | None = None) -> None:
        """Push results at the end of the inputs, at the watermark before it."""
        keys, groups = self.key_columns(rows)
        batch = self.results(keys, rows, self._flags(rows.height, is_retraction))
        times = watermarks = None
        if self.parts.timed:
            times = np.full(batch.num_rows, emit_time(self._before))
            watermarks = np.full(batch.num_rows, NO_WATERMARK)
        self.emit(Chunk(batch, times, watermarks, groups))

    def _flags(self, rows: int, is_retraction: Mask | None) -> dict[str, pa.Array]:
        if not self.parts.accumulation.retracts:
            return {}
        flags = np.zeros(rows, bool) if is_retraction is None else is_retraction
        return {RETRACTION: pa.array(flags)}


class WindowState(ABC):
    """How the rows of a window are kept until they are due: see the module of each kind.

    Rows are in the table by ``heads``, and folded before that by ``gathered``.

    Args:
        node: sends results.
    """

    def __init__(self, node: WindowNode) -> None:
        self.node, self.table, self.aggregation = node, node.table, node.aggregation
        self.trigger, self.accumulation = node.parts.trigger, node.parts.accumulation
        self.heads = self.gathered = [BUCKET, *node.keys]
        self._open: set[int] | None = None

    def begin(self, watermark: int) -> None:  # noqa: B027  most follow from their table
        """Turn to an epoch; ``watermark`` is that of the last one."""

    def take(self, chunk: Chunk) -> None:
        """Take rows that no assigner places: windows by arrival."""
        raise NotImplementedError

    def columns(self, places: Ints, times: Ints, marks: Ints) -> dict[str, Ints]:
        """Return what rows get beside their own columns, the heads among it.

        Args:
            places: as the assigner says.
            times: event times.
            marks: the watermarks that rows came with.
        """
        return {BUCKET: places}

    @abstractmethod
    def store(self, fresh: pl.DataFrame) -> None:
        """Store folded rows before the end of the epoch, for there are many."""

    @abstractmethod
    def advance(self, fresh: pl.DataFrame | None, watermark: int) -> None:
        """Send results, with the rows of the epoch, folded by ``heads``."""

    @abstractmethod
    def deadline(self) -> int | None:
        """Return the watermark at which something is due, if any."""

    def opened(self) -> set[int]:
        """Return the buckets that the table holds; read from it when not yet known."""
        if self._open is None:
            self._open = self.table.buckets()
        return self._open

    def keep(self, fresh: pl.DataFrame | None) -> None:
        """Add folded rows to those in the table."""
        if fresh is not None and fresh.height:
            self.table.add(fresh)
            self.opened().update(fresh[BUCKET].unique().to_list())


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))
