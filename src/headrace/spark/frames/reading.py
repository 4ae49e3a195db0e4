"""Reads ranges of a stream for Spark: once, or as the source of a streaming query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.bus.spec import OffsetBatch
from headrace.clock import SystemClock
from headrace.config.starts import EARLIEST, LATEST
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.records.schema import as_milliseconds
from headrace.spark.frames.columns import Columns, arrow_schema
from headrace.spark.frames.following import check_running, wait_until_taken_in
from headrace.spark.frames.options import (
    SPLIT_ROWS,
    Place,
    begin_of,
    first_offsets,
    last_offsets,
    number_of,
)

NEWS_S = 0.2
"""How long a query without rows waits for some, rather than to be asked again at once."""

STREAM = "stream"
"""Beside the offsets of a checkpoint: of which stream they are."""

BATCH_ROWS = 1 << 16
_TRUE = "__headrace_true"
"""Small appends are put together to this many rows; Spark pays for each batch."""


@dataclass(frozen=True)
class Range(InputPartition):
    """Offsets of a partition, read by one task."""

    partition: int
    start: int
    stop: int


@dataclass(frozen=True)
class RangeReader:
    """Reads a range as Spark's rows; travels to the workers.

    Args:
        place: of the stream.
        columns: of the stream, as they were when the query was planned.
        schema: of the result.
        where: a condition on columns of the stream, as ``polars.sql_expr`` takes it.
        since: rows with an earlier event time are left out.
        before: rows with this event time or a later one are left out.
    """

    place: Place
    columns: Columns
    schema: StructType
    where: str = ""
    since: int | None = None
    before: int | None = None

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        target = arrow_schema(self.schema)
        with self.place.open() as bus:
            stream = bus.stream(self.place.stream)
            found = stream.read(
                wanted.partition, wanted.start, wanted.stop, columns=self._needed(target.names)
            )
            batches = (
                self.columns.result(self._kept(rows), wanted.partition, target) for rows in found
            )
            yield from _together(batches)

    def _needed(self, names: Sequence[str]) -> list[str]:
        found = self.columns.needed(names)
        spec = self.columns.spec
        more = condition_columns(self.where, self.columns) if self.where else []
        if (self.since, self.before) != (None, None):
            more.append(str(spec.time))
        found += [name for name in dict.fromkeys(more) if name not in found]
        # How many rows there are, one column has to tell.
        return found or list(spec.schema.names[:1])

    def _kept(self, found: OffsetBatch) -> OffsetBatch:
        """Return the rows that are wanted, with their offsets."""
        masks = []
        if (self.since, self.before) != (None, None):
            times = as_milliseconds(found.batch.column(self.columns.spec.time))
            masks += [pc.greater_equal(times, self.since)] if self.since is not None else []
            masks += [pc.less(times, self.before)] if self.before is not None else []
        if self.where:
            import polars as pl  # noqa: PLC0415 - of a worker that needs it

            rows = pl.from_arrow(found.batch)
            assert isinstance(rows, pl.DataFrame)
            found_true = rows.with_columns(pl.sql_expr(self.where).alias(_TRUE)).get_column(_TRUE)
            masks.append(found_true.to_arrow())
        if not masks:
            return found
        mask = pc.fill_null(reduce(pc.and_, masks), False)
        places = found.offsets[mask.to_numpy(zero_copy_only=False)]
        return OffsetBatch(found.first_offset, found.batch.filter(mask), places, found.next_offset)


def condition_columns(where: str, columns: Columns) -> list[str]:
    """Return the columns of the stream that a condition reads.

    Raises:
        InvalidInputError: it is none, or reads others, or more of the stream than each row.
    """
    import polars as pl  # noqa: PLC0415 - of who gives a condition

    def refusal(why: str) -> InvalidInputError:
        return InvalidInputError(
            f"option where is {where!r}: {why}; give a condition as SQL, such as: delay > 30 and "
            "origin = 'JFK'"
        )

    own = columns.spec.schema
    try:
        condition = pl.sql_expr(where)
        names = condition.meta.root_names()
        wrong = [name for name in names if name not in own.names]
        if wrong:
            raise InvalidInputError(
                f"option where reads {wrong[0]!r}; expected columns of the stream: {own.names}",
                stream=columns.spec.name,
            )
        nulls = pl.DataFrame(own.empty_table()).clear(3)
        rows = nulls.with_columns(condition.alias(_TRUE))
        plan = nulls.lazy().with_columns(condition.alias(_TRUE)).slice(1, 1).explain()
    except pl.exceptions.PolarsError as error:
        raise refusal(str(error).splitlines()[0]) from error
    if rows.schema[_TRUE] != pl.Boolean:
        raise refusal(f"it is {rows.schema[_TRUE]}, not true or false")
    if plan.lstrip().startswith("SLICE"):  # which goes ahead of what is told row by row
        raise refusal(
            "it takes several rows together, and Spark reads a stream in pieces; expected what "
            "each row tells by itself, or where() of the DataFrame"
        )
    return list(names)


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield _joined(held)
            held, rows = [], 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class BatchReader(DataSourceReader):
    """Reads what a stream holds when the query is planned.

    It takes no conditions of the query by ``pushFilters``: Spark 4.3 keeps the reader that was
    given some, and uses it for other queries of the same DataFrame, which then lack rows.

    Args:
        place: of the stream.
        options: of the source.
        schema: of the result.
    """

    def __init__(self, place: Place, options: Mapping[str, str], schema: StructType) -> None:
        self._place = place
        self._start = begin_of(options, "start", EARLIEST)
        self._end = begin_of(options, "end", LATEST)
        self._split = number_of(options, "splitRows", SPLIT_ROWS) or SPLIT_ROWS
        with place.open() as bus:
            columns = Columns(bus.stream(place.stream).spec)
        place = self._place = replace(place, stream=columns.spec.name)
        columns.check(schema.fieldNames())
        where = options.get("where", "")
        if where:
            condition_columns(where, columns)
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
        for partition, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            found += [
                Range(partition, begin, min(begin + self._split, stop))
                for begin in range(start, stop, self._split)
            ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; called in a worker."""
        if not isinstance(partition, Range):  # Spark's own, where there is nothing to read
            return iter(())
        return self._reader.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a streaming query; its offsets are those of the partitions.

    Runs in a process of its own beside the driver, and reads in the workers.
    """

    def __init__(self, place: Place, options: Mapping[str, str], schema: StructType) -> None:
        self._place = place
        self._start = begin_of(options, "start", EARLIEST)
        self._most = number_of(options, "maxRows", None)
        self._until: list[int] | None = None
        self._follows = Path(options["follows"]) if "follows" in options else None
        if "end" in options:
            raise InvalidInputError(
                "a streaming query has no end; use trigger(availableNow=True), or spark.read"
            )
        self._open()
        # An alias may be swapped; offsets are those of one stream.
        place = self._place = replace(place, stream=self._stream.spec.name)
        columns = Columns(self._stream.spec)
        columns.check(schema.fieldNames())
        where = options.get("where", "")
        if where:
            condition_columns(where, columns)
        self._reader = RangeReader(place, columns, schema, where)

    def _open(self) -> None:
        self._bus = self._place.open()
        self._stream = self._bus.stream(self._place.stream)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open: Spark copies the reader with every batch."""
        return {"_reader": self._reader}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return self._packed(first_offsets(self._stream, self._start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a batch reads."""
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than what is there now; of a job's results, once it has caught up."""
        if self._follows is not None:
            wait_until_taken_in(self._follows, Files(sync=False), SystemClock())
        self._until = self._stream.ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the stream, for the query's progress."""
        return self._packed(self._stream.ends())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends: at what there is now, or within a moment."""
        if self._follows is not None:
            check_running(self._follows)
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
        first = self._stream.begins() if _count(start) < count else []
        return [int(start[str(p)]) if str(p) in start else first[p] for p in range(count)]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a batch, a task for each."""
        begins = self._begins(start, _count(end))
        return [
            Range(partition, begin, int(end[str(partition)]))
            for partition, begin in enumerate(begins)
            if begin < int(end[str(partition)])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; called in a worker."""
        assert isinstance(partition, Range)
        return self._reader.read(partition)

    def stop(self) -> None:
        """Let go of the bus."""
        self._bus.close()

    def _packed(self, offsets: Sequence[int]) -> dict[str, Any]:
        found: dict[str, Any] = {str(p): offset for p, offset in enumerate(offsets)}
        return found | {STREAM: self._place.stream}

    def _check(self, begins: Sequence[int], ends: Sequence[int]) -> None:
        """Refuse a stream that has fewer rows than were read: rows would be passed over."""
        for partition, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            if begin > end:
                raise InvalidInputError(
                    f"the query has read partition {partition} of stream {self._place.stream!r} up "
                    f"to offset {begin}, and it ends at {end}: the stream was made anew; begin "
                    "with a new checkpoint",
                    stream=self._place.stream,
                )


def _count(offsets: Mapping[str, Any]) -> int:
    """Of how many partitions offsets are."""
    return len(offsets) - (STREAM in offsets)


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
