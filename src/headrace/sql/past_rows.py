"""The rows that were sent to a table's stream, of which queries read few.

``PastRows`` knows for each frame its least and greatest moments, and for the columns that queries
have given values of, a hash of each row's value. A ``Wanted`` says which rows a query can use.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.bus import OffsetGoneError, Stream
from headrace.errors import InvalidInputError, UnavailableError

Ints = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Times = Mapping[str, tuple[int | None, int | None]]

MOMENT = pa.timestamp("us", tz="UTC")
TRIES = 20
_CACHE_BYTES = 128 << 20
_EARLIEST, _LATEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Wanted:
    """Which rows of a table a query can use: those with one of some values, and within some times.

    ``values`` are by column. ``times`` are the least and the greatest moment by column, in
    microseconds since 1970; ``None`` is no bound.
    """

    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    times: Times = field(default_factory=dict)


class _GrowingArray:
    """An array that rows are added to."""

    def __init__(self, kind: Any) -> None:
        self._data, self._count = np.empty(16, kind), 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add some at the end."""
        end = self._count + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[: self._count] = self._data[: self._count]
            self._data = grown
        self._data[self._count : end] = values
        self._count = end

    @property
    def all(self) -> npt.NDArray[Any]:
        """All of them; a view."""
        return self._data[: self._count]


class _Partition:
    """What is known of one partition: where each frame is, its times, hashes of its rows."""

    def __init__(self, begin: int, times: Iterable[str]) -> None:
        self.next = begin
        self.first, self.behind = _GrowingArray(np.int64), _GrowingArray(np.int64)
        self._times = {n: (_GrowingArray(np.int64), _GrowingArray(np.int64)) for n in times}
        self.hashes: dict[str, _GrowingArray] = {}

    def add(self, offset: int, batch: pa.RecordBatch) -> None:
        """Add the next frame."""
        self.next = offset + batch.num_rows
        self.first.add(np.array([offset]))
        self.behind.add(np.array([self.next]))
        for name, (lows, highs) in self._times.items():
            moments = batch.column(name).drop_null().cast(pa.int64())
            found = moments.to_numpy(zero_copy_only=False)
            lows.add(np.array([found.min(initial=_LATEST)]))
            highs.add(np.array([found.max(initial=_EARLIEST)]))
        for name, hashes in self.hashes.items():
            hashes.add(_hashes(batch.column(name)))

    def is_mostly_before(self, offset: int) -> bool:
        """Say whether most of the rows are before an offset."""
        first = int(self.first.all[0]) if len(self.first.all) else offset
        return 2 * (offset - first) > self.next - first

    def frames(self, begin: int, end: int, times: Times) -> Ints:
        """Return the frames between two offsets that can have rows within some times."""
        is_wanted = (self.first.all < end) & (self.first.all >= begin)
        for name, (low, high) in times.items():
            lows, highs = self._times[name]
            is_wanted &= True if low is None else highs.all >= low
            is_wanted &= True if high is None else lows.all <= high
        found: Ints = np.flatnonzero(is_wanted)
        return found

    def rows(self, frames: Ints, end: int, values: Mapping[str, UInt64s]) -> Ints:
        """Return the offsets of rows before an offset, in some frames, that can have values.

        Args:
            frames: at least one.
            end: the offset.
            values: their hashes by column.
        """
        origin, low = (int(self.first.all[at]) for at in (0, frames[0]))
        high = int(self.behind.all[frames[-1]])
        is_wanted = np.ones(high - low, bool)
        for name, hashes in values.items():
            mine = self.hashes[name].all[low - origin : high - origin]
            is_wanted &= mine == hashes[0] if len(hashes) == 1 else np.isin(mine, hashes)
        found: Ints = np.flatnonzero(is_wanted) + low
        found = found[found < end]
        if len(frames) <= frames[-1] - frames[0]:
            found = found[np.isin(self.frames_of(found), frames)]
        return found

    def frames_of(self, offsets: Ints) -> Ints:
        """Return the frame in which each row is."""
        found: Ints = np.searchsorted(self.behind.all, offsets, "right")
        return found


def _hashes(column: pa.Array) -> UInt64s:
    found: UInt64s = pl.Series(pl.from_arrow(column)).hash().to_numpy()
    return found


@lru_cache(maxsize=1024)
def _hashes_of(values: tuple[Any, ...], kind: pa.DataType) -> UInt64s:
    return _hashes(pa.array(values, kind))


class PastRows:
    """The rows of a stream, of which only those that are wanted are read.

    Frames are looked at once, as they come. From any thread, one at a time.

    Args:
        stream: that is appended to.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._schema = self.stream.spec.schema
        moments = [one.name for one in self._schema if one.type == MOMENT]
        self._partitions = [_Partition(begin, moments) for begin in self.stream.begins()]
        self._frames: OrderedDict[tuple[int, int], pa.RecordBatch] = OrderedDict()
        self._bytes = 0

    def read(self, ends: Sequence[int], wanted: Wanted, most: int) -> pa.Table:
        """Return rows below some offsets: all that are wanted, and maybe others.

        Args:
            ends: of each partition.
            wanted: which ones.
            most: how many rows may be read.

        Raises:
            InvalidInputError: more would have to be read.
            UnavailableError: the stream was cut again and again.
        """
        with self._lock:
            for _ in range(TRIES):
                begins = self.stream.begins()
                held = zip(self._partitions, begins, strict=False)
                if (
                    self._schema != self.stream.spec.schema
                    or len(begins) != len(self._partitions)
                    or any(part.is_mostly_before(begin) for part, begin in held)
                ):
                    self._begin()
                with suppress(OffsetGoneError):
                    found, size = [self._schema.empty_table()], 0
                    for number, bounds in enumerate(zip(begins, ends, strict=True)):
                        found.append(self._read(number, *bounds, wanted, most - size))
                        size += found[-1].num_rows
                    return pa.concat_tables(found)
                self._begin()
        raise UnavailableError(f"stream {self.stream.spec.name!r} was cut while it was read")

    def _read(self, number: int, begin: int, end: int, wanted: Wanted, most: int) -> pa.Table:
        spec = self.stream.spec
        if spec.compact:  # whose offsets have gaps, and whose frames are replaced
            found = [one.batch for one in self.stream.read(number, begin, max(begin, end))]
            return pa.Table.from_batches(found, self._schema)
        part = self._partitions[number]
        self._look(number, end, list(wanted.values))
        frames = part.frames(begin, end, wanted.times)
        if not len(frames):
            return self._schema.empty_table()
        if wanted.values:
            kinds = {name: self._schema.field(name).type for name in wanted.values}
            hashes = {name: _hashes_of(one, kinds[name]) for name, one in wanted.values.items()}
            rows = part.rows(frames, end, hashes)
            size = len(rows)
        else:
            size = int((np.minimum(part.behind.all[frames], end) - part.first.all[frames]).sum())
        if size > most:
            raise InvalidInputError(
                f"the query reads too many rows of stream {spec.name!r}; add a condition on the "
                "key or on window_start"
            )
        if not wanted.values:
            batches = [self._frame(number, one) for one in frames.tolist()]
            return pa.Table.from_batches(batches, self._schema).slice(0, size)
        used, at = np.unique(part.frames_of(rows), return_inverse=True)
        batches = [self._frame(number, one) for one in used.tolist()]
        ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        starts = ends - part.behind.all[used]  # of each frame: its place here, less its offset
        return pa.Table.from_batches(batches, self._schema).take(pa.array(starts[at] + rows))

    def _look(self, number: int, end: int, columns: Sequence[str]) -> None:
        """Look at frames that came since, and at all of them for a column that is new."""
        part = self._partitions[number]
        fresh = {name: _GrowingArray(np.uint64) for name in columns if name not in part.hashes}
        if fresh and len(part.first.all):
            # Kept once they are complete: if rows are cut off meanwhile, all begins again.
            for one in self.stream.read(
                number, int(part.first.all[0]), part.next, columns=list(fresh)
            ):
                for name, hashes in fresh.items():
                    hashes.add(_hashes(one.batch.column(name)))
        part.hashes |= fresh
        if part.next < end:
            for one in self.stream.read(number, part.next, end):
                part.add(one.first_offset, one.batch)
                self._keep((number, one.first_offset), one.batch)

    def _frame(self, number: int, frame: int) -> pa.RecordBatch:
        part = self._partitions[number]
        first, behind = int(part.first.all[frame]), int(part.behind.all[frame])
        held = self._frames.get((number, first))
        if held is None:
            [held] = [one.batch for one in self.stream.read(number, first, behind)]
            self._keep((number, first), held)
        self._frames.move_to_end((number, first))
        return held

    def _keep(self, key: tuple[int, int], batch: pa.RecordBatch) -> None:
        self._frames[key] = batch
        self._bytes += batch.nbytes
        while self._bytes > _CACHE_BYTES and len(self._frames) > 1:
            self._bytes -= self._frames.popitem(last=False)[1].nbytes
