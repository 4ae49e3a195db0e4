"""What a driver hands to its slots and hears from them: plans by digest, failures, hosts, news."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.bus import StreamSpec, open_bus
from headrace.clock import SystemClock
from headrace.coordinator.commands import CommandQueue
from headrace.coordinator.driver_loop import wait_for_news
from headrace.coordinator.plan_files import load_plan, save_plan
from headrace.coordinator.slot_reports import slot_error
from headrace.coordinator.worker_host import host_identity
from headrace.errors import CorruptDataError, InternalError, InvalidInputError, UnavailableError
from headrace.files import Files
from headrace.graph.operator_base import StreamInfo
from headrace.plan.planner import plan
from headrace.runtime.orders import SlotFailure, SlotReport
from headrace.testing import ManualClock

COLUMNS = {"k": pa.int64(), "v": pa.int64()}


@hr.job("sums")
def sums(g: hr.Graph) -> None:
    g.input("in").partition_by("k").aggregate(s=hr.agg.sum("v")).send_to(g.output("out"))


def test_waiting_ends_with_news_or_when_a_timer_is_due() -> None:
    clock = ManualClock()
    commands = CommandQueue(clock)
    with open_bus("memory:", clock=SystemClock()) as bus:
        stream = bus.create(StreamSpec("in", 1, pa.schema(list(COLUMNS.items()))))
        batch = pa.table({"k": [1], "v": [1]})
        thread = threading.Thread(target=stream.append, args=(0, batch))
        thread.start()
        wait_for_news(bus, {"in": [0]}, None, clock, 100, commands)
        thread.join()
        wait_for_news(bus, {"in": [1]}, clock.now_ms() - 5, clock, 100, commands)
        before = clock.now_ms()
        wait_for_news(bus, {}, None, clock, 100, commands)
        assert clock.now_ms() == before + 100


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("CorruptDataError", CorruptDataError),
        ("UserFunctionError", InvalidInputError),
        ("OSError", UnavailableError),
        ("BlockingIOError", UnavailableError),
        ("ValueError", InternalError),
        ("no such kind", InternalError),
    ],
)
def test_a_failed_slot_is_an_error_of_its_kind(kind: str, expected: type[Exception]) -> None:
    failure = SlotFailure(kind, "it broke", {"operator": "o", "epoch": 3}, "the trace")
    error = slot_error(SlotReport(3, "a", "h", 1, error=failure))
    assert isinstance(error, expected)
    assert "it broke" in str(error)
    assert "the trace" in error.__notes__[0]


def test_a_slot_that_did_not_fail_has_no_error() -> None:
    with pytest.raises(InternalError, match="slot 3 did not fail"):
        raise slot_error(SlotReport(3, "a", "h", 1))


def test_a_plan_travels_by_its_digest(tmp_path: Path) -> None:
    files = Files(sync=False)
    made = plan(sums.build(), {"in": _info()}, key_groups=8)
    digest = save_plan(made, tmp_path, files, "u")
    assert load_plan(tmp_path, digest, files).fingerprint == made.fingerprint
    path = tmp_path / "plans" / digest
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptDataError, match="does not match its digest"):
        load_plan(tmp_path, digest, files)


def test_a_graph_that_cannot_travel_is_told(tmp_path: Path) -> None:
    lock = threading.Lock()

    @hr.job("locked")
    def locked(g: hr.Graph) -> None:
        g.input("in").filter(lambda m: lock.locked()).send_to(g.output("out"))

    made = plan(locked.build(), {"in": _info()}, key_groups=8)
    with pytest.raises(InvalidInputError, match=r"cannot be sent to the workers: .*lock.*open\(\)"):
        save_plan(made, tmp_path, Files(sync=False), "u")


def _info() -> Any:
    return StreamInfo(pa.schema(list(COLUMNS.items())), 2, None)


def test_a_host_is_known_by_its_disk(tmp_path: Path) -> None:
    files, clock = Files(sync=False), ManualClock()
    first = host_identity(tmp_path / "a", clock, files)
    assert first == host_identity(tmp_path / "a", clock, files)
    assert first != host_identity(tmp_path / "b", clock, files)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
