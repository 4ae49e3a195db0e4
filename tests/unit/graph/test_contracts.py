"""What is told of processors with contracts before a job runs, and what ``explain`` shows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import MonoidTotal, explain, plan

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"word": str, "n": int, "at": int}


class Words(hr.MonoidProcessor[str, int]):
    def __init__(self, weight: int = 1) -> None:
        self.weight = weight

    def process(self, event: Any) -> Iterator[tuple[str, int]]:
        yield event.word, self.weight

    def identity(self) -> int:
        return 0

    def combine(self, first: int, second: int) -> int:
        return first + second


class Untyped(Words):
    def identity(self):
        return 0


class Half(hr.StatefulProcessor[int]):
    def process(self, event: Any, state: int) -> tuple[list[Any], int]:
        return [], state


class Counts(hr.StatefulProcessor[int]):
    def begin(self) -> int:
        return 0

    def process(self, event: Any, state: int) -> tuple[list[Any], int]:
        return [{"word": event.word, "n": state + 1}], state + 1


class Yields(Counts):
    def process(self, event: Any, state: int) -> Any:
        yield [], state


class TakesContext(Counts):
    def process(self, event: Any, state: int, context: Any) -> Any:  # type: ignore[override]
        return [], state


class Each(hr.StatelessProcessor):
    def process(self, event: Any) -> Any:
        return {"word": event.word}


def job(build: Callable[[hr.Stream, hr.Graph], object]) -> hr.Job:
    @hr.job("contracts")
    def contracts(g: hr.Graph) -> None:
        build(g.input("in", schema=COLUMNS, time="at"), g)

    return contracts


REDIS = hr.sinks.redis_partials("redis://u:secret@cache/0", "words:")
KEY = {"word": str}
MISTAKES: dict[str, Callable[[Any, Any], object]] = {
    r"class Half lacks begin": lambda s, g: s.partition_by("word").process(Half),
    r"put partition_by before": lambda s, g: s.process(Counts),
    r"Yields.process is a generator; return \(outputs, state\)": (
        lambda s, g: s.partition_by("word").process(Yields)
    ),
    r"TakesContext.process takes .*called with \(self, event, state\)": (
        lambda s, g: s.partition_by("word").process(TakesContext)
    ),
    r"Words is a MonoidProcessor: give it to monoid": (
        lambda s, g: s.partition_by("word").process(Words)
    ),
    r"monoid takes a class made of hr.MonoidProcessor; found": lambda s, g: s.monoid(Counts, KEY),
    r"Untyped.identity does not say what it returns; annotate it": (
        lambda s, g: s.monoid(Untyped, KEY)
    ),
    r"key= takes the key's columns": lambda s, g: s.monoid(Words, {}),
    r"key columns \['value'\] have the names": lambda s, g: s.monoid(Words, {"value": str}),
    r"state is 'remote' \(str\); expected 'local' or": (
        lambda s, g: s.monoid(Words, KEY, state="remote")
    ),
    r"every= sends totals on": lambda s, g: s.monoid(Words, KEY, REDIS, every="1s"),
    r"namespace is empty": (
        lambda s, g: s.monoid(Words, KEY, hr.sinks.redis_partials("redis://cache", ""))
    ),
    r"which sends none: they are combined once an epoch": (
        lambda s, g: s.monoid(Words, KEY).send_to(g.output("out"))
    ),
    r"reads what a monoid keeps on a server": (
        lambda s, g: s.monoid(Words, KEY, REDIS).send_to(g.output("out"))
    ),
    r"takes partial results; give it to monoid": lambda s, g: s.send_to(REDIS),
}


@pytest.mark.parametrize("match", MISTAKES)
def test_a_mistake_is_told_before_the_job_runs(match: str) -> None:
    with pytest.raises(GraphError, match=match):
        plan(job(MISTAKES[match]).build(), {})


def test_explain_shows_contracts_and_the_promise_of_a_server() -> None:
    def build(s: Any, g: Any) -> None:
        s.process(Each, returns={"word": str}).send_to(g.output("each"))
        s.partition_by("word").process(Counts, returns={"word": str, "n": int})
        s.monoid(partial(Words, 2), KEY, REDIS)
        s.monoid(Words, KEY)

    text = explain(plan(job(build).build(), {}))
    for line in (
        "stateless process with Each",
        "state of each key by Counts",
        "store in.by_word.process.state (rocksdb)",
        "partial results by key with Words",
        "sink Redis entries words:* (partial results appended)",
        "exactly-once, at redis://u@cache/0",
        "totals, added to once an epoch",
        "value = Words (int) -> int64",
    ):
        assert line in text
    assert "secret" not in text


def run(build: Callable[[Any, Any], object], rows: list[dict[str, Any]]) -> TestDriver:
    driver = TestDriver(job(build))
    driver.create("in", {"word": pa.string(), "n": pa.int64(), "at": pa.int64()}, time="at")
    driver.feed("in", rows)
    return driver


ROW = {"word": "a", "n": 1, "at": 1}


def test_a_single_message_as_outputs_is_a_mistake() -> None:
    with (
        run(lambda s, g: s.process(Each, returns={"word": str}), [ROW]) as driver,
        pytest.raises(InvalidInputError, match=r"Each returned .*expected an iterable of messages"),
    ):
        driver.run()


def test_a_function_that_makes_a_processor_is_told_what_to_give() -> None:
    def made() -> Counts:
        return Counts()

    def build(s: Any, g: Any) -> None:
        s.partition_by("word").process(made, returns={"word": str, "n": int})

    with (
        run(build, [ROW]) as driver,
        pytest.raises(InvalidInputError, match=r"functools.partial\(Counts, ...\)"),
    ):
        driver.run()


def test_a_state_of_another_kind_is_told_by_a_store_called_state() -> None:
    def build(s: Any, g: Any) -> None:
        keyed = s.partition_by("word")
        state = hr.store("state", int, kind="memory", ttl="1h")
        keyed.process(Counts, [state], returns={"word": str, "n": int}).send_to(g.output("out"))

    assert "process.state (memory, 1h to live)" in explain(plan(job(build).build(), {}))
    with run(build, [ROW, ROW]) as driver:
        driver.finish()
        assert [row["n"] for row in driver.output("out")] == [1, 2]
        assert driver.store("in.by_word.process.state") == {"a": 2}


class BadKey(Words):
    def process(self, event: Any) -> Iterator[tuple[Any, int]]:
        yield (event.n if event.n < 0 else event.word), 1


def test_a_key_that_does_not_fit_is_the_mistake_of_its_message() -> None:
    rows = [ROW, {**ROW, "n": -1}, ROW]

    def build(s: Any, g: Any) -> None:
        s.monoid(BadKey, KEY, on_error="drop", every="1s").send_to(g.output("out"))

    with run(build, rows) as driver:
        driver.finish()
        assert [(row["word"], row["value"]) for row in driver.output("out")] == [("a", 2)]
    with (
        run(lambda s, g: s.monoid(BadKey, KEY), rows) as driver,
        pytest.raises(InvalidInputError, match=r"made the key -1; expected values for columns wo"),
    ):
        driver.run()


def test_totals_travel_without_what_is_made_of_the_class() -> None:
    total = MonoidTotal(Words, int, pa.int64())
    one = total.lift_values((b"\x05",))
    assert total.result_value(total.combine_values(total.identity(), one)) == 5
    again = pickle.loads(pickle.dumps(total))
    assert again == total
    assert again.result_value(again.combine_values(one, one)) == 10
