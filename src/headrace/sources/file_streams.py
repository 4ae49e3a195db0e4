"""Files, and a range of a stream, as bounded streams that are read by offset.

A file is cut into splits: row groups of Parquet, batches of Arrow, stretches of lines of text. They
are counted when a run begins; the splits read last are kept.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bus import OffsetBatch, Stream, StreamSpec
from headrace.bus.read_only import ReadOnlyStream
from headrace.bus.readable import Taker
from headrace.errors import CorruptDataError, InvalidInputError
from headrace.records.schema import as_milliseconds, normalise
from headrace.sources.files import DecompressedFile, LineReader, codec_of, open_address, open_text
from headrace.sources.listing import ARROW, ROW_GROUP, BoundedSource, FileSplit, SourceFile
from headrace.sources.text_rows import BadLine, CsvRowReader, JsonRowReader

SPLIT_BYTES = 4 << 20
LEAST_READ = 1 << 16
MOST_BYTES = 16 << 20
"""Of a stretch that ends within a quoted field: behind it, a quote was not meant to open one."""


def parquet_splits(number: int, address: str) -> tuple[list[FileSplit], pa.Schema]:
    """Return the row groups of a file, and its columns.

    Raises:
        InvalidInputError: it is no Parquet.
    """
    with open_address(address) as source:
        try:
            file = pq.ParquetFile(source)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInputError(f"{address} cannot be read as Parquet: {reason}") from error
        meta = file.metadata
        units = [
            FileSplit(number, group, group + 1, ROW_GROUP, meta.row_group(group).num_rows)
            for group in range(meta.num_row_groups)
        ]
        return units, file.schema_arrow


def text_splits(number: int, address: str, *, is_csv: bool) -> tuple[list[FileSplit], str]:
    """Return stretches of whole rows of a file, by its plain bytes, and of CSV its line of names.

    Raises:
        CorruptDataError: it is compressed, and cannot be unpacked.
        InvalidInputError: of CSV, a quote opens a field that does not end.
    """
    header, units = "", []
    position = line = 0
    with open_text(address) as source:
        try:
            if is_csv:
                for first in _stretches(source, 1, is_csv=True):
                    header = first.decode("utf-8-sig", "replace").rstrip("\r\n")
                    position, line = position + len(first), line + first.count(b"\n")
                    if header:
                        break
                source.seek(position)
            for data in _stretches(source, SPLIT_BYTES, is_csv=is_csv):
                end = position + len(data)
                rows = _rows(data, is_csv=is_csv)
                units.append(FileSplit(number, position, end, line, rows))
                position, line = end, line + data.count(b"\n")
        except _UnclosedQuoteError as error:
            raise error.at_line(address, line) from None
    return [unit for unit in units if unit.rows], header


class _Ends:
    """Finds where rows end in bytes that grow, each looked through once.

    Args:
        is_csv: a line end within a quoted field ends no row.
    """

    def __init__(self, *, is_csv: bool) -> None:
        self._is_csv = is_csv
        self._seen, self.is_open = 0, False

    def find(self, data: bytes, wanted: int) -> int:
        """Return the first end of a row at or after so many bytes; below 0: it is not there yet."""
        while True:
            end = data.find(b"\n", max(wanted - 1, self._seen))
            if end < 0:
                return -1
            if self._is_csv:
                self.is_open ^= data.count(b'"', self._seen, end) % 2 == 1
            self._seen = end + 1
            if not self.is_open:
                self._seen = 0
                return end + 1


def _stretches(source: Any, wanted: int, *, is_csv: bool) -> Iterator[bytes]:
    """Yield whole lines, about so many bytes at a time; quoted fields of CSV stay whole.

    Raises:
        _EndlessError: a quoted field is longer than any is, or the file ends in it.
    """
    held, ends = b"", _Ends(is_csv=is_csv)
    while data := source.read(max(wanted, LEAST_READ)):
        held += data
        while len(held) >= wanted:
            end = ends.find(held, wanted)
            if end < 0:
                break
            yield held[:end]
            held = held[end:]
        if ends.is_open and len(held) > MOST_BYTES:
            raise _UnclosedQuoteError(held)
    if is_csv and held.count(b'"') % 2:
        raise _UnclosedQuoteError(held)
    if held:
        yield held


class _UnclosedQuoteError(Exception):
    """A quote opens a field of CSV that does not end.

    Args:
        data: whole rows up to that one, and what is behind it.
    """

    def __init__(self, data: bytes) -> None:
        self.behind, is_open = 0, False
        for at, line in enumerate(data.split(b"\n")):
            if line.count(b'"') % 2:
                self.behind = self.behind if is_open else at
                is_open = not is_open
        super().__init__()

    def at_line(self, address: str, line: int) -> InvalidInputError:
        """Return what to say about a file, when so many lines of it are before the data."""
        return InvalidInputError(
            f"{address} line {line + self.behind + 1}: a quote opens a field that is not closed; "
            'write the field in quotes, with each quote in it doubled: "5"" pipe"'
        )


def _rows(data: bytes, *, is_csv: bool) -> int:
    lines = data.split(b"\n")
    if not is_csv:
        return sum(1 for line in lines if line.strip())
    if b'"' not in data:
        return sum(1 for line in lines if line.removesuffix(b"\r"))
    rows = quotes = 0
    for line in lines:
        if quotes % 2 == 0 and not line.removesuffix(b"\r"):
            continue
        quotes += line.count(b'"')
        if quotes % 2 == 0:
            rows += 1
    return rows + (quotes % 2)


KEPT_SPLITS = 4
KEPT_OPEN = 4
"""Compressed files that stay open, so that the next stretch is not unpacked from the begin."""
Places = npt.NDArray[np.int64]


class SplitRows(NamedTuple):
    """Rows of a unit that could be read, their places in it, and the others."""

    batch: pa.RecordBatch
    places: Places
    bad: tuple[tuple[int, BadLine], ...]


class SplitReader:
    """Reads units of the files of one source, for one thread.

    Args:
        spec: of the stream that they stand for.
        form: of the files.
        files: by their numbers.
        is_filled: whether a column that a file lacks is null; else it is an error.
    """

    def __init__(
        self, spec: StreamSpec, form: str, files: Sequence[SourceFile], *, is_filled: bool
    ) -> None:
        self._spec, self._form, self._files, self._is_filled = spec, form, files, is_filled
        self._unpacking: OrderedDict[int, DecompressedFile] = OrderedDict()
        self._kept: OrderedDict[tuple[int, int, tuple[str, ...]], SplitRows] = OrderedDict()

    def read(self, unit: FileSplit, columns: Sequence[str]) -> SplitRows:
        """Return the rows of a unit.

        Raises:
            InvalidInputError: the file's columns do not fit, or it has changed since.
            UnavailableError: it cannot be read.
        """
        key = (unit.file, unit.begin, tuple(columns))
        found = self._kept.pop(key, None)
        if found is None and self._form == ARROW:
            found = self._arrow(unit, columns)
        elif found is None:
            is_parquet = unit.line == ROW_GROUP
            found = self._parquet(unit, columns) if is_parquet else self._text(unit, columns)
        self._kept[key] = found
        if len(self._kept) > KEPT_SPLITS:
            self._kept.popitem(last=False)
        return found

    def _parquet(self, unit: FileSplit, columns: Sequence[str]) -> SplitRows:
        address = self._files[unit.file].address
        with open_address(address) as source:
            try:
                size = source.size()
                file = pq.ParquetFile(source)
                there = [name for name in columns if name in file.schema_arrow.names]
                table = file.read_row_group(unit.begin, columns=there)
            except (pa.ArrowException, OSError, IndexError) as error:
                raise CorruptDataError(
                    f"{address} cannot be read: {str(error).splitlines()[0]}", file=address
                ) from error
        if size != self._files[unit.file].bytes or table.num_rows != unit.rows:
            raise self._changed(address)
        fields = [self._spec.schema.field(name) for name in columns]
        for field in fields:
            if field.name not in table.schema.names:
                table = table.append_column(field, self._filling(field, unit.rows, address))
        try:
            batch = normalise(table.select(list(columns)), pa.schema(fields))
        except InvalidInputError as error:
            raise InvalidInputError(f"{address}: {error.message}") from error
        return SplitRows(batch, np.arange(unit.rows), ())

    def _arrow(self, unit: FileSplit, columns: Sequence[str]) -> SplitRows:
        """Map a batch of what was written of a DataFrame; nothing else writes there."""
        address = self._files[unit.file].address
        try:
            with pa.memory_map(address) as source:
                batch = pa.ipc.open_file(source).get_batch(unit.begin)
        except (pa.ArrowException, OSError, IndexError) as error:
            raise CorruptDataError(
                f"{address}, with rows of a Spark DataFrame, cannot be read: "
                f"{str(error).splitlines()[0]}; put it back, or start over with headrace jobs "
                "delete",
                file=address,
            ) from error
        fields = [self._spec.schema.field(name) for name in columns]
        batch = normalise(batch.select(list(columns)), pa.schema(fields))
        return SplitRows(batch, np.arange(unit.rows), ())

    def _filling(self, field: pa.Field, rows: int, address: str) -> pa.Array:
        if not self._is_filled:
            raise InvalidInputError(
                f"{address} has no column {field.name!r}; expected those of stream "
                f"{self._spec.name!r}: {', '.join(self._spec.schema.names)}"
            )
        return pa.nulls(rows, field.type)

    def _text(self, unit: FileSplit, columns: Sequence[str]) -> SplitRows:
        file = self._files[unit.file]
        data = self._bytes(file, unit)
        if len(data) != unit.end - unit.begin:
            raise self._changed(file.address)
        taken: list[BadLine] = []
        lines = CsvRowReader if self._form == "csv" else JsonRowReader
        reader = lines(file.address, self._spec, taken.append)
        before = unit.line
        if self._form == "csv":
            data, before = file.header.encode() + b"\n" + data, before - 1
        chunks = list(reader.chunks(LineReader(io.BytesIO(data)), 1 << 30))
        numbers = [number for chunk in chunks for number in chunk.numbers]
        if len(numbers) != unit.rows:
            raise self._changed(file.address)
        batches = [reader.batch(chunk) for chunk in chunks]
        batch = pa.concat_batches(batches)
        row_of = {number: row for row, number in enumerate(numbers)}
        bad = tuple(
            (row_of[one.line], one._replace(line=one.line + before)) for one in sorted(taken)
        )
        places = np.delete(np.arange(unit.rows), [row for row, _ in bad])
        return SplitRows(batch.select(list(columns)), places, bad)

    def _bytes(self, file: SourceFile, unit: FileSplit) -> bytes:
        """Read a stretch of text; a compressed file stays open where it was read to."""
        if codec_of(file.address) is None:
            with open_address(file.address) as source:
                if source.size() < unit.end:  # some file systems refuse to seek behind the end
                    raise self._changed(file.address)
                source.seek(unit.begin)
                data: bytes = source.read(unit.end - unit.begin)
                return data
        opened = self._unpacking.pop(unit.file, None)
        if opened is None:
            with open_address(file.address) as source:
                if source.size() != file.bytes:
                    raise self._changed(file.address)
            opened = open_text(file.address)
        self._unpacking[unit.file] = opened
        if len(self._unpacking) > KEPT_OPEN:
            self._unpacking.popitem(last=False)[1].close()
        opened.seek(unit.begin)
        found: bytes = opened.read(unit.end - unit.begin)
        return found

    @staticmethod
    def _changed(address: str) -> InvalidInputError:
        return InvalidInputError(
            f"{address} has changed since the run began, which goes by the rows that it had; put "
            "it back, or start over"
        )


class _TimeRange:
    """Leaves out rows whose event time is outside of a range."""

    def __init__(self, spec: StreamSpec, source: BoundedSource) -> None:
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


class BoundedFileStream(ReadOnlyStream):
    """Rows of files.

    Args:
        name: of the stream that they stand for.
        source: the files.
    """

    def __init__(self, name: str, source: BoundedSource) -> None:
        super().__init__(source.spec(name), source.said)
        self._source = source
        self._starts = [
            [0, *accumulate(unit.rows for unit in units)] for units in source.partitions
        ]
        self._units = SplitReader(self.spec, source.form, source.files, is_filled=source.is_filled)
        self._times = _TimeRange(self.spec, source)
        self._take: Taker | None = None

    def refusing(self, take: Taker) -> BoundedFileStream:
        """Return the same stream, whose rows that cannot be read go to a function."""
        other = BoundedFileStream.__new__(BoundedFileStream)
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


class RangeStream(ReadOnlyStream):
    """A range of a stream, by offsets or event times.

    Args:
        name: of the input.
        source: the range.
        stream: that it is of.
    """

    def __init__(self, name: str, source: BoundedSource, stream: Stream) -> None:
        super().__init__(source.spec(name), source.said)
        self._source, self._stream = source, stream
        self.identity = stream.identity
        self._times = _TimeRange(self.spec, source)

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
