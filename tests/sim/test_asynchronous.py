"""Jobs with calls that end later: crashes, epochs that end before calls do, time, failures."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.support.changes import with_settings

import headrace as hr
from headrace.testing import TestDriver

IN = {"n": pa.int64(), "k": pa.string(), "at": pa.int64()}
ROWS: list[dict[str, Any]] = [{"n": n, "k": "abc"[n % 3], "at": n * 1000} for n in range(30)]


class World:
    """What calls do that the tests decide."""

    held: ClassVar[set[int]] = set()
    failing: ClassVar[set[int]] = set()
    calls: ClassVar[Counter[int]] = Counter()
    waits: ClassVar[int] = 0
    most_waits: ClassVar[int] = -1


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    World.held.clear()
    World.failing.clear()
    World.calls.clear()
    World.waits, World.most_waits = 0, -1


async def asked(n: int) -> None:
    World.calls[n] += 1
    await asyncio.sleep(0.001 * (n * 7 % 5))
    while n in World.held:
        await asyncio.sleep(0.05)
        World.waits += 1
        if World.waits == World.most_waits:
            World.held.clear()
    if n in World.failing:
        raise ValueError(f"not {n}")


class Asks(hr.AsyncProcessor):
    """Without a key."""

    async def process(self, message: Any, context: hr.Context) -> None:
        await asked(message.n)
        context.emit({"n": message.n, "at": message.at})


class Counts:
    """Counts the messages of each key."""

    async def open(self, context: hr.Context) -> None:
        self.seen = 0

    async def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        before = store.get(message.k, 0)
        store.put("last", message.n)
        await asked(message.n)
        assert store.get("last") == message.n
        store.put(message.k, before + 1)
        context.emit({"n": message.n, "k": message.k, "v": before + 1, "at": message.at})


def source(**named: Any) -> hr.Job:
    @hr.job("asks")
    def job(g: hr.Graph) -> None:
        rows = g.input("in", time="at")
        rows.filter(hr.col("n") % 2 == 0).send_to(g.output("beside"))
        columns = {"n": pa.int64(), "at": pa.int64()}
        made = rows.process(Asks, returns=columns, max_concurrency=8, **named)
        made.send_to(g.output("out"))

    return job


def keyed(*, window: bool = False, **named: Any) -> hr.Job:
    @hr.job("counts")
    def job(g: hr.Graph) -> None:
        columns = {"n": pa.int64(), "k": pa.string(), "v": pa.int64(), "at": pa.int64()}
        options: dict[str, Any] = {
            "order": "key",
            "max_concurrency": 8,
            "stores": {"n": int},
        } | named
        rows = g.input("in", time="at").partition_by("k", name="by")
        made = rows.process(Counts, returns=columns, name="count", **options)
        made.send_to(g.output("out"))
        if window:
            made.window(hr.tumbling("5s"), n=hr.agg.count()).send_to(g.output("same"))
            apart = made.partition_by("v").window(hr.tumbling("5s"), n=hr.agg.count())
            apart.send_to(g.output("apart"))

    return job


def opened(job: hr.Job, *, partitions: int = 1, **named: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 2, **named})
    driver.create("in", IN, partitions=partitions)
    return driver


def counts_of(driver: TestDriver, operator: str) -> dict[str, int]:
    return dict(driver.coordinator.state.operators[operator].counts)


def numbers(driver: TestDriver, stream: str = "out") -> list[int]:
    return [row["n"] for row in driver.output(stream)]


def feed(driver: TestDriver, partitions: int = 1) -> None:
    for partition in range(partitions):
        driver.feed("in", ROWS[partition::partitions], partition)


def expected_counts() -> list[tuple[str, int, int]]:
    seen: Counter[str] = Counter()
    found = []
    for row in ROWS:
        seen[row["k"]] += 1
        found.append((row["k"], row["n"], seen[row["k"]]))
    return sorted(found)


def counted(driver: TestDriver) -> list[tuple[str, int, int]]:
    return sorted((row["k"], row["n"], row["v"]) for row in driver.output("out"))


def test_one_slow_call_holds_no_other_message_of_a_keyed_job_and_goes_on_across_epochs() -> None:
    with opened(keyed(order="out", stores={"n": int})) as driver:
        feed(driver)
        World.held.add(4)
        for _ in range(3):
            driver.advance()
        assert sorted(numbers(driver)) == [n for n in range(30) if n != 4]
        assert World.calls[4] == 1
        World.held.clear()
        driver.run()
        driver.crash()
        driver.advance(force=True)
        assert World.calls == Counter(dict.fromkeys(range(30), 1))
        assert sorted(numbers(driver)) == list(range(30))


def test_messages_of_a_key_leave_in_order_whichever_epochs_they_have_waited_since() -> None:
    with opened(keyed(), tasks=1) as driver:
        World.held.update(range(9))
        for begin, keys in ((0, "a"), (1, "abcdefgh")):
            rows = [{"n": n, "k": key, "at": n * 1000} for n, key in enumerate(keys, begin)]
            driver.feed("in", rows)
            driver.advance()
        World.held.clear()
        driver.run()
        assert [row["n"] for row in driver.output("out") if row["k"] == "a"] == [0, 1]


def test_the_epoch_of_a_source_commits_up_to_the_first_call_that_is_open() -> None:
    with opened(source()) as driver:
        feed(driver)
        World.held.add(4)
        driver.advance()
        assert driver.coordinator.state.inputs["in"][0].next_offset == 4
        assert numbers(driver) == [0, 1, 2, 3]
        assert numbers(driver, "beside") == [0, 2]
        World.held.clear()
        driver.run()
        assert numbers(driver) == list(range(30))
        assert World.calls == Counter(dict.fromkeys(range(30), 1))


def test_another_task_of_the_slot_does_not_wait_for_a_slow_call() -> None:
    with opened(source(), partitions=2, slots=1) as driver:
        feed(driver, 2)
        World.held.add(0)
        driver.advance()
        reached = [
            driver.coordinator.state.inputs["in"][p].next_offset
            for p in range(2)
            if p in driver.coordinator.state.inputs["in"]
        ]
        assert sorted(reached) == [0, 15]


@pytest.mark.parametrize("lose", [False, True])
def test_messages_that_wait_come_back_from_the_state(lose: bool) -> None:
    with opened(keyed()) as driver:
        feed(driver)
        World.held.update({0, 1, 2})
        driver.advance()
        assert sum(task.waiting for task in driver.coordinator.state.tasks.values()) == 30
        driver.crash(lose_hosts=[0] if lose else [])
        World.held.clear()
        driver.run()
        assert counted(driver) == expected_counts()
        assert sum(task.waiting for task in driver.coordinator.state.tasks.values()) == 0
        driver.crash(lose_hosts=[0] if lose else [])
        driver.advance(force=True)
        assert counted(driver) == expected_counts()


def test_messages_that_wait_move_with_their_keys() -> None:
    with opened(keyed(), tasks=2) as driver:
        feed(driver)
        World.held.update({0, 1, 2})
        driver.advance()
        for tasks in (5, 1, 3):
            driver.coordinator.rescale(tasks)
            driver.advance()
        World.held.clear()
        driver.run()
        assert counted(driver) == expected_counts()


@pytest.mark.parametrize("order", ["in", "out", "key"])
def test_what_waits_is_late_for_no_window(order: str) -> None:
    def run(held: set[int], rows: int) -> tuple[list[Any], list[Any]]:
        with opened(keyed(window=True, order=order), max_rows=rows) as driver:
            World.held.clear()
            World.held.update(held)
            feed(driver)
            for _ in range(8):
                driver.advance()
            World.held.clear()
            driver.finish()
            windows = [
                tuple(row[c] for c in ("k", "window_start", "n")) for row in driver.output("same")
            ]
            apart = Counter(
                (row["window_start"]) for row in driver.output("apart") for _ in range(row["n"])
            )
            sent = Counter((row["v"], row["window_start"]) for row in driver.output("apart"))
            assert set(sent.values()) == {1}, "no window is sent again for what came after it"
            assert counts_of(driver, "count.window").get("late", 0) == 0
            return sorted(windows), sorted(apart.items())

    assert run({3, 4, 14}, 5) == run(set(), 1000)


def test_the_end_of_a_bounded_run_waits_for_all() -> None:
    with opened(keyed(window=True)) as driver:
        feed(driver)
        driver.coordinator.end_at_present()
        World.held.add(29)
        World.most_waits = 200  # ten seconds, many times what an epoch waits
        driver.run()
        assert counted(driver) == expected_counts()
        assert driver.coordinator.state.ended


@pytest.mark.parametrize("make", [source, keyed])
@pytest.mark.parametrize("on_error", ["drop", "dead_letter"])
def test_a_call_that_fails_or_takes_too_long_leaves_nothing_but_its_letter(
    make: Callable[..., hr.Job], on_error: str
) -> None:
    with opened(make(on_error=on_error, timeout="20s")) as driver:
        World.failing.update({3, 7})
        World.held.add(9)
        feed(driver)
        driver.run()
        good = [n for n in range(30) if n not in {3, 7, 9}]
        assert sorted(numbers(driver)) == good
        name = "count" if make is keyed else "in.process"
        counts = counts_of(driver, name)
        assert counts["failed_calls"] == 2
        assert counts["timed_out_calls"] == 1
        assert counts["dropped" if on_error == "drop" else "dead_letters"] == 3
        if on_error == "dead_letter":
            letters = driver.output(f"{'counts' if make is keyed else 'asks'}.dead")
            assert sorted(letter["offset"] for letter in letters) == [3, 7, 9]
        if make is keyed:
            found = driver.store("n")
            assert sum(v for k, v in found.items() if k != "last") == len(good)


@pytest.mark.parametrize("make", [source, keyed])
def test_a_call_that_fails_fails_the_epoch(make: Callable[..., hr.Job]) -> None:
    with opened(make()) as driver:
        World.failing.add(3)
        feed(driver)
        with pytest.raises(hr.HeadraceError, match=r"ValueError: not 3"):
            driver.run()
        World.failing.clear()
        driver.run()
        assert sorted(numbers(driver)) == list(range(30))


class Calling:
    """Completes from other threads, more than once."""

    late: ClassVar[list[Any]] = []

    def process_async(self, message: Any, context: hr.Context, callback: hr.Callback) -> None:
        if message.n == 5:
            self.late.append(callback)
            return

        def answer() -> None:
            store = context.store("n")
            store.put(message.k, store.get(message.k, 0) + 1)
            context.emit({"n": message.n, "k": message.k, "v": 0, "at": message.at})
            if message.n == 7:
                callback.fail(ValueError("not 7"))
            callback.complete()
            callback.complete()

        threading.Thread(target=answer).start()


def calling(timeout: str) -> hr.Job:
    @hr.job("calling")
    def job(g: hr.Graph) -> None:
        columns = {"n": pa.int64(), "k": pa.string(), "v": pa.int64(), "at": pa.int64()}
        rows = (
            g.input("in")
            .partition_by("k")
            .process(
                Calling,
                name="call",
                stores={"n": int},
                returns=columns,
                order="key",
                max_concurrency=8,
                callback_timeout=timeout,
                on_error="drop",
            )
        )
        rows.send_to(g.output("out"))

    return job


def test_callbacks_come_from_any_thread_and_count_once() -> None:
    Calling.late.clear()

    with opened(calling("2s")) as driver:
        feed(driver)
        driver.run()
        assert sorted(numbers(driver)) == [n for n in range(30) if n not in {5, 7}]
        assert driver.store("n") == {"a": 10, "b": 9, "c": 9}
        counts = counts_of(driver, "call")
        assert counts["timed_out_calls"] == 1
        assert counts["dropped"] == 2
        Calling.late[0].complete()  # long after its time
        driver.feed("in", [{"n": 30, "k": "c", "at": 0}])
        driver.run()
        assert counts_of(driver, "call")["completed_late"] == 1
        assert sorted(numbers(driver)) == [n for n in range(31) if n not in {5, 7}]


def test_an_end_after_the_process_gave_its_tasks_up_is_harmless_and_counted() -> None:
    Calling.late.clear()

    with opened(calling("5m")) as driver:
        feed(driver)
        driver.advance()
        driver.start()  # another driver: the processes let go of their tasks
        driver.advance()
        first, second = Calling.late
        first.complete()
        second.complete()
        driver.run()
        assert counts_of(driver, "call")["completed_after_epoch"] == 1
        assert sum(driver.store("n").values()) == 28


class Blocking:
    """A plain class, run in threads."""

    def process(self, message: Any, context: hr.Context) -> None:
        store = context.store("n")
        store.put(message.k, store.get(message.k, 0) + 1)
        context.emit({"n": message.n, "k": message.k, "v": store.get(message.k), "at": message.at})


@pytest.mark.parametrize("by_setting", [False, True])
def test_a_plain_class_runs_in_threads_without_a_change(by_setting: bool) -> None:
    named: dict[str, Any] = {} if by_setting else {"threads": 4, "order": "key"}

    @hr.job("blocking")
    def job(g: hr.Graph) -> None:
        columns = {"n": pa.int64(), "k": pa.string(), "v": pa.int64(), "at": pa.int64()}
        rows = g.input("in").partition_by("k")
        made = rows.process(Blocking, name="b", stores={"n": int}, returns=columns, **named)
        made.send_to(g.output("out"))

    with opened(job, job_settings={"threads": 3} if by_setting else {}) as driver:
        feed(driver)
        driver.run()
        assert counted(driver) == expected_counts()
        assert counts_of(driver, "b")["calls"] == 30


class Timed:
    """Sets timers from calls, and says whether any call is open when one fires."""

    open_calls: ClassVar[int] = 0
    wrong: ClassVar[list[str]] = []

    async def process(self, message: Any, context: hr.Context) -> None:
        Timed.open_calls += 1
        context.set_timer(message.at + 1500)
        await asked(message.n)
        Timed.open_calls -= 1

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        if Timed.open_calls:
            self.wrong.append(f"{Timed.open_calls} calls are open")
        context.emit({"k": timer.key, "at": timer.at})


@pytest.mark.parametrize("max_rows", [4, 1000])
def test_timers_never_fire_beside_a_call_nor_before_what_waits(max_rows: int) -> None:
    Timed.open_calls = 0
    Timed.wrong.clear()

    @hr.job("timed")
    def job(g: hr.Graph) -> None:
        rows = g.input("in", time="at").partition_by("k")
        columns = {"k": pa.string(), "at": pa.int64()}
        made = rows.process(Timed, name="t", returns=columns, max_concurrency=8, order="out")
        made.send_to(g.output("out"))

    with opened(job, max_rows=max_rows, tasks=1) as driver:
        feed(driver)
        World.held.add(5)
        for _ in range(10):
            driver.advance()
        assert all(row["at"] <= 5000 for row in driver.output("out"))
        World.held.clear()
        driver.finish()
        assert sorted(row["at"] for row in driver.output("out")) == [
            row["at"] + 1500 for row in ROWS
        ]
        assert Timed.wrong == []


def test_a_job_whose_messages_wait_for_calls_is_not_called_plainly() -> None:
    class Plain:
        def process(self, message: Any, context: hr.Context) -> None:
            context.emit({"n": message.n, "k": message.k, "v": 0, "at": message.at})

    @hr.job("counts")
    def plain(g: hr.Graph) -> None:
        columns = {"n": pa.int64(), "k": pa.string(), "v": pa.int64(), "at": pa.int64()}
        rows = g.input("in", time="at").partition_by("k", name="by")
        made = rows.process(Plain, returns=columns, name="count", stores={"n": int})
        made.send_to(g.output("out"))

    with opened(keyed()) as driver:
        feed(driver)
        World.held.add(5)
        driver.advance()
        driver.job = plain
        driver.start()
        with pytest.raises(hr.HeadraceError, match="messages wait for asynchronous calls"):
            driver.advance()


def test_while_too_many_messages_wait_no_input_is_read() -> None:
    with opened(keyed(), max_rows=10) as driver:
        with_settings(driver, "epoch", max_waiting=5)
        World.held.update(range(10))
        feed(driver)
        for _ in range(4):
            driver.advance()
        assert driver.coordinator.state.inputs["in"][0].next_offset == 10
        World.held.clear()
        driver.run()
        assert counted(driver) == expected_counts()


@pytest.mark.parametrize("via", ["exchange", "bus"])
def test_calls_follow_windows_and_other_calls_and_the_bus(via: str) -> None:
    class Tells:
        async def process(self, message: Any, context: hr.Context) -> None:
            await asked(message.n % 7)
            context.emit({"k": message.k, "n": message.n, "at": message.at})

    @hr.job("chain")
    def job(g: hr.Graph) -> None:
        columns = {"k": pa.string(), "n": pa.int64(), "at": pa.int64()}
        rows = g.input("in", time="at").partition_by("k", via=via)
        first = rows.process(Tells, returns=columns, max_concurrency=4, order="out", name="first")
        sums = first.window(hr.tumbling("5s"), n=hr.agg.count())
        told = sums.map(
            lambda m: {"k": m.k, "n": m.n, "at": int(m.window_start.timestamp() * 1000)},
            returns=columns,
            name="as_rows",
        )
        second = told.process(Tells, returns=columns, max_concurrency=4, order="key", name="second")
        apart = second.partition_by("at", via=via).window(hr.tumbling("10s"), n=hr.agg.sum("n"))
        apart.send_to(g.output("out"))

    def run(rows: int, held: set[int]) -> list[tuple[int, int]]:
        with opened(job, max_rows=rows) as driver:
            World.held.clear()
            World.held.update(held)
            feed(driver)
            for _ in range(6):
                driver.advance()
            World.held.clear()
            driver.finish()
            return sorted((row["at"] // 10_000, row["n"]) for row in driver.output("out"))

    found = run(4, {2, 3})
    assert found == run(1000, set())
    assert sum(n for _, n in found) == 30


def test_code_that_holds_the_loop_up_is_ended() -> None:
    class Blocks:
        async def process(self, message: Any, context: hr.Context) -> None:
            if message.n == 3:
                threading.Event().wait(30)
            context.emit({"n": message.n})

    @hr.job("blocks")
    def job(g: hr.Graph) -> None:
        rows = g.input("in").partition_by("k")
        made = rows.process(Blocks, returns={"n": int}, on_error="drop", timeout="1h", name="b")
        made.send_to(g.output("out"))

    with opened(job, job_settings={"call_timeout_s": 1.0}) as driver:
        feed(driver)
        driver.run()
        assert sorted(numbers(driver)) == [n for n in range(30) if n != 3]
        assert counts_of(driver, "b")["dropped"] == 1


def test_commands_that_look_at_state_show_what_waits(tmp_path: Path) -> None:
    with opened(keyed(), home=tmp_path) as driver:
        feed(driver)
        World.held.add(5)
        driver.advance()
        shown = driver.rows("count.timers")
    waiting = 9  # with 5 those that follow it for its key
    assert len(shown) == waiting
    assert {(row["due"], row["clock"], row["name"]) for row in shown} == {
        (None, "call", "of epoch 1")
    }


class Doubles:
    """Sends two messages for each, in threads."""

    def process(self, message: Any, context: hr.Context) -> None:
        for part in range(2):
            context.emit({"n": message.n * 10 + part, "at": message.at}, to="odd" if part else None)


@pytest.mark.parametrize("max_rows", [4, 1000])
def test_calls_follow_calls_and_functions_before_any_key(max_rows: int) -> None:
    @hr.job("chained")
    def job(g: hr.Graph) -> None:
        columns = {"n": pa.int64(), "at": pa.int64()}
        rows = g.input("in", time="at").filter(hr.col("n") % 3 != 1)
        twice = rows.flat_map(
            lambda m: [{"n": m.n, "at": m.at}] * (m.n % 3), returns=columns, uses=["n", "at"]
        )
        first = twice.process(Asks, returns=columns, max_concurrency=3)
        second = first.process(
            Doubles, returns=columns, sides={"odd": columns}, threads=2, name="doubles"
        )
        second.send_to(g.output("even"))
        second.side("odd").send_to(g.output("odd"))

    with opened(job, max_rows=max_rows) as driver:
        feed(driver)
        World.held.add(11)
        for _ in range(3):
            driver.advance()
        driver.advance_with_crash("slot.output_written")
        World.held.clear()
        driver.run()
        expected = [n for n in range(30) if n % 3 == 2 for _ in range(2)]
        assert numbers(driver, "even") == [n * 10 for n in expected]
        assert numbers(driver, "odd") == [n * 10 + 1 for n in expected]
