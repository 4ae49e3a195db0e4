"""The page on the command line has every command, as its help describes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import ALL

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "cli.md").read_text()


def test_the_page_is_as_it_would_be_written() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "commands.py", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "command"), ALL.items(), ids=ALL)
def test_a_section_has_help_options_and_an_example(name: str, command: Any) -> None:
    assert f"| [`headrace {name}`](#headrace-{name.replace(' ', '-')}) |" in PAGE
    section = PAGE.partition(f"## headrace {name}\n")[2].partition("\n## ")[0]
    assert command.help.partition("\n\n")[0] in section
    options = [max(p.opts, key=len) for p in command.params if p.opts[0].startswith("-")]
    common = {"--help", "--home", "--json"}
    assert [option for option in options if option not in common and option not in section] == []
    shown = [p for p in command.params if p.show_default and p.default not in (None, False)]
    assert [p.name for p in shown if f"Default: {p.default}." not in section.replace(",", "")] == []
    assert f"```sh\nheadrace {name}" in section
