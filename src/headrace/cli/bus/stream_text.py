"""What ``bus describe`` says of a stream."""

from __future__ import annotations

from typing import Any

import typer

from headrace.bus.bus import Bus
from headrace.cli.bus.listing import describe
from headrace.cli.bus.settings import settings_text
from headrace.cli.screen import show_facts, show_table
from headrace.cli.words import size_text, time_text
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.inspection.job_list import job_names, view_job


def describe_stream(settings: Settings, bus: Bus, name: str, clock: Clock) -> dict[str, Any]:
    """Return all that is known of a stream, ready for JSON.

    Args:
        settings: where jobs are.
        bus: has the stream.
        name: of the stream.
        clock: for looking at jobs.
    """
    stream = bus.stream(name)
    found = describe(bus, stream.spec.name)
    begins, ends = stream.begins(), stream.ends()
    stored, compacted = stream.stored(), stream.compacted()
    ranges = [stream.time_range(p) for p in range(stream.spec.partitions)]
    views = [view_job(settings, job, bus, clock) for job in job_names(settings)]
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
                "job": view.job,
                "status": view.status,
                "input": one.operator,
                "lag": one.lag,
                "watermark_ms": one.watermark_ms,
            }
            for view in views
            for one in view.inputs
            if one.stream in own
        ],
        "writers": [view.job for view in views if own.intersection(view.outputs)],
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
