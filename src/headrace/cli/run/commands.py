"""``headrace run``: a job on Spark or in this process, following its inputs or to their end.

With ``--from-savepoint`` it starts where another job was.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.failures import INTERRUPTED
from headrace.cli.options import (
    Bounded,
    Config,
    Home,
    Json,
    Master,
    Set,
    Standalone,
    Target,
    Verbose,
    open_home_bus,
    settings_of,
)
from headrace.cli.supervised import ChildReport, follow_parent, report

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.cli.run.progress import Progress
    from headrace.cli.run.reporters import Reporter
    from headrace.cli.run.runner import JobRunner, Scaling
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.epoch_records import EpochSummary
    from headrace.coordinator.job_group import JobGroup
    from headrace.errors import HeadraceError
    from headrace.graph.builder import Job
    from headrace.graph.operators import JobGraph


FromSavepoint = Annotated[
    str | None,
    typer.Option(
        "--from-savepoint",
        metavar="PATH",
        help="Start from a savepoint: its folder or address, or the name of one of the job's "
        "own. Leave it out in later runs.",
        show_default=False,
    ),
]
AsName = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="Run it as another job, with this name.", show_default=False
    ),
]

Apart = Annotated[
    str | None,
    typer.Option(
        "--output-suffix",
        metavar="SUFFIX",
        help="Send to its own streams, OUTPUT.SUFFIX, also in later runs.",
        show_default=False,
    ),
]


def with_own_outputs(job: Job, suffix: str | None, settings: Settings) -> Job:
    """Return a job with the outputs that it has had from its first run on.

    Args:
        job: to be run.
        suffix: of its outputs, as it is wanted now; ``None``: as before.
        settings: of the run.

    Raises:
        InvalidInputError: it began with other outputs.
    """
    from headrace.bus.spec import check_name
    from headrace.coordinator.job_storage import newest_storage
    from headrace.coordinator.operations.paired_jobs import output_suffix, output_suffix_file
    from headrace.errors import InvalidInputError
    from headrace.files import Files

    held = output_suffix(settings, job.name)
    if suffix is None:
        return job if held is None else dataclasses.replace(job, apart=held)
    check_name(suffix)
    has_begun = bool(Files().names(newest_storage(settings, job.name) / "manifests"))
    if held != suffix and (held is not None or has_begun):
        before = "without --output-suffix" if held is None else f"with --output-suffix {held}"
        raise InvalidInputError(
            f"job {job.name!r} began {before}, and rows of one job belong together; run it so, or "
            "as another one with --name NAME"
        )
    apart = dataclasses.replace(job, apart=suffix)
    apart.build()  # refused before it is noted
    if held is None:
        path = output_suffix_file(settings, job.name)
        files = Files()
        files.make_folder(path.parent, 0o700)
        files.publish(path, suffix.encode())
    return apart


def start_from_savepoint(
    word: str, saved_job: str, job: Job, settings: Settings, bus: Bus, clock: Clock
) -> str:
    """Make a job what it continues from; return a line about that.

    Args:
        word: a savepoint's folder or address, or the name of one of ``saved_job``'s own.
        saved_job: whose savepoints are looked through.
        job: that begins.
        settings: of the run.
        bus: its streams.
        clock: time and names.
    """
    from headrace.coordinator.job_storage import JobContext
    from headrace.coordinator.operations.savepoint_format import find_savepoint
    from headrace.coordinator.savepoint_restore import SavepointRestore
    from headrace.files import Files
    from headrace.remote import address_of

    folder = find_savepoint(settings, saved_job, word)
    context = JobContext(settings, job.name, bus, Files(), clock)
    states = SavepointRestore(job.build(), context).begin(folder)
    return (
        f"job {job.name} begins with epoch {states[0].epoch:,}, from savepoint "
        f"{address_of(folder)}; leave --from-savepoint out to continue with it later"
    )


def run(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    target: Target,
    config: Config = None,
    overrides: Set = None,
    bounded: Bounded = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="In the next run of a bounded job, first remove the rows of its output "
            "streams. Same as job.replace_outputs.",
        ),
    ] = False,
    from_savepoint: FromSavepoint = None,
    as_name: AsName = None,
    apart: Apart = None,
    master: Master = None,
    loop: Annotated[
        Literal["direct", "query"] | None,
        typer.Option(help="Deprecated, without effect.", show_default=False, hidden=True),
    ] = None,
    standalone: Standalone = False,
    join: Annotated[
        bool,
        typer.Option(
            "--join", help="Run it without Spark, shared by all processes that run it like this."
        ),
    ] = False,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Fence the driver that runs it, and continue.")
    ] = False,
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Wait, ready to run it, until it has no other driver."),
    ] = False,
    supervise: Annotated[
        bool, typer.Option("--supervise", help="Start the driver again when it dies.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Run a job until it is stopped; with `--bounded`, to the end of its inputs.

    **Stop.** The first Ctrl-C or SIGTERM ends the current epoch and exits within 10 seconds. An
    epoch that cannot end by then is dropped, and repeated by the next run. The second exits at
    once. Nothing is lost in either case.

    **Bounded runs.** `--bounded` reads the inputs to their current ends, and closes all windows.
    Started again, a run that was stopped or killed continues. A run that has ended is followed by
    the next run, from the start of the inputs.

    **One driver.** A job has one driver. A second run is refused, with the process and host of the
    first. `--takeover` drives nevertheless: the previous driver is fenced, so that nothing it does
    counts from then on. It notices this within a second or two, drops what it cannot commit, and
    ends with HR300. The lock of a frozen driver is taken away after 15 s. If the driver froze in
    the few milliseconds of an append to a file stream, that partition is locked until it wakes or
    is killed, and the new driver ends with HR200. A driver on another host that dies leaves a
    lease, which expires after 30 s; `--takeover` does not wait for it. If several runs take a job
    over at the same time, the last one drives, and the others end with HR300.

    **Standby drivers.** With `--standby`, the run waits while another driver lives, with Spark and
    its Python processes started. It drives as soon as that one has died, or has not renewed its
    lease for `job.lease_s`; a driver that was only frozen is fenced. It needs cores of its own. A
    driver that is stopped is followed, too, except by `headrace jobs stop`, which stops both.

    **Supervision.** With `--supervise`, a small parent process runs the driver in a child. When the
    child dies, it says why, and starts it again after 1 s, then 2 s, up to 60 s (`supervise.*`). It
    ends with the child's code if that is done or was asked to stop, and if the same would happen
    again: a mistake, damaged data, another driver. Signals are passed on to the child. If the
    parent dies, the child stops as after SIGTERM. With `--json`, each end of a child is an object
    of `type` `supervisor` with `process`, `code`, `signal`, `error`, `details`, `log`, `ran_s`,
    `restarts`, `wait_s` and `text`; without, a line on stderr.

    **Output.** In a terminal, a run shows a table with a line for each input, a bounded run a
    progress bar:

    - *rows/s*: rows read in the last five seconds
    - *lag*: rows of the stream that no epoch has read yet
    - *watermark*: the lowest watermark of the input's partitions that are not idle
    - *epoch, took, state*: the last epoch, its duration, the size of all stores

    In a narrow terminal, epoch, took and state move to the first line. If there are more inputs
    than lines, those with the highest lag are shown and the others are summed. Without a terminal,
    it prints one line at the end, with `--verbose` also one for each epoch.

    With `--json`, each epoch is an object of `type` `epoch` with `epoch`, `rows`, `took_ms`,
    `rows_per_s`, `output_rows`, `lag`, `watermark_ms`, `state_bytes`, `changelog_bytes`,
    `merged_bytes`, `merge_problems`, `counts`, `timings_ms`, `inputs`, `copy` and `ended`. The
    last object has `type` `end` and the sums. In between, `recovery` shows the progress of
    restoring stores, and `notice` shows problems that do not end the run; without `--json`, these
    are lines on stderr.

    Spark's own log is in `jobs/JOB/logs/spark.log` below the home.

    Guide: settings, bounded, standalone, savepoints, reprocessing, durability.

    For example:

        headrace run shop.py:shop --master spark://head:7077 --set job.tasks=8
    """
    from headrace.cli.run.runner import JobRunner

    follow_parent()
    way = JobRunner.of(
        standalone=standalone,
        join=join,
        master=master,
        loop=loop,
        takeover=takeover,
        standby=standby,
    )
    flags: dict[str, tuple[str, object]] = {
        "--master": ("spark.master", master),
        "--loop": ("spark.loop", loop),
        "--bounded": ("job.bounded", True if bounded else None),
        "--replace": ("job.replace_outputs", True if replace else None),
    }
    settings = settings_of(home, config, overrides, flags)
    if supervise:
        from headrace.cli.run import supervisor
        from headrace.clock import SystemClock

        raise typer.Exit(
            supervisor.supervise(
                context, settings.supervise, SystemClock(), as_json=as_json, is_standby=standby
            )
        )
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
    way: JobRunner,
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
    from headrace.cli.job_loader import load_job

    reporter = reporter_of(as_json=as_json, verbose=verbose)
    reporter.starting(f"loading {target}")
    with closing(reporter):
        from headrace.coordinator.epoch_clock import (
            driver_clock,
        )  # after the first line on the screen

        job = load_job(target)
        own_name, job = job.name, job if as_name is None else dataclasses.replace(job, name=as_name)
        clock = driver_clock(settings)
        job = with_own_outputs(job, apart, settings)
        with open_home_bus(settings) as bus:
            if from_savepoint is not None:
                begun = start_from_savepoint(from_savepoint, own_name, job, settings, bus, clock)
                report(ChildReport(restored=True))
                reporter.notice(begun)
            interrupted = show_run(job, settings, bus, reporter, clock, way, scaling)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def reporter_of(*, as_json: bool, verbose: bool) -> Reporter:
    """Return what shows a run, as the command wants it.

    Args:
        as_json: as of ``run``.
        verbose: the same.
    """
    from headrace.cli.run.reporters import JsonReporter, QuietReporter, TerminalReporter
    from headrace.clock import SystemClock

    clock = SystemClock()
    if as_json:
        return JsonReporter(clock)
    if sys.stdout.isatty():
        return TerminalReporter(clock, verbose=verbose)
    return QuietReporter(clock, verbose=verbose)


def show_run(
    job: Job,
    settings: Settings,
    bus: Bus,
    reporter: Reporter,
    clock: Clock,
    way: JobRunner,
    scaling: Scaling | None = None,
) -> bool:
    """Run a job under a reporter; return whether it was interrupted, by others than ``scaling``."""
    from headrace.cli.run.runner import Scaling
    from headrace.coordinator.driver_loop import JobControl, on_stop
    from headrace.coordinator.job_run import RunListeners
    from headrace.coordinator.rescale import setting_notice
    from headrace.errors import HeadraceError

    graph = job.build()  # mistakes are reported before anything starts
    control, scaling = JobControl(), scaling or Scaling()
    running: list[tuple[JobGroup, Progress]] = []

    def on_parts(parts: JobGroup) -> None:
        _report_begun(settings, job.name, parts, with_spark=not way.standalone)
        scaled = scaling.begin(parts, control)
        running.append((parts, progress := _initial_progress(graph, parts, clock)))
        if scaling.tasks is None and (notice := setting_notice(parts.state, settings.job.tasks)):
            typer.echo(notice, err=True)
        reporter.started(progress, parts.ends, None if way.standalone else _spark_ui())
        if scaled is not None:
            reporter.notice(scaled)

    def on_epoch(summary: EpochSummary) -> None:
        parts, progress = running[-1]
        progress.observe(summary, parts.state, clock.monotonic())
        reporter.epoch(summary)
        if notice := scaling.observe(summary, control, clock.monotonic()):
            reporter.notice(notice)

    def on_role(drives: bool) -> None:
        if not drives:
            reporter.close()

    listeners = RunListeners(
        on_parts=on_parts,
        on_epoch=on_epoch,
        on_notice=reporter.notice,
        on_recovery=reporter.recovering,
    )

    def stopping() -> None:  # a handler of signals may not print
        if not scaling.has_caught_up:
            reporter.stopping()

    with _sigterm_as_ctrl_c(), on_stop(control, stopping):
        try:
            if not way.standalone:
                reporter.starting(f"starting Spark ({settings.spark.master})")
            result = way.run(job, settings, bus, control, listeners, clock, on_role)
        except HeadraceError as error:
            _suggest_replay(job.name, error, settings)
            raise
        finally:
            reporter.close()
    seconds = clock.monotonic() - running[-1][1].began if running else 0.0
    interrupted = result.interrupted and not scaling.has_caught_up
    reporter.finished(seconds, interrupted=interrupted)
    return interrupted


def _report_begun(settings: Settings, job: str, parts: JobGroup, *, with_spark: bool) -> None:
    from headrace.coordinator.job_storage import job_storages

    state = parts.state
    root = job_storages(settings, job).storage
    report(
        ChildReport(
            storage=str(root),
            lineage=state.lineage,
            bounded=state.until is not None,
            log=str(root / "logs" / "spark.log") if with_spark else "",
        )
    )


def _spark_ui() -> str | None:
    from headrace.spark.sessions import ui_address

    return ui_address()


def _initial_progress(graph: JobGraph, parts: JobGroup, clock: Clock) -> Progress:
    from headrace.cli.run.progress import Progress
    from headrace.graph.operators import Input

    inputs = [operator for operator in graph.operators if isinstance(operator, Input)]
    lateness = {operator.name: operator.lateness_ms for operator in inputs}
    idle = {operator.name: operator.idle_ms for operator in inputs if operator.idle_ms is not None}
    streams, began = parts.input_streams(), clock.monotonic()
    return Progress(graph.name, streams, lateness, parts.state, began, idle_ms=idle)


def _suggest_replay(job: str, error: HeadraceError, settings: Settings) -> None:
    """Say how the epoch that ended with an error can be looked at, where it was left behind."""
    from headrace.coordinator.epoch_records import load_failed
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.errors import HeadraceError
    from headrace.files import Files

    with suppress(HeadraceError, OSError):  # the error itself is what counts
        for reader in part_readers(settings, job):
            found = load_failed(reader.root, reader.state(), Files(sync=False))
            if found is not None and found.message == error.message:
                command = f"headrace jobs replay {reader.job}"
                number = found.plan.epoch
                error.also = f"for a test that runs epoch {number} again: {command}"


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, also before the job has its own handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
