"""The clients of the page on pipes, in each language, do what it says."""

from __future__ import annotations

import gzip
import shlex
import shutil
from pathlib import Path

import pytest
from tests.docs.pages import GUIDE, all_blocks, blocks, commands
from tests.support.cli import done, headrace

PAGE = GUIDE / "pipes.md"
PROGRAMS = {"python": "python3", "js": "node", "bash": "sh"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_client_prints_the_orders(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAMS[language]
    assert shutil.which(program), f"{program} is missing: make servers installs it"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    [block] = blocks(PAGE, language)
    Path("client").write_text(block.text)
    Path("orders.jsonl").write_text('{"id":7,"user":"ann"}\n{"id":8,"user":"bob"}\n')
    done("bus", "create", "orders", "--schema", "id:int64,user:string")
    done("bus", "append", "orders", "orders.jsonl")
    command = (program, "client")
    ran = headrace("pipe", "--stream", "orders", "--until", "latest", "--", *command)

    assert (ran.code, ran.out) == (0, "")
    printed = [line for line in ran.err.splitlines() if line.startswith("order ")]
    lines = ['order {"id":7,"user":"ann"}', 'order {"id":8,"user":"bob"}']
    assert printed == (lines if language == "bash" else ["order 7 of ann", "order 8 of bob"])
    assert "2 rows, 1 checkpoint, up to 2" in ran.err


def test_a_shell_line_keeps_the_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    Path("orders.jsonl").write_text('{"id":7,"user":"ann"}\n{"id":8,"user":"bob"}\n')
    done("bus", "create", "orders", "--schema", "id:int64,user:string")
    done("bus", "append", "orders", "orders.jsonl")
    lines = [line for block in blocks(PAGE, "sh") for line, _ in commands(block)]
    [words] = [shlex.split(line)[1:] for line in lines if "--ack" in line]
    at = words.index("--")
    ran = headrace(*words[:at], "--until", "latest", *words[at:])

    assert ran.code == 0, ran.err
    kept = gzip.decompress(Path("orders.jsonl.gz").read_bytes())
    assert kept == Path("orders.jsonl").read_bytes()


def test_other_languages_are_on_this_page_alone() -> None:
    assert {block.page for block in all_blocks("js", "bash")} == {PAGE}
