"""Every block of the documentation runs, or is looked through where it cannot be run here.

``python`` runs with the assertions in it, ``pycon`` says what is shown; the commands of ``sh``
name programs, verbs, commands and options that there are; ``console`` is run by
``test_console`` and ``test_ten_minutes``; ``toml`` is loaded, ``sql`` asked, or loaded where it is
an app; ``text`` is what is printed; ``js`` and ``bash`` are run by ``test_pipes_page``; ``java``
stands beside the ``python`` that replaces it, line by line.
"""

from __future__ import annotations

import doctest
import io
import itertools
import re
import shlex
import tomllib
import types
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from rich.console import Console
from tests.docs.pages import GUIDE, PAGES, ROOT, Block, all_blocks, blocks, commands
from tests.support.changes import JobState
from tests.support.cli import ALL
from tests.support.homes import load_settings
from tests.support.runs import EpochSummary

import headrace as hr
from headrace.cli.run.progress import Progress
from headrace.cli.run.reporters import TerminalSize, live_table
from headrace.coordinator.manifest import InputPosition
from headrace.explore.query import read_query
from headrace.sql import SqlText, load_app
from headrace.testing import TestDriver

LANGUAGES = {"python", "pycon", "sh", "console", "toml", "sql", "text", "js", "bash", "java"}
LANGUAGES |= {"json"}
PYTHON, TOML, SQL = all_blocks("python"), all_blocks("toml"), all_blocks("sql")
TALKS = all_blocks("pycon")
TYPED = [(block, words) for block in all_blocks("sh", "console") for words, _ in commands(block)]
PLAIN = {"cat", "cd", "docker", "echo", "kill", "pytest", "python3", "source"}
PLAIN |= {"redis-benchmark", "redis-cli"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("block", PYTHON, ids=[block.name for block in PYTHON])
def test_python_runs(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What a reader copies works as it stands."""
    if "spark" in block.text:
        request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    module = types.ModuleType("snippet")
    source = "\n" * block.line + block.text
    exec(compile(source, str(block.page), "exec", dont_inherit=True), module.__dict__)


@pytest.mark.parametrize("block", TALKS, ids=[block.name for block in TALKS])
def test_a_talk_with_python_says_what_is_shown(block: Block) -> None:
    """Examples in docstrings, which the reference is made of."""
    talk = doctest.DocTestParser().get_doctest(block.text, {}, block.name, None, block.line)
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(talk, out=told.append)
    assert talk.examples
    assert told == []


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert [block.name for block in all_blocks() if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("block", all_blocks("json"), ids=lambda block: block.name)
def test_each_block_of_json_is_a_query(block: Block) -> None:
    assert read_query(block.text).metrics


def test_each_line_of_java_has_lines_of_python() -> None:
    """Those with the same numbers behind them."""
    found = [one for one in all_blocks("java", "python") if one.page.name == "kafka-streams.md"]
    pairs = [pair for pair in itertools.pairwise(found) if pair[0].language == "java"]
    assert len(pairs) == 2
    for java, python in pairs:
        assert numbers(java, "//") == numbers(python, "#")


def numbers(block: Block, mark: str) -> set[int]:
    lines = re.findall(rf"{mark} (\d[\d, ]*)$", block.text, re.MULTILINE)
    return {int(one) for line in lines for one in line.split(", ")}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_code_is_hidden_in_an_indented_block(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"(?<=\n\n)    [^\s*\d-].*", text) == []


def is_there(words: list[str]) -> bool:
    """Say whether a command of ours, its options, a verb or an extra exists."""
    if "&&" in words:
        at = words.index("&&")
        return is_there(words[:at]) and is_there(words[at + 1 :])
    program, *rest = words
    if program == "headrace":
        name = next((n for n in (" ".join(rest[:2]), *rest[:1]) if n in ALL), None)
        if name is None:
            return rest in (["--install-completion"], ["--help"], ["--version"])
        rest = rest[: rest.index("--")] if "--" in rest else rest
        known = {option for one in ALL[name].params for option in one.opts} | {"--help"}
        options = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        return options <= known
    if program == "make":
        verbs = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = rest[2:] if rest[:1] == ["-C"] else rest
        return {word for word in asked if "=" not in word} <= {*verbs}
    if program == "python":
        return (ROOT / rest[0]).exists()
    if program == "git":
        return rest[0] == "clone"
    if program == "pip":
        extras = re.search(r"\[(.*)\]", rest[-1])
        return extras is None or {*extras[1].split(",")} <= {*PROJECT["optional-dependencies"]}
    return program in PLAIN or (ROOT / program).is_file()


@pytest.mark.parametrize(("block", "words"), TYPED, ids=[f"{b.name} {w}" for b, w in TYPED])
def test_what_is_typed_is_there(block: Block, words: str) -> None:
    """Programs, verbs, commands, options, and the extras of the package."""
    assert is_there(shlex.split(words, comments=True)), words


@pytest.mark.parametrize("block", TOML, ids=[block.name for block in TOML])
def test_toml_loads(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(block.text)
    load_settings(file, environ={})


@hr.job("orders-to-files")
def orders_to_files(g: hr.Graph, folder: str = "") -> None:
    g.input("orders").send_to(hr.sinks.parquet(Path.cwd() / "orders"))


@pytest.mark.parametrize("block", SQL, ids=[block.name for block in SQL])
def test_sql_finds_the_rows(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if block.text.startswith("CREATE APPLICATION"):
        assert load_app(SqlText(block.text, block.name), is_trial=True).tables
        return
    with TestDriver(orders_to_files) as driver:
        driver.create("orders", {"id": pa.int64()})
        for number in range(3):
            driver.feed("orders", [{"id": number}])
            driver.run()
    found = duckdb.execute(block.text.replace("/lake", str(tmp_path))).fetchall()
    assert sorted(row[0] for row in found) == [0, 1, 2]


def test_the_live_table_of_the_page_is_the_real_one() -> None:
    second = 1_375_533_197_000
    before, after = (
        JobState(
            "delay-radar", "l", 1, epoch, 0, "", 512, {}, {"flights": {0: InputPosition(n, second)}}
        )
        for epoch, n in ((0, 0), (41, 200_000))
    )
    summary = EpochSummary(41, 5, 540.0, {}, {}, second, 0, 3_250_586, 0, 12_345, ended=False)
    progress = Progress("delay-radar", {"flights": "flights"}, {}, before, 0.0)
    progress.observe(summary, after, 8.547)
    console = Console(file=io.StringIO(), width=100)
    console.print(live_table(progress, {"flights": [200_000]}, 8.547, TerminalSize(100, 24)))
    assert isinstance(console.file, io.StringIO)
    (page,) = (
        block for block in blocks(GUIDE / "cli.md", "text") if "watermark (UTC)" in block.text
    )
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        line.rstrip() for line in page.text.splitlines()
    ]


def test_there_are_blocks() -> None:
    """The pattern finds the blocks of the pages."""
    assert len(PYTHON) >= 30
    assert len(TYPED) >= 30
    assert TOML
    assert SQL
