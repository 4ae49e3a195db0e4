"""The page of benchmarks shows what the results beside it say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "page.py", "--check"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_pictures_are_there() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    named = [part.partition(")")[0] for part in page.split("](")[1:]]
    missing = [name for name in named if not (ROOT / "docs" / name.partition("#")[0]).exists()]
    assert missing == []
