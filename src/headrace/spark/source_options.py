"""What the data source ``headrace`` is given: its options, a stream's columns as Spark's, its job.

A query that reads a job's results asks the process that runs the job, by files, whether all input
has been taken in (``trigger(availableNow=True)``), and fails when the job has failed. A read of the
results of a lazy run asks the process that made the DataFrame to run it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from headrace.bus import OffsetBatch, StreamSpec, open_bus
from headrace.bus.bus import Bus, Stream, start_offsets
from headrace.clock import Clock
from headrace.config import EARLIEST, LATEST, StartPosition, load_settings, read_start
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.records.schema import as_milliseconds
from headrace.spark.versions import spark_type

Begin = StartPosition | dict[int, int]
"""Where reading begins or ends: a word, an event time in ms, or an offset by partition."""

READ = (
    "stream", "path", "home", "start", "end", "columns", "where", "maxrows", "splitrows",
    "job", "store", "epoch", "metadata", "table", "days",
)  # fmt: skip
WRITE = ("stream", "path", "home", "create", "partitions", "key", "time", "writeid")
SPARKS = ("checkpointlocation", "queryname", "outputmode")
OURS = ("follows", "pushed", "run")
"""Given by ``stateful`` alone, a folder; by the catalog alone, conditions of the query; and by lazy
DataFrames alone, what ``wait_for_run`` takes."""

LIST, COLUMNS = "headracelist", "columns"
"""Given by the catalog alone: names are wanted, of which part of it; or the columns of what the
other options name, none where that is not there."""

SPLIT_ROWS = 4_000_000


@dataclass(frozen=True)
class StreamLocation:
    """A stream of a home."""

    home: str
    stream: str

    @property
    def bus_dir(self) -> Path:
        """Folder of the bus."""
        return Path(self.home) / "bus"

    def open(self) -> Bus:
        """Open the bus."""
        return open_bus(self.bus_dir)


def location_of(options: Mapping[str, str], folder: str = "") -> StreamLocation:
    """Return the stream that options name.

    Args:
        options: of a reader or a writer.
        folder: what a relative home begins at; by default the working folder.

    Raises:
        InvalidInputError: none, or an option that is not known.
    """
    stream = options.get("stream") or options.get("path")
    if not stream:
        raise InvalidInputError(
            'no stream is named; give .option("stream", NAME), or load(NAME) and save(NAME)'
        )
    return StreamLocation(home_of(options, folder), stream)


def home_of(options: Mapping[str, str], folder: str = "") -> str:
    """Return the home that options name, else that of the settings.

    Args:
        options: of a reader or a writer.
        folder: what a relative home begins at; by default the working folder.
    """
    home = options.get("home") or load_settings().home
    return str((Path(folder) / Path(home).expanduser()).absolute())


def check_known(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse options that are not known, which would be passed over.

    Raises:
        InvalidInputError: names it, and those that there are.
    """
    names = {name.lower() for name in options}
    unknown = sorted(names - {*READ, *WRITE, *SPARKS, *OURS})
    if unknown:
        raise InvalidInputError(
            f"unknown option {unknown[0]!r} of format headrace; expected one of {sorted(known)}"
        )


def begin_of(options: Mapping[str, str], name: str, default: Begin) -> Begin:
    """Return where reading begins or ends.

    Raises:
        InvalidInputError: neither a word, nor a time, nor offsets as JSON.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.lstrip().startswith("{"):
        try:
            found = {int(p): int(offset) for p, offset in json.loads(text).items()}
        except (ValueError, TypeError):
            found = None
        if found is None:
            raise InvalidInputError(
                f'option {name} is {text!r}; expected offsets by partition, such as {{"0": 120}}'
            )
        return found
    return read_start(text, f"option {name}")


def first_offsets(stream: Stream, begin: Begin) -> list[int]:
    """Return where to begin reading in each partition; retained rows only.

    Raises:
        InvalidInputError: a partition that there is not, or a time where there is none.
    """
    if not isinstance(begin, dict):
        return start_offsets(stream, begin)
    begins, ends = stream.begins(), stream.ends()
    _check_partitions(begin, len(begins), stream)
    return [
        min(max(begin.get(p, first), first), end)
        for p, (first, end) in enumerate(zip(begins, ends, strict=True))
    ]


def last_offsets(stream: Stream, end: Begin) -> list[int]:
    """Return the offset behind the last one to read in each partition.

    An event time bounds rows, not offsets: what is behind it is left out when it is read.
    """
    ends = stream.ends()
    if end == EARLIEST:
        return stream.begins()
    if end == LATEST or not isinstance(end, dict):
        return ends
    _check_partitions(end, len(ends), stream)
    return [min(end.get(p, last), last) for p, last in enumerate(ends)]


def _check_partitions(given: Mapping[int, int], count: int, stream: Stream) -> None:
    wrong = sorted(p for p in given if not 0 <= p < count)
    if wrong:
        raise InvalidInputError(
            f"offsets are given for partition {wrong[0]}; expected 0 to {count - 1}",
            stream=stream.spec.name,
        )


def number_of(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return a number above 0.

    Raises:
        InvalidInputError: another text.
    """
    text = options.get(name)
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < 1:
        raise InvalidInputError(f"option {name} is {text!r}; expected a whole number above 0")
    return int(text)


def names_of(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return names that are given with commas between them."""
    return tuple(part.strip() for part in options.get(name, "").split(",") if part.strip())


PARTITION, OFFSET, TIME = "partition", "offset", "time"
_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


@dataclass(frozen=True)
class ReadColumns:
    """What a read of a stream brings: columns of the stream, and where each row is from.

    Args:
        spec: of the stream.
        chosen: names in the order of the result; all when empty.
    """

    spec: StreamSpec
    chosen: tuple[str, ...] = ()

    def own(self, role: str) -> str:
        """Return the name of a column that is ours; after those of the stream, it gives way."""
        name = role
        while name in self.spec.schema.names:
            name = f"_{name}"
        return name

    @property
    def names(self) -> list[str]:
        """All that there are."""
        return [*self.spec.schema.names, *(self.own(role) for role in (PARTITION, OFFSET, TIME))]

    def schema(self) -> StructType:
        """Return the columns of the result as Spark's.

        Raises:
            InvalidInputError: a name that there is not.
        """
        every = {
            field.name: StructField(field.name, spark_type(as_spark(field.type)))
            for field in self.spec.schema
        }
        every[self.own(PARTITION)] = StructField(self.own(PARTITION), LongType(), False)
        every[self.own(OFFSET)] = StructField(self.own(OFFSET), LongType(), False)
        every[self.own(TIME)] = StructField(self.own(TIME), TimestampType())
        self.check(self.chosen)
        return StructType([every[name] for name in self.chosen or self.names])

    def check(self, names: Sequence[str]) -> None:
        """Refuse columns that there are not.

        Raises:
            InvalidInputError: names the first.
        """
        for name in names:
            if name not in self.names:
                raise InvalidInputError(
                    f"no column {name!r}; expected some of {self.names}", stream=self.spec.name
                )

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the stream that a result with some columns is made of."""
        found = [name for name in names if name in self.spec.schema.names]
        is_timed = self.own(TIME) in names and self.spec.time is not None
        if is_timed and self.spec.time not in found:
            found.append(str(self.spec.time))
        return found

    def result(self, found: OffsetBatch, partition: int, target: pa.Schema) -> pa.RecordBatch:
        """Return rows that were read as Spark was promised.

        Raises:
            InvalidInputError: the stream's column was made wider since the query began, and holds
                what its type of then cannot.
        """
        rows = found.batch.num_rows
        arrays = []
        for field in target:
            if field.name in found.batch.schema.names and field.name in self.spec.schema.names:
                column = found.batch.column(field.name)
            elif field.name == self.own(PARTITION):
                column = pa.repeat(pa.scalar(partition, pa.int64()), rows)
            elif field.name == self.own(OFFSET):
                column = pa.array(found.offsets, pa.int64())
            elif self.spec.time is not None:
                column = event_time(found.batch.column(self.spec.time))
            else:
                column = pa.nulls(rows, field.type)
            arrays.append(self._cast(column, field))
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"column {field.name!r}: found {column.type}, and the query was planned with "
                f"{field.type}: {str(error).splitlines()[0]}; start it again",
                stream=self.spec.name,
            ) from error


def event_time(column: pa.Array) -> pa.Array:
    """Return an event-time column as Spark's timestamps."""
    if pa.types.is_timestamp(column.type):
        return column
    micros = pc.multiply(as_milliseconds(column), 1000)
    return micros.cast(pa.timestamp("us", tz="UTC"))


def as_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Spark can have values of a stored type."""
    if kind in _SIGNED:
        return _SIGNED[kind]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(as_spark(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(as_spark(kind.key_type), as_spark(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, as_spark(field.type)) for field in kind])
    return kind


FAILED = "failed"
_ASKED, _ANSWERED = "asked-", "answered-"
POLL_S = 0.05


def check_running(folder: Path) -> None:
    """Fail with the job whose results are read.

    Raises:
        UnavailableError: it has failed.
    """
    path = folder / FAILED
    if path.exists():
        raise UnavailableError(f"{path.read_text()}; fix that, and call stateful again")


def wait_until_processed(folder: Path, files: Files, clock: Clock) -> None:
    """Return when the job has taken in what there was for it when this was called.

    Raises:
        UnavailableError: it has failed.
    """
    number = clock.new_id()
    files.replace(folder / f"{_ASKED}{number}", b"")
    while not (folder / f"{_ANSWERED}{number}").exists():
        check_running(folder)
        clock.sleep(POLL_S)
    files.remove(folder / f"{_ASKED}{number}")
    files.remove(folder / f"{_ANSWERED}{number}")


def open_requests(files: Files, folder: Path) -> list[str]:
    """Return the numbers of questions that have no answer."""
    names = files.names(folder)
    numbers = [name.removeprefix(_ASKED) for name in names if name.startswith(_ASKED)]
    return [number for number in numbers if answer_name(number) not in names]


def answer_name(number: str) -> str:
    """Return the name of the file that answers a question."""
    return f"{_ANSWERED}{number}"


PIPE, DONE, RUN_FAILED = "asked", "done", "failed"
"""In the folder of lazy runs: what they are asked by, and what the names of answers end with."""


class RunRange(msgspec.Struct, frozen=True):
    """Offsets that a run has in the partitions of an output: from ``start`` to before ``stop``."""

    start: dict[int, int]
    stop: dict[int, int]


Ranges = dict[str, RunRange]


class RunFailedError(UnavailableError):
    """The run of a job behind a lazy DataFrame has failed, so it has no rows.

    Fix what the message says, then make the DataFrame again: Spark keeps a plan that failed.
    """

    code = "HR215"
    move = "fix what the message says, and make the DataFrame again"


def wait_for_run(place: Path, files: Files, clock: Clock) -> Ranges:
    """Return where the rows of a run are, once it has ended; the first call starts it.

    Args:
        place: from ``LazyRuns.add``.
        files: of this process.
        clock: the same.

    Raises:
        RunFailedError: the run failed, or the process that made the DataFrame has ended.
    """
    done = place.with_name(f"{place.name}.{DONE}")
    asked = clock.new_id()
    failed = place.with_name(f"{place.name}.{asked}.{RUN_FAILED}")
    if not files.exists(done):
        try:
            pipe = os.open(place.with_name(PIPE), os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            raise RunFailedError(
                "the process that made this DataFrame has ended, and has not run its job; make the "
                "DataFrame again"
            ) from error
        try:
            os.write(pipe, f"{place.name} {asked}\n".encode())
        finally:
            os.close(pipe)
    while not files.exists(done):
        if files.exists(failed):
            text = files.read(failed).decode()
            files.remove(failed)
            raise RunFailedError(f"{text}; fix that, and make the DataFrame again")
        clock.sleep(POLL_S)
    return msgspec.json.decode(files.read(done), type=Ranges)
