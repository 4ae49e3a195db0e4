"""Reads files of rows as batches of a stream: JSON lines, CSV, Parquet.

Rows are numbered from 1 within their file. A row that does not fit ends the reading; of its
batch nothing is yielded.
"""

from __future__ import annotations

import csv
import io
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa

from headrace.bus.spec import StreamSpec
from headrace.cli.row_types import RowReader, UnfitRowError
from headrace.errors import InvalidInputError
from headrace.records.schema import event_times, normalise

Format = Literal["jsonl", "csv", "parquet"]
STDIN = "-"
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class Rows(NamedTuple):
    """A batch, and how many rows of the file are behind its end."""

    batch: pa.RecordBatch
    behind: int


class _Line(NamedTuple):
    number: int
    row: Any


_PAUSE = _Line(0, None)
_LINGER_S = 0.2
_READ_BYTES = 1 << 20


def format_of(file: str, given: Format | None) -> Format:
    """Return the format of a file: as given, else by its suffix; stdin is JSON lines.

    Raises:
        InvalidInputError: a suffix of no known format.
    """
    if given is not None:
        return given
    if file == STDIN:
        return "jsonl"
    suffix = Path(file).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidInputError(
            f"{file}: the format of {suffix or 'no suffix'} is unknown; "
            "give --format jsonl, csv or parquet"
        )
    return _SUFFIXES[suffix]


def check_there(files: Sequence[str]) -> None:
    """Refuse files that are not there, before anything is appended.

    Raises:
        InvalidInputError: names the first that is missing.
    """
    for file in files:
        if file != STDIN and not Path(file).is_file():
            raise InvalidInputError(f"no file {file}; check the path, or give - for stdin")


def read_rows(
    file: str, form: Format, spec: StreamSpec, *, batch_rows: int, skip: int = 0
) -> Iterator[Rows]:
    """Yield the rows of a file in order, typed by a stream's schema.

    Args:
        file: a path, or ``-`` for stdin.
        form: of the file.
        spec: of the stream.
        batch_rows: the most rows of a batch.
        skip: rows to leave out at the beginning.

    Raises:
        InvalidInputError: there is no such file, or a row does not fit, with its line.
    """
    name = "stdin" if file == STDIN else file
    check_there([file])
    if form == "parquet":
        yield from _read_parquet(file, name, spec, batch_rows, skip)
        return
    stream: IO[bytes] = sys.stdin.buffer if file == STDIN else open(file, "rb")  # noqa: SIM115
    with stream:
        reader = RowReader(spec)
        lines = (
            _json_lines(stream, name, reader)
            if form == "jsonl"
            else _csv_lines(stream, name, reader, spec)
        )
        behind = sum(1 for _ in islice((line for line in lines if line is not _PAUSE), skip))
        for chunk in _chunks(lines, batch_rows):
            try:
                batch = reader.batch([line.row for line in chunk])
            except UnfitRowError as error:
                raise _at(name, chunk[error.row].number, error) from error
            _check_times(batch, spec, name, [line.number for line in chunk])
            behind += len(chunk)
            yield Rows(batch, behind)


def _chunks(lines: Iterable[_Line], most: int) -> Iterator[list[_Line]]:
    """Cut rows where enough are together, and where the input pauses."""
    chunk: list[_Line] = []
    for line in lines:
        if line is not _PAUSE:
            chunk.append(line)
        if chunk and (line is _PAUSE or len(chunk) == most):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a file or pipe; ``None`` when a pipe has had nothing new for a moment.

    So what a program writes to a pipe line by line is appended as it comes.
    """
    try:
        descriptor = stream.fileno()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except (OSError, ValueError):
        is_file = True
    if is_file:
        yield from stream
        return
    rest = b""
    while True:
        if not select.select([descriptor], [], [], _LINGER_S)[0]:
            yield None
            select.select([descriptor], [], [])
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _at(name: str, line: int, error: InvalidInputError) -> InvalidInputError:
    return InvalidInputError(f"{name} line {line}: {error.message}")


def _json_lines(stream: IO[bytes], name: str, reader: RowReader) -> Iterator[_Line]:
    number = 0
    for line in _lines(stream):
        if line is None:
            yield _PAUSE
            continue
        number += 1
        if not line.strip():
            continue
        try:
            yield _Line(number, reader.from_json(line))
        except InvalidInputError as error:
            raise _at(name, number, error) from error


def _csv_lines(
    stream: IO[bytes], name: str, reader: RowReader, spec: StreamSpec
) -> Iterator[_Line]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    table = csv.reader(text, strict=True)
    try:
        header = next(table, None)
        if header is None:
            return
        unknown = [column for column in header if column not in spec.schema.names]
        if unknown:
            raise InvalidInputError(
                f"{name} line 1: found columns {unknown} in the header, "
                f"expected {', '.join(spec.schema.names)}"
            )
        for fields in table:
            if not fields:
                continue
            if len(fields) != len(header):
                raise InvalidInputError(
                    f"{name} line {table.line_num}: found {len(fields)} fields, "
                    f"expected {len(header)} as in the header"
                )
            try:
                row = reader.from_words(dict(zip(header, fields, strict=True)))
            except InvalidInputError as error:
                raise _at(name, table.line_num, error) from error
            yield _Line(table.line_num, row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{name} line {table.line_num + 1}: {error}") from error
    finally:
        text.detach()  # who opened the stream closes it


def _read_parquet(
    file: str, name: str, spec: StreamSpec, batch_rows: int, skip: int
) -> Iterator[Rows]:
    import pyarrow.parquet as pq

    source = io.BytesIO(sys.stdin.buffer.read()) if file == STDIN else file
    try:
        opened = pq.ParquetFile(source)
        behind = 0
        for found in opened.iter_batches(batch_rows):
            first, behind = behind, behind + found.num_rows
            if behind <= skip:
                continue
            batch = normalise(found.slice(max(0, skip - first)), spec.schema)
            numbers = range(behind - batch.num_rows + 1, behind + 1)
            _check_times(batch, spec, name, numbers, "row")
            yield Rows(batch, behind)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{name} cannot be read as Parquet: {reason}") from error
    except InvalidInputError as error:
        if error.message.startswith(name):
            raise
        raise InvalidInputError(f"{name}: {error.message}") from error


def _check_times(
    batch: pa.RecordBatch, spec: StreamSpec, name: str, numbers: Any, unit: str = "line"
) -> None:
    """Refuse an event time that the bus would, but with the line it came from."""
    if spec.time is None:
        return
    column = batch.column(spec.time)
    try:
        event_times(column, "the stream")
    except InvalidInputError as error:
        at = _first_bad_time(column)
        value = column[at].as_py()
        raise InvalidInputError(
            f"{name} {unit} {numbers[at]}: event time {spec.time!r}: found {value}, expected a "
            "time from 1970 to 9999"
        ) from error


def _first_bad_time(column: pa.Array) -> int:
    """Halve the rows until one is left: ``event_times`` is what decides."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            event_times(column.slice(low, middle - low), "")
        except InvalidInputError:
            high = middle
        else:
            low = middle
    return low
