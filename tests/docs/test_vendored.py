"""What the page and its tests have from others is what is written down, and nothing else."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "headrace" / "ui" / "static"
LISTS = [STATIC / "vendor" / "vendored.toml", ROOT / "tests" / "browser" / "vendored.toml"]


@pytest.mark.parametrize("listed", LISTS, ids=lambda one: one.parent.name)
def test_files_have_the_digests_that_are_listed(listed: Path) -> None:
    libraries = tomllib.loads(listed.read_text())["library"]
    for library in libraries:
        assert {"name", "version", "licence", "made", "files"} == set(library)
        for name, digest in library["files"].items():
            assert hashlib.sha256((listed.parent / name).read_bytes()).hexdigest() == digest, name


def test_all_that_is_vendored_is_listed() -> None:
    listed = tomllib.loads(LISTS[0].read_text())["library"]
    names = {name for library in listed for name in library["files"]} | {LISTS[0].name}
    assert names == {path.name for path in LISTS[0].parent.iterdir()}


def test_the_page_loads_nothing_from_elsewhere_and_makes_no_markup_of_data() -> None:
    own = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html")]
    own = [path for path in own if path.parent.name != "vendor"]
    assert len(own) > 30
    for path in own:
        text = path.read_text()
        outside = re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert not outside, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        if path.suffix == ".html":
            assert not re.search(r"style=|\son\w+=|<script>", text), "the policy forbids it"
