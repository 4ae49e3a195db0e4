"""A slot answers: with a report, with where it is, or with what failed, and never in between."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import CorruptDataError, InvalidInputError, UnavailableError
from headrace.faults import injected
from headrace.runtime.orders import (
    ExchangeFile,
    FileRef,
    InputRange,
    Merged,
    MergedTask,
    MergeOrder,
    OutputPart,
    Reached,
    SegmentRef,
    SlotFailure,
    SlotOrder,
    SlotReport,
    StateTarget,
    TaskOrder,
    TaskReport,
    decode_order_of,
    decode_report,
    encode,
    encode_orders,
)
from headrace.runtime.slot import describe_failure, run_slot
from headrace.testing import TestDriver


@hr.job("totals")
def totals(g: hr.Graph) -> None:
    source = g.input("in").partition_by("k")
    source.aggregate(name="t", store="memory", n=hr.agg.count()).send_to(g.output("out"))


def driver_of(**options: Any) -> TestDriver:
    driver = TestDriver(totals, **{"tasks": 2, **options})
    driver.create("in", {"k": pa.int64()})
    return driver


def feed(driver: TestDriver, count: int = 8) -> None:
    driver.feed("in", [{"k": n} for n in range(count)])


def highest(driver: TestDriver) -> dict[int, int]:
    return {row["k"]: row["n"] for row in driver.output("out")}


REF = SegmentRef("segment/y", 7, 8, "a", 77, 5, 2, 6)
MERGE = MergeOrder((REF, REF), 8, "a", True, 66, 77, "segment/z", at_once=True)
MERGED = Merged(REF, ("one", "two"), snapshot=True)


def test_orders_and_reports_travel_as_json() -> None:
    order = SlotOrder(
        "j", "line", 3, 9, 1, 0, 77, "digest", "host", ended=True, watermarks={"s": -(1 << 62)},
        watermarks_before={"s": 1 << 62}, exchange={"by": ["a", "b"]},
        tasks=[TaskOrder("s", 1, (4, 8), [InputRange("i", 0, 5, 9, 7)], StateTarget(8, "a", 1),
                         MERGE)],
        read_ms=5,
    )  # fmt: skip
    assert decode_order_of(encode_orders([order]), order.slot) == order
    ref = FileRef("segment/x", 5, 9, "a")
    task = TaskReport(
        "s", 1, [Reached("i", 0, 9, 8)], changed=True, counts={"late": 2},
        outputs=[OutputPart("o", 0, "output/x", 0, 64, 1)], event_deadline=3,
    )  # fmt: skip
    report = SlotReport(
        0, "a", "h", 1, [task], [ExchangeFile("by", 0, "x", 5, [1, 2])], ref, [ref],
        merges=[MergedTask("s", 2, MERGED)],
        error=SlotFailure("OSError", "no", {"epoch": 3}, "trace", "op"),
    )  # fmt: skip
    assert decode_report(encode(report)) == report


def test_a_slot_on_another_host_says_so_and_does_nothing() -> None:
    with driver_of(slots=1) as driver:
        feed(driver)
        driver.run()
        order = next(order for order in driver.runner.history if order.level == 1)
        strange = msgspec.structs.replace(order, host="elsewhere", epoch=order.epoch + 1)
        report = run_slot(strange, driver.runner.host(0))
        assert report.misplaced
        assert (report.tasks, report.segment, report.error) == ([], None, None)


def test_an_epoch_is_planned_again_when_a_host_has_changed() -> None:
    """Its disk is another one: the slots answer misplaced, then the stores are rebuilt."""
    with driver_of(hosts=2) as driver:
        feed(driver)
        driver.run()
        driver.runner.kill_all()
        shutil.rmtree(driver.state_dir(0))
        feed(driver)
        driver.run()
        assert highest(driver) == dict.fromkeys(range(8), 2)
        assert driver.coordinator.state.counts["in"] == 16


def test_a_full_disk_is_unavailable_and_nothing_is_visible() -> None:
    def refuse(point: str) -> None:
        if point == "slot.exchange_written":
            raise OSError(28, "No space left on device", "/data/x")

    with driver_of() as driver:
        feed(driver)
        with injected(refuse), pytest.raises(UnavailableError, match="the disk refused /data/x"):
            driver.advance()
        assert driver.coordinator.state.epoch == 0
        driver.run()
        assert highest(driver) == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize(
    ("error", "kind", "operator"),
    [
        (InvalidInputError("bad", operator="o", epoch=3), "InvalidInputError", "o"),
        (ValueError("bad"), "ValueError", ""),
        (OSError(5, "bad"), "UnavailableError", ""),
    ],
)
def test_a_failure_travels_as_data(error: Exception, kind: str, operator: str) -> None:
    found = describe_failure(error)
    assert (found.kind, found.operator) == (kind, operator)
    assert "bad" in found.message
    assert type(error).__name__ in found.trace
    assert decode_report(encode(SlotReport(0, "a", "h", 1, error=found))).error == found


@pytest.mark.parametrize("doubled", ["first", "last"])
def test_of_two_attempts_either_may_win(doubled: Any) -> None:
    """The loser's changes, which its process still holds, are dropped by the next catch-up."""
    with driver_of() as driver:
        driver.runner.doubled = doubled
        for _ in range(4):
            feed(driver)
            driver.run()
        assert highest(driver) == dict.fromkeys(range(8), 4)
        assert len(driver.output("out")) == 32


def test_a_damaged_segment_is_told_when_a_store_needs_it() -> None:
    with driver_of() as driver:
        feed(driver)
        driver.run()
        (path, *_) = (driver.storage / "segment").iterdir()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        feed(driver)
        driver.run()
        driver.crash(lose_hosts=[0])
        feed(driver)
        with pytest.raises(CorruptDataError, match=path.name):
            driver.run()


def test_tasks_without_anything_to_do_are_left_alone() -> None:
    with driver_of(tasks=8) as driver:
        driver.feed("in", [{"k": 1}])
        driver.run()  # the first epoch gives every task its host
        first = [order for order in driver.runner.history if order.level == 1]
        assert sum(len(order.tasks) for order in first) == 8
        driver.feed("in", [{"k": 1}])
        driver.run()
        keyed = [order for order in driver.runner.history if order.level == 1]
        assert [len(order.tasks) for order in keyed[len(first) :]] == [1]
        driver.advance(force=True)
        forced = [o for o in driver.runner.history if o.level == 1][len(keyed) :]
        assert sum(len(order.tasks) for order in forced) == 8
