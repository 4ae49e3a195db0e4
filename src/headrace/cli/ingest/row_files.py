"""Reads files of rows as batches of a stream: JSON lines, CSV, Parquet.

Rows are numbered from 1 within their file. A row that does not fit ends the reading; of its
batch nothing is yielded.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

import pyarrow as pa

from headrace.bus.spec import StreamSpec
from headrace.errors import InvalidInputError
from headrace.records.schema import normalise
from headrace.sources.addresses import named_form
from headrace.sources.compressed import PlainBytes, codec_of
from headrace.sources.line_source import LineSource
from headrace.sources.text_rows import BadLine, CsvLines, JsonLines, first_bad_time

Format = Literal["jsonl", "csv", "parquet"]
STDIN = "-"


class Rows(NamedTuple):
    """A batch, and how many rows of the file are behind its end."""

    batch: pa.RecordBatch
    behind: int


OnBad = Callable[[BadLine], None]


def format_of(file: str, given: Format | None) -> Format:
    """Return the format of a file: as given, else by its suffix; stdin is JSON lines.

    Raises:
        InvalidInputError: a suffix of no known format.
    """
    if given is not None:
        return given
    if file == STDIN:
        return "jsonl"
    found = named_form(file)
    if found is None:
        raise InvalidInputError(
            f"{file}: the format of {Path(file).suffix.lower() or 'no suffix'} is unknown; "
            "give --format jsonl, csv or parquet"
        )
    return found


def check_there(files: Sequence[str]) -> None:
    """Refuse files that are not there, before anything is appended.

    Raises:
        InvalidInputError: names the first that is missing.
    """
    for file in files:
        if file != STDIN and not Path(file).is_file():
            raise InvalidInputError(f"no file {file}; check the path, or give - for stdin")


def read_rows(
    file: str,
    form: Format,
    spec: StreamSpec,
    *,
    batch_rows: int,
    skip: int = 0,
    on_bad: OnBad | None = None,
    source: LineSource | None = None,
) -> Iterator[Rows]:
    """Yield the rows of a file in order, typed by a stream's schema.

    Args:
        file: a path, or ``-`` for stdin.
        form: of the file.
        spec: of the stream.
        batch_rows: the most rows of a batch.
        skip: rows to leave out at the beginning.
        on_bad: takes each line that does not fit; the others are kept. ``None``: such a line
            is an error. Of Parquet, which is typed, it is one anyway.
        source: the lines of the file, where somebody has opened it already.

    Raises:
        InvalidInputError: there is no such file, or a row does not fit, with its line.
    """
    name = "stdin" if file == STDIN else file
    check_there([file])
    if form == "parquet":
        yield from _read_parquet(file, name, spec, batch_rows, skip)
        return
    with ExitStack() as opened:
        lines = source or LineSource(opened.enter_context(open_lines(file)))
        kind = JsonLines if form == "jsonl" else CsvLines
        reader = kind(name, spec, on_bad)
        behind = 0
        for chunk in reader.chunks(lines, batch_rows):
            first, behind = behind, behind + len(chunk.lines)
            if behind <= skip:
                continue
            batch = reader.batch(chunk.after(max(0, skip - first)))
            if batch.num_rows or on_bad is not None:
                yield Rows(batch, behind)


def open_lines(file: str) -> IO[bytes]:
    """Open a file, or stdin, for its lines; a compressed one for its plain ones."""
    if file == STDIN:
        return sys.stdin.buffer
    if codec_of(file) is not None:
        return cast("IO[bytes]", PlainBytes(file, lambda: open(file, "rb")))
    return open(file, "rb")


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
            _check_times(batch, spec, name, numbers)
            yield Rows(batch, behind)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{name} cannot be read as Parquet: {reason}") from error
    except InvalidInputError as error:
        if error.message.startswith(name):
            raise
        raise InvalidInputError(f"{name}: {error.message}") from error


def _check_times(batch: pa.RecordBatch, spec: StreamSpec, name: str, numbers: range) -> None:
    """Refuse an event time that the bus would, but with the row it came from."""
    bad = first_bad_time(batch, spec)
    if bad is not None:
        raise InvalidInputError(f"{name} row {numbers[bad.row]}: {bad.message}")
