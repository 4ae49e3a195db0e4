"""``headrace jobs reset|rewind|delete``: what is done to a job from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.jobs.access import open_stopped, require_stopped
from headrace.cli.options import Config, Home, JobName, Json, Set, open_home_bus, settings_of
from headrace.cli.output import show_answer

if TYPE_CHECKING:
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.job_storage import JobContext
    from headrace.coordinator.manifest import JobState


NEGATIVE = {"ignore_unknown_options": True}  # -5 is a number, not an option

Start = Annotated[
    str, typer.Option("--from", metavar="WHERE", help="earliest, latest, or an event time.")
]
Offsets = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INPUT/PARTITION=N",
        help="Offset at which a partition of an input starts; overrides --from.",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="A kept epoch; -5: five before the last; or a time.",
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
    """Start a job over without state, at the start of its inputs or elsewhere.

    The job's next run starts there, and can have another graph. Outputs stay in their streams, and
    what is read again is published again. You can go back to kept epochs with
    `headrace jobs rewind`. All parts of a job are reset, and their internal streams are removed.
    Refused while a driver runs.

    Guide: via-bus, reprocessing.

    For example:

        headrace jobs reset shop --from 2013-01-31T05:15 --offset orders/0=1200
    """
    from headrace.cli.arguments import start_offsets
    from headrace.coordinator.operations.reset import own_inputs
    from headrace.coordinator.operations.rewind import current_identities, without_state

    def choose(state: JobState, reader: JobReader, context: JobContext) -> JobState:
        own = own_inputs(state, reader)
        mine = [word for word in offset or [] if _input_of(word) not in elsewhere[reader.job]]
        streams, bus = _streams(reader, state), context.bus
        identities = current_identities(own, streams, bus)
        offsets = start_offsets(own, streams, bus, start, mine)
        return without_state(state, offsets, context.clock.new_id(), identities)

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
    _show_result(state, "is without state", {"inputs": begins}, as_json=as_json)


def rewind(
    job: JobName,
    to: Target,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Take a job back to a kept epoch, its state and its inputs.

    `--to` is an epoch such as 41, -5 for the fifth before the last, or a time for the last epoch
    that was committed by then. What is read again is published again. You can undo a rewind or a
    reset as long as the epoch before it is kept. Refused while a driver runs, if an input no
    longer has the rows to read, and for a job in parts.

    Guide: state, via-bus.

    For example:

        headrace jobs rewind shop --to -5
    """
    from headrace.cli.arguments import read_time
    from headrace.coordinator.operations.reset import check_one_part
    from headrace.coordinator.operations.rewind import (
        check_not_half,
        check_readable,
        epoch_at,
        state_at_epoch,
    )
    from headrace.sources.bounded_bus import saved_inputs

    is_epoch = to.removeprefix("-").isdecimal()
    time_ms = 0 if is_epoch else read_time(to, "--to", "an epoch, -5, or a time")
    chosen: list[int] = []

    def choose(state: JobState, reader: JobReader, context: JobContext) -> JobState:
        target = reader.state(int(to) if is_epoch else epoch_at(reader, time_ms))
        check_not_half(reader, target.epoch)
        check_readable(target, _streams(reader, target), saved_inputs(context.bus, reader.root))
        chosen.append(target.epoch)
        return state_at_epoch(state, target, context.clock.new_id())

    state = _set_back(job, home, config, overrides, choose, check_one_part)
    _show_result(
        state, f"is as after epoch {chosen[-1]}", {"rewound_to": chosen[-1]}, as_json=as_json
    )


def accept_streams(
    job: JobName,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where to start in the new streams: earliest, latest, a time, or same.",
        ),
    ] = "earliest",
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Let a job read streams that were deleted and created again; its state stays.

    A job whose input was created again stops with HR116. This command accepts the streams that
    exist now. The new stream is read from its start, or from `--from`: `same` continues at the
    offsets of the old stream, for a copy with the same rows. A broadcast store is read again from
    the start. Refused while a driver runs, in the middle of a bounded run, and if no stream is
    another one.

    Guide: streams.

    For example:

        headrace jobs accept-streams shop --from same
    """
    from headrace.cli.arguments import places_in
    from headrace.coordinator.operations import rewind

    with open_stopped(job, home, config, overrides) as (context, readers):
        offsets = rewind.accept_streams(
            context,
            readers,
            lambda stream, held: places_in(stream, start, held),
        )
        state = next(iter(readers.values())).state()
    _show_result(state, "continues in other streams", {"accepted": offsets}, as_json=as_json)


def delete(
    job: JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    outputs: Annotated[
        bool,
        typer.Option(
            "--outputs", help="Also delete the outputs of a job that was run with --output-suffix."
        ),
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Delete a job with its state; its streams stay.

    First publishes the outputs of the last epoch. Then removes the job's storage, its copy in
    job_dir if there is one, and its internal streams. Local state of this host is marked, and
    removed `state.keep_unused_s` later, when a job next runs. Asks for confirmation; without a
    terminal, `--yes` is required. `--outputs` keeps outputs that an alias names. Refused while a
    driver runs.

    For example:

        headrace jobs delete shop-2 --outputs --yes
    """
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.job_reader import JobReader
    from headrace.coordinator.job_storage import DriverLock, JobContext, check_job_name
    from headrace.coordinator.operations.paired_jobs import own_streams
    from headrace.coordinator.operations.reset import remove_job, storages_of
    from headrace.files import Files

    settings, clock, files = settings_of(home), SystemClock(), Files()
    storages = storages_of(settings, check_job_name(job))
    if not storages:
        JobReader(settings.jobs_dir / job, job, files)  # says which jobs there are
    with ExitStack() as held:
        require_stopped(settings, job)
        for storage in storages:
            held.enter_context(DriverLock(storage, job, clock))
        with open_home_bus(settings) as bus:
            context = JobContext(settings, job, bus, files, clock)
            streams = own_streams(context) if outputs else []
            if not yes:
                _confirm(job)
            gone = remove_job(context, streams)
    hours = settings.state.keep_unused_s / 3600
    kept = f"its outputs {', '.join(streams)} too" if streams else "its streams stay"
    show_answer(
        {"job": job, "deleted": [str(path) for path in gone], "streams": streams},
        f"job {job}: deleted; {kept}. State on this host goes when the next job "
        f"runs, {hours:g} h from now or later (state.keep_unused_s)",
        as_json=as_json,
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
    choose: Callable[[JobState, JobReader, JobContext], JobState],
    prepare: Callable[[Sequence[JobReader]], None],
) -> JobState:
    from headrace.coordinator.operations.paired_jobs import check_no_merge
    from headrace.coordinator.operations.reset import reset_parts

    with open_stopped(job, home, config, overrides) as (context, readers):
        check_no_merge(context.settings, job)
        prepare(list(readers.values()))
        for reader in readers.values():  # refused before anything is done
            choose(reader.state(), reader, context)
        return reset_parts(
            context,
            readers,
            lambda state, reader: choose(state, reader, context),
        )


def _input_of(word: str) -> str:
    """The input that an ``INPUT/PARTITION=N`` is about."""
    return word.rpartition("/")[0]


def _show_result(state: JobState, what: str, more: dict[str, object], *, as_json: bool) -> None:
    from headrace.cli.jobs.inspect import placed_line

    line = placed_line(state.job, state.epoch, what)
    show_answer({"job": state.job, "epoch": state.epoch, **more}, line, as_json=as_json)
