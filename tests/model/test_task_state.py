"""A task's state is a dict of what was committed, whatever dies, loses or moves in between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.ledger import FILES, GROUPS, JOB, STAGE, Ledger

from headrace.graph.operators import StoreSpec
from headrace.records.keys import encode_key, group_range
from headrace.state.restore import RestoreCounts, TaskName
from headrace.state.task_state import TaskState

pytestmark = pytest.mark.model

SPECS = [
    StoreSpec("objects", "rocksdb", int),
    StoreSpec("raw", "rocksdb"),
    StoreSpec("hot", "memory", int),
]
STORES = [spec.name for spec in SPECS]
Entries = dict[tuple[str, bytes], int]

stores = st.sampled_from(STORES)
groups = st.integers(0, GROUPS - 1)
keys = st.sampled_from([1, True])
values = st.none() | st.integers(0, 200)
MEMORY = Path("/dev/shm")  # RocksDB syncs a lot, which tests nothing here


def full(group: int, key: object) -> bytes:
    return group.to_bytes(2, "big") + encode_key(key if isinstance(key, tuple) else (key,))


def packed(value: int) -> bytes:
    """MessagePack of 0 to 200, so that raw and object stores hold the same bytes."""
    return bytes([value]) if value < 128 else bytes([0xCC, value])


def set_or_drop(entries: Entries, at: tuple[str, bytes], value: int | None) -> None:
    entries.pop(at, None)
    if value is not None:
        entries[at] = value


class Machine:
    """Several tasks of one stage, the epochs they run, and what can happen to them."""

    def __init__(self, tasks: int) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.ledger = Ledger(self.root / "job")
        self.tasks = tasks
        self.states: list[TaskState] = []
        self.committed: Entries = {}
        self.now: Entries = {}
        self.attempts = 0
        self.running = False
        self.remembered = False
        self.open()

    def open(self) -> None:
        self.states = [
            TaskState(
                TaskName(JOB, STAGE, task, group_range(task, self.tasks, GROUPS)),
                SPECS,
                self.root / f"task-{task}",
                FILES,
            )
            for task in range(self.tasks)
        ]
        self.running = self.remembered = False
        self.now = dict(self.committed)

    def close(self) -> None:
        for state in self.states:
            state.close()
        self.states = []

    def begin(self) -> None:
        """Catch all tasks up and begin an attempt, as a slot does."""
        if self.running:
            return
        self.attempts += 1
        for task, state in enumerate(self.states):
            stats = state.catch_up(self.ledger.target(task), self.ledger)
            if self.remembered:
                assert (stats.from_memory, stats.bytes_read) == (True, 0)
            assert state.position == self.ledger.position
            again = state.catch_up(self.ledger.target(task), self.ledger)
            assert again == RestoreCounts()
        self.check_committed()
        for state in self.states:
            state.begin(self.ledger.epoch + 1, f"attempt-{self.attempts}")
        self.running, self.remembered = True, False
        self.now = dict(self.committed)

    def check_committed(self) -> None:
        found = {
            (store, key): value
            for state in self.states
            for store in STORES
            for key, value in state.store(store).scan()
        }
        assert found == {at: packed(value) for at, value in self.committed.items()}

    def state_of(self, group: int) -> TaskState:
        return next(s for s in self.states if s.name.groups[0] <= group < s.name.groups[1])

    def change(self, store: str, group: int, key: object, value: int | None) -> None:
        state, at = self.state_of(group), (store, full(group, key))
        if store == "raw":
            changed = state.store(store)
            if value is None:
                changed.delete(at[1])
            else:
                changed.put_many([at[1]], [packed(value)])
        else:
            objects = state.objects(store)
            objects.enter(group)
            if value is None:
                objects.delete(key)
            else:
                objects.put(key, value)
        assert state.overlay_bytes > 0
        set_or_drop(self.now, at, value)

    def read(self, store: str, group: int, key: object) -> None:
        state, at = self.state_of(group), (store, full(group, key))
        if store == "raw":
            value = self.now.get(at)
            assert state.store(store).get_many([at[1]]) == [
                value if value is None else packed(value)
            ]
        else:
            objects = state.objects(store)
            objects.enter(group)
            objects.prefetch([group], [key], [at[1][2:]])
            assert objects.get(key) == self.now.get(at)
            here = sorted(k for k in self.now if k[0] == store and k[1][:2] == at[1][:2])
            assert [v for _, v in objects.scan()] == [self.now[k] for k in here]

    def work(self, changes) -> None:
        """Part of an epoch; it goes on in a later step, or never ends."""
        self.begin()
        for store, group, key, value in changes:
            self.read(store, group, key)
            self.change(store, group, key, value)
            self.read(store, group, key)

    def seal(self) -> Path:
        sealed = {task: state.seal() for task, state in enumerate(self.states)}
        return self.ledger.write(f"attempt-{self.attempts}", sealed)

    def commit(self, changes) -> None:
        self.work(changes)
        path = self.seal()
        self.ledger.commit(f"attempt-{self.attempts}", list(range(self.tasks)), (path,))
        self.committed = dict(self.now)
        self.running, self.remembered = False, True

    def write_but_lose(self, changes) -> None:
        """Everything is written, and the epoch is not committed: it runs again."""
        self.work(changes)
        self.seal()
        self.running = False
        self.now = dict(self.committed)

    def another_attempt_wins(self, entries) -> None:
        """A zombie sealed other changes than the ones that were committed."""
        self.begin()
        self.seal()
        won = {(store, full(group, key)): value for (store, group, key), value in entries.items()}
        changes: dict[int, dict[str, tuple]] = {}
        for task in range(self.tasks):
            low, high = group_range(task, self.tasks, GROUPS)
            for store in STORES:
                own = {k: v for (name, k), v in won.items() if name == store and low <= k[1] < high}
                rows = sorted(own)
                chosen = [None if own[k] is None else packed(own[k]) for k in rows]
                changes.setdefault(task, {})[store] = (rows, chosen)
        path = self.ledger.write("winner", changes)
        self.ledger.commit("winner", list(range(self.tasks)), (path,))
        for at, value in won.items():
            set_or_drop(self.committed, at, value)
        self.running = False
        self.now = dict(self.committed)

    def discard(self) -> None:
        for state in self.states:
            state.discard()
            assert state.overlay_bytes == 0
        self.running = self.remembered = False
        self.now = dict(self.committed)

    def retry(self) -> None:
        """An attempt in the same process drops what its predecessor began."""
        self.running = self.remembered = False
        self.begin()

    def stop(self, how: str) -> None:
        """The process ends; another opens what is left on the disk."""
        left = self.root / "left"
        for task, state in enumerate(self.states):
            folder = self.root / f"task-{task}"
            if how == "flush, crash":
                state.flush()
            if "crash" in how and folder.exists():
                shutil.copytree(folder, left / folder.name)
        self.close()
        for folder in left.iterdir() if left.exists() else ():
            shutil.rmtree(self.root / folder.name)
            shutil.move(folder, self.root / folder.name)
        if how == "disk":
            shutil.rmtree(self.root / "task-0", ignore_errors=True)
        self.open()

    def rescale(self, tasks: int) -> None:
        self.close()
        self.ledger.rescale()
        self.tasks = tasks
        self.open()

    def snapshot(self) -> None:
        self.retry()
        self.ledger.write_snapshot()

    def positions_are_never_ahead(self) -> None:
        for state in self.states:
            held = state.position
            ahead = held and held.lineage == self.ledger.lineage and held.epoch > self.ledger.epoch
            assert not ahead

    def end(self) -> None:
        self.begin()
        self.close()


changes = st.lists(st.tuples(stores, groups, keys, values), min_size=2, max_size=9)
entries = st.dictionaries(st.tuples(stores, groups, keys), values, min_size=1, max_size=5)
steps = st.one_of(
    st.tuples(st.just("work"), changes),
    st.tuples(st.just("commit"), changes),
    st.tuples(st.just("commit"), changes),
    st.tuples(st.just("write_but_lose"), changes),
    st.tuples(st.just("another_attempt_wins"), entries),
    st.tuples(st.sampled_from(["discard", "retry", "snapshot"])),
    st.tuples(st.just("stop"), st.sampled_from(["restart", "crash", "flush, crash", "disk"])),
    st.tuples(st.just("rescale"), st.integers(1, 3)),
)


@given(tasks=st.integers(1, 3), schedule=st.lists(steps, min_size=8, max_size=20))
def test_state_is_what_was_committed(tasks: int, schedule) -> None:
    machine = Machine(tasks)
    try:
        for name, *arguments in schedule:
            getattr(machine, name)(*arguments)
            machine.positions_are_never_ahead()
        machine.end()
    finally:
        machine.close()
        shutil.rmtree(machine.root)
