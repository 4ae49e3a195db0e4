"""Which executors are given up: those that say nothing while others live, and no others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.membership import FIRST_TIMEOUT_S, MAX_DOUBLINGS, FailureDetector

PLACES = {0: "a", 1: "b", 2: "b"}


@pytest.fixture
def silence() -> FailureDetector:
    """Slots that have answered once, and a level that began at 0."""
    made = FailureDetector(3.0)
    made.answered(PLACES)
    made.begin(0.0)
    return made


def looked(
    silence: FailureDetector,
    until: float,
    running: Mapping[int, str],
    signs: Mapping[int, str] | None = None,
    others: int = 0,
) -> tuple[float, dict[str, float]]:
    """Look as frequently as it wants to; return when it first gave something up, and what."""
    now = 0.0 if silence._looked is None else silence._looked
    while now < until:
        now += silence.every_s
        found = silence.look(now, running, signs or {}, others)
        if found:
            return now, found
    return now, {}


def test_a_slot_that_says_nothing_is_given_up_at_the_limit(silence: FailureDetector) -> None:
    assert looked(silence, 60, {0: "a"}, others=1) == (3.0, {"a": 3.0})


def test_a_slot_that_says_that_it_lives_is_not_given_up(silence: FailureDetector) -> None:
    for turn in range(100):
        assert silence.look(turn / 2, {0: "a"}, {0: str(turn)}, 1) == {}


def test_a_slot_that_falls_silent_has_the_whole_limit_from_its_last_sign(
    silence: FailureDetector,
) -> None:
    for turn in range(1, 21):
        assert silence.look(turn / 2, {0: "a"}, {0: str(turn)}, 1) == {}
    assert looked(silence, 60, {0: "a"}, {0: "20"}, others=1) == (13.0, {"a": 3.0})


def test_nobody_is_given_up_while_there_is_nobody_to_go_to(silence: FailureDetector) -> None:
    """Storage that hangs silences all: moving would help nobody."""
    assert looked(silence, 60, PLACES) == (60.0, {})


def test_a_slot_that_lives_is_somebody_to_go_to(silence: FailureDetector) -> None:
    now = 0.0
    found: dict[str, float] = {}
    for turn in range(1, 10):
        now += 0.5
        found = silence.look(now, PLACES, {1: str(turn), 2: str(turn)}, 0)
        if found:
            break
    assert (now, found) == (3.0, {"a": 3.0})


def test_a_slot_that_never_answered_may_take_longer_to_begin(silence: FailureDetector) -> None:
    assert looked(silence, 60, {7: "c"}, others=1) == (FIRST_TIMEOUT_S, {"c": FIRST_TIMEOUT_S})


def test_a_slot_that_had_nothing_to_do_for_a_while_is_known_all_the_same(
    silence: FailureDetector,
) -> None:
    silence.answered({1: "b"})
    silence.begin(0.0)
    assert looked(silence, 60, {0: "a"}, others=1) == (3.0, {"a": 3.0})


def test_a_driver_that_was_held_up_itself_blames_nobody(silence: FailureDetector) -> None:
    """A laptop that slept, a driver that was paused: nothing is known of that time."""
    assert silence.look(0.5, {0: "a"}, {}, 1) == {}
    assert silence.look(600.0, {0: "a"}, {}, 1) == {}
    assert looked(silence, 700, {0: "a"}, others=1)[0] == 602.5


def test_what_is_given_up_is_left_out_until_it_ends_a_task(silence: FailureDetector) -> None:
    silence.give_up({"a": 5})
    assert set(silence.aside) == {"a"}
    assert silence.review({"a": 5, "b": 9}) == []
    assert set(silence.aside) == {"a"}
    assert silence.review({"a": 6, "b": 9}) == ["a"]
    assert not silence.aside


def test_what_spark_gave_up_too_is_forgotten(silence: FailureDetector) -> None:
    silence.give_up({"a": 5})
    assert silence.review({"b": 9}) == []
    assert not silence.aside
    assert silence.limit_s == 3.0


def test_each_mistake_doubles_the_time_to_wait(silence: FailureDetector) -> None:
    """Code that holds a process for a minute is not moved from host to host for ever."""
    for turn in range(MAX_DOUBLINGS + 3):
        silence.give_up({"a": turn})
        silence.review({"a": turn + 1})
        assert silence.limit_s == 3.0 * 2 ** min(turn + 1, MAX_DOUBLINGS)


@given(
    st.lists(st.tuples(st.floats(0.01, 2.0), st.sets(st.sampled_from(sorted(PLACES)))), max_size=60)
)
def test_only_the_silent_are_given_up_and_never_all(steps: list[tuple[float, set[int]]]) -> None:
    """Against a model that keeps when each slot was last heard."""
    silence = FailureDetector(3.0)
    silence.answered(PLACES)
    silence.begin(0.0)
    now, heard = 0.0, dict.fromkeys(PLACES, 0.0)
    signs: dict[int, str] = {}
    for step, (pause, saying) in enumerate(steps):
        now += pause
        for slot in saying:
            signs[slot], heard[slot] = f"{step}", now
        found = silence.look(now, PLACES, signs, 0)
        assert len(found) < len(set(PLACES.values()))
        for executor in found:
            slots = [slot for slot, on in PLACES.items() if on == executor]
            assert max(now - heard[slot] for slot in slots) >= 3.0
