"""The models of the API, made of a driver's board."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import asdict

from headrace.config.settings import setting_keys
from headrace.control.board import Board
from headrace.control.models import (
    AlertInfo,
    EpochInfo,
    EventInfo,
    HotKeyInfo,
    HotKeysInfo,
    InputInfo,
    JobInfo,
    SettingInfo,
    StageInfo,
    StandbyInfo,
    TaskInfo,
)
from headrace.coordinator.backup.places import places
from headrace.coordinator.manifest import JobState
from headrace.coordinator.parts import part_folders
from headrace.coordinator.story import story_of
from headrace.coordinator.summary import EpochSummary
from headrace.coordinator.task_files import TaskState, state_bytes
from headrace.errors import UnavailableError
from headrace.task.orders import END_WATERMARK, NO_WATERMARK

HIDDEN = "***"
_SECRET = re.compile(
    r"pass(w|phrase|code)|(?-i:_PASS\b)|pwd|secret|token|credential|signature|\bsas\b|\bsig=|webhook"
    r"|authorization|bearer\b|://[^/@\s]*@"
    r"|(access|account|api|encryption|private|shared|storage)[._-]?key",
    re.IGNORECASE,
)


def job_info(board: Board) -> JobInfo:
    """Return what is true of the job as a whole."""
    try:
        state = board.state
    except UnavailableError:
        state = None
    return JobInfo(
        job=board.job,
        status=board.status,
        process=os.getpid(),
        host=os.uname().nodename,
        began_ms=board.began_ms,
        epoch=state and state.epoch,
        epoch_ms=state and state.time_ms,
        generation=state and state.generation,
        lineage=state and state.lineage,
        durability=board.settings.state.durability,
        lag=board.lag,
        eta_s=board.eta_s,
        counts={} if state is None else dict(state.counts),
        watermarks={}
        if state is None
        else {n: t for n, t in state.watermarks.items() if time_of(t) is not None},
    )


def time_of(at_ms: int) -> int | None:
    """Return an event time, ms; ``None`` where there is none yet, or it has ended."""
    return at_ms if NO_WATERMARK < at_ms < END_WATERMARK else None


def task_watermark(state: JobState, stage: str, task: TaskState) -> int | None:
    """Return the event time that a task is up to: its stage's, unless calls hold it back."""
    watermark = state.watermarks.get(stage, NO_WATERMARK)
    return time_of(watermark if task.held is None else min(watermark, task.held))


def stage_infos(board: Board) -> list[StageInfo]:
    """Return the keyed stages."""
    found = []
    for view in board.stages:
        standby = view.standby
        found.append(
            StageInfo(
                stage=view.stage,
                tasks=view.tasks,
                state_bytes=view.state_bytes,
                hosts=list(view.hosts),
                standbys=standby.standbys if standby else 0,
                standbys_wanted=standby.wanted if standby else 0,
                standbys_filled=standby.filled if standby else 0,
                standby_epochs_behind=standby.epochs if standby else 0,
                standby_bytes_behind=standby.size if standby else 0,
            )
        )
    return found


def task_infos(board: Board) -> list[TaskInfo]:
    """Return the tasks of keyed stages, then those that read inputs, as of the last epoch."""
    return [*_keyed_tasks(board), *map(_source_task, input_infos(board))]


def _source_task(read: InputInfo) -> TaskInfo:
    return TaskInfo(
        task=f"{read.input}/{read.partition}",
        host="",
        next_offset=read.next_offset,
        lag=read.lag,
        epoch=-1,
        state_bytes=0,
        changelog_bytes=0,
        stores={},
        watermark_ms=read.max_time_ms,
        waiting=0,
        event_deadline_ms=None,
        wall_deadline_ms=None,
        standbys=[],
    )


def _keyed_tasks(board: Board) -> list[TaskInfo]:
    state, stores = board.state, board.counted().stores
    return [
        TaskInfo(
            task=name,
            host=task.host,
            epoch=task.epoch,
            state_bytes=state_bytes(task),
            changelog_bytes=task.segment_bytes,
            stores=stores.get(name, {}),
            watermark_ms=task_watermark(state, name.rpartition("/")[0], task),
            waiting=task.waiting,
            event_deadline_ms=task.event_deadline,
            wall_deadline_ms=task.wall_deadline,
            standbys=[
                StandbyInfo(host=s.host, epoch=s.epoch) for s in state.standbys.get(name, ())
            ],
        )
        for name, task in state.tasks.items()
    ]


def input_infos(board: Board) -> list[InputInfo]:
    """Return how far each partition of the inputs has been read."""
    lags: dict[tuple[str, int], int] = {}
    with suppress(UnavailableError, OSError):
        lags = board.lags_now()
    return [
        InputInfo(
            input=name,
            partition=partition,
            next_offset=held.next_offset,
            lag=lags.get((name, partition)),
            max_time_ms=time_of(held.max_time),
        )
        for name, positions in board.state.inputs.items()
        for partition, held in sorted(positions.items())
    ]


def epoch_info(summary: EpochSummary) -> EpochInfo:
    """Return one epoch."""
    return EpochInfo(
        part=summary.job,
        epoch=summary.epoch,
        rows=summary.rows,
        output_rows=summary.output_rows,
        took_ms=summary.took_ms,
        steps_ms=summary.timings_ms,
        slots_ms=summary.slot_timings_ms,
        lag=summary.lag,
        state_bytes=summary.state_bytes,
        changelog_bytes=summary.changelog_bytes,
    )


def hot_keys_infos(board: Board, most: int) -> list[HotKeysInfo]:
    """Return the heaviest keys of each ``partition_by``."""
    return [
        HotKeysInfo(
            operator=one.operator,
            columns=list(one.columns),
            rows=one.rows,
            too_low=one.too_low,
            tasks=one.tasks,
            told_ms=one.at_ms,
            keys=[
                HotKeyInfo(key=list(key.key), rows=key.rows, share=key.share) for key in one.keys
            ],
        )
        for one in board.heavy_keys(most)
    ]


def alert_infos(board: Board) -> list[AlertInfo]:
    """Return the rules of alerts, and how they stand."""
    return [AlertInfo(**asdict(rule)) for rule in board.alerts()]


def event_infos(board: Board, last: int, since_ms: int = 0) -> list[EventInfo]:
    """Return the last events of the job from a moment on, oldest first."""
    settings, job = board.settings, board.job
    folders = [places(settings, job).storage, *part_folders(settings, job)]
    return [
        EventInfo(
            at_ms=one.time_ms,
            kind=one.kind,
            text=one.text,
            epoch=one.epoch if one.epoch >= 0 else None,
        )
        for one in story_of(folders, since_ms)[-last:]
    ]


def setting_infos(board: Board) -> list[SettingInfo]:
    """Return every setting with its value; what may hold a secret is hidden."""
    settings = board.settings
    keys = [*setting_keys(), *(f"spark.conf.{name}" for name in settings.spark.conf)]
    told = [settings.explain(key) for key in keys if key != "spark.conf"]
    return [
        SettingInfo(key=one.key, value=_shown(one.key, one.value), source=one.source)
        for one in told
    ]


def _shown(key: str, value: str) -> str:
    if value == "none":
        return value
    return HIDDEN if _SECRET.search(key) or _SECRET.search(value) else value
