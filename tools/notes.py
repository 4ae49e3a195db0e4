"""Make release notes from the fragments in changes/, with towncrier.

    python tools/notes.py                 prints the notes of what waits for a release
    python tools/notes.py 0.2.0           writes them to CHANGELOG.md, and removes the fragments

A fragment has its kind in its first line and a free name. Towncrier expects the kind in the name,
so it works in a folder of its own. Its configuration, with the kinds, is in pyproject.toml.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = "<!-- release notes -->\n"
COPIED = ("pyproject.toml", "CHANGELOG.md")


def fragments(root: Path) -> list[Path]:
    """Return the fragments of a tree."""
    return sorted(path for path in (root / "changes").glob("*.md") if path.name != "README.md")


def copy_named(root: Path, target: Path) -> None:
    """Copy what towncrier needs to another folder, each fragment with its kind in its name.

    Raises:
        SystemExit: fragments without a known kind, or without text.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    kinds = [kind["directory"] for kind in project["tool"]["towncrier"]["type"]]
    for name in COPIED:
        shutil.copy(root / name, target)
    (target / "changes").mkdir()
    wrong = []
    for path in fragments(root):
        kind, _, text = path.read_text(encoding="utf-8").partition("\n")
        if kind not in kinds or not text.strip():
            wrong.append(f"changes/{path.name}: {kind[:40]!r}")
        joined = " ".join(text.split())
        (target / "changes" / f"+{path.stem}.{kind[:40]}.md").write_text(joined, encoding="utf-8")
    if wrong:
        raise SystemExit(
            f"the first line of a fragment is one of {', '.join(kinds)}, and then comes its text; "
            f"found {'; '.join(wrong)}"
        )


def build(root: Path, version: str | None) -> None:
    """Print the notes, or write them for a version."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        copy_named(root, target)
        towncrier = [sys.executable, "-m", "towncrier", "build", "--yes", "--dir", folder]
        command = [*towncrier, "--version", version or "NEXT"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        changelog = target / "CHANGELOG.md"
        if version is None:
            before = (root / "CHANGELOG.md").read_text(encoding="utf-8").partition(START)[2]
            after = changelog.read_text(encoding="utf-8").partition(START)[2]
            print(after.removesuffix(before).strip())
            return
        shutil.copy(changelog, root)
        for path in fragments(root):
            path.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version", nargs="?")
    parser.add_argument("--root", type=Path, default=ROOT)
    given = parser.parse_args()
    build(given.root, given.version)
