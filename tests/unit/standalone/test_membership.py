"""The table of processes: what events make of it, and what always holds."""

from __future__ import annotations

import random

from headrace.standalone.group import SETTLE_S, Membership

SILENCE_S = 5.0


def with_members(*hosts: str) -> Membership:
    found = Membership(SILENCE_S)
    for host in hosts:
        found.join(host, "m", 1, 1, 0.0)
    return found


def test_a_process_that_comes_back_takes_the_place_of_its_former_self() -> None:
    found = with_members("a", "b")
    again = found.join("b", "m", 9, 2, 1.0)
    assert [(one.host, one.process) for one in found.members.values()] == [("a", 1), ("b", 9)]
    assert again.number == 2


def test_the_version_changes_whenever_slots_come_or_go() -> None:
    found = with_members("a", "b")
    seen = [found.version]
    found.leave(1)
    seen.append(found.version)
    found.leave(1)
    assert found.version == seen[-1]
    found.lose(1, 1.0)
    seen.append(found.version)
    found.join("b", "m", 1, 1, 2.0)
    seen.append(found.version)
    assert len(set(seen)) == len(seen)


def test_for_one_that_has_left_nobody_waits_and_silence_counts_as_waited() -> None:
    found = with_members("a", "left", "silent", "killed", "leaving")
    found.leave(1)
    found.lose(1, 3.0)
    found.lose(2, 7.0)
    found.heard(3, 7.0)
    found.lose(3, 7.5)
    found.leave(4)
    waited = [found.waited_s([number]) for number in range(5)]
    assert waited == [0.0, float("inf"), 7.0, 0.0, float("inf")]
    assert found.waited_s([1, 2, 3]) == 0.0


def test_one_that_would_like_to_leave_gets_nothing_and_goes_when_nothing_is_placed_on_it() -> None:
    found = with_members("a", "b")
    found.leave(1)
    assert [one.host for one in found.able()] == ["a"]
    assert found.unneeded({0, 1}) == []
    assert [one.host for one in found.unneeded({0})] == ["b"]


def test_a_new_driver_waits_a_moment_for_those_of_the_one_before() -> None:
    found = with_members("a")
    found.expect({"a", "b", "c"}, 10.0)
    assert found.awaited(10.0) == {"b", "c"}
    found.join("b", "m", 1, 1, 10.1)
    assert found.awaited(10.2) == {"c"}
    assert found.awaited(10.0 + SETTLE_S) == set()


def test_who_says_nothing_is_silent() -> None:
    found = with_members("a", "b")
    found.heard(0, 3.0)
    assert found.silent(SILENCE_S - 0.1) == []
    assert [one.host for one in found.silent(SILENCE_S)] == ["b"]


def disturb(found: Membership, draw: random.Random, now: float) -> None:
    number = draw.choice([*found.members, 99])
    match draw.randrange(5):
        case 0:
            found.join(draw.choice("abcd"), "m", draw.randrange(99), 2, now)
        case 1:
            found.heard(number, now)
        case 2:
            found.leave(number)
        case 3:
            found.lose(number, now)
        case _:
            found.expect(set("ab"), now)


def test_what_always_holds_holds_under_random_events() -> None:
    for seed in range(500):
        draw = random.Random(seed)
        found, now = with_members("own"), 0.0
        for _ in range(40):
            now += draw.random()
            disturb(found, draw, now)
            found.validate()
            assert {one.number for one in found.able()} <= set(found.members)
