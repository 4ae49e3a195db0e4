"""The page on the command has every command and every option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.commands import ALL

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "cli.md").read_text()


@pytest.mark.parametrize(("name", "command"), ALL.items(), ids=ALL)
def test_a_command_and_its_options_are_told(name: str, command: Any) -> None:
    assert f"| `headrace {name}" in PAGE
    section = PAGE.partition(f"## headrace {name}\n")[2].partition("\n## ")[0]
    options = [max(p.opts, key=len) for p in command.params if p.opts[0].startswith("-")]
    common = {"--help", "--home", "--json"}
    assert [option for option in options if option not in common and option not in section] == []
