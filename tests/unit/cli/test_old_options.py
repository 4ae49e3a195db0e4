"""Options under the names that they had before, which work for a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import ALL, RENAMED, done, headrace, refused


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    done("bus", "create", "orders", "--schema", "id:int64", "--key", "id", "--compact")
    return tmp_path / "home"


def held_for(*words: str) -> tuple[object, str]:
    ran = headrace("bus", "configure", "orders", *words, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["hold_ms"], ran.err


@pytest.mark.usefixtures("home")
def test_an_old_name_does_what_the_new_one_does_and_warns() -> None:
    assert held_for("--hold-for", "3d") == (3 * 86_400_000, "")
    warning = (
        "warning: --hold of headrace bus configure is --hold-for now; the old name works for one "
        "more release\n"
    )
    assert held_for("--hold", "2d") == (2 * 86_400_000, warning)
    assert held_for("--hold=1d") == (86_400_000, warning)


@pytest.mark.usefixtures("home")
def test_a_word_behind_two_dashes_is_no_option() -> None:
    assert "--hold" in refused("bus", "configure", "--", "--hold")


@pytest.mark.parametrize("command", RENAMED)
def test_help_has_the_new_names_only(command: str) -> None:
    there = {name for param in ALL[command].params for name in param.opts}
    for old, new in RENAMED[command].items():
        assert (new in there, old in there) == (True, False)
