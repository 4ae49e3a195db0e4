"""``headrace backfill``: a job over old data, beside the live one or in its place.

With ``--blocking`` the live job itself reads old data again, scaled out until it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    Config,
    Home,
    Json,
    Master,
    Set,
    Standalone,
    Target,
    Verbose,
    column_names,
    open_home_bus,
    settings_of,
)

if TYPE_CHECKING:
    from headrace.bus import Bus
    from headrace.cli.jobs.versions import MergeOutcome
    from headrace.cli.run.runner import Scaling
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.rescale import TemporaryScaleOut
    from headrace.graph.builder import Job


RunJob = Callable[[Sequence[str], "Scaling | None"], None]
STOP_WAIT_S = 60.0


@dataclass(frozen=True)
class BlockingBackfill:
    """A backfill in the place of the live job: out, until it has caught up, and in again.

    Args:
        job: its name.
        begin: the time that it is to begin at.
        tasks: of each keyed stage until it has caught up; ``None``: as it has.
        out: settings until then, beside ``overrides``.
        executors: those of them that are of its Spark application.
        config: as of ``run``, like what follows.
        overrides: the same.
        as_json: the same.
        home: the same.
        rate: rows a second that it may read until then, which ``out`` sees to.
    """

    job: str
    begin: str
    tasks: int | None
    out: Sequence[str]
    executors: Sequence[str]
    config: Path | None
    overrides: Sequence[str]
    as_json: bool
    home: Path | None
    rate: int | None = None

    def run(self, go: RunJob) -> None:
        """Start over, or continue with what was broken off; then run as the job did before.

        Args:
            go: runs the job under further settings until it is stopped; ends with ``typer.Exit``
                where somebody did.
        """
        from headrace.cli.jobs.access import show_notice
        from headrace.cli.run.runner import Scaling, end_application
        from headrace.coordinator.rescale import clear_scale_out
        from headrace.files import Files

        settings, note = self._begun()
        scaling = Scaling(self.tasks, ends=True, rate=self.rate)
        try:
            go(self.out, scaling)
        except typer.Exit:
            if not scaling.has_caught_up:
                show_notice(
                    f"{self.job} has not caught up: the same command continues, and scales in then"
                )
            raise
        end_application(self.executors)
        self._scale_in(note)
        clear_scale_out(settings, self.job, Files())
        show_notice(f"{self.job} has caught up, and continues as before")
        go((), None)

    def _begun(self) -> tuple[Settings, TemporaryScaleOut]:
        from headrace.cli.jobs.access import require_stopped, show_notice
        from headrace.cli.jobs.reset import reset
        from headrace.coordinator.rescale import current_scale_out, new_scale_out, save_scale_out
        from headrace.files import Files

        settings, _ = self._parts()
        self._stop(settings)
        require_stopped(settings, self.job)
        settings, parts = self._parts()
        before, run = current_scale_out(settings, self.job), parts[0].run
        if before is not None and (before.begin, before.run) == (self.begin, run):
            show_notice(
                f"the backfill of {self.job} from {self.begin} was interrupted, and continues; to "
                f"start over: headrace jobs reset {self.job}"
            )
        else:
            words = list(self.overrides)
            reset(self.job, self.begin, None, self.config, words, self.as_json, self.home)
            run = self._parts()[1][0].run
        note = new_scale_out(self.begin, self.tasks, before, parts, run)
        save_scale_out(settings, self.job, note, Files())
        return settings, note

    def _stop(self, settings: Settings) -> None:
        """End the driver of the live job, if one runs, after its epoch; not for a mistake."""
        from headrace.cli.arguments import read_time
        from headrace.cli.jobs.stop import stop
        from headrace.clock import SystemClock
        from headrace.config import EARLIEST, LATEST
        from headrace.coordinator.job_storage import newest_storage
        from headrace.coordinator.leader_lease import driver_of

        if self.begin not in {EARLIEST, LATEST}:
            read_time(self.begin, "--from", "earliest, latest, or a time")
        storage, shared = newest_storage(settings, self.job), settings.jobs_dir / self.job
        if driver_of(storage, shared, self.job, SystemClock()) is not None:
            stop(self.job, STOP_WAIT_S, False, None, self.as_json, settings.home)

    def _parts(self) -> tuple[Settings, list[JobState]]:
        from headrace.cli.jobs.access import locate_job
        from headrace.coordinator.inspection.job_reader import readers_of_other_parts

        found = locate_job(self.job, self.home, self.config, list(self.overrides))
        others = [one.state() for one in readers_of_other_parts(found.settings, self.job)]
        return found.settings, [found.state, *others]

    def _scale_in(self, note: TemporaryScaleOut) -> None:
        """Give stages the tasks that they had, but for those that are as the code says again."""
        settings, parts = self._parts()
        for part in parts:
            for stage, has in part.task_counts.items():
                fresh = has if self.tasks is None else settings.job.tasks
                wanted = note.counts.get(stage, fresh)
                is_cut = part.rescaled_at < 0 and stage in note.cut
                if wanted != has and not is_cut:
                    self._rescale(stage, has, wanted)

    def _rescale(self, stage: str, has: int, wanted: int) -> None:
        from headrace.cli.jobs.access import show_notice
        from headrace.cli.jobs.commands import rescale
        from headrace.errors import InvalidInputError

        words = list(self.overrides)
        try:
            rescale(
                self.job,
                wanted,
                stage,
                STOP_WAIT_S,
                config=self.config,
                overrides=words,
                as_json=self.as_json,
                home=self.home,
            )
        except InvalidInputError as error:
            show_notice(
                f"stage {stage} keeps {has} tasks: {error.message}. Later: headrace jobs "
                f"rescale {self.job} --stage {stage} --tasks {wanted}"
            )


EVERY_MS = 1000
"""An epoch so often, where a rate is given."""

MERGE_WAIT_S = 60.0
"""For the epoch under way of the live job, at the end."""


Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="TIME",
        help="First event time, or earliest for all rows.",
        show_default=False,
    ),
]
End = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TIME",
        help="Event time to stop before. Default: no end.",
        show_default=False,
    ),
]
Rate = Annotated[
    int | None,
    typer.Option(
        "--rate",
        metavar="ROWS",
        min=1,
        help="Most rows a second. Default: no limit.",
        show_default=False,
    ),
]
Named = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="Name of the run. Default: JOB-backfill.", show_default=False
    ),
]
Merging = Annotated[
    bool, typer.Option("--merge", help="Merge its results into the live ones at the end.")
]
ByKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COLUMN,...",
        help="Columns that identify a row, for the merge. Default: the stream's key "
        "and the window.",
        show_default=False,
    ),
]
Blocking = Annotated[
    bool, typer.Option("--blocking", help="Run in place of the live job, which starts over.")
]
Tasks = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tasks of each keyed stage, until the run is over; with --blocking, "
        "until it has caught up.",
        show_default=False,
    ),
]
Executors = Annotated[
    int | None,
    typer.Option(min=1, help="Its own Spark executors, until then.", show_default=False),
]
Cores = Annotated[
    int | None,
    typer.Option(
        "--cores", min=1, help="Cores of each of these executors. Default: 1.", show_default=False
    ),
]


def backfill(  # noqa: PLR0913, PLR0917 - one for each option
    target: Target,
    begin: Begin,
    end: End = None,
    rate: Rate = None,
    as_name: Named = None,
    merge: Merging = False,
    key: ByKey = None,
    blocking: Blocking = False,
    tasks: Tasks = None,
    executors: Executors = None,
    cores: Cores = None,
    config: Config = None,
    overrides: Set = None,
    master: Master = None,
    standalone: Standalone = False,
    as_json: Json = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Run a job over old data, beside the live job with its own outputs, or in its place.

    Runs the job over the event times from `--from` up to `--to`, as `JOB-backfill`, with its own
    outputs. After a stop or a kill, the same command continues the run.

    Guide: reprocessing.

    For example:

        headrace backfill shop.py --from 2013-01-01 --to 2013-02-01 --rate 10000 --merge
    """
    from headrace.cli.job_loader import load_job
    from headrace.cli.run.commands import run_target
    from headrace.cli.run.runner import JobRunner, Scaling, end_application, executor_sets
    from headrace.errors import InvalidInputError

    if blocking and (end or merge or as_name):
        raise InvalidInputError(
            "--blocking continues in place of the live job, to where its inputs end; it takes no "
            "--to, --name and --merge"
        )
    job = load_job(target)
    way = JobRunner.of(standalone=standalone, join=False, master=master, loop=None)
    own = list(overrides or [])
    flags: dict[str, tuple[str, object]] = {"--master": ("spark.master", master)}
    settings = settings_of(home, config, own, flags)
    spark = executor_sets(settings, way, executors, cores)
    sets = [*rate_sets(rate), *spark]

    def go(more: Sequence[str], scaling: Scaling | None, **beside: str) -> None:
        ends = ("job.bounded=true", "job.replace_outputs=true") if beside else ()
        found = settings_of(home, config, [*own, *more, *ends], flags)
        run_target(target, found, way, as_json=as_json, verbose=verbose, scaling=scaling, **beside)

    if blocking:
        BlockingBackfill(job.name, begin, tasks, sets, spark, config, own, as_json, home, rate).run(
            go
        )
        return
    name, apart = as_name or f"{job.name}-backfill", as_name or "backfill"
    sets += sets_beside(settings, job, replace(job, name=name, apart=apart), begin, end)
    if not _is_half_merged(settings, name, merge=merge):
        go(sets, Scaling(tasks), as_name=name, apart=apart)
        end_application(spark)
    if merge:
        _notify(_merge(job, target, name, key, home, config, own), as_json=as_json)


def sets_beside(
    settings: Settings, job: Job, beside: Job, begin: str, end: str | None
) -> list[str]:
    """Return the settings of a run beside a job, over a range of event times.

    Raises:
        InvalidInputError: of ``range_sets``, or its outputs hold rows of others.
    """
    from headrace.coordinator.operations.paired_jobs import check_unused
    from headrace.graph.operators import SendTo

    own = [one.stream for one in beside.build().operators if isinstance(one, SendTo)]
    with open_home_bus(settings) as bus:
        sets = range_sets(settings, job, bus, begin, end)
        check_unused(settings, beside.name, own, bus)
    return sets


def _is_half_merged(settings: Settings, name: str, *, merge: bool) -> bool:
    """Say whether a merge of the run was begun and is to be completed; prints so.

    Raises:
        InvalidInputError: results are merged in part, and nobody asks for the rest.
    """
    from headrace.cli.jobs.access import show_notice
    from headrace.coordinator.operations.paired_jobs import check_no_merge, is_half_merged

    if not merge:
        check_no_merge(settings, name)
        return False
    found = is_half_merged(settings, name)
    if found:
        show_notice(
            f"the run of {name} has ended, and its merge was begun: only that is completed; to run "
            f"it again: headrace jobs delete {name} --outputs"
        )
    return found


def _merge(
    job: Job,
    target: str,
    name: str,
    key: str | None,
    home: Path | None,
    config: Path | None,
    overrides: list[str],
) -> MergeOutcome:
    """Merge the results of a run into its job's; where that is refused, say what to do then."""
    from headrace.cli.jobs.versions import merge_into
    from headrace.clock import SystemClock
    from headrace.errors import InvalidInputError

    clock, keys = SystemClock(), column_names(key)
    try:
        return merge_into(
            job.name, name, job, keys, MERGE_WAIT_S, home, clock, config=config, overrides=overrides
        )
    except InvalidInputError as error:
        by = _merge_command(job.name, name, target, key, home, config, overrides)
        error.also = f"the results of {name} stay; to merge them when that is fixed: {by}"
        raise


def _merge_command(
    job: str,
    name: str,
    target: str,
    key: str | None,
    home: Path | None,
    config: Path | None,
    overrides: list[str],
) -> str:
    """Return the command that merges as this one would have."""
    import shlex

    from headrace.config.inputs import without_secret

    words = ["headrace", "jobs", "merge", job, name, "--merge-job", target]
    for option, value in (("--key", key), ("--config", config), ("--home", home)):
        words += [] if value is None else [option, str(value)]
    for one in overrides:
        words += ["--set", without_secret(one)]
    return shlex.join(words)


def _notify(found: MergeOutcome, *, as_json: bool) -> None:
    from headrace.cli.jobs.versions import sink_line
    from headrace.cli.output import show_json, show_line

    for one in found.merged:
        if as_json:
            show_json({"type": "merged", **asdict(one)})
        else:
            show_line(f"{one.stream}: {one.appended:,} rows appended, {one.kept:,} keys stay")
    for sink in found.given:
        if as_json:
            show_json({"type": "given", **asdict(sink)})
        else:
            show_line(sink_line(sink))


def rate_sets(rate: int | None) -> list[str]:
    """Return the settings under which at most so many rows are read a second."""
    return [] if rate is None else [f"epoch.max_rows={rate}", f"epoch.interval_ms={EVERY_MS}"]


def range_sets(settings: Settings, job: Job, bus: Bus, begin: str, end: str | None) -> list[str]:
    """Return the settings under which a job reads its inputs of a range of event times.

    What the settings say of an input, such as a table of the warehouse, stays, and gets the range
    where it has none. Inputs without event time are read whole, as all are from ``earliest`` on.

    Raises:
        InvalidInputError: a time that cannot be read, or no input has any.
    """
    from headrace.cli.arguments import read_time
    from headrace.config import EARLIEST
    from headrace.errors import InvalidInputError
    from headrace.graph.operators import Input, is_pattern

    span = {"from": begin} if begin != EARLIEST else {}
    span |= {} if end is None else {"to": end}
    for option, word in span.items():
        read_time(word, f"--{option}", "a time")
    sets, known = [], {*bus.names(), *bus.aliases()}
    for operator in job.build().operators:
        if not isinstance(operator, Input) or is_pattern(operator.stream):
            continue
        name, given = operator.stream, settings.inputs.get(operator.stream)
        has_range = given is not None and (given.begin or given.end or given.days)
        is_there = given is None and name in known
        is_timed = given is not None or (
            is_there and (operator.time or bus.stream(name).spec.time) is not None
        )
        if is_timed and not has_range:
            sets += [f"inputs.{name}.{option}={word}" for option, word in span.items()]
        begins = EARLIEST if operator.bootstrap else settings.job.start
        is_whole = is_there and not (is_timed and "from" in span)
        if is_whole and (operator.start or begins) != EARLIEST:
            sets.append(f"inputs.{name}.from_offset=0")
    if not sets and not settings.inputs and begin != EARLIEST:
        raise InvalidInputError(
            f"no input of job {job.name!r} has event times to choose by; read them whole with "
            "--from earliest, or give a range of offsets: headrace run MODULE:JOB --name NAME "
            "--output-suffix SUFFIX --bounded --set inputs.STREAM.from_offset=N"
        )
    return sets
