"""``headrace state``: keys and rows of a job's stores, at any kept epoch, running or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import state_plan
from headrace.cli.options import Home, JobName, Json, Where
from headrace.cli.output import count_text, show_answer, show_json, show_table, size_text
from headrace.cli.state_plan import open_reader, open_readers
from headrace.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.coordinator.inspection.store_view import Change, StoreView


TABLE_ROWS = 1000
"""Rows that a table is made of; what follows gets another table below."""


def json_row(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON: moments as ISO 8601, bytes as base64."""
    from headrace.coordinator.inspection.row_filters import json_ready

    return json.dumps(json_ready(row))


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    from headrace.coordinator.inspection.row_filters import pairs_joined
    from headrace.state.value_types import json_text, plain

    if value is None:
        return "-"
    shown = plain(pairs_joined(value))
    return shown if isinstance(shown, str) else json_text(shown)


def show_batches(batches: Iterable[pa.RecordBatch], *, as_json: bool) -> int:
    """Print rows as they come; returns how many."""
    total = 0
    for batch in batches:
        for begin in range(0, batch.num_rows, TABLE_ROWS):
            rows = batch.slice(begin, TABLE_ROWS).to_pylist()
            if as_json:
                for row in rows:
                    typer.echo(json_row(row))
            else:
                show_table(batch.schema.names, [[cell(v) for v in row.values()] for row in rows])
        total += batch.num_rows
    return total


def show_stores(job: str, head: Mapping[str, Any], stores: Sequence[Mapping[str, Any]]) -> None:
    """Print the stores of a job, by stage."""
    typer.echo(
        f"job {job}, epoch {head['epoch']}; kept are epochs {head['oldest']} to {head['newest']}"
    )
    numbers = ("tasks", "entries", "bytes", "files", "changed")
    rows = [
        [
            store["stage"],
            store["store"],
            store["kind"],
            store["form"],
            str(store["tasks"]),
            ("" if store["exact"] else "≤ ") + f"{store['entries']:,}",
            size_text(store["bytes"]),
            f"{store['snapshots']} + {store['segments']}",
            "-" if store["changed"] is None else str(store["changed"]),
        ]
        for store in stores
    ]
    titles = ("stage", "store", "kind", "holds", *numbers)
    show_table(titles, rows, right=numbers, spare=("files", "holds", "changed", "stage"))


def show_key(view: StoreView, words: Sequence[str], under: Sequence[str], *, as_json: bool) -> None:
    """Print the rows of one key.

    Args:
        view: of the store.
        words: the key as typed.
        under: the messages' key as typed, where it is another one.
        as_json: as objects.

    Raises:
        InvalidInputError: there are none.
    """
    from headrace.coordinator.inspection.row_filters import find

    found = find(view, words, under)
    if found is not None:
        show_batches([found], as_json=as_json)
        return
    own = ""
    if view.entry.form == "values" and not under:
        own = "; where its key is not that of the messages, give that with --message-key"
    raise InvalidInputError(
        f"store {view.entry.name!r} has nothing for key {' '.join(words)} at epoch "
        f"{view.epoch}{own}"
    )


def show_first(batches: Iterable[pa.RecordBatch], limit: int, *, as_json: bool) -> None:
    """Print the first rows, 0: all; say so on stderr where there may be more."""
    from headrace.coordinator.inspection.row_filters import limited

    shown = show_batches(limited(batches, limit), as_json=as_json)
    if limit and shown == limit:
        typer.echo(f"the first {limit} rows; --limit 0 shows all", err=True)


def show_changes(before: StoreView, after: StoreView, *, as_json: bool) -> dict[str, int]:
    """Print the changes as they are found; returns how many of each kind there are.

    A changed row is shown twice in a table, as it was and as it is; as JSON it is one object
    with ``before`` and ``after``.
    """
    counts: Counter[str] = Counter()
    for changes in after.changes_since(before):
        counts.update(change.kind for change in changes)
        if as_json:
            for change in changes:
                typer.echo(_line(change))
            continue
        rows = [row for change in changes for row in _rows(change)]
        names = ["", *(changes[0].before or changes[0].after or {})]
        show_table(names, rows)
    return {kind: counts[kind] for kind in ("added", "removed", "changed")}


def _rows(change: Change) -> list[list[str]]:
    marks = {"added": ("", "+"), "removed": ("-", ""), "changed": ("<", ">")}[change.kind]
    sides = zip(marks, (change.before, change.after), strict=True)
    return [[mark, *map(cell, row.values())] for mark, row in sides if row is not None]


def _line(change: Change) -> str:
    before = "null" if change.before is None else json_row(change.before)
    after = "null" if change.after is None else json_row(change.after)
    return f'{{"change": "{change.kind}", "before": {before}, "after": {after}}}'


NEGATIVE = {"ignore_unknown_options": True}  # -5 is a number, not an option
app = typer.Typer(name="state", help="Inspect a job's stores.", no_args_is_help=True)

StoreName = Annotated[
    str,
    typer.Argument(metavar="STORE", help="Name of the store, as shown by ls.", show_default=False),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        metavar="N",
        help="A kept epoch; -5: five before the last. Default: the last.",
        show_default=False,
    ),
]
Partials = Annotated[
    bool, typer.Option("--partials", help="Also show the partial columns of aggregates.")
]
Count = Annotated[bool, typer.Option("--count", help="Count entries exactly, by reading all keys.")]
Key = Annotated[
    list[str],
    typer.Argument(metavar="KEY...", help="The key, one word for each value.", show_default=False),
]


def _words(option: str, help_: str) -> Any:
    """Return an option that takes a word of a key, as often as the key has values."""
    return typer.Option(option, metavar="WORD", help=help_, show_default=False)


Under = Annotated[
    list[str] | None,
    _words(
        "--message-key",
        "Key of the messages, if a processor's own key is different; repeat it for each value.",
    ),
]
Prefix = Annotated[
    list[str] | None,
    _words(
        "--prefix",
        "Keys that start with these values; repeat it for each value. A last WORD* matches text "
        "that starts with WORD.",
    ),
]
Low = Annotated[list[str] | None, _words("--from", "Lowest key to print.")]
High = Annotated[list[str] | None, _words("--before", "Key to stop before.")]


@app.command()
def ls(
    job: JobName,
    epoch: Epoch = None,
    count: Count = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List the stores of a job with their sizes, and the kept epochs.

    Shows stage, kind, columns, tasks, entries, bytes, files (snapshots + changelog segments) and
    the last epoch that changed each store. The number of entries is an upper bound, shown as `≤`,
    if a key can be in several files.

    Guide: state.

    For example:

        headrace state ls shop --count
    """
    from headrace.coordinator.inspection.job_reader import summarise_stores

    for reader in open_readers(job, home):
        state, kept, stores = summarise_stores(reader, epoch, count=count)
        head = {"epoch": state.epoch, "oldest": kept.oldest, "newest": kept.newest}
        if as_json:
            show_json(*({"job": reader.job, **head, **asdict(store)} for store in stores))
        else:
            show_stores(reader.job, head, [asdict(store) for store in stores])


@app.command(context_settings=NEGATIVE)
def get(
    job: JobName,
    store: StoreName,
    key: Key,
    under: Under = None,
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print the rows of one key of a store.

    Give each value of the key as a word. Words have the types of the key's columns: timestamps are
    ISO 8601 or milliseconds since 1970, binary is base64. Exits with 1 if there are no rows.

    Guide: state.

    For example:

        headrace state get shop spent ann
    """
    view = open_reader(job, store, home).view(store, epoch, partials=partials)
    show_key(view, key, under or [], as_json=as_json)


@app.command()
def scan(  # noqa: PLR0913, PLR0917 - one for each option
    job: JobName,
    store: StoreName,
    prefix: Prefix = None,
    low: Low = None,
    high: High = None,
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most rows to print; 0: all.")] = 100,
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a store, ordered by key group and key.

    Guide: state.

    For example:

        headrace state scan shop totals --where "n > 1000"
    """
    from headrace.coordinator.inspection.row_filters import key_range, matching

    view = open_reader(job, store, home).view(store, epoch, partials=partials)
    keys = key_range(view, prefix or [], low or [], high or [])
    show_first(matching(view.batches(keys), where), limit, as_json=as_json)


@app.command(context_settings=NEGATIVE)
def diff(
    job: JobName,
    store: StoreName,
    first: Annotated[
        int, typer.Argument(metavar="EPOCH1", help="The earlier epoch.", show_default=False)
    ],
    second: Annotated[
        int, typer.Argument(metavar="EPOCH2", help="The later epoch.", show_default=False)
    ],
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print what changed in a store between two kept epochs.

    Shows rows that were added (`+`), removed (`-`) or changed (`<` before, `>` after); with
    `--json`, objects with `change`, `before` and `after`.

    Guide: state.

    For example:

        headrace state diff shop spent -10 -1
    """
    reader = open_reader(job, store, home)
    before = reader.view(store, first, partials=partials)
    after = reader.view(store, second, partials=partials)
    counts = show_changes(before, after, as_json=as_json)
    if not as_json:
        typer.echo(_summary(before, after, counts))


def _summary(before: StoreView, after: StoreView, counts: dict[str, int]) -> str:
    changed = ", ".join(f"{number:,} {what}" for what, number in counts.items())
    return f"epoch {before.epoch} to {after.epoch}: {changed}"


@app.command()
def export(
    job: JobName,
    store: StoreName,
    to: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Parquet file to write.", show_default=False
        ),
    ],
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Write a store to a Parquet file, with a column for each part of key and value.

    The file gets its name when it is complete.

    Guide: state.

    For example:

        headrace state export shop totals --out totals.parquet
    """
    from headrace.coordinator.inspection.store_view import export_parquet

    view = open_reader(job, store, home).view(store, epoch, partials=partials)
    rows = export_parquet(view.batches(), view.schema, to)
    facts: dict[str, Any] = {"store": view.entry.name, "epoch": view.epoch, "rows": rows}
    line = f"{count_text(rows, 'row')} of {view.entry.name} at epoch {view.epoch} in {to}"
    show_answer({**facts, "file": str(to), "bytes": to.stat().st_size}, line, as_json=as_json)


app.command()(state_plan.plan)
