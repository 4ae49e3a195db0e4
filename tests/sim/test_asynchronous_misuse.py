"""What a user's calls should not do, and what becomes of their messages all the same."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import InvalidInputError
from headrace.testing import TestDriver


class UnprintableError(Exception):
    """Cannot be told."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Raises:
    async def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"n": message.n})
        await asyncio.sleep(0.01)
        if message.n == 2:
            raise UnprintableError


class FailsFromThread:
    """Gives ``fail`` what cannot be told, and what is no error."""

    given: ClassVar[dict[int, Any]] = {1: UnprintableError(), 2: "no", 3: None, 4: ValueError}

    def process_async(self, message: Any, context: hr.Context, callback: hr.Callback) -> None:
        def run() -> None:
            context.emit({"n": message.n})
            if message.n in self.given:
                callback.fail(self.given[message.n])
            else:
                callback.complete()

        threading.Thread(target=run).start()


class FailsAtOnce(FailsFromThread):
    def process_async(self, message: Any, context: hr.Context, callback: hr.Callback) -> None:
        context.emit({"n": message.n})
        if message.n in self.given:
            callback.fail(self.given[message.n])
        else:
            callback.complete()


class EmitsAfterItsEnd:
    """Leaves a task behind that goes on while an earlier call holds this one's effects back."""

    async def process(self, message: Any, context: hr.Context) -> None:
        if message.n == 1:
            self.left = asyncio.create_task(self.later(context))
        else:
            await asyncio.sleep(0.05)
        context.emit({"n": message.n})

    async def later(self, context: hr.Context) -> None:
        await asyncio.sleep(0.01)
        with pytest.raises(InvalidInputError, match="this call is over"):
            context.emit({"n": 1000})


class Stays:
    """Leaves a task behind that cannot be cancelled."""

    async def process(self, message: Any, context: hr.Context) -> None:
        self.left = asyncio.create_task(self.stay())
        context.emit({"n": message.n})

    async def stay(self) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


def run(cls: type, *, keyed: bool = True, rows: int = 6, **named: Any) -> list[int]:
    @hr.job("misuse")
    def job(g: hr.Graph) -> None:
        stream: Any = g.input("in")
        if keyed:
            stream = stream.partition_by("k")
        options = {"returns": {"n": int}, "max_concurrency": 4, "name": "calls"} | named
        stream.process(cls, **options).send_to(g.output("out"))

    with TestDriver(job, tasks=1, slots=1) as driver:
        driver.create("in", {"n": pa.int64(), "k": pa.string()})
        driver.feed("in", [{"n": n, "k": "k"} for n in range(rows)])
        driver.run()
        letters = len(driver.dead_letters())
        assert letters + len(driver.output("out")) >= rows
        return sorted(row["n"] for row in driver.output("out"))


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("cls", "left"), [(Raises, [0, 1, 3, 4, 5]), (FailsFromThread, [0, 5]), (FailsAtOnce, [0, 5])]
)
def test_an_error_that_cannot_be_told_fails_its_message(
    cls: type, left: list[int], keyed: bool
) -> None:
    assert run(cls, keyed=keyed, on_error="dead_letter") == left


@pytest.mark.parametrize("keyed", [True, False])
def test_what_is_sent_after_the_end_of_a_call_is_not_taken(keyed: bool) -> None:
    assert run(EmitsAfterItsEnd, keyed=keyed, order="in") == [0, 1, 2, 3, 4, 5]


def test_a_task_that_cannot_be_cancelled_does_not_hold_up_the_end() -> None:
    assert run(Stays) == [0, 1, 2, 3, 4, 5]
    gc.collect()  # which tells of the tasks: here, and not in the middle of another test


class Hangs:
    """The only thread is taken until the test is over, as by a service that does not answer."""

    seen: ClassVar[Counter[int]] = Counter()
    over: ClassVar[list[threading.Event]] = []

    def process(self, message: Any, context: hr.Context) -> None:
        Hangs.seen[message.n] += 1
        if message.n == 0:
            Hangs.over[0].wait(60)
        context.emit({"n": message.n})


def test_a_call_whose_time_is_over_before_a_thread_is_free_is_not_made() -> None:
    Hangs.seen.clear()
    Hangs.over[:] = [threading.Event()]
    assert run(Hangs, threads=1, timeout="1s", rows=4, on_error="dead_letter") == []
    workers = [one for one in threading.enumerate() if one.name.startswith("headrace-calls")]
    Hangs.over[0].set()
    for one in workers:
        one.join(10)
    assert Hangs.seen == {0: 1}


def test_messages_that_wait_know_their_stream_when_a_pattern_matches_another() -> None:
    class Refuses(hr.AsyncProcessor):
        async def process(self, message: Any, context: hr.Context) -> None:
            await asyncio.sleep(100)
            raise ValueError("no")

    @hr.job("growing")
    def growing(g: hr.Graph) -> None:
        rows = g.input("in.*", schema={"k": pa.int64()})
        rows.partition_by("k").process(
            Refuses, returns={"k": int}, on_error="dead_letter", timeout="1h"
        ).send_to(g.output("out"))

    with TestDriver(growing, tasks=2, key_groups=8) as driver:
        driver.create("in.b", {"k": pa.int64()})
        driver.feed("in.b", [{"k": k} for k in (1, 2)])
        driver.advance()
        assert not driver.dead_letters()
        driver.create("in.a", {"k": pa.int64()})
        driver.feed("in.a", [{"k": k} for k in (3, 4)])
        driver.finish()
        letters = driver.dead_letters()
    told = sorted((one["stream"], one["offset"], one["record"]["k"]) for one in letters)
    assert told == [("in.a", 0, 3), ("in.a", 1, 4), ("in.b", 0, 1), ("in.b", 1, 2)]


class TakesLong:
    """Message 1 is answered after 1.5 s, when the epoch has long given up waiting for it."""

    async def process(self, message: Any, context: hr.Context) -> None:
        await asyncio.sleep(1.5 if message.n == 1 else 0)
        context.emit({"n": message.n})


@pytest.mark.parametrize("keyed", [True, False])
def test_what_the_slot_does_between_calls_is_not_their_time(keyed: bool) -> None:
    @hr.job("long")
    def job(g: hr.Graph) -> None:
        stream: Any = g.input("in")
        if keyed:
            stream = stream.partition_by("k")
        options: dict[str, Any] = {"max_concurrency": 8, "timeout": "2s", "on_error": "drop"}
        stream.process(TakesLong, returns={"n": int}, **options).send_to(g.output("out"))

    with TestDriver(job, tasks=1, slots=1) as driver:
        driver.create("in", {"n": pa.int64(), "k": pa.string()})
        driver.feed("in", [{"n": n, "k": "k"} for n in range(3)])
        driver.advance()
        assert 1 not in [row["n"] for row in driver.output("out")]
        driver.clock.advance(60_000)
        driver.run()
        assert sorted(row["n"] for row in driver.output("out")) == [0, 1, 2]


class Held:
    """Message 0 is not answered for now."""

    is_held: ClassVar[bool] = True

    async def process(self, message: Any, context: hr.Context) -> None:
        while message.n == 0 and Held.is_held:
            await asyncio.sleep(0.05)
        context.emit({"n": message.n})


def test_a_slow_call_of_one_input_does_not_hold_the_other() -> None:
    @hr.job("two")
    def job(g: hr.Graph) -> None:
        both: Any = g.input("first").union(g.input("second"))
        options: dict[str, Any] = {"max_concurrency": 8, "order": "out"}
        both.process(Held, returns={"n": int}, **options).send_to(g.output("out"))

    Held.is_held = True
    with TestDriver(job, tasks=1, slots=1) as driver:
        for name, begin in (("first", 0), ("second", 100)):
            driver.create(name, {"n": pa.int64()})
            driver.feed(name, [{"n": n} for n in range(begin, begin + 5)])
        driver.advance()
        assert [row["n"] for row in driver.output("out")] == [100, 101, 102, 103, 104]
        Held.is_held = False
        driver.run()
        assert sorted(row["n"] for row in driver.output("out"))[:5] == [0, 1, 2, 3, 4]


NEVER = """
import threading
import pyarrow as pa
import headrace as hr
from headrace.testing import TestDriver

class Never:
    def process(self, message, context):
        threading.Event().wait()

@hr.job("never")
def job(g):
    options = {"threads": 1, "timeout": "1s", "on_error": "drop"}
    g.input("in").process(Never, returns={"n": int}, **options).send_to(g.output("out"))

with TestDriver(job, tasks=1, slots=1) as driver:
    driver.create("in", {"n": pa.int64()})
    driver.feed("in", [{"n": 1}])
    driver.run()
print("over")
"""


def test_a_thread_that_never_returns_does_not_keep_its_process_from_ending() -> None:
    command = [sys.executable, "-c", NEVER]
    ended = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"over\n"), ended.stderr


def test_a_key_with_many_messages_behind_a_slow_call_does_not_hold_the_others() -> None:
    @hr.job("keys")
    def job(g: hr.Graph) -> None:
        by_key: Any = g.input("in").partition_by("k")
        options: dict[str, Any] = {"max_concurrency": 8, "order": "key"}
        by_key.process(Held, returns={"n": int}, **options).send_to(g.output("out"))

    Held.is_held = True
    with TestDriver(job, tasks=1, slots=1) as driver:
        driver.create("in", {"n": pa.int64(), "k": pa.string()})
        driver.feed("in", [{"n": n, "k": "slow"} for n in range(10_000)])
        driver.feed("in", [{"n": n, "k": "quick"} for n in range(10_000, 10_005)])
        driver.advance()
        assert sorted(row["n"] for row in driver.output("out")) == list(range(10_000, 10_005))
        Held.is_held = False
        driver.run()
        assert len(driver.output("out")) == 10_005
