"""Which files are merged: few remain, and little is written twice, whatever the state does."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.state.compaction_policy import (
    FAN_IN,
    FILE_COST_BYTES,
    WORST_REWRITES,
    RunSize,
    level_of,
    plan_compaction,
)

KIB, MIB = 1 << 10, 1 << 20
ENTRY = 100


class Disk:
    """The files of one task: each a range of epochs, and which keys it holds, by number.

    Keys are counted, not kept: ``merged`` says how many of several files' are different.
    """

    def __init__(self, merged: Callable[[list[int]], int], live: Callable[[int], int]) -> None:
        self._merged, self._live = merged, live
        self.snapshots: list[RunSize] = []
        self.segments: list[RunSize] = []
        self.logged = self.rewritten = 0
        self.most = 0

    def epoch(self, rows: int, delay: Callable[[], bool] = lambda: True) -> None:
        self.segments.append(RunSize(rows * ENTRY, rows))
        self.logged += rows * ENTRY
        while delay() and self._merge():
            pass
        self.most = max(self.most, len(self.snapshots) + len(self.segments))

    def _merge(self) -> bool:
        live = self._live(self.logged // ENTRY)
        plan = plan_compaction(self.snapshots, self.segments, live * ENTRY)
        if plan is None:
            return False
        files = [*self.snapshots, *self.segments]
        rows = self._merged([run.rows for run in files[plan.begin : plan.end]])
        if plan.is_snapshot:
            rows = min(rows, live) if plan.end == len(files) else rows
        new = RunSize(rows * ENTRY, rows)
        self.rewritten += new.bytes
        base = len(self.snapshots)
        if plan.is_snapshot:
            self.snapshots, self.segments = [new], files[plan.end :]
        else:
            self.segments = [*files[base : plan.begin], new, *files[plan.end :]]
        return True


def of_uniform_keys(keys: int) -> Disk:
    """Each epoch overwrites random ones of so many keys."""

    def merged(rows: list[int]) -> int:
        missed = 1.0
        for count in rows:
            missed *= 1 - count / keys
        return round(keys * (1 - missed))

    return Disk(merged, lambda logged: min(keys, logged))


def growing() -> Disk:
    """Each epoch adds keys that were never there."""
    return Disk(sum, lambda logged: logged)


def of_same_keys(keys: int) -> Disk:
    """Each epoch overwrites the same few keys."""
    return Disk(max, lambda _: keys)


def levels(size: int) -> int:
    return level_of(size) + 1


EPOCHS = 10_000


@pytest.mark.parametrize("rows", [10, 1_000, 20_000])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shape", ["constant", "growing", "overwritten", "uneven"])
def test_little_is_written_twice_and_few_files_remain(shape: str, rows: int, late: bool) -> None:
    """The bounds of the policy over ten thousand epochs, with merges at once or late."""
    rng = random.Random(rows)
    disk = {
        "constant": lambda: of_uniform_keys(rows * 50),
        "growing": growing,
        "overwritten": lambda: of_same_keys(rows),
        "uneven": growing,
    }[shape]()
    for _ in range(EPOCHS):
        count = rng.choice([1, rows // 10, rows, rows * 20]) if shape == "uneven" else rows
        disk.epoch(max(1, count), (lambda: rng.random() < 0.3) if late else (lambda: True))
    largest = sum(run.bytes for run in (*disk.snapshots, *disk.segments))
    counted = disk.logged + EPOCHS * FILE_COST_BYTES
    assert disk.rewritten <= (WORST_REWRITES * levels(largest) + 1) * counted
    backlog = 20 if late else 0
    assert disk.most <= 9 * levels(largest) + FAN_IN + backlog


def test_growing_state_is_rewritten_once_a_level() -> None:
    """What is usual is far below the bound."""
    disk = growing()
    for _ in range(EPOCHS):
        disk.epoch(1_000)
    total = sum(run.bytes for run in (*disk.snapshots, *disk.segments))
    assert total == disk.logged
    assert disk.rewritten <= 1.5 * levels(total) * disk.logged
    assert disk.most <= (FAN_IN - 1) * levels(total) + 1


def test_disk_use_stays_near_the_state_however_often_it_is_overwritten() -> None:
    disk = of_uniform_keys(500_000)
    for _ in range(EPOCHS):
        disk.epoch(20_000)
    used = sum(run.bytes for run in (*disk.snapshots, *disk.segments))
    assert used <= 2.2 * 500_000 * ENTRY + 5 * MIB


def test_four_of_one_size_are_merged_and_not_before() -> None:
    one = RunSize(MIB, 10)
    assert plan_compaction([], [one] * 3, 3 * MIB) is None
    assert plan_compaction([], [one] * 4, 4 * MIB) == (0, 4)
    big = RunSize(64 * MIB, 640)
    assert plan_compaction([big], [one] * 3, 67 * MIB) is None
    assert plan_compaction([big], [one] * 4, 68 * MIB) == (1, 5)
    assert plan_compaction([big], [one] * 9, 73 * MIB) == (1, 10)


def test_small_ones_go_into_a_larger_one_that_follows() -> None:
    big, small, middle = RunSize(64 * MIB, 640), RunSize(KIB, 1), RunSize(4 * MIB, 40)
    assert plan_compaction([big], [small, small, middle], 70 * MIB) is None
    assert plan_compaction([big], [small, small, small, middle], 70 * MIB) == (1, 5)
    assert plan_compaction([big], [small, small, small, middle, small], 70 * MIB) == (1, 5)


def test_what_a_rescale_left_is_merged_as_a_whole() -> None:
    """Its files count as so many, and none of them goes alone."""
    left = [RunSize(MIB, 10), RunSize(2 * MIB, 20), RunSize(MIB, 10)]
    one = RunSize(4 * MIB, 40)
    assert plan_compaction(left, [], 4 * MIB) is None
    assert plan_compaction(left, [one], 8 * MIB) == (0, 4)
    assert plan_compaction([*left, one], [], 8 * MIB) == (0, 4)
    assert plan_compaction([*left, one], [RunSize(KIB, 1)] * 4, 8 * MIB) == (4, 8)


def test_a_snapshot_is_taken_when_the_model_says_that_it_pays() -> None:
    held, live = RunSize(100 * MIB, 1_000_000), 100 * MIB
    changes = [RunSize(40 * MIB, 400_000)] * 3
    assert plan_compaction([held], changes[:2], live) is None
    assert plan_compaction([held], changes, live) == (0, 4)


def test_a_store_that_says_too_little_of_its_state_does_not_cause_snapshots() -> None:
    """RocksDB tells compressed bytes; what was not overwritten is live in any case."""
    held = RunSize(100 * MIB, 1_000_000)
    assert plan_compaction([held], [RunSize(10 * MIB, 100_000)], 20 * MIB) is None


def test_levels_are_four_times_each_other() -> None:
    assert [level_of(FILE_COST_BYTES * FAN_IN**n) for n in range(4)] == [0, 1, 2, 3]
    assert [level_of(FILE_COST_BYTES * FAN_IN**n + 1) for n in range(4)] == [1, 2, 3, 4]
    assert level_of(0) == 0


RUNS = st.lists(st.builds(RunSize, st.integers(0, 1 << 32), st.integers(0, 1 << 24)), max_size=12)


@example([], [RunSize(4_259_841, 0)], 0)
@given(RUNS, RUNS, st.integers(0, 1 << 34))
def test_a_plan_names_adjacent_files_and_takes_snapshots_whole(
    snapshots: list[RunSize], segments: list[RunSize], state: int
) -> None:
    plan = plan_compaction(snapshots, segments, state)
    if plan is not None:
        assert 0 <= plan.begin < plan.end <= len(snapshots) + len(segments)
        # One file alone is written anew only where most of it is no longer live.
        assert plan.end - plan.begin > 1 or (plan.is_snapshot and segments)
        if plan.is_snapshot:
            assert plan.end >= len(snapshots)
        else:
            assert plan.begin >= len(snapshots)
