"""``headrace bus``: one stream in full, and what may be changed of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.bus.settings import settings_text
from headrace.cli.completions import stream_names
from headrace.cli.options import Home, Json, Partition, StreamName, open_home_bus, settings_of
from headrace.cli.screen import show_json

if TYPE_CHECKING:
    from headrace.bus.bus import Stream


def _limit(metavar: str, help_: str) -> Any:
    """Return an option that takes a time or a size as text."""
    return typer.Option(metavar=metavar, help=help_, show_default=False)


Retain = Annotated[str | None, _limit("TIME", "Keep rows so long: 7d, 12h; none.")]
RetainBytes = Annotated[str | None, _limit("BYTES", "Keep so much of each partition; none.")]
CompactAfter = Annotated[str | None, _limit("TIME", "Compact rows once so old; none.")]
KeepDeletes = Annotated[str | None, _limit("TIME", "Tell deletes to readers so long.")]
Hold = Annotated[str | None, _limit("TIME", "A silent reader holds compactions back so long.")]
AddColumn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:TYPE[=DEFAULT]",
        help="A column at the end; older rows have its default, or null. Several times for more.",
        show_default=False,
    ),
]
WidenColumn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:TYPE",
        help="Let a column hold more: int64 for int32. Several times for more.",
        show_default=False,
    ),
]


def describe(name: StreamName, as_json: Json = False, home: Home = None) -> None:
    """Tell all that is known of a stream: partitions, times, rates, and who reads it."""
    from headrace.cli.bus.stream_text import describe_stream, show_stream
    from headrace.clock import SystemClock

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = describe_stream(settings, bus, name, SystemClock())
    if as_json:
        show_json(found)
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
    partition: Partition = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Drop the oldest rows of a stream, whole segments at a time."""
    from headrace.cli.bus.tailing import Tail
    from headrace.cli.words import count_text

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        places = Tail(stream, partition).places(before, "--before") if before else None
        was = stream.begins()
        for each in _chosen(stream, partition):
            stream.trim(each, None if places is None else places[each])
        now = stream.begins()
    gone = sum(now) - sum(was)
    if as_json:
        show_json({"name": name, "rows": gone, "begins": now})
    else:
        begins = " ".join(map(str, now))
        typer.echo(f"stream {name}: {count_text(gone, 'row')} dropped; it begins at {begins}")


def _chosen(stream: Stream, partition: int | None) -> Sequence[int]:
    return range(stream.spec.partitions) if partition is None else [partition]


def compact(
    name: StreamName,
    partition: Partition = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Keep only the last record of each key of a compacted stream, below what readers hold."""
    from headrace.cli.words import count_text, size_text

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        done = {each: stream.compact(each) for each in _chosen(stream, partition)}
    if as_json:
        show_json(*({"partition": p, **found._asdict()} for p, found in done.items()))
        return
    gone = sum(found.rows_before - found.rows for found in done.values())
    freed = sum(found.bytes_before - found.bytes for found in done.values())
    upto = " ".join(str(found.upto) for found in done.values())
    # What is kept may take more for a while: a list of offsets that are not there any more.
    size = f"{size_text(freed)} freed" if freed >= 0 else f"{size_text(-freed)} added"
    typer.echo(f"stream {name}: {count_text(gone, 'row')} removed, {size}; compacted up to {upto}")


def alias(
    name: Annotated[
        str | None, typer.Argument(metavar="[ALIAS]", help="The other name.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM]",
            help="What it stands for from now on.",
            show_default=False,
            autocompletion=stream_names,
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it; the stream stays.")] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List other names of streams; let one stand for a stream, in one step; remove one."""
    if (name is not None and (stream is not None) == remove) or (name is None and remove):
        raise typer.BadParameter("give ALIAS STREAM, or ALIAS --remove, or nothing for a list")
    with open_home_bus(settings_of(home)) as bus:
        before = bus.aliases().get(name) if name is not None else None
        if name is not None and stream is not None:
            bus.alias(name, stream)
        elif name is not None:
            bus.unalias(name)
        known = bus.aliases()
    if name is not None and not as_json:
        was = f", before {before}" if before else ""
        typer.echo(f"alias {name}: {stream or 'removed'}{was}")
        return
    if as_json:
        show_json(*({"alias": one, "stream": target} for one, target in sorted(known.items())))
        return
    for one, target in sorted(known.items()):
        typer.echo(f"{one} -> {target}")
    if not known:
        typer.echo("no aliases; make one with: headrace bus alias ALIAS STREAM")


def configure(  # noqa: PLR0913, PLR0917 - one for each option
    name: StreamName,
    retain: Retain = None,
    retain_bytes: RetainBytes = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="That get new rows.", show_default=False)
    ] = None,
    compact_after: CompactAfter = None,
    keep_deletes: KeepDeletes = None,
    hold: Hold = None,
    add_column: AddColumn = None,
    widen_column: WidenColumn = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Change how long a stream keeps rows, how many partitions get new ones, and its columns."""
    from headrace.bus.schemas import changes_to
    from headrace.cli.bus.columns import evolve, evolved

    ages = {
        "retain_ms": ("--retain", retain),
        "compact_after_ms": ("--compact-after", compact_after),
        "keep_deletes_ms": ("--keep-deletes", keep_deletes),
        "hold_ms": ("--hold", hold),
    }
    changes: dict[str, int | None] = {
        setting: _age_ms(given, option)
        for setting, (option, given) in ages.items()
        if given is not None
    }
    if retain_bytes is not None:
        changes["retain_bytes"] = _bytes(retain_bytes)
    if partitions is not None:
        changes["partitions"] = partitions
    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        columns = partial(evolved, added=add_column or (), widened=widen_column or ())
        # What is refused is so before anything is changed.
        changes_to(stream.spec, *columns(stream.spec.schema))
        if changes:
            stream.configure(**changes)
        evolve(stream, columns)
        found = stream.settings.plain()
    if as_json:
        show_json({"name": name, **found})
    else:
        typer.echo(f"stream {name}: {settings_text(found) or 'keeps everything'}")


def _age_ms(text: str, option: str) -> int | None:
    from headrace.graph.durations import duration_ms

    return None if text == "none" else duration_ms(text, option)


def _bytes(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"--retain-bytes {text}: expected a whole number, or none")
    return int(text)
