"""A PostgreSQL table as a sink: rows of an epoch, and its number, in one transaction.

Each transaction of the driver looks first whether a newer driver was noted, under a lock on its
row; so one that freezes, in it or before, changes nothing once the next driver has begun and ended
its connection. psycopg is loaded when the driver connects.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace import extras
from headrace.errors import InvalidInputError, NotOwnerError
from headrace.faults import fault
from headrace.files import Bytes
from headrace.graph.sinks import Prepared, Receiver, ReceiverAwayError, Sink, SinkEpoch, SinkSite
from headrace.redaction import SecretText, unset_variables, with_variables, without_login
from headrace.sinks.postgres_table import (
    EPOCHS,
    ExistingColumn,
    TableSpec,
    column_types,
    encode_rows,
)


def decoded(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Return rows of a table as the driver of the server gives them, as those of a job.

    Args:
        rows: values in the order of the columns.
        schema: of the job's rows.

    Raises:
        ValueError: a value is none of its column's type; so are the errors of Arrow.
        TypeError: the same.
        ArithmeticError: the same, of numbers.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pa.array([_value(value, field.type) for value in values], field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_nested(kind):
        return _of_json(json.loads(value) if isinstance(value, str) else value, kind)
    if pa.types.is_integer(kind):
        return int(value)  # of a column of numerics it is a decimal
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return value.replace(tzinfo=None)  # in the zone of the session, as it was sent
    return value


def _of_json(value: Any, kind: pa.DataType) -> Any:
    """Return a value as it was before it was written as JSON."""
    types = pa.types
    if value is None:
        return None
    shape = dict if types.is_struct(kind) else list
    if types.is_nested(kind) and not isinstance(value, shape):
        raise TypeError(f"found {type(value).__name__} in JSON for {kind}")
    if types.is_struct(kind):
        return {field.name: _of_json(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return [(_of_json(k, kind.key_type), _of_json(v, kind.item_type)) for k, v in value]
    if types.is_nested(kind):
        return [_of_json(one, kind.value_type) for one in value]
    if types.is_timestamp(kind):
        return dt.datetime.fromisoformat(value)
    if types.is_date(kind):
        return dt.date.fromisoformat(value)
    if types.is_binary(kind):
        return b64decode(value)
    if types.is_decimal(kind):
        return Decimal(str(value))
    if types.is_floating(kind):
        return float(value)  # of a number without a fraction it is an integer, however large
    return value


CHUNK = 1 << 20
LOCK_S = 10
"""So long a driver waits for what an older one has locked, whose connection it may not end."""

IDLE_S = 60
"""So long a client may do nothing in a transaction: the server ends that of one that is frozen."""

_LOCK = 0x6865_6164  # two jobs that start at once make the table of epochs one after the other
_REFUSED = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry"
)
_OPTIONS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "headrace",
}
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), attnotnull,
           atthasdef OR attidentity <> '', attgenerated <> '' OR attidentity = 'a'
    FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a
      ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
    GROUP BY i.indexrelid
"""


def _library() -> Any:
    return extras.load("psycopg", "a sink of PostgreSQL")


class PostgresReceiver(Receiver):
    """Connected when it is made, and again after a connection broke.

    Args:
        url: the server, with its password.
        spec: what is sent.
        site: who sends.

    Raises:
        InvalidInputError: the server refuses the login, or the table cannot take the rows.
        ReceiverAwayError: it does not answer.
    """

    def __init__(self, url: str, spec: TableSpec, site: SinkSite) -> None:
        self._url, self._spec, self._site = url, spec, site
        self._psycopg = _library()
        self._connection: Any = None
        self._is_announced = False
        try:
            self._made(self._check)
        except BaseException:
            self.close()
            raise

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(
                self._url, autocommit=True, prepare_threshold=None, **_OPTIONS
            )
            self._connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'")
            self._is_announced = not self._site.generation
        return self._connection

    def _announce(self, connection: Any) -> None:
        """Note which driver sends by this connection, and end that of an older one.

        Raises:
            NotOwnerError: a newer one was noted.
        """
        site, spec = self._site, self._spec
        generation, sent = site.generation, (site.job, site.operator)
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
        connection.execute(spec.ending(), (*sent, site.origin, site.origin, generation))
        driver = (site.job, site.origin, site.operator, generation)
        if not connection.execute(spec.announcement(), driver).rowcount:
            raise self._refused()
        self._is_announced = True

    def _supersede(self, connection: Any) -> None:
        """End the drivers of the job as it was before it was deleted; only who opens does this."""
        site = self._site
        connection.execute(self._spec.superseding(), (site.job, site.operator, site.origin))

    def _check_newest(self, connection: Any) -> None:
        site = self._site
        if not site.generation:
            return
        held = connection.execute(self._spec.newest(), (site.job, site.operator)).fetchall()
        others = {origin: generation for origin, generation in held if generation > 0}
        own = others.pop(site.origin, 0)
        is_missing = site.origin not in {origin for origin, _ in held}
        if own > site.generation or (not own and (others or not is_missing)):
            raise self._refused()
        if own < site.generation or not self._is_announced:  # somebody may have emptied the table
            self._announce(connection)

    def _refused(self) -> NotOwnerError:
        return NotOwnerError.taken_over(
            f"table {self._spec.table}, to which job {self._site.job!r} sends,",
            self._site.generation,
            job=self._site.job,
            operator=self._site.operator,
        )

    def _made(self, step: Any) -> None:
        """Run a step in a transaction; a connection that broke in a pause is made again, once."""
        was_open = self._connection is not None
        try:
            self._run(step)
        except ReceiverAwayError:
            if not was_open:
                raise
            self._run(step)

    def _run(self, step: Any) -> None:
        errors = self._psycopg.errors
        try:
            connection = self._connected()
            if not self._is_announced and step != self._check:
                with connection.transaction():
                    self._check_newest(connection)
            with connection.transaction():
                step(connection)
        except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:
            self.close()
            raise self._away(error) from error
        except errors.InsufficientPrivilege as error:
            raise InvalidInputError(
                f"{self._where} does not let this login do it: {_said(error)}; grant it, and start "
                "the job again",
                operator=self._site.operator,
            ) from error

    @property
    def _where(self) -> str:
        return f"the server at {without_login(self._url)}, for table {self._spec.table},"

    def _away(self, error: Exception) -> InvalidInputError | ReceiverAwayError:
        said = _said(error)
        if getattr(error, "sqlstate", None) is None and _REFUSED.search(said):
            return InvalidInputError(
                f"{self._where} refuses the connection: {said}; check user, password and database, "
                "and give a password as ${NAME} of the driver's environment",
                operator=self._site.operator,
            )
        return ReceiverAwayError(
            f"{self._where} does not answer: {said}; check that it runs and can be reached: what "
            "is committed is sent when it is back",
            operator=self._site.operator,
        )

    def _check(self, connection: Any) -> None:
        spec = self._spec
        encoding = connection.execute("SHOW server_encoding").fetchone()[0]
        if encoding != "UTF8":
            raise InvalidInputError(
                f"the database of {self._where} has encoding {encoding}; expected UTF8"
            )
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(spec.epochs_creation())
        if self._site.generation:
            connection.execute(spec.drivers_creation())
            self._announce(connection)
            self._supersede(connection)
        found = [
            ExistingColumn(*row) for row in connection.execute(_COLUMNS, (spec.name,)).fetchall()
        ]
        if not found:
            connection.execute(spec.creation())
            return
        unique = connection.execute(_UNIQUE, (spec.name,)).fetchall()
        spec.check(found, [frozenset(names) for (names,) in unique])

    def commit(self, epoch: SinkEpoch) -> None:
        """Send an epoch, whole and once.

        1. Look for a newer driver. 2. Note the epoch's number. 3. Copy its rows. 4. Apply them. 5.
        Commit.

        Raises:
            NotOwnerError: there is a newer driver; nothing has changed.
            ReceiverAwayError: the server does not answer, or the connection broke, even in the
                middle of 5: the next call sees by the number whether the epoch is there.
            InvalidInputError: the table refuses the rows; the epoch waits for it to be fixed.
        """

        def send(connection: Any) -> None:
            self._check_newest(connection)
            site = self._site
            who = (site.job, epoch.lineage, site.operator, epoch.epoch)
            if connection.execute(self._spec.claim(), who).rowcount:
                self._send(connection, epoch)
                fault("sink.sent")

        try:
            self._made(send)
        except self._psycopg.Error as error:
            raise InvalidInputError(
                f"table {self._spec.table} refuses epoch {epoch.epoch}: {_said(error)}; the epoch "
                "is committed and waits: put the table in order, and start the job again",
                operator=self._site.operator,
                epoch=epoch.epoch,
            ) from error

    def _send(self, connection: Any, epoch: SinkEpoch) -> None:
        applied = self._spec.application()
        if applied:
            connection.execute(self._spec.staging())
        self._copy(connection, epoch.files)
        for statement in applied:
            connection.execute(statement)

    def _copy(self, connection: Any, files: Sequence[Prepared]) -> None:
        with connection.cursor() as cursor, cursor.copy(self._spec.copy()) as copy:
            for prepared in files:
                with prepared.path.open("rb") as file:
                    while chunk := file.read(CHUNK):
                        copy.write(chunk)

    def held(self, files: Sequence[Prepared]) -> pa.Table:
        """Return the rows of the table that have the keys of prepared ones.

        Raises:
            ReceiverAwayError: the server does not answer, or the connection broke.
            InvalidInputError: a value of the table is none of the type that the job has.
        """
        found: list[tuple[Any, ...]] = []

        def ask(connection: Any) -> None:
            connection.execute(self._spec.staging())
            self._copy(connection, files)
            found[:] = connection.execute(self._spec.held()).fetchall()

        try:
            self._made(ask)
            return decoded(found, self._spec.schema)
        except (self._psycopg.Error, ArithmeticError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"rows of table {self._spec.table} cannot be read as those of the job are: "
                f"{_said(error)}; put them in order, or merge by a job without merge=",
                operator=self._site.operator,
            ) from error

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._psycopg.Error):
                connection.close()


def _said(error: Exception) -> str:
    """What the server said, in one line."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


Mode = Literal["insert", "upsert", "delete"]
MODES = ("insert", "upsert", "delete")
_NAME = re.compile(r"[^\W\d][\w$]{0,62}(\.[^\W\d][\w$]{0,62})?")


@dataclass(frozen=True)
class PostgresSink(Sink):
    """A table that takes each committed epoch; made by ``postgres``.

    Args:
        url: ``postgresql://user:${PASSWORD}@host:5432/database``; ``${NAME}`` is taken from the
            environment of the driver.
        table: its name, if needed with its schema and a dot before it; case-sensitive.
        mode: the effect of rows.
        key: columns that identify rows to replace or delete.
        required: columns that are never null.
        delete_when: for mode ``upsert``: a boolean column that is not in the table; if it is true,
            the row deletes the row of its key.
        keeps: for mode ``upsert``: an existing row of a key stays.
    """

    url: str
    table: str
    mode: Mode = "insert"
    key: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    delete_when: str | None = None
    keeps: bool = False

    suffix = "copy"

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
        by = f" by {', '.join(self.key)}" if self.key else ""
        deletes = f", deleted where {self.delete_when}" if self.delete_when else ""
        return f"PostgreSQL table {self.table} ({self.mode}{by}{deletes})"

    @property
    def promise(self) -> str:
        """The guarantee for readers."""
        return (
            f"exactly-once, at {without_login(self.url)}: the rows of an epoch and its number, in "
            f"table {EPOCHS}, are one transaction"
        )

    @property
    def replaces_by(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    @property
    def reports_rows(self) -> bool:
        """Rows of keys can be read."""
        return self.mode == "upsert"

    def beneath(self) -> PostgresSink:
        """Return the sink that keeps existing rows.

        Raises:
            InvalidInputError: it deletes rows, always or by a column.
        """
        if self.mode == "delete":
            raise InvalidInputError(
                f"{self.identity} removes rows, and does not know which of them came later than "
                "what a run over old data deletes; delete them by SQL"
            )
        if self.delete_when is not None:
            raise InvalidInputError(
                f"{self.identity} cannot distinguish rows that it never had from those that "
                "the live job deleted, which old data would bring back; bring the rows that it "
                "lacks by SQL"
            )
        return replace(self, keeps=self.mode == "upsert")

    def mistakes(self) -> list[str]:
        """Return the mistakes."""
        wrong = []
        if not self.url.startswith(("postgresql://", "postgres://")):
            wrong.append(f"url is {without_login(self.url)}; expected postgresql://...")
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
        """Return the mistakes: missing columns, and columns that no type of the server can hold."""
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
        """Return the rows in the format of the server's COPY."""
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
        """Connect, and check that the table can take the rows; create it if needed."""
        spec = TableSpec(
            self.table,
            site.schema,
            self.mode,
            self.key,
            self.required,
            self.delete_when,
            self.keeps,
        )
        return PostgresReceiver(resolved_url(self.url, os.environ), spec, site)


def resolved_url(url: str, environment: Mapping[str, str]) -> str:
    """Return an address with variables of the environment put in, quoted in its login.

    Raises:
        InvalidInputError: a variable is not set.
    """
    if missing := unset_variables(url, environment):
        raise InvalidInputError(
            f"the address {without_login(url)} names variables that are not set here: {missing}; "
            "set them in the environment of the driver"
        )
    return with_variables(url, environment)


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

    The rows of an epoch and its number, in the table ``headrace_epochs`` next to it, are one
    transaction. The job waits for a server that does not answer. Needs
    ``pip install "headrace[postgres]"`` where the driver runs.

    Args:
        url: ``postgresql://user:${PASSWORD}@host:5432/database``; ``${NAME}`` is taken from the
            environment of the driver.
        table: created if it does not exist; otherwise its columns must be able to hold all values.
        mode: ``insert``: add each row; ``upsert``: replace the row of each key by the last one;
            ``delete``: delete the rows of these keys.
        key: for modes ``upsert`` and ``delete``: columns with a unique index in the table.
        required: columns that are never null, for those that are NOT NULL in the table.
        delete_when: for mode ``upsert``: a boolean column that is not in the table; if it is true,
            the row deletes the row of its key.
    """

    def names(value: Any) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    return PostgresSink(url, table, mode, names(key), names(required), delete_when)
