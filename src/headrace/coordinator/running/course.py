"""The course of a run, the same whatever runs the slots: begin, epochs, stop, end.

What differs is an ``Engine``: which runner each part of the job gets, and what drives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.backup.lease import Lease
from headrace.coordinator.backup.places import places
from headrace.coordinator.bounded import sourced_bus, tell_parts
from headrace.coordinator.changes.rerunning import begin_run, conclude
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.deploy import Deployment, deploy
from headrace.coordinator.epoch import Runner
from headrace.coordinator.hosting import stop_file
from headrace.coordinator.joined import JoinedParts
from headrace.coordinator.loop import Control, begin
from headrace.coordinator.manifest import JobState
from headrace.coordinator.patience import Patience
from headrace.coordinator.recovery import Recovery, RecoveryWatch, watching
from headrace.coordinator.running.dropping import DroppedError
from headrace.coordinator.running.former_frames import leave_frames
from headrace.coordinator.running.interrupts import interrupts
from headrace.coordinator.running.parts import drive_parts
from headrace.coordinator.summary import EpochSummary
from headrace.errors import HeadraceError, InvalidInputError
from headrace.files import Files, disk_error
from headrace.graph.jobs import Job
from headrace.graph.operators import Input
from headrace.plan.stages import job_of
from headrace.sources.frames import with_frames
from headrace.sources.sourced import check as check_inputs
from headrace.sources.sourced import plain

STOP_GRACE_S = 8.0
LOOK_S = 0.1
LAST_COPY_S = 1.0

OnEpoch = Callable[[EpochSummary], None]


@dataclass(frozen=True)
class RunResult:
    """How a run ended: the state it left, what it did, and whether it was interrupted."""

    state: JobState
    epochs: int
    rows: int
    interrupted: bool


class StoppableRunner(Runner, Protocol):
    """A runner whose level another thread can drop."""

    def cancel(self) -> None:
        """Drop the level that is running, and run no other; for good."""
        ...

    def fail(self, error: HeadraceError) -> None:
        """Drop the level that is running, which then raises this error."""
        ...


class Engine(Protocol):
    """What runs the slots of a job."""

    def runner(self, one: Deployment, share: tuple[int, int]) -> StoppableRunner:
        """Return the runner of a part: its number, and how many parts share the slots."""
        ...

    def drive(self, part: Coordinator, on_epoch: OnEpoch, patience: Patience) -> None:
        """Advance a started part until it has ended or is told to stop."""
        ...


@dataclass(frozen=True)
class Listeners:
    """Who is told what of a run.

    Args:
        on_start: called once the coordinator has started; of several parts, that of the first.
        on_parts: called then with all parts, or the only one, as one.
        on_epoch: called after each epoch, one at a time.
        on_notice: called, from any thread, with a line when something is wrong although the
            job goes on, and when it is right again.
        on_recovery: called, from another thread, with how far the stores are back where that
            takes more than a moment, and with ``None`` when they are.
    """

    on_start: Callable[[Coordinator], None] | None = None
    on_parts: Callable[[JoinedParts], None] | None = None
    on_epoch: OnEpoch | None = None
    on_notice: Callable[[str], None] | None = None
    on_recovery: Callable[[Recovery | None], None] | None = None

    def notice(self, line: str) -> None:
        """Tell of something wrong."""
        if self.on_notice is not None:
            self.on_notice(line)

    def recovery(self, recovery: Recovery | None) -> None:
        """Tell how far the stores are back."""
        if self.on_recovery is not None:
            self.on_recovery(recovery)


@dataclass
class Course:
    """One run of a job by this process.

    Args:
        bus: inputs and outputs; once the job is deployed, with what stands for inputs.
        settings: of the run.
        control: what stops and finishes it.
        clock: where time comes from.
        files: the file system.
        listeners: who is told.
        takes_over: drive the job although another host has its lease.
    """

    bus: Bus
    settings: Settings
    control: Control
    clock: Clock
    files: Files
    listeners: Listeners = field(default_factory=Listeners)
    takes_over: bool = False

    def deployed(self, job: Job, ready: Callable[[], None] | None = None) -> tuple[Deployment, ...]:
        """Plan a job whose lock this process holds, and save its parts for the slots.

        Args:
            job: made by ``headrace.job``.
            ready: called once the run has begun, before the job is planned; fills the streams of
                inputs that are DataFrames.

        Raises:
            NotOwnerError: another host drives it.
            InvalidInputError: the job or its settings are at fault.
        """
        graph = with_frames(job.build(), self.bus, self.settings)
        clock, files = self.clock, self.files
        frames = [one.name for one in graph.operators if isinstance(one, Input) and one.frame]
        if ready is None and frames:
            raise InvalidInputError(
                f"input {frames[0]!r} of job {job.name!r} is a Spark DataFrame, and here is no "
                "Spark; run it with headrace run, and a master such as local[2]",
                job=job.name,
            )
        where = places(self.settings, graph.name)
        if (
            where.copy is None and not self.takes_over
        ):  # a driver that has a copy looks there itself
            Lease(where.storage, graph.name, "", files, clock).refuse_others()
        if self.settings.job.bounded:
            check = partial(check_inputs, graph, plain(self.bus), self.settings)
            begun = begin_run(self.settings, graph.name, self.bus, files, clock, check)
            if begun is not None:
                self.listeners.notice(f"{graph.name}: run {begun.run} begins, without state")
        if ready is not None:
            ready()
        self.bus = sourced_bus(graph, self.bus, self.settings, files, clock)
        module = job.function.__module__
        deployed = deploy(graph, self.bus, self.settings, clock, files, module)
        leave_frames(graph, deployed, self.settings)
        tell_parts(self.bus, (one.storage.root for one in deployed), files, clock)
        return deployed

    @property
    def patience(self) -> Patience:
        """How the run meets what comes back by itself."""
        limit_s = self.settings.state.disk_wait_s
        return Patience(self.clock, self.control.stop, limit_s, self.listeners.notice)

    def run(self, deployed: Sequence[Deployment], engine: Engine) -> RunResult:
        """Run a deployed job until it ends, is told to stop, or fails.

        Call from the main thread for SIGINT and SIGTERM to be handled.

        Raises:
            NotOwnerError: another driver has taken over.
            InvalidInputError: the job, its settings or its data are at fault.
            HeadraceError: of other kinds, by what to do next.
        """
        tally = _Tally(self.listeners.on_epoch)
        with ExitStack() as held:
            held.enter_context(interrupts(self.control))
            count = len(deployed)
            parts = [
                self._prepare(held, one, engine, (at, count)) for at, one in enumerate(deployed)
            ]
            held.enter_context(suppress(DroppedError))
            for part in parts:
                held.enter_context(closing(part))
            held.enter_context(_told(parts[0], self.control))
            if all(self._begin(part) for part in parts):
                if self.listeners.on_start is not None:
                    self.listeners.on_start(parts[0])
                if self.listeners.on_parts is not None:
                    self.listeners.on_parts(JoinedParts(parts))
                patience = self.patience
                drive_parts(parts, lambda part: engine.drive(part, tally, patience), self.control)
        state = JoinedParts(parts).state
        conclude(deployed[0].storage.root, state, self.files, self.clock)
        interrupted = self.control.stop.is_set() and not state.ended
        return RunResult(state, tally.epochs, tally.rows, interrupted)

    def _prepare(
        self, held: ExitStack, one: Deployment, engine: Engine, share: tuple[int, int]
    ) -> Coordinator:
        """Return the driver of a part, watched over as long as the stack is open."""
        root, limit_s = one.storage.root, self.settings.state.recovery_timeout_s
        if one.copier is not None:
            one.copier.takes_over = self.takes_over
        runner = engine.runner(one, share)
        part = one.coordinator(runner, self.bus, self.clock, self.settings)
        watch = RecoveryWatch(root, self.files, self.clock, limit_s)
        held.enter_context(_copying(one.copier, part, self.listeners.notice))
        held.enter_context(_stopping(self.control, part, runner, root))
        held.enter_context(watching(watch, self.listeners.recovery, runner.fail))
        return part

    def _begin(self, part: Coordinator) -> bool:
        """Start the driver of a part; False when it was told to stop first."""
        has_begun = begin(part, self.patience)
        if has_begun:
            _check_end(part, self.settings)
        return has_begun


@contextmanager
def _told(part: Coordinator, control: Control) -> Iterator[None]:
    """Let the story of a job have how its run ended, where no manifest tells of that."""
    try:
        yield
    except DroppedError:
        part.story.tell("stopped", "the driver stopped, and dropped the epoch under way")
        raise
    except HeadraceError as error:
        part.story.tell("failed", f"the driver ended: {error.code}: {error.message}")
        raise
    if control.stop.is_set() and not part.has_ended:
        why = "for another one has taken over" if control.fenced.is_set() else "as it was told to"
        part.story.tell("stopped", f"the driver stopped, {why}")


class _Tally:
    """Counts what a run does, and tells of each epoch; parts may have epochs at the same time."""

    def __init__(self, on_epoch: OnEpoch | None) -> None:
        self._on_epoch, self._lock = on_epoch, threading.Lock()
        self.epochs = self.rows = 0

    def __call__(self, summary: EpochSummary) -> None:
        with self._lock:
            self.epochs += 1
            self.rows += summary.rows
            if self._on_epoch is not None:
                self._on_epoch(summary)


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
def refusals() -> Iterator[None]:
    """Give errors of the driver's own disk the words that those of slots have."""
    try:
        yield
    except ConnectionError:  # such as of a pipe that nobody reads any more
        raise
    except OSError as error:
        raise disk_error(error) from error


@contextmanager
def _stopping(
    control: Control, coordinator: Coordinator, runner: StoppableRunner, root: Path
) -> Iterator[None]:
    """Let whoever sets ``control.stop``, signals too, end the epoch under way in time.

    The stop file makes source tasks stop reading; what is still running after the grace
    is cancelled, which drops the epoch. A second signal ends the process at once.
    """
    over = threading.Event()

    def hurry() -> None:
        while not control.stop.is_set():
            if over.wait(LOOK_S):  # not for the stop, or the end of each run would wait for it
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
