"""``headrace jobs compare|swap|merge``: a version of a job, or a run, beside the live one."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer
from msgspec.structs import replace

from headrace.cli.options import (
    Home,
    JobName,
    Json,
    KeyColumns,
    column_names,
    open_home_bus,
    settings_of,
)
from headrace.cli.screen import show_json, show_line, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.reprocessing.comparing import Compared
    from headrace.coordinator.reprocessing.giving import Given
    from headrace.coordinator.reprocessing.merging import Merged
    from headrace.coordinator.reprocessing.unmerged import Note
    from headrace.graph.jobs import Job
    from headrace.plan.stages import SinkBinding

Other = Annotated[
    str,
    typer.Argument(metavar="OTHER", help="The version beside it.", show_default=False),
]


def compare(
    job: JobName,
    other: Other,
    key: KeyColumns = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=1000, help="Keys that differ to show.")
    ] = 5,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Compare what two jobs have sent: rows, keys, and where the last row of a key differs."""
    from headrace.clock import SystemClock
    from headrace.coordinator.reprocessing.comparing import compare as compared
    from headrace.coordinator.reprocessing.pairs import behind, kept_for_sinks, outputs_of, pairs_of

    settings, clock = settings_of(home), SystemClock()
    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    kept = kept_for_sinks(first, second)
    with open_home_bus(settings) as bus:
        found = [
            compared(bus, operator, pair, column_names(key), examples)
            for operator, pair in pairs_of(first, second).items()
        ]
    late = {job: behind(second, first), other: behind(first, second)}
    if as_json:
        outputs = [{**asdict(one), "is_same": one.is_same} for one in found]
        told = {"job": job, "other": other, "behind": late, "outputs": outputs, "kept": kept}
        typer.echo(msgspec.json.encode(told).decode())  # rows have times
    else:
        _show(found, late)
        for operator, stream in kept.items():
            show_line(f"{stream} is kept for {first.sinks[operator]}, and not compared")


def _show(found: Sequence[Compared], late: Mapping[str, Mapping[str, int]]) -> None:
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
        bool, typer.Option("--now", help="Although the other one has not caught up.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Let the aliases of a job's outputs stand for those of the other one, all in one step."""
    from headrace.clock import SystemClock
    from headrace.coordinator.reprocessing.pairs import outputs_of
    from headrace.coordinator.reprocessing.swapping import swap_outputs

    settings, clock = settings_of(home), SystemClock()
    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    with open_home_bus(settings) as bus:
        targets = swap_outputs(bus, first, second, now=now)
    if as_json:
        show_json({"job": job, "other": other, "aliases": targets})
    else:
        told = ", ".join(f"{alias} stands for {stream}" for alias, stream in targets.items())
        show_line(f"{told}; {job} goes on until it is stopped, and can be swapped back")


def merge(
    job: JobName,
    other: Other,
    key: KeyColumns = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="MODULE:JOB",
            help="Its function chooses, its sinks take rows.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="For a driver that runs.")
    ] = 60.0,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Bring results of a run that has ended into those of the live job; for each key one wins."""
    from headrace.cli.targets import find_job
    from headrace.clock import SystemClock

    code, clock = None if by is None else find_job(by), SystemClock()
    found = merge_into(job, other, code, column_names(key), wait, home, clock)
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
        show_line(given_line(sink))


def given_line(given: Given) -> str:
    """Tell of a sink that has its rows."""
    return f"{given.sink}: has {given.rows:,} rows of {given.stream}, beneath what was there"


class Brought(NamedTuple):
    """What became of the outputs of a run over old data."""

    merged: list[Merged]
    given: list[Given]


def merge_into(
    job: str,
    other: str,
    code: Job | None,
    key: Sequence[str],
    wait_s: float,
    home: Path | None,
    clock: Clock,
) -> Brought:
    """Merge the outputs of a job that has ended into those of a live one.

    Args:
        job: the live one.
        other: the one that has ended.
        code: whose merge function chooses, and whose sinks take what was kept for them.
        key: columns that tell rows apart; none: the streams' own, and the window.
        wait_s: for the epoch under way of a live driver.
        home: of ``--home``.
        clock: time and names.
    """
    from headrace.cli.jobs.finding import find_job as find_existing
    from headrace.cli.jobs.finding import refuse_driven
    from headrace.control.stillness import still
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.coordinator.reprocessing.giving import give
    from headrace.coordinator.reprocessing.merging import check_keys, live_wins, merge_streams
    from headrace.coordinator.reprocessing.pairs import are_alike
    from headrace.coordinator.reprocessing.unmerged import check_goes_on, merging
    from headrace.files import Files

    settings = find_existing(job, home, None, None, clock).settings
    states = [reader.state() for reader in part_readers(settings, other, clock)]
    refuse_driven(settings, other, clock)
    _check_ended(other, states)
    run, files = states[0].lineage, Files()
    function = None if code is None else code.merge
    with open_home_bus(settings) as bus:
        pairs, sinks = _what_to_merge(settings, job, other, code, bus, clock)
        with still(settings, job, other, bus, files, clock, wait_s):
            streams = {name: pair[1] for name, pair in pairs.items()}
            streams |= {name: stream for name, (stream, _) in sinks.items()}
            note = _note(settings, other, run, streams, bus)
            check_goes_on(note, other, tuple(key), by_function=function is not None)
            ruled = replace(note, key=tuple(key), by_function=function is not None)
            for pair in pairs.values():
                check_keys(bus, pair, key)
            parts, is_alike = note.parts, are_alike(settings, job, other, clock)
            with merging(settings, other, note, files, clock) as put:
                merged = [
                    merge_streams(
                        bus,
                        name,
                        pair,
                        run,
                        function or live_wins,
                        key,
                        parts=parts[name],
                        is_alike=is_alike,
                        on_chosen=partial(put, ruled),
                    )
                    for name, pair in pairs.items()
                ]
                given = [
                    give(bus.stream(stream), binding, job, run, parts[name], clock)
                    for name, (stream, binding) in sinks.items()
                ]
                return Brought(merged, given)


def _check_ended(job: str, states: Sequence[JobState]) -> None:
    from headrace.errors import InvalidInputError

    if not all(state.ended for state in states):
        raise InvalidInputError(
            f"job {job!r} has not ended, so not all of its results are there; run it to its end "
            "with --bounded first",
            job=job,
        )


def _what_to_merge(
    settings: Settings, job: str, other: str, code: Job | None, bus: Bus, clock: Clock
) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, SinkBinding]]]:
    """Return the streams that belong together, and of each sink what was kept for it."""
    from headrace.coordinator.deploy import make_plan
    from headrace.coordinator.reprocessing.pairs import kept_for_sinks, outputs_of, pairs_of
    from headrace.errors import InvalidInputError

    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    pairs, kept = pairs_of(first, second), kept_for_sinks(first, second)
    if not kept:
        return pairs, {}
    if code is None:
        told = ", ".join(first.sinks[name] for name in kept)
        raise InvalidInputError(
            f"rows of {other!r} are kept for {told}; give the job whose sinks take them: "
            "--by MODULE:JOB"
        )
    graph = dataclasses.replace(code, name=job).build()
    plan = make_plan(graph, bus, settings, absent_ok=True)
    bindings = {binding.operator: binding for binding in plan.sinks}
    lacking = [name for name in kept if name not in bindings]
    if lacking:
        raise InvalidInputError(
            f"the job that was given has no sinks {lacking}, which rows of {other!r} are kept for"
        )
    for name in kept:
        bindings[name].sink.beneath()  # what it refuses is refused before a row is appended
    return pairs, {name: (stream, bindings[name]) for name, stream in kept.items()}


def _note(settings: Settings, other: str, run: str, streams: Mapping[str, str], bus: Bus) -> Note:
    """Return what the merge goes by: one that was begun, by what it was begun with."""
    from headrace.coordinator.reprocessing.parted import part_count
    from headrace.coordinator.reprocessing.unmerged import Note, begun

    note = begun(settings, other, run)
    if note is None:
        return Note(run, {name: part_count(bus.stream(one)) for name, one in streams.items()})
    return replace(note, parts={name: note.parts.get(name, 1) for name in streams})
