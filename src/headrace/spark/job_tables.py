"""What jobs have committed, as tables of the data source ``headrace``.

A store at a kept epoch (options ``job``, ``store``, ``epoch``), as of Spark's own ``statestore``;
the kept epochs themselves (``job``, ``metadata``); and daily tables of the warehouse (``table``,
``days``). All are read from files that manifests and snapshots name, whether the job runs or not.
Which epoch or snapshot is meant is decided once, when the query is planned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.bus import open_bus
from headrace.config import Settings, load_settings
from headrace.coordinator.bindings import readable_names
from headrace.coordinator.commit_log import retained_states
from headrace.coordinator.inspection.job_reader import JobReader, part_readers, reader_of
from headrace.coordinator.manifest import JobState, state_bytes
from headrace.coordinator.worker_host import state_dir_here
from headrace.errors import InvalidInputError
from headrace.files import local_copy
from headrace.graph.sinks import installed_warehouse
from headrace.records.keys import group_range
from headrace.remote import is_remote, on_host
from headrace.runtime.orders import NO_WATERMARK
from headrace.spark.row_conditions import condition_columns, conditions_of, kept_rows
from headrace.spark.source_options import as_spark, names_of
from headrace.spark.versions import arrow_schema, spark_type

DAY = "ds"
_INPUT = pa.struct([("input", pa.string()), ("partition", pa.int32()), ("next_offset", pa.int64())])
EPOCHS = pa.schema(
    [
        ("part", pa.string()),
        ("epoch", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("generation", pa.int64()),
        ("lineage", pa.string()),
        ("run", pa.int64()),
        ("ended", pa.bool_()),
        ("inputs", pa.list_(_INPUT)),
        ("watermarks", pa.map_(pa.string(), pa.int64())),
        ("tasks", pa.int32()),
        ("state_bytes", pa.int64()),
        ("durability", pa.string()),
        ("digest", pa.string()),
    ]
)
"""Columns of ``metadata``; watermarks are event times in ms, by stage or input."""


@dataclass(frozen=True)
class TablePart(InputPartition):
    """What one task reads: key groups of a store, or a file of a table."""

    groups: tuple[int, int] = (0, 0)
    file: str = ""


class JobTable(ABC):
    """A table that does not change while it is read."""

    name: str

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Its columns, as they are stored."""

    @abstractmethod
    def parts(self) -> list[TablePart]:
        """What tasks read, one each."""

    @abstractmethod
    def rows(self, part: TablePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, with these columns or more."""


@dataclass(frozen=True)
class StateTable(JobTable):
    """A store of a job at one epoch; a task for each task of the job.

    Args:
        home: folder of jobs.
        job: name of the job, and that of its part.
        part: the same, of a job of one part.
        name: of the store.
        epoch: a kept one.
    """

    home: str
    job: str
    part: str
    name: str
    epoch: int

    @classmethod
    def of(cls, home: str, options: Mapping[str, str]) -> StateTable:
        """Return the store that options name.

        Raises:
            InvalidInputError: no such job or store, or the epoch is not kept.
        """
        job, store = options["job"], options["store"]
        reader = reader_of(part_readers(_settings(home), job), store)
        state = reader.state(_epoch(options))
        return cls(home, job, reader.job, reader.entry(state, store).name, state.epoch)

    def _reader(self) -> JobReader:
        found = part_readers(_settings(self.home), self.job)
        return next(one for one in found if one.job == self.part)

    @property
    def schema(self) -> pa.Schema:
        """Columns of key and value."""
        return self._reader().view(self.name, self.epoch).schema

    def parts(self) -> list[TablePart]:
        """Return the key groups of each task of the store's stage."""
        reader = self._reader()
        state = reader.state(self.epoch)
        count = state.task_counts.get(reader.entry(state, self.name).stage, 1)
        ranges = (group_range(task, count, state.key_groups) for task in range(count))
        return [TablePart(groups=(begin, end)) for begin, end in ranges]

    def rows(self, part: TablePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the entries of some key groups."""
        return self._reader().view(self.name, self.epoch).batches(groups=part.groups)


@dataclass(frozen=True)
class EpochTable(JobTable):
    """The kept epochs of a job, of each of its parts."""

    home: str
    name: str

    @property
    def schema(self) -> pa.Schema:
        """Columns of all jobs."""
        part_readers(_settings(self.home), self.name)  # which refuses a job that there is not
        return EPOCHS

    def parts(self) -> list[TablePart]:
        """Return one: manifests follow each other."""
        return [TablePart()]

    def rows(self, part: TablePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the epochs, the oldest first."""
        for reader in part_readers(_settings(self.home), self.name):
            newest = reader.kept().newest
            for state in retained_states(reader.log, newest):
                yield pa.RecordBatch.from_pylist([_epoch_row(reader.job, state)], EPOCHS)


def _epoch_row(part: str, state: JobState) -> dict[str, object]:
    inputs = [
        {"input": name, "partition": partition, "next_offset": position.next_offset}
        for name, positions in state.inputs.items()
        for partition, position in sorted(positions.items())
    ]
    return {
        "part": part,
        "epoch": state.epoch,
        "time": state.time_ms * 1000,
        "generation": state.generation,
        "lineage": state.lineage,
        "run": state.run,
        "ended": state.ended,
        "inputs": inputs,
        "watermarks": [(of, at) for of, at in state.watermarks.items() if at != NO_WATERMARK],
        "tasks": len(state.tasks),
        "state_bytes": sum(state_bytes(task) for task in state.tasks.values()),
        "durability": state.durability,
        "digest": state.digest,
    }


@dataclass(frozen=True)
class DayTable(JobTable):
    """A table of the warehouse, of its files as of one snapshot; a task for each file."""

    home: str
    name: str
    columns: pa.Schema
    files: tuple[str, ...]

    @classmethod
    def of(cls, home: str, options: Mapping[str, str]) -> DayTable:
        """Return the snapshot that is the newest now.

        Raises:
            InvalidInputError: no such table, or days that are none.
        """
        warehouse = _settings(home).warehouse_dir
        table = installed_warehouse().named_table(warehouse, options["table"])
        return cls(home, table.name, table.schema, tuple(table.places(options.get("days"))))

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table, and the day."""
        return self.columns.append(pa.field(DAY, pa.date32()))

    def parts(self) -> list[TablePart]:
        """Return the files."""
        return [TablePart(file=file) for file in self.files]

    def rows(self, part: TablePart, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with its day."""
        path = Path(part.file)
        day = date.fromisoformat(path.parent.name.partition("=")[2])
        if is_remote(path):  # planned on another host, whose disk this one need not have
            path = on_host(path, state_dir_here(_settings(self.home)))
        with pq.ParquetFile(local_copy(path)) as file:
            there = file.schema_arrow.names
            wanted = [name for name in names if name in there]
            for batch in file.iter_batches(columns=wanted or there[:1]):
                arrays = {name: batch.column(name) for name in batch.schema.names}
                for name in names:
                    if name == DAY:
                        arrays[DAY] = pa.repeat(pa.scalar(day, pa.date32()), batch.num_rows)
                    elif name not in arrays:  # of a column that is newer than the file
                        arrays[name] = pa.nulls(batch.num_rows, self.columns.field(name).type)
                yield pa.RecordBatch.from_pydict(arrays)


def _settings(home: str) -> Settings:
    return load_settings(None, [f"home={home}"])


def _epoch(options: Mapping[str, str]) -> int | None:
    text = options.get("epoch")
    if text is None:
        return None
    if not text.strip().removeprefix("-").isdigit():
        raise InvalidInputError(
            f"option epoch is {text!r}; expected a kept epoch, or -5: five before the last"
        )
    return int(text)


def is_job_table(options: Mapping[str, str]) -> bool:
    """Say whether options name one of these tables, and not a stream."""
    return "job" in options or "table" in options


def job_table(home: str, options: Mapping[str, str]) -> JobTable:
    """Return the table that options name.

    Raises:
        InvalidInputError: they name none, or several; or there is none of that name.
    """
    if "stream" in options or "path" in options or ("job" in options and "table" in options):
        raise InvalidInputError("name one of a stream, a job and a table of the warehouse")
    if "table" in options:
        return DayTable.of(home, options)
    is_metadata = options.get("metadata", "false").lower() == "true"
    if is_metadata == ("store" in options):
        raise InvalidInputError(
            "option job names a job; say what of it is read: store=NAME, or metadata=true"
        )
    return EpochTable(home, options["job"]) if is_metadata else StateTable.of(home, options)


def table_schema(table: JobTable, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table as Spark's, those that are wanted.

    Raises:
        InvalidInputError: a column that it has not.
    """
    schema, found = table.schema, StructType()
    for name in names_of(options, "columns") or schema.names:
        if name not in schema.names:
            raise InvalidInputError(
                f"no column {name!r} of {table.name!r}; expected some of {schema.names}"
            )
        found.add(name, spark_type(as_spark(schema.field(name).type)))
    return found


class TableReader(DataSourceReader):
    """Reads a table of a job or of the warehouse.

    Args:
        table: which.
        options: of the source.
        schema: of the result.
    """

    def __init__(self, table: JobTable, options: Mapping[str, str], schema: StructType) -> None:
        table_schema(table, {"columns": ",".join(schema.fieldNames())})
        self._table, self._schema = table, schema
        stored = table.schema
        self._conditions = conditions_of(options, stored, table.name)
        self._condition_columns = [
            name
            for condition in self._conditions
            for name in condition_columns(condition, stored, table.name)
        ]

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read."""
        return self._table.parts()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; called in a worker."""
        if not isinstance(partition, TablePart):  # Spark's own, where there is nothing to read
            return
        target = arrow_schema(self._schema)
        names = list(dict.fromkeys([*target.names, *self._condition_columns]))
        for batch in self._table.rows(partition, names):
            found = kept_rows(self._conditions, batch)
            if found.num_rows:
                arrays = [found.column(field.name).cast(field.type) for field in target]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)


def listed(home: str, of: str) -> list[str]:
    """Return names for the catalog.

    Args:
        home: folder of streams and jobs.
        of: ``streams``, ``jobs``, ``warehouse``, or ``stores JOB``.

    Raises:
        InvalidInputError: no such job.
    """
    settings = _settings(home)
    kind, _, job = of.partition(" ")
    if kind == "streams":
        with open_bus(settings.bus_dir) as bus:
            return sorted([*readable_names(bus), *bus.aliases()])
    if kind == "warehouse":
        return sorted(
            t.name for t in installed_warehouse().readable_tables(settings.warehouse_dir)[0]
        )
    if kind == "jobs":
        folder = settings.jobs_dir
        names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
        return [name for name in names if any((folder / name / "manifests").glob("*"))]
    return sorted(
        entry.name
        for reader in part_readers(settings, job)
        for entry in reader.catalog(reader.state()).stores
        if entry.in_files
    )


def is_listed(home: str, options: Mapping[str, str]) -> bool:
    """Say whether the catalog has what options name: a stream, a store, a job or a table.

    Args:
        home: folder of streams and jobs.
        options: as the catalog gives them.
    """
    if "table" in options:
        return options["table"] in listed(home, "warehouse")
    if "stream" in options:
        return options["stream"] in listed(home, "streams")
    job, store = options["job"], options.get("store")
    if job not in listed(home, "jobs"):
        return False
    return store is None or store in listed(home, f"stores {job}")
