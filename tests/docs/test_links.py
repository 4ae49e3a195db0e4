"""Links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that headings make, as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


def is_there(page: Path, link: str) -> bool:
    """Say whether a link of a page leads to a file, and to a heading in it."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not is_there(page, link)] == []


def test_the_guide_names_all_of_its_pages() -> None:
    for index in (ROOT / "docs/guide/README.md", ROOT / "docs/guide/concepts/README.md"):
        named = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
        pages = {page.resolve() for page in index.parent.glob("*.md")} - {index.resolve()}
        assert sorted(page.name for page in pages - named) == []
