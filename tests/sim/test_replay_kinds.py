"""Every epoch of jobs of all kinds, run again: rows, stores and watermarks are the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.support.changes import part_reader, record

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.sinks import FileSink
from headrace.testing import TestDriver

EVENTS = {"k": pa.string(), "n": pa.int64(), "at": pa.int64()}
NAMES = {"k": pa.string(), "name": pa.string()}


class Seen(NamedTuple):
    """What one epoch of one part left behind, and what it sent."""

    job: str
    epoch: int
    rows: dict[str, list[str]]
    watermarks: dict[str, int]
    counts: dict[str, int]
    sent: Counter[str]


def look(driver: TestDriver, job: str, sent: Counter[str]) -> Seen:
    reader = part_reader(driver, job)
    state = reader.state()
    stores = [entry.name for entry in reader.catalog(state).stores if entry.in_files]
    views = {name: reader.view(name, partials=True) for name in stores}
    rows = {
        name: sorted(str(row) for batch in view.batches() for row in batch.to_pylist())
        for name, view in views.items()
    }
    return Seen(job, state.epoch, rows, state.watermarks, state.counts, sent)


def outputs(driver: TestDriver, names: tuple[str, ...]) -> Counter[str]:
    there = set(driver.bus.names())
    return Counter(f"{n} {row}" for n in names if n in there for row in driver.output(n))


def check(
    driver: TestDriver,
    job: hr.Job,
    step: Callable[[TestDriver, random.Random, int], None],
    names: tuple[str, ...],
    path: Path,
    steps: int = 8,
) -> list[Seen]:
    """Record every epoch as soon as it is there, as retention and compaction go on, and run it."""
    rng = random.Random(7)
    found: list[Seen] = []
    before = outputs(driver, names)
    for number in range(steps + 1):
        if number == steps:
            for coordinator in driver.parts:
                coordinator.end_at_present()
        else:
            step(driver, rng, number)
        while (summary := driver.advance()) is not None:
            sent = outputs(driver, names)
            seen = look(driver, summary.job, sent - before)
            before = sent
            found.append(seen)
            record(driver, path, seen.epoch, job=seen.job)
            with TestDriver.replay(job, path) as replay:
                assert replay.advance() is not None
                assert look(replay, seen.job, outputs(replay, names)) == seen
    return found


def feed(driver: TestDriver, rng: random.Random, number: int) -> None:
    rows = [
        {
            "k": rng.choice("abcde"),
            "n": rng.randrange(9),
            "at": number * 7_000 + rng.randrange(9_000),
        }
        for _ in range(rng.randrange(12))
    ]
    driver.feed("events", rows, partition=rng.choice([None, None, 0]))
    driver.clock.advance(rng.randrange(15_000))


def create(driver: TestDriver) -> None:
    driver.create("events", EVENTS, partitions=2, time="at", key=["k"])


@hr.job("joined")
def joined(g: hr.Graph) -> None:
    names = hr.broadcast("names", stream="names", key="k")
    events = g.input("events", time="at", out_of_orderness="2s", idle="20s")
    named = events.join_table(names, columns=["name"]).partition_by("k")
    named.window(hr.session("10s"), name="visits", n=hr.agg.sum("n")).send_to(g.output("visits"))
    small = events.filter(hr.col("n") < 4, name="small").partition_by("k", name="small-by-k")
    named.join(small, within="5s", columns={"other": "n"}, name="pairs").send_to(g.output("pairs"))
    once = named.deduplicate("k", "n", within="1m", name="once")
    once.send_to(g.output("once"))


def feed_names(driver: TestDriver, rng: random.Random, number: int) -> None:
    driver.feed("names", [{"k": rng.choice("abcde"), "name": f"name-{number}"} for _ in range(3)])
    if number == 4:
        for partition in range(2):
            driver.bus.stream("names").compact(partition)
    feed(driver, rng, number)


def test_broadcast_stores_joins_and_ids(tmp_path: Path) -> None:
    with TestDriver(joined, tasks=2, max_rows=9) as driver:
        create(driver)
        driver.create("names", NAMES, partitions=2, key=["k"], compact=True)
        found = check(driver, joined, feed_names, ("visits", "pairs", "once"), tmp_path / "x")
    assert found[-1].counts["in"] > 20
    sent = Counter(row.partition(" ")[0] for one in found for row in one.sent)
    assert set(sent) == {"visits", "pairs", "once"}


@hr.job("sides")
def sides(g: hr.Graph) -> None:
    events = g.input("events", time="at", out_of_orderness="2s")
    by_key = events.partition_by("k", via="bus")
    by_key.window(hr.tumbling("10s"), name="w", n=hr.agg.sum("n")).send_to(g.output("sums"))


def test_parts_that_an_internal_stream_joins(tmp_path: Path) -> None:
    with TestDriver(sides, tasks=2) as driver:
        create(driver)
        found = check(driver, sides, feed, ("sums",), tmp_path / "x")
    assert len({one.job for one in found}) == 2
    assert any(one.sent for one in found)


@hr.job("latest")
def latest(g: hr.Graph) -> None:
    names = g.table("names", key="k", name="held")
    events = g.input("events", time="at").partition_by("k")
    events.join(names, columns=["name"]).send_to(g.output("named"))
    events.aggregate(n=hr.agg.sum("n"), name="sums").send_to(g.output("sums"))


def test_a_compacted_stream_that_has_gaps(tmp_path: Path) -> None:
    with TestDriver(latest, tasks=2, max_rows=5) as driver:
        create(driver)
        driver.create("names", NAMES, partitions=2, key=["k"], compact=True)
        names = [{"k": k, "name": f"{k}{n}"} for n in range(4) for k in "abcde"]
        driver.feed("names", names)
        for partition in range(2):
            driver.bus.stream("names").compact(partition)
        driver.feed("names", [{"k": "a", "name": "last"}])
        found = check(driver, latest, feed, ("named", "sums"), tmp_path / "x", steps=5)
    assert any("last" in row for one in found for row in one.sent)


def grow(driver: TestDriver, rng: random.Random, number: int) -> None:
    if number == 2:
        schema = pa.schema([*EVENTS.items(), ("weight", pa.int64())])
        driver.bus.stream("events").evolve(schema, {"weight": 3})
    if number == 4:
        driver.bus.stream("events").configure(partitions=3)
    feed(driver, rng, number)


@hr.job("grown")
def grown(g: hr.Graph) -> None:
    by_key = g.input("events", time="at").partition_by("k")
    by_key.aggregate(n=hr.agg.sum("n"), name="sums").send_to(g.output("sums"))


def test_streams_that_get_columns_and_partitions(tmp_path: Path) -> None:
    with TestDriver(grown, tasks=2) as driver:
        driver.create("events", EVENTS, partitions=2, time="at")
        found = check(driver, grown, grow, ("sums",), tmp_path / "x")
    assert found[-1].counts["in"] > 10


@pytest.mark.parametrize(
    ("state", "output"), [("at_least_once", "at_least_once"), ("at_most_once", "at_most_once")]
)
def test_epochs_of_two_manifests(state: str, output: str, tmp_path: Path) -> None:
    @hr.job("twice", state_semantics=state, output_semantics=output)
    def twice(g: hr.Graph) -> None:
        by_key = g.input("events", time="at").partition_by("k")
        by_key.aggregate(n=hr.agg.sum("n"), name="sums").send_to(g.output("sums"))

    with TestDriver(twice, tasks=2) as driver:
        create(driver)
        found = check(driver, twice, feed, ("sums",), tmp_path / "x", steps=4)
    assert any(one.sent for one in found)


class Sink(FileSink):
    """Counts who opens it."""

    opened = 0

    def open(self, site: Any) -> Any:
        type(self).opened += 1
        return super().open(site)


def test_no_sink_hears_of_a_replay(tmp_path: Path) -> None:
    @hr.job("sinking")
    def sinking(g: hr.Graph) -> None:
        sink = Sink(str(tmp_path / "sink"), "parquet")
        g.input("events", time="at").send_to(g.output_sink(sink), name="files")

    with TestDriver(sinking) as driver:
        create(driver)
        driver.feed("events", [{"k": "a", "n": 1, "at": 5}])
        driver.run()
        record(driver, tmp_path / "x", 1)
        opened = Sink.opened
        with TestDriver.replay(sinking, tmp_path / "x") as replay:
            replay.advance()
            assert replay.counts["sink.files"] == 1
    assert Sink.opened == opened


def test_rows_that_were_compacted_since_are_told(tmp_path: Path) -> None:
    with TestDriver(latest, tasks=2) as driver:
        create(driver)
        driver.create("names", NAMES, key=["k"], compact=True)
        driver.feed("names", [{"k": "a", "name": name} for name in ("first", "second")])
        driver.run()
        newest = driver.state.epoch
        for name in ("third", "fourth"):
            driver.clock.advance(600_000)
            driver.feed("names", [{"k": "a", "name": name}])
            driver.run()
        driver.bus.stream("names").compact(0)
        with pytest.raises(InvalidInputError, match="'names' is compacted further than it was"):
            record(driver, tmp_path / "x", newest)


def test_files_of_broadcast_stores_are_those_of_then(tmp_path: Path) -> None:
    file = tmp_path / "names.jsonl"
    file.write_text('{"k": "a", "name": "then"}\n')

    @hr.job("filed")
    def filed(g: hr.Graph) -> None:
        names = hr.broadcast("names", file=str(file), key="k")
        g.input("events", time="at").join_table(names, columns=["name"]).send_to(g.output("named"))

    with TestDriver(filed) as driver:
        create(driver)
        driver.feed("events", [{"k": "a", "n": 1, "at": 5}])
        driver.run()
        record(driver, tmp_path / "x", 1)
    for change in (lambda: file.write_text('{"k": "a", "name": "now"}\n'), file.unlink):
        change()
        with TestDriver.replay(filed, tmp_path / "x") as replay:
            replay.advance()
            assert [row["name"] for row in replay.output("named")] == ["then"]


class Counting:
    def process(self, message: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        seen.put(message.k, (seen.get(message.k) or 0) + 1)
        context.emit({"k": message.k, "n": seen.get(message.k)})


def counting(**store: Any) -> hr.Job:
    @hr.job("counting")
    def made(g: hr.Graph) -> None:
        by_key = g.input("events", time="at").partition_by("k")
        by_key.process(
            Counting,
            stores=[hr.store("seen", int, **store)],
            returns={"k": str, "n": int},
            name="count",
        ).send_to(g.output("counts"))
        by_key.aggregate(n=hr.agg.sum("n"), name="sums")

    return made


def test_stores_that_no_file_holds_are_told(tmp_path: Path) -> None:
    job = counting(kind="memory", changelog=False)
    with TestDriver(job) as driver:
        create(driver)
        for _ in range(2):
            driver.feed("events", [{"k": "a", "n": 1, "at": 5}])
            driver.run()
        assert record(driver, tmp_path / "x", 2).unlogged == ("seen",)
    with TestDriver.replay(job, tmp_path / "x") as replay:
        replay.advance()
        assert [row["n"] for row in replay.output("counts")] == [1]


def test_a_remote_store_cannot_be_recorded_and_is_not_written_to(tmp_path: Path) -> None:
    job = counting(kind="remote", url="redis://localhost:1/0")
    with TestDriver(job, tasks=2) as driver:
        create(driver)
        driver.start()
        driver.feed("events", [{"k": "a", "n": 1, "at": 5}])
        with pytest.raises(InvalidInputError, match="its remote stores seen held is on a server"):
            record(driver, tmp_path / "x", 1)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with TestDriver(counting(kind="memory")) as driver:
        create(driver)
        for _ in range(2):
            driver.feed("events", [{"k": "a", "n": 1, "at": 5}])
            driver.run()
        gone = next(ref.path for task in driver.state.tasks.values() for ref in task.files)
        (driver.storage / gone).unlink()
        with pytest.raises(InvalidInputError, match=f"{Path(gone).name} is gone"):
            record(driver, tmp_path / "x", 3)
        assert not list(tmp_path.iterdir())


def test_one_partition_of_a_source(tmp_path: Path) -> None:
    with TestDriver(grown, tasks=2) as driver:
        driver.create("events", EVENTS, partitions=2, time="at")
        for partition in range(2):
            rows = [{"k": k, "n": 1, "at": 5} for k in "abcd"]
            driver.feed("events", rows, partition=partition)
        driver.run()
        every = [
            f"{name}/{task}" for name, n in driver.state.task_counts.items() for task in range(n)
        ]
        found = record(driver, tmp_path / "x", 1, ("events/1", *every))
        assert found.rows == 4
    with TestDriver.replay(grown, tmp_path / "x") as replay:
        replay.advance()
        assert sorted(row["k"] for row in replay.output("sums")) == list("abcd")
        assert all(row["n"] == 1 for row in replay.output("sums"))


@hr.job("patterned")
def patterned(g: hr.Graph) -> None:
    by_key = g.input("shop.*", time="at").merge(g.input("old", time="at")).partition_by("k")
    by_key.aggregate(n=hr.agg.sum("n"), name="sums").send_to(g.output("sums"))


def feed_shops(driver: TestDriver, rng: random.Random, number: int) -> None:
    if number in (0, 3):
        driver.create(f"shop.{number}", EVENTS, partitions=2, time="at")
    for name in ("shop.0", "old", *(("shop.3",) if number >= 3 else ())):
        driver.feed(name, [{"k": rng.choice("abc"), "n": number, "at": number * 1_000}])


def test_streams_of_a_pattern_and_of_an_alias(tmp_path: Path) -> None:
    with TestDriver(patterned, tasks=2) as driver:
        driver.create("orders", EVENTS, time="at")
        driver.bus.alias("old", "orders")
        found = check(driver, patterned, feed_shops, ("sums",), tmp_path / "x", steps=5)
    assert found[-1].counts["in"] == 12
