"""Rows of a batch DataFrame as files of a bounded run, which its source stage maps and reads.

Spark's tasks write what the job reads of the DataFrame to Arrow files in the job's storage. Once
all are durable, the driver publishes a list of them: only what is in it counts, and the run reads
it however often it is resumed, rewound or retried, as it reads files of the settings. They are
removed with the next run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.bus import Bus, StreamSpec
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.deployment import make_plan
from headrace.errors import CorruptDataError, HeadraceError, UnavailableError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.graph.operators import JobGraph
from headrace.records.schema import normalise
from headrace.sources.bounded_bus import BoundedInputBus, preview_inputs
from headrace.sources.listing import (
    ARROW,
    ROW_GROUP,
    BoundedSource,
    FileSplit,
    SourceFile,
    stream_of,
)
from headrace.spark.arrow_rows import arrow_writer
from headrace.spark.java_classes import (
    JAVA_ERRORS,
    java_cause,
    java_frame,
    new_object,
    ship_classes,
)
from headrace.spark.staging import by_partition
from headrace.spark.versions import arrow_schema

_UNLINKED = re.compile(r"java\.lang\.(ClassNotFoundException|\w*(Link|Class|Method|Field)\w*Error)")
LIST = "rows.json"
FOLDER = "rows"


def read_columns(
    graph: JobGraph, bus: Bus, settings: Settings, inputs: Mapping[str, StreamSpec]
) -> dict[str, tuple[str, ...]]:
    """Return which columns of its DataFrames a job reads, by the name of the input.

    All of them where that is not known yet: then the job cannot be planned, and its run says why.

    Args:
        graph: of the job.
        bus: the streams.
        settings: of the run.
        inputs: the streams that DataFrames stand for, by the names of the inputs.
    """
    wanted = {name: tuple(spec.schema.names) for name, spec in inputs.items()}
    try:
        known = BoundedInputBus(preview_inputs(graph, bus, settings), absent_sources(inputs))
        plan = make_plan(graph, known, settings)
    except HeadraceError:
        return wanted
    read = {one.operator: one.reads for one in plan.reads}
    found = {}
    for name, spec in inputs.items():
        needed = {*read.get(name, wanted[name]), *spec.key, spec.time}
        found[name] = tuple(one for one in wanted[name] if one in needed) or wanted[name][:1]
    return found


def absent_sources(inputs: Mapping[str, StreamSpec]) -> dict[str, BoundedSource]:
    """Return what a job is planned with before its DataFrames are read, by their streams."""
    return {
        spec.name: BoundedSource(
            "", **stream_of(spec), form=ARROW, partitions=((),) * spec.partitions
        )
        for spec in inputs.values()
    }


class _Written(msgspec.Struct, frozen=True):
    """What a task answers: its file, and partition and rows of each batch in it; or the error."""

    task: int
    file: str
    bytes: int = 0
    units: list[tuple[int, int]] = []
    error: str = ""


@dataclass(frozen=True)
class RowFiles:
    """The files of one input.

    Args:
        folder: of the job's storage, for the input.
        files: what holds the driver's part of it.
        clock: for names.
    """

    folder: Path
    files: FencedFiles
    clock: Clock

    def listed(self) -> BoundedSource | None:
        """Return what the run reads; ``None``: the list is not published.

        Raises:
            CorruptDataError: it cannot be read.
        """
        path = self.folder / LIST
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(self.files.read(path), type=BoundedSource)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"{path} cannot be read: {error}", file=str(path)) from error

    def write(
        self, frame: DataFrame, spec: StreamSpec, columns: Sequence[str], said: str
    ) -> BoundedSource:
        """Let Spark write the rows, and publish which files they are in.

        Args:
            frame: in the order in which rows are read.
            spec: of the stream that they stand for.
            columns: that the job reads.
            said: what it is, in words.

        Raises:
            UnavailableError: the disk of a task refused.
            NotOwnerError: a newer driver has begun meanwhile.
        """
        rows = self.folder / FOLDER
        self.files.remove_tree(rows)
        kept = frame.select(*(F.col(f"`{name.replace('`', '``')}`") for name in columns))
        place = partial(_by_key, key=spec.key, partitions=spec.partitions)
        by_key = place if spec.key and spec.partitions > 1 else None
        name = self.clock.new_id()
        answers = None if by_key else _written_by_java(kept, rows, name, spec.partitions)
        if answers is None:
            write = arrow_writer(str(rows), name, spec.partitions, by_key)
            found = kept.mapInArrow(write, "answer binary").collect()
            answers = [row["answer"] for row in found]
        tasks = [msgspec.json.decode(one, type=_Written) for one in answers]
        for one in tasks:
            if one.error:
                raise UnavailableError(
                    f"rows of {said} cannot be written to {one.file}: {one.error}; free the disk, "
                    "and run it again",
                    file=one.file,
                )
        source = _source(spec, tasks, columns, said)
        fault("spark.rows_written")
        self.files.replace(self.folder / LIST, msgspec.json.encode(source))
        return source


def _source(
    spec: StreamSpec, tasks: Iterable[_Written], columns: Sequence[str], said: str
) -> BoundedSource:
    """Return rows in the order of Spark's tasks."""
    files: list[SourceFile] = []
    partitions: list[list[FileSplit]] = [[] for _ in range(spec.partitions)]
    for one in sorted(tasks, key=lambda one: one.task):
        for number, (partition, rows) in enumerate(one.units):
            unit = FileSplit(len(files), number, number + 1, ROW_GROUP, rows)
            partitions[partition].append(unit)
        if one.units:
            files.append(SourceFile(one.file, one.bytes, "\n".join(columns)))
    units = tuple(map(tuple, partitions))
    return BoundedSource(said, **stream_of(spec), form=ARROW, files=tuple(files), partitions=units)


def _written_by_java(
    frame: DataFrame, folder: Path, name: str, partitions: int
) -> list[str] | None:
    """Write rows in the JVMs of the tasks; ``None``: they cannot load or link the class for it."""
    context, java = frame.sparkSession.sparkContext, java_frame(frame)
    schema = arrow_schema(frame.schema).serialize().to_pybytes()
    try:
        writer = new_object(context, "RowFiles", schema, str(folder), name, partitions)
        ship_classes(context)
        return list(writer.write(java))
    except JAVA_ERRORS as error:
        if _UNLINKED.match(java_cause(error)):
            return None
        raise


def _by_key(
    rows: pa.RecordBatch, key: Sequence[str], partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Place rows as a stream would."""
    return by_partition(rows, normalise(rows.select(list(key))), partitions)
