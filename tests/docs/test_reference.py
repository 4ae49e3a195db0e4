"""The reference is as the docstrings are."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.docs.pages import ROOT


def test_the_pages_are_as_they_would_be_written() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
