"""A PostgreSQL table as a sink: rows of an epoch, and its number, in one transaction."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidInputError
from headrace.files import Bytes
from headrace.graph.remote import shown_url
from headrace.graph.sinks import Receiver, Sink, SinkSite
from headrace.sinks.postgres_rows import column_types, encode_rows
from headrace.sinks.postgres_table import EPOCHS, TableSpec

Mode = Literal["insert", "upsert", "delete"]
MODES = ("insert", "upsert", "delete")
_NAME = re.compile(r"[^\W\d][\w$]{0,62}(\.[^\W\d][\w$]{0,62})?")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class PostgresSink(Sink):
    """A table that takes each committed epoch; made by ``postgres``.

    Args:
        url: ``postgresql://user:${PASSWORD}@host:5432/database``; ``${NAME}`` is taken from the
            environment of the driver.
        table: its name, with its schema before a dot where it is not found without; taken as
            it is written, letter by letter.
        mode: what is done with rows.
        key: columns that rows are replaced or deleted by.
        required: columns that are never null.
        delete_when: of mode ``upsert``: a column of booleans that is not in the table; where it is
            true, the row deletes that of its key.
        keeps: of mode ``upsert``: a row of a key that is there stays.
    """

    url: str
    table: str
    mode: Mode = "insert"
    key: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    delete_when: str | None = None
    keeps: bool = False

    suffix = "copy"

    @property
    def label(self) -> str:
        """The table."""
        return re.sub(r"[^A-Za-z0-9._-]", "-", self.table)

    @property
    def identity(self) -> str:
        """The table, and what is done with rows."""
        by = f" by {', '.join(self.key)}" if self.key else ""
        deletes = f", deleted where {self.delete_when}" if self.delete_when else ""
        return f"PostgreSQL table {self.table} ({self.mode}{by}{deletes})"

    @property
    def promise(self) -> str:
        """What readers can rely on."""
        return (
            f"exactly-once, at {shown_url(self.url)}: the rows of an epoch and its number, in "
            f"table {EPOCHS}, are one transaction"
        )

    @property
    def replaces_by(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    @property
    def tells_rows(self) -> bool:
        """Rows of keys can be read."""
        return self.mode == "upsert"

    def beneath(self) -> PostgresSink:
        """Return the sink as it lets rows that are there stay.

        Raises:
            InvalidInputError: it deletes, always or where a column says so.
        """
        if self.mode == "delete":
            raise InvalidInputError(
                f"{self.identity} takes away rows, and cannot tell which of them came later than "
                "what a run over old data deletes; delete them by SQL"
            )
        if self.delete_when is not None:
            raise InvalidInputError(
                f"{self.identity} cannot tell rows that it never had from those that the live job "
                "deleted, which old data would bring back; bring the rows that it lacks by SQL"
            )
        return replace(self, keeps=self.mode == "upsert")

    def mistakes(self) -> list[str]:
        """Return what cannot be."""
        wrong = []
        if not self.url.startswith(("postgresql://", "postgres://")):
            wrong.append(f"url is {shown_url(self.url)}; expected postgresql://...")
        if not _NAME.fullmatch(self.table):
            wrong.append(f"table is {self.table!r}; expected a name, or schema.name")
        if self.mode not in MODES:
            wrong.append(f"mode is {self.mode!r}; expected one of {MODES}")
        elif (self.mode == "insert") == bool(self.key):
            need = "no key=" if self.mode == "insert" else "key=, the columns to go by"
            wrong.append(f"mode is {self.mode!r} and key is {self.key}; expected {need}")
        if self.delete_when is not None and self.mode != "upsert":
            wrong.append(f"delete_when= is for mode 'upsert'; mode is {self.mode!r}")
        return wrong

    def column_mistakes(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are missing, or that no type of the server is for."""
        wrong = []
        for what, names in {"key": self.key, "required": self.required}.items():
            missing = [name for name in names if name not in schema.names]
            if missing:
                wrong.append(f"{what} names columns {missing}; found {schema.names}")
        if self.delete_when is not None:
            at = schema.get_field_index(self.delete_when)
            if at < 0 or not pa.types.is_boolean(schema.field(at).type):
                wrong.append(
                    f"delete_when is {self.delete_when!r}; expected a column of booleans among "
                    f"{schema.names}"
                )
        if self.mode == "delete" and sorted(schema.names) != sorted(self.key):
            wrong.append(
                f"mode 'delete' takes the columns of its key {list(self.key)} only; found "
                f"{schema.names}: take the others away with map"
            )
        return wrong + [
            f"column {field.name!r} is {field.type}, for which PostgreSQL has no type here; cast "
            "it with map"
            for field in schema
            if not column_types(field.type)
        ]

    def prepare(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Bytes]:
        """Return the rows as the server's COPY takes them."""
        table = pa.Table.from_batches(batches, schema)
        for name in dict.fromkeys((*self.key, *self.required)):
            if table.column(name).null_count:
                at = pc.index(table.column(name).is_null(), True).as_py()
                raise InvalidInputError(
                    f"column {name!r} is null in row {at} of what is sent to table {self.table}, "
                    "where it is part of the key or required; filter such rows, or fill them"
                )
        return encode_rows(table, self.table)

    def open(self, site: SinkSite) -> Receiver:
        """Connect, and make sure that the table can take the rows; it is made when missing."""
        from headrace.sinks.postgres_receiver import PostgresReceiver  # noqa: PLC0415 - needs psycopg

        spec = TableSpec(
            self.table,
            site.schema,
            self.mode,
            self.key,
            self.required,
            self.delete_when,
            self.keeps,
        )
        return PostgresReceiver(real_url(self.url, os.environ), spec, site)


def real_url(url: str, environment: Mapping[str, str]) -> str:
    """Return an address with variables of the environment put in, quoted in its login.

    Raises:
        InvalidInputError: a variable is not set.
    """
    missing = sorted({name for name in _VARIABLE.findall(url) if name not in environment})
    if missing:
        raise InvalidInputError(
            f"the address {shown_url(url)} names variables that are not set here: {missing}; set "
            "them in the environment of the driver"
        )
    login, at, place = url.rpartition("@")
    login = _VARIABLE.sub(lambda found: quote(environment[found[1]], safe=""), login)
    return login + at + _VARIABLE.sub(lambda found: environment[found[1]], place)


def postgres(
    url: str,
    table: str,
    *,
    mode: Mode = "insert",
    key: str | Sequence[str] = (),
    required: str | Sequence[str] = (),
    delete_when: str | None = None,
) -> PostgresSink:
    """Send to a table of PostgreSQL 12 or later, exactly-once.

    The rows of an epoch and its number, in table ``headrace_epochs`` beside it, are one
    transaction. A server that is away is waited for. Needs ``pip install 'headrace[postgres]'``
    where the driver runs.

    Args:
        url: ``postgresql://user:${PASSWORD}@host:5432/database``; ``${NAME}`` is taken from the
            environment of the driver.
        table: made when it does not exist; else its columns must take every value of the rows'.
        mode: ``insert``: a row for each; ``upsert``: the last of each key, in place of what is
            there; ``delete``: the rows of these keys go.
        key: of modes ``upsert`` and ``delete``: columns, with a unique index in the table.
        required: columns that are never null, for those that are NOT NULL in the table.
        delete_when: of mode ``upsert``: a column of booleans that is not in the table; where it is
            true, the row deletes that of its key.
    """

    def names(value: Any) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    return PostgresSink(url, table, mode, names(key), names(required), delete_when)
