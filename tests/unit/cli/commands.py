"""Runs commands in this process, as a shell would see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli.main import app


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def headrace(*words: object, stdin: str | bytes = "") -> Ran:
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    return Ran(result.exit_code, result.stdout, result.stderr)


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
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, found in inner.items():
        yield from commands(found, (*words, name))


ALL = dict(commands(get_command(app)))
"""Every command by its words."""
