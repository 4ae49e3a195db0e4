"""The stages of a job are placed one after the other, and no slot gets what is over of each."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.coordinator.epoch_placement import (
    EpochPlacement,
    PlacementContext,
    StandbyTracker,
    StickyAssignment,
)
from headrace.coordinator.host_state import HostState, Standby
from headrace.coordinator.inputs import task_counts
from headrace.coordinator.manifest import InputPosition, JobState, TaskState
from headrace.coordinator.placement import Affinity, PlacementRules, Slot
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.plan.stages import (
    JobPlan,
)
from headrace.runtime.orders import SegmentRef

STREAMS = ("first", "second", "third")
TASKS = 5


class _Count:
    def process(self, message: Any, context: Any) -> None:
        del message, context


@hr.job("several")
def several(g: Any) -> None:
    for name in STREAMS:
        by_id = g.input(name).partition_by("id", name=f"{name}_by_id")
        stores = {f"n_{name}": int}
        counts = by_id.process(_Count, stores=stores, returns={"id": int}, name=f"count_{name}")
    again = counts.partition_by("id", name="again")
    again.process(_Count, stores={"n_again": int}, name="count_again")


PLAN: JobPlan = plan(
    several.build(),
    {name: StreamInfo(pa.schema({"id": pa.int64()}), 1) for name in STREAMS},
    key_groups=8,
    tasks=TASKS,
)
HELD = (SegmentRef("segment/1-a", 9, 1, "a", 7, 9, 1),)
KEYED = [stage for stage in PLAN.stages if stage.keyed]


def slots_of(hosts: str) -> list[Slot]:
    return [Slot(number, host) for number, host in enumerate(hosts)]


def placed(state: JobState, hosts: str) -> EpochPlacement:
    slots = slots_of(hosts)
    around = PlacementContext(PlacementRules(max_moves=100))
    found = EpochPlacement(PLAN, state, slots, around, StandbyTracker(PLAN, state, slots, 0))
    found.of(PLAN.stages[0])
    return found


def new_job() -> JobState:
    return JobState(
        job="several",
        lineage="x",
        generation=1,
        epoch=0,
        time_ms=0,
        digest="",
        key_groups=PLAN.key_groups,
        fingerprint=PLAN.fingerprint,
        inputs={name: {0: InputPosition(0)} for name in STREAMS},
        task_counts=task_counts(PLAN),
    )


def after(state: JobState, placing: EpochPlacement) -> JobState:
    """Return a state in which all tasks have state where they are placed."""
    homes = {task: host for stage in KEYED for task, host in placing.of(stage).hosts.items()}
    tasks = {name: TaskState(host=host, segments=HELD) for name, host in homes.items()}
    return msgspec.structs.replace(state, tasks=tasks)


def keyed_loads(placing: EpochPlacement) -> Counter[int]:
    found: Counter[int] = Counter()
    for stage in KEYED:
        for slot, names in placing.of(stage).slots.items():
            found[slot] += len(names)
    return found


def test_slots_of_a_new_job_differ_by_one_task_over_all_stages() -> None:
    assert [stage.level for stage in KEYED] == [1, 1, 1, 2]
    for hosts in ("abcd", "aabb", "abbbccd", "aaaa"):
        loads = keyed_loads(placed(new_job(), hosts))
        assert sum(loads.values()) == len(KEYED) * TASKS
        assert max(loads.values()) - min(loads[n] for n in range(len(hosts))) <= 1, hosts


def skewed() -> JobState:
    """Return a state in which the first host has what is over of each stage."""
    tasks = {
        f"{stage.name}/{number}": TaskState(host="ab"[number % 2], segments=HELD)
        for stage in KEYED
        for number in range(TASKS)
    }
    return msgspec.structs.replace(new_job(), tasks=tasks)


def test_tasks_stay_whatever_the_sum_is_while_each_stage_is_in_balance() -> None:
    found = placed(skewed(), "ab")
    assert found.moves == []
    assert keyed_loads(found) == {0: 12, 1: 8}


def test_sources_go_to_slots_that_have_none_in_their_level() -> None:
    """They run at the same time, so that counts more than how many tasks with state are there."""
    found = placed(skewed(), "ab")
    sources = [stage for stage in PLAN.stages if not stage.keyed]
    assert {stage.level for stage in sources} == {0}
    used = Counter(slot for stage in sources for slot in found.of(stage).slots)
    assert used == {1: 2, 0: 1}


def test_a_host_that_joins_gets_tasks_from_those_with_most_over_all_stages() -> None:
    first = placed(new_job(), "abc")
    assert sorted(keyed_loads(first).values()) == [6, 7, 7]
    joined = placed(after(new_job(), first), "abcd")
    assert len(joined.moves) == 4  # one of each stage, as its balance takes
    assert sorted(keyed_loads(joined).values()) == [4, 5, 5, 6]


def test_the_order_in_which_stages_are_asked_for_changes_nothing() -> None:
    state, slots = new_job(), slots_of("aabc")
    found = []
    for stages in (PLAN.stages, tuple(reversed(PLAN.stages))):
        placing = EpochPlacement(
            PLAN, state, slots, PlacementContext(), StandbyTracker(PLAN, state, slots, 0)
        )
        found.append({stage.name: placing.of(stage) for stage in stages})
    assert found[0] == found[1]


@pytest.mark.parametrize("affinity", list(Affinity))
def test_slots_let_go_of_standbys_whose_tasks_come_to_their_host(affinity: Affinity) -> None:
    """Whatever the affinity: one of them has the standby open, and another may get the task."""
    name = f"{KEYED[0].name}/0"
    state = msgspec.structs.replace(
        new_job(),
        tasks={name: TaskState(epoch=3, host="b", segments=HELD)},
        standbys={name: (Standby("a", 3, "x"),)},
        hosts={"a": HostState("", 2), "b": HostState("", 1, drained=True)},
    )
    slots, seats = slots_of("aab"), StickyAssignment()
    seats.assigned({name: 2})
    around = PlacementContext(PlacementRules(affinity), seats)
    placing = EpochPlacement(PLAN, state, slots, around, StandbyTracker(PLAN, state, slots, 1))
    assert placing.of(KEYED[0]).hosts[name] == "a"
    leaving = placing.leaving()
    assert [name in leaving.get(slot, ()) for slot in (0, 1, 2)] == [True, True, True]
    seats.assigned({f"{KEYED[0].name}/{number}": 0 for number in range(1, TASKS)})
    leaving = placing.leaving()
    assert len(leaving[0]) > 1, "also where a slot is to let go of others"
    assert [name in leaving.get(slot, ()) for slot in (0, 1, 2)] == [True, True, True]
    seats.released()
    assert placing.leaving() == {}


def test_a_task_that_moves_leaves_no_standby_where_it_may_still_be_open() -> None:
    stage = KEYED[0]
    names = [f"{stage.name}/{number}" for number in range(TASKS)]
    state = msgspec.structs.replace(
        new_job(),
        tasks={name: TaskState(epoch=3, host="a", segments=HELD) for name in names},
    )
    course = StandbyTracker(PLAN, state, slots_of("abc"), 1)
    ordered = course.orders(stage, dict.fromkeys(names, "b"))
    assert {slot: len(orders) for slot, orders in ordered.items()} == {2: TASKS}


def test_a_slot_lets_go_of_a_task_that_another_is_about_to_open() -> None:
    """And is told so until it has, but not again."""
    seats = StickyAssignment()
    seats.assigned({"a/0": 0, "a/1": 1})
    assert seats.leaving({"a/0": 0, "a/1": 0}) == {1: ["a/1"]}
    assert seats.leaving({"a/0": 0, "a/1": 0}) == {1: ["a/1"]}
    seats.left({1: ["a/1"]})
    seats.assigned({"a/0": 0, "a/1": 0})
    assert seats.leaving({"a/0": 0, "a/1": 0}) == {}


def following(
    state: JobState, hosts: str, seats: StickyAssignment, copies: int = 0
) -> EpochPlacement:
    """Return the placing of an epoch whose driver remembers the seats."""
    slots, context = slots_of(hosts), PlacementContext(PlacementRules(max_moves=100), seats)
    return EpochPlacement(PLAN, state, slots, context, StandbyTracker(PLAN, state, slots, copies))


def made_again(state: JobState, hosts: str, seats: StickyAssignment) -> EpochPlacement:
    """Return the same, made from the beginning."""
    forgetful = deepcopy(seats)
    forgetful.standing = None
    return following(state, hosts, forgetful)


def all_of(placing: EpochPlacement) -> list[object]:
    """Return all that an epoch asks of a placing."""
    stages = PLAN.stages
    places = [(placing.of(stage).slots, placing.of(stage).hosts) for stage in stages]
    moved = [placing.moved(stage) for stage in KEYED]
    return [places, moved, placing.leaving(), placing.moves, placing.counts, placing.is_settled]


@pytest.mark.parametrize("hosts", ["abcd", "aabb", "abbbccd", "aaaa"])
def test_a_placement_that_stands_is_the_one_that_would_be_made_again(hosts: str) -> None:
    seats = StickyAssignment()
    first = following(new_job(), hosts, seats)
    first.assigned(first.leaving())
    state = after(new_job(), first)
    for _ in range(3):
        next_one = following(state, hosts, seats)
        assert all_of(next_one) == all_of(made_again(state, hosts, seats))
        assert next_one.is_settled
        next_one.assigned(next_one.leaving())
        assert seats.standing is not None


@pytest.mark.parametrize("what", ["drained", "slot lost", "slot new", "elsewhere", "no state"])
def test_a_placement_stands_no_more_when_something_changes(what: str) -> None:
    hosts, seats = "aabbc", StickyAssignment()
    first = following(new_job(), hosts, seats)
    first.assigned(first.leaving())
    state = after(new_job(), first)
    name = f"{KEYED[0].name}/0"
    tasks = dict(state.tasks)
    if what == "drained":
        drained = {"a": HostState("", 2, drained=True), "b": HostState("", 2)}
        state = msgspec.structs.replace(state, hosts=drained)
    elif what == "slot lost":
        hosts = "aabb"
    elif what == "slot new":
        hosts = "aabbcd"
    elif what == "elsewhere":
        other = "b" if tasks[name].host != "b" else "a"
        tasks[name] = msgspec.structs.replace(tasks[name], host=other)
    else:
        del tasks[name]
    state = msgspec.structs.replace(state, tasks=tasks)
    found = following(state, hosts, seats)
    assert all_of(found) == all_of(made_again(state, hosts, seats))
    assert all_of(found) != all_of(first)


def test_a_placement_with_standbys_is_made_in_each_epoch() -> None:
    seats = StickyAssignment()
    first = following(new_job(), "abc", seats, copies=1)
    first.assigned(first.leaving())
    assert seats.standing is None
