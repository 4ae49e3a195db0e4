"""Fragments become release notes: each has a known kind, and the notes have all of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_links import LINK, is_there

KINDS = {"added": "Added", "changed": "Changed", "removed": "Removed", "fixed": "Fixed"}
FRAGMENTS = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]


def notes(*words: object) -> subprocess.CompletedProcess[str]:
    tool = ROOT / "tools" / "notes.py"
    return subprocess.run(
        [sys.executable, tool, *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with two fragments, and the notes of one release."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "CHANGELOG.md").open("a") as changelog:
        changelog.write("\n## [0.0.1] - 2020-01-01\n\n### Added\n\n- The beginning.\n")
    (tmp_path / "changes").mkdir()
    shutil.copy(ROOT / "changes" / "README.md", tmp_path / "changes")
    (tmp_path / "changes" / "faster.md").write_text("changed\nIt is\nfaster.\n")
    (tmp_path / "changes" / "wheels.md").write_text("added\nWheels.\n")
    return tmp_path


def test_the_notes_have_every_fragment_under_its_kind() -> None:
    done = notes()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("## [NEXT] - ")
    sections = dict(
        part.split("\n", 1) for part in done.stdout.partition("\n### ")[2].split("\n### ")
    )
    for path in FRAGMENTS:
        kind, text = path.read_text().split("\n", 1)
        assert kind in KINDS, f"{path.name} has no known kind in its first line"
        assert f"- {' '.join(text.split())}\n" in f"{sections[KINDS[kind]]}\n", path.name
    links = [link for link in LINK.findall(done.stdout) if "://" not in link]
    assert [link for link in links if not is_there(ROOT / "CHANGELOG.md", link)] == []


def test_a_release_moves_the_fragments_above_the_last_one(tree: Path) -> None:
    assert notes("0.0.2", "--root", tree).returncode == 0
    written = (tree / "CHANGELOG.md").read_text()
    newest, last = written.index("## [0.0.2]"), written.index("## [0.0.1]")
    assert written.index("<!-- release notes -->") < newest < last
    assert "### Added\n\n- Wheels.\n\n### Changed\n\n- It is faster.\n" in written[newest:last]
    assert [path.name for path in (tree / "changes").iterdir()] == ["README.md"]


def test_a_draft_changes_nothing(tree: Path) -> None:
    before = (tree / "CHANGELOG.md").read_text()
    draft = notes("--root", tree).stdout
    assert "Wheels." in draft
    assert "The beginning." not in draft
    assert (tree / "CHANGELOG.md").read_text() == before
    assert len(list((tree / "changes").iterdir())) == 3


@pytest.mark.parametrize("text", ["improved\nIt is.\n", "fixed\n", "It is better.\n"])
def test_a_fragment_without_a_kind_or_text_is_named(tree: Path, text: str) -> None:
    (tree / "changes" / "vague.md").write_text(text)
    done = notes("0.0.2", "--root", tree)
    assert done.returncode == 1
    assert f"changes/vague.md: {text.splitlines()[0]!r}" in done.stderr
    assert (tree / "changes" / "wheels.md").exists()
