"""Timers fire once, one by one, in order of time; what is set or cancelled meanwhile counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.timers import Timer, Timers
from headrace.state.memory import MemoryBackend
from headrace.state.store import KeyValueStore

GROUPS = 4
HOUR = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyValueStore]:
    backend = MemoryBackend(tmp_path, ("timers",), "test")
    yield KeyValueStore(backend, "timers")
    backend.close()


def timers(store: KeyValueStore) -> Timers:
    return Timers(store, (0, GROUPS))


def fired(found: Iterator[Timer]) -> list[tuple[int, str, Any]]:
    return [(timer.at, timer.name, timer.key) for timer in found]


def test_timers_fire_once_in_order_of_time_name_and_key(store: KeyValueStore) -> None:
    own = timers(store)
    for at, name, key, group in [
        (30, "", "a", 0),
        (10, "z", "b", 3),
        (10, "a", "c", 1),
        (10, "a", "b", 2),
        (10, "a", "b", 2),
        (-5, "", None, 0),
    ]:
        own.set(group, at, name, (key,), wall=False)
    assert fired(own.fire(10, wall=False)) == [
        (-5, "", None),
        (10, "a", "b"),
        (10, "a", "c"),
        (10, "z", "b"),
    ]
    assert fired(own.fire(29, wall=False)) == []
    assert own.deadlines() == (30, None)
    assert fired(own.fire(30, wall=False)) == [(30, "", "a")]
    assert own.deadlines() == (None, None)


def test_event_and_wall_timers_are_apart(store: KeyValueStore) -> None:
    own = timers(store)
    own.set(1, 10, "", ("k",), wall=False)
    own.set(1, 20, "", ("k",), wall=True)
    assert own.deadlines() == (10, 20)
    assert fired(own.fire(100, wall=True)) == [(20, "", "k")]
    assert own.deadlines() == (10, None)
    found = next(own.fire(100, wall=False))
    assert found == Timer(10, "", "k", 1, wall=False)


def test_keys_come_back_as_they_were(store: KeyValueStore) -> None:
    own = timers(store)
    own.set(0, 1, "", (1, None, "x"), wall=False)
    own.set(0, 2, "", (1.5,), wall=False)
    assert [key for *_, key in fired(own.fire(9, wall=False))] == [(1, None, "x"), 1.5]


def test_a_cancelled_timer_is_silent_even_while_others_fire(store: KeyValueStore) -> None:
    own = timers(store)
    for at in (1, 2, 3):
        own.set(0, at, "", ("k",), wall=False)
    own.cancel(0, 1, "", ("k",), wall=False)
    own.cancel(0, 99, "no such", ("k",), wall=True)
    seen = []
    for timer in own.fire(10, wall=False):
        seen.append(timer.at)
        own.cancel(0, 3, "", ("k",), wall=False)
    assert seen == [2]
    assert own.deadlines() == (None, None)


def test_a_timer_set_while_others_fire_takes_its_place(store: KeyValueStore) -> None:
    """As it would if each epoch had gone on by one millisecond."""
    own = timers(store)
    own.set(0, 1, "", ("k",), wall=False)
    own.set(1, 5, "", ("k",), wall=False)
    seen = []
    for timer in own.fire(10, wall=False):
        seen.append((timer.at, timer.group))
        if timer.at < 5:
            own.set(0, timer.at + 2, "", ("k",), wall=False)
            own.set(0, timer.at + HOUR, "", ("k",), wall=False)
    assert seen == [(1, 0), (3, 0), (5, 0), (5, 1)]
    assert own.deadlines() == (1 + HOUR, None)


def test_a_timer_that_sets_itself_again_does_not_hold_up_the_epoch(store: KeyValueStore) -> None:
    own = timers(store)
    own.set(0, 5, "", ("k",), wall=True)
    for _ in range(3):
        seen = []
        for timer in own.fire(10, wall=True):
            seen.append(timer.at)
            own.set(0, timer.at, "", ("k",), wall=True)
            own.set(0, timer.at - 1, "gone by", ("k",), wall=True)
            own.cancel(0, timer.at - 1, "gone by", ("k",), wall=True)
        assert seen == [5]


def test_at_the_end_of_the_inputs_none_is_added(store: KeyValueStore) -> None:
    own = timers(store)
    own.set(0, 5, "", ("k",), wall=False)
    seen = []
    for timer in own.fire(1 << 62, wall=False, takes_new=False):
        seen.append(timer.at)
        own.set(0, timer.at + 1, "", ("k",), wall=False)
    assert seen == [5]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "cancel", "fire", "reopen"]),
        st.integers(0, GROUPS - 1),
        st.integers(-3, 20),
        st.booleans(),
    ),
    max_size=40,
)


@given(operations=OPERATIONS)
def test_timers_equal_a_set(tmp_path_factory: Any, operations: list[Any]) -> None:
    """Whatever is set, cancelled and fired, also when the object is made anew in between."""
    backend = MemoryBackend(tmp_path_factory.mktemp("t"), ("timers",), "test")
    store = KeyValueStore(backend, "timers")
    own, model = timers(store), set()
    for what, group, at, wall in operations:
        entry = (wall, at, "", group)
        if what == "set":
            own.set(group, at, "", (group,), wall=wall)
            model.add(entry)
        elif what == "cancel":
            own.cancel(group, at, "", (group,), wall=wall)
            model.discard(entry)
        elif what == "reopen":
            own = timers(store)
        else:
            due = sorted(timer for timer in model if timer[0] == wall and timer[1] <= at)
            model.difference_update(due)
            found = [(t.wall, t.at, t.name, t.key) for t in own.fire(at, wall=wall)]
            assert due == found
        for side, kind in zip(own.deadlines(), (False, True), strict=True):
            earliest = min((t[1] for t in model if t[0] == kind), default=None)
            # After a cancel the deadline may be early, which costs an epoch and no more.
            assert earliest is None or (side is not None and side <= earliest)
    backend.close()
