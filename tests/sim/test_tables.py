"""Tables against a dict: whatever the epochs, the crashes and the number of tasks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.changes import reset
from tests.support.soak import examples

import headrace as hr
from headrace.testing import TestDriver

NAMES = {"member": pa.int64(), "name": pa.string(), "age": pa.int64()}
PLANS = {"id": pa.int64(), "plan": pa.string()}
CLICKS = {"member": pa.int64(), "n": pa.int64(), "at": pa.int64()}
CRASHES = ["slot.ran", "slot.segment_written", "epoch.before_commit", "commit.published"]
Row = dict[str, Any]


def joining(how: str = "left") -> hr.Job:
    @hr.job("joining")
    def made(g: hr.Graph) -> None:
        names = g.table("names", key="member", name="held")
        clicks = g.input("clicks").partition_by("member")
        clicks.join(names, how=how, columns=["name"]).send_to(g.output("out"))
        names.changes().send_to(g.output("changed"))

    return made


def both(how: str) -> hr.Job:
    @hr.job("both")
    def made(g: hr.Graph) -> None:
        names = g.table("names", key="member", name="held")
        plans = g.table("plans", key="id", name="plans-held")
        joined = names.join(plans, how=how, columns={"has": "plan"})
        joined.changes().send_to(g.output("out"))
        clicks = g.input("clicks").partition_by("member")
        clicks.join(joined, columns=["has"], name="third").send_to(g.output("clicked"))

    return made


def opened(job: hr.Job, **more: Any) -> TestDriver:
    driver = TestDriver(job, key_groups=16, **{"tasks": 2, **more})
    driver.create("names", NAMES, partitions=2, key=["member"])
    driver.create("plans", PLANS, partitions=1, key=["id"])
    driver.create("clicks", CLICKS, partitions=2, key=["member"])
    return driver


KEYS = st.sampled_from([None, 0, 1, 2, 3])
NAME = st.builds(
    lambda member, name, age: {"member": member, "name": name, "age": age},
    KEYS,
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, None, 7]),
)
PLAN = st.builds(lambda key, plan: {"id": key, "plan": plan}, KEYS, st.sampled_from([None, "x"]))
CLICK = st.builds(lambda member: {"member": member}, KEYS)
CRASH = st.sampled_from([None, None, *CRASHES])
TASKS = st.sampled_from([None, None, 1, 3])


def is_dead(row: Row) -> bool:
    first, *_ = row
    return all(value is None for name, value in row.items() if name != first)


def apply(table: dict[int, Row], rows: Sequence[Row], key: str) -> list[tuple[int, Row | None]]:
    """Put rows into a model; returns what changes."""
    changes: list[tuple[int, Row | None]] = []
    for row in rows:
        place = row[key]
        if place is None:
            continue
        if not is_dead(row):
            table[place] = row
            changes.append((place, row))
        elif table.pop(place, None) is not None:
            changes.append((place, None))
    return changes


def step(driver: TestDriver, crash: str | None) -> None:
    if crash is not None:
        driver.advance_with_crash(crash)
    driver.run()


def values(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.parametrize("how", ["left", "inner"])
@settings(max_examples=examples(8), deadline=None)
@given(
    epochs=st.lists(
        st.tuples(st.lists(NAME, max_size=6), st.lists(CLICK, max_size=4), CRASH, TASKS),
        max_size=4,
    )
)
def test_each_row_takes_the_row_of_its_key(how: str, epochs: list[Any]) -> None:
    with opened(joining(how)) as driver:
        driver.start()
        table: dict[int, Row] = {}
        wanted: list[tuple[Any, ...]] = []
        changed: dict[int, list[Any]] = {}
        for number, (names, asked, crash, tasks) in enumerate(epochs):
            clicks = [{**click, "n": 10 * number + n} for n, click in enumerate(asked)]
            driver.feed("names", names)
            driver.feed("clicks", clicks)
            step(driver, crash)
            for place, row in apply(table, names, "member"):
                changed.setdefault(place, []).append(row and values(row, "name", "age"))
            for click in clicks:
                found = table.get(click["member"])
                if found is not None or how == "left":
                    wanted.append((click["n"], found and found["name"]))
            if tasks is not None:
                driver.coordinator.rescale(tasks)
        assert Counter(wanted) == Counter(values(row, "n", "name") for row in driver.output("out"))
        held = {row["member"]: row for row in driver.table("held")}
        assert table == held
        seen: dict[int, list[Any]] = {}
        for row in driver.output("changed"):
            shown = None if row["is_deleted"] else values(row, "name", "age")
            seen.setdefault(row["member"], []).append(shown)
        assert changed == seen


def joined(how: str, names: dict[int, Row], plans: dict[int, Row]) -> dict[int, tuple[Any, ...]]:
    keys = {"inner": names.keys() & plans.keys(), "left": names.keys()}
    return {
        key: (
            names.get(key, {}).get("name"),
            names.get(key, {}).get("age"),
            plans.get(key, {}).get("plan"),
        )
        for key in keys.get(how, names.keys() | plans.keys())
    }


def test_a_key_that_is_deleted_twice_in_an_epoch_is_gone_once() -> None:
    row, dead = ({"member": 1, "name": name, "age": None} for name in ("a", None))
    with opened(joining()) as driver:
        driver.feed("names", [row, dead, dead], partition=0)
        driver.run()
        assert [one["is_deleted"] for one in driver.output("changed")] == [False, True]


def test_a_joined_row_is_gone_when_the_right_table_has_it_no_more() -> None:
    with opened(both("inner")) as driver:
        driver.feed("names", [{"member": 1, "name": "a", "age": 7}], partition=0)
        for plan in ("x", None):
            driver.feed("plans", [{"id": 1, "plan": plan}])
            driver.run()
        found = [values(row, "has", "is_deleted") for row in driver.output("out")]
        assert found == [("x", False), (None, True)]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@settings(max_examples=examples(5), deadline=None)
@given(
    epochs=st.lists(
        st.tuples(
            st.lists(NAME, max_size=4),
            st.lists(PLAN, max_size=4),
            st.lists(CLICK, max_size=2),
            CRASH,
            TASKS,
        ),
        max_size=4,
    )
)
def test_tables_that_are_joined_say_what_each_epoch_changed(how: str, epochs: list[Any]) -> None:
    with opened(both(how)) as driver:
        driver.start()
        names: dict[int, Row] = {}
        plans: dict[int, Row] = {}
        wanted: Counter[Any] = Counter()
        clicked: Counter[Any] = Counter()
        for number, (some, others, asked, crash, tasks) in enumerate(epochs):
            clicks = [{**click, "n": 10 * number + n} for n, click in enumerate(asked)]
            driver.feed("names", some)
            driver.feed("plans", others)
            driver.feed("clicks", clicks)
            step(driver, crash)
            before = joined(how, names, plans)
            changes = [*apply(names, some, "member"), *apply(plans, others, "id")]
            after = joined(how, names, plans)
            for key in {key for key, _ in changes}:
                if key in after:
                    wanted[(key, *after[key], False)] += 1
                elif key in before:
                    wanted[(key, None, None, None, True)] += 1
            clicked.update(
                (click["n"], after[click["member"]][2])
                for click in clicks
                if click["member"] in after
            )
            if tasks is not None:
                driver.coordinator.rescale(tasks)
        columns = ("member", "name", "age", "has", "is_deleted")
        assert wanted == Counter(values(row, *columns) for row in driver.output("out"))
        assert clicked == Counter(values(row, "n", "has") for row in driver.output("clicked"))


@settings(max_examples=examples(6))
@given(log=st.lists(NAME, max_size=20), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_changes_are_those_of_the_log_however_epochs_are_cut(
    log: list[Row], cuts: list[int]
) -> None:
    found = []
    for at in ([], sorted(min(cut, len(log)) for cut in cuts)):
        with opened(joining()) as driver:
            driver.start()
            bounds = [0, *at, len(log)]
            for begin, end in itertools.pairwise(bounds):
                driver.feed("names", log[begin:end])
                driver.run()
            rows: dict[int, list[Any]] = {}
            for row in driver.output("changed"):
                rows.setdefault(row["member"], []).append(row)
            found.append(rows)
    assert found[0] == found[1]


def test_what_fills_a_table_is_read_before_what_asks_it() -> None:
    with opened(joining("inner"), max_rows=50) as driver:
        driver.feed("clicks", [{"member": n % 100, "n": n} for n in range(300)])
        driver.feed("names", [{"member": n, "name": f"n{n}"} for n in range(100)])
        driver.feed("names", [{"member": n, "name": f"new{n}"} for n in range(100)])
        driver.run()
        found = {row["n"]: row["name"] for row in driver.output("out")}
        assert {n: f"new{n % 100}" for n in range(300)} == found


@pytest.mark.parametrize("point", [*CRASHES, "epoch.planned", "epoch.published"])
def test_a_kill_while_tables_are_filled_changes_nothing(point: str) -> None:
    """Where reading first ends is as of the job's begin, in the state, not of the restart."""
    with opened(joining("left"), max_rows=20) as driver:
        driver.feed("names", [{"member": n, "name": "old"} for n in range(100)])
        driver.feed("clicks", [{"member": n, "n": n} for n in range(100)])
        driver.advance()
        ends = driver.coordinator.state.bootstrap
        assert {"names": driver.bus.stream("names").ends()} == ends
        assert driver.advance_with_crash(point)
        driver.crash(lose_hosts=[0])
        driver.feed("names", [{"member": n, "name": "new"} for n in range(100)])
        names, clicks = (reader(driver, stream) for stream in ("names", "clicks"))
        while names() < 100:
            assert clicks() == 0
            driver.advance()
        assert driver.coordinator.state.bootstrap == ends
        assert (names(), clicks()) == (100, 0)
        driver.run()
        found = sorted(values(row, "n", "name") for row in driver.output("out"))
        assert [n for n, _ in found] == list(range(100))
        assert {name for _, name in found} <= {"old", "new"}


def reader(driver: TestDriver, stream: str) -> Callable[[], int]:
    """How many rows of a stream the job has read."""

    def read() -> int:
        positions = driver.coordinator.state.inputs[stream].values()
        return sum(position.next_offset for position in positions)

    return read


def test_after_a_reset_tables_are_filled_first_again() -> None:
    with opened(joining("left"), max_rows=20) as driver:
        driver.feed("clicks", [{"member": n, "n": n} for n in range(30)])
        driver.run()
        assert {row["name"] for row in driver.output("out")} == {None}
        driver.feed("names", [{"member": n, "name": "a"} for n in range(100)])
        reset(driver)
        driver.start()
        driver.run()
        assert [row["name"] for row in driver.output("out")].count("a") == 30


def timed(table_time: str | None) -> hr.Job:
    @hr.job("timed")
    def made(g: hr.Graph) -> None:
        names = g.table("names", key="member", time=table_time)
        clicks = g.input("clicks", time="at").partition_by("member")
        named = clicks.join(names, columns=["name"])
        named.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("out"))

    return made


@pytest.mark.parametrize("table_time", [None, "age"])
def test_a_table_neither_holds_windows_back_nor_advances_them(table_time: str | None) -> None:
    """Whether or not its rows have event times, far behind or far ahead."""
    with opened(timed(table_time), tasks=1) as driver:
        names = [{"member": n, "name": "x", "age": 10_000 * n} for n in range(3)]
        driver.feed("names", names)
        driver.run()
        for partition in (0, 1):
            clicks = [{"member": n, "n": 0, "at": at} for at in (5, 6) for n in range(3)]
            driver.feed("clicks", clicks, partition=partition)
        driver.run()
        assert driver.output("out") == []
        driver.feed("names", [{"member": 1, "name": "y", "age": 50_000}])
        driver.run()
        assert driver.output("out") == []
        for partition in (0, 1):
            driver.feed("clicks", [{"member": 0, "n": 0, "at": 30}], partition=partition)
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [4, 4, 4]
        assert "late" not in driver.coordinator.state.counts


def test_a_table_of_totals_is_joined_in_the_epoch_that_makes_them() -> None:
    """Rows of a table may come from operators of its stage, and from windows at their close."""

    @hr.job("totals")
    def job(g: hr.Graph) -> None:
        clicks = g.input("clicks", time="at").partition_by("member")
        windows = clicks.window(hr.tumbling("10ms"), seen=hr.agg.count())
        last = windows.table(name="last")
        asked = g.input("names", time="age").partition_by("member")
        asked.join(last, columns=["seen"]).send_to(g.output("out"))

    with opened(job) as driver:
        driver.feed("clicks", [{"member": 1, "at": 1}, {"member": 1, "at": 2}], partition=0)
        driver.feed("clicks", [{"member": 2, "at": 30}], partition=1)
        driver.feed("clicks", [{"member": 1, "at": 30}], partition=0)
        for partition in (0, 1):
            driver.feed("names", [{"member": 1, "name": "x", "age": 30}], partition=partition)
        driver.run()
        assert [values(row, "member", "seen") for row in driver.output("out")] == [(1, 2)] * 2


def test_a_job_goes_on_only_with_the_columns_that_its_tables_hold() -> None:
    def job(*columns: str) -> hr.Job:
        @hr.job("kept")
        def made(g: hr.Graph) -> None:
            names = g.input("names").map(*map(hr.col, columns)).partition_by("member")
            clicks = g.input("clicks").partition_by("member")
            clicks.join(names.table(), columns=["name"]).send_to(g.output("out"))

        return made

    with opened(job("member", "name")) as driver:
        driver.feed("names", [{"member": 1, "name": "x"}])
        driver.run()
        driver.job = job("member", "name", "age")
        with pytest.raises(hr.InvalidInputError, match=r"columns was .* is now .*with a map"):
            driver.start()


def test_a_stream_that_comes_to_the_pattern_of_a_table_is_read_first() -> None:
    @hr.job("pattern")
    def job(g: hr.Graph) -> None:
        names = g.table("names.*", key="member")
        clicks = g.input("clicks").partition_by("member")
        clicks.join(names, columns=["name"]).send_to(g.output("out"))

    with TestDriver(job, tasks=2, max_rows=20) as driver:
        driver.create("names.a", NAMES)
        driver.create("clicks", CLICKS)
        driver.feed("names.a", [{"member": 0, "name": "first"}])
        driver.feed("clicks", [{"member": 0, "n": 0}])
        driver.run()
        driver.create("names.b", NAMES)
        driver.feed("names.b", [{"member": n, "name": f"n{n}"} for n in range(100)])
        driver.feed("clicks", [{"member": n, "n": n} for n in range(1, 100)])
        driver.run()
        found = {row["n"]: row["name"] for row in driver.output("out")}
        assert {0: "first"} | {n: f"n{n}" for n in range(1, 100)} == found


def test_tables_are_whole_where_jobs_begin_at_the_latest_rows() -> None:
    with opened(joining("inner"), start="latest") as driver:
        driver.feed("names", [{"member": n, "name": f"n{n}"} for n in range(20)])
        driver.feed("clicks", [{"member": n, "n": n} for n in range(10)])
        driver.run()
        driver.feed("clicks", [{"member": n, "n": n} for n in range(10, 20)])
        driver.run()
        found = {row["n"]: row["name"] for row in driver.output("out")}
        assert {n: f"n{n}" for n in range(10, 20)} == found


def test_a_bounded_run_fills_tables_up_to_its_own_end() -> None:
    with opened(joining("inner"), max_rows=20, job_settings={"bounded": True}) as driver:
        driver.feed("names", [{"member": n, "name": "a"} for n in range(50)])
        driver.feed("clicks", [{"member": n, "n": n} for n in range(50)])
        driver.run()
        assert driver.coordinator.state.ended
        assert len(driver.output("out")) == 50


@pytest.mark.parametrize("order", ["even", "lagging"])
def test_the_setting_says_in_which_order_inputs_are_read(order: Literal["even", "lagging"]) -> None:
    @hr.job("ordered")
    def job(g: hr.Graph) -> None:
        first, second = g.input("names"), g.input("plans")
        first.send_to(g.output("first"))
        second.send_to(g.output("second"))

    with opened(job, max_rows=10) as driver:
        epoch = replace(driver.settings.epoch, order=order)
        driver.settings = replace(driver.settings, epoch=epoch)
        driver.feed("names", [{"member": n} for n in range(20)])
        driver.feed("plans", [{"id": n} for n in range(50)])
        driver.advance()
        read = {name: len(driver.output(name)) for name in ("first", "second")}
        assert sum(read.values()) == 10
        assert (read["first"] == 0) == (order == "lagging")


def test_a_stream_by_way_of_the_bus_waits_for_tables_too() -> None:
    """And a table of its part holds none of its windows back."""

    @hr.job("bus")
    def job(g: hr.Graph) -> None:
        names = g.table("names", key="member")
        clicks = g.input("clicks", time="at").partition_by("member", via="bus")
        named = clicks.join(names, columns=["name"])
        named.send_to(g.output("out"))
        named.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("windows"))

    with opened(job, max_rows=20) as driver:
        for partition in (0, 1):
            clicks = [{"member": n, "n": n, "at": n} for n in range(50)]
            driver.feed("clicks", clicks, partition=partition)
        driver.feed("names", [{"member": n, "name": f"n{n}"} for n in range(100)])
        driver.run()
        assert sorted(values(row, "n", "name") for row in driver.output("out")) == sorted(
            (n, f"n{n}") for n in [*range(50)] * 2
        )
        assert {row["n"] for row in driver.output("windows")} == {2}
        assert len(driver.output("windows")) == 40  # those up to the watermark, 49
        assert "late" not in driver.parts[1].state.counts
