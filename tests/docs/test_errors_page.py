"""The page on errors has every code that an error carries."""

from __future__ import annotations

import re
from pathlib import Path

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
