"""What users do wrong: each case has a message that names where, what, and the next move.

``ITEMS`` is the list of what is held, with the tests and the cases of ``RUNS`` and ``GRAPHS`` that
do.
"""

from __future__ import annotations

import errno
import math
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.homes import Files
from tests.support.hosts import plan_of

import headrace as hr
from headrace.errors import (
    CallTimeoutError,
    EventTimeError,
    FunctionResultError,
    GraphError,
    HeadraceError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
    UserFunctionError,
)
from headrace.testing import TestDriver

COLUMNS = {
    "k": pa.float64(),
    "v": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
}
OUT = pa.schema([("v", pa.int64())])
ROW = {"k": 1.0, "v": 1, "at": datetime(2013, 1, 1, tzinfo=UTC), "tags": ["a"]}
SHORT = {"call_timeout_s": 0.2}
FEW = {"rows_per_message": 10}


def forgets(message: Any) -> Any:
    message.v + 1


def changes(message: Any) -> Any:
    message.v = 2
    return message


def never_returns(message: Any) -> Any:
    while True:
        pass


def waits_for_ever(message: Any) -> Any:
    time.sleep(3600)  # noqa: TID251 - ended by the limit, which is what is tested


def hides_errors(message: Any) -> Any:
    while True:
        try:
            time.sleep(3600)  # noqa: TID251 - as above
        except Exception:  # noqa: BLE001 - code that swallows what it can
            continue


def explodes(message: Any) -> Iterator[dict[str, int]]:
    while True:
        yield {"v": 1}


class Explodes:
    def process(self, message: Any, context: hr.Context) -> None:
        while True:
            context.emit({"v": 1})


class EmitsText:
    def process(self, message: Any, context: hr.Context) -> None:
        context.emit({"v": "one"})


class Waits:
    def process(self, message: Any, context: hr.Context) -> None:
        waits_for_ever(message)


class WaitsInTimer:
    def process(self, message: Any, context: hr.Context) -> None:
        context.set_timer(0)

    def on_timer(self, timer: hr.Timer, context: hr.Context) -> None:
        waits_for_ever(timer)


def change_frame(frame: pl.DataFrame) -> pl.DataFrame:
    frame["v"].to_numpy()[0] = 7
    return frame.select("v")


def mapped(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda s: s.map(function, returns=OUT, name="o")


def batched(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda s: s.map_batches(function, returns=OUT, name="o")


# What is done with the input, the settings of the job, and what is told.
RUNS: dict[str, tuple[Callable[[Any], Any], dict[str, Any], type[HeadraceError], str]] = {
    "returns None": (
        mapped(forgets),
        {},
        FunctionResultError,
        r"'o' returned None; expected a message with columns \['v'\] \(at .*test_user_errors\.py:"
        r"\d+, of \{'k': 1\.0, 'v': 1",
    ),
    "returns a wrong type": (
        mapped(lambda m: {"v": "one"}),
        {},
        FunctionResultError,
        r"'o' returned 'one' for column 'v'; expected int64 \(at .*test_user_errors\.py:\d+, of",
    ),
    "returns another column": (
        mapped(lambda m: {"w": 1}),
        {},
        FunctionResultError,
        r"'o' returned a dict .*; expected a message with columns \['v'\]",
    ),
    "returns one, not many": (
        lambda s: s.flat_map(lambda m: 1, returns=OUT, name="o"),
        {},
        FunctionResultError,
        r"'o' returned a int 1; flat_map must return an iterable .* \(at .*errors\.py:\d+, of Mess",
    ),
    "emits a wrong type": (
        lambda s: s.process(EmitsText, returns=OUT, name="o"),
        {},
        FunctionResultError,
        r"'o' returned 'one' for column 'v'; expected int64 \(at .*test_user_errors\.py:\d+, of",
    ),
    "returns fewer rows": (
        batched(lambda f: f.select("v").head(0)),
        {},
        FunctionResultError,
        r"'o' returned 0 rows for 1; map_batches must keep the rows .* \(at .*errors\.py:\d+\)",
    ),
    "returns more rows": (
        batched(lambda f: pl.concat([f.select("v")] * 2)),
        {},
        FunctionResultError,
        "'o' returned 2 rows for 1; map_batches must keep the rows",
    ),
    "returns a frame of other columns": (
        batched(lambda f: f.select("k")),
        {},
        FunctionResultError,
        r"'o' returned a frame that does not fit: columns do not fit: missing \['v'\], not",
    ),
    "returns a frame of another type": (
        batched(lambda f: f.select(v=pl.lit("x"))),
        {},
        FunctionResultError,
        "'o' returned a frame that does not fit: column 'v': found large_string, expected int64",
    ),
    "returns no frame": (batched(lambda f: None), {}, FunctionResultError, "'o' returned None; "),
    "changes its message": (
        mapped(changes),
        {},
        UserFunctionError,
        r"'o' raised AttributeError: immutable .*a message cannot be changed: return a new one at "
        r".*test_user_errors\.py:\d+ on message",
    ),
    "changes its batch": (batched(change_frame), {}, UserFunctionError, "'o' raised ValueError"),
    "raises": (
        mapped(lambda m: m.v / 0),
        {},
        UserFunctionError,
        r"'o' raised ZeroDivisionError: .* at .*test_user_errors\.py:\d+ on message Message\(k=1",
    ),
    "never returns": (
        mapped(never_returns),
        SHORT,
        CallTimeoutError,
        r"'o' had not returned after 0\.2 s from Message\(k=1.*; it was at .*test_user_errors\.py:"
        r"\d+: let it end, .* or raise job\.call_timeout_s",
    ),
    "waits": (mapped(waits_for_ever), SHORT, CallTimeoutError, "'o' had not returned"),
    "waits and hides": (mapped(hides_errors), SHORT, CallTimeoutError, "'o' had not returned"),
    "waits in a batch": (
        batched(waits_for_ever),
        SHORT,
        CallTimeoutError,
        "'o' had not returned after .* from 'a batch of 1 rows'",
    ),
    "waits in a processor": (
        lambda s: s.process(Waits, returns=OUT, name="o"),
        SHORT,
        CallTimeoutError,
        "'o' had not returned after .* from Message",
    ),
    "waits in a timer": (
        lambda s: s.partition_by("k").process(WaitsInTimer, returns=OUT, name="o"),
        SHORT,
        CallTimeoutError,
        "'o' had not returned after .* from Timer",
    ),
    "explodes": (
        lambda s: s.flat_map(explodes, returns=OUT, name="o"),
        FEW,
        FunctionResultError,
        "'o' made more than 10 messages of one; .* or raise job.rows_per_message",
    ),
    "explodes in a processor": (
        lambda s: s.process(Explodes, returns=OUT, name="o"),
        FEW,
        FunctionResultError,
        "'o' made more than 10 messages of one; ",
    ),
}


def job_of(build: Callable[[Any], Any], name: str = "wrong", **options: Any) -> Any:
    @hr.job(name)
    def wrong(g: hr.Graph) -> None:
        build(g.input("in", **options)).send_to(g.output("out", partitions=1))

    return wrong


def driver_of(job: Any, columns: dict[str, Any] | None = None, **options: Any) -> TestDriver:
    driver = TestDriver(job, **{"tasks": 1, "key_groups": 4, **options})
    driver.create("in", columns or COLUMNS)
    return driver


@pytest.mark.parametrize("case", RUNS)
def test_a_function_that_errs_is_told_with_what_it_met(case: str) -> None:
    build, settings, kind, message = RUNS[case]
    with driver_of(job_of(build, time="at"), job_settings=settings) as driver:
        driver.feed("in", [ROW])
        with pytest.raises(HeadraceError, match=f"(?s){message}") as raised:
            driver.finish()
        assert driver.output("out") == []

    assert type(raised.value) is kind
    assert raised.value.fields["operator"] == "o"


@pytest.mark.parametrize("case", ["waits", "waits and hides", "explodes", "raises"])
def test_the_same_message_alone_is_set_aside_where_that_is_wanted(case: str) -> None:
    def build(source: Any) -> Any:
        def make(message: Any) -> Any:
            return [{"v": message.v}] if message.v else list_of(case, message)

        return source.flat_map(make, returns=OUT, name="o", on_error="dead_letter")

    def list_of(case: str, message: Any) -> Any:
        slow = {"waits": waits_for_ever, "waits and hides": hides_errors, "explodes": explodes}
        return slow[case](message) if case in slow else [{"v": 1 / message.v}]

    with driver_of(job_of(build), job_settings={**SHORT, **FEW}) as driver:
        driver.feed("in", [ROW, ROW | {"v": 0}, ROW | {"v": 2}])
        driver.run()
        assert [row["v"] for row in driver.output("out")] == [1, 2]
        assert [row["offset"] for row in driver.output("wrong.dead")] == [1]


GRAPHS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a window without length": (
        lambda s: s.partition_by("k").window(hr.tumbling("0s"), n=hr.agg.count()),
        "window size .*more than zero",
    ),
    "a key that is a list": (
        lambda s: s.partition_by("tags").aggregate(n=hr.agg.count()),
        "column 'tags' is list<.*, which cannot be a key; expected a plain value",
    ),
    "a key that is not there": (
        lambda s: s.partition_by("key").aggregate(n=hr.agg.count()),
        "no column 'key'",
    ),
    "a filter without return": (
        lambda s: s.filter(forgets),
        "function forgets never returns a value: add a return",
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_that_cannot_work_is_refused_with_the_line(case: str) -> None:
    build, message = GRAPHS[case]
    with (
        driver_of(job_of(build, time="at")) as driver,
        pytest.raises(GraphError, match=rf"(?s)\(.*test_user_errors\.py:\d+\): .*{message}"),
    ):
        driver.start()


def test_null_and_nan_are_keys_like_any_other() -> None:
    job = job_of(lambda s: s.partition_by("k").aggregate(n=hr.agg.count()))
    with driver_of(job) as driver:
        keys = [None, math.nan, 1.0, None, math.nan, -math.nan, 0.0, -0.0]
        driver.feed("in", [ROW | {"k": key} for key in keys])
        driver.run()
        rows = driver.output("out")

    most: dict[str, int] = {}
    for row in rows:
        most[str(row["k"])] = max(row["n"], most.get(str(row["k"]), 0))
    assert most["None"] == 2
    assert most["nan"] == 3


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (None, "event time of .* is null"),
        (-(1 << 57), "outside the years 1 to 9999"),
        ("noon", "rows do not fit the columns of the stream"),
    ],
)
def test_an_event_time_that_cannot_be_does_not_get_in(at: Any, message: str) -> None:
    with driver_of(job_of(lambda s: s.map("v"))) as driver:
        driver.create("timed", COLUMNS, time="at")
        with pytest.raises(InvalidInputError, match=message):
            driver.feed("timed", [ROW | {"at": at}])


def test_a_null_in_a_column_that_a_job_takes_for_time_is_told_with_its_offset() -> None:
    job = job_of(
        lambda s: s.partition_by("k").window(hr.tumbling("1h"), n=hr.agg.count()), time="at"
    )
    with driver_of(job) as driver:
        driver.feed("in", [ROW, ROW | {"at": None}])
        with pytest.raises(
            EventTimeError, match=r"'at' .* offset 1 is null; .*on_error="
        ) as raised:
            driver.run()
    assert raised.value.fields["offset"] == 1


def test_a_time_with_a_zone_is_the_same_instant() -> None:
    job = job_of(
        lambda s: s.partition_by("k").window(hr.tumbling("1h"), n=hr.agg.count()), time="at"
    )
    here = datetime(2013, 1, 1, 2, 30, tzinfo=timezone(timedelta(hours=2)))
    with driver_of(job) as driver:
        driver.feed("in", [ROW | {"at": here}])
        driver.finish()
        (row,) = driver.output("out")
    assert row["window_start"] == datetime(2013, 1, 1, tzinfo=UTC)


def test_a_time_in_the_far_future_is_refused_where_the_input_says_how_far() -> None:
    job = job_of(
        lambda s: s.partition_by("k").window(hr.tumbling("1h"), n=hr.agg.count()),
        time="at",
        ahead="1d",
    )
    with driver_of(job) as driver:
        driver.feed("in", [ROW | {"at": datetime(2999, 1, 1, tzinfo=UTC)}])
        with pytest.raises(EventTimeError, match=r"is 2999-01-01T.*, more than 1d ahead of the cl"):
            driver.run()


def test_a_module_that_a_worker_cannot_import_is_named() -> None:
    module = ModuleType("only_here")
    exec("def double(message):\n    return {'v': 2 * message.v}", module.__dict__)
    sys.modules["only_here"] = module
    try:
        with driver_of(job_of(mapped(module.double))) as driver:
            driver.feed("in", [ROW])
            driver.start()
            digest = next((driver.storage / "plans").iterdir()).name
            del sys.modules["only_here"]
            with pytest.raises(InvalidInputError, match=r"No module named 'only_here'; install"):
                plan_of(driver, digest)
            with pytest.raises(InvalidInputError, match=r"No module named 'only_here'; install"):
                driver.run()
    finally:
        sys.modules.pop("only_here", None)


def test_of_two_drivers_of_one_job_the_older_stops() -> None:
    with driver_of(job_of(lambda s: s.map("v"))) as driver:
        first = driver.start()
        driver.start()
        driver.feed("in", [ROW])
        with pytest.raises(NotOwnerError, match=r"'wrong' was taken over .*; this .* stops"):
            first.advance()


def test_another_job_of_the_same_name_does_not_touch_the_state() -> None:
    counts = job_of(lambda s: s.partition_by("k").aggregate(n=hr.agg.count()))
    sums = job_of(lambda s: s.partition_by("v").aggregate(n=hr.agg.sum("v")))
    with driver_of(counts) as driver:
        driver.feed("in", [ROW])
        driver.run()
        driver.job = sums
        with pytest.raises(InvalidInputError, match=r"has state of epoch 1|exists with other col"):
            driver.start()


def test_a_full_disk_is_told_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Files, path: Path, *rest: Any, **named: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    job = job_of(lambda s: s.partition_by("k").aggregate(n=hr.agg.count()))
    with driver_of(job) as driver:
        driver.feed("in", [ROW])
        driver.start()
        with monkeypatch.context() as patched:
            patched.setattr(Files, "write_new", refuse)
            with pytest.raises(
                UnavailableError, match=r"No space left on device; .*then run again"
            ):
                driver.run()
        driver.run()
        assert [row["n"] for row in driver.output("out")] == [1]


def test_a_key_of_another_type_does_not_get_in() -> None:
    job = job_of(lambda s: s.partition_by("k").aggregate(n=hr.agg.count()))
    with driver_of(job) as driver:
        driver.create("keyed", COLUMNS, key=["k"])
        with pytest.raises(InvalidInputError, match="rows do not fit the columns of the stream"):
            driver.feed("keyed", [ROW | {"k": "one"}])
        wrong = pa.table({**{name: [ROW[name]] for name in COLUMNS}, "k": ["one"]})
        with pytest.raises(
            InvalidInputError, match="column 'k': found string, expected double"
        ) as raised:
            driver.bus.stream("keyed").append_rows(wrong)
        assert sum(driver.bus.stream("keyed").ends()) == 0
    assert raised.value.advice == "fix what the message names, and run it again"


def test_a_time_without_a_zone_is_utc() -> None:
    job = job_of(
        lambda s: s.partition_by("k").window(hr.tumbling("1h"), n=hr.agg.count()), time="at"
    )
    with driver_of(job) as driver:
        naive = datetime(2013, 1, 1, 2, 30)  # noqa: DTZ001 - which is what is tested
        driver.bus.stream("in").append(
            0, pa.table({n: [(ROW | {"at": naive})[n]] for n in COLUMNS})
        )
        driver.finish()
        (row,) = driver.output("out")
    assert row["window_start"] == datetime(2013, 1, 1, 2, tzinfo=UTC)


ITEMS = {
    "a null or NaN key": ["test_null_and_nan_are_keys_like_any_other"],
    "a wrong-typed key": [
        "test_a_key_of_another_type_does_not_get_in",
        "a key that is a list",
        "a key that is not there",
    ],
    "a null event time": [
        "test_an_event_time_that_cannot_be_does_not_get_in",
        "test_a_null_in_a_column_that_a_job_takes_for_time_is_told_with_its_offset",
    ],
    "a zoned event time": [
        "test_a_time_with_a_zone_is_the_same_instant",
        "test_a_time_without_a_zone_is_utc",
    ],
    "a far-future event time": [
        "test_a_time_in_the_far_future_is_refused_where_the_input_says_how_far"
    ],
    "a function that returns None": ["returns None", "returns no frame", "a filter without return"],
    "a function that returns a wrong type": [
        "returns a wrong type",
        "returns another column",
        "returns one, not many",
        "emits a wrong type",
        "returns a frame of another type",
        "returns a frame of other columns",
    ],
    "a function that returns a wrong row count": ["returns fewer rows", "returns more rows"],
    "a function that mutates its input": ["changes its message", "changes its batch"],
    "a function that raises": ["raises"],
    "a function that never returns": [
        "never returns",
        "waits",
        "waits and hides",
        "waits in a batch",
        "waits in a processor",
        "waits in a timer",
    ],
    "a zero-length window": ["a window without length"],
    "an exploding flat_map": ["explodes", "explodes in a processor"],
    "a module that fails to import on executors": [
        "test_a_module_that_a_worker_cannot_import_is_named"
    ],
    "two jobs of one name": [
        "test_of_two_drivers_of_one_job_the_older_stops",
        "test_another_job_of_the_same_name_does_not_touch_the_state",
    ],
    "a full disk": ["test_a_full_disk_is_told_with_the_file"],
}


@pytest.mark.parametrize("item", ITEMS)
def test_each_item_is_held_by_what_is_named(item: str) -> None:
    there = {*RUNS, *GRAPHS, *(name for name in globals() if name.startswith("test_"))}
    assert set(ITEMS[item]) <= there


def test_no_case_is_without_an_item() -> None:
    named = {case for cases in ITEMS.values() for case in cases}
    assert {*RUNS, *GRAPHS} <= named
