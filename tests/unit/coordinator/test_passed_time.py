"""What watermarks have passed stays passed, whatever becomes of the inputs of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import TestDriver


def minutes(**settings: Any) -> Any:
    @hr.job("minutes")
    def job(g: hr.Graph) -> None:
        rows = g.input("in", time="at", **settings).partition_by("k")
        rows.window(hr.tumbling("10ms"), name="w", n=hr.agg.count()).send_to(g.output("out"))

    return job


def restarted(**settings: Any) -> Callable[[TestDriver], object]:
    def change(driver: TestDriver) -> None:
        driver.crash()
        driver.job = minutes(**settings)

    return change


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({}, restarted(out_of_orderness="30ms")),
        ({}, restarted(out_of_orderness=hr.confidence(0.9, first="30ms"))),
        ({"out_of_orderness": hr.confidence(0.9, first="1ms")}, restarted(out_of_orderness="30ms")),
        ({"idle": "1m"}, restarted()),
        ({}, lambda driver: driver.bus.stream("in").configure(partitions=3)),
    ],
    ids=["more lateness", "confidence", "no confidence", "no idle", "another partition"],
)
@pytest.mark.parametrize("max_rows", [1, 1000])
def test_no_window_comes_out_twice(
    before: dict[str, Any], change: Callable[[TestDriver], object], max_rows: int
) -> None:
    """Records of a window that is out are late, by whatever settings it went out."""
    with TestDriver(minutes(**before), tasks=2, max_rows=max_rows) as driver:
        driver.create("in", {"k": pa.int64(), "at": pa.int64()}, partitions=2, time="at")
        for partition, times in ((0, [1, 32, 55]), (1, [1, 31] if "idle" not in before else [1])):
            driver.feed("in", [{"k": 1, "at": at} for at in times], partition=partition)
        driver.run()
        driver.clock.advance(60_000)
        driver.run()
        assert [row["n"] for row in driver.output("out")][:1] == [2]
        change(driver)
        last = len(driver.bus.stream("in").begins()) - 1
        driver.feed("in", [{"k": 1, "at": at} for at in (3, 57)], partition=last)
        driver.run()
        driver.finish()
        ends = [row["window_end"] for row in driver.output("out")]
        assert len(ends) == len(set(ends))
        assert driver.coordinator.state.counts["late"] == 1
