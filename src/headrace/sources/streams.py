"""Files, and a range of a stream, as streams that are read by offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from headrace.bus.bus import Stream
from headrace.bus.spec import OffsetBatch, StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.schema import as_milliseconds
from headrace.sources.listing import Source
from headrace.sources.read_only import ReadOnly
from headrace.sources.unit_rows import Places, Taker, UnitReader


class _Times:
    """Leaves out rows whose event time is outside of a range."""

    def __init__(self, spec: StreamSpec, source: Source) -> None:
        self._column, self._low, self._high = spec.time, source.begin_ms, source.end_ms

    @property
    def is_any(self) -> bool:
        return self._low is None and self._high is None

    def read(self, columns: Sequence[str]) -> list[str]:
        """The columns to read so that times can be looked at."""
        more = () if self.is_any or self._column is None else (self._column,)
        return list(dict.fromkeys((*columns, *more)))

    def rows(self, batch: pa.RecordBatch) -> Places | None:
        """The rows that count; ``None``: all."""
        if self.is_any or self._column is None:
            return None
        times = as_milliseconds(batch.column(self._column))
        known = times.is_valid().to_numpy(zero_copy_only=False)
        values = times.fill_null(0).to_numpy()
        fits = np.ones(len(values), np.bool_)
        if self._low is not None:
            fits &= values >= self._low
        if self._high is not None:
            fits &= values < self._high
        found = np.flatnonzero(fits | ~known)  # what has no time is refused later on
        return None if len(found) == len(values) else found


class FileStream(ReadOnly):
    """Rows of files.

    Args:
        name: of the stream that they stand for.
        source: the files.
    """

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(source.spec(name), source.said)
        self._source = source
        self._starts = [
            [0, *accumulate(unit.rows for unit in units)] for units in source.partitions
        ]
        self._units = UnitReader(self.spec, source.form, source.files, is_filled=source.is_filled)
        self._times = _Times(self.spec, source)
        self._take: Taker | None = None

    def refusing(self, take: Taker) -> FileStream:
        """Return the same stream, whose rows that cannot be read go to a function."""
        other = FileStream.__new__(FileStream)
        other.__dict__ = {**self.__dict__, "_take": take}
        return other

    def ends(self) -> list[int]:
        """Return how many rows each partition has."""
        return [starts[-1] for starts in self._starts]

    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the rows of [start, stop), a unit at a time; see ``Stream.read``."""
        starts = self._starts[partition]
        end = starts[-1] if stop is None else min(stop, starts[-1])
        if max_rows is not None:
            end = min(end, start + max_rows)
        wanted = self.spec.schema.names if columns is None else list(columns)
        read = 0
        while start < end:
            number = bisect_right(starts, start) - 1
            first = starts[number]
            upto = min(end, starts[number + 1])
            found = self._part(partition, number, (start - first, upto - first), wanted, first)
            yield found
            start = upto
            read += found.batch.nbytes
            if max_bytes is not None and read >= max_bytes:
                return

    def _part(
        self,
        partition: int,
        number: int,
        rows: tuple[int, int],
        columns: Sequence[str],
        first: int,
    ) -> OffsetBatch:
        """Return rows of a unit, by their places in it."""
        unit = self._source.partitions[partition][number]
        found = self._units.read(unit, self._times.read(columns))
        for place, bad in found.bad:
            if rows[0] <= place < rows[1]:
                address = self._source.files[unit.file].address
                error = InvalidInputError(f"{address} line {bad.line}: {bad.message}")
                if self._take is None:
                    raise error
                self._take(first + place, bad.data, error)
        low, high = np.searchsorted(found.places, rows)
        batch = found.batch.slice(low, high - low)
        places = found.places[low:high]
        fits = self._times.rows(batch)
        if fits is not None:
            batch, places = batch.take(pa.array(fits)), places[fits]
        return _batch(batch.select(list(columns)), first + rows[0], first + places, first + rows[1])


class RangeStream(ReadOnly):
    """A range of a stream, by offsets or event times.

    Args:
        name: of the input.
        source: the range.
        stream: that it is of.
    """

    def __init__(self, name: str, source: Source, stream: Stream) -> None:
        super().__init__(source.spec(name), source.said)
        self._source, self._stream = source, stream
        self._times = _Times(self.spec, source)

    def begins(self) -> list[int]:
        """Return where the range begins; later where the stream was trimmed since."""
        there = self._stream.begins()
        return [max(one, own) for one, own in zip(there, self._source.begins, strict=False)]

    def ends(self) -> list[int]:
        """Return where it ends."""
        return list(self._source.ends)

    def read(
        self,
        partition: int,
        start: int,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Iterator[OffsetBatch]:
        """Yield the rows of [start, stop) that count; see ``Stream.read``."""
        end = self._source.ends[partition]
        end = end if stop is None else min(stop, end)
        wanted = self.spec.schema.names if columns is None else list(columns)
        parts = self._stream.read(
            partition,
            start,
            end,
            columns=self._times.read(wanted),
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
        for part in parts:
            fits = self._times.rows(part.batch)
            batch, places = part.batch, part.offsets
            if fits is not None:
                batch, places = batch.take(pa.array(fits)), places[fits]
            yield _batch(batch.select(wanted), part.first_offset, places, part.next_offset)


def _batch(batch: pa.RecordBatch, first: int, offsets: Places, behind: int) -> OffsetBatch:
    if len(offsets) == behind - first:
        return OffsetBatch(first, batch)
    return OffsetBatch(first, batch, offsets, behind)
