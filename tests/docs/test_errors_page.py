"""The page on errors has every code that an error carries."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from rich.console import Console
from tests.support.cli import ALL, show

import headrace
from headrace.errors import GraphError, HeadraceError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "errors.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^### (HR\d+)\n(.*?)(?=^##|\Z)", PAGE))
COMMAND = re.compile(r"headrace ([a-z]+(?: [a-z]+(?:-[a-z]+)*)?)\b")
CODE = re.compile(r'^class (\w+)\(.*?^    code(?:: ClassVar\[str\])? = "(HR\d+)"', re.M | re.S)


def test_every_code_is_listed_with_its_error() -> None:
    found = {
        (code, name)
        for path in (ROOT / "src" / "headrace").rglob("*.py")
        for part in re.split(r"(?m)^(?=class )", path.read_text())
        for name, code in CODE.findall(part)
    }
    listed = set(re.findall(r"^\| \[(HR\d+)\]\(#hr\d+\) \| `(\w+)`", PAGE, re.M))

    assert found - {("HR000", "HeadraceError")} == listed


def kinds(kind: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from kinds(inner)


for found in walk_packages(headrace.__path__, "headrace."):
    if not found.name.endswith(("__main__", ".testing.cluster")):
        import_module(found.name)
KINDS = [kind for kind in kinds() if kind.__module__.startswith("headrace.")]


def test_no_two_errors_share_a_code() -> None:
    own = Counter(kind.code for kind in KINDS if "code" in vars(kind))
    assert [code for code, times in own.items() if times > 1] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_names_the_next_move_where_its_message_does_not(kind: type[HeadraceError]) -> None:
    bare = kind.__new__(kind)
    HeadraceError.__init__(bare, "the wheel is stuck")
    told = kind.__new__(kind)
    HeadraceError.__init__(told, "the wheel is stuck; turn it by hand")

    assert len(bare.advice.split()) > 2
    always = kind is GraphError  # of all its mistakes together, whatever each one says
    assert told.advice == (kind.move if always else "")


OWN = sorted({(kind.code, kind) for kind in KINDS if "code" in vars(kind)}, key=lambda own: own[0])


@pytest.mark.parametrize(("code", "kind"), OWN, ids=[code for code, _ in OWN])
def test_each_code_has_a_section_that_says_what_to_do(code: str, kind: type[HeadraceError]) -> None:
    section = SECTIONS[code]
    what, do, then = section.partition("**Do**")
    assert do
    assert len(what.split()) > 8
    assert "headrace " in then or "with FileBus" in then
    assert "move" in vars(kind)  # its own, not that of the kinds above it


def test_every_command_that_an_error_names_exists() -> None:
    words = {f"{kind.__name__}: {kind.move}" for kind in KINDS} | set(SECTIONS.values())
    named = {found for text in words for found in COMMAND.findall(text)}
    unknown = {name for name in named if name not in ALL and name.split()[0] not in ALL}

    assert unknown == set()
    assert len(named) > 10


@pytest.mark.parametrize(("code", "kind"), OWN, ids=[code for code, _ in OWN])
def test_the_command_prints_code_and_next_move(code: str, kind: type[HeadraceError]) -> None:
    error = kind.__new__(kind)
    HeadraceError.__init__(error, "the wheel is stuck")
    printed = io.StringIO()
    show(error, None, Console(file=printed, width=200))

    assert printed.getvalue() == f"error {code}: the wheel is stuck\nnext: {kind.move}\n"
