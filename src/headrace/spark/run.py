"""Runs a job on Spark from start to end: what ``headrace run`` and ``Job`` users call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.bus.address import open_bus
from headrace.bus.bus import Bus
from headrace.bus.options import BusOptions
from headrace.clock import Clock, SystemClock
from headrace.config import Settings
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.backup.lease import Lease
from headrace.coordinator.backup.places import places
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deploy import Deployment, deploy
from headrace.coordinator.hosting import stop_file
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control, begin, drive
from headrace.coordinator.manifest import JobState
from headrace.coordinator.patience import Patience
from headrace.coordinator.recovery import Recovery, RecoveryWatch, watching
from headrace.coordinator.storage import DriverLock
from headrace.coordinator.summary import EpochSummary
from headrace.errors import InvalidInputError, PartsError
from headrace.files import Files, disk_error
from headrace.graph.jobs import Job
from headrace.graph.operators import JobGraph
from headrace.plan.stages import job_of
from headrace.spark.interrupts import interrupts
from headrace.spark.parts import drive_parts
from headrace.spark.query import drive_query
from headrace.spark.runner import DroppedError, SparkRunner, import_paths
from headrace.spark.session import build_session
from headrace.spark.worker import WorkerSettings

STOP_GRACE_S = 8.0
LAST_COPY_S = 1.0


@dataclass(frozen=True)
class RunResult:
    """How a run ended: the state it left, what it did, and whether it was interrupted."""

    state: JobState
    epochs: int
    rows: int
    interrupted: bool


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
) -> RunResult:
    """Run a job until it ends, is told to stop, or fails.

    Call from the main thread for SIGINT and SIGTERM to be handled: the first ends the epoch
    under way and returns, within 10 seconds; nothing is lost.

    Args:
        job: made by ``headrace.job``.
        settings: of the run.
        bus: the one at ``settings.bus_dir`` when left out.
        control: to stop or finish it from another thread.
        on_start: called once the coordinator has started; of several parts, that of the first.
        on_parts: called then with all parts, or the only one, as one.
        on_epoch: called after each epoch, one at a time.
        on_notice: called, from any thread, with a line when something is wrong although the
            job goes on, and when it is right again.
        on_recovery: called, from another thread, with how far the stores are back where that
            takes more than a moment, and with ``None`` when they are.

    Raises:
        NotOwnerError: another driver runs the job.
        InvalidInputError: the job, its settings or its data are at fault.
        HeadraceError: of other kinds, by what to do next.
    """
    clock, files = SystemClock(), Files()
    control, tell = control or Control(), on_notice or (lambda line: None)
    bus = bus or open_bus(settings.bus_dir, BusOptions.of(settings.bus))
    graph = job.build()
    root = places(settings, graph.name).storage
    tally = _Tally(on_epoch)
    with _refusals(), DriverLock(root, graph.name):
        deployed = _deployed(graph, bus, settings, clock, files, job.function.__module__)
        session = _session(settings, graph.name, root)
        show = on_recovery or (lambda recovery: None)
        run = _Run(session, bus, settings, control, clock, files, tell, show)
        with ExitStack() as held:
            held.enter_context(interrupts(control))
            count = len(deployed)
            parts = [run.prepare(held, one, (at, count)) for at, one in enumerate(deployed)]
            held.enter_context(suppress(DroppedError))
            for part in parts:
                held.enter_context(closing(part))
            if all(run.begin(part) for part in parts):
                if on_start is not None:
                    on_start(parts[0])
                if on_parts is not None:
                    on_parts(JoinedParts(parts))
                drive_parts(parts, lambda part: run.drive(part, tally), control)
        state = JoinedParts(parts).state
        interrupted = control.stop.is_set() and not state.ended
        return RunResult(state, tally.epochs, tally.rows, interrupted)


class _Tally:
    """Counts what a run does, and tells of each epoch; parts may have epochs at the same time."""

    def __init__(self, on_epoch: Callable[[EpochSummary], None] | None) -> None:
        self._on_epoch, self._lock = on_epoch, threading.Lock()
        self.epochs = self.rows = 0

    def __call__(self, summary: EpochSummary) -> None:
        with self._lock:
            self.epochs += 1
            self.rows += summary.rows
            if self._on_epoch is not None:
                self._on_epoch(summary)


def _deployed(
    graph: JobGraph, bus: Bus, settings: Settings, clock: Clock, files: Files, module: str
) -> tuple[Deployment, ...]:
    where = places(settings, graph.name)
    if where.copy is None:  # a driver that has a copy looks there itself
        Lease(where.storage, graph.name, "", files, clock).refuse_others()
    deployed = deploy(graph, bus, settings, clock, files, module)
    _check_loop(deployed, settings)
    return deployed


def _session(settings: Settings, job: str, root: Path) -> SparkSession:
    log, spark = root / "logs" / "spark.log", settings.spark
    return build_session(spark.master, f"headrace {job}", log, spark.conf)


@dataclass(frozen=True)
class _Run:
    """What the parts of a job share while they run."""

    session: SparkSession
    bus: Bus
    settings: Settings
    control: Control
    clock: Clock
    files: Files
    tell: Callable[[str], None]
    show: Callable[[Recovery | None], None]

    @property
    def patience(self) -> Patience:
        limit_s = self.settings.state.disk_wait_s
        return Patience(self.clock, self.control.stop, limit_s, self.tell)

    def prepare(self, held: ExitStack, one: Deployment, share: tuple[int, int]) -> Coordinator:
        """Return the driver of a part, watched over as long as the stack is open."""
        root, limit_s = one.storage.root, self.settings.state.recovery_timeout_s
        runner = _runner(one, self.settings, self.session.sparkContext, share)
        part = one.coordinator(runner, self.bus, self.clock, self.settings)
        watch = RecoveryWatch(root, self.files, self.clock, limit_s)
        held.enter_context(_copying(one.copier, part, self.tell))
        held.enter_context(_stopping(self.control, part, runner, root))
        held.enter_context(watching(watch, self.show, runner.fail))
        return part

    def begin(self, part: Coordinator) -> bool:
        """Start the driver of a part; False when it was told to stop first."""
        has_begun = begin(part, self.patience)
        if has_begun:
            _check_end(part, self.settings)
        return has_begun

    def drive(self, part: Coordinator, on_epoch: Callable[[EpochSummary], None]) -> None:
        """Advance a started part until it has ended or is told to stop."""
        settings, patience = self.settings, self.patience
        if settings.spark.loop == "query":
            drive_query(self.session, part, self.control, on_epoch, settings, patience)
            return
        drive(
            part,
            self.bus,
            self.clock,
            self.control,
            on_epoch,
            interval_ms=settings.epoch.interval_ms,
            tick_ms=settings.epoch.tick_ms,
            patience=patience,
        )


def _check_loop(deployed: Sequence[Deployment], settings: Settings) -> None:
    if len(deployed) > 1 and settings.spark.loop == "query":
        job = deployed[0].plan.job
        raise PartsError(
            f'job {job!r} has {len(deployed)} parts, joined by via="bus", and spark.loop is query, '
            "which drives one; use spark.loop=direct",
            job=job,
        )


def _check_end(coordinator: Coordinator, settings: Settings) -> None:
    """Refuse to follow the inputs of a run that was given an end and has not reached it."""
    state = coordinator.state
    if state.until is not None and not state.ended and not settings.job.bounded:
        raise InvalidInputError(
            f"job {job_of(state.job)!r} is in the middle of a bounded run, whose inputs end where "
            "they did at its start; complete it with --bounded, or follow the inputs under another "
            "name",
            job=state.job,
        )


@contextmanager
def _copying(
    copier: Copier | None, coordinator: Coordinator, tell: Callable[[str], None]
) -> Iterator[None]:
    """Let the copy of a storage on this host follow, to the last epoch when the run ends.

    From the start on, for a driver that waits there has to keep its lease.
    """
    if copier is None:
        yield
        return
    copier.tell = tell
    copier.start()
    try:
        yield
    finally:
        copier.stop(None if coordinator.has_ended else LAST_COPY_S)


@contextmanager
def _refusals() -> Iterator[None]:
    """Give errors of the driver's own disk the words that those of slots have."""
    try:
        yield
    except ConnectionError:  # such as of a pipe that nobody reads any more
        raise
    except OSError as error:
        raise disk_error(error) from error


def _runner(
    deployment: Deployment, settings: Settings, context: SparkContext, share: tuple[int, int]
) -> SparkRunner:
    root = deployment.storage.root
    worker = WorkerSettings(
        job=deployment.plan.job,
        slot=0,
        storage=str(root),
        bus=str(settings.bus_dir),
        state_dir=str(settings.state_dir),
        paths=import_paths(),
        adopt_bytes=settings.bus.adopt_bytes,
        cache_bytes=settings.state.cache_bytes,
        block_cache_bytes=settings.state.block_cache_bytes,
        write_buffer_bytes=settings.state.write_buffer_bytes,
        keep_unused_s=settings.state.keep_unused_s,
        standby_share=settings.standby.share,
        copy=str(places(settings, deployment.plan.job).copy or ""),
    )
    return SparkRunner(
        context,
        worker,
        root / "orders",
        settings.job.slots,
        share,
        host_wait_s=settings.job.host_wait_s,
    )


@contextmanager
def _stopping(
    control: Control, coordinator: Coordinator, runner: SparkRunner, root: Path
) -> Iterator[None]:
    """Let whoever sets ``control.stop``, signals too, end the epoch under way in time.

    The stop file makes source tasks stop reading; what is still running after the grace
    is cancelled, which drops the epoch. A second signal ends the process at once.
    """
    over = threading.Event()

    def hurry() -> None:
        while not control.stop.wait(0.2):
            if over.is_set():
                return
        grace = STOP_GRACE_S
        if coordinator.generation:
            stop_file(root, coordinator.generation).touch()
        while not over.wait(grace):
            runner.cancel()  # again, should it have fallen between two levels
            grace = 0.2

    watcher = threading.Thread(target=hurry, name="headrace-stop", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        stop_file(root, coordinator.generation).unlink(missing_ok=True)
