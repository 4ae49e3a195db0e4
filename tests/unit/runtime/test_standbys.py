"""Standbys of a process that an older driver has left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from headrace.fencing import DirectoryLock, DirectoryOwner
from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.runtime.background import InlineBackground
from headrace.runtime.standbys import StandbyStores
from headrace.state.backend import Position, SegmentChain, Target
from headrace.state.restore import RestoreListener, TaskName
from headrace.state.task_state import TaskState
from headrace.testing import ManualClock

KEY, GROUPS = ("job", "stage", 0), (0, 8)


class Empty:
    """Nothing was ever committed but numbers of epochs."""

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        return SegmentChain(after)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rocksdb"


@pytest.fixture
def follow(tmp_path: Path) -> Callable[[int], int]:
    """Tells a process of generation 1 to follow to an epoch; returns how far it says it is."""
    stores = StandbyStores(InlineBackground(), ManualClock())

    def opened() -> TaskState:
        name = TaskName("job", "stage", 0, GROUPS)
        return TaskState(name, [StoreSpec("n", value=int)], tmp_path, Files(sync=False))

    def follow(epoch: int) -> int:
        position = Position("line", epoch, f"attempt {epoch}")
        target = Target(position, None, 0, DirectoryOwner("line", 1))
        return stores.follow(KEY, GROUPS, opened, target, Empty()).epoch

    return follow


def test_it_lets_go_of_a_store_that_a_newer_driver_has_asked_for(
    folder: Path, follow: Callable[[int], int]
) -> None:
    assert [follow(1), follow(1)] == [-1, 1]
    (folder / DirectoryOwner("line", 2).mark).touch()  # as one that finds it held leaves it
    assert [follow(2), follow(2)] == [1, 1]
    DirectoryLock(folder, DirectoryOwner("line", 2)).release()
    assert [follow(3), follow(3)] == [-1, -1], "nor does it open it again"
    DirectoryLock(folder, DirectoryOwner("line", 2)).release()


def test_it_begins_anew_where_its_task_has_other_key_groups(tmp_path: Path) -> None:
    """As after a rescale."""
    stores = StandbyStores(InlineBackground(), ManualClock())
    opened: list[tuple[int, int]] = []

    def follow(groups: tuple[int, int]) -> None:
        def open_state() -> TaskState:
            opened.append(groups)
            name = TaskName("job", "stage", 0, groups)
            folder = tmp_path / str(groups[1])
            return TaskState(name, [StoreSpec("n", value=int)], folder, Files(sync=False))

        target = Target(Position("line", 1, "attempt"), None, 0, DirectoryOwner("line", 1))
        stores.follow(KEY, groups, open_state, target, Empty())

    for groups in ((0, 8), (0, 8), (0, 4)):
        follow(groups)
    assert opened == [(0, 8), (0, 4)]
    stores.close()


def test_it_opens_nothing_that_a_newer_driver_has(
    folder: Path, follow: Callable[[int], int]
) -> None:
    DirectoryLock(folder, DirectoryOwner("line", 2)).release()
    assert follow(1) == -1
    DirectoryLock(folder, DirectoryOwner("line", 2)).release()


class Slow:
    """Stores that read frames, each of which takes a while of the processor."""

    def __init__(self, clock: ManualClock, took_ms: list[int]) -> None:
        self._clock, self._took_ms, self.position = clock, took_ms, None

    def own(self, owner: DirectoryOwner) -> None:
        """Taken."""

    def catch_up(self, target: Target, source: object, progress: RestoreListener) -> None:
        for took_ms in self._took_ms:
            self._clock.advance(took_ms)
            progress.reads(100, 1)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_who_follows_leaves_the_rest_of_a_core_to_the_tasks(share: float) -> None:
    clock = ManualClock()
    stores = StandbyStores(InlineBackground(), clock, share)
    slow = Slow(clock, [5, 20, 40, 1] * 10)
    target = Target(Position("line", 1, "attempt"), None, 0, DirectoryOwner("line", 1))
    before = clock.monotonic()

    stores.follow(KEY, GROUPS, lambda: cast("TaskState", slow), target, Empty())
    told = stores.follow(KEY, GROUPS, lambda: cast("TaskState", slow), target, Empty())

    assert told.epoch == 1
    assert 0.66 / share == pytest.approx(clock.monotonic() - before, rel=0.05)
