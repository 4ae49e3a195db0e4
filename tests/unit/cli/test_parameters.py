"""Values of options: plain ones are taken as they are, all others as Typer converts them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

import headrace.cli.main  # noqa: F401 - has commands take plain values
from headrace.cli import parameters

FOUND: dict[str, Any] = {}
app = typer.Typer()


@app.command()
def take(  # noqa: PLR0917 - one of each kind
    name: str,
    more: Annotated[list[str] | None, typer.Argument()] = None,
    count: Annotated[int, typer.Option(min=1)] = 3,
    share: float | None = None,
    order: Literal["even", "odd"] = "even",
    sets: Annotated[list[str] | None, typer.Option("--set")] = None,
    home: Annotated[Path | None, typer.Option(file_okay=False)] = None,
    file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None,
    fast: bool = False,
) -> None:
    FOUND.update(locals())


def taken(*words: object) -> dict[str, Any]:
    FOUND.clear()
    ran = CliRunner().invoke(app, list(map(str, words)))
    assert ran.exit_code == 0, ran.output
    return dict(FOUND)


@pytest.fixture(params=["plain", "typer"])
def converted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the command line of Headrace does, and without: both give the same."""
    if request.param == "typer":
        monkeypatch.setattr(parameters.PlainValues, "_is_plain", lambda self, value: False)


@pytest.mark.usefixtures("converted")
def test_values_are_as_typer_makes_them(tmp_path: Path) -> None:
    found = taken("a", "b", "c", "--set", "x=1", "--set", "y=2", "--home", tmp_path)
    assert (found["name"], found["more"], found["sets"]) == ("a", ["b", "c"], ["x=1", "y=2"])
    assert (found["home"], found["count"], found["share"]) == (tmp_path, 3, None)
    assert (found["order"], found["fast"], found["file"]) == ("even", False, None)
    (tmp_path / "file").touch()
    words = (
        "--count",
        5,
        "--share",
        "0.5",
        "--order",
        "odd",
        "--fast",
        "--file",
        tmp_path / "file",
    )
    found = taken("a", *words, "--home", tmp_path / "missing")
    assert (found["count"], found["share"], found["order"], found["fast"]) == (5, 0.5, "odd", True)
    assert (found["home"], found["file"]) == (tmp_path / "missing", tmp_path / "file")
    assert (found["more"] or [], found["sets"] or []) == ([], [])


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--count", "0"], "'--count': found '0', expected an integer, at least 1"),
        (["--count", "many"], "'--count': found 'many', expected an integer, at least 1"),
        (["--order", "all"], "'--order': found 'all', expected even or odd"),
        (["--order", "od"], "expected even or odd; did you mean odd?"),
        (["--home", __file__], "is a file"),
        (["--file", "nowhere"], "does not exist"),
        (["--share", "half"], "'--share': found 'half', expected a number"),
    ],
)
def test_what_does_not_fit_is_refused(words: list[str], told: str) -> None:
    ran = CliRunner().invoke(app, ["a", *words])
    assert ran.exit_code == 2
    shown = " ".join(ran.output.replace("│", "").split())
    assert told in shown
    assert "Value error" not in shown
