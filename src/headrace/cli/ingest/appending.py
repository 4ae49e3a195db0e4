"""Appends files to a stream, batch by batch; makes the stream by their columns if asked to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.bus.spec import StreamSpec
from headrace.cli.bus.columns import evolve
from headrace.cli.ingest.bad_lines import BadLines
from headrace.cli.ingest.row_files import STDIN, Format, open_lines, read_rows
from headrace.cli.words import count_text
from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.sources.infer import inferred
from headrace.sources.line_source import LineSource


class File(NamedTuple):
    """A path, or ``-`` for stdin, and how it is to be read."""

    path: str
    form: Format

    @property
    def name(self) -> str:
        """How messages call it."""
        return "stdin" if self.path == STDIN else self.path


class How(NamedTuple):
    """How rows are appended.

    Args:
        batch_rows: that become visible together, at most.
        partition: that takes them; ``None``: by key, or the shortest one.
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


class Appended(NamedTuple):
    """What became of the rows of an append."""

    stream: str
    rows: int
    bad_lines: int
    bad_stream: str | None


def append_files(
    bus: Bus,
    name: str,
    files: Sequence[File],
    how: How,
    clock: Clock,
    new: NewStream | None = None,
) -> Appended:
    """Append the rows of files to a stream, in order.

    Raises:
        InvalidInputError: a row does not fit; tells how many before its batch were appended.
    """
    with ExitStack() as opened:
        source = None
        if new is not None and name not in bus.names():
            if files[0].form != "parquet":
                source = LineSource(opened.enter_context(open_lines(files[0].path)))
            columns = columns_of(files[0], source)
            bus.create(StreamSpec(name, new.partitions, columns, new.time, new.key))
        stream = _stream(bus, name)
        if how.adds_columns:
            if source is None and files[0].form != "parquet":
                source = LineSource(opened.enter_context(open_lines(files[0].path)))
            found = columns_of(files[0], source)
            evolve(stream, lambda known: (_with(known, found), {}))
        bad = BadLines(bus, name, clock) if how.set_aside else None
        rows = 0
        for number, file in enumerate(files):
            first = how if number == 0 else how._replace(skip=0)
            rows += _append_file(stream, file, first, bad, source if number == 0 else None)
    count = 0 if bad is None else bad.count
    return Appended(name, rows, count, bad.stream if bad is not None and count else None)


def _with(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    return pa.schema([*known, *(field for field in found if field.name not in known.names)])


def _stream(bus: Bus, name: str) -> Stream:
    try:
        return bus.stream(name)
    except InvalidInputError as error:
        if name in bus.names():
            raise
        raise InvalidInputError(f"{error.message}, or append with --infer") from error


def columns_of(file: File, source: LineSource | None) -> pa.Schema:
    """Return the columns of a file; of lines, those that its first MiB has.

    Args:
        file: Parquet tells its columns.
        source: the lines of another; they can still be read after.

    Raises:
        InvalidInputError: it has none that can be told.
    """
    if source is not None:
        return inferred(source, file.name, is_csv=file.form == "csv")
    if file.path == STDIN:
        raise InvalidInputError("--infer cannot look into Parquet from stdin; give a file")
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file.path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{file.path} cannot be read as Parquet: {reason}") from error


def _append_file(
    stream: Stream, file: File, how: How, bad: BadLines | None, source: LineSource | None
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
    if partition is None:
        ends = stream.ends()
        partition = ends.index(min(ends))
    stream.append(partition, batch)


def _with_next_move(error: InvalidInputError, file: File, done: int) -> InvalidInputError:
    told = str(error).rstrip(".")
    stop = "" if told.endswith("?") else ";"
    if not done:
        return InvalidInputError(f"{told}{stop} nothing of it was appended")
    again = "" if file.path == STDIN else f"; once it is right, go on with --skip {done}"
    return InvalidInputError(
        f"{told}{stop} {count_text(done, 'row')} before its batch were appended{again}"
    )
