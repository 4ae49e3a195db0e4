"""``headrace jobs reset|rewind|delete``: what is done to a job from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.jobs.finding import find_job, refuse_driven, tell_notice
from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.screen import show_json, show_line

if TYPE_CHECKING:
    from headrace.bus.bus import Bus
    from headrace.clock import Clock
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.manifest import JobState

NEGATIVE = {"ignore_unknown_options": True}  # -5 is a number, not an option

Start = Annotated[str, typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT/PARTITION=N",
        help="Begin one partition of an input at an offset.",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="An epoch that is kept; -5: five before the last; or a time.",
        show_default=False,
    ),
]


def reset(
    job: JobName,
    start: Start = "earliest",
    offset: Offsets = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Begin a job anew, without state: at the begin of its inputs, or elsewhere."""
    from headrace.cli.running.starts import start_offsets
    from headrace.coordinator.changes.resetting import own_inputs
    from headrace.coordinator.changes.rewinding import emptied

    def choose(state: JobState, reader: JobReader, bus: Bus, clock: Clock) -> JobState:
        own = own_inputs(state, reader)
        mine = [word for word in offset or [] if _input_of(word) not in elsewhere[reader.job]]
        offsets = start_offsets(own, _streams(reader, state), bus, start, mine)
        return emptied(state, offsets, clock.new_id())

    def prepare(readers: Sequence[JobReader]) -> None:
        inputs = {one.job: set(own_inputs(one.state(), one).inputs) for one in readers}
        for name, own in inputs.items():
            elsewhere[name] = set().union(*inputs.values()) - own

    elsewhere: dict[str, set[str]] = {}
    state = _set_back(job, home, config, overrides, choose, prepare)
    begins = {
        operator: [positions[p].next_offset for p in sorted(positions)]
        for operator, positions in state.inputs.items()
    }
    _told(state, "is without state", {"inputs": begins}, as_json=as_json)


def rewind(
    job: JobName,
    to: Target,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Take a job back to an epoch that is kept, state and inputs alike."""
    from headrace.cli.running.starts import read_time
    from headrace.coordinator.changes.resetting import check_one_part
    from headrace.coordinator.changes.rewinding import (
        check_readable,
        check_whole,
        epoch_at,
        rewound,
    )
    from headrace.sources.sourced import saved

    is_epoch = to.removeprefix("-").isdecimal()
    time_ms = 0 if is_epoch else read_time(to, "--to", "an epoch, -5, or a time")
    chosen: list[int] = []

    def choose(state: JobState, reader: JobReader, bus: Bus, clock: Clock) -> JobState:
        target = reader.state(int(to) if is_epoch else epoch_at(reader, time_ms))
        check_whole(reader, target.epoch)
        check_readable(target, _streams(reader, target), saved(bus, reader.root))
        chosen.append(target.epoch)
        return rewound(state, target, clock.new_id())

    state = _set_back(job, home, config, overrides, choose, check_one_part)
    _told(state, f"is as after epoch {chosen[-1]}", {"rewound_to": chosen[-1]}, as_json=as_json)


def delete(
    job: JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="Of a job run with --apart: its outputs, too.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Remove a job with its state; its streams stay."""
    from headrace.clock import SystemClock
    from headrace.coordinator.changes.removal import remove_job, storages_of
    from headrace.coordinator.changes.resetting import remove_streams
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.reprocessing.pairs import own_streams
    from headrace.coordinator.storage import DriverLock, check_job_name
    from headrace.files import Files

    settings, clock, files = settings_of(home), SystemClock(), Files()
    storages = storages_of(settings, check_job_name(job))
    if not storages:
        JobReader(settings.jobs_dir / job, job, files, clock)  # tells which jobs there are
    with ExitStack() as held:
        refuse_driven(settings, job, clock)
        for storage in storages:
            held.enter_context(DriverLock(storage, job, clock))
        with open_home_bus(settings) as bus:
            streams = own_streams(settings, job, bus, clock) if outputs else []
            if not yes:
                _confirm(job)
            gone = remove_job(settings, job, bus, files, clock)
            remove_streams(streams, bus)
    if as_json:
        show_json({"job": job, "deleted": [str(path) for path in gone], "streams": streams})
    else:
        hours = settings.state.keep_unused_s / 3600
        kept = f"its outputs {', '.join(streams)} too" if streams else "its streams stay"
        show_line(
            f"job {job}: deleted; {kept}. State on this host goes when the next job "
            f"runs, {hours:g} h from now or later (state.keep_unused_s)"
        )


def _confirm(job: str) -> None:
    from headrace.errors import InvalidInputError

    if not sys.stdin.isatty():
        raise InvalidInputError(f"job {job!r} would be deleted with all of its state; add --yes")
    typer.confirm(f"delete job {job} with all of its state?", abort=True)


def _streams(reader: JobReader, state: JobState) -> dict[str, str]:
    from headrace.errors import InvalidInputError

    try:
        return reader.catalog(state).inputs
    except InvalidInputError:  # an older version ran it: operators are called like their streams
        return {}


def _set_back(
    job: str,
    home: Path | None,
    config: Path | None,
    overrides: list[str] | None,
    choose: Callable[[JobState, JobReader, Bus, Clock], JobState],
    prepare: Callable[[Sequence[JobReader]], None],
) -> JobState:
    from headrace.clock import SystemClock
    from headrace.coordinator.changes.resetting import reset_parts
    from headrace.coordinator.deploy import open_copier
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.inspection.part_readers import other_parts
    from headrace.coordinator.reprocessing.unmerged import check_merged
    from headrace.coordinator.storage import DriverLock
    from headrace.files import Files

    clock, files = SystemClock(), Files()
    found = find_job(job, home, config, overrides, clock)
    settings = found.settings
    refuse_driven(settings, job, clock)
    with DriverLock(found.storage, job, clock), open_home_bus(settings) as bus:
        check_merged(settings, job, clock)
        first = JobReader(found.newest, job, files, clock)
        others = other_parts(settings, job, clock)
        prepare([first, *others])
        for reader in (first, *others):  # refused before anything is done
            choose(reader.state(), reader, bus, clock)
        return reset_parts(
            {found.storage: first, **{reader.root: reader for reader in others}},
            lambda state, reader: choose(state, reader, bus, clock),
            bus=bus,
            files=files,
            clock=clock,
            copier=open_copier(settings, job, clock, files, tell_notice),
        )


def _input_of(word: str) -> str:
    """The input that an ``INPUT/PARTITION=N`` is about."""
    return word.rpartition("/")[0]


def _told(state: JobState, what: str, more: dict[str, object], *, as_json: bool) -> None:
    from headrace.cli.jobs.text import placed_line

    if as_json:
        show_json({"job": state.job, "epoch": state.epoch, **more})
    else:
        show_line(placed_line(state.job, state.epoch, what))
