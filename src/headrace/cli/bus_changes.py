"""``headrace bus describe|trim``: one stream in full, and how much of it is kept."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headrace.cli.options import Home, Json, StreamName, open_home_bus, settings_of


def describe(name: StreamName, as_json: Json = False, home: Home = None) -> None:
    """Tell all that is known of a stream: partitions, times, rates, and who reads it."""
    from headrace.cli.stream_text import describe_stream, show_stream
    from headrace.clock import SystemClock

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = describe_stream(settings, bus, name, SystemClock())
    if as_json:
        typer.echo(json.dumps(found))
    else:
        show_stream(found)


def trim(
    name: StreamName,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="WHERE",
            help="A time, latest, or with --partition an offset. Default: what need not be kept.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Only this partition.", show_default=False)
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Drop the oldest rows of a stream, whole segments at a time."""
    from headrace.cli.tailing import Tail
    from headrace.cli.words import count_text

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        places = Tail(stream, partition).places(before, "--before") if before else None
        chosen = range(stream.spec.partitions) if partition is None else [partition]
        was = stream.begins()
        for each in chosen:
            stream.trim(each, None if places is None else places[each])
        now = stream.begins()
    gone = sum(now) - sum(was)
    if as_json:
        typer.echo(json.dumps({"name": name, "rows": gone, "begins": now}))
    else:
        begins = " ".join(map(str, now))
        typer.echo(f"stream {name}: {count_text(gone, 'row')} dropped; it begins at {begins}")
