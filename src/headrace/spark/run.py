"""Runs a job on Spark from start to end: what ``headrace run`` and ``Job`` users call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from headrace.bus import Bus, BusOptions, open_bus
from headrace.clock import Clock
from headrace.closeable import Closeable
from headrace.config import Durability, Settings
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.dataframe_inputs import with_dataframes
from headrace.coordinator.deployment import Deployment
from headrace.coordinator.driver_loop import JobControl
from headrace.coordinator.epoch_clock import driver_clock
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup
from headrace.coordinator.job_run import JobRun, RunListeners, RunResult, disk_errors_named
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.leadership import keep_own_job, take_leader_lock
from headrace.coordinator.recovery import Recovery
from headrace.coordinator.worker_host import worker_settings
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.graph.operators import JobGraph
from headrace.runtime.host_storage import ServedStorage, StorageServer
from headrace.spark.data_source import NAME, register_source
from headrace.spark.dataframe_inputs import DataFrameFeeds, dataframe_inputs
from headrace.spark.progress_query import progress_shown
from headrace.spark.runner import SparkRunner
from headrace.spark.sessions import build_context, has_session
from headrace.spark.slot_rdd import runs_in_driver
from headrace.spark.source_options import Ranges, RunRange

__all__ = ["RunResult", "SparkRunResult", "run_job"]


@dataclass(frozen=True)
class SparkRunResult(RunResult):
    """How a run on Spark ended, and where the rows are that it sent.

    Args:
        home: folder of the streams.
        sent: offsets of the run's rows in each output stream.
    """

    home: Path
    sent: Ranges

    def dataframes(self, spark: SparkSession | None = None) -> dict[str, DataFrame]:
        """Return what the run sent to each output stream, as DataFrames.

        They are lazy: rows are read from the stream by each action that needs them, and only the
        columns that it needs. They have the rows of this run alone, also after later runs.

        Args:
            spark: your session. Default: the active one, or one that is started.

        Returns:
            By the names of the output streams, each with the columns of its stream.
        """
        chosen = spark or SparkSession.builder.getOrCreate()
        register_source(chosen)
        with open_bus(self.home / "bus") as bus:
            columns = {one: bus.stream(one).spec.schema.names for one in self.sent}
        return {
            stream: chosen.read.format(NAME)
            .options(home=str(self.home), columns=",".join(columns[stream]))
            .options(start=json.dumps(range_.start), end=json.dumps(range_.stop))
            .load(stream)
            for stream, range_ in self.sent.items()
        }


def output_ends(bus: Bus, streams: Iterable[str]) -> dict[str, list[int]]:
    """Return where the partitions of streams end; nothing of those that do not exist yet."""
    names = bus.names()
    return {one: bus.stream(one).ends() for one in streams if one in names}


def ranges_sent(begun: Mapping[str, list[int]], ended: Mapping[str, list[int]]) -> Ranges:
    """Return the offsets between two answers of ``output_ends``; all of a new partition."""
    found = {}
    for stream, stops in ended.items():
        starts = begun.get(stream, [])
        starts = starts + [0] * (len(stops) - len(starts))
        found[stream] = RunRange(dict(enumerate(starts)), dict(enumerate(stops)))
    return found


def run_job(  # noqa: PLR0913 - each is a listener of its own, by name
    job: Job,
    settings: Settings,
    *,
    bus: Bus | None = None,
    control: JobControl | None = None,
    on_start: Callable[[Coordinator], None] | None = None,
    on_parts: Callable[[JobGroup], None] | None = None,
    on_epoch: Callable[[EpochSummary], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_recovery: Callable[[Recovery | None], None] | None = None,
    takes_over: bool = False,
    release_s: float | None = None,
    clock: Clock | None = None,
) -> SparkRunResult:
    """Run a job until it ends, is asked to stop, or fails.

    Call from the main thread for SIGINT and SIGTERM to be handled: the first ends the epoch
    under way and returns, within 10 seconds; nothing is lost. What the run sent is read by
    ``dataframes`` of the result.

    Args:
        job: made by ``headrace.job``.
        settings: of the run.
        bus: the one at ``settings.bus_dir`` when left out.
        control: to stop or finish it from another thread.
        on_start: as of ``RunListeners``, like the others.
        on_parts: the same.
        on_epoch: the same.
        on_notice: the same.
        on_recovery: the same.
        takes_over: fence a driver that runs the job, instead of being refused.
        release_s: how long that one has to stop by itself; 15 s when left out.
        clock: of the driver; that of this host when left out.

    Raises:
        NotOwnerError: another driver runs the job.
        InvalidInputError: the job, its settings or its data are invalid.
        HeadraceError: errors of other kinds.
    """
    control = control or JobControl()
    clock = clock or driver_clock(settings)
    with ExitStack() as held:
        bus = bus or held.enter_context(
            open_bus(settings.bus_dir, BusOptions.of(settings.bus), clock=clock)
        )
        listeners = RunListeners(on_start, on_parts, on_epoch, on_notice, on_recovery)
        context = JobContext(settings, job.name, bus, Files(), clock)
        job_run = JobRun(context, control, listeners, takes_over)
        root = context.storage
        if settings.spark.loop == "query":
            listeners.notice(
                "spark.loop=query has no effect: the driver's own loop drives epochs; leave it "
                "out, for a later release refuses it"
            )
        stays = has_session()
        with (
            disk_errors_named(),
            take_leader_lock(
                root,
                job.name,
                clock,
                context.files,
                listeners.notice,
                takes_over=takes_over,
                release_s=release_s,
            ),
        ):
            graph = with_dataframes(job.build(), bus, settings)
            if not dataframe_inputs(graph):
                deployed = job_run.deployed(job)
                spark = job_context(settings, job.name, root, slots_only=True)
                with keep_own_job(context, control), SparkEngine(spark, job_run) as engine:
                    return engine.run(deployed, releases=stays)
            _check_durability(graph, settings)
            spark = job_context(settings, job.name, root)
            feeds = DataFrameFeeds(SparkSession.builder.getOrCreate(), graph, bus, settings, root)
            feeds.make()
            deployed = job_run.deployed(job, feeds.fill)
            with keep_own_job(context, control), feeds.running(control, deployed):
                return SparkEngine(spark, job_run).run(deployed, releases=stays)


def job_context(
    settings: Settings, job: str, root: Path, *, slots_only: bool = False
) -> SparkContext:
    """Start Spark for a job, or return the context that is there.

    Args:
        settings: of the run.
        job: its name.
        root: its storage, where Spark's log is.
        slots_only: Spark runs slots, and no queries.
    """
    log, spark = root / "logs" / "spark.log", settings.spark
    app = f"headrace {job}"
    return build_context(spark.master, app, log, spark.conf, slots_only=slots_only)


@dataclass(frozen=True)
class SparkEngine(Closeable):
    """Runs the slots of a job on Spark.

    Args:
        spark: its context.
        job_run: of the run.
    """

    spark: SparkContext
    job_run: JobRun
    _runners: list[SparkRunner] = field(default_factory=list)
    _servers: list[StorageServer] = field(default_factory=list)

    def run(self, deployed: Sequence[Deployment], *, releases: bool) -> SparkRunResult:
        """Run all parts until the job ends.

        Args:
            deployed: the parts.
            releases: the session stays, so workers close their stores at the end.
        """
        context = self.job_run.context
        outputs = [output.stream for one in deployed for output in one.plan.outputs]
        begun = output_ends(context.bus, outputs)
        with progress_shown(self.spark, self.job_run):
            result = self.job_run.run(deployed, self)
        if releases:
            for runner in self._runners:
                runner.release()
        sent = ranges_sent(begun, output_ends(context.bus, outputs))
        return SparkRunResult(**vars(result), home=context.settings.home, sent=sent)

    def close(self) -> None:
        """Serve no storage any more."""
        for server in self._servers:
            server.close()

    def runner(self, one: Deployment, share: tuple[int, int]) -> SparkRunner:
        """Return the runner of a part."""
        settings = self.job_run.context.settings
        made = SparkRunner(
            self.spark,
            one,
            worker_settings(one.plan.job, one.storage.root, settings, self._served(one)),
            settings.job.slots,
            share,
            silence_s=settings.job.slot_silence_s,
            notify=self.job_run.listeners.notice,
        )
        if settings.spark.progress != "off":
            made.show_metrics()
        self._runners.append(made)
        return made

    def _served(self, one: Deployment) -> ServedStorage | None:
        """Serve a storage that is on the disk of this host to executors of others."""
        if not one.storage_host or runs_in_driver(str(self.spark.master)):
            return None
        conf = self.spark.getConf()
        host = conf.get("spark.driver.host", "127.0.0.1")
        listens = conf.get("spark.driver.bindAddress", host)
        server = StorageServer(
            one.storage.root, one.storage_host, host, self.job_run.context.files, listens
        )
        self._servers.append(server)
        return server.served


def _check_durability(graph: JobGraph, settings: Settings) -> None:
    """Refuse DataFrames where a host that is lost takes along what was read of them."""
    found = [one.name for one in dataframe_inputs(graph)]
    if Durability.parse(settings.state.durability).is_backup:
        raise InvalidInputError(
            f"inputs {found} of job {graph.name!r} are Spark DataFrames, and state.durability is "
            f"{settings.state.durability}: what Spark has read of them is noted on this host's "
            "disk alone, so after a lost host rows would be lost or count twice; use "
            "state.durability=epoch",
            job=graph.name,
        )
