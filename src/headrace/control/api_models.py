"""What the HTTP API takes and answers, made of a driver's status. Times are in ms, UTC."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict

from pydantic import BaseModel, ConfigDict, Field

from headrace.config.settings import setting_keys
from headrace.control.job_status import JobStatus
from headrace.coordinator.epoch_records import EpochSummary
from headrace.coordinator.job_events import job_events
from headrace.coordinator.job_parts import part_folders
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.manifest import JobState, TaskState, state_bytes
from headrace.errors import UnavailableError
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK


class Model(BaseModel):
    """What all have: closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(Model):
    """Why a request was not done: the error's code, what was found, and the next move."""

    code: str
    message: str
    next: str


class JobInfo(Model):
    """A running job."""

    job: str
    status: str = Field(description="starting, running, paused, stopping or ended")
    process: int
    host: str
    began_ms: int
    epoch: int | None
    epoch_ms: int | None = Field(description="wall clock of the last epoch")
    generation: int | None
    lineage: str | None
    durability: str
    lag: int | None = Field(description="rows that the last epoch left unread")
    eta_s: float | None = Field(
        description="until it has read them, at the pace of its last epochs; null: there are none, "
        "they do not become fewer, or it is paused"
    )
    counts: dict[str, int] = Field(description="of all its epochs, by name")
    watermarks: dict[str, int] = Field(description="of each stage that has one")


class StageInfo(Model):
    """One keyed stage."""

    stage: str
    tasks: int
    state_bytes: int
    hosts: list[str]
    standbys: int
    standbys_wanted: int
    standbys_filled: int
    standby_epochs_behind: int
    standby_bytes_behind: int


class StandbyInfo(Model):
    """A copy of a task's stores on another host, and the epoch that it holds; -1: none yet."""

    host: str
    epoch: int


class TaskInfo(Model):
    """One task: of a keyed stage, or one that reads a partition of an input."""

    task: str = Field(description="STAGE/NUMBER, or INPUT/PARTITION")
    host: str = Field(description="empty: it goes to another with each epoch")
    next_offset: int | None = Field(
        default=None, description="of the partition that it reads; null: it reads none"
    )
    lag: int | None = Field(
        default=None, description="rows of the partition before it; null: none, or not known"
    )
    epoch: int = Field(description="the last one that changed it; -1: none did")
    state_bytes: int
    changelog_bytes: int
    stores: dict[str, int] = Field(
        description="bytes of each store; empty until the task has run under this driver"
    )
    watermark_ms: int | None
    waiting: int = Field(description="messages that wait for asynchronous calls")
    event_deadline_ms: int | None
    wall_deadline_ms: int | None
    standbys: list[StandbyInfo]


class InputInfo(Model):
    """One partition of an input."""

    input: str
    partition: int
    next_offset: int
    lag: int | None = Field(description="rows before it now; null where its stream is silent")
    max_time_ms: int | None


class HotKeyInfo(Model):
    """One of the heaviest keys."""

    key: list[str | int | float | bool | None] = Field(description="its values; times as text")
    rows: float = Field(description="about how many it had lately")
    share: float = Field(description="of the rows of all keys, 0 to 1")


class HotKeysInfo(Model):
    """The heaviest keys that go through one `partition_by`, of a sample of its rows."""

    operator: str
    columns: list[str]
    rows: float = Field(description="of all keys lately; what is a minute old counts half")
    too_low: float = Field(description="part of all rows by which a share may be too low")
    tasks: int
    told_ms: int
    keys: list[HotKeyInfo]


class AlertInfo(Model):
    """One rule of the settings, and how it stands."""

    rule: str
    kind: str
    text: str
    value: int | None = Field(description="what it watches, at the last look")
    since_ms: int | None = Field(description="since when it is true")
    fired_ms: int | None = Field(description="when it fired; null: it does not")


class EpochInfo(Model):
    """One committed epoch; what each step of it took, ms."""

    part: str
    epoch: int
    rows: int
    output_rows: int
    took_ms: float
    steps_ms: dict[str, float]
    slots_ms: dict[str, float]
    lag: int
    state_bytes: int
    changelog_bytes: int


class EventInfo(Model):
    """Something that happened to drivers, hosts or workers of the job."""

    at_ms: int
    kind: str
    text: str
    epoch: int | None = Field(description="the last committed one")


class SettingInfo(Model):
    """One setting; the values of secrets are not shown."""

    key: str
    value: str
    source: str


class RescaleAsk(Model):
    """Another number of tasks, of one keyed stage or of all."""

    tasks: int = Field(ge=1, le=1 << 15)
    stage: str | None = None


class RescaleDone(Model):
    """What became of it."""

    epoch: int
    tasks: dict[str, int]


class SavepointAsk(Model):
    """A savepoint of the job; without a name, it is made of the time."""

    name: str | None = Field(None, max_length=100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
    wait_s: float = Field(30.0, ge=0, le=3_600, description="for the epoch under way")


class SavepointInfo(Model):
    """A savepoint, and the folder that it is."""

    job: str
    name: str
    path: str
    epoch: int
    time_ms: int
    bytes: int
    files: int
    parts: list[str]


def job_info(board: JobStatus) -> JobInfo:
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
        else {n: t for n, t in state.watermarks.items() if known_time(t) is not None},
    )


def known_time(at_ms: int) -> int | None:
    """Return an event time, ms; ``None`` where there is none yet, or it has ended."""
    return at_ms if NO_WATERMARK < at_ms < END_WATERMARK else None


def task_watermark(state: JobState, stage: str, task: TaskState) -> int | None:
    """Return the event time that a task is up to: its stage's, unless calls hold it back."""
    watermark = state.watermarks.get(stage, NO_WATERMARK)
    return known_time(watermark if task.held is None else min(watermark, task.held))


def stage_infos(board: JobStatus) -> list[StageInfo]:
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


def task_infos(board: JobStatus) -> list[TaskInfo]:
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


def _keyed_tasks(board: JobStatus) -> list[TaskInfo]:
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


def input_infos(board: JobStatus) -> list[InputInfo]:
    """Return how far each partition of the inputs has been read."""
    lags: dict[tuple[str, int], int] = {}
    with suppress(UnavailableError, OSError):
        lags = board.current_lags()
    return [
        InputInfo(
            input=name,
            partition=partition,
            next_offset=held.next_offset,
            lag=lags.get((name, partition)),
            max_time_ms=known_time(held.max_time),
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


def hot_keys_infos(board: JobStatus, most: int) -> list[HotKeysInfo]:
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


def alert_infos(board: JobStatus) -> list[AlertInfo]:
    """Return the rules of alerts, and how they stand."""
    return [AlertInfo(**asdict(rule)) for rule in board.alerts()]


def event_infos(board: JobStatus, last: int, since_ms: int = 0) -> list[EventInfo]:
    """Return the last events of the job from a moment on, oldest first."""
    settings, job = board.settings, board.job
    folders = [job_storages(settings, job).storage, *part_folders(settings, job)]
    return [
        EventInfo(
            at_ms=one.time_ms,
            kind=one.kind,
            text=one.text,
            epoch=one.epoch if one.epoch >= 0 else None,
        )
        for one in job_events(folders, since_ms)[-last:]
    ]


def setting_infos(board: JobStatus) -> list[SettingInfo]:
    """Return every setting with its value; what may hold a secret is hidden."""
    settings = board.settings
    keys = [*setting_keys(), *(f"spark.conf.{name}" for name in settings.spark.conf)]
    told = [settings.explain(key) for key in keys if key != "spark.conf"]
    return [SettingInfo(key=one.key, value=one.value, source=one.source) for one in told]
