"""Rows in a terminal: a table where it fits, else a line a row."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
from rich.console import Console

from headrace.bus.spec import StreamSpec
from headrace.cli.bus.tail import TableRows, TailedRow, cell

SPEC = StreamSpec("s", 1, pa.schema([("id", pa.int64()), ("note", pa.string())]))


def printed(*rows: TailedRow) -> list[str]:
    console = Console(file=io.StringIO(), width=40, highlight=False)
    TableRows(SPEC, console).show(rows)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_rows_are_a_table() -> None:
    """Values are shown as they are, also where they look like markup."""
    rows = [
        TailedRow(0, 7, None, {"id": 1, "note": "[red]"}),
        TailedRow(1, 12, None, {"id": 22, "note": "b"}),
    ]

    assert printed(*rows) == ["at    id  note", "0/7    1  [red]", "1/12  22  b"]
    assert printed() == []


def test_rows_that_do_not_fit_are_lines() -> None:
    assert printed(TailedRow(0, 7, None, {"id": 1, "note": "x" * 40}))[0] == "0/7  id=1"


def test_values_read_well() -> None:
    noon = datetime(2013, 1, 31, 12, tzinfo=UTC)
    values = [
        None, True, 1.5, 1e20, b"\x00\x01", date(2013, 1, 31), noon,
        noon + timedelta(milliseconds=5), Decimal("1.50"), [1, None], {"a": 1},
    ]  # fmt: skip

    assert [cell(value, "note", SPEC) for value in values] == [
        "-", "true", "1.5", "1e+20", "AAE=", "2013-01-31", "2013-01-31 12:00:00",
        "2013-01-31 12:00:00.005", "1.50", "[1,null]", '{"a":1}',
    ]  # fmt: skip


def test_integer_event_times_are_times() -> None:
    spec = StreamSpec("s", 1, pa.schema([("at", pa.int64())]), "at")

    assert cell(1_357_041_600_000, "at", spec) == "2013-01-01 12:00:00"
