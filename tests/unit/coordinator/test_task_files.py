"""A merged file takes the place of exactly what it stands for, or nothing happens."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.manifest import (
    NO_COMPACTION,
    PendingCompaction,
    TaskChange,
    TaskState,
    apply_change,
    is_applicable,
    next_compaction,
)
from headrace.runtime.orders import Merged, MergeOrder, SegmentRef
from headrace.state.compaction_policy import (
    FAN_IN,
    MAX_FILES,
    MINIMUM_GAIN_BYTES,
    RunSize,
    plan_compaction,
)


def segment(first: int, last: int | None = None, name: str = "") -> SegmentRef:
    last = first if last is None else last
    path = name or (f"m{first}-{last}" if first != last else f"s{first}")
    size = last - first + 1
    return SegmentRef(path, 9, last, f"a{last}", 1, size, size, first)


def held(*epochs: int, snapshots: tuple[SegmentRef, ...] = ()) -> TaskState:
    refs = tuple(segment(epoch) for epoch in epochs)
    stands = (snapshots[-1].epoch, snapshots[-1].attempt) if snapshots else (-1, "")
    last = (refs[-1].epoch, refs[-1].attempt) if refs else stands
    return TaskState(*last, snapshots, *stands, refs)


def merge(task: TaskState, begin: int, end: int, **other: Any) -> Merged:
    """Merge some of a task's files, the oldest into a snapshot."""
    files = task.files[begin:end]
    ref = segment(files[0].first_epoch, files[-1].epoch, f"m{files[0].path}-{files[-1].path}")
    plain = Merged(ref, tuple(file.path for file in files), snapshot=begin == 0)
    return msgspec.structs.replace(plain, **other)


def paths(task: TaskState) -> list[str]:
    return [file.path for file in task.files]


def test_a_merge_replaces_what_it_stands_for_and_the_new_segment_follows() -> None:
    task = held(1, 2, 5, 7, 8)
    after = apply_change(task, TaskChange(segment(9), merge(task, 1, 4), host="h"))
    assert paths(after) == ["s1", "ms2-s7", "s8", "s9"]
    assert (after.epoch, after.attempt, after.shape, after.host) == (9, "a9", 1, "h")
    assert [ref.first_epoch for ref in after.segments] == [1, 2, 8, 9]
    assert after.snapshots == ()


def test_a_merge_of_the_oldest_is_the_snapshot() -> None:
    task = held(1, 2, 5, 7)
    after = apply_change(task, TaskChange(merged=merge(task, 0, 3)))
    assert paths(after) == ["ms1-s5", "s7"]
    assert (after.snapshot_epoch, after.snapshot_attempt) == (5, "a5")
    assert (after.epoch, after.attempt, after.shape) == (7, "a7", 1)
    again = apply_change(after, TaskChange(merged=merge(after, 0, 2)))
    assert paths(again) == ["mms1-s5-s7"]
    assert (again.snapshot_epoch, again.segments, again.shape) == (7, (), 2)
    assert again.snapshot_bytes == again.snapshots[0].bytes


def test_what_a_rescale_left_goes_together() -> None:
    """Several files that a store begins with are replaced by one, or stay all."""
    several = (segment(1, 4, "left"), segment(2, 6, "right"))
    task = held(8, snapshots=several)
    assert not is_applicable(task, merge(task, 0, 1))
    assert not is_applicable(task, merge(task, 1, 2))
    assert not is_applicable(task, merge(task, 1, 3))
    after = apply_change(task, TaskChange(merged=merge(task, 0, 2)))
    assert paths(after) == ["mleft-right", "s8"]
    assert (after.snapshot_epoch, after.snapshot_attempt) == (6, "a6")


def test_some_of_what_a_rescale_left_is_never_replaced() -> None:
    """Also when the merged file says that it stands where the rescale does."""
    several = (segment(1, 4, "left"), segment(2, 6, "right"))
    task = held(8, snapshots=several)
    stands = msgspec.structs.replace(several[0], path="m", epoch=6, attempt="a6")
    assert not is_applicable(task, Merged(stands, ("left",), snapshot=True))
    assert is_applicable(task, Merged(stands, ("left", "right"), snapshot=True))


def test_what_a_rescale_left_is_merged_to_stand_where_the_rescale_does() -> None:
    """Its files are of other tasks' epochs; a store that has applied them all is at its epoch."""
    several = tuple(segment(epoch, name=f"of-task-{epoch}") for epoch in (1, 2, 3, 4))
    task = TaskState(9, "lineage", several, 9, "lineage", shape=3)
    order = next_compaction(task, now_ms=7)
    assert order is not None
    assert (order.sources, order.snapshot, order.now_ms) == (several, True, 7)
    assert (order.epoch, order.attempt) == (9, "lineage")
    ref = SegmentRef("m", 9, order.epoch, order.attempt, 1, 4, 4, 1)
    after = apply_change(task, TaskChange(merged=Merged(ref, paths_of(order), snapshot=True)))
    assert paths(after) == ["m"]
    assert (after.snapshot_epoch, after.snapshot_attempt, after.shape) == (9, "lineage", 4)
    later = next_compaction(apply_change(task, TaskChange(segment(10))), now_ms=7)
    assert later is not None
    assert (len(later.sources), later.epoch, later.attempt) == (5, 10, "a10")


def test_a_merge_that_was_ordered_is_asked_for_until_it_is_committed() -> None:
    """The same files under the same name, whatever came since; then another may begin."""
    task = held(1, 2, 3, 4)
    first = next_compaction(task, now_ms=7, watermark=5, name="n")
    assert first is not None
    assert first.path == "snapshot/n"
    task = apply_change(task, TaskChange(merging=PendingCompaction.of(first)))
    for epoch in range(5, 9):
        task = apply_change(task, TaskChange(segment(epoch)))
        assert next_compaction(task, now_ms=epoch, watermark=epoch, name=f"n{epoch}") == first
    ref = segment(1, 4, first.path)
    assert apply_change(task, TaskChange(merging=NO_COMPACTION)).merging is None
    task = apply_change(task, TaskChange(merged=Merged(ref, paths_of(first), snapshot=True)))
    assert paths(task) == ["snapshot/n", "s5", "s6", "s7", "s8"]
    second = next_compaction(task, now_ms=9, watermark=9, name="m")
    assert second is not None
    assert second.path in {"segment/m", "snapshot/m"}


@pytest.mark.parametrize("count", range(1, FAN_IN + 1))
def test_a_task_is_left_alone_where_the_policy_would_merge_nothing(count: int) -> None:
    """A small task of few files is not looked at one by one."""
    least = MINIMUM_GAIN_BYTES
    found = set()
    for sizes in product((1, least // count, least, 2 * least), repeat=count):
        runs = [RunSize(size, size) for size in sizes]
        refs = [SegmentRef(f"s{n}", 9, n, f"a{n}", 1, s, s, n) for n, s in enumerate(sizes, 1)]
        for begin, live in product(range(count + 1), (0, least // 2)):
            kept, new = tuple(refs[:begin]), tuple(refs[begin:])
            task = TaskState(count, "a", kept, segments=new, state_bytes=live)
            order = next_compaction(task, now_ms=0)
            plan = plan_compaction(runs[:begin], runs[begin:], live)
            assert (order is None) == (plan is None), (sizes, begin, live)
            found.add(order is None)
    assert found == {True, False}


def test_a_task_with_too_many_files_is_not_left_to_what_runs_beside() -> None:
    for count, at_once in ((MAX_FILES, False), (MAX_FILES + 1, True)):
        order = next_compaction(held(*range(1, count + 1)), now_ms=0)
        assert order is not None
        assert order.at_once is at_once


def paths_of(order: MergeOrder) -> tuple[str, ...]:
    return tuple(source.path for source in order.sources)


BEFORE = held(2, 4, 6, 8)
STALE = merge(BEFORE, 1, 3)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(held(2, 4, 7, 8), id="one was replaced"),
        pytest.param(held(2, 4, 5, 6, 8), id="one came in between"),
        pytest.param(held(2, 6, 4, 8), id="another order"),
        pytest.param(held(2, 6, 8), id="one is gone"),
        pytest.param(held(2, 4), id="the end is gone"),
        pytest.param(held(), id="all are gone"),
        pytest.param(
            apply_change(BEFORE, TaskChange(merged=merge(BEFORE, 1, 2))), id="merged otherwise"
        ),
        pytest.param(apply_change(BEFORE, TaskChange(merged=STALE)), id="done already"),
        pytest.param(
            apply_change(BEFORE, TaskChange(merged=merge(BEFORE, 0, 4))), id="in a snapshot"
        ),
        pytest.param(held(6, 8, snapshots=(segment(4),)), id="half in the snapshot"),
    ],
)
def test_a_merge_that_no_longer_fits_is_ignored(now: TaskState) -> None:
    assert not is_applicable(now, STALE)
    after = apply_change(now, TaskChange(segment(11), STALE))
    assert after == apply_change(now, TaskChange(segment(11)))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(merge(BEFORE, 1, 3, sources=()), id="of nothing"),
        pytest.param(merge(BEFORE, 1, 3, snapshot=True), id="a snapshot without the oldest"),
        pytest.param(merge(BEFORE, 1, 3, ref=segment(4, 8)), id="stands at another epoch"),
        pytest.param(merge(BEFORE, 1, 3, ref=segment(2, 6)), id="begins at another epoch"),
    ],
)
def test_a_merge_that_says_other_things_than_its_sources_is_ignored(wrong: Merged) -> None:
    assert not is_applicable(BEFORE, wrong)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 2)), max_size=30))
def test_files_hold_every_epoch_once_and_in_order(steps: list[tuple[int, int, int]]) -> None:
    """Merges of any run, made at once or late, and ignored when they come too late."""
    task, late = TaskState(), list[Merged]()
    for epoch, (begin, length, kind) in enumerate(steps, 1):
        made = None
        if kind == 0 and len(task.files) >= begin + length > begin and length > 1:
            late.append(merge(task, begin, begin + length))
        if kind == 1 and late:
            made = late.pop()
        fits = made is not None and is_applicable(task, made)
        before = task
        task = apply_change(task, TaskChange(segment(epoch), made))
        assert task.shape == before.shape + fits
        covered = [e for ref in task.files for e in range(ref.first_epoch, ref.epoch + 1)]
        assert covered == list(range(1, epoch + 1))
        assert not task.snapshots or task.snapshot_epoch == task.snapshots[-1].epoch
