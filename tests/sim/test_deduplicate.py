"""The first row of each id goes on: against a fold over the log, and at every step of an epoch."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS, WITHIN, LATENESS = 3, 10, 4
COLUMNS = {"id": pa.int64(), "at": pa.int64(), "n": pa.int64()}


@dataclass(frozen=True)
class Row:
    """One record of the log; ``id`` may be null."""

    id: int | None
    at: int


def job(**arguments: Any) -> hr.Job:
    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in", time="at", out_of_orderness=f"{LATENESS}ms").partition_by("id")
        rows.deduplicate(name="first", **arguments).send_to(g.output("out"))

    return once


def partition_of(row: Row) -> int:
    """All copies of an id are in one partition, so the log orders them."""
    return 0 if row.id is None else row.id % PARTITIONS


def expected(log: Sequence[Row], within: int | None) -> tuple[list[int], Counter[str]]:
    """Fold the log: which rows are passed on, and what is counted."""
    passed, counts = [], Counter[str]()
    highest: dict[int, int] = {}
    until: dict[int, int] = {}
    for number, row in enumerate(log):
        partition = partition_of(row)
        before = highest.get(partition)
        watermark = -(1 << 62) if before is None else before - LATENESS
        highest[partition] = max(row.at, row.at if before is None else before)
        if within is not None and row.at + within <= watermark:
            counts["late"] += 1
            if row.id is not None:
                continue
        if row.id is None:
            counts["without_id"] += 1
        elif max(row.at, watermark) < until.get(row.id, -(1 << 62)) if within else row.id in until:
            counts["duplicates"] += 1
            continue
        else:
            until[row.id] = row.at + (within or 0)
        passed.append(number)
    return passed, counts


def feed(driver: TestDriver, log: Sequence[Row], begin: int, end: int) -> None:
    for partition in range(PARTITIONS):
        rows = [
            {"id": row.id, "at": row.at, "n": number}
            for number, row in enumerate(log[begin:end], begin)
            if partition_of(row) == partition
        ]
        if rows:
            driver.feed("in", rows, partition=partition)


def numbers(driver: TestDriver) -> list[int]:
    return sorted(row["n"] for row in driver.output("out"))


ROWS = st.builds(Row, st.sampled_from([None, 0, 1, 2, 3, 4]), st.integers(-30, 30))


@given(log=st.lists(ROWS, max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
@example(log=[Row(0, 0), Row(3, 15), Row(0, 3)], cuts=[2])  # the time has passed, by another id
@pytest.mark.parametrize("within", [WITHIN, None])
def test_the_log_alone_decides_however_epochs_are_cut(
    within: int | None, log: list[Row], cuts: list[int]
) -> None:
    arguments = {} if within is None else {"within": f"{within}ms"}
    with TestDriver(job(**arguments), tasks=2, key_groups=8) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
        for begin, end in itertools.pairwise(bounds):
            feed(driver, log, begin, end)
            driver.run()
        driver.finish()
        passed, counts = expected(log, within)
        assert passed == numbers(driver)
        found = driver.coordinator.state.counts
        assert counts == Counter({name: found[name] for name in counts if name in found})


def test_ids_that_are_over_leave_the_table() -> None:
    with TestDriver(job(within=f"{WITHIN}ms"), tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        for at in range(0, 400, 20):
            feed(driver, [Row(key, at) for key in (0, 1, 2)], 0, 3)
            driver.run()
        assert sorted(row["id"] for row in driver.table("first")) == [0, 1, 2]
        feed(driver, [Row(key, 1000) for key in (3, 4, 5)], 0, 3)
        driver.run()
        assert sorted(row["id"] for row in driver.table("first")) == [3, 4, 5]


def test_merges_of_files_drop_what_is_over() -> None:
    """The files of a task do not grow with all ids that ever were."""
    rng = random.Random(3)
    with TestDriver(job(within=f"{WITHIN}ms"), tasks=1, slots=1) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        for epoch in range(60):
            rows = [Row(rng.randrange(1 << 40), 20 * epoch + n % 3) for n in range(60)]
            feed(driver, rows, 0, len(rows))
            driver.run()
        [task] = driver.coordinator.state.tasks.values()
        assert sum(ref.rows for ref in task.files) < 60 * 30


def test_ids_move_with_their_key_group() -> None:
    log = [Row(key, 1) for key in range(200)]
    with TestDriver(job(within="1h"), tasks=2, key_groups=32) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        feed(driver, log, 0, 200)
        driver.run()
        driver.coordinator.rescale(5)
        feed(driver, log, 0, 200)
        driver.run()
        driver.coordinator.rescale(1)
        feed(driver, log, 0, 200)
        driver.finish()
        assert list(range(200)) == numbers(driver)


def test_an_id_may_have_more_columns_than_the_key() -> None:
    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in").partition_by("customer")
        first = rows.deduplicate("order", "customer", name="first")
        first.aggregate(name="n", n=hr.agg.count()).send_to(g.output("out"))

    columns = {"customer": pa.string(), "order": pa.int64()}
    with TestDriver(once, tasks=2, key_groups=16) as driver:
        driver.create("in", columns, partitions=2)
        rows = [{"customer": f"c{n % 5}", "order": n % 20} for n in range(100)]
        driver.feed("in", rows)
        driver.run()
        driver.coordinator.rescale(4)
        driver.feed("in", rows)
        driver.run()
        latest = {row["customer"]: row["n"] for row in driver.output("out")}
        assert dict.fromkeys(["c0", "c1", "c2", "c3", "c4"], 4) == latest
        assert len(driver.table("first")) == 20


def test_without_event_time_ids_are_kept_for_as_long_as_they_may_live() -> None:
    with TestDriver(job(ttl="10s"), tasks=1) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        for _ in range(4):
            feed(driver, [Row(0, 1)], 0, 1)
            driver.run()
            driver.clock.advance(6_000)
        assert numbers(driver) == [0, 0]  # of the first and, twelve seconds later, of the third


def test_nan_is_an_id_and_null_is_none() -> None:
    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in").partition_by("x")
        rows.deduplicate("x", "y").send_to(g.output("out"))

    with TestDriver(once) as driver:
        driver.create("in", {"x": pa.float64(), "y": pa.string()})
        rows = [{"x": float("nan"), "y": "a"}, {"x": 1.0, "y": None}, {"x": None, "y": "a"}]
        driver.feed("in", rows * 3)
        driver.run()
        found = Counter((str(row["x"]), row["y"]) for row in driver.output("out"))
        assert found == {("nan", "a"): 1, ("1.0", None): 3, ("None", "a"): 3}
        assert driver.coordinator.state.counts["duplicates"] == 2
        assert driver.coordinator.state.counts["without_id"] == 6


def test_rows_of_a_partition_that_was_idle_are_seen_as_of_what_was_passed() -> None:
    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in", time="at", idle="1m").partition_by("id")
        rows.deduplicate(within="10ms").send_to(g.output("out"))

    with TestDriver(once, tasks=2) as driver:
        driver.create("in", COLUMNS, partitions=2, time="at")
        driver.feed("in", [{"id": 0, "at": 5}, {"id": 0, "at": 100}], partition=0)
        driver.run()
        driver.clock.advance(61_000)
        driver.feed("in", [{"id": 0, "at": 101}], partition=0)
        driver.run()
        late, behind = {"id": 1, "at": 91, "n": 1}, {"id": 2, "at": 92, "n": 2}
        driver.feed("in", [late, behind, behind], partition=1)
        driver.run()
        assert sorted(row["at"] for row in driver.output("out")) == [5, 92, 100]
        counts = driver.coordinator.state.counts
        assert (counts["late"], counts["duplicates"]) == (1, 2)


def test_behind_windows_the_watermark_that_reaches_it_counts() -> None:
    """A window's result is behind by its grace, and so is what is forgotten."""

    @hr.job("once")
    def once(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("id")
        windows = rows.window(hr.tumbling("10ms", allowed_lateness="50ms"), n=hr.agg.count())
        windows.deduplicate(within="25ms").send_to(g.output("out"))

    with TestDriver(once, tasks=1) as driver:
        driver.create("in", {"id": pa.int64(), "at": pa.int64()}, time="at")
        for at in range(0, 200, 10):
            driver.feed("in", [{"id": 1, "at": at}])
            driver.run()
        driver.finish()
        starts = [round(row["window_start"].timestamp() * 1000) for row in driver.output("out")]
        assert list(range(0, 200, 30)) == starts
