"""``headrace state``: look into a job's stores, at any epoch that is kept, running or not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json, Where
from headrace.cli.screen import show_json
from headrace.cli.state import plan
from headrace.cli.state.readers import open_reader, open_readers

if TYPE_CHECKING:
    from headrace.coordinator.inspection.store_view import StoreView

NEGATIVE = {"ignore_unknown_options": True}  # -5 is a number, not an option
app = typer.Typer(name="state", help="Look into a job's stores.", no_args_is_help=True)

StoreName = Annotated[
    str,
    typer.Argument(metavar="STORE", help="Name of the store, as ls says.", show_default=False),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        metavar="N",
        help="An epoch that is kept; -5: five before the last. Default: the last.",
        show_default=False,
    ),
]
Partials = Annotated[
    bool, typer.Option("--partials", help="Show the partial columns of aggregates, too.")
]
Count = Annotated[bool, typer.Option("--count", help="Count entries exactly: reads all keys.")]
Key = Annotated[
    list[str],
    typer.Argument(metavar="KEY...", help="One word for each value.", show_default=False),
]


def _words(option: str, help_: str) -> Any:
    """Return an option that takes a word of a key, as often as the key has values."""
    return typer.Option(option, metavar="WORD", help=help_, show_default=False)


Under = Annotated[
    list[str] | None,
    _words("--under", "Key of the messages, where the store's own is another; once a value."),
]
Prefix = Annotated[
    list[str] | None,
    _words("--prefix", "Keys that begin with these values; a last WORD* with this text."),
]
Low = Annotated[list[str] | None, _words("--low", "The least key.")]
High = Annotated[list[str] | None, _words("--high", "The key to stop before.")]


@app.command()
def ls(
    job: JobName,
    epoch: Epoch = None,
    count: Count = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List the stores of a job with their sizes, and the epochs that are kept."""
    from headrace.cli.state.text import show_stores
    from headrace.coordinator.inspection.store_list import summarise

    for reader in open_readers(job, home):
        state, kept, stores = summarise(reader, epoch, count=count)
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
    """Print the rows of one key; 1 when there are none."""
    from headrace.cli.state.rows import show_key

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
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 100,
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a store, by key group and key."""
    from headrace.cli.state.lookup import key_range, matching
    from headrace.cli.state.rows import show_first

    view = open_reader(job, store, home).view(store, epoch, partials=partials)
    keys = key_range(view, prefix or [], low or [], high or [])
    show_first(matching(view.batches(keys), where), limit, as_json=as_json)


@app.command(context_settings=NEGATIVE)
def diff(
    job: JobName,
    store: StoreName,
    first: Annotated[int, typer.Argument(metavar="EPOCH1", help="Before.", show_default=False)],
    second: Annotated[int, typer.Argument(metavar="EPOCH2", help="After.", show_default=False)],
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print what changed in a store between two epochs."""
    from headrace.cli.state.diff import show_changes

    reader = open_reader(job, store, home)
    before = reader.view(store, first, partials=partials)
    after = reader.view(store, second, partials=partials)
    counts = show_changes(before, after, as_json=as_json)
    if not as_json:
        typer.echo(_told(before, after, counts))


def _told(before: StoreView, after: StoreView, counts: dict[str, int]) -> str:
    changed = ", ".join(f"{number:,} {what}" for what, number in counts.items())
    return f"epoch {before.epoch} to {after.epoch}: {changed}"


@app.command()
def export(
    job: JobName,
    store: StoreName,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="FILE", help="Parquet to write.", show_default=False),
    ],
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Write a store to a Parquet file, with a column for each part of key and value."""
    from headrace.cli.words import count_text
    from headrace.clock import SystemClock
    from headrace.coordinator.inspection.exporting import export_parquet

    view = open_reader(job, store, home).view(store, epoch, partials=partials)
    rows = export_parquet(view.batches(), view.schema, to, SystemClock().new_id())
    told: dict[str, Any] = {"store": view.entry.name, "epoch": view.epoch, "rows": rows}
    if as_json:
        show_json({**told, "file": str(to), "bytes": to.stat().st_size})
    else:
        typer.echo(f"{count_text(rows, 'row')} of {view.entry.name} at epoch {view.epoch} in {to}")


app.command()(plan.plan)
