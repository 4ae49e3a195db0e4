"""Batches of the lines of a file, a pipe or a topic: JSON, CSV, or plain text.

A reader cuts lines into chunks, reads these as columns, and what does not fit row by row, by
``row_decoder``. Lines that cannot be read go to a function, or are an error that names the line.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.bus import StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.schema import event_times, type_text
from headrace.sources.files import LineReader
from headrace.sources.row_decoder import LINE, ColumnReader, RowDecoder, UnfitRowError

_BOM = b"\xef\xbb\xbf"
_QUOTED_LINES = 1_000_000
"""Lines that one quoted field may go over, before it is taken for a quote that nothing ends."""


class BadLine(NamedTuple):
    """A line of a file, and what is wrong with it."""

    line: int
    message: str
    data: bytes


class RowChunk(NamedTuple):
    """Rows of a file as bytes, each with the number of its last line."""

    lines: list[bytes]
    numbers: Sequence[int]

    def after(self, skip: int) -> RowChunk:
        """Return the rows behind the first ones."""
        return RowChunk(self.lines[skip:], self.numbers[skip:]) if skip else self


class _Row(NamedTuple):
    number: int
    data: bytes
    value: Any


class TextRowReader(ABC):
    """Rows of one file.

    Args:
        name: of the file, for errors.
        spec: of the stream.
        on_bad: takes each row that does not fit; ``None``: it is an error.
        ignores_others: as of ``ColumnReader``.
    """

    def __init__(
        self,
        name: str,
        spec: StreamSpec,
        on_bad: Callable[[BadLine], None] | None,
        *,
        ignores_others: bool = False,
    ) -> None:
        self.name, self.spec, self._on_bad = name, spec, on_bad
        self.rows = RowDecoder(spec, ignores_others=ignores_others)
        self.columns = ColumnReader(spec, ignores_others=ignores_others)

    @abstractmethod
    def chunks(self, source: LineReader, most: int) -> Iterator[RowChunk]:
        """Yield the rows of the file, ``most`` at a time unless the input pauses."""

    @abstractmethod
    def fast(self, chunk: RowChunk) -> pa.RecordBatch | None:
        """Return the rows as columns; ``None`` where each has to be looked at."""

    @abstractmethod
    def value(self, data: bytes) -> Any:
        """Return one row.

        Raises:
            InvalidInputError: it does not fit.
        """

    def batch(self, chunk: RowChunk) -> pa.RecordBatch:
        """Return the rows of a chunk that fit.

        Raises:
            InvalidInputError: one does not, and nobody takes it; with its line.
        """
        made = self.fast(chunk) if chunk.lines else None
        if made is not None and first_bad_time(made, self.spec) is None:
            return made
        rows = []
        for number, data in zip(chunk.numbers, chunk.lines, strict=True):
            try:
                rows.append(_Row(number, data, self.value(data)))
            except InvalidInputError as error:
                self._bad(number, data, error)
        while True:
            try:
                made = self.rows.batch([row.value for row in rows])
                bad = first_bad_time(made, self.spec)
            except UnfitRowError as error:
                bad = error
            if bad is None:
                return made
            row = rows.pop(bad.row)
            self._bad(row.number, row.data, bad)

    def _bad(self, number: int, data: bytes, error: InvalidInputError) -> None:
        if self._on_bad is None:
            raise InvalidInputError(f"{self.name} line {number}: {error.message}") from error
        self._on_bad(BadLine(number, error.message, data))


class JsonRowReader(TextRowReader):
    """A JSON object a line; blank lines do not count."""

    def chunks(self, source: LineReader, most: int) -> Iterator[RowChunk]:
        """Yield the rows of the file."""
        first = 1
        for lines in source.chunks(most):
            if first == 1:
                lines[0] = lines[0].removeprefix(_BOM)
            numbers: Sequence[int] = range(first, first + len(lines))
            first += len(lines)
            blank = [at for at, line in enumerate(lines) if not line or line.isspace()]
            if blank:
                skip = set(blank)
                numbers = [n for at, n in enumerate(numbers) if at not in skip]
                lines = [line for at, line in enumerate(lines) if at not in skip]  # noqa: PLW2901
            if lines:
                yield RowChunk(lines, numbers)

    def fast(self, chunk: RowChunk) -> pa.RecordBatch | None:
        """Return the rows as columns, if nothing is special about them."""
        return self.columns.from_json(chunk.lines)

    def value(self, data: bytes) -> Any:
        """Return one row."""
        return self.rows.from_json(data)


class LineRowReader(TextRowReader):
    """Each line is a row with the column ``line``, also a blank one.

    Raises:
        InvalidInputError: the stream has no such column of text, or has an event time.
    """

    def __init__(
        self, name: str, spec: StreamSpec, on_bad: Callable[[BadLine], None] | None
    ) -> None:
        super().__init__(name, spec, on_bad)
        columns = ", ".join(f"{field.name}:{type_text(field.type)}" for field in spec.schema)
        if LINE not in spec.schema.names or spec.schema.field(LINE).type != pa.string():
            raise InvalidInputError(
                f"stream {spec.name!r} has the columns {columns}; for lines of text, expected "
                f"{LINE}:string",
                stream=spec.name,
            )
        if spec.time is not None:
            raise InvalidInputError(
                f"stream {spec.name!r} needs the event time {spec.time!r}, which lines of text do "
                "not have; append them to a stream without event time",
                stream=spec.name,
            )

    def chunks(self, source: LineReader, most: int) -> Iterator[RowChunk]:
        """Yield the lines of the file."""
        first = 1
        for lines in source.chunks(most):
            if first == 1:
                lines[0] = lines[0].removeprefix(_BOM)
            yield RowChunk(
                [line.removesuffix(b"\r") for line in lines], range(first, first + len(lines))
            )
            first += len(lines)

    def fast(self, chunk: RowChunk) -> pa.RecordBatch | None:
        """Return the rows as columns, if all of them are UTF-8."""
        return self.columns.from_lines(chunk.lines)

    def value(self, data: bytes) -> Any:
        """Return one row."""
        try:
            return self.rows.from_words({LINE: data.decode("utf-8")})
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"found the byte {data[error.start]:#04x}, expected text in UTF-8"
            ) from error


class CsvRowReader(TextRowReader):
    """CSV with a header; a quoted field may go over several lines."""

    _header: tuple[str, ...] = ()

    def chunks(self, source: LineReader, most: int) -> Iterator[RowChunk]:
        """Yield the rows of the file behind its header.

        Raises:
            InvalidInputError: a column of the header is not in the stream.
        """
        held: list[bytes] = []
        first, has_header, is_open = 1, False, False
        for lines in source.chunks(most):
            held += lines
            is_open ^= sum(line.count(b'"') for line in lines) % 2 == 1
            if is_open and len(held) < _QUOTED_LINES:
                continue
            records, first, held = self._records(held, first), first + len(held), []
            is_open = False
            if not has_header and records:
                self._take_header(records.pop(0))
                has_header = True
            if records:
                yield RowChunk([data for _, data in records], [number for number, _ in records])
        if held:
            raise InvalidInputError(
                f"{self.name} line {first + len(held)}: unexpected end of data: a quoted field of "
                "a line before is not closed"
            )

    def _records(self, lines: list[bytes], first: int) -> list[tuple[int, bytes]]:
        """Join the lines of quoted fields; blank lines do not count."""
        records: list[tuple[int, bytes]] = []
        part: list[bytes] = []
        is_open = False
        for number, line in enumerate(lines, first):
            plain = line.removesuffix(b"\r")
            if not part and not plain:
                continue
            part.append(line if b'"' in line or part else plain)
            is_open ^= line.count(b'"') % 2 == 1
            if not is_open:
                records.append((number, b"\n".join(part) if len(part) > 1 else part[0]))
                part = []
        if part:
            records.append((first + len(lines) - 1, b"\n".join(part)))
        return records

    def _take_header(self, record: tuple[int, bytes]) -> None:
        number, data = record
        try:
            found = self._fields(data.removeprefix(_BOM))
        except InvalidInputError as error:
            raise InvalidInputError(f"{self.name} line {number}: {error.message}") from error
        unknown = [column for column in found if column not in self.spec.schema.names]
        if unknown:
            raise InvalidInputError(
                f"{self.name} line {number}: found columns {unknown} in the header, "
                f"expected {', '.join(self.spec.schema.names)}; to add them: --add-columns"
            )
        doubled = sorted({column for column in found if found.count(column) > 1})
        if doubled:
            raise InvalidInputError(
                f"{self.name} line {number}: found columns {doubled} in the header more than once"
            )
        self._header = tuple(found)

    def fast(self, chunk: RowChunk) -> pa.RecordBatch | None:
        """Return the rows as columns, unless a field is quoted."""
        if any(b'"' in line for line in chunk.lines):
            return None
        return self.columns.from_csv(chunk.lines, self._header)

    def value(self, data: bytes) -> Any:
        """Return one row."""
        fields = self._fields(data)
        if len(fields) != len(self._header):
            raise InvalidInputError(
                f"found {len(fields)} fields, expected {len(self._header)} as in the header"
            )
        return self.rows.from_words(dict(zip(self._header, fields, strict=True)))

    def _fields(self, data: bytes) -> list[str]:
        try:
            text = io.StringIO(data.decode("utf-8"), newline="")
            found = list(csv.reader(text, strict=True))
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"found the byte {data[error.start]:#04x}, expected text in UTF-8"
            ) from error
        except csv.Error as error:
            raise InvalidInputError(str(error)) from error
        if len(found) > 1:
            raise InvalidInputError(
                "found a quote inside of a field that does not begin with one; expected the field "
                'in quotes, with each quote in it doubled: "5"" pipe"'
            )
        return found[0] if found else []


def first_bad_time(batch: pa.RecordBatch, spec: StreamSpec) -> UnfitRowError | None:
    """Return the first event time that the bus would refuse; ``None``: there is none."""
    if spec.time is None:
        return None
    column = batch.column(spec.time)
    if _has_times(column):
        return None
    low, high = 0, len(column)
    while high - low > 1:  # halve the rows until one is left: event_times is what decides
        middle = (low + high) // 2
        low, high = (middle, high) if _has_times(column.slice(low, middle - low)) else (low, middle)
    value = column[low].as_py()
    return UnfitRowError(
        f"event time {spec.time!r}: found {value}, expected a time in the years 1 to 9999", low
    )


def _has_times(column: pa.Array) -> bool:
    try:
        event_times(column, "the stream")
    except InvalidInputError:
        return False
    return True
