"""The data source ``headrace``: streams for ``spark.read``, ``readStream`` and their writers.

Options of reading: ``stream`` (or what ``load`` is given), ``home``, ``start``, ``end``,
``columns``, ``where``, ``maxRows`` of a batch, ``splitRows`` of a task. Of writing: ``stream`` (or
what ``save`` is given), ``home``, ``create``, ``partitions``, ``key``, ``time``, ``writeId``. What
jobs have committed is read with the options that ``job_tables`` names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import NullType, StructField, StructType

from headrace.bus import OffsetBatch, Stream
from headrace.bus.spec import StreamSpec, stream_replaced
from headrace.clock import CLOCK_RECORD, SteadyClock, SystemClock
from headrace.config import EARLIEST, LATEST, load_settings, project_file
from headrace.errors import InternalError, InvalidInputError
from headrace.files import Files
from headrace.records.schema import as_milliseconds, normalise
from headrace.spark.arrow_rows import gathered, joined
from headrace.spark.java_classes import while_active
from headrace.spark.job_tables import (
    TableReader,
    is_job_table,
    is_listed,
    job_table,
    listed,
    table_schema,
)
from headrace.spark.row_conditions import condition_columns, conditions_of, true_rows
from headrace.spark.source_options import (
    COLUMNS,
    LIST,
    READ,
    SPLIT_ROWS,
    WRITE,
    ReadColumns,
    StreamLocation,
    begin_of,
    check_known,
    check_running,
    first_offsets,
    home_of,
    last_offsets,
    location_of,
    names_of,
    number_of,
    wait_for_run,
    wait_until_processed,
)
from headrace.spark.staging import (
    QUERIES,
    BatchWriterId,
    Checkpoint,
    Committer,
    StagedPart,
    Stager,
    collect_leftovers,
)
from headrace.spark.versions import (
    LIMITS_BATCHES,
    VERSION,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    StreamArrowWriter,
    SupportsTriggerAvailableNow,
    arrow_schema,
)

NEWS_S = 0.2
"""How long a query without rows waits for some, rather than to be asked again at once."""

STREAM, IDENTITY = "stream", "identity"
"""Beside the offsets of a checkpoint: of which stream they are."""

BATCH_ROWS = 1 << 16
"""Small appends are put together to this many rows; Spark pays for each batch."""


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Offsets of a partition of one stream, read by one task."""

    partition: int
    start: int
    stop: int
    identity: str


@dataclass(frozen=True)
class RangeReader:
    """Reads a range as Spark's rows; travels to the workers.

    Args:
        place: of the stream.
        columns: of the stream, as they were when the query was planned.
        schema: of the result.
        where: conditions on columns of the stream, as ``polars.sql_expr`` takes them.
        since: rows with an earlier event time are left out.
        before: rows with this event time or a later one are left out.
    """

    place: StreamLocation
    columns: ReadColumns
    schema: StructType
    where: tuple[str, ...] = ()
    since: int | None = None
    before: int | None = None

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        target = arrow_schema(self.schema)
        with self.place.open() as bus:
            stream = bus.stream(self.place.stream)
            _check_same(stream, wanted.identity)
            found = stream.read(
                wanted.partition, wanted.start, wanted.stop, columns=self._needed(target.names)
            )
            batches = (
                self.columns.result(self._kept(rows), wanted.partition, target) for rows in found
            )
            yield from map(joined, gathered(batches, BATCH_ROWS))

    def _needed(self, names: Sequence[str]) -> list[str]:
        found = self.columns.needed(names)
        spec = self.columns.spec
        more = [
            name
            for condition in self.where
            for name in condition_columns(condition, spec.schema, spec.name)
        ]
        if (self.since, self.before) != (None, None):
            more.append(str(spec.time))
        found += [name for name in dict.fromkeys(more) if name not in found]
        # One column has to show how many rows there are.
        return found or list(spec.schema.names[:1])

    def _kept(self, found: OffsetBatch) -> OffsetBatch:
        """Return the rows that are wanted, with their offsets."""
        masks = []
        if (self.since, self.before) != (None, None):
            times = as_milliseconds(found.batch.column(self.columns.spec.time))
            masks += [pc.greater_equal(times, self.since)] if self.since is not None else []
            masks += [pc.less(times, self.before)] if self.before is not None else []
        masks += [true_rows(condition, found.batch) for condition in self.where]
        if not masks:
            return found
        mask = pc.fill_null(reduce(pc.and_, masks), False)
        places = found.offsets[mask.to_numpy(zero_copy_only=False)]
        return OffsetBatch(found.first_offset, found.batch.filter(mask), places, found.next_offset)


class BatchReader(DataSourceReader):
    """Reads what a stream holds when the query is planned.

    It takes no conditions of the query by ``pushFilters``: Spark 4.3 keeps the reader that was
    given some, and uses it for other queries of the same DataFrame, which then lack rows.

    Args:
        place: of the stream.
        options: of the source.
        schema: of the result.
    """

    def __init__(
        self, place: StreamLocation, options: Mapping[str, str], schema: StructType
    ) -> None:
        self._place = place
        self._start = begin_of(options, "start", EARLIEST)
        self._end = begin_of(options, "end", LATEST)
        self._split = number_of(options, "splitRows", SPLIT_ROWS) or SPLIT_ROWS
        with place.open() as bus:
            columns = ReadColumns(bus.stream(place.stream).spec)
        place = self._place = replace(place, stream=columns.spec.name)
        columns.check(schema.fieldNames())
        where = conditions_of(options, columns.spec.schema, columns.spec.name)
        for begin, name in ((self._start, "start"), (self._end, "end")):
            if isinstance(begin, int) and columns.spec.time is None:
                raise InvalidInputError(
                    f"option {name} is a time, and stream {place.stream!r} has no event-time "
                    "column; give offsets, or earliest or latest",
                    stream=place.stream,
                )
        since, before = (at if isinstance(at, int) else None for at in (self._start, self._end))
        self._reader = RangeReader(place, columns, schema, where, since, before)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read, a task for each: in pieces of as many rows as are wanted."""
        found: list[InputPartition] = []
        with self._place.open() as bus:
            stream = bus.stream(self._place.stream)
            starts, stops = first_offsets(stream, self._start), last_offsets(stream, self._end)
            identity = stream.identity
        for partition, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            found += [
                OffsetRange(partition, begin, min(begin + self._split, stop), identity)
                for begin in range(start, stop, self._split)
            ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; called in a worker."""
        if not isinstance(partition, OffsetRange):  # Spark's own, where there is nothing to read
            return iter(())
        return self._reader.read(partition)


class RunReader(DataSourceReader):
    """Reads what a run has sent to a stream; planning it starts the run, where it has not been.

    Args:
        place: of the stream.
        options: of the source, with ``run``.
        schema: of the result.
    """

    def __init__(
        self, place: StreamLocation, options: Mapping[str, str], schema: StructType
    ) -> None:
        self._place, self._options, self._schema = place, dict(options), schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of the run, once it has ended."""
        run = wait_for_run(Path(self._options["run"]), Files(sync=False), SystemClock())
        found = run[self._place.stream]
        bounds = {"start": json.dumps(found.start), "end": json.dumps(found.stop)}
        return BatchReader(self._place, self._options | bounds, self._schema).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; called in a worker, with a copy from before the partitions."""
        return BatchReader(self._place, self._options, self._schema).read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query; its offsets are those of the partitions.

    Runs in a process of its own beside the driver, and reads in the workers.
    """

    def __init__(
        self, place: StreamLocation, options: Mapping[str, str], schema: StructType
    ) -> None:
        self._place = place
        self._start = begin_of(options, "start", EARLIEST)
        self._most = number_of(options, "maxRows", None)
        self._until: list[int] | None = None
        self._follows = Path(options["follows"]) if "follows" in options else None
        if self._most is not None and not LIMITS_BATCHES:
            raise InvalidInputError(
                f"option maxRows needs PySpark 4.2, and this is {VERSION}; leave it out: a batch "
                "reads what there is"
            )
        self._last: dict[str, Any] | None = None
        self._is_asked = False
        if "end" in options:
            raise InvalidInputError(
                "a streaming query has no end; use trigger(availableNow=True), or spark.read"
            )
        self._open()
        # An alias may be swapped; offsets are those of one stream.
        place = self._place = replace(place, stream=self._stream.spec.name)
        columns = ReadColumns(self._stream.spec)
        columns.check(schema.fieldNames())
        where = conditions_of(options, columns.spec.schema, columns.spec.name)
        self._reader = RangeReader(place, columns, schema, where)

    def _open(self) -> None:
        self._bus = self._place.open()
        self._stream = self._bus.stream(self._place.stream)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open: Spark copies the reader with every batch."""
        return {"_reader": self._reader}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        self._follow()
        self._last = self._packed(first_offsets(self._stream, self._start))
        return self._last

    def _follow(self) -> None:
        """Look at the stream that has the name now, which may have been created since."""
        self._stream = self._bus.stream(self._place.stream)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a batch reads."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than what is there now; of a job's results, once it has caught up."""
        if self._follows is not None:
            wait_until_processed(self._follows, Files(sync=False), SystemClock())
        self._until = self._stream.ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the stream, for the query's progress."""
        return self._packed(self._stream.ends())

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next batch ends: at what there is now, or within a moment.

        Args:
            start: where it begins; before Spark 4.2 nobody says so.
            limit: how much it may read.
        """
        if start is None:
            self._last = self._unlimited_end()
            return self._last
        return self._next_end(start, limit)

    def _unlimited_end(self) -> dict[str, Any]:
        """Return where a batch ends of which Spark does not say where it begins.

        The trigger is not known either, so the first batch of any query waits for a job's results.
        After a restart the begin is known, and checked, once the batch is planned.
        """
        if not self._is_asked and self._follows is not None:
            wait_until_processed(self._follows, Files(sync=False), SystemClock())
        self._is_asked = True
        if self._last is not None:
            return self._next_end(self._last, None)
        self._follow()
        return self._packed(self._stream.ends())

    def _next_end(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        if self._follows is not None:
            check_running(self._follows)
        self._follow()
        ends = self._until or self._stream.ends()
        begins = self._begins(start, len(ends))
        if self._until is None and begins == ends:
            ends = self._stream.wait(ends, NEWS_S)
            begins = self._begins(start, len(ends))
        if begins == ends:
            return start
        self._check(begins, ends)
        if not isinstance(limit, ReadMaxRows):
            return self._packed(ends)
        return self._packed(_limited(begins, ends, limit.max_rows))

    def _begins(self, start: Mapping[str, Any], count: int) -> list[int]:
        """Where a batch begins in each partition; those that were added at their beginning.

        Raises:
            InvalidInputError: the offsets are those of another stream.
        """
        name = self._place.stream
        if start.get(STREAM, name) != name:
            raise InvalidInputError(
                f"the checkpoint of the query has offsets of stream {start[STREAM]!r}, and the "
                f"query reads {name!r} now: an alias was swapped, or another stream was named; "
                "begin with a new checkpoint",
                stream=name,
            )
        _check_same(self._stream, start.get(IDENTITY, ""))
        first = self._stream.begins() if _count(start) < count else []
        return [int(start[str(p)]) if str(p) in start else first[p] for p in range(count)]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a batch, a task for each."""
        begins = self._begins(start, _count(end))
        self._check(begins, [int(end[str(partition)]) for partition in range(len(begins))])
        return [
            OffsetRange(partition, begin, int(end[str(partition)]), str(end.get(IDENTITY, "")))
            for partition, begin in enumerate(begins)
            if begin < int(end[str(partition)])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; called in a worker."""
        assert isinstance(partition, OffsetRange)
        return self._reader.read(partition)

    def stop(self) -> None:
        """Release the bus."""
        self._bus.close()

    def _packed(self, offsets: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {str(p): offset for p, offset in enumerate(offsets)}
        return found | {STREAM: self._place.stream, IDENTITY: self._stream.identity}

    def _check(self, begins: Sequence[int], ends: Sequence[int]) -> None:
        """Refuse a stream that has fewer rows than were read: rows would be passed over."""
        for partition, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if begin > end:
                raise InvalidInputError(
                    f"the query has read partition {partition} of stream {self._place.stream!r} up "
                    f"to offset {begin}, and it ends at {end}: the stream was created again; begin "
                    "with a new checkpoint",
                    stream=self._place.stream,
                )


def _count(offsets: Mapping[str, Any]) -> int:
    """Of how many partitions offsets are."""
    return len(offsets) - (STREAM in offsets) - (IDENTITY in offsets)


def _check_same(stream: Stream, identity: str) -> None:
    """Refuse another stream than that which offsets are of; old checkpoints do not say which.

    Raises:
        StreamReplacedError: it is another one of the name.
    """
    if identity and stream.identity != identity:
        move = "begin with a new checkpoint, or read the DataFrame again"
        raise stream_replaced(stream.spec.name, stream.identity, identity, "the query", move)


def _limited(begins: Sequence[int], ends: Sequence[int], rows: int) -> list[int]:
    """Give each partition its share of some rows; what one does not need goes to the others."""
    found, left = list(begins), rows
    order = sorted(range(len(ends)), key=lambda p: ends[p] - begins[p])
    for at, partition in enumerate(order):
        share = max(1, left // (len(order) - at)) if left > 0 else 0
        taken = min(share, ends[partition] - begins[partition])
        found[partition] += taken
        left -= taken
    return found


QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's own names for the query and the batch that a task is of."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task answers: where its rows are, and the query that it is of."""

    parts: tuple[StagedPart, ...]
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame when all of its tasks have ended.

    Args:
        place: of the stream.
        options: of the sink.
    """

    def __init__(self, place: StreamLocation, options: Mapping[str, str]) -> None:
        name = options.get("writeId")
        unique = SystemClock().new_id() if name is None else name
        self._write = BatchWriterId(place, f"write {unique}", is_once=name is None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task; called in a worker."""
        return Staged(tuple(Stager(self._write, 0, _task()).stage(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged."""
        Committer(self._write).commit(0, _parts(messages))
        place = self._write.place
        clock = SteadyClock(SystemClock(), record=place.bus_dir / CLOCK_RECORD)
        collect_leftovers(place, Files(), clock)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged."""
        Committer(self._write).abort(_parts(messages))


class StreamWriter(StreamArrowWriter):  # type: ignore[misc]
    """Appends each batch of a query once, under the query's own identity.

    Args:
        place: of the stream.
        options: of the sink.
    """

    def __init__(self, place: StreamLocation, options: Mapping[str, str]) -> None:
        self._place, self._options = place, dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task; called in a worker."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY) if context is not None else None
        number = context.getLocalProperty(BATCH) if context is not None else None
        if context is None or query is None or number is None:
            raise InternalError("Spark did not say of which query and batch a task is")
        stager = Stager(query_write(self._place, query), int(number), context.partitionId())
        return Staged(tuple(stager.stage(iterator)), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append what the tasks have staged, unless the batch is there already."""
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            checkpoint = Checkpoint.of(self._options, Files())
            committer = Committer(query_write(self._place, query), checkpoint=checkpoint)
            committer.commit(batchId, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was staged: the batch is run again, and then it is removed."""


def query_write(place: StreamLocation, query: str) -> BatchWriterId:
    """Return who appends for a streaming query."""
    return BatchWriterId(place, f"{QUERIES}{query}")


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _parts(messages: list[WriterCommitMessage | None]) -> list[StagedPart]:
    return [part for message in messages if isinstance(message, Staged) for part in message.parts]


def prepare_stream(place: StreamLocation, options: Mapping[str, str], schema: StructType) -> None:
    """Make sure that the stream is there and takes a DataFrame's columns; create it if wanted.

    Raises:
        InvalidInputError: it is not there, and the option ``create`` is not set; or it has
            other columns.
    """
    is_created = options.get("create", "false").lower() == "true"
    wanted = arrow_schema(schema)
    with place.open() as bus:
        if place.stream not in {*bus.names(), *bus.aliases()}:
            if not is_created:
                raise InvalidInputError(
                    f"no stream {place.stream!r}; create it, or let it be made of the columns with "
                    '.option("create", True)',
                    stream=place.stream,
                )
            partitions = number_of(options, "partitions", 1) or 1
            spec = StreamSpec(
                place.stream, partitions, wanted, options.get("time"), names_of(options, "key")
            )
            bus.create(spec, exist_ok=True)
        spec = bus.stream(place.stream).spec
    added = {name for name, _ in spec.added}
    missing = [name for name in spec.schema.names if name not in {*wanted.names, *added}]
    extra = [name for name in wanted.names if name not in spec.schema.names]
    if missing or extra:
        raise InvalidInputError(
            f"the columns are not those of stream {spec.name!r}: missing {missing}, not expected "
            f"{extra}; select {spec.schema.names}",
            stream=spec.name,
        )
    _check_types(wanted, spec)


def _check_types(wanted: pa.Schema, spec: StreamSpec) -> None:
    """Refuse types of which no value fits, before any task runs."""
    for field in wanted:
        column = pa.table([pa.array([], field.type)], [field.name])
        try:
            normalise(column, pa.schema([spec.schema.field(field.name)]))
        except InvalidInputError as error:
            error.fields.update(stream=spec.name)
            raise


NAME = "headrace"


class StreamSource(DataSource):
    """Registers as ``headrace``.

    ``folder`` and ``home`` are the working folder, and the home of the settings, of the process
    that registers it: Spark asks a source in processes of its own, which have others.
    """

    folder = home = ""

    @classmethod
    def name(cls) -> str:
        """Return the name used with ``format``."""
        return NAME

    def _place(self) -> StreamLocation:
        return location_of({"home": self.home, **self.options}, self.folder)

    def _home(self) -> str:
        return home_of({"home": self.home, **self.options}, self.folder)

    def schema(self) -> StructType:
        """Return the columns of the stream, and where each row is from; or those of a table."""
        asked = self.options.get(LIST, "")
        if asked not in ("", COLUMNS):  # names, which this is the only way to give
            names = listed(self._home(), asked)
            return StructType([StructField(name, NullType()) for name in names])
        options = {name: value for name, value in self.options.items() if name != LIST}
        check_known(options, READ)
        if asked and not is_listed(self._home(), options):
            return StructType()
        if is_job_table(options):
            return table_schema(job_table(self._home(), options), options)
        place = self._place()
        with place.open() as bus:
            spec = bus.stream(place.stream).spec
        return ReadColumns(spec, names_of(self.options, "columns")).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the stream or the table once."""
        check_known(self.options, READ)
        if is_job_table(self.options):
            return TableReader(job_table(self._home(), self.options), self.options, schema)
        if "run" in self.options:
            return RunReader(self._place(), self.options, schema)
        return BatchReader(self._place(), self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the source of a query.

        Raises:
            InvalidInputError: it is a table, which has no offsets.
        """
        check_known(self.options, READ)
        if is_job_table(self.options):
            raise InvalidInputError(
                "state, metadata and tables of the warehouse are read with spark.read; for their "
                "changes read the job's output streams with readStream"
            )
        return StreamReader(self._place(), self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what appends a DataFrame."""
        place = self._checked(schema, is_overwriting=overwrite)
        return BatchWriter(place, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what appends the batches of a query."""
        return StreamWriter(self._checked(schema, is_overwriting=overwrite), self.options)

    def _checked(self, schema: StructType, *, is_overwriting: bool) -> StreamLocation:
        check_known(self.options, WRITE)
        if is_overwriting:
            raise InvalidInputError(
                'a stream cannot be overwritten; append with mode("append") or outputMode("append")'
            )
        place = self._place()
        prepare_stream(place, self.options, schema)
        return place


def is_connect(spark: SparkSession) -> bool:
    """Say whether a session is one of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")


def register_source(spark: SparkSession) -> None:
    """Make the data source alone known to a session."""

    class HomeSource(StreamSource):
        """Takes what is not said from the process that registers it."""

        folder = str(Path.cwd())
        home = str(load_settings(project=project_file()).home)

    # Spark refuses a name that the active session alone has; a client of Connect has one session.
    with nullcontext() if is_connect(spark) else while_active(spark):
        spark.dataSource.register(HomeSource)
