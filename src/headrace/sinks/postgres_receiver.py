"""The driver's connection to PostgreSQL: one transaction for each epoch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.graph.remote import shown_url
from headrace.graph.sinks import Prepared, Receiver, ReceiverAwayError, SinkEpoch, SinkSite
from headrace.sinks.postgres_table import Found, TableSpec
from headrace.sinks.postgres_values import decoded

CHUNK = 1 << 20
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
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise InvalidInputError(
            "sinks of PostgreSQL need psycopg, which is not installed here; install it where the "
            "driver runs with: pip install 'headrace[postgres]'"
        ) from error


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
        return self._connection

    def _made(self, step: Any) -> None:
        """Run a step in a transaction; a connection that broke in a pause is made anew, once."""
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
        return f"the server at {shown_url(self._url)}, for table {self._spec.table},"

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
        found = [Found(*row) for row in connection.execute(_COLUMNS, (spec.name,)).fetchall()]
        if not found:
            connection.execute(spec.creation())
            return
        unique = connection.execute(_UNIQUE, (spec.name,)).fetchall()
        spec.check(found, [frozenset(names) for (names,) in unique])

    def commit(self, epoch: SinkEpoch) -> None:
        """Send an epoch: 1. note its number; 2. copy its rows; 3. apply them; 4. commit.

        Raises:
            ReceiverAwayError: the server does not answer, or the connection broke, even in the
                middle of 4: the next call sees by the number whether the epoch is there.
            InvalidInputError: the table refuses the rows; the epoch waits for it to be mended.
        """

        def send(connection: Any) -> None:
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
