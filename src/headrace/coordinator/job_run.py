"""One run of a job, the same whatever runs the slots: begin, epochs, stop, end.

What differs is an ``Engine``: which runner each part of the job gets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from headrace.closeable import running_beside
from headrace.coordinator.bounded_runs import (
    begin_run,
    bounded_bus,
    check_end,
    conclude_bounded_run,
)
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.dataframe_inputs import (
    leave_dataframes,
    refuse_dataframes,
    with_dataframes,
)
from headrace.coordinator.deployment import Deployment, deploy
from headrace.coordinator.driver_loop import (
    DroppedError,
    JobControl,
    RetryPolicy,
    run_epochs,
    start_driver,
    stop_on_signals,
)
from headrace.coordinator.epoch import Runner
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_group import JobGroup, drive_parts
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.leader_lease import LeaderLease
from headrace.coordinator.manifest import JobState
from headrace.coordinator.plan_files import forget_secrets
from headrace.coordinator.recovery import Recovery, RecoveryWatch, watching
from headrace.coordinator.worker_host import stop_file
from headrace.errors import HeadraceError, NotOwnerError
from headrace.files import Files, disk_error
from headrace.graph.builder import Job
from headrace.objects import StorageAwayError
from headrace.redaction import redacted
from headrace.remote import is_remote
from headrace.sources.bounded_bus import share_sources
from headrace.sources.listing import BoundedSource

STOP_GRACE_S = 8.0
LOOK_S = 0.1

OnEpoch = Callable[[EpochSummary], None]


@dataclass(frozen=True)
class RunResult:
    """How a run ended: the state it left, what it did, and whether it was interrupted."""

    state: JobState
    epochs: int
    rows: int
    interrupted: bool


class CancellableRunner(Runner, Protocol):
    """A runner whose level another thread can drop."""

    def cancel(self) -> None:
        """Drop the level that is running, and run no other from now on."""
        ...

    def fail(self, error: HeadraceError) -> None:
        """Drop the level that is running, which then raises this error."""
        ...


class Engine(Protocol):
    """What runs the slots of a job."""

    def runner(self, one: Deployment, share: tuple[int, int]) -> CancellableRunner:
        """Return the runner of a part: its number, and how many parts share the slots."""
        ...


@dataclass(frozen=True)
class RunListeners:
    """Who gets what of a run.

    Args:
        on_start: called once the coordinator has started; of several parts, that of the first.
        on_parts: called then with all parts, or the only one, as one.
        on_epoch: called after each epoch, one at a time.
        on_notice: called, from any thread, with a line when something is wrong although the
            job continues, and when it is right again.
        on_recovery: called, from another thread, with how far the stores are back where that
            takes more than a moment, and with ``None`` when they are.
    """

    on_start: Callable[[Coordinator], None] | None = None
    on_parts: Callable[[JobGroup], None] | None = None
    on_epoch: OnEpoch | None = None
    on_notice: Callable[[str], None] | None = None
    on_recovery: Callable[[Recovery | None], None] | None = None

    def notice(self, line: str) -> None:
        """Report something wrong."""
        if self.on_notice is not None:
            self.on_notice(redacted(line))

    def recovery(self, recovery: Recovery | None) -> None:
        """Report how far the stores are restored."""
        if self.on_recovery is not None:
            self.on_recovery(recovery)


@dataclass
class JobRun:
    """One run of a job by this process.

    Args:
        context: of the job; once it is deployed, its bus has what stands for inputs.
        control: stops and finishes it.
        listeners: of the run.
        takes_over: drive the job although another host has its lease.
    """

    context: JobContext
    control: JobControl
    listeners: RunListeners = field(default_factory=RunListeners)
    takes_over: bool = False

    def deployed(
        self, job: Job, ready: Callable[[], Mapping[str, BoundedSource]] | None = None
    ) -> tuple[Deployment, ...]:
        """Plan a job whose lock this process holds, and save its parts for the slots.

        Args:
            job: made by ``headrace.job``.
            ready: called once the run has begun, before the job is planned; fills the streams of
                inputs that are DataFrames, and returns the files that stand for the others.

        Raises:
            NotOwnerError: another host drives it.
            InvalidInputError: the job or its settings are at fault.
            LogAwayError: what an input reads did not answer for longer than the limit.
        """
        context, where = self.context, self.context.storages
        settings, bus = context.settings, context.bus
        graph = with_dataframes(job.build(), bus, settings)
        if ready is None:
            refuse_dataframes(graph)
        if where.copy is None and not self.takes_over:  # a driver with a copy looks there itself
            lease = LeaderLease(where.storage, context.job, "", context.files, context.clock)
            lease.refuse_others()
        begun = begin_run(graph, context)
        if begun is not None:
            self.listeners.notice(f"{graph.name}: run {begun.run} begins, without state")
        rows = {} if ready is None else ready()
        found = self.retry.retry_while_blocked(lambda: bounded_bus(graph, context, rows))
        if found is None:
            found = bounded_bus(
                graph, context, rows
            )  # there is nothing to show but what was waited for
        self.context = context = replace(context, bus=found)
        deployed = deploy(graph, context, job.function.__module__)
        leave_dataframes(graph, [one.plan for one in deployed], settings)
        share_sources(found, [one.storage.root for one in deployed], context.files)
        return deployed

    @property
    def retry(self) -> RetryPolicy:
        """How the run meets what comes back by itself."""
        limit_s = self.context.settings.state.disk_wait_s
        return RetryPolicy(self.context.clock, self.control.stop, limit_s, self.listeners.notice)

    def run(self, deployed: Sequence[Deployment], engine: Engine) -> RunResult:
        """Run a deployed job until it ends, is asked to stop, or fails.

        Call from the main thread for SIGINT and SIGTERM to be handled.

        Raises:
            NotOwnerError: another driver has taken over.
            InvalidInputError: the job, its settings or its data are invalid.
            HeadraceError: errors of other kinds.
        """
        tally = _RunCounter(self.listeners.on_epoch)
        with ExitStack() as held:
            held.enter_context(stop_on_signals(self.control))
            for one in deployed:
                held.callback(forget_secrets, one.storage.root, one.storage.files)
            count = len(deployed)
            parts = [
                self._prepare(held, one, engine, (at, count)) for at, one in enumerate(deployed)
            ]
            held.enter_context(suppress(DroppedError))
            for part in parts:
                held.enter_context(closing(part))
            held.enter_context(end_reported(parts[0], self.control))
            if all(self._begin(part) for part in parts):
                if self.listeners.on_start is not None:
                    self.listeners.on_start(parts[0])
                if self.listeners.on_parts is not None:
                    self.listeners.on_parts(JobGroup(parts))
                drive_parts(parts, partial(self._drive, tally), self.control)
        state = JobGroup(parts).state
        with suppress(NotOwnerError):  # a command has come first, and this run is not its concern
            first = deployed[0].storage
            conclude_bounded_run(first.root, state, first.files)
        interrupted = self.control.stop.is_set() and not state.ended
        return RunResult(state, tally.epochs, tally.rows, interrupted)

    def _prepare(
        self, held: ExitStack, one: Deployment, engine: Engine, share: tuple[int, int]
    ) -> Coordinator:
        """Return the driver of a part, watched over as long as the stack is open."""
        root, context = one.storage.root, self.context
        runner = engine.runner(one, share)
        part = one.coordinator(runner, context)
        limit_s = context.settings.state.recovery_timeout_s
        part.notify = self.listeners.notice
        watch = RecoveryWatch(root, context.files, context.clock, limit_s)
        notice = self.listeners.notice
        for hook in one.hooks:
            work = hook.running(lambda: part.has_ended, notice, takes_over=self.takes_over)
            held.enter_context(work)
        held.enter_context(_stopping(self.control, part, runner, root))
        held.enter_context(watching(watch, self.listeners.recovery, runner.fail))
        return part

    def _begin(self, part: Coordinator) -> bool:
        """Start the driver of a part; False when it was asked to stop first."""
        has_begun = start_driver(part, self.retry)
        if has_begun:
            check_end(part.state, self.context.settings)
        return has_begun

    def _drive(self, on_epoch: OnEpoch, part: Coordinator) -> None:
        """Advance a part that has begun until it has ended, or the run is asked to stop."""
        context = self.context
        every = context.settings.epoch
        run_epochs(
            part,
            context.bus,
            context.clock,
            self.control,
            on_epoch,
            interval_ms=every.interval_ms,
            tick_ms=every.tick_ms,
            retry=self.retry,
        )


@contextmanager
def end_reported(part: Coordinator, control: JobControl) -> Iterator[None]:
    """Record in the event log of a job how its run ended, where no manifest says so.

    A driver that was taken over may find that in many ways: by a look at the storage, or by the
    refusal of a stream, a folder or a sink. All have the same words for it, with who follows.

    Args:
        part: of the job, the first one.
        control: of the run.
    """
    try:
        yield
    except NotOwnerError as error:
        if not part.generation:  # it has not come to drive the job
            part.event_log.record("failed", f"the driver ended: {error.code}: {error.message}")
            raise
        known = part.successor()
        part.event_log.record(*_taken_over(known or error))
        if known is None:
            raise
        known.also = error.also
        raise known from error
    except DroppedError:
        lost = part.successor() if control.fenced.is_set() else None
        dropped = "stopped", "the driver stopped, and dropped the epoch under way"
        part.event_log.record(*(_taken_over(lost) if lost else dropped))
        raise
    except HeadraceError as error:
        part.event_log.record("failed", f"the driver ended: {error.code}: {error.message}")
        raise
    if control.stop.is_set() and not part.has_ended:
        lost = part.successor() if control.fenced.is_set() else None
        asked = "stopped", "the driver stopped, as requested"
        part.event_log.record(*(_taken_over(lost) if lost else asked))


def _taken_over(lost: NotOwnerError) -> tuple[str, str]:
    return "stopped", f"the driver stopped: {lost.message}"


class _RunCounter:
    """Counts what a run does, and reports each epoch; parts may have epochs at the same time."""

    def __init__(self, on_epoch: OnEpoch | None) -> None:
        self._on_epoch, self._lock = on_epoch, threading.Lock()
        self.epochs = self.rows = 0

    def __call__(self, summary: EpochSummary) -> None:
        with self._lock:
            self.epochs += 1
            self.rows += summary.rows
            if self._on_epoch is not None:
                self._on_epoch(summary)


@contextmanager
def disk_errors_named() -> Iterator[None]:
    """Give errors of the driver's own disk the words that those of slots have."""
    try:
        yield
    except ConnectionError:  # such as of a pipe that nobody reads any more
        raise
    except OSError as error:
        if isinstance(error, StorageAwayError):
            raise
        raise disk_error(error) from error


@contextmanager
def _stopping(
    control: JobControl, coordinator: Coordinator, runner: CancellableRunner, root: Path
) -> Iterator[None]:
    """Let the setter of ``control.stop``, signals too, end the epoch under way in time.

    The stop file makes source tasks stop reading; what is still running after the grace
    is cancelled, which drops the epoch. A second signal ends the process at once.
    """

    def cancel_again(over: threading.Event) -> None:
        while not control.stop.is_set():
            if over.wait(LOOK_S):  # not for the stop, or the end of each run would wait for it
                return
        grace = STOP_GRACE_S
        if coordinator.generation:
            _set_stop_file(stop_file(root, coordinator.generation))
        while not over.wait(grace):
            runner.cancel()  # again, should it have fallen between two levels
            grace = 0.2

    try:
        with running_beside("headrace-stop", cancel_again):
            yield
    finally:
        with suppress(StorageAwayError):  # the next driver tidies it up
            Files(sync=False).remove(stop_file(root, coordinator.generation))


def _set_stop_file(path: Path) -> None:
    if not is_remote(path):
        path.touch()  # in a folder that is gone it must not come back
        return
    with suppress(StorageAwayError):  # the epoch is cancelled a while later
        Files(sync=False).replace(path, b"")
