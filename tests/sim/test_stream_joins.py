"""Pairs of rows of two streams: against all pairs of two lists, however epochs and crashes fall."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.limits import limit

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS, LATENESS = 2, 4
COLUMNS = {"k": pa.int64(), "at": pa.int64(), "n": pa.int64()}
STREAMS = ("left", "right")
WAYS = ("inner", "left", "right", "full")


@dataclass(frozen=True)
class Row:
    """One record: of the left stream (0) or the right (1), in a partition."""

    side: int
    partition: int
    key: int | None
    at: int


@dataclass(frozen=True)
class Near:
    """The arguments of a join, ms; with a window it is in the place of both directions."""

    before: int
    after: int
    grace: int = 0
    window: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """As the join takes them."""
        if self.window:
            return {"window": hr.tumbling(f"{self.window}ms")}
        return {"before": f"{self.before}ms", "after": f"{self.after}ms"}

    def holds(self, left: int, right: int) -> bool:
        """Say whether rows of two times are near."""
        if self.window:
            return left // self.window == right // self.window
        return -self.before <= right - left <= self.after

    def timely_until(self, at: int) -> int:
        """The last watermark with which a row is not late."""
        end = at // self.window * self.window + self.window - 1 if self.window else at
        return end + self.grace


def job(how: str, near: Near, **more: Any) -> hr.Job:
    @hr.job("pairs")
    def pairs(g: hr.Graph) -> None:
        sides = [
            g.input(stream, time="at", out_of_orderness=f"{LATENESS}ms").partition_by("k")
            for stream in STREAMS
        ]
        joined = sides[0].join(
            sides[1],
            **near.arguments,
            allowed_lateness=f"{near.grace}ms",
            how=how,
            columns={"other": "n"},
            name="j",
            **more,
        )
        joined.map("k", "n", "other").send_to(g.output("out"))

    return pairs


Pairs = Counter[tuple[int | None, int | None, int | None]]


def expected(log: Sequence[Row], how: str, near: Near) -> tuple[Pairs, int]:
    """All pairs of rows that are in time, and rows without one; how many are late."""
    highest: dict[tuple[int, int], int] = {}
    timely: tuple[list[tuple[int, Row]], ...] = ([], [])
    for number, row in enumerate(log):
        place = (row.side, row.partition)
        before = highest.get(place)
        highest[place] = max(row.at, row.at if before is None else before)
        if before is None or near.timely_until(row.at) >= before - LATENESS:
            timely[row.side].append((number, row))
    found: Pairs = Counter()
    paired: set[int] = set()
    for (left, one), (right, other) in itertools.product(*timely):
        if near.holds(one.at, other.at) and one.key is not None and one.key == other.key:
            found[one.key, left, right] += 1
            paired |= {left, right}
    if how in ("left", "full"):
        found.update((row.key, n, None) for n, row in timely[0] if n not in paired)
    if how in ("right", "full"):
        found.update((row.key, None, n) for n, row in timely[1] if n not in paired)
    return found, len(log) - len(timely[0]) - len(timely[1])


def feed(driver: TestDriver, log: Sequence[Row], begin: int, end: int) -> None:
    for side, partition in itertools.product((0, 1), range(PARTITIONS)):
        rows = [
            {"k": row.key, "at": row.at, "n": number}
            for number, row in enumerate(log[begin:end], begin)
            if (row.side, row.partition) == (side, partition)
        ]
        if rows:
            driver.feed(STREAMS[side], rows, partition=partition)


def create(driver: TestDriver, partitions: int = PARTITIONS) -> None:
    for stream in STREAMS:
        driver.create(stream, COLUMNS, partitions=partitions, time="at")


def output(driver: TestDriver) -> Pairs:
    return Counter((row["k"], row["n"], row["other"]) for row in driver.output("out"))


SPANS = st.integers(0, 20)


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Rows whose times rise by and large, of one or two partitions in each stream."""
    partitions = draw(st.integers(1, PARTITIONS))
    pace, first = draw(st.integers(0, 3)), draw(st.sampled_from([-40, 0]))
    places = st.tuples(st.integers(0, 1), st.integers(0, partitions - 1))
    keys = st.sampled_from([None, 0, 0, 1])
    drawn = draw(st.lists(st.tuples(places, keys, st.integers(0, 20)), max_size=50))
    return [Row(*place, key, first + pace * n + at) for n, (place, key, at) in enumerate(drawn)]


@given(
    log=logs(),
    cuts=st.lists(st.integers(0, 50), max_size=5),
    near=st.one_of(
        st.builds(Near, SPANS, SPANS, st.integers(0, 12)),
        st.builds(Near, st.just(0), st.just(0), st.integers(0, 12), st.integers(1, 30)),
    ),
    how=st.sampled_from(WAYS),
)
def test_the_logs_alone_say_which_rows_are_pairs(
    log: list[Row], cuts: list[int], near: Near, how: str
) -> None:
    with TestDriver(job(how, near), tasks=2, key_groups=8) as driver:
        create(driver, max((row.partition for row in log), default=0) + 1)
        bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
        for begin, end in itertools.pairwise(bounds):
            feed(driver, log, begin, end)
            driver.run()
        driver.finish()
        pairs, late = expected(log, how, near)
        assert pairs == output(driver)
        assert late == driver.coordinator.state.counts.get("late", 0)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("how", WAYS)
def test_a_row_within_the_grace_still_finds_its_partners(side: int, how: str) -> None:
    """Also where the watermark was past these when it came, and an epoch has ended since."""
    near, other = Near(2, 2, grace=8), 1 - side
    before = [Row(other, 0, 1, 10), Row(side, 0, 2, 20), Row(other, 0, 2, 20)]
    log = [*before, Row(side, 0, 1, 12), Row(side, 0, 1, 8), Row(side, 0, 1, 7)]
    with TestDriver(job(how, near), tasks=2) as driver:
        create(driver, partitions=1)
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 6)):
            feed(driver, log, begin, end)
            driver.run()
        driver.finish()
        pairs, late = expected(log, how, near)
        assert late == 1
        assert pairs == output(driver)
        assert sum(None not in pair for pair in pairs) == 3


@pytest.mark.parametrize("side", [0, 1])
def test_a_row_waits_for_partners_as_far_as_its_own_side_reaches(side: int) -> None:
    """The watermark is past what the other side would wait for when the partner comes."""
    near, other = (Near(10, 2) if side else Near(2, 10)), 1 - side
    ends = [Row(end, 0, 2, 12) for end in (side, other)]
    log = [Row(side, 0, 1, 0), *ends, Row(other, 0, 1, 9)]
    with TestDriver(job("full", near), tasks=2) as driver:
        create(driver, partitions=1)
        for begin, end in ((0, 3), (3, 4)):
            feed(driver, log, begin, end)
            driver.run()
        driver.finish()
        assert expected(log, "full", near)[0] == output(driver)


def rising(size: int, seed: int, keys: int = 30) -> list[Row]:
    """A log whose times rise, a little out of order."""
    rng = random.Random(seed)
    return [
        Row(
            rng.randrange(2),
            rng.randrange(PARTITIONS),
            rng.randrange(keys),
            number // 4 + rng.randrange(6),
        )
        for number in range(size)
    ]


def near_of(how: str) -> Near:
    return Near(0, 0, window=20) if how == "right" else Near(7, 12)


@pytest.mark.parametrize("how", WAYS)
def test_what_does_not_fit_at_once_is_matched_within_the_epoch(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, join_flush_rows=7, join_send_rows=5)
    near, log = near_of(how), rising(300, 8)
    with TestDriver(job(how, near), tasks=2) as driver:
        create(driver)
        for begin in range(0, 300, 10):
            for one in range(begin, begin + 10):
                feed(driver, log, one, one + 1)
            if begin % 100 == 90:
                driver.run()
        driver.finish()
        pairs, _ = expected(log, how, near)
        assert pairs == output(driver)


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ("inner", [(5,), (1,), (3,), (2,)]),
        ("full", [(5,), (1,), (3,), (2,)]),
        ("full", [(5, 7), (3, 2), (5, 7, 3), (2,)]),
    ],
)
def test_rows_that_wait_move_with_their_key_group(how: str, steps: list[tuple[int, ...]]) -> None:
    """Several rescales in a row leave a task several parts of one file, each of which counts."""
    near, log = Near(15, 15), rising(800, 5)
    with TestDriver(job(how, near), tasks=2, key_groups=32) as driver:
        create(driver)
        for number, counts in enumerate(steps):
            feed(driver, log, number * 200, number * 200 + 200)
            driver.run()
            for tasks in counts:
                driver.coordinator.rescale(tasks)
        driver.finish()
        pairs, _ = expected(log, how, near)
        assert pairs == output(driver)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("side", [0, 1])
def test_a_side_without_rows_leaves_the_other_without_partners(how: str, side: int) -> None:
    log = [Row(side, 0, number % 3, number) for number in range(20)]
    with TestDriver(job(how, Near(5, 5)), tasks=2) as driver:
        create(driver)
        feed(driver, log, 0, 10)
        driver.run()
        feed(driver, log, 10, 20)
        driver.finish()
        pairs, _ = expected(log, how, Near(5, 5))
        assert pairs == output(driver)


def test_one_key_with_all_rows_costs_what_it_gives() -> None:
    """A quadratic step would look at ten thousand million pairs here."""
    count = 100_000
    with TestDriver(job("left", Near(0, 0)), tasks=2) as driver:
        create(driver, partitions=1)
        for stream in STREAMS:
            rows = pa.table(
                {"k": [7] * count, "at": list(range(count)), "n": list(range(count))},
                schema=pa.schema(list(COLUMNS.items())),
            )
            driver.feed(stream, rows)
        driver.finish()
        found = driver.output("out")
        assert count == len(found)
        assert all(row["n"] == row["other"] for row in found)


def test_what_is_kept_goes_with_the_watermark() -> None:
    with TestDriver(job("inner", Near(10, 5)), tasks=1) as driver:
        create(driver, partitions=1)
        for at in range(0, 200, 4):
            driver.feed("left", [{"k": 1, "at": at, "n": at}])
            driver.feed("right", [{"k": 2, "at": at, "n": at}])
            driver.run()
        # The watermark is 192: left rows are needed for 5 after them, right ones for 10.
        left, right = (sorted(r["n"] for r in driver.table(f"j.{side}")) for side in STREAMS)
        assert left == [188, 192, 196]
        assert right == [184, 188, 192, 196]


def test_rows_of_one_key_and_time_stay_apart_when_files_are_merged() -> None:
    near = Near(1000, 1000)
    log = [Row(0, 0, number % 3, 7) for number in range(120)] + [Row(1, 0, 1, 9)]
    with TestDriver(job("left", near), tasks=1, slots=1) as driver:
        create(driver, partitions=1)
        for begin in range(0, 120, 3):
            feed(driver, log, begin, begin + 3)
            driver.run()
        [task] = [task for task in driver.coordinator.state.tasks.values() if task.files]
        assert any(ref.epoch > ref.first_epoch >= 0 for ref in task.files)
        feed(driver, log, 120, 121)
        driver.finish()
        pairs, _ = expected(log, "left", near)
        assert pairs == output(driver)


def test_merges_of_files_leave_out_what_is_over() -> None:
    """The files of a task do not grow with all rows that ever were."""
    with TestDriver(job("inner", Near(5, 5)), tasks=1, slots=1) as driver:
        create(driver, partitions=1)
        for epoch in range(60):
            log = [Row(number % 2, 0, number, 20 * epoch + number % 3) for number in range(60)]
            feed(driver, log, 0, 60)
            driver.run()
        [task] = [task for task in driver.coordinator.state.tasks.values() if task.files]
        assert sum(ref.rows for ref in task.files) < 60 * 20
