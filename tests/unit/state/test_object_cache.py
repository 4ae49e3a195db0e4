"""What user code sees never depends on what is cached, and the cache stays within its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.model.ledger import FILES, GROUPS, JOB, STAGE, Ledger

from headrace.errors import HeadraceError
from headrace.graph.operators import StoreSpec
from headrace.records.keys import encode_key
from headrace.state.backend import Position
from headrace.state.memory import MemoryBackend
from headrace.state.object_store import CacheBudget, ObjectCache, ObjectStore, scalar_types
from headrace.state.restore import TaskName
from headrace.state.store import KeyValueStore
from headrace.state.task_state import TaskState


class Point(msgspec.Struct):
    x: int


TYPES: list[Any] = [int, float, int | None, str | None, list[int], Any, Point, dict[str, int]]
VALUES: list[Any] = [0, 7, 2.0, 2.5, None, "a", True, [1, 2], (1, 2), {"a": 1}, Point(3), b"raw"]
KEYS: list[Any] = [1, 2, "1", (1, "a"), True, None]

ops = st.tuples(
    st.sampled_from(["get", "put", "change", "delete", "prefetch", "scan"]),
    st.integers(0, 2),
    st.sampled_from(KEYS),
    st.sampled_from(VALUES),
)
epochs = st.lists(st.tuples(st.lists(ops, max_size=8), st.booleans()), max_size=6)


class Store:
    """Committed entries, and objects over them that are or are not kept between epochs."""

    def __init__(self, value: Any, cache: ObjectCache | None, loaded_limit: int) -> None:
        self.value, self.cache, self.limit = value, cache, loaded_limit
        self.backend = MemoryBackend(None, ["s"])
        self.raw = KeyValueStore(self.backend, "s")
        self.objects = self.opened()
        self.at = 0

    def opened(self) -> ObjectStore:
        return ObjectStore(self.raw, self.value, loaded_limit=self.limit, cache=self.cache)

    def do(self, op: tuple[str, int, Any, Any]) -> str:
        what, group, key, value = op
        objects = self.objects
        objects.enter(group)
        if what == "put":
            objects.put(
                key, msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))
            )
        elif what == "delete":
            objects.delete(key)
        elif what == "prefetch":
            code = encode_key(key if isinstance(key, tuple) else (key,))
            objects.prefetch([group], [key], [code])
        elif what == "scan":
            return repr(list(objects.scan()))
        else:
            found = objects.get(key)
            if what == "change" and isinstance(found, list):
                found.append(9)
            elif what == "change" and isinstance(found, Point):
                found.x += 1
            return repr(found)
        return ""

    def end(self, is_committed: bool) -> None:
        self.objects.seal()
        changes = self.raw.take_changes()
        if is_committed:
            self.at += 1
            self.backend.apply({"s": changes}, Position("line", self.at, ""))
        else:
            self.objects.discard()
        if self.cache is None:
            self.objects = self.opened()


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error.message}"


@given(
    st.sampled_from(TYPES), epochs, st.sampled_from([0, 500, 1 << 20]), st.sampled_from([0, 1, 99])
)
@example(  # what reads back otherwise than it was put takes the place of what was cached
    float,
    [([("put", 0, 1, 2.5)], True), ([("put", 0, 1, 7)], True), ([("get", 0, 1, None)], True)],
    1 << 20,
    99,
)
def test_a_cached_store_shows_what_a_new_process_would(
    value: Any, schedule: list[Any], limit: int, loaded_limit: int
) -> None:
    cached = Store(value, ObjectCache(value, CacheBudget(limit)), loaded_limit)
    fresh = Store(value, None, loaded_limit)
    for steps, is_committed in schedule:
        for op in steps:
            seen, expected = outcome(cached.do, op), outcome(fresh.do, op)
            assert seen == expected
            if "Error" in seen:
                return  # the epoch fails in both
        ends = outcome(cached.end, is_committed), outcome(fresh.end, is_committed)
        assert ends[0] == ends[1]
        assert list(cached.backend.scan("s")) == list(fresh.backend.scan("s"))


@pytest.mark.parametrize(
    ("declared", "plain"),
    [
        (int, {int}),
        (int | None, {int, type(None)}),
        (str, {str}),
        (None, {type(None)}),
        (Any, None),
        (list[int], None),
        (tuple[int, str], None),
        (int | list[int], None),
        (Point, None),
    ],
    ids=str,
)
def test_only_immutable_scalars_are_kept_as_objects(declared: Any, plain: Any) -> None:
    assert scalar_types(declared) == plain


def keys_of(count: int) -> tuple[list[int], list[int], list[bytes]]:
    keys = list(range(count))
    return [key % 8 for key in keys], keys, [encode_key((key,)) for key in keys]


@pytest.mark.parametrize("value", [int, list[int]], ids=str)
@pytest.mark.parametrize("limit", [0, 20_000, 200_000, 1 << 24])
def test_the_bytes_of_a_process_bound_what_is_held(value: Any, limit: int) -> None:
    budget = CacheBudget(limit)
    caches = [ObjectCache(value, budget) for _ in range(2)]
    for cache in caches:
        store = Store(value, cache, 10**6)
        for _ in range(4):
            groups, keys, codes = keys_of(1000)
            store.objects.prefetch(groups, keys, codes)
            for group, key in zip(groups, keys, strict=True):
                store.objects.enter(group)
                store.objects.put(key, key if value is int else [key])
            store.end(is_committed=True)
        held = cache.entries + sum(len(g.values) for g in store.objects._groups.values())
        assert held * 200 <= max(limit / 2 * 1.1, 0) or limit == 1 << 24
        if limit >= 200_000:
            assert held > 0
    caches[0].close()
    assert budget.share == limit


class TestInATask:
    """The cache lives as long as what was sealed is what was committed."""

    def opened(self, path: Path, name: str = "task") -> TaskState:
        spec = StoreSpec("s", "rocksdb", int)
        return TaskState(TaskName(JOB, STAGE, 0, (0, GROUPS)), [spec], path / name, FILES)

    def epoch(self, state: TaskState, ledger: Ledger, attempt: str) -> dict[str, int]:
        state.catch_up(ledger.target(0), ledger)
        state.begin(ledger.epoch + 1, attempt)
        store = state.objects("s")
        store.enter(0)
        store.prefetch([0], ["k"], [encode_key(("k",))])
        store.put("k", (store.get("k") or 0) + 1)
        return state.counts()

    def commit(self, state: TaskState, ledger: Ledger, attempt: str) -> None:
        ledger.commit(attempt, [0], (ledger.write(attempt, {0: state.seal()}),))

    def test_hits_follow_a_commit_of_its_own_and_misses_all_else(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path / "job")
        state, other = self.opened(tmp_path), self.opened(tmp_path, "other")
        hit, miss = {"cache.hits": 1, "cache.misses": 0}, {"cache.hits": 0, "cache.misses": 1}
        assert self.epoch(state, ledger, "one") == miss
        self.commit(state, ledger, "one")
        assert self.epoch(state, ledger, "two") == hit
        self.commit(state, ledger, "two")
        assert self.epoch(state, ledger, "lost") == hit
        state.seal()
        assert self.epoch(state, ledger, "again") == miss  # the sealed epoch was not committed
        state.seal()
        assert self.epoch(other, ledger, "other") == miss
        self.commit(other, ledger, "other")
        assert self.epoch(state, ledger, "last") == miss  # another attempt was
        assert state.objects("s").get("k") == 4
        state.close()
        other.close()

    def test_a_store_in_memory_is_not_held_twice(self, tmp_path: Path) -> None:
        spec = StoreSpec("s", "memory", int)
        state = TaskState(TaskName(JOB, STAGE, 0, (0, GROUPS)), [spec], tmp_path, FILES)
        ledger = Ledger(tmp_path / "job")
        for attempt in ("one", "two"):
            assert set(self.epoch(state, ledger, attempt).values()) == {0}
            self.commit(state, ledger, attempt)


def test_a_value_of_another_type_than_declared_is_never_committed() -> None:
    store = Store(int, ObjectCache(int, CacheBudget()), 99)
    store.objects.put("k", "text")
    with pytest.raises(HeadraceError, match="was given 'text', a str; its values are declared as"):
        store.end(is_committed=True)
    assert store.objects.get("k") is None
