"""Who is waited for and given up: decided by answers and time alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.membership import (
    RETURN_S,
    HostWait,
    Membership,
    count_slots,
)
from headrace.coordinator.placement import Affinity, PlacementRules, Slot

STRICT = PlacementRules(Affinity.STRICT, wait_s=5.0)
HOMES = frozenset("ab")


def slots_of(*hosts: str) -> tuple[Slot, ...]:
    return tuple(Slot(number, host) for number, host in enumerate(hosts))


def placed(members: Membership) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """The slots that tasks are placed over, and the hosts that were given up for it."""
    assert members.waits is None
    return members.slots, members.lost


def at_home(rules: PlacementRules = STRICT) -> Membership:
    """A membership of two hosts, which stand."""
    begun = Membership(rules).doubted(HOMES, 0.0).answered(slots_of("a", "b"), 0.0)
    assert placed(begun) == (slots_of("a", "b"), ())
    return begun.doubted(HOMES, 10.0)


def test_a_lost_host_is_waited_for_and_then_given_up() -> None:
    members = at_home()
    members = members.answered(slots_of("b"), 10.0)
    assert members.waits == HostWait(("a",), 15.0)
    members = members.answered(slots_of("b"), 14.9)
    assert members.waits == HostWait(("a",), 15.0)
    members = members.answered(slots_of("b"), 15.0)
    assert placed(members) == (slots_of("b"), ("a",))
    members = members.doubted(frozenset("b"), 60.0).answered(slots_of("a", "b"), 60.0)
    assert placed(members) == (slots_of("a", "b"), ())


def test_a_host_that_is_back_in_time_was_never_lost() -> None:
    members = at_home().answered(slots_of("b"), 10.0)
    assert placed(members.answered(slots_of("a", "b"), 12.0)) == (slots_of("a", "b"), ())


def test_a_host_with_fewer_slots_is_waited_for_but_not_lost() -> None:
    first = slots_of("a", "a", "b")
    members = Membership(STRICT).doubted(HOMES, 0.0).answered(first, 0.0)
    members = members.doubted(HOMES, 1.0).answered(slots_of("a", "b"), 1.0)
    assert members.waits == HostWait(("a",), 6.0)
    assert placed(members.answered(slots_of("a", "b"), 6.0)) == (slots_of("a", "b"), ())


@pytest.mark.parametrize(
    ("restore_s", "wait_s"), [(0.5, 0.0), (RETURN_S - 0.1, 0.0), (RETURN_S, RETURN_S), (60.0, 5.0)]
)
def test_a_host_is_waited_for_if_it_can_be_back_before_others_have_its_state(
    restore_s: float, wait_s: float
) -> None:
    members = at_home().doubted(HOMES, 20.0, {"a": restore_s, "b": 60.0})
    members = members.answered(slots_of("b"), 20.0)
    members.validate()
    assert members.waits == (HostWait(("a",), 20.0 + wait_s) if wait_s else None)
    assert members.lost == (() if wait_s else ("a",))


def test_the_state_of_all_hosts_that_are_missing_is_read_again() -> None:
    restores = dict.fromkeys("abc", RETURN_S / 2)
    members = Membership(STRICT).doubted(frozenset("abc"), 0.0)
    members = members.answered(slots_of("a", "b", "c"), 0.0)
    members = members.doubted(frozenset("abc"), 1.0, restores)
    both = members.answered(slots_of("c"), 1.0)
    assert both.waits == HostWait(("a", "b"), 1.0 + RETURN_S)
    one = both.answered(slots_of("b", "c"), 2.0)
    assert placed(one) == (slots_of("b", "c"), ("a",))


def test_what_was_waited_for_before_counts() -> None:
    members = Membership(STRICT).doubted(HOMES, 0.0).answered(slots_of("b"), 4.0)
    assert members.waits == HostWait(("a",), 5.0)


def test_a_host_that_was_back_in_part_and_goes_again_is_waited_for_anew() -> None:
    members = Membership(STRICT).doubted(HOMES, 0.0)
    members = members.answered(slots_of("a", "b", "b"), 0.0)
    members = members.doubted(HOMES, 0.0).answered(slots_of("a"), 0.0)
    members = members.answered(slots_of("a", "b"), 2.0)
    assert placed(members.answered(slots_of("a", "b"), 5.0)) == (slots_of("a", "b"), ())
    members = members.answered(slots_of("a"), 4.0)
    assert members.waits == HostWait(("b",), 9.0)


def test_best_effort_waits_for_nobody() -> None:
    members = at_home(PlacementRules(Affinity.BEST_EFFORT, wait_s=5.0))
    assert placed(members.answered(slots_of("b"), 10.0)) == (slots_of("b"), ("a",))


def test_a_new_driver_waits_for_the_hosts_that_the_manifest_names() -> None:
    members = Membership(STRICT).doubted(HOMES, 0.0).answered(slots_of("a", "c"), 0.0)
    assert members.waits == HostWait(("b",), 5.0)
    members = members.answered(slots_of("a", "c"), 5.0)
    assert placed(members) == (slots_of("a", "c"), ("b",))


def test_a_host_that_was_given_up_is_not_waited_for_again() -> None:
    members = at_home().answered(slots_of("b"), 15.0)
    members = members.doubted(HOMES, 16.0).answered(slots_of("b", "c"), 16.0)
    assert placed(members) == (slots_of("b", "c"), ())


@pytest.mark.parametrize("wait_s", [0.0, 5.0])
@pytest.mark.parametrize("affinity", list(Affinity))
@given(
    answers=st.lists(
        st.tuples(
            st.lists(st.sampled_from("abc"), min_size=1, max_size=5),
            st.floats(0, 4),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_no_wait_is_longer_than_its_bound_and_nobody_is_lost_before_it(
    affinity: Affinity, wait_s: float, answers: list[tuple[list[str], float, bool]]
) -> None:
    members = Membership(PlacementRules(affinity, wait_s)).doubted(HOMES, 0.0)
    waits = wait_s if affinity is Affinity.STRICT else 0.0
    now, since, last_there = 0.0, 0.0, {"a": 0.0, "b": 0.0}
    for hosts, passed, doubted in answers:
        if members.waits is None:
            members = members.doubted(HOMES if doubted else frozenset(hosts), now)
            members.validate()
            since = now
            last_there = {}
        members = members.answered(slots_of(*hosts), now)
        members.validate()
        if members.waits is not None:
            assert now < members.waits.until_s <= now + waits
        else:
            assert members.slots == slots_of(*hosts)
            assert members.wanted == count_slots(members.slots)
            for host in members.lost:
                assert host not in hosts
                assert now - max(since, last_there.get(host, since)) >= waits
        last_there |= dict.fromkeys(hosts, now)
        now += passed
