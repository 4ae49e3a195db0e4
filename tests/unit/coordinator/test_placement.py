"""Placement is a pure function: stable while hosts stand, even, and it knows lost hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.placement import (
    HostAssignment,
    MoveBudget,
    Slot,
    SlotAssignment,
    StageTasks,
    assign_hosts,
    assign_slots,
)

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8)
TASKS = st.integers(0, 30).map(lambda count: [f"stage/{n}" for n in range(count)])
CORES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1)
PLACES = st.dictionaries(st.integers(0, 30), st.sampled_from("abcdefx"))


def slots_of(hosts: Sequence[str]) -> list[Slot]:
    return [Slot(number, host) for number, host in enumerate(hosts)]


def placed_on(hosts: Sequence[str], tasks: list[str], before: Mapping[str, str]) -> dict[str, str]:
    return assign_slots(tasks, slots_of(hosts), StageTasks(before)).hosts


def named(places: Mapping[int, str]) -> dict[str, str]:
    return {f"stage/{n}": host for n, host in places.items()}


def seats_of(found: SlotAssignment) -> dict[str, int]:
    return {task: slot for slot, mine in found.slots.items() for task in mine}


def loads(found: HostAssignment) -> dict[str, int]:
    return {host: len(mine) for host, mine in found.tasks.items()}


def homes(found: HostAssignment) -> dict[str, str]:
    return {task: host for host, mine in found.tasks.items() for task in mine}


def off(load: Mapping[str, int], cores: Mapping[str, int], open_hosts: Collection[str]) -> int:
    """How many moves it takes at least until hosts are in balance, by what each is off."""
    tasks, slots = sum(load.values()), sum(cores[host] for host in open_hosts)
    few, many = tasks // slots, -(-tasks // slots)
    over = sum(max(0, load[h] - many * cores[h]) for h in open_hosts)
    under = sum(max(0, few * cores[h] - load[h]) for h in open_hosts)
    return max(over, under)


@given(tasks=TASKS, hosts=HOSTS, before=PLACES)
def test_every_task_has_one_slot_and_no_two_slots_differ_by_more_than_one_task(
    tasks: list[str], hosts: list[str], before: dict[int, str]
) -> None:
    found = assign_slots(tasks, slots_of(hosts), StageTasks(named(before)))
    assert sorted(task for mine in found.slots.values() for task in mine) == sorted(tasks)
    assert all(found.slots.values())
    counts = [len(found.slots.get(number, ())) for number in range(len(hosts))]
    assert max(counts) - min(counts) <= 1
    assert {task: hosts[slot] for task, slot in seats_of(found).items()} == found.hosts
    assert found == assign_slots(tasks, slots_of(hosts), StageTasks(named(before)))


@given(tasks=TASKS, hosts=HOSTS, before=PLACES, seats=st.lists(st.integers(0, 9), max_size=31))
def test_slots_are_even_wherever_tasks_sat_before(
    tasks: list[str], hosts: list[str], before: dict[int, str], seats: list[int]
) -> None:
    sat = {f"stage/{n}": slot for n, slot in enumerate(seats)}
    found = assign_slots(tasks, slots_of(hosts), StageTasks(named(before)), last_slots=sat)
    assert sorted(task for mine in found.slots.values() for task in mine) == sorted(tasks)
    counts = [len(found.slots.get(number, ())) for number in range(len(hosts))]
    assert max(counts) - min(counts) <= 1
    again = assign_slots(
        tasks, slots_of(hosts), StageTasks(found.hosts), last_slots=seats_of(found)
    )
    assert again.slots == found.slots


def test_a_slot_gives_what_it_has_beyond_its_share() -> None:
    tasks = ["t0", "t1", "t2", "t3"]
    seats = {"t0": 0, "t1": 0, "t2": 0, "t3": 1}
    found = assign_slots(
        tasks, slots_of("aa"), StageTasks(dict.fromkeys(tasks, "a")), last_slots=seats
    )
    assert found.slots == {0: ["t0", "t1"], 1: ["t2", "t3"]}


def test_a_task_without_host_goes_where_its_state_is() -> None:
    found = assign_hosts(["t0", "t1"], {"a": 1, "b": 1}, StageTasks({}, {"t0": ("b",)}))
    assert homes(found) == {"t0": "b", "t1": "a"}


@given(tasks=TASKS, hosts=HOSTS)
def test_tasks_stay_where_they_are(tasks: list[str], hosts: list[str]) -> None:
    """While the hosts stand nothing moves, not even from slot to slot."""
    first = assign_slots(tasks, slots_of(hosts), StageTasks({}))
    assert first.slots == assign_slots(tasks, slots_of(hosts), StageTasks(first.hosts)).slots


@given(tasks=TASKS, hosts=HOSTS, new=st.sampled_from("abcd"))
def test_a_slot_more_takes_no_task_from_another_but_those_that_it_gets(
    tasks: list[str], hosts: list[str], new: str
) -> None:
    first = assign_slots(tasks, slots_of(hosts), StageTasks({}))
    sat = seats_of(first)
    more = assign_slots(tasks, slots_of([*hosts, new]), StageTasks(first.hosts), last_slots=sat)
    gained = len(more.slots.get(len(hosts), ()))
    changed = sum(sat[task] != slot for task, slot in seats_of(more).items())
    assert gained <= changed <= 2 * gained  # a task that comes to a host may have another leave it


@given(tasks=TASKS, hosts=HOSTS, lost=st.sampled_from("abcd"))
def test_only_tasks_of_a_lost_host_move(tasks: list[str], hosts: list[str], lost: str) -> None:
    left = [host for host in hosts if host != lost]
    if not left:
        return
    before = placed_on(hosts, tasks, {})
    after = placed_on(left, tasks, before)
    moved = [task for task in tasks if after[task] != before[task] != lost]
    assert moved == []


def test_slots_keep_their_numbers_and_tasks_their_order() -> None:
    slots = [Slot(7, "a"), Slot(2, "b"), Slot(4, "a")]
    placed = assign_slots([f"t{n}" for n in range(6)], slots, StageTasks({})).slots
    assert placed == {4: ["t0", "t2"], 7: ["t3", "t5"], 2: ["t1", "t4"]}


def test_a_host_that_comes_back_takes_its_share_of_what_is_new() -> None:
    before = dict.fromkeys(["t0", "t1", "t2", "t3"], "a")
    found = placed_on(["a", "b"], [*before], before)
    assert Counter(found.values()) == {"a": 2, "b": 2}
    assert [task for task, host in found.items() if host == "a"] == ["t0", "t1"]


@given(hosts=HOSTS, counts=st.lists(st.integers(0, 12), max_size=6))
def test_slots_differ_by_one_task_over_all_stages_of_a_new_job(
    hosts: list[str], counts: list[int]
) -> None:
    """Each stage is even by itself, and its tasks that are over go where fewest are of others."""
    total: Counter[int] = Counter(dict.fromkeys(range(len(hosts)), 0))
    for stage, count in enumerate(counts):
        names = [f"stage-{stage}/{n}" for n in range(count)]
        found = assign_slots(names, slots_of(hosts), StageTasks({}), others=[dict(total)])
        mine = Counter({number: len(held) for number, held in found.slots.items()})
        at = [mine[number] for number in total]
        assert max(at) - min(at) <= 1
        total.update(mine)
        assert max(total.values()) - min(total.values()) <= 1


def test_of_several_loads_the_first_decides_and_then_the_next() -> None:
    slots = slots_of(["a", "b", "c"])
    (slot,) = assign_slots(["t"], slots, StageTasks({}), others=[{0: 1}, {1: 2, 2: 1}]).slots
    assert slot == 2


HOST = st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 4))
"""Slots of a host, its tasks of the stage, and those of others."""


@settings(max_examples=400)
@given(hosts=st.lists(HOST, min_size=1, max_size=4), new=st.integers(0, 2))
def test_no_placement_with_as_few_moves_is_more_even_over_all_stages(
    hosts: list[tuple[int, int, int]], new: int
) -> None:
    """Against all that are possible: in balance, fewest moves, and then the lowest squares."""
    cores = {name: slots for name, (slots, _, _) in zip("abcd", hosts, strict=False)}
    here = {name: mine for name, (_, mine, _) in zip("abcd", hosts, strict=False)}
    other = {name: more for name, (_, _, more) in zip("abcd", hosts, strict=False)}
    homed = {f"{name}{n}": name for name, count in here.items() for n in range(count)}
    names = [*homed, *(f"new{n}" for n in range(new))]
    found = assign_hosts(names, cores, StageTasks(homed), others=[other])

    def judged(load: Mapping[str, int]) -> tuple[int, int]:
        moves = sum(max(0, here[host] - load[host]) for host in cores)
        return moves, sum(squares(other[host] + load[host], cores[host]) for host in cores)

    every = (dict(zip(cores, split, strict=True)) for split in splits(len(names), len(cores)))
    best = min(judged(load) for load in every if not off(load, cores, cores))
    assert off(loads(found), cores, cores) == 0
    assert judged(loads(found)) == best


def splits(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to split a count in so many parts."""
    if parts == 1:
        yield (count,)
        return
    for first in range(count + 1):
        for rest in splits(count - first, parts - 1):
            yield (first, *rest)


def squares(tasks: int, slots: int) -> int:
    """Return the sum of the squares of what slots have that share tasks evenly."""
    few, more = divmod(tasks, slots)
    return more * (few + 1) ** 2 + (slots - more) * few**2


@given(tasks=TASKS, cores=CORES, before=PLACES, away=st.sets(st.sampled_from("abcdef")))
def test_moves_are_as_few_as_balance_takes(
    tasks: list[str], cores: dict[str, int], before: dict[int, str], away: set[str]
) -> None:
    """Tasks without a host go first, and what is to be empty is emptied; then nothing is wasted."""
    homed = {task: host for task, host in named(before).items() if task in tasks}
    found = assign_hosts(tasks, cores, StageTasks(homed), away=away)
    opened = [host for host in cores if host not in away] or list(cores)
    assert off(loads(found), cores, opened) == 0
    assert found.pending == found.waiting == 0
    here = Counter(host for host in homed.values() if host in cores)
    must = sum(here[host] for host in cores if host not in opened)
    after = homes(found)
    moved = {t for t, host in homed.items() if host in cores and after[t] != host}
    assert moved == {move.task for move in found.moves}
    by_balance = [move for move in found.moves if move.source in opened]
    housed = dict(here)
    for task, host in after.items():
        if homed.get(task) not in cores:
            housed[host] = housed.get(host, 0) + 1
    for move in found.moves:
        if move.source not in opened:
            housed[move.source] -= 1
            housed[move.target] = housed.get(move.target, 0) + 1
    housed_at = {host: housed.get(host, 0) for host in cores}
    if not must:
        assert len(by_balance) == off(housed_at, cores, opened)


@given(
    tasks=TASKS,
    cores=CORES,
    before=PLACES,
    away=st.sets(st.sampled_from("abcdef")),
    most=st.integers(1, 4),
)
def test_it_settles_within_the_limit_of_moves_and_then_stands_still(
    tasks: list[str], cores: dict[str, int], before: dict[int, str], away: set[str], most: int
) -> None:
    known, epochs = named(before), 0
    while True:
        found = assign_hosts(tasks, cores, StageTasks(known), away=away, budget=MoveBudget(most))
        assert len(found.moves) <= most
        known = homes(found)
        if not found.pending:
            break
        assert len(found.moves) == most  # what is pending is so for the limit's sake
        epochs += 1
        assert epochs <= len(tasks)
    opened = [host for host in cores if host not in away] or list(cores)
    assert off(loads(found), cores, opened) == 0
    again = assign_hosts(tasks, cores, StageTasks(known), away=away, budget=MoveBudget(most))
    assert again.moves == []
    assert homes(again) == known


def test_a_host_that_is_back_gets_the_tasks_whose_state_it_has() -> None:
    tasks = [f"t{n}" for n in range(12)]
    first = homes(assign_hosts(tasks, {"a": 1, "b": 1, "c": 1}, StageTasks({})))
    own = {task for task, host in first.items() if host == "c"}
    without = homes(assign_hosts(tasks, {"a": 1, "b": 1}, StageTasks(first)))
    held = dict.fromkeys(own, ("c",))
    back = homes(assign_hosts(tasks, {"a": 1, "b": 1, "c": 1}, StageTasks(without, held)))
    assert back == first


def test_of_several_tasks_whose_state_it_has_a_host_gets_the_newest() -> None:
    homed = dict.fromkeys(["t0", "t1", "t2", "t3"], "a")
    held = dict.fromkeys(homed, ("b",))
    known = StageTasks(homed, held, reach=lambda task, host: {"t1": 9, "t2": 7}.get(task, 1))
    found = assign_hosts([*homed], {"a": 1, "b": 1}, known)
    assert {move.task for move in found.moves} == {"t1", "t2"}


def test_tasks_without_state_move_freely_and_before_others() -> None:
    tasks = [f"t{n}" for n in range(8)]
    weight = {"t2": 0, "t5": 0}
    known = StageTasks(dict.fromkeys(tasks, "a"), weight=lambda task: weight.get(task, 9))
    found = assign_hosts(tasks, {"a": 1, "b": 1}, known, budget=MoveBudget(1))
    assert {move.task for move in found.moves[:2]} == {"t2", "t5"}
    assert (len(found.moves), found.pending) == (3, 1)


def test_a_drained_host_gives_its_tasks_to_their_standbys_once_these_are_ready() -> None:
    homed = {"t0": "a", "t1": "a", "t2": "b", "t3": "c"}
    held, behind = {"t0": ("c",), "t1": ("b",)}, {"t1"}
    known = StageTasks(homed, held, unready=behind.__contains__)
    found = assign_hosts([*homed], {"a": 1, "b": 1, "c": 1}, known, away={"a"})
    assert [tuple(move) for move in found.moves] == [("t0", "a", "c")]
    assert (found.pending, found.waiting) == (1, 1)
    behind.clear()
    found = assign_hosts([*homed], {"a": 1, "b": 1, "c": 1}, known, away={"a"})
    assert homes(found) == {"t0": "c", "t1": "b", "t2": "b", "t3": "c"}


def test_a_drained_host_gives_nothing_to_one_that_is_drained_too() -> None:
    known = StageTasks({"t0": "a", "t1": "b"}, {"t0": ("d",)})
    found = assign_hosts(["t0", "t1"], dict.fromkeys("dabc", 1), known, away={"a", "d"})
    assert homes(found) == {"t0": "c", "t1": "b"}


def test_hosts_that_are_all_to_be_empty_are_used_all_the_same() -> None:
    found = assign_hosts(["t0", "t1"], {"a": 1, "b": 1}, StageTasks({}), away={"a", "b"})
    assert loads(found) == {"a": 1, "b": 1}


def test_tasks_that_just_came_from_a_drained_host_move_on_in_a_later_epoch() -> None:
    """Both go where their standbys are, which is one more than that host's share."""
    homed, held = {"t0": "a", "t1": "a"}, {"t0": ("b",), "t1": ("b",)}
    cores = {"a": 1, "b": 1, "c": 1}
    found = assign_hosts(["t0", "t1"], cores, StageTasks(homed, held), away={"a"})
    assert (loads(found), found.pending) == ({"a": 0, "b": 2, "c": 0}, 1)
    settled = assign_hosts(["t0", "t1"], cores, StageTasks(homes(found)), away={"a"})
    assert (loads(settled), settled.pending) == ({"a": 0, "b": 1, "c": 1}, 0)
