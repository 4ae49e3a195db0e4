"""A time to live in a whole job: by the epochs' clock, crashes or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.hosts import now_and_then
from tests.support.limits import limit
from tests.support.soak import crossed

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver


class Count:
    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.k, store.get(message.k, 0) + 1)
        context.emit((message.k, store.get(message.k)))


def counting(ttl: str | None = "10s", kind: str = "rocksdb") -> hr.Job:
    @hr.job("ttl")
    def ttl_job(g: hr.Graph) -> None:
        counted = (
            g.input("in")
            .partition_by("k")
            .process(
                Count,
                stores=[hr.store("n", int, kind, ttl=ttl)],
                returns={"k": pa.string(), "n": int},
            )
        )
        counted.send_to(g.output("out"))

    return ttl_job


def run(driver: TestDriver, *, crashes: bool) -> list[dict[str, Any]]:
    driver.create("in", {"k": pa.string()})
    for seconds in (0, 6, 6, 11, 3, 30):
        driver.clock.advance(seconds * 1000)
        driver.feed("in", [{"k": "a"}])
        if crashes:
            for point in ("slot.segment_written", "epoch.before_commit", "commit.published"):
                driver.advance_with_crash(point)
        driver.run()
    return driver.output("out")


@pytest.mark.parametrize(("kind", "crashes"), crossed(["rocksdb", "memory"], [True, False]))
def test_counts_begin_again_when_a_key_was_quiet_for_too_long(kind: str, crashes: bool) -> None:
    with TestDriver(counting(kind=kind), tasks=2) as driver:
        rows = run(driver, crashes=crashes)
        assert [row["n"] for row in rows] == [1, 2, 3, 1, 2, 1]
        assert driver.store("n") == {"a": 1}


@pytest.mark.parametrize(("kind", "crashes"), crossed(["columnar", "rocksdb"], [True, False]))
def test_totals_begin_again_when_a_key_was_quiet_for_too_long(kind: str, crashes: bool) -> None:
    @hr.job("totals")
    def totals(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        keyed.aggregate(ttl="10s", store=kind, n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(totals, tasks=2) as driver:
        rows = run(driver, crashes=crashes)
        assert [row["n"] for row in rows] == [1, 2, 3, 1, 2, 1]


def test_explain_and_the_state_know_of_it() -> None:
    with TestDriver(counting()) as driver:
        run(driver, crashes=False)
        driver.job = counting("1h")
        driver.start()
        driver.job = counting(None)
        with pytest.raises(InvalidInputError, match=r"stores was n: int .rocksdb, ttl."):
            driver.start()


@pytest.mark.parametrize("ttl", ["0s", "soon", -1])
def test_a_life_that_is_none_is_a_mistake_of_the_graph(ttl: Any) -> None:
    with pytest.raises(GraphError, match="ttl of store 'n'"):
        counting(ttl).build()


@pytest.mark.parametrize("kind", ["columnar", "rocksdb"])
def test_a_longer_life_holds_for_what_was_written_before(kind: str) -> None:
    """Also when merges of old files run after the change; each task sees another key."""
    is_time = False
    names = [f"a{n}" for n in range(12)]

    def totals(ttl: str) -> hr.Job:
        @hr.job("totals")
        def job(g: hr.Graph) -> None:
            keyed = g.input("in").partition_by("k")
            keyed.aggregate(ttl=ttl, store=kind, n=hr.agg.count()).send_to(g.output("out"))

        return job

    def feed(driver: TestDriver, keys: list[str]) -> None:
        driver.clock.advance(1000)
        driver.feed("in", [{"k": key} for key in keys])
        driver.run()

    background = now_and_then(lambda: is_time)
    with TestDriver(totals("10s"), tasks=2, slots=1, background=background) as driver:
        driver.create("in", {"k": pa.string()})
        for _ in range(6):
            feed(driver, names)
        driver.crash()
        is_time = True
        driver.job = totals("1h")
        driver.clock.advance(60_000)
        for key in "bcdefghi":
            feed(driver, [key])
        feed(driver, names)
        last = {row["k"]: row["n"] for row in driver.output("out")}
        assert [last[name] for name in names] == [7] * len(names)


@pytest.mark.parametrize("kind", ["columnar", "rocksdb", "memory"])
def test_nothing_is_seen_from_the_end_of_its_life_on(kind: str) -> None:
    @hr.job("totals")
    def totals(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        keyed.aggregate(ttl="10s", store=kind, n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(totals) as driver:
        driver.create("in", {"k": pa.string()})
        for later_ms in (0, 9_999, 10_000):
            driver.clock.advance(later_ms)
            driver.feed("in", [{"k": "a"}])
            driver.run()
        assert [row["n"] for row in driver.output("out")] == [1, 2, 1]


def test_expired_totals_leave_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, snapshot_gain_bytes=1)
    limit(monkeypatch, merge_cost_bytes=500)

    @hr.job("totals")
    def totals(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        keyed.aggregate(ttl="10s", n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(totals, tasks=1, slots=1, keep_epochs=1) as driver:
        driver.create("in", {"k": pa.string()})
        for _ in range(2):  # a snapshot stands before they expire
            driver.feed("in", [{"k": str(n)} for n in range(10_000)])
            driver.run()
        before = driver.coordinator.state.tasks
        for _ in range(30):
            driver.clock.advance(2000)
            driver.feed("in", [{"k": "a"}])
            driver.run()
        after = driver.coordinator.state.tasks
        sizes = [sum(r.bytes for t in tasks.values() for r in t.files) for tasks in (before, after)]
        assert sizes[1] < sizes[0] / 50


class Note:
    def process(self, message: Any, context: Any) -> None:
        context.store("seen").put(message.k, 1)


@pytest.mark.parametrize(("kind", "tasks"), [("rocksdb", 1), ("memory", 3)])
def test_what_expired_goes_although_each_epoch_finds_a_new_process(kind: str, tasks: int) -> None:
    """Spark ends idle workers: what they knew of the sweep is in the manifest, too."""

    @hr.job("notes")
    def notes(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        keyed.process(Note, stores=[hr.store("seen", int, kind, ttl="10m")], name="p")

    with TestDriver(notes, tasks=tasks, slots=1, key_groups=64) as driver:
        driver.create("in", {"k": pa.int64()})
        for epoch in range(14):
            driver.feed("in", [{"k": epoch * 20 + n} for n in range(20)])
            driver.run()
            driver.runner.kill_all()
            driver.clock.advance(120_000)
        assert len(driver.raw_store("seen")) <= 2 * 5 * 20 + 20
        for _ in range(6):
            driver.feed("in", [{"k": 0}])
            driver.advance(force=True)
            driver.crash()
            driver.clock.advance(120_000)
        driver.clock.advance(600_000)
        driver.advance(force=True)
        assert len(driver.raw_store("seen")) <= 1
