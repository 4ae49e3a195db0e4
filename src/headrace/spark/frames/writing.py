"""Appends DataFrames to a stream: once, or as the sink of a streaming query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.bus.spec import StreamSpec
from headrace.clock import SystemClock
from headrace.errors import InternalError, InvalidInputError
from headrace.files import Files
from headrace.records.schema import normalise
from headrace.spark.frames.columns import arrow_schema
from headrace.spark.frames.options import Place, names_of, number_of
from headrace.spark.frames.staging import Committer, Part, Stager, Write, collect_leftovers

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's own names for the query and the batch that a task is of."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task answers: where its rows are, and the query that it is of."""

    parts: tuple[Part, ...]
    query: str = ""


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame when all of its tasks have ended.

    Args:
        place: of the stream.
        options: of the sink.
    """

    def __init__(self, place: Place, options: Mapping[str, str]) -> None:
        name = options.get("writeId")
        unique = SystemClock().new_id() if name is None else name
        self._write = Write(place, f"write {unique}", is_once=name is None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task; called in a worker."""
        return Staged(tuple(Stager(self._write, 0, _task()).stage(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged."""
        Committer(self._write).commit(0, _parts(messages))
        collect_leftovers(self._write.place, Files(), SystemClock())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged."""
        Committer(self._write).abort(_parts(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each batch of a query once, under the query's own identity.

    Args:
        place: of the stream.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task; called in a worker."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY) if context is not None else None
        number = context.getLocalProperty(BATCH) if context is not None else None
        if context is None or query is None or number is None:
            raise InternalError("Spark did not tell of which query and batch a task is")
        stager = Stager(query_write(self._place, query), int(number), context.partitionId())
        return Staged(tuple(stager.stage(iterator)), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append what the tasks have staged, unless the batch is there already."""
        for query in {message.query for message in messages if isinstance(message, Staged)}:
            Committer(query_write(self._place, query)).commit(batchId, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was staged: the batch is run again, and then it is removed."""


def query_write(place: Place, query: str) -> Write:
    """Return who appends for a streaming query."""
    return Write(place, f"query {query}")


def _task() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part]:
    return [part for message in messages if isinstance(message, Staged) for part in message.parts]


def prepare_stream(place: Place, options: Mapping[str, str], schema: StructType) -> None:
    """Make sure that the stream is there and takes a DataFrame's columns; create it if told so.

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
