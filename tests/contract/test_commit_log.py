"""The commit log on a file system holds the shipped contract; its files tell all damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.logs import open_log

from headrace.coordinator.commit_log import (
    KEPT_GENERATIONS,
    PRUNE_MARGIN,
    FileCommitLog,
    load_state,
)
from headrace.coordinator.manifest import FORMAT, InputPosition, JobState, Manifest, encode_manifest
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.testing import call_at
from headrace.testing.commit_log_contract import CommitLogContract


class TestFileCommitLog(CommitLogContract):
    opener = "tests.support.logs:open_log"

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "log")


def base() -> tuple[bytes, str]:
    state = JobState("j", "line", 1, 0, 5, "", 8, {"job": "{}"}, {"in": {0: InputPosition(3, 9)}})
    return encode_manifest(Manifest(FORMAT, "base", "j", "line", 1, 0, 5, "", base=state))


def delta(previous: str) -> tuple[bytes, str]:
    inputs = {"in": {0: InputPosition(7, 11)}}
    return encode_manifest(Manifest(FORMAT, "delta", "j", "line", 1, 1, 6, previous, inputs=inputs))


@pytest.mark.parametrize("epoch", [0, 1])
def test_damage_of_every_byte_of_a_manifest_is_found(tmp_path: Path, epoch: int) -> None:
    log = open_log(str(tmp_path))
    first, digest = base()
    log.publish(0, first)
    log.publish(1, delta(digest)[0])
    state = load_state(log)
    assert state is not None
    assert state.inputs["in"][0] == InputPosition(7, 11)
    path = tmp_path / "manifests" / f"{epoch:012d}.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        for flip in (0x01, 0x20, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            with pytest.raises(CorruptDataError, match=f"epoch {epoch}"):
                load_state(log)
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match=f"epoch {epoch}"):
            load_state(log)
    path.write_bytes(whole + b"\n")
    with pytest.raises(CorruptDataError, match=f"epoch {epoch}"):
        load_state(log)


def test_what_a_killed_process_left_half_written_is_not_seen(tmp_path: Path) -> None:
    """A temporary file never counts as an epoch or a generation."""
    log = open_log(str(tmp_path))
    (tmp_path / "manifests" / ".000000000007.json.abc.tmp").write_bytes(b"half")
    (tmp_path / "generations" / ".00000007.json.abc.tmp").write_bytes(b"half")
    assert log.epochs() == []
    assert log.take_generation({}) == 1
    assert log.publish(7, b"whole")


def test_a_damaged_generation_is_told(tmp_path: Path) -> None:
    log = open_log(str(tmp_path))
    log.take_generation({"process": 1})
    (tmp_path / "generations" / "00000001.json").write_bytes(b"{")
    with pytest.raises(CorruptDataError, match=r"generation .*00000001.json cannot be read"):
        log.newest_generation()


def test_a_generation_that_became_free_because_it_is_long_over_is_not_taken(
    tmp_path: Path,
) -> None:
    """Its driver froze before it wrote its name, while many others came."""
    log = open_log(str(tmp_path))

    class Late(Files):
        is_late = True

        def publish(self, path: Path, *words: Any, **more: Any) -> bool:
            if self.is_late and path.parent.name == "generations":
                self.is_late = False
                for _ in range(KEPT_GENERATIONS + 1):
                    log.take_generation({})
            return super().publish(path, *words, **more)

    late = FileCommitLog(tmp_path, Late(sync=False))
    assert late.take_generation({}) == KEPT_GENERATIONS + 2
    assert late.newest_generation()[0] == KEPT_GENERATIONS + 2


def test_a_winner_that_stalls_after_its_commit_takes_nothing_away(tmp_path: Path) -> None:
    """Others have built on its epoch before it looks again."""
    log = FileCommitLog(tmp_path, Files(sync=False))
    assert log.publish(0, b"0")

    class Stalled(Files):
        def sync_folder(self, folder: Path) -> None:
            """Let another driver commit the epoch after, once."""
            if log.epochs() == [0, 1]:
                assert log.publish(2, b"2")

    slow = FileCommitLog(tmp_path, Stalled(sync=False))
    assert slow.publish(1, b"1")
    assert log.epochs() == [0, 1, 2]


def test_a_name_that_was_pruned_while_a_manifest_was_written_is_not_won(tmp_path: Path) -> None:
    """The look before was too early: the name became free since."""
    log, late = open_log(str(tmp_path)), open_log(str(tmp_path))

    def overtake() -> None:
        for epoch in range(1, PRUNE_MARGIN + 2):
            assert log.publish(epoch, b"newer")
        log.prune(PRUNE_MARGIN + 1)

    with call_at("commit.written", overtake):
        assert not late.publish(1, b"late")
    assert log.epochs() == [PRUNE_MARGIN + 1]
