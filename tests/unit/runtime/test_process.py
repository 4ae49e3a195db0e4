"""``process``: emits keep event time, timers and stores survive, errors name their cause."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidInputError, UserFunctionError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "name": pa.string(), "v": pa.int64(), "at": pa.int64()}
UTC = datetime.UTC


def job_of(
    factory: Any, returns: Any = None, keys: tuple[str, ...] = ("k",), **options: Any
) -> Any:
    """A job whose only operator is the processor; what it emits goes to ``out``."""

    @hr.job("processed")
    def processed(g: hr.Graph) -> None:
        source = g.input("in", time="at")
        if keys:
            source = source.partition_by(*keys)
        made = source.process(factory, returns=returns, name="p", **options)
        if returns is not None:
            made.send_to(g.output("out"))

    return processed


def driver_of(job: Any, partitions: int = 1, **options: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 2, "key_groups": 8, **options})
    driver.create("in", COLUMNS, partitions=partitions, time="at")
    return driver


def row(k: int | None, at: int, v: int = 0, name: str = "a") -> dict[str, Any]:
    return {"k": k, "name": name, "v": v, "at": at}


class Timed:
    """Sends what it knows of each message, and sets a timer where ``v`` says so."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"what": "message", "k": context.key, "at": context.time})
        if message.v:
            context.set_timer(message.at + message.v)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        assert (timer.key, timer.at) == (context.key, context.time)
        context.emit({"what": "timer", "k": timer.key, "at": timer.at})


TIMED = {"what": str, "k": int, "at": int}


def told(driver: TestDriver, what: str) -> list[tuple[int, int]]:
    return [(r["k"], r["at"]) for r in driver.output("out") if r["what"] == what]


@pytest.mark.parametrize("restart", [False, True])
def test_event_timers_fire_once_in_order_and_survive_a_restart(restart: bool) -> None:
    with driver_of(job_of(Timed, TIMED), tasks=1) as driver:
        driver.feed("in", [row(1, 100, 50), row(2, 101, 9), row(3, 102, 48), row(3, 102, 48)])
        driver.run()
        assert told(driver, "timer") == []
        if restart:
            driver.crash(lose_hosts=[0])
        driver.feed("in", [row(9, 149)])
        driver.run()
        assert told(driver, "timer") == [(2, 110)]
        driver.feed("in", [row(9, 5000)])
        driver.run()
        # Both are of one millisecond: the key decides.
        assert told(driver, "timer") == [(2, 110), (1, 150), (3, 150)]
        driver.finish()
        assert len(told(driver, "timer")) == 3
        assert len(told(driver, "message")) == 6


def test_timers_fire_at_the_end_of_the_inputs() -> None:
    with driver_of(job_of(Timed, TIMED), tasks=1) as driver:
        driver.feed("in", [row(1, 100, 10**9), row(2, 100, 10**8)])
        driver.finish()
        assert told(driver, "timer") == [(2, 100 + 10**8), (1, 100 + 10**9)]


class Chain:
    """Each timer of key 1 sets the next, ten ms later; the fifth cancels the alarm."""

    def process(self, message: Any, context: hr.Context) -> None:
        if message.k == 1:
            context.set_timer(message.at + 10, "step")
            context.set_timer(
                datetime.datetime.fromtimestamp((message.at + 65) / 1000, UTC), "alarm"
            )

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        context.emit({"name": timer.name, "at": timer.at})
        if timer.at < 150:
            context.set_timer(timer.at + 10, "step")
        else:
            context.cancel_timer(165, "alarm")


@pytest.mark.parametrize("step", [4, 7, 1000])
def test_what_timers_do_does_not_depend_on_epochs(step: int) -> None:
    """A timer that sets one earlier than others that are due goes first, like in small steps."""
    with driver_of(job_of(Chain, {"name": str, "at": int}), tasks=1) as driver:
        driver.feed("in", [row(1, 100)])
        for at in range(100 + step, 1101, step):
            driver.feed("in", [row(2, at)])
            if at < 200:
                driver.run()
        driver.run()
        found = [(r["name"], r["at"]) for r in driver.output("out")]
        assert found == [("step", at) for at in range(110, 151, 10)]


class Alarm:
    """Sets a wall timer for each message, half a second on."""

    def process(self, message: Any, context: hr.Context) -> None:
        context.set_timer(context.wall_ms + 500, message.name, wall=True)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        assert timer.wall
        assert timer.at <= context.wall_ms
        context.emit({"k": timer.key, "late": context.wall_ms - timer.at})


def test_wall_timers_fire_on_a_quiet_input() -> None:
    with driver_of(job_of(Alarm, {"k": int, "late": int})) as driver:
        driver.feed("in", [row(1, 100), row(2, 100)])
        driver.run()
        driver.clock.advance(499)
        assert driver.advance() is None
        driver.crash()
        driver.clock.advance(2)
        assert driver.run() == 1
        assert sorted(map(tuple, (r.values() for r in driver.output("out")))) == [(1, 1), (2, 1)]
        driver.clock.advance(10_000)
        assert driver.advance() is None


def test_emits_keep_event_time_for_windows_after_them() -> None:
    """A message's emits fall into its window, a timer's into that of its due time."""

    class Twice:
        def process(self, message: Any, context: hr.Context) -> None:
            context.emit({"k": message.k, "v": 1})
            context.emit({"k": message.k, "v": 1})
            context.set_timer(message.at + 100)

        def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
            context.emit({"k": timer.key, "v": 10})

    @hr.job("windowed")
    def windowed(g: hr.Graph) -> None:
        source = g.input("in", time="at").partition_by("k")
        made = source.process(Twice, returns={"k": int, "v": int})
        made.window(hr.tumbling("100ms"), s=hr.agg.sum("v")).send_to(g.output("out"))

    for max_rows in (1, 100):
        with driver_of(windowed, max_rows=max_rows) as driver:
            driver.feed("in", [row(1, 10), row(1, 20), row(1, 150), row(1, 999)])
            driver.finish()
            found = [
                (round(r["window_start"].timestamp() * 1000), r["s"]) for r in driver.output("out")
            ]
            assert found == [(0, 4), (100, 22), (200, 10), (900, 2), (1000, 10)]


def test_a_timer_set_for_the_past_opens_no_closed_window() -> None:
    class Past:
        def process(self, message: Any, context: hr.Context) -> None:
            context.set_timer(-1_000_000 if message.v else 1)

        def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
            context.emit({"k": timer.key})

    @hr.job("windowed")
    def windowed(g: hr.Graph) -> None:
        made = g.input("in", time="at").partition_by("k").process(Past, returns={"k": int})
        made.window(hr.tumbling("10ms"), n=hr.agg.count()).send_to(g.output("out"))

    with driver_of(windowed) as driver:
        for at in range(0, 500, 25):
            driver.feed("in", [row(1, at, at % 2)])
            driver.run()
        driver.finish()
        starts = [r["window_start"] for r in driver.output("out")]
        assert len(starts) == len(set(starts))
        assert sum(r["n"] for r in driver.output("out")) == 20


class Seen:
    """Counts by the whole key, and remembers what it was given."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        count = store.get(context.key, 0) + 1
        store.put(context.key, count)
        context.emit({"n": count, "task": context.task, "epoch": context.epoch})


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("keys", [("k",), ("k", "name"), ("name", "v")])
def test_stores_are_read_ahead_for_keys_of_any_shape(keys: tuple[str, ...], kind: str) -> None:
    """Null keys, tuples and chunks of one row: each key counts on where it stood."""
    returns = {"n": int, "task": int, "epoch": int}
    stores = [hr.store("n", int, kind=kind)]
    rows = [row(n % 3 or None, 100 + n, n % 2, "ab"[n % 2]) for n in range(30)]
    with driver_of(job_of(Seen, returns, keys, stores=stores), max_rows=7) as driver:
        driver.feed("in", rows)
        driver.run()
        driver.crash()
        driver.feed("in", rows)
        driver.run()
        expected = Counter(tuple(r[key] for key in keys) for r in rows * 2)
        plain = {k[0] if len(k) == 1 else k: n for k, n in expected.items()}
        assert plain == driver.store("n")
        counts = Counter(r["n"] for r in driver.output("out"))
        assert counts == Counter(n for total in expected.values() for n in range(1, total + 1))


class Plain:
    """Has no key and no store."""

    def process(self, message: Any, context: hr.Context) -> None:
        assert context.key is None
        if message.v:
            context.emit((message.k, context.time))
        if message.name == "timer":
            context.set_timer(5)
        if message.name == "store":
            context.store("x")


def test_a_processor_needs_neither_key_nor_store() -> None:
    job = job_of(Plain, {"k": int, "at": int}, keys=())
    with driver_of(job, partitions=2) as driver:
        driver.feed("in", [row(1, 5, 1), row(2, 6)], partition=1)
        driver.feed("in", [row(3, 7, 1)], partition=0)
        driver.run()
        assert driver.output("out") == [{"k": 3, "at": 7}, {"k": 1, "at": 5}]
        driver.feed("in", [row(1, 9, 0, "timer")], partition=0)
        with pytest.raises(InvalidInputError, match="timers need a key: put partition_by") as error:
            driver.run()
        assert error.value.fields["operator"] == "p"


def test_unknown_stores_name_those_that_are_there() -> None:
    with driver_of(job_of(Plain, {"k": int, "at": int}, keys=())) as driver:
        driver.feed("in", [row(1, 9, 0, "store")])
        with pytest.raises(InvalidInputError, match=r"no store 'x'; declared: \[\]"):
            driver.run()


class Broken:
    """Fails where it is told to."""

    opened: ClassVar[Counter[str]] = Counter()

    def open(self, context: hr.Context) -> None:
        Broken.opened["open"] += 1

    def process(self, message: Any, context: hr.Context) -> None:
        if message.name == "process":
            raise KeyError("no such thing")
        if message.name == "emit":
            context.emit({"k": "text"})
        if message.name == "wrong":
            context.emit([message.k])
        if message.name == "timer":
            context.set_timer(message.at)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        raise ZeroDivisionError("in timer")

    def close(self) -> None:
        Broken.opened["close"] += 1


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        (
            "process",
            UserFunctionError,
            r"operator 'p' raised KeyError: 'no such thing' at .*:\d+ on",
        ),
        ("process", UserFunctionError, r"on message Message\(k=7, name='process', v=0, at=10\)"),
        ("emit", InvalidInputError, "operator 'p' returned 'text' for column 'k'; expected int64"),
        ("wrong", InvalidInputError, r"operator 'p' returned a list \[7\]; expected a message"),
        ("timer", UserFunctionError, "raised ZeroDivisionError: in timer at .* on timer Timer"),
    ],
)
def test_errors_name_operator_and_message(
    name: str, kind: type[InvalidInputError], text: str
) -> None:
    with driver_of(job_of(Broken, {"k": int})) as driver:
        driver.feed("in", [row(7, 10, 0, name)])
        with pytest.raises(kind, match=text) as error:
            driver.run()
        assert error.value.fields["operator"] == "p"
        assert driver.coordinator.state.epoch == 0
        assert driver.output("out") == []


def test_emitting_without_columns_is_told() -> None:
    class Loud:
        def process(self, message: Any, context: hr.Context) -> None:
            context.emit({"x": 1})

    with driver_of(job_of(Loud)) as driver:
        driver.feed("in", [row(1, 1)])
        with pytest.raises(InvalidInputError, match="declares no columns; give process"):
            driver.run()


def test_a_class_that_cannot_be_made_or_opened_is_told() -> None:
    class Unopened:
        def open(self, context: hr.Context) -> None:
            raise OSError("no network")

        def process(self, message: Any, context: hr.Context) -> None: ...

    with driver_of(job_of(Unopened)) as driver:
        driver.feed("in", [row(1, 1)])
        with pytest.raises(UserFunctionError, match="operator 'p' raised OSError: no network"):
            driver.run()


def test_instances_live_from_epoch_to_epoch() -> None:
    """One open for each task as long as its epochs are committed; a failure closes what it ran."""
    Broken.opened.clear()
    with driver_of(job_of(Broken, {"k": int}), tasks=1) as driver:
        for at in (1, 2, 3):
            driver.feed("in", [row(1, at)])
            driver.run()
        assert Broken.opened == {"open": 1}
        driver.feed("in", [row(1, 4, 0, "process")])
        with pytest.raises(UserFunctionError):
            driver.run()
        assert Broken.opened == {"open": 1, "close": 1}


def test_instances_whose_epoch_was_lost_are_closed_and_replaced() -> None:
    Broken.opened.clear()
    with driver_of(job_of(Broken, {"k": int}), tasks=1) as driver:
        driver.runner.doubled = "first"
        for at in (1, 2):
            driver.feed("in", [row(1, at)])
            driver.run()
        assert Broken.opened == {"open": 3, "close": 2}


def test_the_watermark_is_that_of_the_last_epoch_also_after_a_restart() -> None:
    class Watermark:
        def process(self, message: Any, context: hr.Context) -> None:
            context.emit({"w": context.watermark, "at": message.at})

    with driver_of(job_of(Watermark, {"w": int, "at": int}), tasks=1) as driver:
        for at in (100, 200, 300):
            driver.feed("in", [row(1, at)])
            driver.run()
            driver.crash()
        assert [r["w"] for r in driver.output("out")][1:] == [100, 200]
        assert driver.output("out")[0]["w"] < 0


@pytest.mark.parametrize("at", [1_700_000_000_001, 1_700_000_000_999, 4_102_444_800_123])
def test_a_timer_by_datetime_is_exact_to_the_millisecond(at: int) -> None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=UTC)

    class Exact:
        def process(self, message: Any, context: hr.Context) -> None:
            context.set_timer(epoch + datetime.timedelta(milliseconds=at))

        def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
            context.emit({"at": timer.at})

    with driver_of(job_of(Exact, {"at": int})) as driver:
        driver.feed("in", [row(1, 1)])
        driver.finish()
        assert driver.output("out") == [{"at": at}]


def test_a_timer_without_time_zone_is_refused() -> None:
    class Naive:
        def process(self, message: Any, context: hr.Context) -> None:
            context.set_timer(datetime.datetime(2024, 1, 1))  # noqa: DTZ001 - the mistake

    with driver_of(job_of(Naive)) as driver:
        driver.feed("in", [row(1, 1)])
        with pytest.raises(InvalidInputError, match="has no time zone; use an aware time"):
            driver.run()


class Hasty:
    """Does in ``open`` what only a message can be answered with."""

    what = "emit"

    def open(self, context: hr.Context) -> None:
        self.store = context.store("n")
        if self.what == "emit":
            context.emit({"k": 1})
        elif self.what == "timer":
            context.set_timer(5)
        elif self.what == "put":
            self.store.put("x", 1)

    def process(self, message: Any, context: hr.Context) -> None:
        self.store.put(message.k, self.store.get(message.k, 0) + 1)


class HastyTimer(Hasty):
    what = "timer"

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None: ...


class HastyPut(Hasty):
    what = "put"


class Ready(Hasty):
    what = ""


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (Hasty, r"operator 'p' emitted in open\(\), which would be sent again at each restart"),
        (HastyTimer, r"timers belong to a message: open\(\) has none"),
        (HastyPut, r"operator 'p' raised OverflowError"),
    ],
)
def test_open_can_neither_send_nor_keep(factory: Any, text: str) -> None:
    """There is no message yet, so no key: an entry would land in some other task's group."""
    job = job_of(factory, {"k": int}, stores=[hr.store("n", int, kind="memory")])
    with driver_of(job) as driver:
        driver.feed("in", [row(1, 1)])
        with pytest.raises(InvalidInputError, match=text) as error:
            driver.run()
        assert error.value.fields["operator"] == "p"


def test_a_store_may_be_taken_in_open() -> None:
    job = job_of(Ready, stores=[hr.store("n", int, kind="memory")])
    with driver_of(job) as driver:
        driver.feed("in", [row(k, 1) for k in (1, 2, 1, 3)])
        driver.run()
        assert driver.store("n") == {1: 2, 2: 1, 3: 1}


def test_timers_need_the_whole_key() -> None:
    """Without its columns the timers of all keys of a group would be one."""

    @hr.job("dropped")
    def dropped(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k", "name").map("k", "v", "at")
        keyed.process(Timed, returns=TIMED, name="p").send_to(g.output("out"))

    with driver_of(dropped) as driver:
        driver.feed("in", [row(1, 1, 5)])
        with pytest.raises(InvalidInputError, match=r"timers need a key: .* keep its columns"):
            driver.run()


def test_the_key_is_known_though_the_message_has_other_columns() -> None:
    class Narrow:
        def process(self, message: Any, context: hr.Context) -> None:
            assert message.__struct_fields__ == ("v",)
            context.set_timer(message.v)

        def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
            context.emit({"k": timer.key})

    with driver_of(job_of(Narrow, {"k": int}, uses=["v"])) as driver:
        driver.feed("in", [row(4, 1, 5), row(6, 1, 5)])
        driver.finish()
        assert sorted(r["k"] for r in driver.output("out")) == [4, 6]


def test_a_method_that_would_run_nothing_is_a_mistake_of_the_graph() -> None:
    class Lazy:
        def process(self, message: Any, context: hr.Context) -> Any:
            yield message

        async def on_timer(self, timer: hr.Timer, context: hr.Context) -> None: ...

    with pytest.raises(InvalidInputError, match=r"Lazy.process is a generator or async") as error:
        job_of(Lazy).build()
    assert "Lazy.on_timer is a generator or async" in str(error.value)


def test_a_timer_that_nothing_hears_is_told() -> None:
    class Deaf:
        def process(self, message: Any, context: hr.Context) -> None:
            context.set_timer(5)

    with driver_of(job_of(Deaf)) as driver:
        driver.feed("in", [row(1, 1)])
        with pytest.raises(InvalidInputError, match=r"timers need a method on_timer\(timer, con"):
            driver.run()
