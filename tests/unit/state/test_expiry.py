"""What was not written for the time to live is neither seen nor kept, the same on every copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.keys import encode_key
from headrace.state.backend import Backend, Position
from headrace.state.memory import MemoryBackend
from headrace.state.object_store import ObjectStore
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.store import TtlStore, sweep_turns, ttl_stamp, without_stamp

TTL = 1000


class Epochs:
    """A store with a time to live over two key groups, committed epoch by epoch."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.raw = TtlStore(backend, "s", TTL, (4, 6))
        self.objects = ObjectStore(self.raw, int)
        self.epoch, self.swept_ms = 0, -1

    def restart(self) -> None:
        """Go on in another process, which knows what was committed alone."""
        self.raw = TtlStore(self.backend, "s", TTL, (4, 6))
        self.objects = ObjectStore(self.raw, int)

    def begin(self, wall_ms: int, group: int = 4) -> ObjectStore:
        self.raw.begin(wall_ms, self.swept_ms)
        self.objects.enter(group)
        return self.objects

    def commit(self) -> dict[bytes, bytes | None]:
        self.objects.seal()
        keys, values = self.raw.take_changes()
        self.epoch += 1
        self.swept_ms = self.raw.swept_ms
        self.backend.apply({"s": (keys, values)}, Position("line", self.epoch, ""))
        return dict(zip(keys, values, strict=True))


@pytest.fixture(params=["memory", "rocksdb"])
def epochs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Epochs]:
    kind = {"memory": MemoryBackend, "rocksdb": RocksDBBackend}[request.param]
    backend = kind(tmp_path, ["s"])
    yield Epochs(backend)
    backend.close()


def test_an_entry_is_seen_until_its_time_and_not_from_then_on(epochs: Epochs) -> None:
    epochs.begin(10_000).put("k", 1)
    epochs.commit()
    for wall, seen in ((10_000, 1), (10_999, 1), (11_000, None), (99_000, None)):
        store = epochs.begin(wall)
        store.prefetch([4], ["k"], [encode_key(("k",))])
        assert store.get("k") == seen
        assert list(store.scan()) == ([("k", 1)] if seen else [])
        epochs.objects.discard()


def test_writing_again_begins_a_new_life(epochs: Epochs) -> None:
    for wall in (10_000, 10_900, 11_800):
        store = epochs.begin(wall)
        store.put("k", store.get("k", 0) + 1)
        epochs.commit()
    assert epochs.begin(12_799).get("k") == 3


def test_scans_lay_changes_over_what_still_lives(epochs: Epochs) -> None:
    store = epochs.begin(10_000)
    for key in [("a", 1), ("a", 2), ("b", 1)]:
        store.put(key, 1)
    epochs.commit()
    epochs.begin(10_600).put(("a", 3), 2)
    epochs.commit()
    store = epochs.begin(11_100)  # the first three have expired
    store.put(("a", 2), 3)
    store.put(("c", 1), 3)
    store.delete(("a", 3))
    assert list(store.scan(prefix="a")) == [(("a", 2), 3)]
    assert list(store.scan(low=("a", 3), high=("d",))) == [(("c", 1), 3)]


def test_what_expired_is_deleted_in_the_changelog_within_two_lives(epochs: Epochs) -> None:
    epochs.begin(10_000).put("k", 1)
    epochs.begin(10_000, group=5).put("other", 1)
    epochs.commit()
    gone: dict[bytes, bytes | None] = {}
    for wall in range(10_100, 12_001, 100):
        epochs.begin(wall)
        gone |= epochs.commit()
    assert set(gone.values()) == {None}
    assert len(gone) == 2
    assert list(epochs.backend.scan("s")) == []


def test_a_key_that_is_written_again_in_the_epoch_of_its_removal_stays(epochs: Epochs) -> None:
    epochs.begin(10_000).put("k", 1)
    epochs.commit()
    epochs.begin(20_000).put("k", 2)
    epochs.commit()
    assert epochs.begin(20_001).get("k") == 2


def test_an_epoch_that_has_looked_at_enough_leaves_the_rest_to_the_next(
    epochs: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the last one was; where an epoch changes much, more is enough."""
    monkeypatch.setattr("headrace.state.store.SWEEP_ENTRIES", 5)
    for group in (4, 5):
        store = epochs.begin(10_000, group)
        for key in range(7):
            store.put(key, 1)
        epochs.commit()
    left = []
    for wall in (60_000, 60_001, 60_002):
        epochs.restart()
        epochs.begin(wall)
        epochs.commit()
        left.append(len(list(epochs.backend.scan("s"))))
    assert left == [7, 0, 0]
    assert epochs.swept_ms == 60_002
    for group in (4, 5):
        store = epochs.begin(70_000, group)
        for key in range(7):
            store.put(key, 1)
        epochs.commit()
    store = epochs.begin(90_000)
    for key in (100, 101):  # eight entries
        store.put(key, 1)
    assert sum(value is None for value in epochs.commit().values()) == 14


@given(
    st.integers(1, 600),
    st.integers(1, 10_000),
    st.lists(st.integers(0, 3000), min_size=1, max_size=40),
)
def test_every_group_has_its_turn_in_a_life(count: int, ttl: int, steps: list[int]) -> None:
    wall, taken = 10**12, set()
    for step in [*steps, ttl]:
        turns = sweep_turns(count, ttl, wall, wall + step)
        assert len(turns) <= count
        taken = {turn % count for turn in turns}
        wall += step
    assert taken == set(range(count))


def test_a_stamped_value_tells_when_it_was_written_and_a_bare_one_that_it_does_not() -> None:
    raw = ttl_stamp(1234) + b"\x01"
    assert without_stamp(raw) == without_stamp(b"\x01") == b"\x01"


steps = st.lists(
    st.tuples(
        st.integers(0, 700),  # the epoch's clock moves on
        st.lists(st.tuples(st.integers(4, 5), st.integers(0, 3), st.booleans()), max_size=4),
        st.booleans(),
    ),
    max_size=25,
)


@given(steps, st.booleans())
def test_what_is_seen_follows_from_the_clock_of_the_writes_alone(
    schedule: list[tuple[int, list[tuple[int, int, bool]], bool]], restarts: bool
) -> None:
    epochs = Epochs(MemoryBackend(None, ["s"]))
    written: dict[tuple[int, int], int] = {}
    wall = 10_000
    for step, writes, is_committed in schedule:
        wall += step
        now = {at: ms for at, ms in written.items() if ms + TTL > wall}
        epochs.begin(wall)
        for group, key, is_put in writes:
            epochs.objects.enter(group)
            assert epochs.objects.get(key) == now.get((group, key))
            if is_put:
                epochs.objects.put(key, wall)
                now[group, key] = wall
            else:
                epochs.objects.delete(key)
                now.pop((group, key), None)
        for group in (4, 5):
            epochs.objects.enter(group)
            expected = sorted((key, ms) for (at, key), ms in now.items() if at == group)
            assert list(epochs.objects.scan()) == expected
        if is_committed:
            epochs.commit()
            written = now
        else:
            epochs.objects.seal()
            epochs.raw.take_changes()
        if restarts:
            epochs.restart()
    epochs.begin(wall)
    epochs.commit()
    for wall_ms in (wall + TTL, wall + 2 * TTL):
        epochs.begin(wall_ms)
        epochs.commit()
    assert list(epochs.backend.scan("s")) == []
