"""The page on errors has every code that an error carries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import headrace
from headrace.errors import HeadraceError

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'^class (\w+)\(.*?^    code(?:: ClassVar\[str\])? = "(HR\d+)"', re.M | re.S)


def test_every_code_is_listed_with_its_error() -> None:
    found = {
        (code, name)
        for path in (ROOT / "src" / "headrace").rglob("*.py")
        for part in re.split(r"(?m)^(?=class )", path.read_text())
        for name, code in CODE.findall(part)
    }
    page = (ROOT / "docs" / "guide" / "errors.md").read_text()

    listed = set(re.findall(r"^\| (HR\d+) \| `(\w+)`", page, re.M))

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
    assert told.advice == ""
