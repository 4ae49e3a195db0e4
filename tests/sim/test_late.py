"""Late records: what they change, and where they go, however epochs fall and whatever dies."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from tests.support.soak import crossed, more

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "v": pa.int64(), "at": pa.int64()}
PARTITIONS, SIZE, GRACE = 3, 10_000, 30_000
POINTS = (
    "slot.ran",
    "slot.segment_written",
    "epoch.before_commit",
    "commit.published",
    "epoch.published",
)
ASIDE = [hr.sliding("10s", late="side_output"), hr.session("5s", late="side_output")]
Log = list[list[dict[str, Any]]]


def updating(updates: str, store: str = "columnar") -> hr.Job:
    """Return a job whose results late records change."""

    @hr.job("updating")
    def updating(g: Any) -> None:
        events = g.input("events", time="at", out_of_orderness="1s").partition_by("id")
        window = hr.tumbling("10s", allowed_lateness="30s", late="update", updates=updates)
        totals = {"n": hr.agg.count(), "v": hr.agg.sum("v"), "top": hr.agg.top_k("v", 2)}
        events.window(window, store=store, **totals).send_to(g.output("windows"))

    return updating


def aside(window: Any) -> hr.Job:
    """Return a job that keeps late records beside its windows."""

    @hr.job("aside")
    def aside(g: Any) -> None:
        events = g.input("events", time="at", out_of_orderness="1s").partition_by("id")
        counts = events.window(window, n=hr.agg.count())
        counts.send_to(g.output("windows"))
        counts.side("late").send_to(g.output("late"))

    return aside


def batches(seed: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return rows of partitions, a part of them far behind."""
    rng = random.Random(seed)
    found, now = [], 200_000
    for _ in range(24):
        partition = rng.randrange(PARTITIONS)
        rows = []
        for _ in range(rng.randrange(1, 8)):
            now += rng.randrange(700)
            behind = rng.choice([500, 500, 500, 25_000, 90_000])
            row = {
                "id": rng.randrange(5),
                "v": rng.randrange(100),
                "at": now - rng.randrange(behind),
            }
            rows.append(row)
        found.append((partition, rows))
    return found


def run(
    job: hr.Job, seed: int, max_rows: int = 1_000, point: str = "", **more: Any
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Return the outputs of a job, and how many records were late."""
    rng = random.Random(seed)  # of the crashes
    with TestDriver(job, tasks=2, max_rows=max_rows, **more) as driver:
        driver.create("events", COLUMNS, partitions=PARTITIONS, time="at")
        for number, (partition, rows) in enumerate(batches(seed)):
            driver.feed("events", rows, partition=partition)
            if point and rng.random() < 0.4:
                driver.advance_with_crash(point)
            if number % 2:
                driver.run()
        driver.finish()
        outputs = {name: driver.output(name) for name in driver.bus.names()}
        return outputs, driver.coordinator.state.counts.get("late", 0)


def expected(seed: int) -> tuple[Counter[tuple[int, ...]], list[tuple[int, int, int]]]:
    """Fold the log: the last result of each window, and the late records."""
    windows: dict[tuple[int, int], list[int]] = defaultdict(list)
    late = []
    highest: dict[int, int] = {}
    for partition, rows in batches(seed):
        for row in rows:
            watermark = highest.get(partition, -(1 << 62)) - 1_000
            highest[partition] = max(row["at"], highest.get(partition, 0))
            end = (row["at"] // SIZE + 1) * SIZE
            if end + GRACE <= watermark:
                late.append((row["id"], row["v"], row["at"]))
            else:
                windows[row["id"], end].append(row["v"])
    results = Counter(
        (key, end, len(values), sum(values), *sorted(values, reverse=True)[:2])
        for (key, end), values in windows.items()
    )
    return results, sorted(late)


def result(row: dict[str, Any]) -> tuple[int, ...]:
    end = round(row["window_end"].timestamp() * 1000)
    return row["id"], end, row["n"], row["v"], *(one["v"] for one in row["top"])


@pytest.mark.parametrize(("max_rows", "store"), crossed([1_000, 20, 7], ["columnar", "rocksdb"]))
def test_the_last_result_has_all_that_came_within_the_grace(max_rows: int, store: str) -> None:
    outputs, late = run(updating("replace", store), 1, max_rows)
    wanted, dropped = expected(1)
    last = {result(row)[:2]: result(row) for row in outputs["windows"]}
    assert wanted == Counter(last.values())
    assert len(outputs["windows"]) > len(last)
    assert late == len(dropped) > 0


@pytest.mark.parametrize(("max_rows", "store"), crossed([20, 1_000, 7], ["columnar", "memory"]))
def test_what_is_taken_back_was_sent(max_rows: int, store: str) -> None:
    """At every moment each window has no result or one, and in the end the last."""
    outputs, _ = run(updating("retract", store), 2, max_rows)
    held: dict[tuple[int, ...], tuple[int, ...]] = {}
    taken = 0
    for row in outputs["windows"]:
        whole = result(row)
        if row["is_retraction"]:
            assert held.pop(whole[:2]) == whole
            taken += 1
        else:
            assert whole[:2] not in held
            held[whole[:2]] = whole
    assert taken > 0
    assert expected(2)[0] == Counter(held.values())


@cache
def undisturbed() -> tuple[dict[str, list[dict[str, Any]]], int]:
    return run(updating("retract"), 3)


@pytest.mark.parametrize("point", more(POINTS[::2], POINTS))
def test_a_crash_changes_no_result(point: str) -> None:
    outputs, late = run(updating("retract"), 3, point=point, hosts=2)
    plain, plain_late = undisturbed()
    assert Counter(map(str, outputs["windows"])) == Counter(map(str, plain["windows"]))
    assert late == plain_late


def test_a_result_is_sent_when_its_window_ends_and_kept_until_its_grace_is_over() -> None:
    with TestDriver(updating("retract"), tasks=1) as driver:
        driver.create("events", COLUMNS, time="at")
        driver.start()

        def sent(*times: int) -> list[tuple[int, bool]]:
            before = len(driver.output("windows"))
            driver.feed("events", [{"id": 1, "v": 1, "at": at} for at in times])
            driver.run()
            return [(row["n"], row["is_retraction"]) for row in driver.output("windows")[before:]]

        assert sent(5_000, 10_999) == []
        assert sent(11_000) == [(1, False)]
        assert sent(6_000, 7_000) == [(1, True), (3, False)]
        driver.crash(lose_hosts=[0])
        assert sent(8_000) == [(3, True), (4, False)]
        assert len(driver.table("events.by_id.window")) == 2
        assert sent(40_999, 9_000) == [(4, True), (5, False), (2, False)]
        assert sent(41_000) == []
        assert sent(9_999) == []
        assert driver.coordinator.state.counts["late"] == 1
        ends = {row["__cluster"] for row in driver.table("events.by_id.window")}
        assert ends == {20_000, 50_000}


@pytest.mark.parametrize(
    ("window", "max_rows"),
    crossed(
        [
            hr.tumbling("10s", allowed_lateness="30s", late="side_output"),
            hr.hopping("10s", every="10s", allowed_lateness="30s", late="side_output"),
        ],
        [1_000, 7],
    ),
)
def test_late_records_go_to_the_side_as_they_came(window: Any, max_rows: int) -> None:
    outputs, late = run(aside(window), 4, max_rows)
    wanted, dropped = expected(4)
    assert dropped == sorted((r["id"], r["v"], r["at"]) for r in outputs["late"])
    assert late == len(dropped) > 0
    assert sum(row["n"] for row in outputs["windows"]) == sum(n for _, _, n, *_ in wanted)


@pytest.mark.parametrize(
    ("point", "window"),
    more(
        [(point, ASIDE[n % 2]) for n, point in enumerate(("", *POINTS[::2]))],
        [(point, window) for point in ("", *POINTS) for window in ASIDE],
    ),
)
def test_no_record_is_lost_between_windows_and_their_side(window: Any, point: str) -> None:
    outputs, late = run(aside(window), 5, 20, point)
    fed = Counter((r["id"], r["v"], r["at"]) for _, rows in batches(5) for r in rows)
    aside_rows = Counter((r["id"], r["v"], r["at"]) for r in outputs["late"])
    assert aside_rows <= fed
    assert late == aside_rows.total() > 0
    highest: dict[int, int] = {}
    behind = []
    for partition, rows in batches(5):
        for row in rows:
            if row["at"] < highest.get(partition, 0) - 1_000:
                behind.append((row["id"], row["v"], row["at"]))
            highest[partition] = max(row["at"], highest.get(partition, 0))
    assert sorted(behind) == sorted(aside_rows.elements())


def test_a_window_without_a_key_is_corrected_too() -> None:
    @hr.job("together")
    def together(g: Any) -> None:
        events = g.input("events", time="at", out_of_orderness="1s")
        window = hr.tumbling("10s", allowed_lateness="30s", late="update", updates="retract")
        events.window(window, n=hr.agg.count(), v=hr.agg.sum("v")).send_to(g.output("windows"))

    outputs, late = run(together, 6, 20)
    results, dropped = expected(6)
    assert late == len(dropped)
    sums: Counter[int] = Counter()
    for _, end, _, total, *_ in results.elements():
        sums[end] += total
    found: Counter[int] = Counter()
    for row in outputs["windows"]:
        sign = -1 if row["is_retraction"] else 1
        found[round(row["window_end"].timestamp() * 1000)] += sign * row["v"]
    assert sums == found
    assert any(row["is_retraction"] for row in outputs["windows"])


def test_corrections_go_on_after_a_change_of_the_number_of_tasks() -> None:
    """What was sent follows from the watermark of the stage, whoever has the keys."""
    with TestDriver(updating("retract"), tasks=2) as driver:
        driver.create("events", COLUMNS, time="at")
        driver.feed("events", [{"id": key, "v": 1, "at": 5_000} for key in range(8)])
        driver.feed("events", [{"id": 0, "v": 1, "at": 12_000}])
        driver.run()
        driver.coordinator.rescale(5)
        driver.feed("events", [{"id": key, "v": 1, "at": 6_000} for key in range(9)])
        driver.run()
        sent = Counter((row["n"], row["is_retraction"]) for row in driver.output("windows"))
        assert sent == {(1, False): 9, (1, True): 8, (2, False): 8}
