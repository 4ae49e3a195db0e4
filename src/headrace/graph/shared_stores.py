"""What is read beside a task's own state: broadcast tables, and remote stores on a server.

A broadcast table is small; every task sees it whole, from a stream or a file. ``Remote`` says how a
store of kind ``remote`` is reached: plain data that a job declares.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headrace import plugins
from headrace.durations import Duration, duration_ms
from headrace.errors import InvalidInputError
from headrace.graph.types import to_schema
from headrace.redaction import SecretText, without_login

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

    A small table that each worker process holds completely and its tasks share. Give either
    ``stream`` or ``file``.

    Args:
        name: of the store within the job.
        key: its key columns; the latest row of each key counts. A row deletes its key if every
            other column, except the stream's event time, is null. A row with null in its key is
            skipped.
        stream: read to its end before each epoch, and to the same offsets by every task and at
            every retry. It must have one partition, or be partitioned by columns of the key, and
            keep all records.
        file: Parquet (``.parquet``), CSV with a header (``.csv``) or JSON lines (``.jsonl``,
            ``.ndjson``), read when the job starts; changes take effect at the next start.
        schema: as for ``returns``: columns of a CSV or JSON file, which are inferred otherwise, or
            of a stream that does not exist yet.

    Raises:
        InvalidInputError: an invalid name, key or source.

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
    if stream is not None and "://" in stream:
        raise InvalidInputError(
            f"broadcast store {name!r}: stream= is a stream of the bus; found "
            f"the address {without_login(stream)}: "
            "copy what is there to a stream with headrace bus mirror, and name that"
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


Access = Literal["batched", "async", "blocking"]
ACCESSES = ("batched", "async", "blocking")


@dataclass(frozen=True)
class Remote:
    """Access to a remote store, for ``hr.store(..., kind="remote", remote=...)``.

    Args:
        url: ``redis://host:6379/0``, ``rediss://`` or ``unix://``, or what a plug-in adds; none:
            the setting ``remote.url``. ``${NAME}`` is replaced from the environment of the process
            that connects, so that a password is in neither the plan nor a message.
        access: ``batched``: load the keys of a batch with one round trip before user code runs,
            and send changes with one at the end of the epoch; ``async``: load no keys in advance;
            ``context.get_later`` and ``get_async`` keep many requests in flight; ``blocking``: one
            request for each ``get`` and ``put``, at once.
        namespace: prefix of the keys on the server; none: ``headrace/<job>/<store>/``.
        load: columns whose values are the keys to load with ``batched``; none: those of
            ``partition_by``.
        cache: how old a cached value can be; ``"0s"``: nothing is cached between epochs.
        cache_bytes: size of the keys and encoded values that one task caches.
        timeout: of one round trip.
        retry_timeout: how long to retry an unreachable server, with new connections.
        in_flight: open commands of one task at the same time.
        batch_keys: keys of one command.
        patience: the former name of ``retry_timeout``; deprecated.
    """

    url: str | None = None
    access: Access = "batched"
    namespace: str | None = None
    load: tuple[str, ...] = ()
    cache: Duration = "1s"
    cache_bytes: int = 16 << 20
    timeout: Duration = "2s"
    retry_timeout: Duration = "30s"
    in_flight: int = 64
    batch_keys: int = 512
    patience: InitVar[Duration | None] = None

    def __post_init__(self, patience: Duration | None) -> None:
        """Keep a password that the address has out of what is shown and of the plan's file."""
        object.__setattr__(self, "url", SecretText.of(self.url))
        if patience is not None:
            warnings.warn(
                "Remote: patience= is retry_timeout= now; the old name works for one more release",
                DeprecationWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "retry_timeout", patience)

    @property
    def scheme(self) -> str:
        """The kind of server, as the address says; empty: it does not."""
        before, found, _ = (self.url or "").partition("://")
        return before if found else ""

    def mistakes(self) -> list[str]:
        """Return the mistakes, one sentence each."""
        wrong = []
        if self.url is not None:
            text = plugins.mistake(plugins.STORES, self.scheme)
            wrong += [f"url is {without_login(self.url)}: {text}"] if text else []
        if self.access not in ACCESSES:
            wrong.append(f"access is {self.access!r}; expected one of {ACCESSES}")
        if self.load and self.access != "batched":
            wrong.append(f"load= is for access='batched'; access is {self.access!r}")
        least = {"cache_bytes": 0, "in_flight": 1, "batch_keys": 1}
        wrong += [
            f"{name} is {getattr(self, name)}; expected at least {bound}"
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        for name, bound in {"cache": 0, "timeout": 1, "retry_timeout": 0}.items():
            try:
                duration_ms(getattr(self, name), name, least=bound)
            except ValueError as error:
                wrong.append(str(error))
        return wrong
