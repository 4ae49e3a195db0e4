"""Commands that look at a job whose input is files see what its run reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import headrace

import headrace as hr
from headrace.testing import TestDriver


@hr.job("totals")
def totals(g: hr.Graph) -> None:
    rows = g.input("rows", schema={"user": str, "n": int}).partition_by("user")
    rows.aggregate(name="sums", total=hr.agg.sum("n")).send_to(g.output("sums"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that has read a file in three epochs."""
    lines = [json.dumps({"user": f"u{n % 3}", "n": n}) for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    said = {"rows": {"files": str(tmp_path / "rows.jsonl")}}
    home = tmp_path / ".headrace"
    with TestDriver(totals, home=home, memory_bus=False, max_rows=3, inputs=said) as driver:
        driver.run()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_describe_why_replay_and_rewind(home: Path) -> None:
    described = json.loads(headrace("jobs", "describe", "totals", "--json").out)
    assert [(one["operator"], one["lag"]) for one in described["inputs"]] == [("rows", 0)]
    assert headrace("jobs", "why", "totals").code == 0

    recorded = headrace("jobs", "replay", "totals", "--epoch", "2", "--out", "two.replay")
    assert recorded.code == 0, recorded.err
    with TestDriver.replay(totals, home / "two.replay") as driver:
        driver.advance()
        sums = {row["user"]: row["total"] for row in driver.output("sums")}
    assert sums == {"u0": 0 + 3, "u1": 1 + 4, "u2": 2 + 5}

    taken = headrace("jobs", "rewind", "totals", "--to", "1")
    assert taken.code == 0, taken.err


def test_explain_says_what_stands_for_an_input(home: Path) -> None:
    (home / "bounded_copy.py").write_text(
        "import headrace as hr\n\n\n"
        '@hr.job("copy")\ndef copy(g):\n    g.input("rows").send_to(g.output("copy"))\n'
    )
    told = headrace("explain", "bounded_copy.py", "--set", "inputs.rows.files=rows.jsonl")
    assert "by the settings: files rows.jsonl" in told.out
    assert "columns user, n" in told.out


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("files=row.jsonl", "no files at row.jsonl; check the path"),
        ("files=rows.dat", "rows.dat is unknown; give format ="),
        ("table=row", "no table 'row' in warehouse"),
        ("stream=row", "no stream 'row'"),
        ("from=2013-01-01", "no stream 'rows'"),
    ],
)
def test_a_run_that_cannot_be_leaves_the_last_one_as_it_is(
    said: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results, too, though they were to be replaced."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.dat").touch()
    (tmp_path / "rows.jsonl").write_text('{"user": "ann", "n": 5}')
    words = ("run", f"{__name__}:totals", "--standalone", "--bounded", "--replace", "--set")
    assert headrace(*words, "inputs.rows.files=rows.jsonl").code == 0

    refused = headrace(*words, f"inputs.rows.{said}")

    assert refused.code == 1
    assert told in refused.err
    assert "begins, without state" not in refused.err
    described = json.loads(headrace("jobs", "describe", "totals", "--json").out)
    assert described["run"] == 1
    assert "total=5" in headrace("bus", "tail", "sums").out
    assert "run 2 begins" in headrace(*words, "inputs.rows.files=rows.jsonl").err
