"""The demo works in a folder of its own and touches nothing that it did not make."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.demo.run import MARK, fresh_folder
from headrace.errors import InvalidInputError, NotOwnerError


def test_a_new_folder_is_made(tmp_path: Path) -> None:
    with fresh_folder(tmp_path / "home" / "demo") as path:
        assert [entry.name for entry in path.iterdir()] == [MARK]


def test_what_the_last_run_left_is_removed(tmp_path: Path) -> None:
    with fresh_folder(tmp_path / "demo") as path:
        (path / "bus" / "streams").mkdir(parents=True)
        (path / "bus" / "streams" / "stream.json").touch()
        (path / "chart.png").touch()
        (path / "link").symlink_to(tmp_path)
    with fresh_folder(path):
        assert [entry.name for entry in path.iterdir()] == [MARK]
    assert tmp_path.exists()


def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "demo" / "thesis.txt"
    other.parent.mkdir()
    other.write_text("years of work")
    with (
        pytest.raises(InvalidInputError, match="was not made by the demo"),
        fresh_folder(other.parent),
    ):
        pass
    assert other.read_text() == "years of work"


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        fresh_folder(tmp_path / "demo") as path,
        pytest.raises(NotOwnerError, match="another demo is running"),
        fresh_folder(path),
    ):
        pass


def test_a_demo_whose_start_failed_can_be_started_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), fresh_folder(tmp_path / "demo"):
        _ = 1 / 0
    with fresh_folder(tmp_path / "demo") as path:
        assert path.exists()
