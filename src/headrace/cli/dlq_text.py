"""What ``headrace dlq`` prints."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import typer

from headrace.bus.bus import Bus
from headrace.cli.screen import show_json, show_table
from headrace.cli.words import count_text, time_text
from headrace.coordinator.changes.redriving import LETTER, PLACE, Redriven, read_letters
from headrace.task.dead_letters import from_record

_BY = ("operator", "code", "kind")


def counted(bus: Bus, name: str) -> list[dict[str, Any]]:
    """Return one entry for each operator and kind of error of a stream of dead letters."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for batch in read_letters(bus.stream(name), with_records=False):
        for letter in batch.select([*_BY, "job", "at", "is_original"]).to_pylist():
            by = tuple(letter[column] for column in _BY)
            entry = found.setdefault(by, _entry(name, letter))
            at = round(letter["at"].timestamp() * 1000)
            entry["letters"] += 1
            entry["redrivable"] += letter["is_original"]
            entry["first_ms"] = min(entry["first_ms"] or at, at)
            entry["last_ms"] = max(entry["last_ms"] or at, at)
    return list(found.values())


def _entry(name: str, letter: dict[str, Any]) -> dict[str, Any]:
    parts = {column: letter[column] for column in ("job", *_BY)}
    counts = {"letters": 0, "redrivable": 0, "first_ms": None, "last_ms": None}
    return {"stream": name, **parts, **counts}


def show_counts(entries: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the counts of dead letters."""
    if as_json:
        show_json(*entries)
        return
    if not entries:
        typer.echo('no dead letters; operators make them that have on_error="dead_letter"')
        return
    numbers = ("letters", "redrivable")
    rows = [
        [
            entry["stream"],
            entry["operator"],
            f"{entry['code']} {entry['kind']}",
            f"{entry['letters']:,}",
            f"{entry['redrivable']:,}",
            time_text(entry["first_ms"]),
            time_text(entry["last_ms"]),
        ]
        for entry in entries
    ]
    titles = ("stream", "operator", "error", *numbers, "first (UTC)", "last (UTC)")
    show_table(titles, rows, right=numbers, spare=("first (UTC)", "redrivable", "last (UTC)"))


def show_letters(batches: Iterable[pa.RecordBatch], limit: int, *, as_json: bool) -> None:
    """Print the last letters; 0: all."""
    letters = (letter for batch in batches for letter in batch.to_pylist())
    for letter in deque(letters, limit) if limit else letters:
        if as_json:
            if letter["record"] is not None:
                letter["record"] = _record(letter["record"])
            typer.echo(msgspec.json.encode(letter, enc_hook=str).decode())
        else:
            typer.echo("\n".join(_lines(letter)))


def _record(record: bytes) -> dict[str, Any]:
    row: dict[str, Any] = from_record(record).to_pylist()[0]
    return row


def _lines(letter: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{letter[PLACE]}/{letter[LETTER]}  {letter['at']:%Y-%m-%d %H:%M:%S}  "
        f"job {letter['job']} epoch {letter['epoch']} operator {letter['operator']}  "
        f"{letter['code']} {letter['kind']}"
    )
    yield f"  {letter['message']}"
    if letter["stream"] is not None:
        key = "" if letter["key"] is None else f"  key {letter['key']}"
        yield f"  from {letter['stream']} {letter['partition']}/{letter['offset']}{key}"
    elif letter["key"] is not None:
        yield f"  key {letter['key']}"
    if letter["record"] is not None:
        row = _record(letter["record"])
        what = "record" if letter["is_original"] else "row"
        yield f"  {what} " + "  ".join(f"{n}={_cell(value)}" for n, value in row.items())


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


def show_redriven(name: str, done: Redriven, *, dry_run: bool, as_json: bool) -> None:
    """Print what became of the letters."""
    if as_json:
        show_json({"stream": name, "dry_run": dry_run, **msgspec.to_builtins(done)})
        return
    word = "would be appended" if dry_run else "appended"
    for stream, count in done.appended.items():
        typer.echo(f"{count_text(count, 'record')} {word} to {stream}")
    for stream, count in done.there.items():
        typer.echo(f"{count_text(count, 'record')} had been appended to {stream} before")
    if done.unknown:
        typer.echo(f"{count_text(done.unknown, 'letter')} without a record of a stream left out")
    for reason in done.refused:
        typer.echo(f"not taken: {reason}", err=True)
    if not (done.appended or done.there or done.unknown or done.refused):
        typer.echo(f"no letter of {name} is meant")
