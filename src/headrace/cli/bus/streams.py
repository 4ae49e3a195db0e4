"""``headrace bus describe``, ``trim``, ``compact``, ``offload``, ``alias`` and ``configure``.

Also what ``bus ls`` prints of all streams. ``bus ls`` opens no job: only ``describe`` looks for the
jobs that read a stream.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import (
    Home,
    Json,
    Partition,
    StreamName,
    open_home_bus,
    settings_of,
    stream_names,
)
from headrace.cli.output import (
    count_text,
    show_answer,
    show_facts,
    show_json,
    show_table,
    size_text,
    time_text,
)

if TYPE_CHECKING:
    from headrace.bus import Bus, Stream
    from headrace.config import Settings


def settings_text(found: dict[str, Any]) -> str:
    """Return those settings of a stream that are not as they were when it was created."""
    from headrace.bus import StreamSettings

    first = StreamSettings().plain()
    changed = {key: value for key, value in found.items() if value and value != first[key]}
    texts = [f"{key} {value}" for key, value in changed.items() if key != "columns"]
    for change in found["columns"]:
        default = "" if change["default"] is None else f"={json.dumps(change['default'])}"
        texts.append(f"column {change['column']}:{change['type']}{default}")
    return ", ".join(texts)


def stream_summary(bus: Bus, name: str) -> dict[str, Any]:
    """Return what is known of a stream, ready for JSON; times in ms, ``None`` if there are none."""
    from headrace.records.schema import type_text

    stream = bus.stream(name)
    spec = stream.spec
    ranges = [found for p in range(spec.partitions) if (found := stream.time_range(p)) is not None]
    return {
        "name": name,
        "partitions": spec.partitions,
        "rows": _stored_rows(stream),
        "bytes": _stored_bytes(bus, name),
        "first_ms": min((first for first, _ in ranges), default=None),
        "last_ms": max((last for _, last in ranges), default=None),
        "time": spec.time,
        "key": list(spec.key),
        "compact": spec.compact,
        "columns": {field.name: type_text(field.type) for field in spec.schema},
    }


def _stored_rows(stream: Stream) -> int | None:
    """Return how many rows there are; ``None``: a topic has them, whose broker does not answer."""
    from headrace.bus import LogAwayError

    try:
        return sum(stored.rows for stored in stream.stored())
    except LogAwayError:
        return None


def _stored_bytes(bus: Bus, name: str) -> int | None:
    from headrace.bus import FileBus

    if not isinstance(bus, FileBus):
        return sum(stored.bytes for stored in bus.stream(name).stored())
    folder = bus.root / "streams" / name
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show_streams(streams: Sequence[dict[str, Any]]) -> None:
    """Print the streams as a table."""
    numbers = ("partitions", "rows", "bytes")
    rows = [
        [
            entry["name"],
            f"{entry['partitions']:,}",
            "-" if entry["rows"] is None else f"{entry['rows']:,}",
            "-" if entry["bytes"] is None else size_text(entry["bytes"]),
            time_text(entry["first_ms"]),
            time_text(entry["last_ms"]),
            ", ".join(entry["key"]) or "-",
        ]
        for entry in streams
    ]
    titles = ("stream", *numbers, "first event (UTC)", "last event (UTC)", "key")
    show_table(titles, rows, right=numbers, spare=("key", "first event (UTC)", "bytes"))


def describe_stream(settings: Settings, bus: Bus, name: str) -> dict[str, Any]:
    """Return all that is known of a stream, ready for JSON.

    Args:
        settings: where jobs are.
        bus: has the stream.
        name: of the stream.
    """
    from headrace.clock import SystemClock
    from headrace.control.job_status import job_status
    from headrace.coordinator.job_parts import job_names

    stream, clock = bus.stream(name), SystemClock()
    found = stream_summary(bus, stream.spec.name)
    begins, ends = stream.begins(), stream.ends()
    stored, compacted = stream.stored(), stream.compacted()
    ranges = [stream.time_range(p) for p in range(stream.spec.partitions)]
    jobs = [job_status(settings, job, bus, clock) for job in job_names(settings)]
    aliases = bus.aliases()
    own = {stream.spec.name, *(a for a, target in aliases.items() if target == stream.spec.name)}
    span_ms = (found["last_ms"] or 0) - (found["first_ms"] or 0)
    return {
        **found,
        "rows_per_s": round(found["rows"] * 1000 / span_ms, 3) if span_ms > 0 else None,
        "settings": stream.settings.plain(),
        "ends": [
            {
                "partition": p,
                "begin": begins[p],
                "end": ends[p],
                "rows": stored[p].rows,
                "bytes": stored[p].bytes,
                "compacted": compacted[p],
                "first_ms": times and times[0],
                "last_ms": times and times[1],
            }
            for p, times in enumerate(ranges)
        ],
        "readers": [
            {
                "job": job.job,
                "status": job.status,
                "input": one.operator,
                "lag": one.lag,
                "watermark_ms": one.watermark_ms,
            }
            for job in jobs
            for one in job.inputs
            if one.stream in own
        ],
        "writers": [job.job for job in jobs if own.intersection(job.outputs)],
        "aliases": sorted(own - {stream.spec.name}),
        "holds": {reader: list(offsets) for reader, offsets in sorted(stream.holds().items())},
    }


def show_stream(found: dict[str, Any]) -> None:
    """Print what ``describe_stream`` returns."""
    size, rate = found["bytes"], found["rows_per_s"]
    facts = {
        "stream": found["name"],
        "rows": f"{found['rows']:,}" + ("" if size is None else f", {size_text(size)}"),
        "columns": ", ".join(f"{name} {kind}" for name, kind in found["columns"].items()),
        "key": (", ".join(found["key"]) or "-") + (", compacted" if found["compact"] else ""),
        "event time": found["time"] or "-",
        "rate": "-" if rate is None else f"{rate:,.6g} rows a second of event time",
        "settings": settings_text(found["settings"]) or "default",
        "aliases": ", ".join(found["aliases"]) or "-",
        "written by": ", ".join(found["writers"]) or "-",
    }
    if found["holds"]:
        facts["held by"] = ", ".join(
            f"{reader} from {' '.join(map(str, offsets))}"
            for reader, offsets in found["holds"].items()
        )
    show_facts(facts.items())
    typer.echo()
    numbers = ("begin", "end", "rows", "bytes", *(("compacted",) if found["compact"] else ()))
    titles = ("partition", *numbers, "first event (UTC)", "last event (UTC)")
    parts = [
        (
            str(part["partition"]),
            *(_number(name, part[name]) for name in numbers),
            time_text(part["first_ms"]),
            time_text(part["last_ms"]),
        )
        for part in found["ends"]
    ]
    show_table(titles, parts, right=numbers)
    readers = [
        (
            one["job"],
            one["input"],
            one["status"],
            "-" if one["lag"] is None else f"{one['lag']:,}",
            time_text(one["watermark_ms"]),
        )
        for one in found["readers"]
    ]
    if readers:
        typer.echo()
        titles = ("reader", "input", "status", "lag", "watermark (UTC)")
        show_table(titles, readers, right=("lag",))


def _number(name: str, value: int) -> str:
    return size_text(value) if name == "bytes" else f"{value:,}"


def _limit(metavar: str, help_: str) -> Any:
    """Return an option that takes a time or a size as text."""
    return typer.Option(metavar=metavar, help=help_, show_default=False)


Retain = Annotated[
    str | None, _limit("TIME", "How long to keep rows, such as 7d or 12h; none: forever.")
]
RetainBytes = Annotated[
    str | None, _limit("BYTES", "How many bytes of each partition to keep; none: all.")
]
LocalRetain = Annotated[
    str | None,
    _limit(
        "TIME",
        "Age from which whole segments are moved to bus.offload_address, such as 1d; none: never.",
    ),
]
LocalRetainBytes = Annotated[
    str | None,
    _limit("BYTES", "How many bytes of each partition stay on the disk, if not moved; none: all."),
]
CompactAfter = Annotated[
    str | None,
    _limit("TIME", "Age from which rows are compacted, in a compacted stream; none: any."),
]
KeepDeletes = Annotated[
    str | None, _limit("TIME", "How long deletes stay visible to readers, in a compacted stream.")
]
Hold = Annotated[str | None, _limit("TIME", "How long a silent reader holds compaction back.")]
AddColumn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:TYPE[=DEFAULT]",
        help='Column to add at the end, such as "count:int64=0"; null, or the '
        "default, in older rows.",
        show_default=False,
    ),
]
WidenColumn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:TYPE",
        help='Column to widen, such as "n:int64" for an int32.',
        show_default=False,
    ),
]


def describe(name: StreamName, as_json: Json = False, home: Home = None) -> None:
    """Show everything about a stream: partitions, times, rates, settings, writers and readers.

    Shows rows, bytes, columns, key, settings and the jobs that write the stream. For each
    partition: first and next offset, rows, bytes and event times. For each job that reads it: lag
    and watermark. For a compacted stream: how far it is compacted, and which readers hold it. The
    rate is of event time: rows divided by the seconds between the first and the last event.

    For example:

        headrace bus describe orders
    """
    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = describe_stream(settings, bus, name)
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
            help="A time, latest, or with --partition an offset. Default: what the "
            "stream's settings do not keep.",
            show_default=False,
        ),
    ] = None,
    partition: Partition = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Remove the oldest rows of a stream, in whole segments.

    Jobs that have not read these rows stop with HR103: check with `headrace bus describe` first.

    Guide: streams.

    For example:

        headrace bus trim orders --before 2013-01-01
    """
    from headrace.cli.bus.tail import Tail

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        places = Tail(stream, partition).places(before, "--before") if before else None
        was = stream.begins()
        for each in _chosen(stream, partition):
            stream.trim(each, None if places is None else places[each])
        now = stream.begins()
    gone = sum(now) - sum(was)
    begins = " ".join(map(str, now))
    line = f"stream {name}: {count_text(gone, 'row')} dropped; it begins at {begins}"
    show_answer({"name": name, "rows": gone, "begins": now}, line, as_json=as_json)


def _chosen(stream: Stream, partition: int | None) -> Sequence[int]:
    return range(stream.spec.partitions) if partition is None else [partition]


def compact(
    name: StreamName,
    partition: Partition = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Keep only the last record of each key of a compacted stream.

    Appenders also do this automatically when it is worth it. Records that a job has not read yet
    are kept.

    Guide: streams.

    For example:

        headrace bus compact prices
    """
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


def offload(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[STREAM]", help="One stream. Default: all.", show_default=False),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Move older segments of streams to the object storage of bus.offload_address.

    What is moved, `headrace bus configure --local-retain` and `--local-retain-bytes` say. Appenders
    also do this by themselves. Jobs and commands read moved segments as before.

    Guide: storage.

    For example:

        headrace bus offload clicks
    """
    from headrace.bus import FileBus, Offloaded
    from headrace.errors import InvalidInputError

    with open_home_bus(settings_of(home)) as bus:
        if not isinstance(bus, FileBus):
            raise InvalidInputError(
                "streams are in an object storage already (bus.address); only segments of streams "
                "in files are moved"
            )
        chosen = [each for each in bus.names() if bus.stream(each).settings.offloads]
        moved = dict[str, Offloaded]()
        for each in chosen if name is None else [name]:
            done = bus.offload(each)
            moved[each] = Offloaded(sum(d.segments for d in done), sum(d.bytes for d in done))
    if as_json:
        show_json(*({"stream": each, **found._asdict()} for each, found in moved.items()))
        return
    for each, found in moved.items():
        size = f", {size_text(found.bytes)}" if found.segments else ""
        typer.echo(f"stream {each}: {count_text(found.segments, 'segment')} moved{size}")
    if not moved:
        typer.echo(
            "no stream may be moved; say which: headrace bus configure STREAM --local-retain"
        )


def alias(
    name: Annotated[
        str | None, typer.Argument(metavar="[ALIAS]", help="The alias.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM]",
            help="The stream to point it to.",
            show_default=False,
            autocompletion=stream_names,
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the alias; the stream stays.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Point an alias to a stream in one step, remove an alias, or list all aliases.

    Without arguments, lists all aliases.

    Guide: streams.

    For example:

        headrace bus alias prices prices-2
    """
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
    local_retain: LocalRetain = None,
    local_retain_bytes: LocalRetainBytes = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Number of partitions that get new rows.", show_default=False),
    ] = None,
    compact_after: CompactAfter = None,
    keep_deletes: KeepDeletes = None,
    hold_for: Hold = None,
    add_column: AddColumn = None,
    widen_column: WidenColumn = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Change the settings of a stream in use: retention, partitions, columns, compaction.

    Without options, prints the current settings.

    Guide: streams, schema-evolution.

    For example:

        headrace bus configure orders --retain 7d --add-column "note:string"
    """
    from headrace.bus.spec import changes_to
    from headrace.cli.arguments import add_columns, parse_columns

    ages = {
        "retain_ms": ("--retain", retain),
        "local_retain_ms": ("--local-retain", local_retain),
        "compact_after_ms": ("--compact-after", compact_after),
        "keep_deletes_ms": ("--keep-deletes", keep_deletes),
        "hold_ms": ("--hold-for", hold_for),
    }
    changes: dict[str, Any] = {
        setting: _age_ms(given, option)
        for setting, (option, given) in ages.items()
        if given is not None
    }
    if retain_bytes is not None:
        changes["retain_bytes"] = _byte_count("--retain-bytes", retain_bytes)
    if local_retain_bytes is not None:
        changes["local_retain_bytes"] = _byte_count("--local-retain-bytes", local_retain_bytes)
    if partitions is not None:
        changes["partitions"] = partitions
    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(name)
        columns = partial(parse_columns, added=add_column or (), widened=widen_column or ())
        # What is refused is so before anything is changed.
        changes_to(stream.spec, *columns(stream.spec.schema))
        if changes:
            stream.configure(**changes)
        add_columns(stream, columns)
        found = stream.settings.plain()
    line = f"stream {name}: {settings_text(found) or 'keeps everything'}"
    show_answer({"name": name, **found}, line, as_json=as_json)


def _age_ms(text: str, option: str) -> int | None:
    from headrace.durations import duration_ms

    return None if text == "none" else duration_ms(text, option)


def _byte_count(option: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{option} {text}: expected a whole number, or none")
    return int(text)
