"""Headrace for PySpark pipelines and notebooks: streams and tables in SQL, state for DataFrames.

``session`` and ``register`` make streams and warehouse tables known to Spark SQL. ``results`` gives
what a bounded run of a job sends as DataFrames; the first action on one of them runs it.
``stateful`` runs stateful code over a DataFrame: a batch one through such a job; a streaming one
feeds a job that runs in this process beside the caller's queries, and the stream that it sends is
the DataFrame which the caller gets. The job's manifests and Spark's checkpoint make each row count
once in the state, the checkpoint of the caller's own query each result once in what that writes.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, DateType, StructField, StructType

from headrace.bus import StreamSpec, open_bus
from headrace.clock import Deadline, SystemClock
from headrace.config import Settings, load_settings, project_file
from headrace.coordinator.bindings import readable_names
from headrace.coordinator.dataframe_inputs import with_dataframes
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.job_group import JobGroup
from headrace.durations import Duration
from headrace.errors import HeadraceError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.builder import Graph, Job, Stream
from headrace.graph.introspection import renamed_arguments
from headrace.graph.operators import frame_stream
from headrace.graph.sinks import StoredTable, installed_warehouse
from headrace.graph.types import to_schema
from headrace.graph.windows import Window, global_window
from headrace.records.schema import unique_names
from headrace.spark.data_source import NAME, StreamSource, is_connect, register_source
from headrace.spark.java_classes import register_catalog, while_active
from headrace.spark.lazy_runs import LazyRuns, run_whole
from headrace.spark.run import run_job
from headrace.spark.sessions import build_session
from headrace.spark.slot_rdd import first_line, runs_in_driver
from headrace.spark.source_options import (
    FAILED,
    READ,
    WRITE,
    ReadColumns,
    answer_name,
    open_requests,
)
from headrace.spark.versions import arrow_schema, spark_schema

if TYPE_CHECKING:
    from headrace.spark.grouped_state import GroupedState


def register_tables(
    spark: SparkSession, warehouse: Path, query: str = ""
) -> dict[str, HeadraceError]:
    """Make the tables of a warehouse known to a session, each as its newest snapshot has it.

    Args:
        spark: the session.
        warehouse: folder of the tables.
        query: of tables in an object storage only those that it names, for they are fetched.

    Returns:
        Why the others cannot be read.
    """
    tables, failed = installed_warehouse().readable_tables(warehouse)
    for table in tables:
        if not table.is_remote or table.name.lower() in query.lower():
            register_table(spark, table)
    return failed


def register_table(spark: SparkSession, table: StoredTable, days: str | None = None) -> None:
    """Make the snapshot of one table known to a session, under its name.

    Args:
        spark: the session.
        table: with the snapshot.
        days: only these, as ``Table.files`` takes them.
    """
    master = str(spark.sparkContext.master)
    if table.is_remote and not runs_in_driver(master):
        raise InvalidInputError(
            f"table {table.name!r} is in an object storage, and views of it need a master whose "
            f"tasks are on this host, such as local[2]; found {master}: read it by "
            "spark.read.format('headrace').option('table', ...)"
        )
    files = table.files(days)
    base = str(Path(files[0]).parent.parent) if files else ""
    columns = spark_schema(table.schema)
    kind: DataType = DateType()
    schema = StructType([*columns.fields, StructField("ds", kind)])
    if files:
        reader = spark.read.schema(schema).option("basePath", base)
        frame = reader.parquet(*files)
    else:
        frame = spark.createDataFrame([], schema)
    frame.createOrReplaceTempView(f"`{table.name}`")


def query_rows(spark: SparkSession, query: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query.

    Args:
        spark: the session, which knows the tables.
        query: in Spark's SQL.

    Raises:
        InvalidInputError: Spark refuses it.
    """
    try:
        found = spark.sql(query)
        for row in found.toDF(*unique_names(found.columns)).toLocalIterator():
            yield row.asDict(recursive=True)
    except PySparkException as error:
        raise InvalidInputError(f"Spark: {first_line(error)}") from error


STREAMS, WAREHOUSE = "streams", "warehouse"
_NOT_SQL = re.compile(r"\W")


def session(
    master: str | None = None,
    home: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or use the active session, and register Headrace with it.

    Streams are SQL tables: ``select * from streams.flights``; characters that a table's name
    cannot have become ``_``. Tables of the warehouse have their own names, and the column ``ds``.
    Only existing streams and tables are registered; call this or ``register`` again for later
    ones.

    Args:
        master: as Spark names it; by default what ``headrace.toml`` or the environment say.
        home: folder of streams and jobs; by default that of the settings.
        conf: other Spark settings, for a session that is started.

    Raises:
        InvalidInputError: Spark Connect, or no master.
        UnavailableError: Java does not start.
    """
    settings = _settings(home)
    log = settings.home / "spark" / "spark.log"
    given = {**settings.spark.conf, **(conf or {})}
    found = build_session(master or settings.spark.master, "headrace", log, given)
    register(found, settings.home)
    return found


def register(spark: SparkSession, home: str | os.PathLike[str] | None = None) -> None:
    """Register the data source and the catalog ``headrace`` with a session, over a home.

    The catalog lists what is there when it is asked: ``headrace.streams.NAME``,
    ``headrace.state.JOB.STORE``, ``headrace.metadata.JOB``, ``headrace.warehouse.NAME``. Streams
    and tables that exist now are also tables ``streams.NAME`` and ``warehouse.NAME``. Tables of the
    warehouse have their own names, too, and the contents of their latest snapshots.

    With a session of Spark Connect only the data source is registered: the catalog and the tables
    are made in the JVM of the server.

    Args:
        spark: your session.
        home: folder of streams and jobs; by default that of the settings.
    """
    register_source(spark)
    if is_connect(spark):
        return
    settings = _settings(home)
    folder = settings.home
    register_catalog(spark, folder)
    for error in register_tables(spark, settings.warehouse_dir).values():
        warnings.warn(f"passed over: {error}", stacklevel=2)
    with open_bus(folder / "bus") as bus:
        names = [*readable_names(bus), *bus.aliases()]
    place = folder / "spark" / STREAMS
    spark.sql(f"create database if not exists {STREAMS} location '{place.as_uri()}'")
    for table, stream in _tables(names).items():
        source = _source_of(stream, str(folder))
        with while_active(spark):
            spark.dataSource.register(source)
        spark.sql(f"drop table if exists {STREAMS}.`{table}`")
        spark.sql(f"create table {STREAMS}.`{table}` using `{source.name()}`")
    _register_warehouse(spark, folder, settings.warehouse_dir)


def _register_warehouse(spark: SparkSession, folder: Path, tables: Path) -> None:
    """Make tables of the warehouse known as ``warehouse.NAME``, beside the views of their names.

    Not those of Delta, for which Spark has no reader of its own.
    """
    place = folder / "spark" / WAREHOUSE
    spark.sql(f"create database if not exists {WAREHOUSE} location '{place.as_uri()}'")
    for table in installed_warehouse().readable_tables(tables)[0]:
        if not table.is_delta and not table.is_remote and table.files():
            known = f"{WAREHOUSE}.`{_NOT_SQL.sub('_', table.name).lower()}`"
            files = (tables / table.name).as_uri()
            spark.sql(f"drop table if exists {known}")
            spark.sql(
                f"create table {known} using parquet options (mergeSchema 'true') "
                f"location '{files}'"
            )
            spark.sql(f"msck repair table {known}")


class ConnectSessionError(InvalidInputError):
    """A session of Spark Connect was given to run a job, which needs a ``SparkContext``.

    Run the job in a classic session, and read its results here by the data source.
    """

    code = "HR218"
    move = "run the job with headrace run or headrace submit, and read what it sends here"


def _check_classic(spark: SparkSession, what: str) -> None:
    if is_connect(spark):
        raise ConnectSessionError(
            f"{what} runs its job through SparkContext, which a session of Spark Connect does not "
            'have; run it with headrace run, and read its streams here with format("headrace")'
        )


def _settings(home: str | os.PathLike[str] | None, *more: str) -> Settings:
    sets = [] if home is None else [f"home={Path(home)}"]
    return load_settings(None, [*sets, *more], project=project_file())


def _tables(streams: list[str]) -> dict[str, str]:
    """Return the stream of each table; of two that would have one name the first alone."""
    found: dict[str, str] = {}
    for stream in sorted(streams):
        found.setdefault(_NOT_SQL.sub("_", stream).lower(), stream)
    return found


def _source_of(stream: str, home: str) -> type[DataSource]:
    """Return a source of one stream: Spark gives a source of a table no options."""

    class TableSource(StreamSource):
        """Reads and writes one stream."""

        def __init__(self, options: MutableMapping[str, str]) -> None:
            super().__init__(options)
            for option in {name.lower() for name in options} - {*READ, *WRITE}:
                del options[option]  # what Spark's catalogue notes of a table
            options["stream"], options["home"] = stream, home

        @classmethod
        def name(cls) -> str:
            """Return the name used with ``using``."""
            return f"{NAME}.{stream}"

    return TableSource


ROWS = "rows"
FOLDER = "stateful"
START_S = 120.0
ANSWER_S = 10.0
"""So long an answer to a query may take when the job is stopped."""
_BY_CLOCK, _WAITS = "Rate", "Waiting for data to arrive"
POLL_S = 0.05

_running: dict[str, _Running] = {}


@overload
def stateful(
    df: GroupedData,
    *,
    name: str | None = ...,
    home: str | os.PathLike[str] | None = ...,
    settings: Sequence[str] = ...,
) -> GroupedState: ...


@overload
def stateful(
    df: DataFrame,
    key: str | Sequence[str],
    process: Callable[[], Any] | None = ...,
    *,
    aggregate: Mapping[str, Any] | None = ...,
    window: Window | None = ...,
    stores: Any = ...,
    returns: Any = ...,
    time: str | None = ...,
    out_of_orderness: Duration = ...,
    name: str | None = ...,
    home: str | os.PathLike[str] | None = ...,
    settings: Sequence[str] = ...,
) -> DataFrame: ...


@renamed_arguments(lateness="out_of_orderness")
def stateful(  # noqa: PLR0913 - each is a knob of its own, by name
    df: DataFrame | GroupedData,
    key: str | Sequence[str] = (),
    process: Callable[[], Any] | None = None,
    *,
    aggregate: Mapping[str, Any] | None = None,
    window: Window | None = None,
    stores: Any = (),
    returns: Any = None,
    time: str | None = None,
    out_of_orderness: Duration = "0s",
    name: str | None = None,
    home: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
) -> DataFrame | GroupedState:
    """Run your class, or aggregates, over the rows of each key of a DataFrame.

    Given ``df.groupBy(...)``, it returns an object with Spark's own ``applyInPandasWithState``,
    ``transformWithState`` and ``transformWithStateInPandas``, which run functions and processors
    written for these; ``name``, ``home`` and ``settings`` are the only other arguments.

    For a batch DataFrame, nothing
    runs until the first action on the result; then a bounded job runs to its end, and later actions
    read the same rows. For a streaming DataFrame, it starts a job in this process, and returns a
    streaming DataFrame of its results, for your ``writeStream``. The job runs until ``stop(name)``
    or the end of the process; called again with the same ``name`` and ``home``, it continues where
    it was.

    Args:
        df: batch or streaming; or one that is grouped by columns.
        key: columns of the key.
        process: a class as for ``Stream.process``, or a function that returns an instance.
        aggregate: aggregates by column name, instead of ``process``; emitted at the end of a batch
            DataFrame, after each row of a streaming one, or for each ``window``.
        window: of the aggregates, such as ``hr.tumbling("1h")``.
        stores: of the class, as for ``Stream.process``.
        returns: columns of the emitted rows.
        time: the event-time column, for windows and timers.
        out_of_orderness: how far out of order rows are.
        name: of the job; required for a streaming DataFrame, whose state is stored under it.
        home: folder of state and results. Default: that of the settings; for a batch DataFrame a
            temporary one, removed at the end of the process.
        settings: more settings of the job, such as ``["job.tasks=8"]``.

    Raises:
        InvalidInputError: neither or both of ``process`` and ``aggregate``, or arguments of the
            other; no key; no name; an invalid job; a group by something that is no column.
        HeadraceError: what the job of a streaming DataFrame failed with. Of a batch DataFrame the
            action fails, with ``RunFailedError`` (HR215) in Spark's error.
    """
    run = partial(_over, name=name, home=home, settings=settings)
    if isinstance(df, GroupedData):
        if (key, process, aggregate, window, returns, time) != ((), None, None, None, None, None):
            raise InvalidInputError(
                "stateful of a grouped DataFrame takes name=, home= and settings= alone; call "
                "applyInPandasWithState or transformWithState of what it returns"
            )
        loaded = import_module("headrace.spark.grouped_state")  # and with it pandas
        found: GroupedState = loaded.GroupedState.of(df, run)
        return found
    if (process is None) == (aggregate is None):
        raise InvalidInputError("stateful takes one of process= and aggregate=; give the other up")
    if process is not None and window is not None:
        raise InvalidInputError("window= goes with aggregate=; found process=")
    if aggregate is not None and (returns is not None or stores):
        raise InvalidInputError("returns= and stores= go with process=; found aggregate=")
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise InvalidInputError("stateful of a DataFrame needs key=, the columns of its key")
    if process is not None:
        to_schema(returns)

    def add(keyed: Stream) -> Stream:
        if process is not None:
            return keyed.process(process, stores=stores, returns=returns, name="process")
        if window is not None:
            return keyed.window(window, name="window", **aggregate or {})
        if df.isStreaming:
            return keyed.aggregate(name="totals", **aggregate or {})
        found = keyed.window(global_window(), name="totals", **aggregate or {})
        return found.map(*keys, *(aggregate or {}), name="shown")

    module = getattr(process, "__module__", None)
    return run(df, keys, add, time=time, out_of_orderness=out_of_orderness, module=module)


def _over(  # noqa: PLR0913 - what users give to two functions
    df: DataFrame,
    keys: Sequence[str],
    add: Callable[[Stream], Stream],
    *,
    name: str | None,
    home: str | os.PathLike[str] | None,
    settings: Sequence[str],
    time: str | None = None,
    out_of_orderness: Duration = "0s",
    partitions: int | None = None,
    module: str | None = None,
) -> DataFrame:
    """Run what ``add`` puts behind the keyed rows of a DataFrame, and return its results."""
    if df.isStreaming and name is None:
        raise InvalidInputError(
            "stateful of a streaming DataFrame keeps its state by name; give name="
        )
    _check_classic(df.sparkSession, "stateful")
    chosen = name or f"stateful-{SystemClock().new_id()}"
    folder = _temporary() if home is None and not df.isStreaming else home
    columns = arrow_schema(df.schema)

    def graph(g: Graph) -> None:
        rows = g.input_dataframe(
            ROWS,
            lambda spark: df,
            time=time,
            out_of_orderness=out_of_orderness,
            schema=columns,
            partitions=partitions,
        )
        add(rows.partition_by(*keys)).send_to(g.output(f"{chosen}.results"))

    if module is not None:
        graph.__module__ = module
    spark = df.sparkSession
    register_source(spark)
    if df.isStreaming:
        return _started(spark, Job(chosen, graph), _settings(folder, *settings))
    found = _settings(folder, *settings, "job.bounded=true")
    return _lazily(spark, Job(chosen, graph), found)[f"{chosen}.results"]


def results(
    job: Job,
    spark: SparkSession | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
) -> dict[str, DataFrame]:
    """Return what a bounded run of a job sends, as a DataFrame for each of its outputs.

    The job is planned now, and runs at the first action on one of the DataFrames, as with
    ``--bounded``, in a thread of this process. All of them, and all later actions, read the rows of
    that one run, and no others. After a run that failed, call this again: Spark keeps a plan that
    failed with its DataFrame.

    Args:
        job: made by ``headrace.job``.
        spark: your session. Default: the active one, or one that is started.
        home: folder of streams and jobs; by default that of the settings.
        settings: more settings of the job, such as ``["job.tasks=8"]``.

    Returns:
        By the names of the output streams.

    Raises:
        InvalidInputError: the job or its settings are invalid. Of what the job fails with, the
            action fails, with ``RunFailedError`` (HR215) in Spark's error.
    """
    chosen = spark or session(home=home)
    _check_classic(chosen, "results")
    register_source(chosen)
    return _lazily(chosen, job, _settings(home, *settings, "job.bounded=true"))


def _lazily(spark: SparkSession, job: Job, settings: Settings) -> dict[str, DataFrame]:
    """Return the outputs of a bounded run that the first read of one of them starts."""
    with open_bus(settings.bus_dir) as bus:
        graph = with_dataframes(job.build(), bus, settings)
        outputs = {
            one.stream: one.schema
            for one in make_plan(graph, bus, settings, absent_ok=True).outputs
        }

    place = _lazy_runs().add(job, partial(run_whole, job, settings, list(outputs)))
    return {
        stream: spark.read.format(NAME)
        .schema(ReadColumns(StreamSpec(stream, 1, schema), tuple(schema.names)).schema())
        .options(home=str(settings.home), columns=",".join(schema.names), run=str(place))
        .load(stream)
        for stream, schema in outputs.items()
    }


@cache
def _lazy_runs() -> LazyRuns:
    """Return those of this process."""
    return LazyRuns()


def stop(name: str | None = None) -> None:
    """Stop the job of a streaming ``stateful``, or all; they can continue later.

    Args:
        name: of the job; by default all.

    Raises:
        InvalidInputError: no job of that name runs.
    """
    if name is not None and name not in _running:
        raise InvalidInputError(f"no job {name!r} is running here; found {sorted(_running)}")
    for one in [name] if name is not None else list(_running):
        _running.pop(one).stop()


def _results(reader: Any, job: str, settings: Settings, **options: str) -> DataFrame:
    stream = f"{job}.results"
    with open_bus(settings.bus_dir) as bus:
        columns = ",".join(bus.stream(stream).spec.schema.names)
    reader = reader.format(NAME).option("home", str(settings.home)).option("columns", columns)
    found: DataFrame = reader.options(**options).load(stream)
    return found


@dataclass
class _Running:
    """A job that runs beside the caller's queries, in a thread."""

    session: SparkSession
    job: Job
    settings: Settings
    control: JobControl = field(default_factory=JobControl)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.folder = self.settings.home / "spark" / FOLDER / self.job.name
        self._parts: JobGroup | None = None
        self._seen: Any = None
        self._has_begun, self._over = threading.Event(), threading.Event()
        self._files, self._clock = Files(sync=False), SystemClock()
        name = f"headrace {self.job.name}"
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True),
            threading.Thread(target=self._answer, name=f"{name} answers", daemon=True),
        ]

    def start(self) -> None:
        """Start the job; return once its results can be read.

        Raises:
            HeadraceError: what it failed with before that.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for thread in self._threads:
            thread.start()
        deadline = Deadline(self._clock, START_S)
        while not self._has_begun.wait(POLL_S):
            if self.failure is not None:
                raise self.failure
            if deadline.expired:
                raise UnavailableError(f"job {self.job.name!r} has not begun in {START_S:.0f} s")

    def stop(self) -> None:
        """Stop the job after its epoch."""
        self.control.stop.set()
        driving, answering = self._threads
        driving.join()
        answering.join(ANSWER_S)  # Spark may never answer for a query that is stuck

    def _run(self) -> None:
        def on_parts(parts: JobGroup) -> None:
            self._parts, self._seen = parts, parts.state
            self._has_begun.set()

        def on_epoch(summary: Any) -> None:
            del summary
            assert self._parts is not None
            self._seen = self._parts.state

        try:
            run_job(
                self.job,
                self.settings,
                control=self.control,
                on_parts=on_parts,
                on_epoch=on_epoch,
            )
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for, and in the query
            self.failure = error
            text = f"job {self.job.name!r} failed: {error}"
            self._files.replace(self.folder / FAILED, text.encode())
        finally:
            self._over.set()

    def _answer(self) -> None:
        """Answer queries that ask when what there was for the job by then has been taken in."""
        while not self._over.wait(POLL_S):
            for question in open_requests(self._files, self.folder):
                with suppress(PySparkException):  # the job ends by it, and says so
                    if self._has_taken_in():
                        path = self.folder / answer_name(question)
                        self._files.replace(path, b"")

    def _has_taken_in(self) -> bool:
        stream = frame_stream(self.job.name, ROWS)
        for query in self.session.streams.active:
            if query.name == f"headrace {stream}":
                self._drain(query)
        assert self._parts is not None
        ends = self._parts.bus.stream(stream).ends()
        while not self._over.wait(POLL_S):
            held = self._seen.inputs.get(ROWS, {})
            if all(p in held and held[p].next_offset >= end for p, end in enumerate(ends)):
                return True
        return False

    def _drain(self, query: StreamingQuery) -> None:
        """Return when the query has handed over the rows that there are now.

        Spark's own way waits until there are no more, which of a source that makes rows by the
        clock is never. Of that one the batch that begins after the one under way is enough.
        """
        first: int | None = None
        while query.isActive and not self._over.is_set():
            progress = query.lastProgress
            if progress is None:
                if query.status["message"] != _WAITS:
                    self._over.wait(POLL_S)
                    continue
            elif any(str(one["description"]).startswith(_BY_CLOCK) for one in progress["sources"]):
                first = progress["batchId"] if first is None else first
                if progress["batchId"] >= first + 2:
                    return
                self._over.wait(POLL_S)
                continue
            query.processAllAvailable()
            return


def _started(session: SparkSession, job: Job, settings: Settings) -> DataFrame:
    if job.name in _running:
        stop(job.name)
    if not _running:
        atexit.register(_stop_all)
    running = _Running(session, job, settings)
    _running[job.name] = running
    try:
        running.start()
    except BaseException:
        _running.pop(job.name, None)
        raise
    return _results(session.readStream, job.name, settings, follows=str(running.folder))


def _stop_all() -> None:
    atexit.unregister(_stop_all)
    with suppress(HeadraceError):
        stop()


def _temporary() -> str:
    """Return a folder that goes with the process."""
    folder = tempfile.mkdtemp(prefix="headrace-stateful-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
