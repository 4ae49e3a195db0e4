"""``headrace dlq``: show dead letters, and send their records to the original partitions again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.cli.options import Home, Json, Where, open_home_bus, settings_of
from headrace.cli.output import count_text, show_json, show_table, time_text

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.bus import Bus
    from headrace.coordinator.operations.dead_letters import RedriveResult


_BY = ("operator", "code", "kind")


def counted(bus: Bus, name: str) -> list[dict[str, Any]]:
    """Return one entry for each operator and kind of error of a stream of dead letters."""
    from headrace.coordinator.operations.dead_letters import read_letters

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
    from headrace.runtime.dead_letters import from_record

    row: dict[str, Any] = from_record(record).to_pylist()[0]
    return row


def _lines(letter: dict[str, Any]) -> Iterator[str]:
    from headrace.coordinator.operations.dead_letters import LETTER, PLACE

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


def show_redriven(name: str, done: RedriveResult, *, dry_run: bool, as_json: bool) -> None:
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


app = typer.Typer(
    name="dlq", help="Inspect dead letters, and send their records again.", no_args_is_help=True
)

Letters = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A job, or a stream of dead letters.", show_default=False),
]
Count = Annotated[
    int,
    typer.Option("-n", metavar="LETTERS", min=0, help="Number of last letters to print; 0: all."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be appended.")]


@app.command()
def ls(as_json: Json = False, home: Home = None) -> None:
    """Count the dead letters by stream, operator and error.

    Also shows how many of them can be redriven.

    Guide: dead-letters.

    For example:

        headrace dlq ls
    """
    from headrace.coordinator.operations.dead_letters import dead_letter_streams

    settings = settings_of(home)
    with open_home_bus(settings) as bus:
        found = [line for name in dead_letter_streams(bus) for line in counted(bus, name)]
    show_counts(found, as_json=as_json)


@app.command()
def show(
    name: Letters,
    where: Where = None,
    letters: Count = 10,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print dead letters: the record, its origin, and why it was refused.

    `--where` can use the columns of the dead-letter stream, and `letter`, the offset of the
    letter. Write `"offset"` in double quotes, because it is an SQL keyword.

    Guide: dead-letters.

    For example:

        headrace dlq show payments --where "operator = 'parse' and epoch > 5"
    """
    from headrace.coordinator.inspection.row_filters import matching
    from headrace.coordinator.operations.dead_letters import find_dead_letter_stream, read_letters

    with open_home_bus(settings_of(home)) as bus:
        stream = bus.stream(find_dead_letter_stream(bus, name))
        show_letters(matching(read_letters(stream), where), letters, as_json=as_json)


@app.command()
def redrive(
    name: Letters,
    where: Where = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Append the records of dead letters to their original partitions again.

    Jobs read these records like any other. Each letter is redriven once: a second time has no
    effect, by any user. If an epoch wrote several letters of one record, the record is appended
    once. `--dry-run` also counts letters that may have been redriven before. Exits with 1 if a
    stream did not accept a record, for example because it has lost a column; the others were
    appended.

    Guide: dead-letters.

    For example:

        headrace dlq redrive payments --dry-run
    """
    from headrace.cli.failures import MISTAKE
    from headrace.coordinator.inspection.row_filters import matching
    from headrace.coordinator.operations.dead_letters import find_dead_letter_stream, read_letters
    from headrace.coordinator.operations.dead_letters import redrive as send_back

    with open_home_bus(settings_of(home)) as bus:
        found = find_dead_letter_stream(bus, name)
        letters = matching(read_letters(bus.stream(found)), where)
        done = send_back(bus, found, letters, dry_run=dry_run)
    show_redriven(found, done, dry_run=dry_run, as_json=as_json)
    if done.refused:
        raise typer.Exit(MISTAKE)
