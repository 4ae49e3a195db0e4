"""Rows of files and pipes, typed by a stream's schema and appended to it batch by batch.

Reads JSON lines, CSV, lines of text and Parquet, also compressed. Lines that do not fit are kept
with their bytes in a stream beside it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from headrace.bus import Bus, Stream, StreamSpec
from headrace.cli.arguments import add_columns
from headrace.cli.output import count_text
from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.records.schema import normalise
from headrace.sources.files import DecompressedFile, LineReader, codec_of, infer_schema, named_form
from headrace.sources.row_decoder import LINE
from headrace.sources.text_rows import (
    BadLine,
    CsvRowReader,
    JsonRowReader,
    LineRowReader,
    TextRowReader,
    first_bad_time,
)

Format = Literal["jsonl", "csv", "parquet", "text"]
STDIN = "-"
RUN_ROWS = 100
"""Rows without a key that go to one partition, before the next partition has its turn."""


class Rows(NamedTuple):
    """A batch, and how many rows of the file are behind its end."""

    batch: pa.RecordBatch
    behind: int


OnBad = Callable[[BadLine], None]
_READERS: dict[Format, type[TextRowReader]] = {
    "jsonl": JsonRowReader,
    "csv": CsvRowReader,
    "text": LineRowReader,
}


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
            "give --format jsonl, csv, parquet or text"
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
    source: LineReader | None = None,
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
        lines = source or LineReader(opened.enter_context(open_lines(file)))
        reader = _READERS[form](name, spec, on_bad)
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
        return cast("IO[bytes]", DecompressedFile(file, lambda: open(file, "rb")))
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


SUFFIX = ".dead"
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("message", pa.string()),
        ("bytes", pa.binary()),
    ]
)


class BadLines:
    """Takes the lines of one append that do not fit, and appends them to ``<stream>.dead``.

    Args:
        bus: has the stream; the one beside it is made with the first bad line.
        stream: its name.
        clock: for when.
    """

    def __init__(self, bus: Bus, stream: str, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self.stream = stream + SUFFIX
        self.count = 0
        self.file = ""
        self._held: list[BadLine] = []

    def add(self, bad: BadLine) -> None:
        """Take a line of the file that is read now."""
        self._held.append(bad)

    def flush(self) -> None:
        """Append what was taken since the last time."""
        if not self._held:
            return
        at = self._clock.now_ms() * 1000
        rows = [
            {"at": at, "file": self.file, "line": n, "message": message, "bytes": data}
            for n, message, data in self._held
        ]
        spec = StreamSpec(self.stream, 1, SCHEMA, "at")
        stream = self._bus.create(spec, exist_ok=True)
        stream.append(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
        self.count += len(rows)
        self._held.clear()


class InputFile(NamedTuple):
    """A path, or ``-`` for stdin, and how it is to be read."""

    path: str
    form: Format

    @property
    def name(self) -> str:
        """How messages call it."""
        return "stdin" if self.path == STDIN else self.path


class IngestOptions(NamedTuple):
    """How rows are appended.

    Args:
        batch_rows: that become visible together, at most.
        partition: that takes them; ``None``: by key, or without one in turn.
        skip: rows of the first file to leave out.
        set_aside: lines that do not fit go to the stream beside, and are no error.
        adds_columns: those of the first file that the stream has not are added to it.
    """

    batch_rows: int
    partition: int | None = None
    skip: int = 0
    set_aside: bool = False
    adds_columns: bool = False


class NewStream(NamedTuple):
    """What a stream is made with that is not there yet, beside the columns of its first file."""

    time: str | None
    key: tuple[str, ...]
    partitions: int


class IngestResult(NamedTuple):
    """What became of the rows of an append."""

    stream: str
    rows: int
    bad_lines: int
    bad_stream: str | None


def append_files(
    bus: Bus,
    name: str,
    files: Sequence[InputFile],
    how: IngestOptions,
    clock: Clock,
    new: NewStream | None = None,
) -> IngestResult:
    """Append the rows of files to a stream, in order.

    Raises:
        InvalidInputError: a row does not fit; says how many before its batch were appended.
    """
    with ExitStack() as opened:
        source = None
        if new is not None and name not in bus.names():
            if files[0].form != "parquet":
                source = LineReader(opened.enter_context(open_lines(files[0].path)))
            columns = columns_of(files[0], source)
            bus.create(StreamSpec(name, new.partitions, columns, new.time, new.key))
        stream = _stream(bus, name)
        if how.adds_columns:
            if source is None and files[0].form != "parquet":
                source = LineReader(opened.enter_context(open_lines(files[0].path)))
            found = columns_of(files[0], source)
            add_columns(stream, lambda known: (_with(known, found), {}))
        bad = BadLines(bus, name, clock) if how.set_aside else None
        rows = 0
        for number, file in enumerate(files):
            first = how if number == 0 else how._replace(skip=0)
            rows += _append_file(stream, file, first, bad, source if number == 0 else None)
    count = 0 if bad is None else bad.count
    return IngestResult(name, rows, count, bad.stream if bad is not None and count else None)


def _with(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    return pa.schema([*known, *(field for field in found if field.name not in known.names)])


def _stream(bus: Bus, name: str) -> Stream:
    try:
        return bus.stream(name)
    except InvalidInputError as error:
        if name in bus.names():
            raise
        raise InvalidInputError(f"{error.message}, or append with --infer") from error


def columns_of(file: InputFile, source: LineReader | None) -> pa.Schema:
    """Return the columns of a file; of lines, those that its first MiB has.

    Args:
        file: Parquet names its columns.
        source: the lines of another; they can still be read after.

    Raises:
        InvalidInputError: it has none that is known.
    """
    if file.form == "text":
        return pa.schema([(LINE, pa.string())])
    if source is not None:
        return infer_schema(source, file.name, is_csv=file.form == "csv")
    if file.path == STDIN:
        raise InvalidInputError("--infer cannot look into Parquet from stdin; give a file")
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file.path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{file.path} cannot be read as Parquet: {reason}") from error


def _append_file(
    stream: Stream,
    file: InputFile,
    how: IngestOptions,
    bad: BadLines | None,
    source: LineReader | None,
) -> int:
    behind = total = 0
    if bad is not None:
        bad.file = file.name
    try:
        for rows in read_rows(
            file.path,
            file.form,
            stream.spec,
            batch_rows=how.batch_rows,
            skip=how.skip,
            on_bad=None if bad is None else bad.add,
            source=source,
        ):
            _append(stream, rows.batch, how.partition)
            if bad is not None:
                bad.flush()
            behind, total = rows.behind, total + rows.batch.num_rows
    except InvalidInputError as error:
        raise _with_next_move(error, file, behind) from error
    return total


def _append(stream: Stream, batch: pa.RecordBatch, partition: int | None) -> None:
    if not batch.num_rows:
        return
    if partition is None and stream.spec.key:
        stream.append_rows(batch)
        return
    if partition is not None:
        stream.append(partition, batch)
        return
    done = 0
    for turn, part in _in_turn(stream, batch):
        try:
            stream.append(turn, part)
        except InvalidInputError as error:
            if not done:
                raise
            raise _PartlyAppendedError(error.message, done) from error
        done += part.num_rows


class _PartlyAppendedError(InvalidInputError):
    """Some partitions have their rows of a batch, and another refused its own."""

    def __init__(self, message: str, rows: int) -> None:
        super().__init__(message)
        self.rows = rows


def _in_turn(stream: Stream, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Share rows without a key as Kafka's sticky partitioner does: a run each, in turn.

    The shortest partition begins, so that the same appends go the same way again.
    """
    count = stream.settings.partitions or stream.spec.partitions
    ends = stream.ends()[:count]
    begin = ends.index(min(ends))
    runs = np.arange(batch.num_rows) // RUN_ROWS
    for turn in range(min(count, -(-batch.num_rows // RUN_ROWS))):
        yield (begin + turn) % count, batch.take(pa.array(np.flatnonzero(runs % count == turn)))


def _with_next_move(error: InvalidInputError, file: InputFile, done: int) -> InvalidInputError:
    reason = str(error).rstrip(".")
    stop = "" if reason.endswith("?") else ";"
    if isinstance(error, _PartlyAppendedError):
        return InvalidInputError(
            f"{reason}{stop} {count_text(done, 'row')} before its batch and "
            f"{count_text(error.rows, 'row')} of it were appended, to other partitions"
        )
    if not done:
        return InvalidInputError(f"{reason}{stop} nothing of it was appended")
    again = "" if file.path == STDIN else f"; once it is fixed, continue with --skip {done}"
    return InvalidInputError(
        f"{reason}{stop} {count_text(done, 'row')} before its batch were appended{again}"
    )
