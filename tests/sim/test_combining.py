"""Rows that are folded before a repartition make the results of rows that are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.hosts import rows_exchanged
from tests.support.limits import limit
from tests.support.plans import plan
from tests.support.soak import crossed

import headrace as hr
from headrace import Job
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "v": pa.int64(), "f": pa.float64(), "at": pa.int64()}
PARTITIONS = 3
Row = dict[str, Any]


def joined(**more: Any) -> dict[str, Any]:
    return {
        "n": hr.agg.count(),
        "v": hr.agg.sum("v"),
        "f": hr.agg.mean("f"),
        "last": hr.agg.last("v", by="at"),
        "text": hr.agg.monoid(
            "",
            lambda v: str(v % 3),
            lambda a, b: "".join(sorted(a + b)),
            returns=str,
            columns=["v"],
        ),
        **more,
    }


KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.partition_by("k").window(
        hr.tumbling("10s", allowed_lateness="5s"), **joined()
    ),
    "hopping": lambda s: s.partition_by("k").window(
        hr.hopping("12s", every="4s", allowed_lateness="5s"), **joined()
    ),
    "rocksdb": lambda s: s.partition_by("k").window(
        hr.tumbling("10s"), store="rocksdb", **joined()
    ),
    "every": lambda s: s.partition_by("k").aggregate(every="5s", **joined()),
    "no key": lambda s: s.window(hr.tumbling("10s"), **joined()),
    "global": lambda s: s.partition_by("k").window(hr.global_window(), **joined()),
    "behind a window": lambda s: (
        s.partition_by("k", "v")
        .window(hr.tumbling("4s", allowed_lateness="3s"), f=hr.agg.sum("f"), at=hr.agg.max("at"))
        .partition_by("k")
        .window(hr.tumbling("20s"), n=hr.agg.count(), f=hr.agg.max("f"))
    ),
}


def job(kind: str) -> Job:
    @hr.job("combined")
    def combined(g: hr.Graph) -> None:
        KINDS[kind](g.input("in", time="at", out_of_orderness="2s", schema=COLUMNS)).send_to(
            g.output("out")
        )

    return combined


def batches(seed: int) -> list[tuple[int, list[Row]]]:
    rng, now, found = random.Random(seed), 100_000, []
    for _ in range(7):
        rows = []
        for _ in range(rng.randrange(1, 40)):
            now += rng.randrange(300)
            behind = rng.choice([500, 500, 8_000, 14_000, 40_000])
            row = {"k": rng.randrange(4), "v": rng.randrange(5), "at": now - rng.randrange(behind)}
            rows.append(row | {"f": float(rng.randrange(100))})
        found.append((rng.randrange(PARTITIONS), rows))
    return found


def run(kind: str, seed: int, *, crashes: bool = False) -> tuple[list[Any], int]:
    """Return what came out, and how many rows were late."""
    rng = random.Random(seed)
    with TestDriver(job(kind), tasks=2, max_rows=60) as driver:
        driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")
        for partition, rows in batches(seed):
            driver.feed("in", rows, partition=partition)
            if crashes and rng.random() < 0.4:
                driver.advance_with_crash(rng.choice(["slot.exchange_written", "epoch.published"]))
            driver.run()
        driver.finish()
        late = driver.coordinator.state.counts.get("late", 0)
        return sorted(map(str, driver.output("out"))), late


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, combine_sample_rows=1)
    limit(monkeypatch, combine_worth=1.0)


@pytest.mark.parametrize(("kind", "fold_rows"), crossed(list(KINDS), [7, 1 << 17, 7]))
def test_results_and_late_rows_are_the_same(
    kind: str, fold_rows: int, monkeypatch: pytest.MonkeyPatch, always: None
) -> None:
    del always
    limit(monkeypatch, combine_fold_rows=fold_rows)
    limit(monkeypatch, combine_held_rows=5 * fold_rows)
    graph = job(kind).build()
    exchanges = [e for stage in plan(graph, {}).stages for e in stage.sends]
    assert exchanges[-1].combined is not None
    folded = run(kind, 1, crashes=True)
    limit(monkeypatch, combine_sample_rows=1 << 40)
    assert run(kind, 1) == folded
    if kind not in ("every", "global"):
        assert folded[1] > 0


def late_aside(s: Any, g: Any) -> None:
    counts = s.partition_by("k").window(hr.tumbling("10s", late="side_output"), n=hr.agg.count())
    counts.send_to(g.output("out"))
    counts.side("late").send_to(g.output("late"))


def ending(build: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    return lambda s, g: build(s).send_to(g.output("out"))


COUNT = {"n": hr.agg.count()}
NOT_COMBINED: dict[str, Callable[[Any, Any], None]] = {
    "late rows on the side": late_aside,
    "late rows change results": ending(
        lambda s: s.partition_by("k").window(
            hr.tumbling("10s", late="update", allowed_lateness="1m"), **COUNT
        )
    ),
    "sessions": ending(lambda s: s.partition_by("k").window(hr.session("1s"), **COUNT)),
    "totals after each message": ending(lambda s: s.partition_by("k").aggregate(**COUNT)),
    "through the bus": ending(
        lambda s: s.partition_by("k", via="bus").window(hr.tumbling("10s"), **COUNT)
    ),
    "sketches": ending(
        lambda s: s.partition_by("k").window(hr.tumbling("10s"), n=hr.agg.approx_distinct("v"))
    ),
}


@pytest.mark.parametrize("kind", NOT_COMBINED)
def test_what_needs_each_row_gets_each_row(kind: str) -> None:
    @hr.job("whole")
    def whole(g: hr.Graph) -> None:
        NOT_COMBINED[kind](g.input("in", time="at", schema=COLUMNS), g)

    stages = plan(whole.build(), {}).stages
    assert [e.combined for stage in stages for e in stage.sends] == [None]


@pytest.mark.parametrize(("keys", "rows"), [(50, 4 * 50), (1_000_000, 40_000)])
def test_rows_are_folded_where_keys_repeat(keys: int, rows: int) -> None:
    """Of 4 partitions with 10,000 rows each, every one of which counts."""

    @hr.job("counts")
    def counts(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        keyed.window(hr.tumbling("1h"), n=hr.agg.count()).send_to(g.output("out"))

    rng = np.random.default_rng(1)
    with TestDriver(counts) as driver, rows_exchanged() as sent:
        driver.create("in", {"k": pa.int64(), "at": pa.int64()}, time="at", partitions=4)
        for partition in range(4):
            columns = [rng.integers(0, keys, 10_000), np.arange(10_000)]
            batch = pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=["k", "at"])
            driver.bus.stream("in").append(partition, batch)
        driver.finish()
        assert sum(row["n"] for row in driver.output("out")) == 40_000
    assert sum(sent) == rows
