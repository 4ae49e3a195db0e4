"""A PostgreSQL table as a sink needs it: column types, rows as COPY reads them, statements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import InvalidInputError
from headrace.files import Bytes

_YEAR_1_S, _YEAR_10000_S = -62_135_596_800, 253_402_300_800
_DAY_S = 86_400
_INTEGERS = ("smallint", "integer", "bigint", "numeric")


def column_types(kind: pa.DataType) -> tuple[str, ...]:
    """Return the server's types that hold every value of a type, the first is for new tables.

    A decimal's has its digits; empty: there is none.
    """
    types = pa.types
    if types.is_integer(kind):
        bits = kind.bit_width + (1 if types.is_unsigned_integer(kind) else 0)
        return _INTEGERS[0 if bits <= 16 else 1 if bits <= 32 else 2 if bits <= 64 else 3 :]
    if types.is_decimal(kind):
        return (f"numeric({kind.precision},{kind.scale})", "numeric")
    if types.is_nested(kind):
        return ("jsonb", "json", "text")
    for test, names in (
        (types.is_float32, ("real", "double precision")),
        (types.is_float64, ("double precision",)),
        (types.is_boolean, ("boolean",)),
        (types.is_string, ("text", "character varying")),
        (types.is_binary, ("bytea",)),
        (types.is_timestamp, ("timestamp with time zone",)),
        (types.is_date32, ("date",)),
    ):
        if test(kind):
            return names
    return ()


def encode_rows(table: pa.Table, name: str) -> list[Bytes]:
    """Return rows in COPY's form ``csv``, columns in their order.

    Args:
        table: of types that ``column_types`` knows.
        name: of the server's table, for errors.

    Raises:
        InvalidInputError: a value that the server would refuse.
    """
    columns = [
        _plain(table.column(at), table.schema.field(at), name) for at in range(len(table.schema))
    ]
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False)
    csv.write_csv(pa.table(columns, names=table.schema.names), sink, options)
    return [sink.getvalue()]


def _plain(column: pa.ChunkedArray, field: pa.Field, name: str) -> pa.ChunkedArray:
    kind = field.type
    if pa.types.is_nested(kind):
        column = pa.chunked_array([_json(column)])
        _refuse(pc.match_substring(column, "\\u0000"), field, name, "holds the character NUL")
    elif pa.types.is_string(kind):
        _refuse(pc.match_substring(column, "\0"), field, name, "holds the character NUL")
    elif pa.types.is_binary(kind):
        column = _hex(column)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        each = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
        unit = each[kind.unit] if pa.types.is_timestamp(kind) else 1 / _DAY_S
        whole = column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
        outside = pc.or_(
            pc.less(whole, int(_YEAR_1_S * unit)),
            pc.greater_equal(whole, int(_YEAR_10000_S * unit)),
        )
        _refuse(outside, field, name, "is outside the years 1 to 9999")
    return column


def _refuse(wrong: pa.ChunkedArray, field: pa.Field, name: str, what: str) -> None:
    if pc.any(wrong).as_py():
        at = pc.index(wrong, True).as_py()
        raise InvalidInputError(
            f"column {field.name!r} of row {at} of what is sent to table {name} {what}, which "
            "PostgreSQL cannot keep; filter such rows, or change them"
        )


def _json(column: pa.ChunkedArray) -> pa.Array:
    def text(value: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    return pa.array([text(value) for value in column.to_pylist()], pa.string())


def _hex(column: pa.ChunkedArray) -> pa.ChunkedArray:
    values = pl.from_arrow(column)
    assert isinstance(values, pl.Series)
    return pa.chunked_array([("\\x" + values.bin.encode("hex")).to_arrow().cast(pa.string())])


EPOCHS, DRIVERS = "headrace_epochs", "headrace_drivers"
ORDER = "headrace_order"
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


class ExistingColumn(NamedTuple):
    """A column of a table that exists."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    is_generated: bool


@dataclass(frozen=True)
class TableSpec:
    """What is sent to which table, and how."""

    table: str
    schema: pa.Schema
    mode: str
    key: tuple[str, ...]
    required: tuple[str, ...]
    delete_when: str | None
    keeps: bool = False

    @property
    def kept(self) -> list[pa.Field]:
        """The columns that are in the table."""
        return [field for field in self.schema if field.name != self.delete_when]

    @property
    def name(self) -> str:
        """The table, quoted."""
        return ".".join(quoted(part) for part in self.table.split("."))

    @property
    def epochs(self) -> str:
        """The table of epochs, in the same schema."""
        return self._beside(EPOCHS)

    @property
    def drivers(self) -> str:
        """The table of drivers, in the same schema."""
        return self._beside(DRIVERS)

    def _beside(self, name: str) -> str:
        schema, dot, _ = self.table.rpartition(".")
        return f"{quoted(schema)}.{name}" if dot else name

    def creation(self) -> str:
        """Return the statement that makes the table."""
        never_null = {*self.key, *self.required}
        columns = [
            f"{quoted(field.name)} {column_types(field.type)[0]}"
            + (" NOT NULL" if field.name in never_null else "")
            for field in self.kept
        ]
        if self.key:
            columns.append(f"PRIMARY KEY ({self._listed(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(columns)})"

    def epochs_creation(self) -> str:
        """Return the statement that makes the table of epochs."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.epochs} (job text, lineage text, operator text, "
            "epoch bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (job, lineage, operator))"
        )

    def drivers_creation(self) -> str:
        """Return the statement that makes the table of drivers."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.drivers} (job text, origin text, operator text, "
            "generation bigint NOT NULL, backend integer NOT NULL, started timestamptz NOT NULL, "
            "PRIMARY KEY (job, origin, operator))"
        )

    def ending(self) -> str:
        """Return the statement that ends the connection of an older driver, and what it has open.

        One that is frozen in its transaction would hold up the next driver at the locks of that.
        That of another user may not be ended; its next transaction is refused all the same.
        Parameters are job, operator, origin, origin and generation.
        """
        return (
            "SELECT pg_terminate_backend(seen.pid) FROM pg_stat_activity AS seen "
            f"JOIN {self.drivers} AS held ON seen.pid = held.backend "
            "AND seen.backend_start = held.started WHERE held.job = %s AND held.operator = %s "
            "AND (held.origin <> %s AND held.generation > 0 "
            "OR held.origin = %s AND held.generation < %s) "
            "AND seen.pid <> pg_backend_pid() AND seen.usename = current_user"
        )

    def superseding(self) -> str:
        """Return the statement that ends what drivers of other origins may send.

        Their generations are kept, below zero: drivers of that origin still count by them.
        Parameters are job, operator and origin.
        """
        return (
            f"UPDATE {self.drivers} SET generation = -generation "
            "WHERE job = %s AND operator = %s AND origin <> %s AND generation > 0"
        )

    def announcement(self) -> str:
        """Return the statement that notes a driver, and changes no row if a newer one is noted."""
        return (
            f"INSERT INTO {self.drivers} AS held "
            "SELECT %s, %s, %s, %s, pid, backend_start FROM pg_stat_activity "
            "WHERE pid = pg_backend_pid() ON CONFLICT (job, origin, operator) DO UPDATE "
            "SET generation = excluded.generation, backend = excluded.backend, "
            "started = excluded.started WHERE abs(held.generation) <= excluded.generation"
        )

    def newest(self) -> str:
        """Return the query for the newest driver of each origin; it holds up the next ones.

        Parameters are job and operator.
        """
        return (
            f"SELECT origin, generation FROM {self.drivers} "
            "WHERE job = %s AND operator = %s FOR SHARE"
        )

    def claim(self) -> str:
        """Return the statement that notes an epoch, and changes no row if it is there already."""
        return (
            f"INSERT INTO {self.epochs} AS held (job, lineage, operator, epoch) "
            "VALUES (%s, %s, %s, %s) ON CONFLICT (job, lineage, operator) DO UPDATE "
            "SET epoch = excluded.epoch, committed_at = now() WHERE held.epoch < excluded.epoch"
        )

    def check(self, found: list[ExistingColumn], unique: list[frozenset[str]]) -> None:
        """Make sure that a table that exists can take every row.

        Args:
            found: its columns.
            unique: the columns of each unique index.

        Raises:
            InvalidInputError: all that is wrong with it, with what was found and expected.
        """
        known = {column.name: column for column in found}
        wrong = []
        for field in self.kept:
            column = known.pop(field.name, None)
            wrong += self._column_mistakes(field, column)
        for column in known.values():
            if column.not_null and not column.has_default and self.mode != "delete":
                wrong.append(f"column {column.name!r} is NOT NULL without a default, and not sent")
        if self.mode == "upsert" and frozenset(self.key) not in unique:
            listed = self._listed(self.key)
            wrong.append(
                f"no unique index on just ({listed}); make one: CREATE UNIQUE INDEX ON "
                f"{self.name} ({listed})"
            )
        if wrong:
            lines = "\n".join(f"  {number}. {text}" for number, text in enumerate(wrong, 1))
            raise InvalidInputError(f"table {self.table} cannot take the rows:\n{lines}")

    def _column_mistakes(self, field: pa.Field, column: ExistingColumn | None) -> list[str]:
        expected = column_types(field.type)
        if column is None:
            return [f"column {field.name!r} is missing; expected {expected[0]}"]
        if column.is_generated:
            return [f"column {field.name!r} is generated by the server; take it away with map"]
        wrong = []
        if column.type not in expected and not _is_wider(column.type, field.type):
            options = " or ".join(expected)
            wrong.append(f"column {field.name!r} is {column.type}; expected {options}")
        if column.not_null and field.name not in {*self.key, *self.required}:
            wrong.append(
                f"column {field.name!r} is NOT NULL; name it in required=, so that a null is "
                "refused before the epoch is committed"
            )
        return wrong

    def staging(self) -> str:
        """Return the statement that makes a place for the rows of one transaction."""
        columns = [f"{quoted(f.name)} {column_types(f.type)[0]}" for f in self.schema]
        order = f"{ORDER} bigint GENERATED ALWAYS AS IDENTITY"
        columns.append(order)
        return f"CREATE TEMP TABLE {self._stage} ({', '.join(columns)}) ON COMMIT DROP"

    @property
    def _stage(self) -> str:
        return "headrace_rows"

    def copy(self) -> str:
        """Return the statement that takes prepared rows: the table at once, or the staging."""
        target = self.name if self.mode == "insert" else self._stage
        return f"COPY {target} ({self._listed(self.schema.names)}) FROM STDIN (FORMAT csv)"

    def held(self) -> str:
        """Return the query for the rows of the keys that are staged."""
        same = " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in self.key)
        columns = ", ".join(f"t.{quoted(name)}" for name in self.schema.names)
        keys = f"SELECT DISTINCT {self._listed(self.key)} FROM {self._stage}"
        return f"SELECT {columns} FROM {self.name} AS t JOIN ({keys}) AS s ON {same}"

    def application(self) -> list[str]:
        """Return the statements that bring staged rows into the table; the last of a key wins."""
        if self.mode == "insert":
            return []
        stage, key = self._stage, self._listed(self.key)
        same = " AND ".join(f"t.{quoted(k)} = s.{quoted(k)}" for k in self.key)
        deletion = f"DELETE FROM {self.name} AS t USING {stage} AS s WHERE {same}"
        if self.mode == "delete":
            return [deletion]
        last = f"SELECT DISTINCT ON ({key}) * FROM {stage} ORDER BY {key}, {ORDER} DESC"
        statements, source = [], f"({last}) AS s"
        if self.delete_when is not None:
            gone = quoted(self.delete_when)
            statements.append(
                f"DELETE FROM {self.name} AS t USING {source} WHERE {same} AND s.{gone}"
            )
            source = f"{source} WHERE s.{gone} IS NOT TRUE"
        names = [field.name for field in self.kept]
        values = [quoted(name) for name in names if name not in self.key]
        sets = ", ".join(f"{name} = excluded.{name}" for name in values)
        then = f"UPDATE SET {sets}" if values and not self.keeps else "NOTHING"
        statements.append(
            f"INSERT INTO {self.name} ({self._listed(names)}) SELECT {self._listed(names)} FROM "
            f"{source} ON CONFLICT ({key}) DO {then}"
        )
        return statements

    @staticmethod
    def _listed(names: Any) -> str:
        return ", ".join(quoted(name) for name in names)


def _is_wider(found: str, kind: pa.DataType) -> bool:
    """Say whether a number of so many digits holds a decimal."""
    digits = _NUMERIC.fullmatch(found)
    if digits is None or not pa.types.is_decimal(kind):
        return False
    precision, scale = int(digits[1]), int(digits[2])
    return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)


def quoted(name: str) -> str:
    """Return a name as SQL takes it, letter by letter."""
    return '"' + name.replace('"', '""') + '"'
