"""``in_order``: what follows sees one order of all streams and partitions, however read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import examples

import headrace as hr
from headrace.errors import GraphError
from headrace.testing import TestDriver

LATENESS, AFTER = 6, 25
Log = list[tuple[int, int]]
Told = dict[int, list[tuple[str, int, int]]]


class Teller:
    """Counts what comes for a key, and tells each message, and a timer after each of ``a``."""

    def process_a(self, row: Any, context: hr.Context) -> None:
        assert context.time is not None
        context.set_timer(context.time + AFTER, "timer")
        self.process(row, context)

    def process(self, row: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        n = seen.get(context.key, 0) * 3 + row.place
        seen.put(context.key, n % 9973)
        context.emit({"k": context.key, "what": context.input, "at": context.time, "n": n})

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        n = context.store("seen").get(timer.key)
        context.emit({"k": timer.key, "what": timer.name, "at": timer.at, "n": n})


def job_of(via: str) -> Any:
    @hr.job("ordered")
    def ordered(g: hr.Graph) -> None:
        def rows(name: str, key: str) -> Any:
            source = g.input(name, time="at", out_of_orderness=f"{LATENESS}ms")
            return source.partition_by(key, via=via).in_order(late="side_output")

        a, b = rows("a", "k"), rows("b", "key")
        told = g.process(
            {"a": a, "b": b},
            Teller,
            stores={"seen": int},
            returns={"k": int, "what": str, "at": int, "n": int},
        )
        told.send_to(g.output("out"))
        a.side("late").send_to(g.output("late-a"))
        b.side("late").send_to(g.output("late-b"))

    return ordered


def late(log: Log) -> list[bool]:
    """Which rows of a partition are behind its watermark."""
    found, highest = [], None
    for _, at in log:
        found.append(highest is not None and at < highest - LATENESS)
        highest = at if highest is None else max(highest, at)
    return found


def model(logs: dict[str, list[Log]]) -> Told:
    rows = [
        (k, at, stream, partition, place)
        for stream, parts in logs.items()
        for partition, log in enumerate(parts)
        for place, ((k, at), is_late) in enumerate(zip(log, late(log), strict=True))
        if not is_late
    ]
    told: Told = defaultdict(list)
    for k in {row[0] for row in rows}:
        n, timers = 0, set[int]()
        for _, at, stream, _, place in sorted(row for row in rows if row[0] == k):
            for due in sorted(due for due in timers if due <= at):
                told[k].append(("timer", due, n))
                timers.discard(due)
            if stream == "a":
                timers.add(at + AFTER)
            n = n * 3 + place
            told[k].append((stream, at, n))
            n %= 9973
        told[k] += [("timer", due, n) for due in sorted(timers)]
    return dict(told)


def run(
    logs: dict[str, list[Log]], via: str, max_rows: int, steps: list[Any], tasks: int
) -> tuple[Told, int]:
    """What keys were told, and how many rows were late; ``steps`` feed, crash and rescale."""
    with TestDriver(job_of(via), tasks=4, key_groups=8, max_rows=max_rows) as driver:
        number = pa.int64()
        kinds = {"k": number, "at": number, "place": number}
        driver.create("a", kinds, partitions=2)
        driver.create("b", {("key" if n == "k" else n): t for n, t in kinds.items()})
        fed: dict[tuple[str, int], int] = defaultdict(int)
        for stream, partition, count, what in steps:
            log, begin = logs[stream][partition], fed[stream, partition]
            key = "k" if stream == "a" else "key"
            rows = [
                {key: k, "at": at, "place": begin + n}
                for n, (k, at) in enumerate(log[begin : begin + count])
            ]
            fed[stream, partition] += len(rows)
            if rows:
                driver.feed(stream, rows, partition)
            if what == "crash":
                driver.advance_with_crash("slot.segment_written")
                driver.advance_with_crash("commit.published")
            elif what == "lose":
                driver.crash(lose_hosts=[0])
            elif what == "rescale":
                driver.run()
                driver.parts[-1].rescale(tasks)
            if what != "wait":
                driver.run()
        for stream, parts in logs.items():
            key = "k" if stream == "a" else "key"
            for partition, log in enumerate(parts):
                begin = fed[stream, partition]
                rows = [
                    {key: k, "at": at, "place": begin + n} for n, (k, at) in enumerate(log[begin:])
                ]
                if rows:
                    driver.feed(stream, rows, partition)
        driver.finish()
        told: Told = defaultdict(list)
        for row in driver.output("out"):
            told[row["k"]].append((row["what"], row["at"], row["n"]))
        return dict(told), len(driver.output("late-a")) + len(driver.output("late-b"))


LOG = st.lists(st.tuples(st.integers(0, 2), st.integers(-30, 30)), max_size=7)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([("a", 0), ("a", 1), ("b", 0)]),
        st.integers(0, 4),
        st.sampled_from(["wait", "run", "crash", "lose", "rescale"]),
    ),
    max_size=5,
)


@given(parts=st.tuples(LOG, LOG, LOG), steps=STEPS, data=st.data())
@settings(max_examples=examples(8))
def test_a_key_is_told_one_history(
    parts: tuple[Log, Log, Log], steps: list[Any], data: Any
) -> None:
    logs = {"a": [parts[0], parts[1]], "b": [parts[2]]}
    told, found_late = run(
        logs,
        data.draw(st.sampled_from(["exchange", "bus"])),
        data.draw(st.sampled_from([2, 5, 1000])),
        [(*where, count, what) for where, count, what in steps],
        data.draw(st.sampled_from([1, 2])),
    )
    assert model(logs) == told
    assert found_late == sum(sum(late(log)) for log in parts)


def test_rows_that_wait_can_be_looked_at_and_go_when_their_time_comes() -> None:
    with TestDriver(job_of("exchange"), tasks=2, key_groups=8) as driver:
        number = pa.int64()
        driver.create("a", {"k": number, "at": number, "place": number})
        driver.create("b", {"key": number, "at": number, "place": number})
        driver.feed("a", [{"k": 1, "at": at, "place": 0} for at in (30, 10, 20)])
        driver.feed("b", [{"key": 1, "at": 100, "place": 0}])
        driver.run()
        waiting = driver.table("a.by_k.in_order")
        assert sorted(row["at"] for row in waiting) == [30]
        assert [row["at"] for row in driver.output("out")] == []
        driver.feed("a", [{"k": 1, "at": 100, "place": 0}])
        driver.run()
        assert [row["at"] for row in driver.output("out")] == [30, 30 + AFTER]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda g: g.input("a", time="at").in_order(), "put partition_by before it"),
        (lambda g: g.input("b").partition_by("k").in_order(), "in_order needs event time"),
        (
            lambda g: g.input("a", time="at").partition_by("k").in_order(late="update"),
            "expected one of",
        ),
    ],
)
def test_what_cannot_be_in_order_is_refused(build: Any, text: str) -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        build(g).send_to(g.output("out"))

    with TestDriver(wrong) as driver:
        driver.create("a", {"k": pa.int64(), "at": pa.int64()})
        driver.create("b", {"k": pa.int64(), "at": pa.int64()})
        with pytest.raises(GraphError, match=text):
            driver.start()


def test_a_command_shows_the_rows_that_wait() -> None:
    with TestDriver(job_of("exchange"), tasks=2, key_groups=8) as driver:
        number = pa.int64()
        driver.create("a", {"k": number, "at": number, "place": number})
        driver.create("b", {"key": number, "at": number, "place": number})
        driver.feed("a", [{"k": 1, "at": 100, "place": 7}])
        driver.run()
        (row,) = driver.rows("a.by_k.in_order")
        assert (row["at"], row["place"]) == (100, 7)


def lagging_job(name: str) -> Any:
    """One stream of a class is behind the other one, by the grace of a window or by a join."""

    @hr.job("lagging")
    def lagging(g: hr.Graph) -> None:
        a = g.input("a", time="at", out_of_orderness=f"{LATENESS}ms").partition_by("k")
        b = g.input("b", time="at", out_of_orderness=f"{LATENESS}ms").partition_by("key")
        if name == "window":
            behind = a.window(hr.tumbling("5ms", allowed_lateness="9ms"), place=hr.agg.sum("place"))
        else:
            behind = a.join(b, after="9ms", how="left", columns={"other": "place"})
        told = g.process(
            {"a": behind.in_order(), "b": b.in_order().filter(hr.col("place") >= 0)},
            Teller,
            stores={"seen": int},
            returns={"k": int, "what": str, "at": int, "n": int},
        )
        told.send_to(g.output("out"))

    return lagging


@pytest.mark.parametrize("name", ["window", "join"])
def test_a_stream_waits_for_one_that_is_further_behind(name: str) -> None:
    found = []
    for step in (1, 4, 100):
        with TestDriver(lagging_job(name), tasks=2, key_groups=8) as driver:
            number = pa.int64()
            driver.create("a", {"k": number, "at": number, "place": number})
            driver.create("b", {"key": number, "at": number, "place": number})
            rows = [{"at": at, "place": at % 7} for at in range(0, 60, 3)]
            for begin in range(0, len(rows), step):
                some = rows[begin : begin + step]
                driver.feed("a", [row | {"k": 1} for row in some])
                driver.feed("b", [row | {"key": 1} for row in some])
                driver.run()
            driver.finish()
            found.append([(row["what"], row["at"], row["n"]) for row in driver.output("out")])
    assert found[0] == found[1] == found[2]
    times = [at for _, at, _ in found[0]]
    assert times == sorted(times)


class Refusing:
    def process(self, row: Any, context: hr.Context) -> None:
        raise ValueError("no")


def test_rows_that_wait_know_their_stream_when_a_pattern_matches_another() -> None:
    @hr.job("growing")
    def growing(g: hr.Graph) -> None:
        number = pa.int64()
        rows = g.input("in.*", time="at", schema={"k": number, "at": number})
        rows.partition_by("k").in_order().process(
            Refusing, returns={"k": int}, on_error="dead_letter"
        ).send_to(g.output("out"))

    with TestDriver(growing, tasks=2, key_groups=8) as driver:
        driver.create("in.b", {"k": pa.int64(), "at": pa.int64()}, partitions=2)
        driver.feed("in.b", [{"k": 1, "at": at} for at in (7, 8)], partition=1)
        driver.run()
        driver.create("in.a", {"k": pa.int64(), "at": pa.int64()}, partitions=2)
        driver.feed("in.a", [{"k": 1, "at": at} for at in (5, 6)], partition=1)
        driver.finish()
        told = [
            (one["stream"], one["offset"], one["record"]["at"]) for one in driver.dead_letters()
        ]
    assert told == [("in.a", 0, 5), ("in.a", 1, 6), ("in.b", 0, 7), ("in.b", 1, 8)]
