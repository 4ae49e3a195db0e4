"""Tables, facts and texts on terminals of any width, and in pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli import output
from headrace.cli.output import show_table, show_wrapped

TITLES = ("stream", "rows", "last event", "key")
ROWS = [
    ("orders", "1,234,567", "2026-01-01 00:09:59", "customer"),
    ("a[b]c", "7", "-", "-"),
]


def table(width: int, spare: tuple[str, ...] = ()) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    show_table(TITLES, ROWS, right=("rows",), spare=spare, console=console)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_that_fits_is_a_table() -> None:
    assert table(60) == [
        "stream       rows  last event           key",
        "orders  1,234,567  2026-01-01 00:09:59  customer",
        "a[b]c           7  -                    -",
    ]


def test_columns_that_can_be_spared_are_left_out() -> None:
    assert table(40, spare=("key", "last event"))[1] == "orders  1,234,567  2026-01-01 00:09:59"
    assert table(30, spare=("key", "last event"))[1] == "orders  1,234,567"


def test_where_that_is_not_enough_a_row_is_a_block() -> None:
    assert table(36, spare=("stream",))[:6] == [
        "stream      orders",
        "rows        1,234,567",
        "last event  2026-01-01 00:09:59",
        "key         customer",
        "",
        "stream      a[b]c",
    ]


def test_a_pipe_has_no_edge(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(TITLES, [("x" * 300, *ROWS[0][1:]), ROWS[1]], right=("rows",))

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("x" * 300 + "  1,234,567  ")
    assert lines[2].split() == ["a[b]c", "7", "-", "-"]
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_text_goes_on_below_its_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_wrapped("now: ", "one two three [four] five")
    assert capsys.readouterr().out == "now: one two three [four] five\n"

    def narrow() -> Console:
        return Console(force_terminal=True, width=24, color_system=None, highlight=False)

    monkeypatch.setattr(output, "Output", narrow)
    show_wrapped("now: ", "one two three [four] five")
    assert capsys.readouterr().out == "now: one two three\n     [four] five\n"
