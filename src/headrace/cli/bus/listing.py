"""What ``bus ls`` says of each stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bus.bus import Bus
from headrace.bus.file import FileBus
from headrace.cli.words import size_text, time_text
from headrace.records.type_words import words_of_type


def describe(bus: Bus, name: str) -> dict[str, Any]:
    """Return what is known of a stream, ready for JSON; times in ms, ``None`` if there are none."""
    stream = bus.stream(name)
    spec = stream.spec
    ranges = [found for p in range(spec.partitions) if (found := stream.time_range(p)) is not None]
    pairs = zip(stream.begins(), stream.ends(), strict=True)
    return {
        "name": name,
        "partitions": spec.partitions,
        "rows": sum(end - begin for begin, end in pairs),
        "bytes": _bytes(bus, name),
        "first_ms": min((first for first, _ in ranges), default=None),
        "last_ms": max((last for _, last in ranges), default=None),
        "time": spec.time,
        "key": list(spec.key),
        "columns": {field.name: words_of_type(field.type) for field in spec.schema},
    }


def _bytes(bus: Bus, name: str) -> int | None:
    if not isinstance(bus, FileBus):
        return None
    folder = bus.root / "streams" / name
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def table(streams: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print the streams as a table."""
    console = console or Console(highlight=False)
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("stream", no_wrap=True)
    for title in ("partitions", "rows", "bytes"):
        made.add_column(title, justify="right", no_wrap=True)
    for title in ("first event (UTC)", "last event (UTC)", "key"):
        made.add_column(title, no_wrap=True)
    for entry in streams:
        size = entry["bytes"]
        made.add_row(
            entry["name"],
            f"{entry['partitions']:,}",
            f"{entry['rows']:,}",
            "-" if size is None else size_text(size),
            time_text(entry["first_ms"]),
            time_text(entry["last_ms"]),
            ", ".join(entry["key"]) or "-",
        )
    if not console.is_terminal:
        console.width = 200  # a pipe has no edge at which names may be cut
    console.print(made)
