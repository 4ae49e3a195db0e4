"""The life of a task's state: order of calls, what is refused, damage, snapshots, registry."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.model.ledger import FILES, JOB, STAGE, Ledger

from headrace.errors import (
    ClosedError,
    CorruptDataError,
    InternalError,
    InvalidInputError,
    NotOwnerError,
)
from headrace.graph.operators import StoreSpec
from headrace.state.backend import ChainStep, Position, SegmentChain, Target
from headrace.state.compaction_policy import snapshot_decision
from headrace.state.restore import RestoreCounts, TaskName
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment import SegmentHeader
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState, TaskStateCache

SPECS = [StoreSpec("disk", "rocksdb", int), StoreSpec("hot", "memory", int)]
ALL = (0, 4)


def opened(directory: Path, specs=SPECS, groups: tuple[int, int] = ALL) -> TaskState:
    return TaskState(TaskName(JOB, STAGE, 0, groups), specs, directory, FILES)


def run_epoch(state: TaskState, ledger: Ledger, /, *, commit: bool = True, **entries: int) -> None:
    attempt = f"attempt-{ledger.written}"
    state.catch_up(ledger.target(0), ledger)
    state.begin(ledger.epoch + 1, attempt)
    for key, value in entries.items():
        for spec in SPECS:
            state.objects(spec.name).put(key, value)
    path = ledger.write(attempt, {0: state.seal()})
    if commit:
        ledger.commit(attempt, [0], (path,))


def values(state: TaskState, *keys: str) -> list[int | None]:
    return [state.objects(spec.name).get(key) for spec in SPECS for key in keys]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "job")


@pytest.fixture
def state(tmp_path: Path):
    state = opened(tmp_path / "task")
    yield state
    state.close()


def test_a_new_process_reads_what_the_old_one_had_in_memory(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    run_epoch(state, ledger, a=1)
    run_epoch(state, ledger, a=2, b=2)
    stats = state.catch_up(ledger.target(0), ledger)
    assert (stats.from_memory, stats.bytes_read, len(stats.files), stats.entries) == (True, 0, 0, 4)
    state.close()
    again = opened(tmp_path / "task")
    stats = again.catch_up(ledger.target(0), ledger)
    # The disk kept its part; memory is filled from both epochs, by the newest of each key.
    assert (stats.from_memory, len(stats.files), stats.entries) == (False, 2, 2)
    assert stats.bytes_read > 0
    assert values(again, "a", "b") == [2, 2, 2, 2]
    assert sum(again.store_bytes.values()) > 0
    again.close()


def test_a_new_snapshot_alone_rebuilds_a_lost_disk(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    for epoch in range(5):
        run_epoch(state, ledger, a=epoch, b=1)
    state.catch_up(ledger.target(0), ledger)
    ledger.write_snapshot()
    run_epoch(state, ledger, c=3)
    state.close()
    shutil.rmtree(tmp_path / "task")
    again = opened(tmp_path / "task")
    stats = again.catch_up(ledger.target(0), ledger)
    assert (len(stats.files), stats.entries) == (2, 6)
    assert values(again, "a", "b", "c") == [4, 1, 3] * 2
    again.close()


def test_a_crash_while_a_snapshot_loads_begins_again(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    run_epoch(state, ledger, a=1)
    state.catch_up(ledger.target(0), ledger)
    ledger.write_snapshot()
    state.close()
    shutil.rmtree(tmp_path / "task")
    half = opened(tmp_path / "task")
    backend = half._backends["rocksdb"][0]
    backend.apply({"disk": ([b"\0\0stale"], [b"\1"])}, None)
    half.close()
    again = opened(tmp_path / "task")
    again.catch_up(ledger.target(0), ledger)
    assert len(list(again.store("disk").scan())) == 1
    again.close()


def test_local_damage_is_healed_by_the_next_catch_up(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    state.begin(1, "one")
    for n in range(2000):
        state.objects("disk").put(f"k{n}", n)
    ledger.commit("one", [0], (ledger.write("one", {0: state.seal()}),))
    state.catch_up(ledger.target(0), ledger)
    state.close()
    for table in tmp_path.glob("task/rocksdb/db-1/*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 0xFF
        table.write_bytes(data)
    again = opened(tmp_path / "task")
    again.catch_up(ledger.target(0), ledger)
    with pytest.raises(CorruptDataError, match="built again"):
        list(again.store("disk").scan())
    stats = again.catch_up(ledger.target(0), ledger)
    assert stats.entries == 2000
    assert [again.objects("disk").get(f"k{n}") for n in range(2000)] == list(range(2000))
    again.close()


def test_damage_that_is_found_in_an_epoch_loses_nothing_of_those_before(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    """What was sealed is still in memory, but not what it builds on."""
    entries: dict[str, Any] = {f"k{n}": n for n in range(2000)}
    run_epoch(state, ledger, **entries)
    state.catch_up(ledger.target(0), ledger)
    state.close()
    for table in tmp_path.glob("task/rocksdb/db-1/*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 0xFF
        table.write_bytes(data)
    again = opened(tmp_path / "task")
    run_epoch(again, ledger, new=1)
    with pytest.raises(CorruptDataError, match="built again"):
        list(again.store("disk").scan())
    again.catch_up(ledger.target(0), ledger)
    assert values(again, "k0", "k1999", "new") == [0, 1999, 1] * 2
    again.close()


def test_a_damaged_segment_stops_with_its_name(ledger: Ledger, state: TaskState) -> None:
    run_epoch(state, ledger, a=1)
    state.discard()
    (path,) = ledger.steps[0].paths
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=path.name):
        state.catch_up(ledger.target(0), ledger)
    assert state.position is None


def test_a_segment_of_another_epoch_or_job_or_kind_is_refused(
    tmp_path: Path, ledger: Ledger, state: TaskState
) -> None:
    for epoch in (1, 2):
        ledger.commit("x", [0], (ledger.write("x", {0: {"disk": ([b"\0\0k"], [b"\1"])}}),))
        assert ledger.epoch == epoch
    first, second = ledger.steps
    ledger.steps = [ChainStep(first.position, second.paths), second]
    with pytest.raises(CorruptDataError, match=r"is of epoch 2 .* expected epoch 1"):
        state.catch_up(ledger.target(0), ledger)
    kinds: list[tuple[Literal["changelog", "snapshot"], str]]
    kinds = [("snapshot", JOB), ("changelog", "other")]
    for kind, job in kinds:
        path = tmp_path / f"{kind}-{job}"
        SegmentWriter(
            FILES,
            path,
            SegmentHeader(kind, job, first.position.lineage, 1, first.position.epoch, "x"),
        ).close()
        ledger.steps = [ChainStep(first.position, (path,)), second]
        with pytest.raises(CorruptDataError, match=f"is a {kind} of job '{job}', expected"):
            state.catch_up(ledger.target(0), ledger)


def test_an_older_driver_is_told_to_stop(ledger: Ledger, state: TaskState) -> None:
    run_epoch(state, ledger, a=1)
    older = ledger.target(0)
    run_epoch(state, ledger, a=2)
    state.catch_up(ledger.target(0), ledger)
    with pytest.raises(NotOwnerError, match="at epoch 2, asked for 1") as caught:
        state.catch_up(older, ledger)
    assert caught.value.fields["stage"] == STAGE


def test_another_digest_of_the_same_epoch_is_another_state(
    ledger: Ledger, state: TaskState
) -> None:
    run_epoch(state, ledger, a=1)
    state.catch_up(ledger.target(0), ledger)
    path = ledger.steps[0].paths
    other = Position("line-0", 1, "other digest")

    class Restored:
        def chain(self, stage, task, groups, after) -> SegmentChain:
            assert after != other
            return SegmentChain(None, (), (ChainStep(other, path),))

    stats = state.catch_up(Target(other), Restored())
    assert (stats.from_memory, stats.entries, state.position) == (False, 2, other)


@pytest.mark.parametrize("won", ["attempt-2", "another"])
def test_of_a_merged_segment_only_what_was_committed_is_within(
    ledger: Ledger, state: TaskState, won: str
) -> None:
    """As where the job directory was set back, and has gone on otherwise from there."""
    run_epoch(state, ledger, a=1)
    base = ledger.steps[0]
    state.catch_up(ledger.target(0), ledger)
    state.begin(2, "attempt-2")
    state.objects("disk").put("b", 2)
    held = Position("line-0", 2, "attempt-2")
    path = ledger.write("attempt-2", {0: state.seal()})
    state.catch_up(
        Target(held), Fixed(SegmentChain(base.position, (), (ChainStep(held, (path,)),)))
    )
    merged = ledger.root / "merged"
    end = Position("line-0", 3, "attempt-3")
    header = msgspec.structs.replace(
        SegmentHeader("changelog", JOB, end.lineage, 1, end.epoch, "attempt-3"),
        first_epoch=2,
        covers=((2, won), (3, "attempt-3")),
    )
    SegmentWriter(FILES, merged, header).close()
    step = ChainStep(end, (merged,), 2)
    anew = SegmentChain(None, (), (base, step))
    state.catch_up(Target(end), Fixed(anew, SegmentChain(held, (), (step,))))
    found = [state.objects("disk").get(key) for key in "ab"]
    assert found == [1, 2 if won == "attempt-2" else None]


class Fixed:
    """A source with one answer, and another for who holds something."""

    def __init__(self, anew: SegmentChain, on: SegmentChain | None = None) -> None:
        self._anew, self._on = anew, on or anew

    def chain(self, stage, task, groups, after) -> SegmentChain:
        return self._anew if after is None else self._on


def test_a_chain_without_a_beginning_is_a_broken_invariant(state: TaskState) -> None:
    class Torn:
        def chain(self, stage, task, groups, after) -> SegmentChain:
            return SegmentChain(Position("line", 5, "d"), (), ())

    with pytest.raises(InternalError, match="without a snapshot"):
        state.catch_up(Target(Position("line", 6, "d")), Torn())


def test_changes_are_sealed_sorted_and_only_once(ledger: Ledger, state: TaskState) -> None:
    with pytest.raises(InternalError, match="begin an attempt first"):
        state.seal()
    state.begin(1, "one")
    with pytest.raises(InternalError, match="under way"):
        state.begin(1, "two")
    for group in (3, 0, 2):
        state.objects("disk").enter(group)
        for key in ("b", "a"):
            state.objects("disk").put(key, group)
    changes = state.seal()
    keys = list(changes["disk"][0])
    assert keys == sorted(keys)
    assert len(keys) == 6
    assert "hot" not in changes
    with pytest.raises(InternalError, match="begin an attempt first"):
        state.seal()


def test_mistakes_in_specs_and_names_are_told(tmp_path: Path, state: TaskState) -> None:
    with pytest.raises(InvalidInputError, match=r"unknown kinds \['disc'\]"):
        opened(tmp_path / "x", [StoreSpec("s", "disc")])
    with pytest.raises(InvalidInputError, match="a name twice"):
        opened(tmp_path / "x", [StoreSpec("s"), StoreSpec("s")])
    with pytest.raises(InvalidInputError, match="declare it on its operator"):
        state.objects("dsk")


def test_a_closed_state_does_nothing_more(ledger: Ledger, state: TaskState) -> None:
    state.close()
    state.close()
    with pytest.raises(ClosedError, match="open it again"):
        state.catch_up(ledger.target(0), ledger)
    with pytest.raises(ClosedError, match="open it again"):
        state.begin(1, "a")


def test_a_task_without_stores_reads_nothing(tmp_path: Path) -> None:
    state = opened(tmp_path / "task", [])
    stats = state.catch_up(Target(Position("line", 3, "d")), Ledger(tmp_path))
    state.begin(4, "a")
    assert (stats, state.seal(), state.overlay_bytes) == (RestoreCounts(), {}, 0)
    assert not (tmp_path / "task").exists()


@pytest.mark.parametrize(
    ("segment", "snapshot", "state", "files", "expected"),
    [
        (0, 0, 0, 0, False),
        (50, 0, 50, 3, False),  # small: an fsync costs more than it saves
        (1_000, 0, 1_000, 10, False),  # only grew: the changelog is the state
        (1_000, 900, 1_000, 10, False),
        (1_200, 1_000, 1_000, 10, True),  # overwritten once over
        (10_000, 0, 1_000, 10, True),
        (1, 0, 1, 1_000, True),  # a thousand small files
        (30, 5, 200, 150, True),  # the same few entries, again and again in memory
        (100_000, 0, 90_000, 10, False),
    ],
)
def test_a_snapshot_is_taken_when_a_rebuild_saves_more_than_it_costs(
    segment: int, snapshot: int, state: int, files: int, expected: bool
) -> None:
    mega = 1_000_000
    arguments = (segment * mega // 10, snapshot * mega // 10, state * mega // 10, files)
    decision = snapshot_decision(*arguments)
    assert decision.take is expected
    assert ("snapshot:" in str(decision)) is expected


def test_the_registry_keeps_states_open_and_bounded(tmp_path: Path) -> None:
    registry = TaskStateCache(limit=2)
    made = {n: opened(tmp_path / str(n)) for n in range(3)}
    for n in (0, 1, 0):
        assert registry.get((JOB, STAGE, n), partial(made.__getitem__, n)) is made[n]
    registry.get((JOB, STAGE, 2), lambda: made[2])
    assert len(registry) == 2
    with pytest.raises(ClosedError, match="open it again"):
        made[1].begin(1, "a")
    registry.close((JOB, STAGE, 0))
    with pytest.raises(ClosedError, match="open it again"):
        made[0].begin(1, "a")
    assert registry.get((JOB, STAGE, 2), lambda: made[0]) is made[2]
    registry.close_all()
    with pytest.raises(ClosedError, match="open it again"):
        made[2].begin(1, "a")
    assert len(registry) == 0


def test_the_registry_keeps_as_many_as_an_epoch_needs(tmp_path: Path) -> None:
    """A store of the order that is being prepared is never closed for another of it."""
    registry = TaskStateCache(limit=1)
    registry.reserve(3)
    made = {n: opened(tmp_path / str(n)) for n in range(3)}
    for n in range(3):
        registry.get((JOB, STAGE, n), partial(made.__getitem__, n)).begin(1, "a")
    assert len(registry) == 3
    registry.close_all()


def test_the_registry_opens_a_task_anew_that_owns_other_key_groups(tmp_path: Path) -> None:
    registry = TaskStateCache()
    key = ("job", "s", 0)

    def state_of(groups: tuple[int, int]) -> TaskState:
        folder = tmp_path / f"{groups[0]}-{groups[1]}"
        name = TaskName("job", "s", 0, groups)
        return TaskState(name, [StoreSpec("n", "memory")], folder, FILES)

    whole = registry.get(key, lambda: state_of((0, 8)), (0, 8))
    assert registry.get(key, lambda: state_of((0, 8)), (0, 8)) is whole
    half = registry.get(key, lambda: state_of((0, 4)), (0, 4))
    assert half.name.groups == (0, 4)
    with pytest.raises(ClosedError):
        whole.begin(1, "a")
    registry.close_all()


def test_a_forked_child_begins_with_an_empty_registry(tmp_path: Path) -> None:
    registry = TaskStateCache()
    state = registry.get((JOB, STAGE, 0), lambda: opened(tmp_path / "task"))
    assert state.position is None
    child = os.fork()
    if child == 0:
        os._exit(len(registry))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(registry) == 1
    registry.close_all()


def test_a_scan_by_prefix_sees_the_same_with_filters_and_without(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The overlay and what is committed, in the disk store with filters and in memory."""
    specs = [StoreSpec("disk", "rocksdb", int, prefix_bloom=True), StoreSpec("hot", "memory", int)]
    state = opened(tmp_path / "task", specs)
    entries = {(first, second): first * second for first in (1, 2, -7) for second in range(4)}
    for part in (0, 1):
        state.catch_up(ledger.target(0), ledger)
        state.begin(ledger.epoch + 1, f"attempt-{part}")
        for spec in specs:
            for key, value in list(entries.items())[part::2]:
                state.objects(spec.name).put(key, value)
        path = ledger.write(f"attempt-{part}", {0: state.seal()})
        ledger.commit(f"attempt-{part}", [0], (path,))
    state.catch_up(ledger.target(0), ledger)
    state.begin(ledger.epoch + 1, "attempt-2")
    for spec in specs:
        state.objects(spec.name).delete((2, 1))
        for first in (1, 2, 3, -7):
            found = dict(state.objects(spec.name).scan(prefix=(first,)))
            wanted = {k: v for k, v in entries.items() if k[0] == first and k != (2, 1)}
            assert found == wanted
    state.close()


def test_prefix_filters_are_asked_for_by_store(tmp_path: Path, ledger: Ledger) -> None:
    """Each kind of store is opened with the names of those that want filters."""
    asked: dict[str, set[str]] = {}

    def spy(directory: Path, stores: Sequence[str], scope: str, *, by_prefix: Collection[str]):
        asked.update({store: set(by_prefix) for store in stores})
        return RocksDBBackend(directory, stores, scope, by_prefix=by_prefix)

    specs = [StoreSpec("a", "rocksdb", int, prefix_bloom=True), StoreSpec("b", "rocksdb", int)]
    name = TaskName(JOB, STAGE, 0, ALL)
    state = TaskState(name, specs, tmp_path / "task", FILES, backends={"rocksdb": spy})
    state.catch_up(ledger.target(0), ledger)
    state.close()
    assert asked == {"a": {"a"}, "b": {"a"}}
