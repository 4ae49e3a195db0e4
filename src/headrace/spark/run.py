"""Runs a job on Spark from start to end: what ``headrace run`` and ``Job`` users call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.options import BusOptions
from headrace.clock import SystemClock
from headrace.config import Settings
from headrace.config.durability import Durability
from headrace.coordinator.backup.places import places
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deploy import Deployment
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control, drive
from headrace.coordinator.patience import Patience
from headrace.coordinator.recovery import Recovery
from headrace.coordinator.running.course import (
    Course,
    Listeners,
    OnEpoch,
    RunResult,
    refusals,
)
from headrace.coordinator.running.tenure import keeping, locked
from headrace.coordinator.running.workers import worker_settings
from headrace.coordinator.storage import DriverLock
from headrace.coordinator.summary import EpochSummary
from headrace.errors import InvalidInputError, PartsError
from headrace.files import Files
from headrace.graph.jobs import Job
from headrace.graph.operators import JobGraph
from headrace.sources.frames import with_frames
from headrace.spark.feeding import FrameFeeds, frame_inputs
from headrace.spark.query import drive_query
from headrace.spark.runner import SparkRunner
from headrace.spark.sessions import build_session

__all__ = ["RunResult", "run_job"]


def run_job(  # noqa: PLR0913 - each is a listener of its own, by name
    job: Job,
    settings: Settings,
    *,
    bus: Bus | None = None,
    control: Control | None = None,
    on_start: Callable[[Coordinator], None] | None = None,
    on_parts: Callable[[JoinedParts], None] | None = None,
    on_epoch: Callable[[EpochSummary], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_recovery: Callable[[Recovery | None], None] | None = None,
    takes_over: bool = False,
) -> RunResult:
    """Run a job until it ends, is told to stop, or fails.

    Call from the main thread for SIGINT and SIGTERM to be handled: the first ends the epoch
    under way and returns, within 10 seconds; nothing is lost.

    Args:
        job: made by ``headrace.job``.
        settings: of the run.
        bus: the one at ``settings.bus_dir`` when left out.
        control: to stop or finish it from another thread.
        on_start: as of ``Listeners``, like the others.
        on_parts: the same.
        on_epoch: the same.
        on_notice: the same.
        on_recovery: the same.
        takes_over: fence a driver that runs the job, instead of being refused.

    Raises:
        NotOwnerError: another driver runs the job.
        InvalidInputError: the job, its settings or its data are at fault.
        HeadraceError: of other kinds, by what to do next.
    """
    control = control or Control()
    bus = bus or open_bus(settings.bus_dir, BusOptions.of(settings.bus))
    listeners = Listeners(on_start, on_parts, on_epoch, on_notice, on_recovery)
    clock, files = SystemClock(), Files()
    course = Course(bus, settings, control, clock, files, listeners, takes_over)
    root = places(settings, job.name).storage
    lock = locked(DriverLock, root, job.name, clock, files, listeners.notice, takes_over=takes_over)
    with refusals(), lock:
        graph = with_frames(job.build(), bus, settings)
        if not frame_inputs(graph):
            deployed = course.deployed(job)
            _check_loop(deployed, settings)
            session = _session(settings, job.name, root, slots_only=True)
            with keeping(settings, job.name, control, clock, files):
                return course.run(deployed, SparkEngine(session, course))
        _check_durability(graph, settings)
        session = _session(settings, job.name, root)
        feeds = FrameFeeds(session, graph, bus, settings, root)
        feeds.make()
        deployed = course.deployed(job, feeds.fill)
        _check_loop(deployed, settings)
        with keeping(settings, job.name, control, clock, files), feeds.running(control, deployed):
            return course.run(deployed, SparkEngine(session, course))


def _session(settings: Settings, job: str, root: Path, *, slots_only: bool = False) -> SparkSession:
    log, spark = root / "logs" / "spark.log", settings.spark
    app = f"headrace {job}"
    return build_session(spark.master, app, log, spark.conf, slots_only=slots_only)


@dataclass(frozen=True)
class SparkEngine:
    """Runs the slots of a job on Spark.

    Args:
        session: of Spark.
        course: of the run.
    """

    session: SparkSession
    course: Course

    def runner(self, one: Deployment, share: tuple[int, int]) -> SparkRunner:
        """Return the runner of a part."""
        settings = self.course.settings
        return SparkRunner(
            self.session.sparkContext,
            worker_settings(one.plan.job, one.storage.root, settings),
            one.storage.root / "orders",
            settings.job.slots,
            share,
            silence_s=settings.job.slot_silence_s,
            tell=self.course.listeners.notice,
        )

    def drive(self, part: Coordinator, on_epoch: OnEpoch, patience: Patience) -> None:
        """Advance a started part by the loop that the settings name."""
        course, settings = self.course, self.course.settings
        if settings.spark.loop == "query":
            drive_query(self.session, part, course.control, on_epoch, settings, patience)
            return
        drive(
            part,
            course.bus,
            course.clock,
            course.control,
            on_epoch,
            interval_ms=settings.epoch.interval_ms,
            tick_ms=settings.epoch.tick_ms,
            patience=patience,
        )


def _check_durability(graph: JobGraph, settings: Settings) -> None:
    """Refuse DataFrames where a host that is lost takes along what was read of them."""
    found = [one.name for one in frame_inputs(graph)]
    if Durability.parse(settings.state.durability).is_backup:
        raise InvalidInputError(
            f"inputs {found} of job {graph.name!r} are Spark DataFrames, and state.durability is "
            f"{settings.state.durability}: what Spark has read of them is noted on this host's "
            "disk alone, so after a lost host rows would be lost or count twice; use "
            "state.durability=epoch",
            job=graph.name,
        )


def _check_loop(deployed: Sequence[Deployment], settings: Settings) -> None:
    if len(deployed) > 1 and settings.spark.loop == "query":
        job = deployed[0].plan.job
        raise PartsError(
            f'job {job!r} has {len(deployed)} parts, joined by via="bus", and spark.loop is query, '
            "which drives one; use spark.loop=direct",
            job=job,
        )
