"""Functions over the messages of windows: what they are given, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.rough import records, rough_step
from tests.sim.trigger_model import held, sent, window_of
from tests.sim.window_model import COLUMNS, Case, Record, create, expect, feed
from tests.support.soak import examples

import headrace as hr
from headrace.errors import GraphError, UserFunctionError
from headrace.testing import TestDriver


class Seen(msgspec.Struct):
    values: list[int]


class Line(NamedTuple):
    value: int
    place: int


def join(seen: Seen, message: Any) -> Seen:
    seen.values.append(message.v)
    return seen


def lines(key: Any, window: Any, messages: list[Any]) -> Iterable[Line]:
    for place, message in enumerate(messages):
        yield Line(message.v, place)


def larger(first: Any, second: Any) -> Any:
    return second if (second.v, second.at) > (first.v, first.at) else first


def job(case: Case) -> Any:
    @hr.job("functions")
    def functions(g: hr.Graph) -> None:
        source = g.input("in", time="at", out_of_orderness=f"{case.lateness}ms")
        stream = source.partition_by("k") if case.keyed else source
        window, store = case.window, case.store
        stream.reduce(window, larger, store=store).send_to(g.output("reduced"))
        folded = stream.fold(window, Seen([]), join, by="at", uses=["v"], store=store)
        folded.send_to(g.output("folded"))
        each = stream.process_window(window, lines, by="at", uses=["v"], store=store)
        each.send_to(g.output("lines"))

    return functions


def moment(value: Any) -> int:
    return round(value.timestamp() * 1000)


@pytest.mark.parametrize("kind", ["tumbling", "session", "hopping"])
@given(data=st.data())
@settings(max_examples=examples(4))
def test_functions_see_the_messages_of_each_window(kind: str, data: Any) -> None:
    """The same windows as the model's, in any order of arrival, over crashes."""
    log: list[Record] = data.draw(st.lists(records, max_size=25))
    windows = {
        "tumbling": hr.tumbling("10ms"),
        "session": hr.session("5ms"),
        "hopping": hr.hopping("10ms", "5ms"),
    }
    case = Case(windows[kind], data.draw(st.sampled_from(["columnar", "memory"])), 6, True)
    cut = data.draw(st.integers(0, len(log)))
    with TestDriver(job(case), tasks=2, key_groups=8, max_rows=5) as driver:
        create(driver)
        feed(driver, log[:cut])
        rough_step(driver, data)
        feed(driver, log[cut:])
        driver.finish()
        expected, _ = expect(log, case)
        folded = driver.output("folded")
        found = [
            (row["k"], moment(row["window_start"]), moment(row["window_end"]), *_stats(row))
            for row in folded
        ]
        assert sorted(expected.elements(), key=repr) == sorted(found, key=repr)
        assert sum(len(row["values"]) for row in folded) == len(driver.output("lines"))
        assert len(folded) == len(driver.output("reduced"))
        by_window = {
            (row["k"], row["window_start"], row["window_end"]): row["values"] for row in folded
        }
        for row in driver.output("lines"):
            window = (row["k"], row["window_start"], row["window_end"])
            assert by_window[window][row["place"]] == row["value"]
        for row in driver.output("reduced"):
            window = (row["k"], row["window_start"], row["window_end"])
            assert max(by_window[window]) == row["v"]


def _stats(row: dict[str, Any]) -> tuple[Any, ...]:
    values = row["values"]
    return (len(values), sum(values), max(values), tuple(sorted(values)))


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding", "session"])
@given(data=st.data())
@settings(max_examples=examples(2))
def test_functions_are_called_for_results_that_are_taken_back_and_made_anew(
    kind: str, data: Any
) -> None:
    """A reader that follows retractions holds in the end what the function makes of each window."""
    early = {} if kind == "sliding" else data.draw(st.sampled_from([{}, {"early": "5ms"}]))
    window = window_of(kind, allowed_lateness="15ms", late="update", updates="retract", **early)
    log: list[Record] = data.draw(st.lists(records, max_size=25))
    case = Case(window, data.draw(st.sampled_from(["columnar", "memory"])), 0, True)

    @hr.job("functions")
    def functions(g: hr.Graph) -> None:
        stream = g.input("in", time="at").partition_by("k")
        folded = stream.fold(window, Seen([]), join, by="at", uses=["v"], store=case.store)
        folded.send_to(g.output("out"))

    cut = data.draw(st.integers(0, len(log)))
    with TestDriver(functions, tasks=2, key_groups=8, max_rows=5) as driver:
        create(driver)
        feed(driver, log[:cut])
        rough_step(driver, data)
        feed(driver, log[cut:])
        driver.finish()
        rows = [row | {"bag": row["values"]} for row in driver.output("out")]
        expected, _ = expect(log, case)
        assert held(sent(rows), "retract", grow=kind == "session") == expected


def picky(key: Any, window: Any, messages: list[Any]) -> list[dict[str, int]]:
    if any(message.v < 0 for message in messages):
        raise ValueError("below zero")
    return [{"n": len(messages)}]


@pytest.mark.parametrize("on_error", ["drop", "dead_letter"])
def test_windows_that_a_function_refuses_are_set_aside(on_error: str) -> None:
    @hr.job("picky")
    def job_(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        made = keyed.process_window(hr.tumbling("10ms"), picky, {"n": int}, on_error=on_error)
        made.send_to(g.output("out"))

    with TestDriver(job_) as driver:
        driver.create("in", COLUMNS, time="at")
        values = [(1, 1), (-1, 2), (3, 11), (4, 12), (5, 25)]
        driver.feed("in", [{"k": "a", "v": v, "at": at} for v, at in values])
        driver.finish()
        assert [row["n"] for row in driver.output("out")] == [2, 1]
        if on_error == "drop":
            assert driver.coordinator.state.counts["dropped"] == 1
            return
        [letter] = driver.dead_letters()
        assert (letter["key"], letter["is_original"]) == ('"a"', False)
        assert "below zero" in letter["message"]
        window = letter["record"]
        assert [message["v"] for message in window["messages"]] == [1, -1]


def test_late_messages_of_a_function_go_to_its_side() -> None:
    @hr.job("aside")
    def job_(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        made = keyed.reduce(hr.tumbling("10ms", late="side_output"), larger)
        made.send_to(g.output("out"))
        made.side("late").send_to(g.output("late"))

    with TestDriver(job_) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", [{"k": "a", "v": at, "at": at} for at in (1, 30, 2)])
        driver.finish()
        assert [row["v"] for row in driver.output("out")] == [1, 30]
        assert [row["v"] for row in driver.output("late")] == [2]


def test_what_reduce_makes_as_a_dict_is_a_message_for_the_next() -> None:
    """However many messages a window has."""

    @hr.job("dicts")
    def job_(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        added = keyed.reduce(
            hr.tumbling("10ms"),
            lambda first, second: {"at": first.at, "k": first.k, "v": first.v + second.v},
        )
        added.send_to(g.output("out"))

    with TestDriver(job_) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", [{"k": "a", "v": at, "at": at} for at in (1, 2, 3, 4, 11, 12)])
        driver.finish()
        assert [row["v"] for row in driver.output("out")] == [10, 23]


def told(key: Any, window: Any, messages: list[Any]) -> list[dict[str, Any]]:
    bounds = [moment(at) for at in window if at is not None]
    return [{"key": repr(key), "bounds": bounds, "values": [message.v for message in messages]}]


def test_order_key_and_bounds_that_a_function_is_given() -> None:
    """``by`` sorts, of equal ones the first to arrive is first; without a key it is None."""
    returns = {"key": str, "bounds": list[int], "values": list[int]}

    @hr.job("look")
    def looking(g: hr.Graph) -> None:
        source, out = g.input("in", time="at", out_of_orderness="1m"), g.output("out")
        window = hr.tumbling("10ms")
        for stream in (source, source.partition_by("k"), source.partition_by("k", "v")):
            made = stream.process_window(window, told, returns, by="at")
            made.map("key", "bounds", "values").send_to(out)
        whole = source.process_window(hr.global_window(), told, returns)
        whole.send_to(out)

    with TestDriver(looking, tasks=1) as driver:
        driver.create("in", COLUMNS, time="at")
        rows = [(3, 5), (1, 2), (2, 2)]
        driver.feed("in", [{"k": "a", "v": v, "at": at} for v, at in rows])
        driver.finish()
        found = sorted((r["key"], r["bounds"], r["values"]) for r in driver.output("out"))
    timed = [0, 10]
    keyed = [(f"('a', {v})", timed, [v]) for v in (1, 2, 3)]
    unkeyed = [("None", [], [3, 1, 2]), ("None", timed, [1, 2, 3])]
    assert sorted([("'a'", timed, [1, 2, 3]), *keyed, *unkeyed]) == found


def test_a_result_may_have_the_key_and_the_bounds_itself() -> None:
    @hr.job("own")
    def own(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        one = keyed.process_window(
            hr.tumbling("10ms"), lambda k, w, m: [{"n": len(m), "k": k}], {"n": int, "k": str}
        )
        one.send_to(g.output("out"))
        one.window(hr.tumbling("1s"), total=hr.agg.sum("n")).send_to(g.output("later"))

    with TestDriver(own) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", [{"k": "a", "v": 1, "at": at} for at in (1, 2, 30)])
        driver.finish()
        assert [list(row) for row in driver.output("out")] == [
            ["window_start", "window_end", "n", "k"]
        ] * 2
        assert [row["total"] for row in driver.output("later")] == [3]


def test_mistakes_are_told_together() -> None:
    @hr.job("wrong")
    def wrong(g: hr.Graph) -> None:
        keyed = g.input("in", time="at", schema=pa.schema(list(COLUMNS.items()))).partition_by("k")
        keyed.reduce("1h", larger)  # type: ignore[arg-type]
        keyed.reduce(hr.session("1h"), lambda first: first)  # type: ignore[arg-type,misc]
        keyed.fold(hr.session("1h"), 0, lambda state, message: state)
        keyed.process_window(hr.session("1h"), 7, {"x": int})  # type: ignore[arg-type]
        keyed.fold(hr.session("1h"), 0, join, uses=["gone"])

    with pytest.raises(GraphError) as caught:
        wrong.build()
    text = str(caught.value)
    for part in (
        "window takes a window such as",
        "takes (first), but is called with (first, second)",
        "returns to fold is not known; give returns=",
        "process_window takes a function; found 7",
    ):
        assert part in text


def test_an_error_in_a_function_names_it_and_its_operator() -> None:
    def broken(key: Any, window: Any, messages: list[Any]) -> list[Any]:
        raise ZeroDivisionError("by hand")

    @hr.job("broken")
    def job_(g: hr.Graph) -> None:
        keyed = g.input("in", time="at").partition_by("k")
        keyed.process_window(hr.session("1h"), broken, {"x": int}, name="visits").send_to(
            g.output("out")
        )

    with TestDriver(job_) as driver:
        driver.create("in", COLUMNS, time="at")
        driver.feed("in", [{"k": "a", "v": 1, "at": 1}])
        with pytest.raises(UserFunctionError, match=r"(?s)visits.process_window.*by hand"):
            driver.finish()
