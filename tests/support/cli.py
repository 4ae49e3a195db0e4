"""Runs commands in this process, as a shell would see them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli import environment as health
from headrace.cli.arguments import add_columns, parse_columns
from headrace.cli.failures import exit_code, record, show
from headrace.cli.init import write_project
from headrace.cli.job_loader import load_job
from headrace.cli.main import app
from headrace.cli.options import RENAMED, stream_names
from headrace.cli.run.backfill import range_sets, rate_sets
from headrace.warehouse.commands import on_duckdb, on_spark

__all__ = [
    "ALL",
    "COMMAND",
    "RENAMED",
    "Ran",
    "add_columns",
    "app",
    "commands",
    "done",
    "exit_code",
    "headrace",
    "health",
    "load_job",
    "on_duckdb",
    "on_spark",
    "parse_columns",
    "range_sets",
    "rate_sets",
    "record",
    "refused",
    "show",
    "stream_names",
    "write_project",
]

COMMAND = get_command(app)
"""Made once: to make it takes ten times as long as most commands do."""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def headrace(*words: object, stdin: str | bytes = "") -> Ran:
    with CliRunner().isolation(input=stdin) as (out, err, _):
        code: Any = 0
        try:
            COMMAND.main(args=[str(word) for word in words], prog_name="headrace")
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush()
        sys.stderr.flush()
        return Ran(code or 0, out.getvalue().decode(), err.getvalue().decode())


def done(*words: object, stdin: str | bytes = "") -> str:
    """Run a command that must succeed; return what it prints."""
    ran = headrace(*words, stdin=stdin)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def refused(*words: object, code: int = 1, stdin: str | bytes = "") -> str:
    """Run a command that must fail with a message alone; return the message."""
    ran = headrace(*words, stdin=stdin)
    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err
    return ran.err


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield " ".join(words), command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), (*words, name))


ALL = dict(commands(COMMAND))
"""Every command by its words."""
