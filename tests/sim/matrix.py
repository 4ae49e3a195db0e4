"""Jobs that together have every kind of operator, state and output, each with what it must come to.

A crash test feeds one in steps, lets processes die, and compares. Results of a job are the same
however its epochs fall, so one is held to a model, or to what it comes to when nothing dies.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from tests.sim.processors import Best, Numbered, Positive, Words
from tests.sim.world import World, make_job
from tests.support.changes import with_settings

import headrace as hr
from headrace.testing import TestDriver

STEPS = 3
"""How often a job is fed before its inputs end."""


class Subject(ABC):
    """A job under a driver, as a crash test sees it.

    Args:
        driver: of the job that ``job`` returned, not started.
    """

    steps: ClassVar[int] = STEPS

    def __init__(self, driver: TestDriver) -> None:
        self.driver = driver

    @classmethod
    @abstractmethod
    def job(cls, store: str) -> hr.Job:
        """Return the job with stores of a kind."""

    @abstractmethod
    def feed(self, step: int) -> None:
        """Append the rows of a step, always the same."""

    def proceed(self) -> None:
        """Run one epoch, then all that there is to do."""
        self.driver.advance()
        self.driver.run()

    def end(self) -> None:
        """End the inputs, and run to their ends."""
        self.driver.finish()

    @abstractmethod
    def check(self) -> None:
        """Compare what the job has come to at the end of its inputs."""


class Exchanged(Subject):
    """Processors with timers, windows, totals, deduplication and sides, held to a model."""

    via: ClassVar[tuple[str, ...]] = ()
    small: ClassVar[bool] = False

    def __init__(self, driver: TestDriver) -> None:
        super().__init__(driver)
        self.world = World(driver, random.Random(7))

    @classmethod
    def job(cls, store: str) -> hr.Job:
        stores = ("memory", "columnar") if store == "columnar" else (store, store)
        made: hr.Job = make_job(*stores, cls.via, small=cls.small)
        return made

    def feed(self, step: int) -> None:
        self.world.feed(40)

    def check(self) -> None:
        self.world.check()


class Parts(Exchanged):
    """Some of the same in three parts, which send to each other over the bus."""

    via, small = ("id", "window_start"), True


class Copied(Exchanged):
    """The same, whose epochs commit to the disk of their host and are copied after each step."""

    small = True

    def proceed(self) -> None:
        super().proceed()
        assert self.driver.copy().failures == 0

    def end(self) -> None:
        super().end()
        assert self.driver.copy().failures == 0


EVENTS = {"k": pa.int64(), "user": pa.string(), "n": pa.int64(), "at": pa.int64()}
CLICKS = {"k": pa.int64(), "n": pa.int64(), "at": pa.int64()}
RATES = {"k": pa.int64(), "rate": pa.int64(), "at": pa.int64()}
CODES = {"code": pa.int64(), "text": pa.string()}


class Order:
    """Tells what it gets in the order of event time, and counts it."""

    def process(self, row: Any, context: hr.Context) -> None:
        seen = context.store("seen")
        n = seen.get(context.key, 0) * 3 + row.n
        seen.put(context.key, n % 9973)
        assert context.time is not None
        context.set_timer(context.time + 900, "later")
        context.emit({"k": context.key, "n": n})

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"k": timer.key, "n": -context.store("seen").get(timer.key, 0)})


class Look:
    """Looks a code up in a broadcast store."""

    def process(self, row: Any, context: hr.Context) -> None:
        found = context.store("codes").get(row.k)
        total = context.store("total")
        total.put("n", total.get("n", 0) + 1)
        context.emit({"n": row.n, "text": None if found is None else found.text})


class Related(Subject):
    """Joins of every kind, tables, windows of every shape, contracts: as when nothing dies."""

    outputs: ClassVar[tuple[str, ...]] = (
        *("pairs", "named", "changed", "valued", "coded", "looked", "once", "in-order", "late"),
        *("hops", "visits", "dozens", "early", "everybody", "best", "words"),
    )

    def __init__(self, driver: TestDriver) -> None:
        super().__init__(driver)
        self._rng, self._now, self._number = random.Random(11), 10_000, 0
        driver.create("events", EVENTS, partitions=2, time="at")
        driver.create("clicks", CLICKS, partitions=2, time="at")
        driver.create("rates", RATES, partitions=1, time="at", key=["k"])
        driver.create("codes", CODES, partitions=1, key=["code"])

    @classmethod
    def job(cls, store: str) -> hr.Job:
        codes = hr.broadcast("codes", stream="codes", key="code")
        kept = "memory" if store == "columnar" else store

        @hr.job("related")
        def related(g: hr.Graph) -> None:
            events = g.input("events", time="at", out_of_orderness="500ms")
            clicks = g.input("clicks", time="at", out_of_orderness="500ms")
            by_k = events.partition_by("k")
            near: dict[str, Any] = {"before": "2s", "after": "3s", "columns": {"other": "n"}}
            pairs = by_k.join(clicks.partition_by("k"), how="full", name="pairs", **near)
            pairs.map("k", "n", "other").send_to(g.output("pairs"))
            rates = g.table(
                "rates", "k", time="at", out_of_orderness="500ms", history="2s", name="held"
            )
            valued = by_k.join(rates, how="left", columns=["rate"], as_of="event", name="valued")
            valued.send_to(g.output("valued"))
            names = g.table("codes", key="code", name="names")
            clicks.partition_by("k", name="again").join(
                names, how="left", columns=["text"], name="named"
            ).send_to(g.output("named"))
            names.changes().send_to(g.output("changed"))
            events.join_table(codes, on={"k": "code"}, columns=["text"]).send_to(g.output("coded"))
            looking = {"n": int, "text": str}
            by_k.process(
                Look, stores=[hr.store("total", int, kept), codes], returns=looking, name="look"
            ).send_to(g.output("looked"))
            by_k.deduplicate(within="1s", name="once").send_to(g.output("once"))
            ordered = events.partition_by("k", name="order").in_order(late="side_output")
            ordered.process(
                Order, stores=[hr.store("seen", int, kept)], returns={"k": int, "n": int}
            ).send_to(g.output("in-order"))
            ordered.side("late").send_to(g.output("late"))
            shapes: dict[str, Any] = {
                "hops": hr.hopping("2s", every="1s"),
                "visits": hr.session("700ms"),
                "dozens": hr.count_window(6),
                "early": hr.tumbling("4s", early="1s", updates="retract"),
            }
            for name, window in shapes.items():
                made = by_k.window(window, name=name, n=hr.agg.count(), s=hr.agg.sum("n"))
                made.send_to(g.output(name))
            events.window(hr.tumbling("1s"), name="everybody", n=hr.agg.count()).send_to(
                g.output("everybody")
            )
            positive = events.process(Positive, returns={"user": str, "n": int})
            best = positive.partition_by("user").process(
                Best, returns={"user": str, "best": list[int]}
            )
            best.send_to(g.output("best"))
            key = {"user": str, "odd": int}
            events.monoid(Words, key, every="1s", name="words").send_to(g.output("words"))

        return related

    def feed(self, step: int) -> None:
        rng = self._rng
        for stream, count in (("events", 30), ("clicks", 12)):
            rows: tuple[list[Any], ...] = ([], [])
            for _ in range(count):
                self._now += rng.randrange(60)
                self._number += 1
                row: dict[str, Any] = {"k": rng.randrange(6), "n": self._number, "at": self._now}
                row["at"] -= rng.randrange(900)
                if stream == "events":
                    row |= {"user": f"u{rng.randrange(3)}", "n": rng.randrange(-3, 101)}
                rows[row["k"] % 2].append(row)
            for partition, part in enumerate(rows):
                if part:
                    self.driver.feed(stream, part, partition)
        rate = {"k": step % 6, "rate": step, "at": self._now}
        self.driver.feed("rates", [rate, {**rate, "k": 2, "rate": 10 + step}])
        text = None if step == STEPS - 1 else f"text {step}"
        self.driver.feed("codes", [{"code": step % 2, "text": text}])

    def found(self) -> dict[str, Any]:
        """Return the outputs, and every store as committed."""
        sent = {name: Counter(map(repr, self.driver.output(name))) for name in self.outputs}
        return {**sent, "counts": {k: v for k, v in self.driver.counts.items() if "." not in k}}

    def check(self) -> None:
        found, expected = self.found(), undisturbed()
        for name in self.outputs:
            assert found[name] == expected[name], name
            assert found[name], name
        assert found["counts"] == expected["counts"]


@cache
def undisturbed() -> Mapping[str, Any]:
    """Return what ``Related`` comes to in one process that nothing disturbs, with memory stores."""
    with TestDriver(Related.job("memory"), tasks=1, slots=1) as driver:
        subject = Related(driver)
        for step in range(STEPS):
            subject.feed(step)
            driver.run()
        driver.finish()
        return subject.found()


def whole(row: Any) -> dict[str, Any]:
    if row.number % 9 == 4:
        raise ValueError("not four")
    return {"user": row.user, "number": row.number}


class Sent(Subject):
    """Files of every form, a table of the warehouse, an output and dead letters of one epoch."""

    steps = 4  # the end of the inputs still has files to merge
    readers: ClassVar[dict[str, Callable[..., pl.DataFrame]]] = {
        "parquet": pl.read_parquet,
        "json_lines": pl.read_ndjson,
        "csv": pl.read_csv,
    }
    begin = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)

    def __init__(self, driver: TestDriver) -> None:
        super().__init__(driver)
        with_settings(driver, "warehouse", merge_files=3, keep_s=1.0)
        driver.job = self.sending(driver, driver.job.name)
        columns = {"user": pa.string(), "number": pa.int64(), "at": pa.timestamp("us", "UTC")}
        driver.create("in", columns, partitions=2, key=["user"])
        self.rows: list[tuple[str, int, dt.datetime]] = []

    @classmethod
    def job(cls, store: str) -> hr.Job:
        return hr.job(store)(lambda g: None)

    def sending(self, driver: TestDriver, store: str) -> hr.Job:
        """Return the job, whose files go to folders of the driver's home."""

        @hr.job("sent")
        def sent(g: hr.Graph) -> None:
            events = g.input("in", time="at", out_of_orderness="2h")
            keyed = events.partition_by("user")
            numbered = keyed.process(
                Numbered, [hr.store("n", int, store)], returns={"user": str, "number": int}
            )
            small: dict[str, Any] = {"merge_bytes": 1 << 30, "merge_epochs": 2, "keep": "1s"}
            for form in self.readers:
                numbered.send_to(getattr(hr.sinks, form)(driver.home / form, **small), name=form)
            keyed.send_to(g.output_table("events"), name="tabled")
            numbered.map(
                whole, returns={"user": str, "number": int}, on_error="dead_letter", name="checked"
            ).send_to(g.output("checked"))

        return sent

    def feed(self, step: int) -> None:
        first = len(self.rows)
        made = [
            (f"u{n % 5}", n, self.begin + dt.timedelta(hours=step * 10 + n % 20))
            for n in range(first, first + 20)
        ]
        self.rows += made
        names = ("user", "number", "at")
        self.driver.feed("in", [dict(zip(names, row, strict=True)) for row in made])
        self.driver.clock.advance(1_500)

    def check(self) -> None:
        fed = Counter(user for user, _, _ in self.rows)
        wanted = sorted((user, n) for user, count in fed.items() for n in range(1, count + 1))
        for form, read in self.readers.items():
            files = hr.sinks.committed_files(self.driver.home / form)
            assert sorted(pl.concat([read(path) for path in files]).rows()) == wanted, form
        folder = self.driver.settings.warehouse_dir / "events"
        plain = pl.read_parquet(folder / "*/*.parquet", hive_partitioning=True)
        for found in (plain, pl.from_arrow(hr.warehouse.Table(folder).to_arrow())):
            assert isinstance(found, pl.DataFrame)
            assert found["number"].sort().to_list() == list(range(len(self.rows)))
            assert (found["at"].dt.date() == found["ds"]).all()
        assert all(day.is_complete for day in hr.warehouse.Table(folder).days)
        good = [row for row in wanted if row[1] % 9 != 4]
        checked = self.driver.output("checked")
        assert sorted((row["user"], row["number"]) for row in checked) == good
        letters = [one["record"] for one in self.driver.dead_letters()]
        bad = sorted((one["user"], one["number"] // 5 + 1) for one in letters if one is not None)
        assert bad == [row for row in wanted if row[1] % 9 == 4]


class Held:
    """Calls that do not end while the epoch that made them lasts."""

    numbers: ClassVar[set[int]] = set()


async def answered(n: int) -> None:
    while n in Held.numbers:
        await asyncio.sleep(0.01)


class Asks(hr.AsyncProcessor):
    """Calls without a key, answered in the order of the input."""

    async def process(self, message: Any, context: hr.Context) -> None:
        await answered(message.n)
        context.emit({"n": message.n, "k": message.k, "at": message.at})


class Counts:
    """Calls that count the messages of each key, in its order."""

    async def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        before = store.get(message.k, 0)
        await answered(message.n)
        store.put(message.k, before + 1)
        context.emit({"n": message.n, "k": message.k, "v": before + 1, "at": message.at})


class Called(Subject):
    """Calls that end in a later epoch, of sources and of keys, in parts of an epoch each."""

    def __init__(self, driver: TestDriver) -> None:
        super().__init__(driver)
        driver.create("in", {"n": pa.int64(), "k": pa.string(), "at": pa.int64()}, time="at")
        Held.numbers = set()

    @classmethod
    def job(cls, store: str) -> hr.Job:
        @hr.job("called")
        def called(g: hr.Graph) -> None:
            rows = g.input("in", time="at")
            columns = {"n": pa.int64(), "k": pa.string(), "at": pa.int64()}
            rows.filter(hr.col("n") % 2 == 0).map("n").send_to(g.output("beside"))
            asked = rows.process(Asks, returns=columns, max_concurrency=8, name="ask")
            asked.send_to(g.output("asked"))
            counted = asked.partition_by("k").process(
                Counts,
                [hr.store("n", int, store)],
                returns={**columns, "v": pa.int64()},
                order="key",
                max_concurrency=8,
                name="count",
            )
            counted.send_to(g.output("counted"))
            counted.window(hr.tumbling("5s"), n=hr.agg.count()).send_to(g.output("windows"))

        return called

    def feed(self, step: int) -> None:
        self.driver.feed("in", [self.row(n) for n in range(step * 8, step * 8 + 8)])
        Held.numbers = {step * 8 + 3, step * 8 + 5}

    def proceed(self) -> None:
        self.driver.advance()
        Held.numbers = set()
        self.driver.run()

    @staticmethod
    def row(n: int) -> dict[str, Any]:
        return {"n": n, "k": "abc"[n % 3], "at": n * 1000}

    def check(self) -> None:
        every = list(range(STEPS * 8))
        assert [row["n"] for row in self.driver.output("asked")] == every
        assert [row["n"] for row in self.driver.output("beside")] == every[::2]
        keys = Counter("abc"[n % 3] for n in every)
        assert self.driver.store("n") == keys
        wanted = sorted((k, n) for k, count in keys.items() for n in range(1, count + 1))
        counted = sorted((row["k"], row["v"]) for row in self.driver.output("counted"))
        assert counted == wanted
        windows = Counter((n // 5, "abc"[n % 3]) for n in every)
        found = {
            (round(row["window_start"].timestamp()) // 5, row["k"]): row["n"]
            for row in self.driver.output("windows")
        }
        assert found == windows


SUBJECTS: dict[str, type[Subject]] = {
    "exchanged": Exchanged,
    "parts": Parts,
    "related": Related,
    "sent": Sent,
    "called": Called,
    "copied": Copied,
}
