"""``headrace run``: a job on Spark, following its inputs or to their end."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.failures import INTERRUPTED
from headrace.cli.options import Config, Home, Json, Set, Target, open_home_bus, settings_of
from headrace.cli.running.beginning import (
    Apart,
    AsName,
    FromSavepoint,
    begin_from,
    with_own_outputs,
)

if TYPE_CHECKING:
    from headrace.bus.bus import Bus
    from headrace.cli.running.progress import Progress
    from headrace.cli.running.reporters import Reporter
    from headrace.cli.running.scaling import Scaling
    from headrace.cli.running.ways import Way
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.joined import JoinedParts
    from headrace.coordinator.loop import Control
    from headrace.coordinator.summary import EpochSummary
    from headrace.errors import HeadraceError
    from headrace.graph.jobs import Job
    from headrace.graph.operators import JobGraph


def run(  # noqa: PLR0913, PLR0917 - one for each option
    target: Target,
    config: Config = None,
    overrides: Set = None,
    bounded: Annotated[
        bool, typer.Option("--bounded", help="Stop at the end of the inputs as it is now.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Run again, drop what the output streams hold first."),
    ] = False,
    from_savepoint: FromSavepoint = None,
    as_name: AsName = None,
    apart: Apart = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark master, such as local[2].", show_default=False),
    ] = None,
    loop: Annotated[
        Literal["direct", "query"] | None,
        typer.Option(
            help="Drive epochs by a loop, or by a Structured Streaming query.", show_default=False
        ),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Run it in this process, without Spark.")
    ] = False,
    join: Annotated[
        bool,
        typer.Option("--join", help="Standalone, and share it with all that run it like this."),
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Fence the driver that runs it, and go on from it.")
    ] = False,
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line an epoch.")] = False,
    home: Home = None,
) -> None:
    """Run a job until it is stopped; with --bounded, to the end of its inputs.

    Ctrl-C or SIGTERM ends the epoch under way and exits within 10 seconds; nothing is lost.
    """
    from headrace.cli.running.ways import Way

    way = Way.of(standalone=standalone, join=join, master=master, loop=loop, takeover=takeover)
    flags: dict[str, object] = {"spark.master": master, "spark.loop": loop}
    flags |= {"job.bounded": "true"} if bounded else {}
    flags |= {"job.replace_outputs": "true"} if replace else {}
    settings = settings_of(home, config, overrides, flags)
    run_target(
        target,
        settings,
        way,
        from_savepoint=from_savepoint,
        as_name=as_name,
        apart=apart,
        as_json=as_json,
        verbose=verbose,
    )


def run_target(  # noqa: PLR0913 - what `run` says, by name
    target: str,
    settings: Settings,
    way: Way,
    *,
    from_savepoint: str | None = None,
    as_name: str | None = None,
    apart: str | None = None,
    as_json: bool = False,
    verbose: bool = False,
    scaling: Scaling | None = None,
) -> None:
    """Run a job and show it; ends with the code of an interrupt where it was interrupted.

    Args:
        target: as of ``run``, like what is not named here.
        settings: of the run.
        way: where it runs.
        from_savepoint: the same.
        as_name: the same.
        apart: the same.
        as_json: the same.
        verbose: the same.
        scaling: what scales it out, and may end it.
    """
    from headrace.cli.targets import find_job
    from headrace.clock import SystemClock

    job = find_job(target)
    own_name, job = job.name, job if as_name is None else dataclasses.replace(job, name=as_name)
    clock = SystemClock()
    reporter = _reporter(clock, as_json=as_json, verbose=verbose)
    job = with_own_outputs(job, apart, settings, clock)
    with open_home_bus(settings) as bus:
        if from_savepoint is not None:
            reporter.notice(begin_from(from_savepoint, own_name, job, settings, bus, clock))
        interrupted = show_run(job, settings, bus, reporter, clock, way, scaling)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _reporter(clock: Clock, *, as_json: bool, verbose: bool) -> Reporter:
    from headrace.cli.running.reporters import JsonReporter, QuietReporter, TerminalReporter

    if as_json:
        return JsonReporter(clock)
    if sys.stdout.isatty():
        return TerminalReporter(clock, verbose=verbose)
    return QuietReporter(verbose=verbose)


def show_run(
    job: Job,
    settings: Settings,
    bus: Bus,
    reporter: Reporter,
    clock: Clock,
    way: Way,
    scaling: Scaling | None = None,
) -> bool:
    """Run a job under a reporter; return whether it was interrupted, by others than ``scaling``."""
    from headrace.cli.running.scaling import Scaling
    from headrace.coordinator.changes.rescaling import setting_notice
    from headrace.coordinator.loop import Control
    from headrace.coordinator.running.course import Listeners
    from headrace.errors import HeadraceError

    graph = job.build()  # mistakes are told before anything starts
    control, scaling = Control(), scaling or Scaling()
    running: list[tuple[JoinedParts, Progress]] = []

    def on_parts(parts: JoinedParts) -> None:
        scaled = scaling.begin(parts, control)
        running.append((parts, progress := _begun(graph, parts, clock)))
        if scaling.tasks is None and (told := setting_notice(parts.state, settings.job.tasks)):
            typer.echo(told, err=True)
        reporter.started(progress, parts.ends)
        if scaled is not None:
            reporter.notice(scaled)

    def on_epoch(summary: EpochSummary) -> None:
        parts, progress = running[-1]
        progress.observe(summary, parts.state, clock.monotonic())
        reporter.epoch(summary)
        if told := scaling.observe(summary, control, clock.monotonic()):
            reporter.notice(told)

    def on_role(drives: bool) -> None:
        if not drives:
            reporter.close()

    listeners = Listeners(
        on_parts=on_parts,
        on_epoch=on_epoch,
        on_notice=reporter.notice,
        on_recovery=reporter.recovering,
    )
    with _ends_like_ctrl_c(), _telling(control, reporter, scaling):
        try:
            if not way.standalone:
                reporter.starting(settings.spark.master)
            result = way.run(job, settings, bus, control, listeners, clock, on_role)
        except HeadraceError as error:
            _tell_of_replay(job.name, error, settings, clock)
            raise
        finally:
            reporter.close()
    seconds = clock.monotonic() - running[-1][1].began if running else 0.0
    interrupted = result.interrupted and not scaling.has_caught_up
    reporter.finished(seconds, interrupted=interrupted)
    return interrupted


def _begun(graph: JobGraph, parts: JoinedParts, clock: Clock) -> Progress:
    from headrace.cli.running.progress import Progress
    from headrace.graph.operators import Input

    inputs = [operator for operator in graph.operators if isinstance(operator, Input)]
    lateness = {operator.name: operator.lateness_ms for operator in inputs}
    idle = {operator.name: operator.idle_ms for operator in inputs if operator.idle_ms is not None}
    streams, began = parts.input_streams(), clock.monotonic()
    return Progress(graph.name, streams, lateness, parts.state, began, idle_ms=idle)


def _tell_of_replay(job: str, error: HeadraceError, settings: Settings, clock: Clock) -> None:
    """Say how the epoch that ended with an error can be looked at, where it was left behind."""
    from headrace.coordinator.epoch_plan import load_failed
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.errors import HeadraceError
    from headrace.files import Files

    with suppress(HeadraceError, OSError):  # the error itself is what counts
        for reader in part_readers(settings, job, clock):
            found = load_failed(reader.root, reader.state(), Files(sync=False))
            if found is not None and found.message == error.message:
                command = f"headrace jobs replay {reader.job}"
                number = found.plan.epoch
                error.also = f"for a test that runs epoch {number} again: {command}"


@contextmanager
def _ends_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, also before the job has its own handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _telling(control: Control, reporter: Reporter, scaling: Scaling) -> Iterator[None]:
    """Tell the reporter when the run is asked to stop; a handler of signals may not print."""
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if control.stop.wait(0.1):
                if not over.is_set() and not scaling.has_caught_up:
                    reporter.stopping()
                return

    watcher = threading.Thread(target=wait, name="headrace-stop-notice", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
