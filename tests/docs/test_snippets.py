"""Every Python block of the README and the guide runs, with the assertions in it."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(
        page, match[1], page.read_text()[: match.start()].count("\n") + 1, id=f"{page.name}-{n}"
    )
    for page in PAGES
    for n, match in enumerate(BLOCK.finditer(page.read_text()), 1)
]


@pytest.mark.parametrize(("page", "code", "line"), BLOCKS)
def test_a_block_of_the_docs_runs(
    page: Path, code: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader copies works as it stands."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("snippet")
    exec(compile("\n" * line + code, str(page), "exec"), module.__dict__)


def test_there_are_blocks() -> None:
    """The pattern finds the blocks of the pages."""
    assert len(BLOCKS) >= 4
