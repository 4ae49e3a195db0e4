"""What each metric of a running job is at this moment: name, labels but the job's, and value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from headrace.control.board import Board
from headrace.control.figures import Histogram
from headrace.control.views import job_info, task_watermark, time_of
from headrace.coordinator.hosts.record import LOST, MISSED, MOVED, PLACEMENT, STANDBYS_MISSED
from headrace.coordinator.manifest import SINK_ROWS, JobState
from headrace.coordinator.standby.placing import (
    ACTIVE_LOST,
    FAILOVER,
    FOLLOWED,
    FOLLOWED_BYTES,
    FOLLOWED_MS,
    NO_FAILOVER,
    STANDBY,
    STANDBY_LOST,
)
from headrace.coordinator.task_files import state_bytes
from headrace.errors import HeadraceError, UnavailableError

STATUSES = ("starting", "running", "paused", "stopping", "ended")
RANKS = 5
_COUNTED = {
    "headrace_tasks_moved": MOVED,
    "headrace_tasks_homeless": LOST,
    "headrace_tasks_interrupted": MISSED,
    "headrace_standbys_interrupted": STANDBYS_MISSED,
    "headrace_active_failures": ACTIVE_LOST,
    "headrace_standby_failures": STANDBY_LOST,
    "headrace_failovers": FAILOVER,
    "headrace_failovers_impossible": NO_FAILOVER,
}


class Value(NamedTuple):
    """One value of a metric."""

    name: str
    labels: tuple[str, ...]
    value: float | Histogram


def values(board: Board) -> Iterator[Value]:
    """Yield every value that there is by now."""
    yield from _of_job(board)
    yield from _counted(board)
    for rule in board.alerts():
        labels = (rule.rule, rule.kind)
        yield Value("headrace_alert_firing", labels, float(rule.fired_ms is not None))
    try:
        state, states = board.state, board.states
    except UnavailableError:
        return
    yield from _of_state(state)
    for part in states:
        yield from _operators(part)
    yield from _stages(board, state)
    yield from _tasks(board, state)
    yield from _inputs(board, state)


def _of_job(board: Board) -> Iterator[Value]:
    info = job_info(board)
    for status in STATUSES:
        yield Value("headrace_job_status", (status,), float(status == info.status))
    found = {
        "headrace_job_start_time_seconds": info.began_ms / 1000,
        "headrace_job_generation": info.generation,
        "headrace_epoch": info.epoch,
        "headrace_epoch_time_seconds": None if info.epoch_ms is None else info.epoch_ms / 1000,
        "headrace_lag_rows": info.lag,
    }
    for name, value in found.items():
        if value is not None:
            yield Value(name, (), value)


def _counted(board: Board) -> Iterator[Value]:
    figures = board.counted()
    yield Value("headrace_driver_epochs", (), board.count)
    yield Value("headrace_driver_busy_seconds", (), board.busy_ms / 1000)
    yield Value("headrace_driver_output_rows", (), figures.output_rows)
    for part, took in figures.epochs.items():
        yield Value("headrace_epoch_seconds", (part,), took)
    for labels, took in figures.steps.items():
        yield Value("headrace_epoch_step_seconds", labels, took)
    for step, seconds in figures.slot_steps_s.items():
        yield Value("headrace_slot_step_seconds", (step,), seconds)
    for name, found in (("memory", "hits"), ("store", "misses")):
        yield Value("headrace_cache_reads", (name,), figures.cache[found])
    for part, (epochs, seconds) in figures.copies.items():
        yield Value("headrace_copy_behind_epochs", (part,), epochs)
        yield Value("headrace_copy_behind_seconds", (part,), seconds)
    for one in board.heavy_keys(RANKS):
        for rank, key in enumerate(one.keys, 1):
            yield Value("headrace_hot_key_share", (one.operator, str(rank)), key.share)


def _of_state(state: JobState) -> Iterator[Value]:
    for name, count in state.counts.items():
        if name.startswith(SINK_ROWS):
            yield Value("headrace_sink_rows", (name.removeprefix(SINK_ROWS),), count)
        elif not name.startswith((STANDBY, FOLLOWED, PLACEMENT)):
            yield Value("headrace_rows", (name,), count)
    for metric, counted in _COUNTED.items():
        yield Value(metric, (), state.counts.get(counted, 0))
    for stage, watermark in state.watermarks.items():
        yield from _time("headrace_watermark_seconds", (stage,), watermark)


def _operators(state: JobState) -> Iterator[Value]:
    for operator, held in state.operators.items():
        counts = held.counts
        for direction, found in (
            ("received", counts.get("received", 0)),
            ("sent", counts.get("sent") or counts.get("out", 0)),
        ):
            yield Value("headrace_operator_rows", (operator, direction), found)


def _time(name: str, labels: tuple[str, ...], at_ms: int | None) -> Iterator[Value]:
    found = None if at_ms is None else time_of(at_ms)
    if found is not None:
        yield Value(name, labels, found / 1000)


def _stages(board: Board, state: JobState) -> Iterator[Value]:
    for view in board.stages:
        standby = view.standby
        yield Value("headrace_stage_tasks", (view.stage,), view.tasks)
        yield Value("headrace_state_bytes", (view.stage,), view.state_bytes)
        for name, found in (
            ("headrace_standbys", standby.standbys if standby else 0),
            ("headrace_standbys_wanted", standby.wanted if standby else 0),
            ("headrace_standbys_filled", standby.filled if standby else 0),
            ("headrace_standby_behind_epochs", standby.epochs if standby else 0),
            ("headrace_standby_behind_bytes", standby.size if standby else 0),
        ):
            yield Value(name, (view.stage,), found)
        followed = state.counts.get(FOLLOWED_BYTES + view.stage, 0)
        worked_ms = state.counts.get(FOLLOWED_MS + view.stage, 0)
        yield Value("headrace_standby_read_bytes", (view.stage,), followed)
        yield Value("headrace_standby_busy_seconds", (view.stage,), worked_ms / 1000)


def _tasks(board: Board, state: JobState) -> Iterator[Value]:
    stores = board.counted().stores
    for name, task in state.tasks.items():
        stage, _, number = name.rpartition("/")
        labels = (stage, number)
        yield Value("headrace_task_state_bytes", labels, state_bytes(task))
        yield Value("headrace_task_changelog_bytes", labels, task.segment_bytes)
        yield Value("headrace_task_last_epoch", labels, task.epoch)
        yield Value("headrace_task_waiting_rows", labels, task.waiting)
        watermark = task_watermark(state, stage, task)
        yield from _time("headrace_task_watermark_seconds", labels, watermark)
        for standby in state.standbys.get(name, ()):
            behind = max(0, task.epoch - standby.epoch)
            yield Value("headrace_task_standby_behind_epochs", (*labels, standby.host), behind)
        for store, size in stores.get(name, {}).items():
            yield Value("headrace_store_bytes", (*labels, store), size)


def _inputs(board: Board, state: JobState) -> Iterator[Value]:
    for name, positions in state.inputs.items():
        for partition, held in sorted(positions.items()):
            labels = (name, str(partition))
            yield Value("headrace_input_next_offset", labels, held.next_offset)
            yield from _time("headrace_input_time_seconds", labels, held.max_time)
    with suppress(HeadraceError, OSError):  # a stream that does not answer has no lag to tell
        for (name, partition), lag in board.lags_now().items():
            yield Value("headrace_input_lag_rows", (name, str(partition)), lag)
