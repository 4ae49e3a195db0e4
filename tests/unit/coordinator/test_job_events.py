"""The event log of a job: what is in it, once, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.coordinator.host_state import ClusterEvent, EventKind, HostState, Standby
from headrace.coordinator.job_events import (
    DAY_MS,
    MAX_DAY_BYTES,
    JobEvent,
    JobEventFile,
    JobEventLog,
    merge_events,
)
from headrace.coordinator.manifest import JobState, TaskState
from headrace.coordinator.slot_reports import SlotMetrics
from headrace.testing import ManualClock

HOSTS = {"a": HostState("10.0.0.1", 1), "b": HostState("10.0.0.2", 1)}


def state_of(epoch: int = 0, **more: object) -> JobState:
    state = JobState("job", "line", 1, epoch, 0, f"digest {epoch}", 8, {}, {}, hosts=HOSTS)
    return replace(state, **more)


def texts(log: JobEventFile) -> list[str]:
    return [event.text for event in log.read()]


def test_a_lost_host_is_told_with_its_tasks_and_how_long_it_took(tmp_path: Path) -> None:
    log, clock = JobEventFile(tmp_path), ManualClock()
    events = JobEventLog(log, clock)
    tasks = {"s/0": TaskState(host="a"), "s/1": TaskState(host="a"), "s/2": TaskState(host="b")}
    before = state_of(1, tasks=tasks, standbys={"s/0": (Standby("b", 1),)})
    events.observe(before)
    lost = ClusterEvent(clock.now_ms(), EventKind.LOST, "a", "2 tasks go elsewhere")
    clock.advance(2100)
    after = dict.fromkeys(tasks, TaskState(host="b"))
    events.observe(replace(before, epoch=2, tasks=after, host_events=(lost,)))
    assert texts(log) == [
        "host 10.0.0.1 was lost: 2 tasks go elsewhere",
        "2 tasks moved, 1 to its standby; first commit after 2.1 s",
    ]


def test_what_is_told_already_is_not_told_by_the_next_driver(tmp_path: Path) -> None:
    log, clock = JobEventFile(tmp_path), ManualClock()
    begun = ClusterEvent(clock.now_ms(), EventKind.DRIVER, "", "generation 1")
    JobEventLog(log, clock).observe(state_of(1, host_events=(begun,)))
    clock.advance(10)
    joins = ClusterEvent(clock.now_ms(), EventKind.JOINED, "b")
    JobEventLog(log, clock).observe(state_of(2, host_events=(begun, joins)))
    assert texts(log) == ["a driver began: generation 1", "host 10.0.0.2 is new"]


def test_what_is_noted_and_committed_at_once_is_told_once(tmp_path: Path) -> None:
    log, clock = JobEventFile(tmp_path), ManualClock()
    events = JobEventLog(log, clock)
    asked = ClusterEvent(clock.now_ms(), EventKind.ASKED, "", "a slot is gone")
    lost = ClusterEvent(clock.now_ms(), EventKind.LOST, "a", "2 tasks go elsewhere")
    events.observe(state_of(1))
    events.observe(state_of(1), (asked,))  # while it waits for the host
    after = state_of(2, host_events=(asked, lost))
    events.observe(after, (asked, lost))
    events.observe(after)
    assert texts(log) == [
        "slots were looked up again: a slot is gone",
        "host 10.0.0.1 was lost: 2 tasks go elsewhere",
    ]


def test_rescales_and_the_end_are_told(tmp_path: Path) -> None:
    log = JobEventFile(tmp_path)
    events = JobEventLog(log, ManualClock())
    events.observe(state_of(1, task_counts={"s": 4}))
    events.observe(state_of(2, task_counts={"s": 6}))
    events.observe(state_of(3, task_counts={"s": 6}, ended=True))
    assert texts(log) == ["stage s: 4 to 6 tasks", "the job ended, in epoch 3"]


def test_a_worker_that_was_not_idle_is_told_when_another_is_in_its_place(tmp_path: Path) -> None:
    log, clock = JobEventFile(tmp_path), ManualClock()
    events, state = JobEventLog(log, clock), state_of()

    def ran(host: str, process: int) -> None:
        events.ran([SlotMetrics(0, 3, host, process, 1, {})], state)

    ran("a", 11)
    clock.advance(60_000)
    ran("a", 12)  # Spark ended it, for it was idle
    ran("a", 13)
    ran("b", 14)  # the slot is another
    assert texts(log) == ["process 12 of slot 3 on host 10.0.0.1 is gone: process 13 continues"]


def test_events_are_for_their_owner_and_go_after_a_week(tmp_path: Path) -> None:
    log = JobEventFile(tmp_path)
    for day in range(9):
        log.append(JobEvent(day * DAY_MS, "paused", f"day {day}"))
    (path, *_) = sorted((tmp_path / "history").iterdir())
    assert [f"day {day}" for day in range(2, 9)] == texts(log)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [event.text for event in log.last(1)] == ["day 8"]


@pytest.mark.parametrize("torn", [b'[0,"pau\n', b'[0,"pau'])
def test_a_torn_line_is_passed_over_and_a_day_is_bounded(tmp_path: Path, torn: bytes) -> None:
    log = JobEventFile(tmp_path)
    log.append(JobEvent(0, "paused", "one"))
    (path,) = (tmp_path / "history").iterdir()
    with path.open("ab") as file:
        file.write(torn)
    log.append(JobEvent(1, "resumed", "two"))
    assert texts(log) == ["one", "two"]
    with path.open("ab") as file:
        file.truncate(MAX_DAY_BYTES)
    log.append(JobEvent(2, "paused", "three"))
    assert "three" not in texts(log)


def test_parts_have_one_story_with_each_driver_once() -> None:
    driver, lost, moved = (
        JobEvent(n, kind, kind) for n, kind in enumerate(("driver", "lost", "moved"))
    )
    assert [driver, lost, moved] == merge_events([[driver, moved], [driver, lost]])


def test_a_story_that_cannot_be_read_stops_no_driver(tmp_path: Path) -> None:
    log, clock = JobEventFile(tmp_path), ManualClock()
    (tmp_path / "history" / f"events-{clock.now_ms() // DAY_MS:06d}.jsonl").mkdir(parents=True)
    events = JobEventLog(log, clock)
    events.observe(state_of(1))
    events.record("paused", "paused")
    assert list(log.read()) == []
