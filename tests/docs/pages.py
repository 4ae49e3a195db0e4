"""The pages of the documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts),
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block: the page, the line of its fence, its language, what it holds."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """How a test calls it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class Command(NamedTuple):
    """A command of a ``sh`` or ``console`` block, and what the page shows of its output."""

    words: str
    shown: str


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page, of some languages or of all."""
    text = page.read_text(encoding="utf-8")
    found = (
        Block(page, text[: match.start()].count("\n") + 1, match[1], match[2])
        for match in _BLOCK.finditer(text)
    )
    return [block for block in found if not languages or block.language in languages]


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages, of some languages or of all."""
    return [block for page in PAGES for block in blocks(page, *languages)]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a ``sh`` block, a line each, or of a ``console`` block."""
    if block.language == "sh":
        for line in block.text.splitlines():
            if line.strip() and not line.startswith("#"):
                yield Command(line.strip(), "")
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        words, _, shown = part.partition("\n")
        yield Command(words, shown)
