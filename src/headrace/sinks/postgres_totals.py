"""Totals of a ``MonoidProcessor`` in a table of PostgreSQL: a row for each key.

An epoch, its number and what it adds are one transaction, in which the rows of its keys are read,
combined and written. psycopg is loaded when it is first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace import extras
from headrace.closeable import Closeable
from headrace.errors import InvalidInputError
from headrace.files import Bytes
from headrace.graph.processors import PARTIAL, MonoidProcessor, PartialSink
from headrace.graph.sinks import Receiver, SinkEpoch, SinkSite
from headrace.records.keys import decode_key, encode_any, encode_columns
from headrace.redaction import SecretText, without_login
from headrace.sinks.postgres import PostgresReceiver, resolved_url
from headrace.sinks.postgres_table import (
    EPOCHS,
    TableSpec,
    column_types,
    encode_rows,
    quoted,
)
from headrace.sinks.redis import PartialMerge

KEY = "headrace_key"
"""The column of the encoded key, which the table is unique by: columns of a key may be null."""

CHUNK_KEYS, FETCHED = 5_000, 2_000
_NAME = re.compile(r"[^\W\d][\w$]{0,62}(\.[^\W\d][\w$]{0,62})?")
Factory = Callable[[], MonoidProcessor[Any, Any]]


class PostgresTotals(Closeable):
    """The totals of a job's ``monoid(..., state=hr.sinks.postgres_partials(...))``.

    A read sees whole epochs. Errors of the server are those of psycopg.

    Args:
        url: of the server, with its password.
        table: the name, quoted.
        merge: how partial results combine.
    """

    def __init__(self, url: str, table: str, merge: PartialMerge) -> None:
        library = extras.load("psycopg", "totals in PostgreSQL")
        self._connection = library.connect(url, autocommit=True, connect_timeout=10)
        self._table, self._merge = table, merge

    def get(self, key: Any) -> Any:
        """Return the result of a key; that of the identity if nothing was added."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the result of each key, with one query."""
        names = [encode_any(key) for key in keys]
        query = f"SELECT {KEY}, {PARTIAL} FROM {self._table} WHERE {KEY} = ANY(%s)"
        found = {bytes(k): p for k, p in self._connection.execute(query, (names,)).fetchall()}
        return [self._shown([found[name]] if name in found else []) for name in names]

    def items(self, values: Mapping[str, Sequence[Any]] | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield keys and their results, in no order, all of the same epochs.

        Args:
            values: the wanted values by key column. Default: all keys.
        """
        wanted = dict(values or {})
        where = " AND ".join(f"{quoted(name)} = ANY(%s)" for name in wanted)
        query = f"SELECT {KEY}, {PARTIAL} FROM {self._table}" + (f" WHERE {where}" if where else "")
        cursor = self._connection.execute(query, [list(one) for one in wanted.values()] or None)
        while rows := cursor.fetchmany(FETCHED):
            for name, data in rows:
                key = decode_key(bytes(name))
                yield (key[0] if len(key) == 1 else key), self._shown([data])

    def _shown(self, partials: Sequence[bytes]) -> Any:
        merge = self._merge
        return merge.processor.result(merge.total(map(bytes, partials)))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PostgresTotalsReceiver(PostgresReceiver):
    """Combines what an epoch adds with the rows of its keys.

    Args:
        url: the server, with its password.
        spec: of the table.
        site: who sends.
        merge: how partial results combine.
    """

    def __init__(self, url: str, spec: TableSpec, site: SinkSite, merge: PartialMerge) -> None:
        self._merge = merge
        super().__init__(url, spec, site)

    def _send(self, connection: Any, epoch: SinkEpoch) -> None:
        names = self._spec.schema.names
        added: dict[bytes, list[Any]] = {}
        for prepared in epoch.files:
            with pa.memory_map(str(prepared.path)) as file:
                table = pa.ipc.open_file(file).read_all()
            for row in zip(*(table.column(name).to_pylist() for name in names), strict=True):
                held = added.get(row[0])
                if held is None:
                    added[row[0]] = [*row[:-1], [row[-1]]]
                else:
                    held[-1].append(row[-1])
        connection.execute(self._spec.staging())
        keys = list(added)
        for begin in range(0, len(keys), CHUNK_KEYS):
            self._stage(connection, {key: added[key] for key in keys[begin : begin + CHUNK_KEYS]})
        for statement in self._spec.application():
            connection.execute(statement)

    def _stage(self, connection: Any, added: dict[bytes, list[Any]]) -> None:
        """Combine rows with those that the table has, and copy them beside it."""
        spec = self._spec
        query = f"SELECT {KEY}, {PARTIAL} FROM {spec.name} WHERE {KEY} = ANY(%s)"
        for key, partial in connection.execute(query, (list(added),)).fetchall():
            added[bytes(key)][-1].insert(0, bytes(partial))
        rows = [[*row[:-1], self._merge.joined(row[-1])] for row in added.values()]
        columns = [
            pa.array(values, one.type)
            for values, one in zip(zip(*rows, strict=True), spec.schema, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=spec.schema)
        with connection.cursor() as cursor, cursor.copy(spec.copy()) as copy:
            for data in encode_rows(table, spec.table):
                copy.write(bytes(data))


@dataclass(frozen=True)
class PostgresPartials(PartialSink):
    """A table to add partial results to; made by ``postgres_partials``.

    Args:
        url: of the server.
        table: its name, if needed with its schema and a dot before it.
        merge: combines results of the processor.
    """

    url: str
    table: str
    merge: PartialMerge | None = field(default=None, compare=False)

    suffix = "partials"

    def __post_init__(self) -> None:
        """Keep a password that the address has out of what is shown and of the plan's file."""
        object.__setattr__(self, "url", SecretText.of(self.url))

    @property
    def label(self) -> str:
        """The table."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", self.table)

    @property
    def identity(self) -> str:
        """The table, and the effect of rows."""
        return f"PostgreSQL table {self.table} (partial results combined)"

    @property
    def promise(self) -> str:
        """The guarantee for readers."""
        return (
            f"exactly-once, at {without_login(self.url)}: what an epoch adds and its number, in "
            f"table {EPOCHS}, are one transaction"
        )

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        wrong = []
        if not self.url.startswith(("postgresql://", "postgres://")):
            wrong.append(f"url is {without_login(self.url)}; expected postgresql://...")
        if not _NAME.fullmatch(self.table):
            wrong.append(f"table is {self.table!r}; expected a name, or schema.name")
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the mistake of use without ``monoid``, and columns that no type can hold."""
        if self.merge is None:
            return ["takes partial results; give it to monoid(..., state=)"]
        return [
            f"column {one.name!r} is {one.type}, for which PostgreSQL has no type here"
            for one in schema
            if not column_types(one.type)
        ]

    def of(self, factory: Factory, state: Any) -> PostgresPartials:
        """Return the same for the partial results of a processor."""
        return replace(self, merge=PartialMerge(factory, state))

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the rows with their encoded keys."""
        table = pa.Table.from_batches(batches, schema)
        names: list[bytes] = []
        for batch in batches:
            keys = [batch.column(name) for name in schema.names if name != PARTIAL]
            names += encode_columns(keys).to_list()
        table = table.add_column(0, KEY, pa.array(names, pa.binary()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return [sink.getvalue()]

    def open(self, site: SinkSite) -> Receiver:
        """Connect, and check that the table can take the rows; create it if needed."""
        if self.merge is None:
            raise InvalidInputError(
                f"sink {self.identity} takes partial results; give it to monoid(..., state=)"
            )
        schema = pa.schema([pa.field(KEY, pa.binary()), *site.schema])
        spec = TableSpec(self.table, schema, "upsert", (KEY,), (), None)
        return PostgresTotalsReceiver(resolved_url(self.url, os.environ), spec, site, self.merge)

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what its client library raises."""
        return (extras.load("psycopg", "totals in PostgreSQL").Error,)

    def totals(self, factory: Factory) -> PostgresTotals:
        """Return a reader of the totals, for any program.

        Args:
            factory: the class of the job, or ``functools.partial`` of it.
        """
        table = ".".join(quoted(part) for part in self.table.split("."))
        merge = PartialMerge.of(factory)
        return PostgresTotals(resolved_url(self.url, os.environ), table, merge)


def postgres_partials(url: str, table: str) -> PostgresPartials:
    """Keep the totals of a ``MonoidProcessor`` in a table of PostgreSQL, exactly-once.

    A row has the columns of a key and its partial result, as MessagePack. An epoch reads the rows
    of its keys, adds to them, and writes them with its number, in one transaction. Needs
    ``pip install "headrace[postgres]"`` where the driver runs and where totals are read.

    Args:
        url: ``postgresql://user:${PASSWORD}@host:5432/database``; ``${NAME}`` is taken from the
            environment of the driver.
        table: created if it does not exist; not used by anything else.
    """
    return PostgresPartials(url, table)
