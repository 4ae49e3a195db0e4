"""What ``state get`` and ``state scan`` print of a store's view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import typer

from headrace.cli.state.lookup import find, limited
from headrace.cli.state.text import show_batches
from headrace.coordinator.inspection.store_view import StoreView
from headrace.errors import InvalidInputError


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
    found = find(view, words, under)
    if found is not None:
        show_batches([found], as_json=as_json)
        return
    own = ""
    if view.entry.form == "values" and not under:
        own = "; where its key is not that of the messages, give that with --under"
    raise InvalidInputError(
        f"store {view.entry.name!r} has nothing for key {' '.join(words)} at epoch "
        f"{view.epoch}{own}"
    )


def show_first(batches: Iterable[pa.RecordBatch], limit: int, *, as_json: bool) -> None:
    """Print the first rows, 0: all; say so on stderr where there may be more."""
    shown = show_batches(limited(batches, limit), as_json=as_json)
    if limit and shown == limit:
        typer.echo(f"the first {limit} rows; --limit 0 shows all", err=True)
