"""Jobs that are run on Spark and standalone, and what they must come to: a model in plain Python.

Jobs are made for a folder, through which a test meets its workers: a function that comes to
a gate says so in a file and waits until the test opens the gate.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.processes import until

import headrace as hr
from headrace import Job

SCHEMA = pa.schema(
    [("id", pa.int64()), ("kind", pa.string()), ("v", pa.int64()), ("at", pa.int64())]
)
WINDOW_MS, EVERY_MS, NEAR_MS = 10_000, 20_000, 5_000
GATE_S = 60.0

Rows = list[dict[str, Any]]


def rows_of(count: int, partition: int, start: int = 0) -> Rows:
    """Records of one partition, their times rising, so that none is ever late."""
    return [
        {
            "id": (n * 7 + partition) % 40,
            "kind": "abc"[n % 3],
            "v": n * n % 101,
            "at": 1_000_000 + n * 500,
        }
        for n in range(start, start + count)
    ]


def pass_gate(folder: Path, name: str) -> None:
    """Say that this process has come to a gate, and wait until it is open."""
    (folder / f"{name}.at-{os.getpid()}").touch()
    with contextlib.suppress(TimeoutError):
        until((folder / f"{name}.open").exists, "an open gate", GATE_S)


def take_no_more_bytes() -> None:
    """Have the system refuse what this process writes from now on, but for a few bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))


class Count:
    """Counts the messages of each id, and does something when an id has come to a count."""

    def __init__(
        self, at: tuple[int, int] = (-1, -1), action: Callable[[], None] = lambda: None
    ) -> None:
        self._at, self._action = at, action

    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        n = store.get(message.id, 0) + 1
        store.put(message.id, n)
        context.emit({"id": message.id, "n": n})
        if (message.id, n) == self._at:
            self._action()


def counting(
    at: tuple[int, int] = (-1, -1),
    action: Callable[[], None] = lambda: None,
    via: str = "exchange",
    *,
    pairs: bool = False,
) -> Job:
    """A job with every kind of keyed state, which does something in the middle of its work.

    Args:
        at: an id, and its count.
        action: done then.
        via: how rows go to the stage by id.
        pairs: join rows of an id, too.
    """

    @hr.job("counting")
    def counting(g: hr.Graph) -> None:
        events = g.input("events", time="at")
        by_id = events.partition_by("id", name="by-id", via=via)
        by_id.process(
            lambda: Count(at, action),
            stores=(hr.store("n", int),),
            returns={"id": int, "n": int},
            name="count",
        ).send_to(g.output("counts"))
        by_id.window(
            hr.tumbling(f"{WINDOW_MS}ms"), name="windows", c=hr.agg.count(), total=hr.agg.sum("v")
        ).send_to(g.output("windows"))
        if pairs:
            near = by_id.join(
                by_id, before="0s", after=f"{NEAR_MS}ms", columns={"later": "v"}, name="pairs"
            )
            near.send_to(g.output("pairs"))
        events.partition_by("kind").aggregate(
            every=f"{EVERY_MS}ms", name="totals", total=hr.agg.sum("v"), c=hr.agg.count()
        ).send_to(g.output("totals"))

    return counting


def older(folder: Path) -> Job:
    """The job ``counting`` as it was: its code could not take the third message of a key."""

    def fail() -> None:
        raise ValueError("the older code ran")

    return counting((3, 3), fail)


def shuffling(folder: Path) -> Job:
    """A job that sends each message to a key drawn at random, with a gate before one draw."""

    def draw(message: Any) -> Mapping[str, Any]:
        if message.id == GATED_ID:
            pass_gate(folder, "draw")
        return {"key": int(random.random() * 1000), "id": message.id, "v": message.v}

    @hr.job("shuffling")
    def shuffling(g: hr.Graph) -> None:
        drawn = g.input("events").map(draw, returns={"key": int, "id": int, "v": int})
        drawn.partition_by("key").process(
            Keep, stores=(hr.store("n", int),), returns={"id": int, "v": int}, name="keep"
        ).send_to(g.output("kept"))

    return shuffling


GATED_ID = 1_000_003


class Keep:
    """Counts per random key and passes the message on."""

    def process(self, message: Any, context: Any) -> None:
        store = context.store("n")
        store.put(message.key, store.get(message.key, 0) + 1)
        context.emit({"id": message.id, "v": message.v})


class Remind:
    """Sets a timer of the wall clock for each id, and answers when it fires."""

    def __init__(self, delay_ms: int) -> None:
        self._delay = delay_ms

    def process(self, message: Any, context: Any) -> None:
        context.set_timer(context.wall_ms + self._delay, wall=True)

    def on_timer(self, timer: Any, context: Any) -> None:
        context.emit({"id": timer.key, "due": timer.at})


def reminding(delay_ms: int) -> Job:
    """A job whose only output comes from timers of the wall clock."""

    @hr.job("reminding")
    def reminding(g: hr.Graph) -> None:
        by_id = g.input("events").partition_by("id")
        by_id.process(lambda: Remind(delay_ms), returns={"id": int, "due": int}).send_to(
            g.output("reminders")
        )

    return reminding


def failing(poison: int) -> Job:
    """The counting job with a function before it that cannot take one id; -1: takes all."""

    def check(message: Any) -> bool:
        if message.id == poison:
            raise ValueError(f"cannot take id {message.id}")
        return True

    @hr.job("failing")
    def failing(g: hr.Graph) -> None:
        checked = g.input("events", time="at").filter(check, name="checked")
        checked.partition_by("id", name="by-id").process(
            Count, stores=(hr.store("n", int),), returns={"id": int, "n": int}, name="count"
        ).send_to(g.output("counts"))

    return failing


def filing(folder: Path) -> Job:
    """Send every record, by key, to Parquet files in ``folder / "filed"``."""

    @hr.job("filing")
    def job(g: hr.Graph) -> None:
        keyed = g.input("events").partition_by("id")
        keyed.send_to(hr.sinks.parquet(folder / "filed", merge_bytes=1 << 30, merge_epochs=2))

    return job


def tabling(folder: Path) -> Job:
    """Send every record to a table of the warehouse."""

    @hr.job("tabling")
    def job(g: hr.Graph) -> None:
        g.input("events", time="at").send_to(g.output_table("events", sort_by="id"))

    return job


def framing(folder: Path) -> Job:
    """Count the records of each id in JSON files, which Spark reads one file a batch."""

    def frame(spark: Any) -> Any:
        reader = spark.readStream.schema("id bigint, kind string, v bigint, at bigint")
        return reader.option("maxFilesPerTrigger", 1).json(str(folder / "files"))

    @hr.job("framing")
    def framing(g: hr.Graph) -> None:
        events = g.input_dataframe("events", frame, time="at", partitions=2)
        events.partition_by("id").process(
            Count, stores=(hr.store("n", int),), returns={"id": int, "n": int}, name="count"
        ).send_to(g.output("counts"))

    return framing


def ticking(folder: Path) -> Job:
    """Pass on the rows that one of Spark's sources makes by the clock, which a file names."""

    def frame(spark: Any) -> Any:
        form = (folder / "form").read_text()
        count = "rowsPerSecond" if form == "rate" else "rowsPerBatch"
        return spark.readStream.format(form).option(count, 150).load().selectExpr("value v")

    @hr.job("ticking")
    def ticking(g: hr.Graph) -> None:
        g.input_dataframe("ticks", frame, partitions=2).send_to(g.output("seen"))

    return ticking


def radar() -> Job:
    """The job of the demo."""
    from headrace.demo.delay_radar import delay_radar

    return delay_radar


def flights() -> Any:
    """What the demo reads: the flights of a year, and the stream that they become."""
    from headrace.demo.flights import flight_source

    return flight_source()


def radar_mistakes(bus: Any) -> list[Any]:
    """Compare what the job of the demo has sent with DuckDB; return the outputs that differ."""
    from headrace.demo.results import OUTPUTS, check_outputs

    found = check_outputs(bus)
    assert [one.output for one in found] == list(OUTPUTS)
    return [one for one in found if not one.is_equal]


MAKERS: dict[str, Callable[[Path], Job]] = {
    "counting": lambda folder: counting(),
    "filing": filing,
    "framing": framing,
    "gated-parts": lambda folder: counting((3, 5), partial(pass_gate, folder, "count"), "bus"),
    "parts": lambda folder: counting(via="bus"),
    "gated": lambda folder: counting((3, 5), partial(pass_gate, folder, "count")),
    "older": older,
    "joining": lambda folder: counting(pairs=True),
    "limited": lambda folder: counting((3, 5), take_no_more_bytes),
    "radar": lambda folder: radar(),
    "shuffling": shuffling,
    "tabling": tabling,
    "ticking": ticking,
}


def model(partitions: Iterable[Rows]) -> dict[str, Any]:
    """What ``counting`` must come to at the end of its inputs, from one pass over them."""
    counts: Counter[int] = Counter()
    windows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    buckets: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row in (row for rows in partitions for row in rows):
        counts[row["id"]] += 1
        windows[row["at"] // WINDOW_MS * WINDOW_MS, row["id"]].append(row["v"])
        buckets[row["at"] // EVERY_MS * EVERY_MS + EVERY_MS, row["kind"]].append(row["v"])
    totals: list[tuple[Any, ...]] = []
    running: defaultdict[str, list[int]] = defaultdict(list)
    for (end, kind), values in sorted(buckets.items()):
        running[kind] += values
        totals.append((kind, end, sum(running[kind]), len(running[kind])))
    return {
        "store": dict(counts),
        "counts": {key: list(range(1, n + 1)) for key, n in counts.items()},
        "windows": sorted((key, at, len(vs), sum(vs)) for (at, key), vs in windows.items()),
        "totals": sorted(totals),
    }


def pairs_of(partitions: Iterable[Rows]) -> Counter[tuple[int, int, int]]:
    """What the join of ``counting`` must come to: each row with those of its id soon after it."""
    by_id: defaultdict[int, Rows] = defaultdict(list)
    for row in (row for rows in partitions for row in rows):
        by_id[row["id"]].append(row)
    return Counter(
        (key, left["v"], right["v"])
        for key, rows in by_id.items()
        for left in rows
        for right in rows
        if 0 <= right["at"] - left["at"] <= NEAR_MS
    )
