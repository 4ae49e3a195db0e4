"""What a method or function of the user's returns is used, or refused: never dropped silently."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.support.processes import until

import headrace as hr
from headrace.errors import FunctionResultError, GraphError, InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"k": pa.int64(), "at": pa.int64()}
ROWS = [{"k": 1, "at": 1_000}, {"k": 2, "at": 2_000}]


def made_by(kind: type) -> Any:
    """A function that makes instances, of which nothing is known before it is called."""
    return lambda: kind(*())


class Returns:
    def process(self, message: Any, context: hr.Context) -> Any:
        return {"k": message.k}


other_began, may_end = threading.Event(), threading.Event()


class OneReturns:
    """Returns what it should send once another call has begun, which ends when it may."""

    def process(self, message: Any, context: hr.Context) -> Any:
        if message.k == 1:
            assert other_began.wait(10)
            return {"k": 1}
        other_began.set()
        assert may_end.wait(10)
        return None


class ReturnsLater:
    """Sends what it should, and once returns what it should have sent."""

    def process(self, message: Any, context: hr.Context) -> Any:
        context.emit({"k": message.k})
        return [message] if message.k == 2 else None


class TimerReturns:
    def process(self, message: Any, context: hr.Context) -> None:
        context.set_timer(message.at)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> Any:
        return {"k": timer.key}


class Awaits:
    async def process(self, message: Any, context: hr.Context) -> Any:
        return {"k": message.k}


class CallsBack:
    def process_async(self, message: Any, context: hr.Context, callback: hr.Callback) -> Any:
        callback.complete()
        return {"k": message.k}


class Yields:
    def process(self, message: Any, context: hr.Context) -> Iterator[Any]:
        yield {"k": message.k}


class YieldsLater:
    async def process(self, message: Any, context: hr.Context) -> AsyncIterator[Any]:
        yield {"k": message.k}


class Opens:
    def open(self, context: hr.Context) -> Iterator[None]:
        yield

    def process(self, message: Any, context: hr.Context) -> None: ...


class Both:
    def process_left(self, message: Any, context: hr.Context) -> Any:
        return {"k": message.k}

    def process_right(self, message: Any, context: hr.Context) -> None: ...


def job_of(build: Any) -> hr.Job:
    @hr.job("unsent")
    def unsent(g: hr.Graph) -> None:
        build(g.input("in", time="at")).send_to(g.output("out"))

    return unsent


def keyed(factory: Any, **options: Any) -> hr.Job:
    return job_of(
        lambda rows: rows.partition_by("k").process(factory, returns={"k": int}, **options)
    )


def unkeyed(factory: Any, **options: Any) -> hr.Job:
    return job_of(lambda rows: rows.process(factory, returns={"k": int}, **options))


def run(job: hr.Job) -> list[dict[str, Any]]:
    with TestDriver(job) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", ROWS)
        driver.finish()
        return driver.output("out")


@pytest.mark.parametrize("make", [keyed, unkeyed])
@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (Returns, {}),
        (made_by(Returns), {}),
        (Returns, {"threads": 2}),
        (ReturnsLater, {}),
        (Awaits, {}),
        (CallsBack, {}),
    ],
)
def test_what_process_returns_is_refused(make: Any, factory: Any, options: dict[str, Any]) -> None:
    with pytest.raises(FunctionResultError, match=r"returned, .*context\.emit.*StatelessProcessor"):
        run(make(factory, **options))


def both_wait_for_calls() -> bool:
    """Say whether the two threads of the pool have nothing to do."""
    frames = sys._current_frames()
    pool = [one.ident for one in threading.enumerate() if one.name.startswith("headrace-in.")]
    at = [frames[ident].f_code.co_name for ident in pool if ident in frames]
    return at == ["_work", "_work"]


def open_loops() -> set[asyncio.AbstractEventLoop]:
    """Return the event loops of this process that are not closed; others may have some, too."""
    gc.collect()
    loops = {one for one in gc.get_objects() if isinstance(one, asyncio.BaseEventLoop)}
    return {loop for loop in loops if not loop.is_closed()}


def test_a_call_that_ends_after_another_was_refused_leaves_no_event_loop_behind() -> None:
    """It ends in its thread before the driver is closed, and is heard of only then."""
    before = open_loops()
    other_began.clear()
    may_end.clear()
    with TestDriver(unkeyed(OneReturns, threads=2)) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", ROWS)
        with pytest.raises(FunctionResultError):
            driver.finish()
        may_end.set()
        until(both_wait_for_calls, "the threads have nothing to do")

    assert open_loops() <= before


def test_what_a_timer_returns_is_refused() -> None:
    with pytest.raises(FunctionResultError, match=r"TimerReturns returned, \{'k': \d\}"):
        run(keyed(TimerReturns))


def test_what_one_of_several_streams_methods_returns_is_refused() -> None:
    @hr.job("unsent")
    def unsent(g: hr.Graph) -> None:
        left, right = (g.input(name, time="at").partition_by("k") for name in ("in", "in2"))
        made = g.process({"left": left, "right": right}, Both, returns={"k": int})
        made.send_to(g.output("out"))

    with TestDriver(unsent) as driver:
        for name in ("in", "in2"):
            driver.create(name, COLUMNS, time="at")
        driver.feed("in", ROWS)
        with pytest.raises(FunctionResultError, match="Both returned"):
            driver.finish()


def test_a_message_whose_call_returned_something_is_set_aside_where_that_is_wanted() -> None:
    assert run(keyed(ReturnsLater, on_error="drop")) == [{"k": 1}]


@pytest.mark.parametrize("made", [Awaits, CallsBack, Yields, YieldsLater, Opens])
def test_a_function_that_makes_what_only_a_class_can_say_is_refused(made: type) -> None:
    with pytest.raises(InvalidInputError, match=rf"makes a {made.__name__}|no method process"):
        run(keyed(made_by(made)))


@pytest.mark.parametrize("made", [Yields, YieldsLater, Opens])
def test_a_class_whose_methods_run_nothing_is_refused_when_the_graph_is_built(made: type) -> None:
    with pytest.raises(GraphError, match=r"is a generator or async|is async"):
        keyed(made).build()


class Timerless(hr.StatelessProcessor):
    def process(self, event: Any) -> list[Any]:
        return []

    def on_timer(self, timer: hr.Timer) -> list[Any]:
        return [{"k": timer.key}]


class OpensNothing(hr.StatelessProcessor):
    def open(self) -> Iterator[None]:
        yield

    def process(self, event: Any) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("made", "words"),
    [(Timerless, "on_timer is never called"), (OpensNothing, "open is a generator")],
)
def test_a_method_of_a_contract_that_would_never_run_is_refused(made: type, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        keyed(made).build()


def many(message: Any) -> Iterator[Any]:
    yield {"k": message.k}


def plain(message: Any) -> bool:
    return message.k == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.map(many, returns={"k": int}),
        lambda rows: rows.filter(many),
        lambda rows: rows.map_batches(many, returns={"k": int}),
        lambda rows: rows.split(odd=many)["odd"],
    ],
    ids=["map", "filter", "map_batches", "split"],
)
def test_a_generator_is_refused_where_one_thing_is_returned(build: Any) -> None:
    with pytest.raises(GraphError, match="many is a generator"):
        job_of(build).build()


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.filter(lambda m: plain),
        lambda rows: rows.filter(lambda m: iter(many(m))),
        lambda rows: rows.split(odd=lambda m: plain)["odd"],
    ],
    ids=["function", "generator", "branch"],
)
def test_a_condition_that_returns_what_is_always_true_is_refused(build: Any) -> None:
    with pytest.raises(
        FunctionResultError, match=r"condition returned .*always true.*in\.(filter|split)"
    ):
        run(job_of(build))


@pytest.mark.parametrize("found", [7, "text", None, {"k": 1}, b"k", 1.5, many])
def test_flat_map_refuses_what_is_no_list_of_messages(found: Any) -> None:
    with pytest.raises(FunctionResultError, match="flat_map must return an iterable"):
        run(job_of(lambda rows: rows.flat_map(lambda m: found, returns={"k": int})))


@pytest.mark.parametrize("found", ["text", None, [1], [{"k": 1}], many, {"k": 1, "other": 2}])
def test_map_refuses_what_is_no_message(found: Any) -> None:
    with pytest.raises(FunctionResultError, match=r"expected (a message|int64)"):
        run(job_of(lambda rows: rows.map(lambda m: found, returns={"k": int})))
