"""What windows and totals must be, by brute force: one fold over the log in plain Python."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.testing import TestDriver

SIZE, EVERY, PARTITIONS = 10, 15, 3
NO_WATERMARK = -(1 << 62)


@dataclass(frozen=True)
class Record:
    """One record of the log; ``value`` may be null."""

    partition: int
    key: tuple[Any, ...]
    value: int | None
    at: int


@dataclass(frozen=True)
class Shape:
    """The job's settings and the types of its key columns."""

    keys: dict[str, pa.DataType]
    lateness: int
    grace: int
    store: str = "columnar"


@dataclass
class Expected:
    """What the log alone decides."""

    windows: Counter[Any] = field(default_factory=Counter)
    periodic: Counter[Any] = field(default_factory=Counter)
    totals: dict[Any, tuple[int, int]] = field(default_factory=dict)
    late: int = 0


def make_job(shape: Shape) -> Any:
    """Return a job with a window, totals after each message, kept totals, and periodic ones."""

    @hr.job("model")
    def model(g: hr.Graph) -> None:
        keyed = g.input("in", time="at", out_of_orderness=f"{shape.lateness}ms").partition_by(
            *shape.keys
        )
        window = hr.tumbling(f"{SIZE}ms", allowed_lateness=f"{shape.grace}ms")
        keyed.window(
            window,
            store=shape.store,
            n=hr.agg.count(),
            s=hr.agg.sum("v"),
            lo=hr.agg.min("v"),
            hi=hr.agg.max("v"),
            mid=hr.agg.mean("v"),
        ).send_to(g.output("windows"))
        totals: Any = {"n": hr.agg.count(), "ids": hr.agg.sum("id")}
        keyed.aggregate(store=shape.store, name="after", **totals).send_to(g.output("after"))
        keyed.aggregate(store=shape.store, name="kept", **totals)
        keyed.aggregate(
            every=f"{EVERY}ms", store=shape.store, s=hr.agg.sum("v"), n=hr.agg.count("v")
        ).send_to(g.output("periodic"))

    return model


def plain(value: Any) -> Any:
    """A value that equals itself: NaN has a name, zero one sign, moments are ms."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("float", value + 0.0)
    if hasattr(value, "tzinfo"):
        return round(value.timestamp() * 1000)
    return value


def same(key: Sequence[Any]) -> tuple[Any, ...]:
    """A key that equals itself."""
    return tuple(map(plain, key))


def expect(log: Sequence[Record], shape: Shape) -> Expected:
    """Fold the log, partition by partition."""
    expected = Expected()
    highest: dict[int, int] = {}
    windows: dict[Any, list[int | None]] = defaultdict(list)
    buckets: dict[Any, list[int | None]] = defaultdict(list)
    for number, record in enumerate(log):
        before = highest.get(record.partition)
        watermark = NO_WATERMARK if before is None else before - shape.lateness
        highest[record.partition] = max(record.at, record.at if before is None else before)
        key = same(record.key)
        count, ids = expected.totals.get(key, (0, 0))
        expected.totals[key] = (count + 1, ids + _id(number))
        end = record.at // SIZE * SIZE + SIZE
        if end + shape.grace <= watermark:
            expected.late += 1
        else:
            windows[end, key].append(record.value)
        effective = max(record.at, watermark)
        buckets[effective // EVERY * EVERY + EVERY, key].append(record.value)
    for (end, key), values in windows.items():
        some = [value for value in values if value is not None]
        mid = plain(sum(some) / len(some)) if some else None
        extremes = (min(some), max(some)) if some else (None, None)
        row = (*key, end - SIZE, end, len(values), sum(some), *extremes, mid)
        expected.windows[row] += 1
    running: dict[Any, list[int]] = defaultdict(list)
    for end, key in sorted(buckets, key=lambda bucket: bucket[0]):
        running[key] += [value for value in buckets[end, key] if value is not None]
        expected.periodic[(*key, end, sum(running[key]), len(running[key]))] += 1
    return expected


def _id(number: int) -> int:
    return number + 1


def create(driver: TestDriver, shape: Shape) -> None:
    """Make the input stream."""
    columns = {**shape.keys, "v": pa.int64(), "id": pa.int64(), "at": pa.int64()}
    driver.create("in", columns, partitions=PARTITIONS, time="at")


def feed(driver: TestDriver, shape: Shape, log: Sequence[Record], begin: int, end: int) -> None:
    """Append some records of the log, one append for each partition."""
    for partition in range(PARTITIONS):
        rows = [
            dict(zip(shape.keys, record.key, strict=True))
            | {"v": record.value, "id": _id(number), "at": record.at}
            for number, record in enumerate(log[begin:end], begin)
            if record.partition == partition
        ]
        driver.feed("in", rows, partition=partition)


def check(driver: TestDriver, shape: Shape, log: Sequence[Record]) -> None:
    """Compare the finished job with the fold."""
    expected = expect(log, shape)
    assert expected.windows == _rows(driver, "windows")
    assert expected.periodic == _rows(driver, "periodic")
    assert expected.late == driver.coordinator.state.counts.get("late", 0)
    assert expected.totals == _check_steps(driver, shape, log)
    kept = driver.table("kept") if shape.store == "columnar" else driver.raw_store("kept")
    assert len(expected.totals) == len(kept)


def _check_steps(driver: TestDriver, shape: Shape, log: Sequence[Record]) -> dict[Any, Any]:
    """Totals follow each message, in the order of its partition; return the last of each key."""
    seen: dict[Any, tuple[int, int]] = {}
    added: dict[Any, list[int]] = defaultdict(list)
    for row in driver.output("after"):
        *values, count, ids = map(plain, row.values())
        name = tuple(values)
        before = seen.get(name, (0, 0))
        assert count == before[0] + 1
        seen[name] = (count, ids)
        added[name].append(ids - before[1])
    for key, numbers in added.items():
        for partition in range(PARTITIONS):
            mine = [n for n in numbers if log[n - 1].partition == partition]
            wanted = [
                _id(n)
                for n, record in enumerate(log)
                if record.partition == partition and same(record.key) == key
            ]
            assert wanted == mine
    return seen


def _rows(driver: TestDriver, stream: str) -> Counter[Any]:
    return Counter(tuple(map(plain, row.values())) for row in driver.output(stream))
