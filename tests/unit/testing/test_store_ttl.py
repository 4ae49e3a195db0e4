"""A time to live in a whole job: by the epochs' clock, crashes or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing.driver import TestDriver


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


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
@pytest.mark.parametrize("crashes", [False, True])
def test_counts_begin_again_when_a_key_was_quiet_for_too_long(kind: str, crashes: bool) -> None:
    with TestDriver(counting(kind=kind)) as driver:
        rows = run(driver, crashes=crashes)
        assert [row["n"] for row in rows] == [1, 2, 3, 1, 2, 1]
        assert driver.store("n") == {"a": 1}


@pytest.mark.parametrize("kind", ["columnar", "rocksdb"])
@pytest.mark.parametrize("crashes", [False, True])
def test_totals_begin_again_when_a_key_was_quiet_for_too_long(kind: str, crashes: bool) -> None:
    @hr.job("totals")
    def totals(g: hr.Graph) -> None:
        keyed = g.input("in").partition_by("k")
        keyed.aggregate(ttl="10s", store=kind, n=hr.agg.count()).send_to(g.output("out"))

    with TestDriver(totals) as driver:
        rows = run(driver, crashes=crashes)
        assert [row["n"] for row in rows] == [1, 2, 3, 1, 2, 1]


def test_explain_and_the_state_know_of_it() -> None:
    with TestDriver(counting()) as driver:
        run(driver, crashes=False)
        driver._job = counting("1h")
        driver.start()
        driver._job = counting(None)
        with pytest.raises(InvalidInputError, match=r"stores was n: int .rocksdb, ttl."):
            driver.start()


@pytest.mark.parametrize("ttl", ["0s", "soon", -1])
def test_a_life_that_is_none_is_a_mistake_of_the_graph(ttl: Any) -> None:
    with pytest.raises(GraphError, match="ttl of store 'n'"):
        counting(ttl).build()
