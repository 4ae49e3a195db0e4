"""Random logs, epochs, crashes and slow calls: the results are those of a plain class."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.support.soak import more

import headrace as hr
from headrace.testing import FAULT_POINTS, TestDriver

POINTS = sorted(point for point in FAULT_POINTS if point.startswith(("slot.", "epoch.", "commit.")))
COLUMNS = {"n": pa.int64(), "k": pa.int64(), "v": pa.int64(), "at": pa.int64()}


class Slow:
    """The messages whose calls do not end for now."""

    held: ClassVar[set[int]] = set()


class Plain:
    """Counts and remembers, one message after the other."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("seen")
        seen = [*store.get(message.k, []), message.n]
        store.put(message.k, seen[-3:])
        if message.n % 11 == 5:
            raise ValueError("a bad one")
        context.emit({"n": message.n, "k": message.k, "v": sum(seen[:-1]), "at": message.at})


class Waiting:
    """The same, with a wait between reading and writing."""

    async def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("seen")
        seen = [*store.get(message.k, []), message.n]
        await asyncio.sleep(0.001 * (message.n % 3))
        while message.n in Slow.held:
            await asyncio.sleep(0.1)
        store.put(message.k, seen[-3:])
        if message.n % 11 == 5:
            raise ValueError("a bad one")
        context.emit({"n": message.n, "k": message.k, "v": sum(seen[:-1]), "at": message.at})


def job_of(kind: type, via: str, **named: Any) -> hr.Job:
    @hr.job("job")
    def job(g: hr.Graph) -> None:
        rows = g.input("in", time="at", out_of_orderness="2s").partition_by("k", via=via)
        options: dict[str, Any] = {
            "stores": {"seen": list[int]},
            "returns": COLUMNS,
            "on_error": "drop",
        }
        made = rows.process(kind, name="p", **options, **named)
        made.send_to(g.output("out"))
        window = hr.tumbling("4s", allowed_lateness="1s")
        made.window(window, n=hr.agg.count(), v=hr.agg.sum("v")).send_to(g.output("here"))
        apart = made.partition_by("v").window(window, n=hr.agg.count())
        apart.send_to(g.output("there"))

    return job


Found = dict[str, Counter[tuple[Any, ...]]]


def results(driver: TestDriver) -> Found:
    found: Found = {}
    for stream in ("out", "here", "there"):
        rows = driver.output(stream)
        found[stream] = Counter(tuple(sorted(row.items())) for row in rows)
    order: dict[int, list[int]] = {}
    for row in driver.output("out"):
        order.setdefault(row["k"], []).append(row["n"])
    found["order"] = Counter((k, tuple(ns)) for k, ns in order.items())
    return found


def rows_of(rand: random.Random) -> list[dict[str, Any]]:
    at, rows = 0, []
    for n in range(rand.randint(5, 60)):
        at += rand.randint(0, 1500)
        rows.append({"n": n, "k": rand.randint(0, 4), "at": max(0, at - rand.randint(0, 5000))})
    return rows


def plainly(rows: list[dict[str, Any]], via: str) -> Found:
    with TestDriver(job_of(Plain, via), tasks=1) as driver:
        driver.create("in", {name: COLUMNS[name] for name in ("n", "k", "at")})
        driver.feed("in", rows)
        driver.finish()
        return results(driver)


def played(rows: list[dict[str, Any]], rand: random.Random, via: str) -> Found:
    most = rand.choice([1, 2, 8])
    job = job_of(Waiting, via, order="key", max_concurrency=most)
    tasks, max_rows = rand.choice([1, 2, 3]), rand.choice([2, 7, 1000])
    with TestDriver(job, tasks=tasks, max_rows=max_rows, hosts=2) as driver:
        driver.create("in", {name: COLUMNS[name] for name in ("n", "k", "at")})
        left = list(rows)
        while left:
            count = rand.randint(1, 20)
            driver.feed("in", left[:count])
            left = left[count:]
            for _ in range(rand.randint(1, 4)):
                Slow.held = {row["n"] for row in rows if rand.random() < 0.1}
                act = rand.random()
                if act < 0.2:
                    driver.advance_with_crash(rand.choice(POINTS))
                elif act < 0.25:
                    driver.crash(lose_hosts=[rand.randint(0, 1)])
                elif act < 0.3 and via == "exchange":
                    driver.coordinator.rescale(rand.choice([1, 2, 5]))
                else:
                    driver.advance()
        Slow.held = set()
        driver.finish()
        return results(driver)


@pytest.mark.parametrize("seed", more(range(6), range(200)))
def test_any_schedule_gives_what_a_plain_class_gives(seed: int) -> None:
    rand = random.Random(seed)
    via = "bus" if seed % 4 == 3 else "exchange"
    rows = rows_of(rand)
    assert played(rows, rand, via) == plainly(rows, via)
