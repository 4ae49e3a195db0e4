"""The faults that tests are measured by fit the code, and the runner tells which are caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

TOOL = ROOT / "tools" / "mutants.py"
CODE = """\
def larger(a: int, b: int) -> int:
    if a > b:
        return a
    elif a == b:
        return a + 0
    return b
"""
TESTS = """\
from small import larger

def test_the_first_may_be_larger() -> None:
    assert larger(2, 1) == 2

def test_they_may_be_equal() -> None:
    assert larger(1, 1) == 1
"""
FAULTS = """\
[[mutant]]
name = "caught"
area = "size"
file = "src/small.py"
old = "return a + 0"
new = "return a + 1"
why = "of two that are equal none is returned"

[[mutant]]
name = "survives"
area = "size"
file = "src/small.py"
old = "if a > b:"
new = "if a >= b:"
why = "nothing: it is the same"

[[mutant]]
name = "unreached"
area = "size"
file = "src/small.py"
old = "return b"
new = "return a"
why = "the smaller one is returned"
"""


def tool(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, *map(str, words)], capture_output=True, text=True, check=False
    )


def test_every_fault_of_the_list_can_be_planted() -> None:
    done = tool("check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_is_caught_by_a_test_that_reaches_it_or_is_told_of(tmp_path: Path) -> None:
    tree, out, less = tmp_path / "tree", tmp_path / "out.json", tmp_path / "less.json"
    for name, text in (
        ("src/small.py", CODE),
        ("tests/unit/test_small.py", TESTS),
        ("tools/mutants.toml", FAULTS),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = ['-p', 'no:schemathesis']\n"),
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "small"]):
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", tree, *who, *words], check=True)

    assert tool("record", "--tree", tree).returncode == 0
    done = tool("run", "--tree", tree, "--out", out)

    found = json.loads(out.read_text())["mutants"]
    assert done.returncode == 1
    assert {name: one["outcome"] for name, one in found.items()} == {
        "caught": "caught",
        "survives": "survived",
        "unreached": "unreached",
    }
    assert found["caught"]["by"] == "tests/unit/test_small.py::test_they_may_be_equal"
    assert found["caught"]["tests"] == 1
    assert (tree / "src" / "small.py").read_text() == CODE

    less.write_text(json.dumps({"mutants": {"survives": found["survives"]}}))
    assert tool("diff", less, out).returncode == 0
    lost = tool("diff", out, less)
    assert lost.returncode == 1
    assert "caught: was caught by" in lost.stdout

    (tree / "src" / "small.py").write_text(CODE.replace("return b", "return min(a, b)"))
    assert "unreached: src/small.py has this 0 times" in tool("check", "--tree", tree).stderr
