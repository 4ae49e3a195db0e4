"""The first jobs of the README, in Python and SQL, send what their commands show."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks, commands
from tests.support.cli import done, load_job

from headrace.testing import TestDriver

README = ROOT / "README.md"


def test_the_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands but ``run``, whose place is taken by the driver of tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    (job,) = blocks(README, "python")
    Path("clicks.py").write_text(job.text)
    (block,) = [one for one in blocks(README, "sh") if "headrace bus create" in one.text]
    rows = re.findall(r"{.*}", block.text)
    Path("clicks.jsonl").write_text("\n".join(rows) + "\n")
    typed = [shlex.split(words, comments=True)[1:] for words, _ in commands(block)]
    told = [done(*words) for words in typed if words[0] != "run" and "--follow" not in words]
    assert told[0].startswith("stream clicks: 2 partitions")
    assert told[1] == f"{len(rows)} row appended to clicks\n"
    assert told[2].startswith("job clicks: 2 levels")
    with TestDriver(load_job("clicks:clicks"), home=Path(".headrace"), memory_bus=False) as driver:
        driver.finish()
    assert "views=1  slowest=41" in done("bus", "tail", "views")
    sys.modules.pop("clicks", None)

    (app,) = blocks(README, "sql")
    Path("views.sql").write_text(app.text)
    (block,) = [one for one in blocks(README, "sh") if "views.sql" in one.text]
    checked, _, queried = [shlex.split(words)[1:] for words, _ in commands(block)]
    assert done(*checked).endswith("views.sql: 1 table, no mistake\n")
    with TestDriver(load_job("views.sql"), home=Path(".headrace"), memory_bus=False) as driver:
        driver.finish()
    assert done(*queried) == "no rows\n", "no page has more than 100"
    every = [word.replace("> 100", "> 0") for word in queried]
    assert done(*every).split() == ["page", "views", "/docs", "1"]
