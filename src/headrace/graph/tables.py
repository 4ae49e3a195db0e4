"""Broadcast stores: a small table that every task sees whole, from a stream or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.graph.types import to_schema

JOIN_WAYS = ("left", "inner")


@dataclass(frozen=True)
class BroadcastSpec:
    """A table with one row for each key, the same in all tasks of an epoch.

    ``stream`` or ``file`` says where its rows come from, ``schema`` which columns they have,
    for a plan without them.
    """

    name: str
    key: tuple[str, ...]
    stream: str | None = None
    file: str | None = None
    schema: pa.Schema | None = field(default=None, compare=False)

    @property
    def origin(self) -> str:
        """Return where its rows come from, in words."""
        return f"stream {self.stream!r}" if self.stream is not None else f"file {self.file!r}"


def broadcast(
    name: str,
    *,
    key: str | Sequence[str],
    stream: str | None = None,
    file: str | None = None,
    schema: Any = None,
) -> BroadcastSpec:
    """Declare a broadcast store, for ``process(stores=[...])`` and ``join_table``.

    A small table that is held whole by each worker process and shared by its tasks. Give one
    of ``stream`` and ``file``.

    Args:
        name: of the store within the job.
        key: its key columns; the latest row of each key counts. A row in which every other
            column is null (but the stream's event time) deletes its key, and one with a null
            in its key is passed over.
        stream: read to its end before each epoch, and to the same offsets by every task and
            at every retry. It has one partition, or is partitioned by columns of the key, and
            keeps all records.
        file: Parquet (``.parquet``), CSV with a header (``.csv``) or JSON lines (``.jsonl``,
            ``.ndjson``), read when the job starts; a changed file counts from the next start.
        schema: what ``returns`` takes; columns of a CSV or JSON file, which are guessed
            otherwise, or of a stream that does not exist yet.

    Raises:
        InvalidInputError: a name, key or source that is none.

    Example:
        >>> import headrace as hr
        >>> hr.broadcast("rates", stream="rates", key="currency").origin
        "stream 'rates'"
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(part, str) for part in keys) or len(set(keys)) < len(keys):
        raise InvalidInputError(
            f"broadcast store {name!r}: key= takes names of columns, each once; found {key!r}"
        )
    if (stream is None) == (file is None):
        raise InvalidInputError(
            f"broadcast store {name!r} needs stream= or file=; found "
            f"{'neither' if stream is None else 'both'}"
        )
    columns = None if schema is None else to_schema(schema)
    return BroadcastSpec(name, keys, stream, None if file is None else str(file), columns)


def as_broadcast(value: object) -> BroadcastSpec | None:
    """Return a broadcast store that a user gave, or ``None`` for something else."""
    return value if isinstance(value, BroadcastSpec) else None


def join_columns(
    wrong: list[str], table: BroadcastSpec, on: str | Sequence[str] | Mapping[str, str] | None
) -> tuple[str, ...]:
    """Return the stream's columns that are looked up, in the order of the table's key."""
    if on is None:
        return table.key
    if isinstance(on, Mapping):
        by_key = {key: column for column, key in on.items()}
        if set(by_key) != set(table.key) or len(on) != len(table.key):
            wrong.append(
                f"join_table(on=...) maps columns of the stream to the key {list(table.key)} of "
                f"{table.name!r}; found {dict(on)}"
            )
            return table.key
        return tuple(by_key[key] for key in table.key)
    columns = (on,) if isinstance(on, str) else tuple(on)
    if len(columns) != len(table.key):
        wrong.append(
            f"join_table(on=...) needs a column for each of the key {list(table.key)} of "
            f"{table.name!r}; found {list(columns)}"
        )
        return table.key
    return columns


def taken_columns(
    columns: Sequence[str] | Mapping[str, str] | None,
) -> tuple[tuple[str, str], ...] | None:
    """Return (new name, name in the table) for each column that a join adds; ``None``: all."""
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        return tuple((str(new), str(old)) for new, old in columns.items())
    names = (columns,) if isinstance(columns, str) else columns
    return tuple((name, name) for name in names)
