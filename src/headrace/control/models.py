"""What the HTTP API takes and answers. Times are in ms since the epoch, UTC."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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


class StopDone(Model):
    """The status that a job has since it was asked to stop, and the one before."""

    status: str
    was: str


class Done(Model):
    """The status that a job has since."""

    status: str
