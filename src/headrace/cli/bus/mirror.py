"""``headrace bus mirror``: a stream or a topic copied to another, by a job that does nothing else.

A job is what is exactly-once, resumable and measured already; so there is one for each mirror.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.failures import INTERRUPTED
from headrace.cli.options import (
    Config,
    Home,
    Json,
    Set,
    Verbose,
    open_home_bus,
    settings_of,
    stream_names,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.bus import Bus
    from headrace.graph.builder import Graph, Job

MOST = 120
"""Characters of a name: those of a job have up to 150, with what is made of it."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A stream, or an address such as kafka://host:9092/topic.",
        show_default=False,
        autocompletion=stream_names,
    ),
]
Destination = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Another one, which is made if it does not exist.",
        show_default=False,
        autocompletion=stream_names,
    ),
]


def mirror(  # noqa: PLR0913, PLR0917 - one for each option
    source: Source,
    target: Destination,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help='Columns to read of a topic, such as "id:int64,name:string". Default: those of '
            "the stream TARGET, if it exists; else the bytes of messages, as they are.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where a new mirror begins: earliest, latest or a time. Default: earliest.",
            show_default=False,
        ),
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="End when all that is there is copied; else follow."),
    ] = False,
    on_bad: Annotated[
        Literal["fail", "dead-letter"],
        typer.Option(help="A message that does not fit ends the command, or is a dead letter."),
    ] = "fail",
    name: Annotated[
        str | None,
        typer.Option(help="Of the mirror. Default: made of SOURCE and TARGET.", show_default=False),
    ] = None,
    config: Config = None,
    overrides: Set = None,
    as_json: Json = False,
    verbose: Verbose = False,
    home: Home = None,
) -> None:
    """Copy a stream or a topic to another, exactly once, and follow it.

    A mirror is a job, named `mirror.SOURCE.TARGET` or as `--name` says: `headrace jobs` shows it,
    and started again it continues where it was, whether it was stopped or killed. With
    `--until-end` it ends when it has copied all that is there; the next start copies what came
    since. Output, and `--json`, are those of `headrace run`.

    **Columns.** Of a topic, by default: `value`, `_key`, `_timestamp`, `_headers`, `_partition` and
    `_offset`, with bytes as they are. Sent to a topic, such rows are the same messages again. With
    columns, by `--schema` or those of TARGET, values are JSON; so are those of a stream that is
    sent to a topic, unless the address says `format=`. The key is that of `key=` in the address.

    **Partitions.** A new stream has as many as SOURCE, and rows stay in theirs; one that was
    created with key columns gets rows by them. A topic gets messages by their key; a new one has
    `partitions=` of the address.

    Guide: kafka.

    For example:

        headrace bus mirror kafka://localhost:9092/clicks clicks --schema "user:string,n:int64"
    """
    from contextlib import closing
    from dataclasses import replace

    from headrace.cli.run.commands import reporter_of, show_run
    from headrace.cli.run.runner import JobRunner, Scaling
    from headrace.coordinator.epoch_clock import driver_clock

    # What the settings of a project put in the place of streams is for its jobs.
    settings = replace(settings_of(home, config, overrides), inputs={}, outputs={})
    reporter = reporter_of(as_json=as_json, verbose=verbose)
    with closing(reporter), open_home_bus(settings) as bus:
        job = mirror_job(source, target, bus, schema, start, on_bad, name)
        clock, way = driver_clock(settings), JobRunner(standalone=True)
        interrupted = show_run(job, settings, bus, reporter, clock, way, Scaling(ends=until_end))
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def mirror_job(
    source: str,
    target: str,
    bus: Bus,
    schema: str | None = None,
    start: str | None = None,
    on_bad: str = "fail",
    name: str | None = None,
) -> Job:
    """Return the job that copies one to the other.

    Args:
        source: a stream or an address.
        target: another one.
        bus: has the streams.
        schema: columns to read, in words.
        start: where a new one begins.
        on_bad: as of the command.
        name: of the job.

    Raises:
        InvalidInputError: they are the same, or the columns cannot be.
    """
    from headrace.bus.readable import is_address
    from headrace.cli.arguments import parse_schema
    from headrace.config import FILE
    from headrace.errors import InvalidInputError
    from headrace.graph.builder import job

    here, there = (one.removeprefix(FILE) for one in (source, target))
    if here == there:
        raise InvalidInputError(f"a mirror of {here!r} to itself never ends; name another TARGET")
    if not is_address(here) and schema is not None:
        raise InvalidInputError(
            "--schema is for topics: a stream has columns of its own; leave it out"
        )
    columns = None if schema is None else parse_schema(schema)
    kept = bus.stream(there).spec if not is_address(there) and there in bus.names() else None
    if not is_address(here):
        columns = bus.stream(here).spec.schema
    elif columns is None and kept is not None:
        columns = kept.schema
    if is_address(there) and _is_raw(columns) and "format=" not in there:
        there += f"{'&' if '?' in there else '?'}format=raw"
    label = name or f"mirror.{_label(here)}.{_label(there)}"[:MOST]

    @job(label)
    def copying(g: Graph) -> None:
        rows = g.input(
            here,
            schema=columns,
            name="source",
            start=start or "earliest",
            on_error=on_bad.replace("-", "_"),
        )
        if kept is not None and kept.key:  # else rows stay in their partitions
            rows.partition_by(*kept.key, tasks=kept.partitions).send_to(there, name="copy")
        else:
            rows.send_to(there, name="copy")

    return copying


def _is_raw(columns: pa.Schema | None) -> bool:
    """Say whether rows are the bytes of messages, as they were read of a topic."""
    if columns is None:
        return True
    import pyarrow as pa

    own = [field for field in columns if not field.name.startswith("_")]
    return [(field.name, field.type) for field in own] == [("value", pa.binary())]


def _label(place: str) -> str:
    """Return what a stream, or what is at an address, is called in the name of a job."""
    from headrace.bus.readable import connector_of, is_address

    name = connector_of(place).name(place) if is_address(place) else place
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
