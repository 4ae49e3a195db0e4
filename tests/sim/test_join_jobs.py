"""Joins of streams among other operators: windows after them, internal streams, idle inputs."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import crossed, more

import headrace as hr
from headrace.errors import PartsError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.string(), "at": pa.int64(), "n": pa.int64()}
STREAMS = ("left", "right")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def create(driver: TestDriver, partitions: int = 2) -> None:
    for stream in STREAMS:
        driver.create(stream, COLUMNS, partitions=partitions, time="at")


def rows(size: int, seed: int, every: int = 1) -> list[tuple[str, int, dict[str, Any]]]:
    """Stream, partition and row of each record, times rising."""
    rng = random.Random(seed)
    return [
        (
            rng.choice(STREAMS),
            rng.randrange(2),
            {"k": rng.choice("abcdefgh"), "at": 100 + number * every, "n": number},
        )
        for number in range(size)
    ]


def feed(driver: TestDriver, some: list[tuple[str, int, dict[str, Any]]]) -> None:
    for stream in STREAMS:
        for partition in range(2):
            own = [row for name, place, row in some if (name, place) == (stream, partition)]
            if own:
                driver.feed(stream, own, partition=partition)


def windowed(how: str, via: str = "exchange") -> hr.Job:
    """Return the job; of an address, ``{}`` is the name of the stream whose rows pass there."""

    @hr.job("windowed")
    def job(g: hr.Graph) -> None:
        left, right = (
            g.input(stream, time="at", out_of_orderness="5ms").partition_by(
                "k", via=via.format(stream), name=f"by-{stream}"
            )
            for stream in STREAMS
        )
        spans: dict[str, Any] = {"before": "20ms", "after": "10ms"}
        if how == "right":
            spans = {"window": hr.tumbling("30ms")}
        pairs = left.join(right, how=how, suffix="_r", name="j", **spans)
        pairs.send_to(g.output("pairs"))
        windows = pairs.window(hr.tumbling("50ms"), name="w", n=hr.agg.count())
        windows.map("k", "window_start", "n").send_to(g.output("windows"))
        again = pairs.partition_by("n_r").window(hr.tumbling("50ms"), name="v", n=hr.agg.count())
        again.map("window_start", "n").send_to(g.output("again"))

    return job


def counted(pairs: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Rows by key and window, with the event time that the guide states."""
    found: Counter[tuple[str, int]] = Counter()
    for row in pairs:
        at = max(time for time in (row["at"], row["at_r"]) if time is not None)
        found[row["k"], at // 50 * 50] += 1
    return found


@pytest.mark.parametrize(
    ("how", "step"), crossed(["inner", "left", "right", "full"], [1000, 60, 30])
)
def test_windows_of_pairs_take_every_row_however_late_it_is_sent(how: str, step: int) -> None:
    """None is late for a window, for the watermark behind the join lags as far as rows do."""
    log = rows(300, 7)
    with TestDriver(windowed(how), tasks=2) as driver:
        create(driver)
        for begin in range(0, 300, step):
            feed(driver, log[begin : begin + step])
            driver.run()
        driver.finish()
        wanted = counted(driver.output("pairs"))
        assert sum(wanted.values()) > 100
        found = {
            (row["k"], round((row["window_start"] - EPOCH).total_seconds() * 1000)): row["n"]
            for row in driver.output("windows")
        }
        assert wanted == found
        assert sum(wanted.values()) == sum(row["n"] for row in driver.output("again"))
        assert "late" not in driver.coordinator.state.counts


@cache
def outcome(via: str, max_rows: int, tasks: int = 2) -> list[Counter[str]]:
    in_memory = "://" not in via
    given: dict[str, Any] = {"tasks": tasks, "max_rows": max_rows, "memory_bus": in_memory}
    with TestDriver(windowed("full", via), **given) as driver:
        create(driver)
        log = rows(120, 3)
        for begin in range(0, 120, 20):
            feed(driver, log[begin : begin + 20])
            driver.advance(part=0)
        driver.finish()
        return [Counter(map(str, driver.output(name))) for name in ("pairs", "windows")]


@pytest.mark.parametrize("max_rows", more([11], [5, 11]))
def test_a_join_behind_the_bus_gives_the_same(max_rows: int) -> None:
    """Where tasks are ahead of the stage's watermark, too."""
    assert outcome("bus", max_rows) == outcome("exchange", 1000)


def test_tasks_that_sent_rows_without_partner_up_to_other_times_do_not_become_one() -> None:
    with TestDriver(windowed("full", "bus"), tasks=2, max_rows=5) as driver:
        create(driver)
        log = rows(120, 3)
        for begin in range(0, 120, 20):
            feed(driver, log[begin : begin + 20])
            for part in range(len(driver.parts) - 2):
                driver.advance(part=part)
        joining = next(p for p in driver.parts if "by-left+by-right" in p.state.task_counts)
        for _ in range(7):
            joining.advance()
        with pytest.raises(PartsError, match="different watermarks; ask again when it has read"):
            joining.rescale(1)
        driver.run()
        joining.rescale(1)
        driver.finish()
        assert [Counter(map(str, driver.output("pairs")))] == outcome("exchange", 1000)[:1]


@hr.job("idling")
def idling(g: hr.Graph) -> None:
    left, right = (
        g.input(stream, time="at", out_of_orderness="1s", idle="20s").partition_by("k")
        for stream in STREAMS
    )
    joined = left.join(right, within="5s", how="full", columns={"r": "n"}, late="side_output")
    joined.map("k", "n", "r").send_to(g.output("pairs"))
    for side in ("late_left", "late_right"):
        joined.side(side).send_to(g.output(side.replace("_", "-")))


def run_idle(max_rows: int = 1000, point: str = "") -> tuple[Counter[str], int]:
    rng, crashes, now = random.Random(2), random.Random(1), 100_000
    with TestDriver(idling, tasks=2, max_rows=max_rows) as driver:
        create(driver)
        driver.start()
        for turn in range(18):
            asleep = turn // 6 % 4 if turn % 6 < 5 else None
            for number in range(4):
                if number == asleep:
                    continue
                behind = 40_000 if number == turn // 6 % 4 else 3_000
                some = [
                    {"k": rng.choice("abc"), "at": now - rng.randrange(behind), "n": 10 * turn + n}
                    for n in range(rng.randrange(1, 4))
                ]
                driver.feed(STREAMS[number % 2], some, partition=number // 2)
            moved = rng.randrange(1, 9_000)
            now += moved
            driver.clock.advance(moved)
            if point and crashes.random() < 0.3:
                driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        late = [row for side in ("left", "right") for row in driver.output(f"late-{side}")]
        counts = driver.coordinator.state.counts
        assert counts["late"] == len(late)
        taken = sum(
            (row["n"] is not None) + (row["r"] is not None) for row in driver.output("pairs")
        )
        assert taken >= counts["in"] - len(late) > 0
        return Counter(map(str, driver.output("pairs"))), len(late)


@cache
def undisturbed() -> tuple[Counter[str], int]:
    return run_idle()


@pytest.mark.parametrize("max_rows", more([7], [40, 7, 3]))
def test_with_idle_partitions_the_size_of_epochs_changes_nothing(max_rows: int) -> None:
    found = undisturbed()
    assert found[1] > 0
    assert found == run_idle(max_rows)


@pytest.mark.parametrize("point", ["slot.ran", "epoch.before_commit", "epoch.published"])
def test_with_idle_partitions_a_crash_changes_nothing(point: str) -> None:
    assert undisturbed() == run_idle(point=point)


def test_rows_without_partner_are_sent_when_the_watermark_moves_without_rows_of_theirs() -> None:
    with TestDriver(idling, tasks=2) as driver:
        create(driver, partitions=1)
        driver.feed("left", [{"k": "a", "at": 1_000, "n": 1}])
        driver.feed("right", [{"k": "b", "at": 1_000, "n": 2}])
        driver.run()
        assert driver.output("pairs") == []
        driver.clock.advance(15_000)
        driver.feed("left", [{"k": "c", "at": 50_000, "n": 3}])
        driver.run()
        assert driver.output("pairs") == []  # the right stream may still bring a partner
        driver.clock.advance(5_000)
        assert driver.run() == 1
        found = [(row["k"], row["n"], row["r"]) for row in driver.output("pairs")]
        assert sorted(found) == [("a", 1, None), ("b", None, 2)]


def test_a_stream_may_be_joined_with_itself() -> None:
    @hr.job("own")
    def own(g: hr.Graph) -> None:
        keyed = g.input("left", time="at").partition_by("k")
        joined = keyed.join(keyed, before="0s", after="10ms", columns={"later": "n"})
        joined.filter(hr.col("n") != hr.col("later")).send_to(g.output("out"))

    with TestDriver(own, tasks=2) as driver:
        create(driver)
        for number in range(6):
            driver.feed("left", [{"k": "a", "at": 7 * number, "n": number}])
            driver.run()
        driver.finish()
        found = sorted((row["n"], row["later"]) for row in driver.output("out"))
        assert found == [(number, number + 1) for number in range(5)]


def test_keys_may_have_other_names_widths_and_several_columns() -> None:
    @hr.job("wide")
    def wide(g: hr.Graph) -> None:
        left = g.input("l", time="at").partition_by("a", "b")
        right = g.input("r", time="t").partition_by("x", "y")
        left.join(right, within="1s", how="full").send_to(g.output("out"))

    with TestDriver(wide, tasks=3) as driver:
        driver.create("l", {"a": pa.int32(), "b": pa.string(), "at": pa.int64()}, time="at")
        driver.create(
            "r", {"x": pa.int64(), "y": pa.string(), "v": pa.float64(), "t": pa.int64()}, time="t"
        )
        driver.feed("l", [{"a": n, "b": "é" * (n % 2), "at": 10} for n in range(4)])
        driver.feed("l", [{"a": None, "b": "", "at": 10}])
        right = [{"x": n, "y": "", "v": n / 2, "t": 11} for n in (0, 1, 1 << 40)]
        driver.feed("r", [*right, {"x": None, "y": "", "v": None, "t": 11}])
        driver.finish()
        found = [
            (row["a"], row["b"], row["at"], row["v"], row["t"]) for row in driver.output("out")
        ]
        alone = [(1, "é", 10), (2, "", 10), (3, "é", 10), (None, "", 10)]
        wanted: list[tuple[Any, ...]] = [
            (0, "", 10, 0.0, 11),
            (1, "", None, 0.5, 11),
            (1 << 40, "", None, (1 << 39), 11),
        ]
        wanted += [(*row, None, None) for row in alone] + [(None, "", None, None, 11)]
        assert sorted(found, key=str) == sorted(wanted, key=str)
        assert driver.coordinator.state.counts["without_key"] == 2


def test_operators_before_a_join_know_the_key_of_their_own_side() -> None:
    class Count:
        def process(self, message: Any, context: Any) -> None:
            seen = context.store("seen")
            number = seen.get(message.x, 0) + 1
            seen.put(message.x, number)
            context.emit({"x": message.x, "at": message.at, "number": number})

    @hr.job("both")
    def both(g: hr.Graph) -> None:
        right = g.input("r", time="at").partition_by("x")
        right.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("windows"))
        counted = right.process(Count, {"seen": int}, {"x": str, "at": int, "number": int})
        refused = counted.filter(lambda message: 1 / (3 - message.number), on_error="dead_letter")
        left = g.input("l", time="at").partition_by("a")
        joined = left.join(refused, within="1ms", suffix="_r")
        joined.window(hr.tumbling("10ms"), n=hr.agg.sum("number")).send_to(g.output("sums"))

    with TestDriver(both, tasks=2) as driver:
        driver.create("r", {"x": pa.string(), "at": pa.int64()}, time="at")
        driver.create("l", {"a": pa.string(), "at": pa.int64()}, time="at")
        for at in range(4):
            driver.feed("r", [{"x": "k", "at": at}, {"x": "l", "at": at}])
            driver.feed("l", [{"a": "k", "at": at}])
            driver.run()
        driver.finish()
        assert sorted((row["x"], row["n"]) for row in driver.output("windows")) == [
            ("k", 4),
            ("l", 4),
        ]
        # Numbers 1, 2, 4 of the times 0, 1, 3; rows of the left side at 0 to 3 are 1 apart.
        assert [(row["a"], row["n"]) for row in driver.output("sums")] == [("k", 2 + 6 + 8)]
        assert {row["key"] for row in driver.output("both.dead")} == {'"k"', '"l"'}
