"""An app run over files, and what it makes compared with files: ``headrace sql test``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from headrace.cli.state import json_row
from headrace.errors import InvalidInputError
from headrace.sql.app import SqlApp
from headrace.testing import TestDriver

INPUT, EXPECTED, ENDING = "input", "expected", ".jsonl"
_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """How a table differs from what is expected: rows as JSON, each as often as it is too few.

    ``rows`` is how many were found; ``is_written`` says that they are expected from now on.
    """

    table: str
    rows: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    is_written: bool = False

    @property
    def is_wrong(self) -> bool:
        """Say whether any row differs."""
        return bool(self.missing or self.unexpected)

    def __str__(self) -> str:
        """Return what differs, some rows a side."""
        if self.is_written:
            return f"{self.rows} rows written"
        if not self.is_wrong:
            return f"{self.rows} rows as expected"
        head = f"{len(self.missing)} rows are missing, {len(self.unexpected)} are not expected"
        return "\n".join([head, *_listed("-", self.missing), *_listed("+", self.unexpected)])


def _listed(sign: str, rows: tuple[str, ...]) -> Iterator[str]:
    yield from (f"  {sign} {row}" for row in rows[:_SHOWN])
    if len(rows) > _SHOWN:
        yield f"  {sign} ... {len(rows) - _SHOWN} more"


def run_trial(app: SqlApp, folder: Path, *, update: bool = False) -> list[Difference]:
    """Run an app to the end of the rows in ``input/``, and compare with ``expected/``.

    Columns that the first expected row of a table leaves out are not compared.

    Args:
        app: to run.
        folder: has both folders.
        update: write what was found as what is expected.

    Raises:
        InvalidInputError: a file is missing, or is no JSON of rows that fit.
    """
    given = {one.name.text: one for one in app.statements.inputs}
    files = {name: folder / INPUT / f"{name}{ENDING}" for name in given}
    for name, file in files.items():
        if not file.is_file():
            raise InvalidInputError(
                f"no file {file}; it has the rows of input table {name!r}, an object a line"
            )
    with TestDriver(app.job) as driver:
        for name, table in given.items():
            rows = _read(files[name], app.schemas.get(name))
            time = None if table.time is None else table.time.text
            driver.create(table.stream.text, rows.schema, time=time)
            driver.feed(table.stream.text, rows)
        driver.finish()
        found = {name: driver.output(stream) for name, stream in app.tables.items()}
    return [_compared(name, rows, folder, update=update) for name, rows in found.items()]


def _read(file: Path, schema: pa.Schema | None) -> pa.Table:
    options = arrow_json.ParseOptions(explicit_schema=schema)
    try:
        return arrow_json.read_json(file, parse_options=options)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{file} has no rows that fit, one JSON object a line: {error}", file=str(file)
        ) from error


def _compared(table: str, rows: list[dict[str, Any]], folder: Path, *, update: bool) -> Difference:
    file = folder / EXPECTED / f"{table}{ENDING}"
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in sorted(map(json_row, rows))))
        return Difference(table, len(rows), is_written=True)
    if not file.is_file():
        raise InvalidInputError(
            f"no file {file} with the expected rows of {table!r}; --update writes what is found"
        )
    expected = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            expected.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InvalidInputError(f"{file}:{number} is no JSON: {error}") from error
    columns = set(expected[0]) if expected else set(rows[0] if rows else ())
    wanted, there = (_counted(some, columns) for some in (expected, map(_plain, rows)))
    return Difference(
        table,
        len(rows),
        tuple(sorted((wanted - there).elements())),
        tuple(sorted((there - wanted).elements())),
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json_row(row))
    return plain


def _counted(rows: Iterable[Mapping[str, Any]], columns: set[str]) -> Counter[str]:
    return Counter(
        json.dumps({name: row[name] for name in sorted(row) if name in columns}) for row in rows
    )
