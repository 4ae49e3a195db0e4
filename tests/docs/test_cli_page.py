"""The page on the command has every command and every option."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "cli.md").read_text()


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, found in inner.items():
        yield from commands(found, (*words, name))


ALL = list(commands(get_command(app), ("headrace",)))


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_command_and_its_options_are_told(name: str, command: Any) -> None:
    assert f"| `{name}" in PAGE
    section = PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0]
    options = [max(p.opts, key=len) for p in command.params if p.opts[0].startswith("-")]
    common = {"--help", "--home", "--json"}
    assert [option for option in options if option not in common and option not in section] == []
