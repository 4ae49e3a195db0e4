"""Commands that pages show are run in a home made for the page, and print what is shown."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.homes import make_mistake, make_orders, make_payments, make_shop
from tests.docs.pages import GUIDE, Command, all_blocks, blocks, commands
from tests.docs.shapes import is_shown
from tests.support.cli import headrace

HOMES: dict[str, Callable[[Path], None]] = {
    "state.md": make_shop,
    "dead-letters.md": make_payments,
    "errors.md": make_mistake,
    "schema-evolution.md": make_orders,
}
ON_SPARK = {"ten-minutes.md"}
"""Has a test of its own."""


@pytest.mark.parametrize("page", HOMES)
def test_commands_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HOMES[page](tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "jobs", None)
    monkeypatch.delitem(sys.modules, "jobs")
    tried: list[Command] = []
    for block in blocks(GUIDE / page, "console"):
        for words, shown in commands(block):
            program, *arguments = shlex.split(words)
            assert program == "headrace"
            ran = headrace(*arguments)
            if shown.startswith("error "):
                assert (ran.code, ran.out) == (1, ""), words
                assert is_shown(ran.err, shown), f"{words}\n{ran.err}"
            else:
                assert (ran.code, ran.err) == (0, ""), words
                assert not shown or is_shown(ran.out, shown), f"{words}\n{ran.out}"
            tried.append(Command(words, shown))
    assert tried


def test_every_page_with_a_console_has_a_home() -> None:
    pages = {block.page.name for block in all_blocks("console")}
    assert pages == {*HOMES, *ON_SPARK}
