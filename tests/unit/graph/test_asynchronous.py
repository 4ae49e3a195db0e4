"""Asynchronous processors as data, what ``explain`` says of them, and every mistake in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.plans import CallLimits, CallPolicy, JobGraph, Process, explain, plan

import headrace as hr

SCHEMA: dict[str, Any] = {"at": int, "customer": str}
Build = Callable[[hr.Graph], Any]


class Asks:
    async def open(self, context: hr.Context) -> None: ...

    async def process(self, message: Any, context: hr.Context) -> None: ...

    async def close(self) -> None: ...


class Calling:
    def process_async(self, message: Any, context: hr.Context, callback: hr.Callback) -> None: ...


class Plain:
    def process(self, message: Any, context: hr.Context) -> None: ...


def rows(g: hr.Graph) -> hr.Stream:
    return g.input("orders", schema=SCHEMA)


def build(function: Build) -> JobGraph:
    return hr.job("job")(function).build()


def calls_of(function: Build, name: str = "p") -> CallPolicy | None:
    operator = build(function).operator(name)
    assert isinstance(operator, Process)
    return operator.calls


def problems(function: Build) -> str:
    with pytest.raises(hr.GraphError) as caught:
        plan(build(function), {})
    return "\n".join(caught.value.problems)


def test_how_a_class_is_called_is_known_by_its_methods() -> None:
    assert calls_of(lambda g: rows(g).process(Plain, name="p")) is None
    assert calls_of(lambda g: rows(g).process(Asks, name="p")) == CallPolicy("coroutine")
    assert calls_of(
        lambda g: rows(g).process(Calling, name="p", callback_timeout="2s", max_concurrency=7)
    ) == CallPolicy("callback", 7, timeout_ms=2000)
    assert calls_of(
        lambda g: rows(g).partition_by("customer").process(Plain, name="p", threads=3, order="key")
    ) == CallPolicy("thread", 3, "key", threads=3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"order": "any"}, "order='any'; expected one of"),
        ({"order": "key"}, 'order="key" needs a key'),
        ({"max_concurrency": 0}, "max_concurrency=0; expected a whole number"),
        ({"callback_timeout": "1s"}, "callback_timeout= is for process_async"),
        ({"threads": 2}, "threads= is for a plain process method"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], told: str) -> None:
    assert told in problems(lambda g: rows(g).process(Asks, **arguments))


def test_what_is_for_asynchronous_classes_is_not_for_plain_ones() -> None:
    said = problems(lambda g: rows(g).process(Plain, max_concurrency=3, timeout="1s"))
    assert "max_concurrency= is for async def process" in said
    assert "timeout= is for async def process" in said


def test_remote_stores_are_not_for_asynchronous_classes() -> None:
    store = hr.store("r", kind="remote", url="redis://somewhere/0")
    assert "local and broadcast stores only" in problems(
        lambda g: rows(g).partition_by("customer").process(Asks, stores=[store])
    )


def test_on_timer_is_a_plain_method() -> None:
    class Late(Asks):
        async def on_timer(self, timer: hr.Timer, context: hr.Context) -> None: ...

    assert "Late.on_timer" in problems(lambda g: rows(g).process(Late))


def test_calls_do_not_follow_a_plain_process_without_a_key_between() -> None:
    def function(g: hr.Graph) -> None:
        first = rows(g).process(Plain, returns=SCHEMA, name="first")
        first.filter(hr.col("at") > 0).process(Asks)

    assert "cannot follow the plain process 'first'" in problems(function)


def test_explain_says_how_calls_are_made() -> None:
    def function(g: hr.Graph) -> None:
        keyed = rows(g).partition_by("customer")
        keyed.process(Asks, max_concurrency=9, order="key", timeout="5s")

    text = explain(plan(build(function), {}))
    wanted = "calls by coroutine, up to 9 open in a task, one after the other for each key"
    assert f"{wanted}, timeout 5s" in text


def test_by_setting_plain_classes_run_in_threads_but_for_those_that_cannot() -> None:
    class Counts(hr.StatelessProcessor):
        def process(self, event: Any) -> Any:
            return event

    def function(g: hr.Graph) -> None:
        rows(g).process(Plain, name="a")
        rows(g).process(Counts, name="b", returns=SCHEMA)

    made = plan(build(function), {}, limits=CallLimits(threads=4)).graph
    found = {o.name: o.calls for o in made.operators if isinstance(o, Process)}
    assert found == {"a": CallPolicy("thread", threads=4), "b": None}
