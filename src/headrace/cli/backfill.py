"""``headrace backfill``: a job over old data, beside the live one or in its place."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    Config,
    Home,
    Json,
    Set,
    Target,
    column_names,
    open_home_bus,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.bus.bus import Bus
    from headrace.cli.jobs.merging import Brought
    from headrace.config import Settings
    from headrace.graph.jobs import Job

EVERY_MS = 1000
"""An epoch so often, where a rate is given."""

WAIT_S = 60.0
"""For the epoch under way of the live job, at the end."""


Begin = Annotated[
    str,
    typer.Option(
        "--from", metavar="TIME", help="First event time; earliest: all.", show_default=False
    ),
]
End = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="First that no longer counts.", show_default=False),
]
Rate = Annotated[
    int | None,
    typer.Option(
        "--rate", metavar="ROWS", min=1, help="At most so many a second.", show_default=False
    ),
]
Named = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Default: JOB-backfill.", show_default=False),
]
Merging = Annotated[
    bool, typer.Option("--merge", help="Bring its results into the live ones at the end.")
]
ByKey = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="COLUMN,...", help="What tells results apart.", show_default=False
    ),
]
Blocking = Annotated[
    bool, typer.Option("--blocking", help="In place of the live job, which begins anew.")
]
Tasks = Annotated[
    int | None,
    typer.Option(min=1, help="Tasks of each keyed stage, until it is over.", show_default=False),
]
Executors = Annotated[
    int | None,
    typer.Option(min=1, help="Spark executors of its own, until it is over.", show_default=False),
]
Cores = Annotated[
    int | None,
    typer.Option("--cores", min=1, help="Of each of these executors; 1.", show_default=False),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark master, such as local[2].", show_default=False),
]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="Run it in this process, without Spark.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line an epoch.")]


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
    """Run a job over old data: beside the live one with outputs of its own, or in its place.

    Asked again in the same words, a run that was stopped or killed goes on.
    """
    from headrace.cli.running.in_place import InPlace
    from headrace.cli.running.run import run_target
    from headrace.cli.running.scaling import Scaling, end_application, executor_sets
    from headrace.cli.running.ways import Way
    from headrace.cli.targets import find_job
    from headrace.errors import InvalidInputError

    if blocking and (end or merge or as_name):
        raise InvalidInputError(
            "--blocking goes on in place of the live job, to where its inputs end; it takes no "
            "--to, --as and --merge"
        )
    job = find_job(target)
    way = Way.of(standalone=standalone, join=False, master=master, loop=None)
    own = list(overrides or [])
    settings = settings_of(home, config, own, {"spark.master": master})
    spark = executor_sets(settings, way, executors, cores)
    sets = [*rate_sets(rate), *spark]

    def go(more: Sequence[str], scaling: Scaling | None, **beside: str) -> None:
        flags: dict[str, object] = {"spark.master": master}
        if beside:
            flags |= {"job.bounded": "true", "job.replace_outputs": "true"}
        found = settings_of(home, config, [*own, *more], flags)
        run_target(target, found, way, as_json=as_json, verbose=verbose, scaling=scaling, **beside)

    if blocking:
        InPlace(job.name, begin, tasks, sets, spark, config, own, as_json, home, rate).run(go)
        return
    name, apart = as_name or f"{job.name}-backfill", as_name or "backfill"
    sets += sets_beside(settings, job, replace(job, name=name, apart=apart), begin, end)
    if not _is_half_merged(settings, name, merge=merge):
        go(sets, Scaling(tasks), as_name=name, apart=apart)
        end_application(spark)
    if merge:
        _tell(_merge(job, target, name, key, home, config, own), as_json=as_json)


def sets_beside(
    settings: Settings, job: Job, beside: Job, begin: str, end: str | None
) -> list[str]:
    """Return the settings of a run beside a job, over a range of event times.

    Raises:
        InvalidInputError: of ``range_sets``, or its outputs hold rows of others.
    """
    from headrace.coordinator.reprocessing.pairs import check_unused
    from headrace.graph.operators import SendTo

    own = [one.stream for one in beside.build().operators if isinstance(one, SendTo)]
    with open_home_bus(settings) as bus:
        sets = range_sets(settings, job, bus, begin, end)
        check_unused(settings, beside.name, own, bus)
    return sets


def _is_half_merged(settings: Settings, name: str, *, merge: bool) -> bool:
    """Say whether a merge of the run was begun and is to be completed; tells so.

    Raises:
        InvalidInputError: results are merged in part, and nobody asks for the rest.
    """
    from headrace.cli.jobs.finding import tell_notice
    from headrace.clock import SystemClock
    from headrace.coordinator.reprocessing.unmerged import check_merged, is_half_merged

    clock = SystemClock()
    if not merge:
        check_merged(settings, name, clock)
        return False
    found = is_half_merged(settings, name, clock)
    if found:
        tell_notice(
            f"the run of {name} has ended, and its merge was begun: only that is completed; to run "
            f"it anew: headrace jobs delete {name} --outputs"
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
) -> Brought:
    """Merge the results of a run into its job's; where that is refused, say what to do then."""
    from headrace.cli.jobs.merging import merge_into
    from headrace.clock import SystemClock
    from headrace.errors import InvalidInputError

    clock, keys = SystemClock(), column_names(key)
    try:
        return merge_into(
            job.name, name, job, keys, WAIT_S, home, clock, config=config, overrides=overrides
        )
    except InvalidInputError as error:
        by = _merge_command(job.name, name, target, key, home, config, overrides)
        error.also = f"the results of {name} stay; to merge them when that is mended: {by}"
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

    from headrace.config.frames import without_secret

    words = ["headrace", "jobs", "merge", job, name, "--by", target]
    for option, value in (("--key", key), ("--config", config), ("--home", home)):
        words += [] if value is None else [option, str(value)]
    for one in overrides:
        words += ["--set", without_secret(one)]
    return shlex.join(words)


def _tell(found: Brought, *, as_json: bool) -> None:
    from headrace.cli.jobs.merging import given_line
    from headrace.cli.screen import show_json, show_line

    for one in found.merged:
        if as_json:
            show_json({"type": "merged", **asdict(one)})
        else:
            show_line(f"{one.stream}: {one.appended:,} rows appended, {one.kept:,} keys stay")
    for sink in found.given:
        if as_json:
            show_json({"type": "given", **asdict(sink)})
        else:
            show_line(given_line(sink))


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
    from headrace.cli.running.starts import read_time
    from headrace.config.starts import EARLIEST
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
            "--from earliest, or give a range of offsets: headrace run MODULE:JOB --as NAME "
            "--apart SUFFIX --bounded --set inputs.STREAM.from_offset=N"
        )
    return sets
