"""``headrace jobs compare``, ``swap`` and ``merge``: a version of a job beside the live one.

``merge`` adds the results of a run that has ended to those of the live job.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer
from msgspec.structs import replace

from headrace.cli.options import (
    Config,
    Home,
    JobName,
    Json,
    RowKey,
    Set,
    Wait,
    column_names,
    open_home_bus,
    settings_of,
)
from headrace.cli.output import show_answer, show_json, show_line, show_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.bus import Bus, Fence
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.operations.compare import StreamComparison
    from headrace.coordinator.operations.merge import MergeFunction, MergeResult, SinkBackfillResult
    from headrace.coordinator.operations.paired_jobs import MergeMarker
    from headrace.graph.builder import Job
    from headrace.plan.stages import SinkBinding


Other = Annotated[
    str,
    typer.Argument(metavar="OTHER", help="Name of the other version.", show_default=False),
]


def compare(
    job: JobName,
    other: Other,
    key: RowKey = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=1000, help="Number of differing keys to show.")
    ] = 5,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare the outputs of two versions of a job.

    For each output of the same operator of both jobs, shows where the streams differ: rows, keys,
    keys that only one stream has, and keys whose last rows differ or are the same. Without a key,
    complete rows are counted. Also shows rows that only one of the jobs has read.

    Guide: reprocessing.

    For example:

        headrace jobs compare shop shop-2
    """
    from headrace.coordinator.operations.compare import compare_streams as compared
    from headrace.coordinator.operations.paired_jobs import (
        inputs_behind,
        job_outputs,
        kept_for_sinks,
        paired_outputs,
    )

    settings = settings_of(home)
    first, second = (job_outputs(settings, name) for name in (job, other))
    kept = kept_for_sinks(first, second)
    with open_home_bus(settings) as bus:
        found = [
            compared(bus, operator, pair, column_names(key), examples)
            for operator, pair in paired_outputs(first, second).items()
        ]
    late = {job: inputs_behind(second, first), other: inputs_behind(first, second)}
    if as_json:
        outputs = [{**asdict(one), "is_same": one.is_same} for one in found]
        summary = {"job": job, "other": other, "behind": late, "outputs": outputs, "kept": kept}
        typer.echo(msgspec.json.encode(summary).decode())  # rows have times
    else:
        _show(found, late)
        for operator, stream in kept.items():
            show_line(f"{stream} is kept for {first.sinks[operator]}, and not compared")


def _show(found: Sequence[StreamComparison], late: Mapping[str, Mapping[str, int]]) -> None:
    numbers = ("rows", "keys", "only there", "differ", "same")
    rows = []
    for one in found:
        rows += [
            [
                stream,
                f"{one.rows[at]:,}",
                f"{one.keys[at]:,}",
                f"{one.only[at]:,}",
                f"{one.different:,}",
                f"{one.same:,}",
            ]
            for at, stream in enumerate(one.streams)
        ]
    show_table(("stream", *numbers), rows, right=numbers)
    for name, inputs in late.items():
        for stream, count in inputs.items():
            typer.echo(f"{name} has not read {count:,} rows of {stream} that the other one has")
    for one in found:
        for example in one.examples:
            typer.echo()
            typer.echo(f"{one.operator}, {_text(example['key'])}")
            for stream, row in zip(one.streams, (example["first"], example["second"]), strict=True):
                typer.echo(f"  {stream}: {'nothing' if row is None else _text(row)}")


def _text(row: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items())


def swap(
    job: JobName,
    other: Other,
    now: Annotated[
        bool, typer.Option("--force", help="Swap even if the other version has not caught up.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Point all aliases of a job's outputs to the outputs of another version, in one step.

    Refused while `OTHER` has not read everything that `JOB` has, except with `--force`; if no alias
    names an output; and if rows are kept for a sink.

    Guide: reprocessing.

    For example:

        headrace jobs swap shop shop-2
    """
    from headrace.coordinator.operations.paired_jobs import job_outputs, swap_outputs

    settings = settings_of(home)
    first, second = (job_outputs(settings, name) for name in (job, other))
    with open_home_bus(settings) as bus:
        targets = swap_outputs(bus, first, second, now=now)
    summary = ", ".join(f"{alias} points to {stream}" for alias, stream in targets.items())
    line = f"{summary}; {job} continues until it is stopped, and can be swapped back"
    show_answer({"job": job, "other": other, "aliases": targets}, line, as_json=as_json)


def merge(  # noqa: PLR0913, PLR0917 - one for each option
    job: JobName,
    other: Other,
    key: RowKey = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--merge-job",
            metavar="MODULE:JOB",
            help="Job with the merge function and the sinks.",
            show_default=False,
        ),
    ] = None,
    wait: Wait = 60.0,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Merge the results of a run that has ended into the live job's streams and sinks.

    `OTHER` is a bounded run that has ended. The live job begins no epoch during the merge. For
    each key, the live row wins, or the merge function of `--merge-job` chooses. The sinks of that
    job take the rows that were kept for them. `--config` and `--set` define where sinks are.

    Guide: reprocessing.

    For example:

        headrace jobs merge shop shop-backfill --merge-job shop.py
    """
    from headrace.cli.job_loader import load_job
    from headrace.clock import SystemClock

    code, clock = None if by is None else load_job(by), SystemClock()
    keys = column_names(key)
    found = merge_into(
        job, other, code, keys, wait, home, clock, config=config, overrides=overrides
    )
    if as_json:
        given = [asdict(one) for one in found.given]
        outputs = [asdict(one) for one in found.merged]
        show_json({"job": job, "other": other, "outputs": outputs, "sinks": given})
        return
    for one in found.merged:
        before = f", {one.there:,} were there" if one.there else ""
        show_line(
            f"{one.stream}: {one.appended:,} rows of {other} appended{before}, "
            f"{one.kept:,} keys stay as {job} has them"
        )
    for sink in found.given:
        show_line(sink_line(sink))


def sink_line(given: SinkBackfillResult) -> str:
    """Report a sink that has its rows."""
    summary = f"{given.sink}: has {given.rows:,} rows of {given.stream}"
    if given.by_function:
        return f"{summary}, as the merge function chose"
    why = f"; the merge function was not asked: {given.unasked}" if given.unasked else ""
    return f"{summary}, beneath what was there{why}"


class MergeOutcome(NamedTuple):
    """What became of the outputs of a run over old data."""

    merged: list[MergeResult]
    given: list[SinkBackfillResult]


def merge_into(  # noqa: PLR0913 - where the job is, and how it is merged
    job: str,
    other: str,
    code: Job | None,
    key: Sequence[str],
    wait_s: float,
    home: Path | None,
    clock: Clock,
    *,
    config: Path | None = None,
    overrides: list[str] | None = None,
) -> MergeOutcome:
    """Merge the outputs of a job that has ended into those of a live one.

    Args:
        job: the live one.
        other: the one that has ended.
        code: whose merge function chooses, and whose sinks take what was kept for them.
        key: columns that tell rows apart; none: the streams' own, and the window.
        wait_s: for the epoch under way of a live driver.
        home: of ``--home``.
        clock: time and names.
        config: of ``--config``: it may say where sinks are, such as the warehouse.
        overrides: of ``--set``; the same.
    """
    from headrace.cli.jobs.access import locate_job as find_existing
    from headrace.cli.jobs.access import require_stopped
    from headrace.control.quiesce import quiesced
    from headrace.coordinator.inspection.job_reader import part_readers
    from headrace.coordinator.job_storage import DriverLock, JobContext, newest_storage
    from headrace.coordinator.operations.paired_jobs import (
        check_same_merge,
        merge_marker,
        partition_alike,
    )
    from headrace.files import Files

    settings = find_existing(job, home, config, overrides).settings
    states = [reader.state() for reader in part_readers(settings, other)]
    require_stopped(settings, other)
    _check_ended(other, states)
    run = states[0].lineage
    function = None if code is None else code.merge
    with open_home_bus(settings) as bus, DriverLock(newest_storage(settings, other), other, clock):
        what = _merge_inputs(settings, job, other, code, bus, clock)
        context = JobContext(settings, job, bus, Files(), clock)
        with quiesced(context, other, wait_s) as fence:
            note = _note(settings, other, run, what.streams, bus)
            by_function = function is not None
            check_same_merge(note, other, tuple(key), by_function=by_function)
            ruled = replace(note, key=tuple(key), by_function=by_function, is_applied=True)
            what = dataclasses.replace(what, is_alike=partition_alike(context, other))
            with merge_marker(context, other, note) as put:
                return _merged(what, run, note, function, key, partial(put, ruled), fence)


def _merged(
    what: _MergeInputs,
    run: str,
    note: MergeMarker,
    function: MergeFunction | None,
    key: Sequence[str],
    on_chosen: Callable[[], None],
    fence: Fence,
) -> MergeOutcome:
    """Choose the rows of all outputs, then append and give them."""
    from contextlib import ExitStack

    from headrace.coordinator.operations.merge import SinkBackfill, choose_rows, live_wins

    parts, bus = note.parts, what.bus
    with ExitStack() as stack:
        chosen = [
            stack.enter_context(
                choose_rows(
                    bus,
                    name,
                    pair,
                    run,
                    function or live_wins,
                    key,
                    parts=parts[name],
                    is_alike=what.is_alike,
                )
            )
            for name, pair in what.pairs.items()
        ]
        gifts = [
            stack.enter_context(
                SinkBackfill(
                    bus.stream(stream), binding, what.job, run, parts[name], what.clock, function
                )
            )
            for name, (stream, binding) in what.sinks.items()
        ]
        if gifts or any(one.rows for one in chosen):
            on_chosen()
        merged = [one.append(fence) for one in chosen]
        return MergeOutcome(merged, [gift.give() for gift in gifts])


def _check_ended(job: str, states: Sequence[JobState]) -> None:
    from headrace.errors import InvalidInputError

    if not all(state.ended for state in states):
        raise InvalidInputError(
            f"job {job!r} has not ended, so not all of its results are there; run it to its end "
            "with --bounded first",
            job=job,
        )


@dataclasses.dataclass(frozen=True)
class _MergeInputs:
    """The live job, the streams that belong together, and of each sink what was kept for it."""

    job: str
    bus: Bus
    clock: Clock
    pairs: dict[str, tuple[str, str]]
    sinks: dict[str, tuple[str, SinkBinding]]
    is_alike: bool = False

    @property
    def streams(self) -> dict[str, str]:
        """The stream of the other job for each operator."""
        found = {name: pair[1] for name, pair in self.pairs.items()}
        return found | {name: stream for name, (stream, _) in self.sinks.items()}


def _merge_inputs(
    settings: Settings, job: str, other: str, code: Job | None, bus: Bus, clock: Clock
) -> _MergeInputs:
    from headrace.coordinator.dataframe_inputs import with_dataframes
    from headrace.coordinator.deployment import make_plan
    from headrace.coordinator.operations.paired_jobs import (
        job_outputs,
        kept_for_sinks,
        paired_outputs,
    )
    from headrace.errors import InvalidInputError

    first, second = (job_outputs(settings, name) for name in (job, other))
    pairs, kept = paired_outputs(first, second), kept_for_sinks(first, second)
    if not kept:
        return _MergeInputs(job, bus, clock, pairs, {})
    if code is None:
        summary = ", ".join(first.sinks[name] for name in kept)
        raise InvalidInputError(
            f"rows of {other!r} are kept for {summary}; give the job whose sinks take them: "
            "--merge-job MODULE:JOB"
        )
    graph = with_dataframes(dataclasses.replace(code, name=job).build(), bus, settings)
    plan = make_plan(graph, bus, settings, absent_ok=True)
    bindings = {binding.operator: binding for binding in plan.sinks}
    lacking = [name for name in kept if name not in bindings]
    if lacking:
        raise InvalidInputError(
            f"the job that was given has no sinks {lacking}, which rows of {other!r} are kept for"
        )
    for name in kept:
        bindings[name].sink.beneath()  # what it refuses is refused before a row is appended
    sinks = {name: (stream, bindings[name]) for name, stream in kept.items()}
    return _MergeInputs(job, bus, clock, pairs, sinks)


def _note(
    settings: Settings, other: str, run: str, streams: Mapping[str, str], bus: Bus
) -> MergeMarker:
    """Return what the merge goes by: one that was begun, by what it was begun with."""
    from headrace.coordinator.operations.compare import part_count
    from headrace.coordinator.operations.paired_jobs import MergeMarker, unfinished_merge

    note = unfinished_merge(settings, other, run)
    if note is None:
        parts = {name: part_count(bus.stream(one)) for name, one in streams.items()}
        return MergeMarker(run, parts, is_applied=False)
    return replace(note, parts={name: note.parts.get(name, 1) for name in streams})
