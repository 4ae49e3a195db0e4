"""Event times that no column has: by expression, by function, by the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.support.plans import StreamInfo, explain, plan

import headrace as hr
from headrace.errors import GraphError, InvalidInputError
from headrace.testing import TestDriver

COLUMNS = {"id": pa.int64(), "day": pa.string(), "second": pa.int64()}
SCHEMA = pa.schema(list(COLUMNS.items()))


def counting(time: Any, **more: Any) -> hr.Job:
    """Return a job that counts by ten seconds of event time."""

    @hr.job("counting")
    def counting(g: hr.Graph) -> None:
        events = g.input("events", time=time, **more).partition_by("id")
        events.window(hr.tumbling("10s"), n=hr.agg.count()).send_to(g.output("windows"))

    return counting


def windows(driver: TestDriver) -> list[tuple[float, int]]:
    return [(row["window_start"].timestamp(), row["n"]) for row in driver.output("windows")]


def rows(*seconds: int | None) -> list[dict[str, Any]]:
    return [{"id": 1, "day": "1970-01-01", "second": second} for second in seconds]


def by_datetime(message: Any) -> datetime:
    day = datetime.fromisoformat(message.day)
    return day.replace(second=message.second % 60, minute=message.second // 60)


def by_milliseconds(message: Any) -> int:
    return int(message.second) * 1000


@dataclass
class Second:
    second: int


def by_class(event: Second) -> int:
    return event.second * 1000


def by_dict(event: dict[str, Any]) -> int:
    return int(event["second"]) * 1000


@pytest.mark.parametrize(
    "time",
    [
        hr.col("second") * 1000,
        (hr.col("second") * 1_000_000).cast(pl.Datetime("us", "UTC")),
        by_milliseconds,
        hr.event_time(by_milliseconds, uses=["second"]),
        by_datetime,
        by_class,
        by_dict,
    ],
    ids=["expression", "moments", "function", "uses", "datetime", "class", "dict"],
)
def test_event_times_are_made_of_records(time: Any) -> None:
    with TestDriver(counting(time, out_of_orderness="2s"), tasks=1) as driver:
        driver.create("events", COLUMNS)
        driver.feed("events", rows(1, 5, 11, 9, 12))
        driver.run()
        assert windows(driver) == [(0.0, 3)]
        driver.feed("events", rows(3, 25))
        driver.finish()
        assert windows(driver) == [(0.0, 3), (10.0, 2), (20.0, 1)]
        assert driver.coordinator.state.counts["late"] == 1


def failing(message: Any) -> int:
    return 1000 * int(10 / message.second)


@pytest.mark.parametrize(
    ("time", "bad", "said"),
    [
        (
            by_milliseconds,
            -(1 << 40),
            "event time by_milliseconds of stream 'events' partition 0 offset 1",
        ),
        (failing, 0, "raised ZeroDivisionError: division by zero"),
        (lambda _: 1.5, 0, "returned 1.5 as event time; expected milliseconds"),
        (lambda message: message.second or None, 0, "is null; fix such"),
        (
            hr.col("second").cast(str).str.to_integer() - 62_135_596_800_005,
            0,
            "is -62135596800005 ms, outside the years 1 to 9999",
        ),
        ((hr.col("second").cast(str) + "-").str.to_integer(), 0, "raised"),
    ],
)
def test_an_event_time_that_cannot_be_names_its_record(
    time: Callable[[Any], Any], bad: int, said: str
) -> None:
    with TestDriver(counting(time), tasks=1) as driver:
        driver.create("events", COLUMNS)
        driver.feed("events", rows(7, bad))
        with pytest.raises(InvalidInputError, match=said):
            driver.run()


def test_records_that_a_function_refuses_are_set_aside() -> None:
    with TestDriver(
        counting(failing, out_of_orderness="9s", on_error="dead_letter"), tasks=1
    ) as driver:
        driver.create("events", COLUMNS)
        driver.feed("events", rows(1, 0, 2, 0))
        driver.finish()
        assert windows(driver) == [(0.0, 1), (10.0, 1)]
        letters = driver.output("counting.dead")
        assert [letter["offset"] for letter in letters] == [1, 3]
        assert {"HR102"} == {letter["code"] for letter in letters}


def test_records_that_the_class_of_a_function_refuses_are_set_aside() -> None:
    with TestDriver(counting(by_class, out_of_orderness="9s", on_error="drop"), tasks=1) as driver:
        driver.create("events", COLUMNS)
        driver.feed("events", rows(1, None, 12, None, 5))
        driver.finish()
        assert windows(driver) == [(0.0, 2), (10.0, 1)]
        assert driver.coordinator.state.counts["dropped"] == 2


def test_records_that_an_expression_refuses_are_set_aside() -> None:
    time = (hr.col("day").str.slice(0, 4).str.to_integer() - 1970) * 10_000
    with TestDriver(counting(time, on_error="drop"), tasks=1) as driver:
        driver.create("events", COLUMNS)
        days = ["1970", "never", "1972", "", "1971"]
        driver.feed("events", [{"id": 1, "day": day, "second": 0} for day in days])
        driver.finish()
        assert windows(driver) == [(0.0, 1), (20.0, 1)]
        counts = driver.coordinator.state.counts
        assert (counts["dropped"], counts["late"]) == (2, 1)


def test_processing_time_closes_windows_by_the_clock() -> None:
    """On a quiet stream, too; and no record is ever late."""
    with TestDriver(counting(hr.processing_time()), tasks=1) as driver:
        driver.create("events", COLUMNS)
        driver.clock.advance(-driver.clock.now_ms() % 10_000 + 3_000)
        began = driver.clock.now_ms() // 10_000 * 10
        driver.feed("events", rows(500, 1))
        driver.run()
        driver.clock.advance(6_999)
        driver.feed("events", rows(3))
        driver.run()
        assert windows(driver) == []
        driver.clock.advance(1)
        assert driver.run() == 1
        assert windows(driver) == [(began, 3)]
        assert driver.coordinator.wall_deadline() is None
        driver.feed("events", rows(1))
        driver.finish()
        assert windows(driver) == [(began, 3), (began + 10, 1)]
        assert driver.coordinator.state.counts.get("late", 0) == 0


@pytest.mark.parametrize(
    "point", ["slot.ran", "slot.output_written", "epoch.before_commit", "commit.published"]
)
def test_a_record_has_the_clock_of_the_epoch_that_was_committed(point: str) -> None:
    with TestDriver(counting(hr.processing_time()), tasks=1) as driver:
        driver.create("events", COLUMNS)
        for seconds in range(12):
            driver.feed("events", rows(seconds))
            driver.clock.advance(3_000)
            assert driver.advance_with_crash(point)
            driver.run()
        driver.finish()
        found = windows(driver)
        assert sum(n for _, n in found) == 12
        assert len({start for start, _ in found}) == len(found)


def test_explain_tells_where_event_times_come_from() -> None:
    def told(**more: Any) -> list[str]:
        made = plan(counting(**more).build(), {"events": StreamInfo(SCHEMA, 1)})
        return [line.strip() for line in explain(made).splitlines()]

    assert "event time by by_milliseconds, up to 5s late" in told(
        time=by_milliseconds, out_of_orderness="5s"
    )
    assert "processing time: the wall clock of the epoch that reads a record" in told(
        time=hr.processing_time()
    )
    followed = told(time="second", out_of_orderness=hr.confidence(0.99, first="30s"), idle="1m")
    line = "event time second, late by the delays of 0.99 of the records, at first 30s"
    assert line in followed
    assert "idle after 1m: holds no watermark back then" in followed


@dataclass
class Other:
    day: int


def by_other(event: Other) -> int:
    return event.day


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"time": 5}, "time= takes a column, an expression, a function of a message"),
        ({"time": hr.col("day")}, "gives string; expected a timestamp or integer ms"),
        ({"time": hr.col("seconds") * 2}, "no column 'seconds'"),
        ({"time": hr.col("second").sum()}, "looks beyond its row"),
        ({"time": hr.event_time(failing, uses=["minute"])}, "uses: no column 'minute'"),
        ({"time": by_other}, "takes Other, whose field 'day' is int, but its column is string"),
        ({"time": lambda: 1}, "takes no arguments|argument"),
        ({"time": hr.processing_time(), "idle": "1s"}, "are for event time; leave them out"),
        (
            {"time": "second", "out_of_orderness": hr.confidence(99)},
            "expected a part of the records",
        ),
        ({"time": "second", "out_of_orderness": hr.confidence(0.9, first="x")}, "first is 'x'"),
        ({"time": "second", "idle": "0s"}, "idle is '0s'"),
    ],
)
def test_mistakes_are_told_with_what_is_expected(more: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        plan(counting(**more).build(), {"events": StreamInfo(SCHEMA, 1)})
