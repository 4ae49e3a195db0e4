"""Placement is a pure function: stable while hosts stand, even, and it knows lost hosts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.placement import Slot, place

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8)
TASKS = st.integers(0, 30).map(lambda count: [f"stage/{n}" for n in range(count)])


def slots_of(hosts: list[str]) -> list[Slot]:
    return [Slot(number, host) for number, host in enumerate(hosts)]


def hosts_of(placed: dict[int, list[str]], hosts: list[str]) -> dict[str, str]:
    return {task: hosts[slot] for slot, tasks in placed.items() for task in tasks}


@given(
    tasks=TASKS, hosts=HOSTS, before=st.dictionaries(st.integers(0, 30), st.sampled_from("abcdx"))
)
def test_every_task_has_one_slot_and_no_slot_more_than_its_share(
    tasks: list[str], hosts: list[str], before: dict[int, str]
) -> None:
    held = {f"stage/{n}": host for n, host in before.items()}
    placed = place(tasks, slots_of(hosts), held)
    assert sorted(task for mine in placed.values() for task in mine) == sorted(tasks)
    assert all(placed.values())
    share = Counter(hosts)
    for host, count in Counter(hosts_of(placed, hosts).values()).items():
        assert count <= -(-len(tasks) * share[host] // len(hosts))
    for host in share:
        loads = [len(placed.get(n, ())) for n, other in enumerate(hosts) if other == host]
        assert max(loads) - min(loads) <= 1
    assert placed == place(tasks, slots_of(hosts), held)


@given(tasks=TASKS, hosts=HOSTS)
def test_new_tasks_are_spread_evenly_by_cores(tasks: list[str], hosts: list[str]) -> None:
    placed = place(tasks, slots_of(hosts), {})
    share, load = Counter(hosts), Counter(hosts_of(placed, hosts).values())
    ratios = [load[host] / share[host] for host in share]
    assert max(ratios) - min(ratios) <= 1


@given(tasks=TASKS, hosts=HOSTS)
def test_tasks_stay_where_they_are(tasks: list[str], hosts: list[str]) -> None:
    """While the hosts stand nothing moves, not even from slot to slot."""
    first = place(tasks, slots_of(hosts), {})
    assert first == place(tasks, slots_of(hosts), hosts_of(first, hosts))


@given(tasks=TASKS, hosts=HOSTS, lost=st.sampled_from("abcd"))
def test_only_tasks_of_a_lost_host_move(tasks: list[str], hosts: list[str], lost: str) -> None:
    left = [host for host in hosts if host != lost]
    if not left:
        return
    before = hosts_of(place(tasks, slots_of(hosts), {}), hosts)
    after = hosts_of(place(tasks, slots_of(left), before), left)
    assert all(after[task] == before[task] for task in tasks if before[task] != lost)


def test_slots_keep_their_numbers_and_tasks_their_order() -> None:
    slots = [Slot(7, "a"), Slot(2, "b"), Slot(4, "a")]
    placed = place([f"t{n}" for n in range(6)], slots, {})
    assert placed == {4: ["t0", "t2"], 7: ["t3", "t5"], 2: ["t1", "t4"]}


def test_a_host_that_comes_back_takes_its_share_of_what_is_new() -> None:
    before = {"t0": "a", "t1": "a", "t2": "a", "t3": "a"}
    found = hosts_of(place([*before], slots_of(["a", "b"]), before), ["a", "b"])
    assert Counter(found.values()) == {"a": 2, "b": 2}
    assert [task for task, host in found.items() if host == "a"] == ["t0", "t1"]


def test_small_stages_begin_at_different_slots() -> None:
    """Stages of one task each do not all go to the first slot of the first host."""
    slots = [Slot(0, "a"), Slot(1, "a"), Slot(2, "b"), Slot(3, "b")]
    used = [next(iter(place([f"stage-{turn}/0"], slots, {}, turn))) for turn in range(4)]
    assert len(set(used)) == 4
