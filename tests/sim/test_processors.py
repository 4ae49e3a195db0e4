"""Processors with contracts against plain Python: any epochs, crashes, lost hosts, rescales."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.processors import Best, Positive, Words
from tests.support.limits import limit
from tests.support.soak import examples, more

import headrace as hr
from headrace.testing import TestDriver

COLUMNS = {"user": pa.string(), "n": pa.int64(), "at": pa.int64()}
POINTS = (
    "slot.caught_up",
    "slot.ran",
    "slot.exchange_written",
    "slot.segment_written",
    "epoch.level_done",
    "epoch.before_commit",
    "commit.published",
    "epoch.published",
)
EVERY = 1_000
Row = dict[str, Any]


KEY = {"user": str, "odd": int}


@hr.job("contracts")
def contracts(g: hr.Graph) -> None:
    events = g.input("events", time="at", out_of_orderness="2s")
    positive = events.process(Positive, returns={"user": str, "n": int})
    best = positive.partition_by("user").process(Best, returns={"user": str, "best": list[int]})
    best.send_to(g.output("best"))
    events.monoid(Words, KEY, every="1s", name="words").send_to(g.output("words"))
    events.monoid(Words, KEY, store="rocksdb", name="kept")


def batches(seed: int, partitions: int = 1) -> list[tuple[int, list[Row]]]:
    rng, now, found = random.Random(seed), 10_000, []
    for _ in range(9):
        rows = []
        for _ in range(rng.randrange(1, 12)):
            now += rng.randrange(300)
            n = 100 if rng.random() < 0.05 else rng.randrange(-3, 20)
            rows.append({"user": f"u{rng.randrange(5)}", "n": n, "at": now - rng.randrange(4_000)})
        found.append((rng.randrange(partitions), rows))
    return found


def best_of(fed: list[Row]) -> list[tuple[str, list[int]]]:
    held: dict[str, list[int]] = defaultdict(list)
    told = []
    for row in fed:
        if row["n"] == 100:
            told.append((row["user"], sorted(held.pop(row["user"], []), reverse=True)[:3]))
        elif row["n"] > 0:
            held[row["user"]].append(row["n"])
    return told


def words_of(fed: list[Row]) -> dict[tuple[int, str, int], str]:
    """The totals as of each instant at which something counts."""
    highest = -(1 << 60)
    parts: dict[int, dict[tuple[str, int], str]] = defaultdict(lambda: defaultdict(str))
    for row in fed:
        at = (max(row["at"], highest - 2_000) // EVERY + 1) * EVERY
        highest = max(highest, row["at"])
        parts[at][row["user"], row["n"] % 2] += str(row["n"])
        parts[at]["everybody", row["n"] % 2] += "x"
    totals: dict[tuple[str, int], str] = defaultdict(str)
    found = {}
    for at in sorted(parts):
        for (user, odd), text in parts[at].items():
            totals[user, odd] += text
            found[at, user, odd] = totals[user, odd]
    return found


def check(driver: TestDriver, fed: list[Row]) -> None:
    best = Counter((row["user"], tuple(row["best"])) for row in driver.output("best"))
    assert best == Counter((user, tuple(top)) for user, top in best_of(fed))
    sent = [
        ((round(row["at"].timestamp() * 1000), row["user"], row["odd"]), row["value"])
        for row in driver.output("words")
    ]
    assert len(sent) == len(dict(sent))
    assert dict(sent) == words_of(fed)


@pytest.mark.parametrize("max_rows", more([1_000, 7], [1_000, 7, 3, 1]))
def test_results_are_those_of_the_log_whatever_the_epochs(max_rows: int) -> None:
    fed: list[Row] = []
    with TestDriver(contracts, tasks=2, max_rows=max_rows) as driver:
        driver.create("events", COLUMNS, time="at")
        for _, rows in batches(1):
            fed += rows
            driver.feed("events", rows)
            driver.run()
        driver.finish()
        check(driver, fed)


@pytest.mark.parametrize("point", more(POINTS[1::3], POINTS))
def test_crashes_and_lost_hosts_change_nothing(point: str) -> None:
    rng, fed = random.Random(5), []
    with TestDriver(contracts, tasks=2, max_rows=9) as driver:
        driver.create("events", COLUMNS, time="at")
        for number, (_, rows) in enumerate(batches(2)):
            fed += rows
            driver.feed("events", rows)
            if rng.random() < 0.5:
                driver.advance_with_crash(point, rng.randrange(1, 3))
            if number == 4:
                driver.crash(lose_hosts=[0])
            driver.run()
        driver.finish()
        check(driver, fed)


def test_a_memory_bound_sends_partial_results_early(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, generate_keys=2)
    fed: list[Row] = []
    with TestDriver(contracts, tasks=2) as driver:
        driver.create("events", COLUMNS, time="at")
        for _, rows in batches(3):
            fed += rows
            driver.feed("events", rows)
        driver.finish()
        check(driver, fed)


def test_an_epoch_sends_one_partial_result_of_each_key_and_instant() -> None:
    with TestDriver(contracts, tasks=2) as driver:
        driver.create("events", COLUMNS, time="at")
        driver.feed("events", [{"user": "a", "n": 2, "at": 10_000 + n % 10} for n in range(500)])
        summary = driver.advance()
        assert summary is not None
        assert summary.counts["partials"] == 2 * 2


def test_rescales_among_crashes_change_nothing() -> None:
    rng, fed = random.Random(6), []
    with TestDriver(contracts, tasks=2, max_rows=15) as driver:
        driver.create("events", COLUMNS, time="at")
        for number, (_, rows) in enumerate(batches(4)):
            fed += rows
            driver.feed("events", rows)
            if number % 3 == 2:
                driver.start()
                driver.coordinator.rescale(rng.choice([1, 3, 5]))
            if rng.random() < 0.4:
                driver.advance_with_crash("slot.segment_written")
            driver.run()
        driver.finish()
        check(driver, fed)


PIECES = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-2, 30), st.integers(0, 6_000)),
        min_size=1,
        max_size=8,
    ),
    max_size=5,
)


@settings(max_examples=examples(4), deadline=None)
@given(pieces=PIECES, max_rows=st.integers(1, 20), point=st.sampled_from(["", *POINTS]))
def test_any_rows_in_any_epochs(
    pieces: list[list[tuple[str, int, int]]], max_rows: int, point: str
) -> None:
    fed: list[Row] = []
    with TestDriver(contracts, tasks=2, max_rows=max_rows) as driver:
        driver.create("events", COLUMNS, time="at")
        for piece in pieces:
            rows = [{"user": user, "n": n, "at": 10_000 + at} for user, n, at in piece]
            fed += rows
            driver.feed("events", rows)
            if point:
                driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        check(driver, fed)
