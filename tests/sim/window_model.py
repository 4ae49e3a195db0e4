"""What windows of every kind must be, by brute force: plain Python over the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.support.windows import Hopping, Session, Sliding, Tumbling, Window

import headrace as hr
from headrace.testing import TestDriver

PARTITIONS, LATER = 3, 7
NO_WATERMARK = -(1 << 62)
COLUMNS = {"k": pa.string(), "v": pa.int64(), "at": pa.int64()}
Result = tuple[Any, ...]


@dataclass(frozen=True)
class Record:
    """One record of the log."""

    partition: int
    key: str | None
    value: int
    at: int


@dataclass(frozen=True)
class Case:
    """A window, how it is kept, and how late records may be."""

    window: Window
    store: str = "columnar"
    lateness: int = 0
    keyed: bool = True


def make_job(case: Case) -> Any:
    """Return a job with the window alone; ``v`` is a bag, so that nothing is lost in a sum."""

    @hr.job("windows")
    def windows(g: hr.Graph) -> None:
        source = g.input("in", time="at", out_of_orderness=f"{case.lateness}ms")
        stream = source.partition_by("k") if case.keyed else source
        aggregates: Any = {
            "n": hr.agg.count(),
            "s": hr.agg.sum("v"),
            "hi": hr.agg.max("v"),
            "bag": hr.agg.monoid(
                [], lambda v: [v], lambda a, b: sorted([*a, *b]), returns=list[int], columns="v"
            ),
        }
        made = stream.window(case.window, store=case.store, name="w", **aggregates)
        made.send_to(g.output("out"))
        later = made.window(hr.tumbling(f"{LATER}ms"), name="later", n=hr.agg.sum("n"))
        later.send_to(g.output("later"))

    return windows


def marked(log: Sequence[Record], lateness: int) -> list[tuple[Record, int]]:
    """Each record with the watermark of its partition just before it."""
    highest: dict[int, int] = {}
    found = []
    for record in log:
        before = highest.get(record.partition)
        found.append((record, NO_WATERMARK if before is None else before - lateness))
        highest[record.partition] = max(record.at, record.at if before is None else before)
    return found


def expect(log: Sequence[Record], case: Case) -> tuple[Counter[Result], int]:
    """Return all results, and how many records are late."""
    window, out = case.window, defaultdict(list)
    late = 0
    grace = window.grace_ms
    accepted: dict[Any, list[Record]] = defaultdict(list)
    for record, watermark in marked(log, case.lateness):
        key = record.key if case.keyed else ""
        if isinstance(window, Tumbling | Hopping):
            every = window.every_ms if isinstance(window, Hopping) else window.size_ms
            last = record.at // every * every
            begins = range(last, record.at - window.size_ms, -every)
            timely = [b for b in begins if b + window.size_ms + grace > watermark]
            late += not timely
            for begin in timely:
                out[key, begin, begin + window.size_ms].append(record.value)
        elif record.at + grace < watermark:
            late += 1
        else:
            accepted[key].append(record)
    for key, records in accepted.items():
        for start, end, values in (
            sessions(records, window.gap_ms)
            if isinstance(window, Session)
            else trails(records, window)  # type: ignore[arg-type]
        ):
            out[key, start, end] = values
    return Counter(
        (key, start, end, len(values), sum(values), max(values), tuple(sorted(values)))
        for (key, start, end), values in out.items()
    ), late


def sessions(records: Iterable[Record], gap: int) -> Iterable[tuple[int, int, list[int]]]:
    """Records less than the gap apart, whatever the order in which they came."""
    ordered = sorted(records, key=lambda record: record.at)
    groups: list[list[Record]] = []
    for record in ordered:
        if groups and record.at - groups[-1][-1].at < gap:
            groups[-1].append(record)
        else:
            groups.append([record])
    return [(g[0].at, g[-1].at + gap, [r.value for r in g]) for g in groups]


def trails(records: Sequence[Record], window: Sliding) -> Iterable[tuple[int, int, list[int]]]:
    """For each moment what lies within the size before it."""
    for at in sorted({record.at for record in records}):
        end = at + 1
        begin = end - window.size_ms
        yield begin, end, [r.value for r in records if begin <= r.at < end]


def create(driver: TestDriver) -> None:
    """Make the input stream."""
    driver.create("in", COLUMNS, partitions=PARTITIONS, time="at")


def feed(driver: TestDriver, log: Sequence[Record]) -> None:
    """Append records, one append for each partition."""
    for partition in range(PARTITIONS):
        rows = [
            {"k": record.key, "v": record.value, "at": record.at}
            for record in log
            if record.partition == partition
        ]
        if rows:
            driver.feed("in", rows, partition=partition)


def results(driver: TestDriver, case: Case) -> Counter[Result]:
    """What was sent, as the model gives it."""

    def moment(value: Any) -> int:
        return round(value.timestamp() * 1000)

    return Counter(
        (
            row["k"] if case.keyed else "",
            moment(row["window_start"]),
            moment(row["window_end"]),
            row["n"],
            row["s"],
            row["hi"],
            tuple(row["bag"]),
        )
        for row in driver.output("out")
    )


def check(driver: TestDriver, case: Case, log: Sequence[Record]) -> None:
    """Compare the finished job with the model."""
    expected, late = expect(log, case)
    assert expected == results(driver, case)
    assert late == driver.coordinator.state.counts.get("late", 0)
    _check_later(driver, case)
    kept = driver.table("w") if case.store == "columnar" else driver.raw_store("w")
    assert not kept


def _check_later(driver: TestDriver, case: Case) -> None:
    """Windows over the results miss none of them, for none comes behind the watermark."""
    expected: Counter[Result] = Counter()
    for (key, _, end, count, *_), times in results(driver, case).items():
        expected[key, (end - 1) // LATER * LATER] += count * times
    found = [
        (row["k"] if case.keyed else "", round(row["window_start"].timestamp() * 1000), row["n"])
        for row in driver.output("later")
    ]
    assert sorted(((*head, n) for head, n in expected.items()), key=repr) == sorted(found, key=repr)
