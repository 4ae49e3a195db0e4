"""Fenced folders: whatever an older holder still does to one is refused, whenever it wakes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import NotOwnerError
from headrace.fencing import FOLDER, FencedFiles
from headrace.files import Files

PLAIN = Files(sync=False)


def holder(root: Path, generation: int, origin: str = "") -> FencedFiles:
    files = FencedFiles(PLAIN, root)
    files.take(generation, origin)
    return files


def filled(root: Path) -> Path:
    (root / "names").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "names" / name).write_bytes(name.encode())
    (root / "names" / "tree").mkdir()
    return root


CHANGES: dict[str, Callable[[FencedFiles, Path], object]] = {
    "publish": lambda files, at: files.publish(at / "new", b"x"),
    "replace": lambda files, at: files.replace(at / "a", b"x"),
    "remove": lambda files, at: files.remove(at / "a"),
    "link": lambda files, at: files.link(at / "a", at / "new"),
    "remove_tree": lambda files, at: files.remove_tree(at / "tree"),
    "staged": lambda files, at: files.staged("x"),
    "check": lambda files, at: files.check(),
}


def content(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if FOLDER not in path.parts
    }


@pytest.mark.parametrize("name", CHANGES)
def test_the_newest_holder_changes_the_folder_and_an_older_one_nothing(
    tmp_path: Path, name: str
) -> None:
    root = filled(tmp_path / "root")
    old = holder(root, 1)
    new, before = holder(root, 2), content(root)
    with pytest.raises(NotOwnerError, match="was taken over by a newer driver"):
        CHANGES[name](old, root / "names")
    assert content(root) == before
    CHANGES[name](new, root / "names")
    assert (content(root) != before) == (name not in ("staged", "check"))
    assert os.listdir(root / FOLDER) == [new.staged("x").parent.name]


@pytest.mark.parametrize("call", ["link", "rename"])
def test_a_holder_that_freezes_before_the_call_that_counts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """All that can be looked at was looked at, all is written, but for one call of the system."""
    root = filled(tmp_path / "root")
    old, before, real = holder(root, 1), content(root), getattr(os, call)
    frozen: list[str] = []

    def late(*args: object, **options: object) -> object:
        if not frozen:
            frozen.append(call)
            holder(root, 2)
        return real(*args, **options)

    monkeypatch.setattr(os, call, late)
    change = {
        "link": "publish",
        "rename": "remove",
    }[call]
    with pytest.raises(NotOwnerError):
        CHANGES[change](old, root / "names")
    assert frozen
    assert content(root) == before


def test_what_was_staged_gets_no_name_once_a_newer_one_has_the_folder(tmp_path: Path) -> None:
    root = filled(tmp_path / "root")
    old = holder(root, 1)
    stage = old.staged("epoch")
    stage.mkdir()
    old.write_new(stage / "rows", [b"x"])
    holder(root, 2)
    with pytest.raises(NotOwnerError):
        old.write_new(stage / "more", [b"x"])
    with pytest.raises(NotOwnerError):
        old.rename(stage, root / "names" / "epoch")
    assert not (root / "names" / "epoch").exists()


def test_an_older_one_that_takes_it_late_is_refused(tmp_path: Path) -> None:
    holder(tmp_path, 2)
    with pytest.raises(NotOwnerError):
        holder(tmp_path, 1)
    assert len(os.listdir(tmp_path / FOLDER)) == 1


def test_of_holders_that_take_it_at_the_same_time_the_newest_stays(tmp_path: Path) -> None:
    for turn in range(20):
        root, barrier = tmp_path / str(turn), threading.Barrier(4)
        found: dict[int, FencedFiles] = {}

        def take(
            generation: int,
            root: Path = root,
            barrier: threading.Barrier = barrier,
            found: dict[int, FencedFiles] = found,
        ) -> None:
            barrier.wait()
            try:
                found[generation] = holder(root, generation)
            except NotOwnerError:
                return

        threads = [threading.Thread(target=take, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found[4].check()
        for generation in set(found) - {4}:
            with pytest.raises(NotOwnerError):
                found[generation].check()


def test_a_holder_of_another_origin_takes_the_place_of_any(tmp_path: Path) -> None:
    """Generations of a job that was deleted and made again begin at 1."""
    old = holder(tmp_path, 7, "first")
    new = holder(tmp_path, 1, "second")
    with pytest.raises(NotOwnerError):
        old.check()
    new.check()


def test_a_helper_changes_the_folder_as_long_as_its_holder_has_it(tmp_path: Path) -> None:
    root = filled(tmp_path / "root")
    first, helper = holder(root, 1), FencedFiles(PLAIN, root)
    helper.join()
    first.check()
    helper.remove(root / "names" / "a")
    holder(root, 2)
    with pytest.raises(NotOwnerError):
        helper.remove(root / "names" / "b")


def test_a_folder_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    root = filled(tmp_path / "root")
    old = holder(root, 1)
    root.rename(tmp_path / "gone")
    for change in (CHANGES["publish"], CHANGES["remove"]):
        with pytest.raises(FileNotFoundError, match="the folder is gone"):
            change(old, root / "names")
    assert not root.exists()
    filled(root)
    holder(root, 1)
    before = content(root)
    for change in (CHANGES["publish"], CHANGES["remove"]):
        with pytest.raises(NotOwnerError):
            change(old, root / "names")
    assert content(root) == before


def test_paths_elsewhere_and_files_that_are_gone_are_as_ever(tmp_path: Path) -> None:
    root = filled(tmp_path / "root")
    old = holder(root, 1)
    old.remove(root / "names" / "none")
    assert old.publish(root / "more" / "new", b"x")
    assert not old.publish(root / "more" / "new", b"y")
    holder(root, 2)
    old.replace(tmp_path / "other", b"x")
    old.remove(tmp_path / "other")
    assert (root / "more" / "new").read_bytes() == b"x"
