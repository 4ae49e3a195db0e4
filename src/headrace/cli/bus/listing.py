"""What ``bus ls`` says of each stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.bus.bus import Bus
from headrace.bus.file import FileBus
from headrace.cli.screen import show_table
from headrace.cli.words import size_text, time_text
from headrace.records.type_words import words_of_type


def describe(bus: Bus, name: str) -> dict[str, Any]:
    """Return what is known of a stream, ready for JSON; times in ms, ``None`` if there are none."""
    stream = bus.stream(name)
    spec = stream.spec
    ranges = [found for p in range(spec.partitions) if (found := stream.time_range(p)) is not None]
    return {
        "name": name,
        "partitions": spec.partitions,
        "rows": sum(stored.rows for stored in stream.stored()),
        "bytes": _bytes(bus, name),
        "first_ms": min((first for first, _ in ranges), default=None),
        "last_ms": max((last for _, last in ranges), default=None),
        "time": spec.time,
        "key": list(spec.key),
        "compact": spec.compact,
        "columns": {field.name: words_of_type(field.type) for field in spec.schema},
    }


def _bytes(bus: Bus, name: str) -> int | None:
    if not isinstance(bus, FileBus):
        return None
    folder = bus.root / "streams" / name
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def show_streams(streams: Sequence[dict[str, Any]]) -> None:
    """Print the streams as a table."""
    numbers = ("partitions", "rows", "bytes")
    rows = [
        [
            entry["name"],
            f"{entry['partitions']:,}",
            f"{entry['rows']:,}",
            "-" if entry["bytes"] is None else size_text(entry["bytes"]),
            time_text(entry["first_ms"]),
            time_text(entry["last_ms"]),
            ", ".join(entry["key"]) or "-",
        ]
        for entry in streams
    ]
    titles = ("stream", *numbers, "first event (UTC)", "last event (UTC)", "key")
    show_table(titles, rows, right=numbers, spare=("key", "first event (UTC)", "bytes"))
