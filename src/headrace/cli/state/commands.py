"""``headrace state``: look into a job's stores, at any epoch that is kept, running or not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import Home, JobName, Json, settings_of
from headrace.cli.state import plan

if TYPE_CHECKING:
    from headrace.coordinator.inspection.inspection import JobReader
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


def open_reader(job: str, home: Path | None) -> JobReader:
    """Return the reader of a job below a home."""
    from headrace.clock import SystemClock
    from headrace.coordinator.backup.places import newest_of
    from headrace.coordinator.inspection.inspection import JobReader
    from headrace.coordinator.storage import check_job_name
    from headrace.files import Files

    root = newest_of(settings_of(home), check_job_name(job))
    return JobReader(root, job, Files(sync=False), SystemClock())


@app.command()
def ls(
    job: JobName,
    epoch: Epoch = None,
    count: Annotated[
        bool, typer.Option("--count", help="Count entries exactly, which reads all keys.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """List the stores of a job with their sizes, and the epochs that are kept."""
    from headrace.cli.state.text import show_stores
    from headrace.coordinator.inspection.store_list import summarise

    state, kept, stores = summarise(open_reader(job, home), epoch, count=count)
    head = {"epoch": state.epoch, "oldest": kept.oldest, "newest": kept.newest}
    if as_json:
        for store in stores:
            typer.echo(json.dumps({"job": job, **head, **asdict(store)}))
    else:
        show_stores(job, head, [asdict(store) for store in stores])


@app.command(context_settings=NEGATIVE)
def get(
    job: JobName,
    store: StoreName,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="One word for each value.", show_default=False),
    ],
    under: Annotated[
        list[str] | None,
        typer.Option(
            "--under",
            metavar="WORD",
            help="The key of the messages, where the store's own is another; repeat for several.",
            show_default=False,
        ),
    ] = None,
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print the rows of one key; 1 when there are none."""
    from headrace.cli.state.lookup import find
    from headrace.cli.state.text import show_batches
    from headrace.errors import InvalidInputError

    view = open_reader(job, home).view(store, epoch, partials=partials)
    found = find(view, key, under or [])
    if found is None:
        own = (
            ""
            if view.entry.form != "values" or under
            else ("; where its key is not that of the messages, give that with --under")
        )
        raise InvalidInputError(
            f"store {view.entry.name!r} has nothing for key {' '.join(key)} at epoch "
            f"{view.epoch}{own}"
        )
    show_batches([found], as_json=as_json)


@app.command()
def scan(  # noqa: PLR0913, PLR0917 - one for each option
    job: JobName,
    store: StoreName,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="WORD",
            help="Keys that begin with these values; a last WORD* with this text.",
            show_default=False,
        ),
    ] = None,
    low: Annotated[
        list[str] | None,
        typer.Option("--low", metavar="WORD", help="The least key.", show_default=False),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option("--high", metavar="WORD", help="The key to stop before.", show_default=False),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help='Such as "n > 3".', show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 100,
    epoch: Epoch = None,
    partials: Partials = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Print rows of a store, by key group and key."""
    from headrace.cli.state.lookup import key_range, limited, matching
    from headrace.cli.state.text import show_batches

    view = open_reader(job, home).view(store, epoch, partials=partials)
    keys = key_range(view, prefix or [], low or [], high or [])
    rows = matching(view.batches(keys), where)
    shown = show_batches(limited(rows, limit), as_json=as_json)
    if limit and shown == limit:
        typer.echo(f"the first {limit} rows; --limit 0 shows all", err=True)


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

    reader = open_reader(job, home)
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

    view = open_reader(job, home).view(store, epoch, partials=partials)
    rows = export_parquet(view.batches(), view.schema, to, SystemClock().new_id())
    told: dict[str, Any] = {"store": view.entry.name, "epoch": view.epoch, "rows": rows}
    if as_json:
        typer.echo(json.dumps({**told, "file": str(to), "bytes": to.stat().st_size}))
    else:
        typer.echo(f"{count_text(rows, 'row')} of {view.entry.name} at epoch {view.epoch} in {to}")


app.command()(plan.plan)
