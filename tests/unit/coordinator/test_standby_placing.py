"""Where standbys are, and who takes over: what holds of any cluster."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.host_state import Standby, place_standbys, successors, violations

HOSTS = ["a", "b", "c", "d", "e"]
hosts = st.lists(st.sampled_from(HOSTS), min_size=1, unique=True)
actives = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=20).map(
    lambda homes: {f"s/{n}": {home} for n, home in enumerate(homes)}
)
befores = st.dictionaries(
    st.integers(0, 19).map(lambda n: f"s/{n}"),
    st.lists(st.sampled_from(HOSTS), max_size=3, unique=True).map(
        lambda names: tuple(Standby(name, 3, "x") for name in names)
    ),
)


def homes_of(actives: dict[str, set[str]]) -> dict[str, str]:
    return {task: next(iter(own)) for task, own in actives.items()}


@given(actives, hosts, befores, st.integers(1, 3))
def test_no_standby_is_beside_its_task_and_each_task_has_as_many_as_can_be(
    actives: dict[str, set[str]],
    hosts: list[str],
    before: dict[str, tuple[Standby, ...]],
    copies: int,
) -> None:
    placed = place_standbys(actives, hosts, before, copies)
    assert violations(homes_of(actives), placed) == []
    for task, own in actives.items():
        found = placed.get(task, ())
        assert len(found) == min(copies, len(set(hosts) - own))
        assert {standby.host for standby in found} <= set(hosts)


@given(actives, hosts, st.integers(1, 3))
def test_placing_again_moves_nothing(
    actives: dict[str, set[str]], hosts: list[str], copies: int
) -> None:
    placed = place_standbys(actives, hosts, {}, copies)
    again = place_standbys(actives, hosts, placed, copies)
    assert {task: set(found) for task, found in again.items()} == {
        task: set(found) for task, found in placed.items()
    }


def test_standbys_of_one_host_are_spread_over_the_others() -> None:
    actives = {f"s/{n}": {HOSTS[n % 3]} for n in range(12)}
    placed = place_standbys(actives, HOSTS[:3], {}, 1)
    pairs = Counter((min(own), placed[task][0].host) for task, own in actives.items())
    assert set(pairs.values()) == {2}
    assert Counter(found[0].host for found in placed.values()) == dict.fromkeys("abc", 4)


def test_what_a_standby_has_reached_stays_with_it() -> None:
    before = {"s/0": (Standby("b", 7, "x"),)}
    assert place_standbys({"s/0": {"a"}}, ["a", "b"], before, 1) == before


@given(actives, hosts, befores)
def test_tasks_of_lost_hosts_go_to_the_furthest_standby(
    actives: dict[str, set[str]], hosts: list[str], before: dict[str, tuple[Standby, ...]]
) -> None:
    homes = homes_of(actives)
    found = successors(homes, before, hosts)
    for task, home in homes.items():
        able = [s for s in before.get(task, ()) if s.host in hosts]
        if home in hosts or not able:
            assert found[task] == home
        else:
            assert found[task] in {standby.host for standby in able}


def test_one_that_holds_nothing_is_no_successor_and_the_furthest_wins() -> None:
    held = {"s/0": (Standby("b"), Standby("c", 4, "x"), Standby("d", 6, "y"))}
    assert successors({"s/0": "a"}, held, ["b", "c", "d"]) == {"s/0": "d"}
    assert successors({"s/0": "a"}, held, ["b", "c"]) == {"s/0": "c"}
    assert successors({"s/0": "a"}, held, ["b"]) == {"s/0": "a"}


@given(actives, hosts, befores, st.integers(1, 2))
def test_no_host_has_more_standbys_of_anothers_tasks_than_its_part(
    actives: dict[str, set[str]],
    hosts: list[str],
    before: dict[str, tuple[Standby, ...]],
    copies: int,
) -> None:
    """So that the host of the standbys has room for the tasks of one that is lost."""
    copies = min(copies, max(1, len(hosts) - 1))
    placed = place_standbys(actives, hosts, before, copies)
    pairs = Counter((min(actives[t]), s.host) for t, found in placed.items() for s in found)
    tasks = Counter(min(own) for own in actives.values())
    for (home, _), count in pairs.items():
        others = len(set(hosts) - {home})
        assert count <= -(-tasks[home] * copies // others) + (home not in hosts)
