"""What happens where a process of the tests crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CRASHES = """
import os
def test_first(): pass
def test_crash(): os.abort()
def test_behind(): pass
"""
OTHERS = "def test_one(): pass\ndef test_two(): pass\n"


def test_a_crash_is_one_failed_test_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.sharing import *\n")
    (tmp_path / "test_a.py").write_text(CRASHES)
    (tmp_path / "test_b.py").write_text("import os\ndef test_only(): os.abort()\n")
    (tmp_path / "test_c.py").write_text(OTHERS)
    options = ["-n1", "-q", "--no-loadscope-reorder", "-pxdist.plugin", "-pno:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(tmp_path)]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=alone, timeout=120, check=False
    )
    assert "2 failed, 4 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1
