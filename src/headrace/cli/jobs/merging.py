"""``headrace jobs merge``: results of a run that has ended, into those of the live job."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from msgspec.structs import replace

from headrace.cli.jobs.versions import Other
from headrace.cli.options import (
    Config,
    Home,
    JobName,
    Json,
    KeyColumns,
    Set,
    column_names,
    open_home_bus,
)
from headrace.cli.screen import show_json, show_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.config import Settings
    from headrace.coordinator.manifest import JobState
    from headrace.coordinator.reprocessing.giving import Given
    from headrace.coordinator.reprocessing.merging import Merge, Merged
    from headrace.coordinator.reprocessing.unmerged import Note
    from headrace.graph.jobs import Job
    from headrace.plan.stages import SinkBinding


def merge(  # noqa: PLR0913, PLR0917 - one for each option
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
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Bring results of a run that has ended into those of the live job; for each key one wins."""
    from headrace.cli.targets import find_job
    from headrace.clock import SystemClock

    code, clock = None if by is None else find_job(by), SystemClock()
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
        show_line(given_line(sink))


def given_line(given: Given) -> str:
    """Tell of a sink that has its rows."""
    told = f"{given.sink}: has {given.rows:,} rows of {given.stream}"
    if given.by_function:
        return f"{told}, as the merge function chose"
    why = f"; the merge function was not asked: {given.unasked}" if given.unasked else ""
    return f"{told}, beneath what was there{why}"


class Brought(NamedTuple):
    """What became of the outputs of a run over old data."""

    merged: list[Merged]
    given: list[Given]


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
        config: of ``--config``: it may say where sinks are, such as the warehouse.
        overrides: of ``--set``; the same.
    """
    from headrace.cli.jobs.finding import find_job as find_existing
    from headrace.cli.jobs.finding import refuse_driven
    from headrace.control.stillness import still
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.inspection.part_readers import part_readers
    from headrace.coordinator.reprocessing.pairs import are_alike
    from headrace.coordinator.reprocessing.unmerged import check_goes_on, merging
    from headrace.coordinator.storage import DriverLock
    from headrace.files import Files

    settings = find_existing(job, home, config, overrides, clock).settings
    states = [reader.state() for reader in part_readers(settings, other, clock)]
    refuse_driven(settings, other, clock)
    _check_ended(other, states)
    run, files = states[0].lineage, Files()
    function = None if code is None else code.merge
    with open_home_bus(settings) as bus, DriverLock(newest_of(settings, other), other, clock):
        what = _what_to_merge(settings, job, other, code, bus, clock)
        with still(settings, job, other, bus, files, clock, wait_s):
            note = _note(settings, other, run, what.streams, bus)
            by_function = function is not None
            check_goes_on(note, other, tuple(key), by_function=by_function)
            ruled = replace(note, key=tuple(key), by_function=by_function, is_applied=True)
            what = dataclasses.replace(what, is_alike=are_alike(settings, job, other, clock))
            with merging(settings, other, note, files, clock) as put:
                return _brought(what, run, note, function, key, partial(put, ruled))


def _brought(
    what: _What,
    run: str,
    note: Note,
    function: Merge | None,
    key: Sequence[str],
    on_chosen: Callable[[], None],
) -> Brought:
    """Choose the rows of all outputs, then append and give them."""
    from contextlib import ExitStack

    from headrace.coordinator.reprocessing.giving import Giving
    from headrace.coordinator.reprocessing.merging import choose, live_wins

    parts, bus = note.parts, what.bus
    with ExitStack() as stack:
        chosen = [
            stack.enter_context(
                choose(
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
                Giving(
                    bus.stream(stream), binding, what.job, run, parts[name], what.clock, function
                )
            )
            for name, (stream, binding) in what.sinks.items()
        ]
        if gifts or any(one.rows for one in chosen):
            on_chosen()
        merged = [one.append() for one in chosen]
        return Brought(merged, [gift.give() for gift in gifts])


def _check_ended(job: str, states: Sequence[JobState]) -> None:
    from headrace.errors import InvalidInputError

    if not all(state.ended for state in states):
        raise InvalidInputError(
            f"job {job!r} has not ended, so not all of its results are there; run it to its end "
            "with --bounded first",
            job=job,
        )


@dataclasses.dataclass(frozen=True)
class _What:
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


def _what_to_merge(
    settings: Settings, job: str, other: str, code: Job | None, bus: Bus, clock: Clock
) -> _What:
    from headrace.coordinator.deploy import make_plan
    from headrace.coordinator.reprocessing.pairs import kept_for_sinks, outputs_of, pairs_of
    from headrace.errors import InvalidInputError
    from headrace.sources.frames import with_frames

    first, second = (outputs_of(settings, name, clock) for name in (job, other))
    pairs, kept = pairs_of(first, second), kept_for_sinks(first, second)
    if not kept:
        return _What(job, bus, clock, pairs, {})
    if code is None:
        told = ", ".join(first.sinks[name] for name in kept)
        raise InvalidInputError(
            f"rows of {other!r} are kept for {told}; give the job whose sinks take them: "
            "--by MODULE:JOB"
        )
    graph = with_frames(dataclasses.replace(code, name=job).build(), bus, settings)
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
    return _What(job, bus, clock, pairs, sinks)


def _note(settings: Settings, other: str, run: str, streams: Mapping[str, str], bus: Bus) -> Note:
    """Return what the merge goes by: one that was begun, by what it was begun with."""
    from headrace.coordinator.reprocessing.parted import part_count
    from headrace.coordinator.reprocessing.unmerged import Note, begun

    note = begun(settings, other, run)
    if note is None:
        parts = {name: part_count(bus.stream(one)) for name, one in streams.items()}
        return Note(run, parts, is_applied=False)
    return replace(note, parts={name: note.parts.get(name, 1) for name in streams})
