"""The tree of settings: names, types, bounds, defaults and one sentence for each.

Settings are numbers, names and paths; parts that do work, such as clocks and stores, are
passed to constructors, never named here. Read ``sources`` for where values come from.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)

from headrace.config import samza
from headrace.config.durability import Durability
from headrace.config.inputs import INPUTS, InputSettings
from headrace.config.section import MIB, SPARK_TEXT, Folder, Section
from headrace.config.starts import read_start
from headrace.config.storing import BusSettings, WarehouseSettings
from headrace.config.watching import AlertSettings, ObserveSettings, TracingSettings
from headrace.errors import InvalidInputError

OPEN_KEY = "spark.conf."  # everything below it belongs to Spark and is not checked here


def _durability(value: str) -> str:
    return str(Durability.parse(value))


DURABILITY = Annotated[str, AfterValidator(_durability)]
SEMANTICS = Literal["exactly_once", "at_least_once", "at_most_once"]


class JobSettings(Section):
    """How a job is cut and how long it runs."""

    tasks: int = Field(
        4,
        ge=1,
        description="tasks of each keyed stage of a new job whose `partition_by` does not say; "
        "`jobs rescale` changes them later",
    )
    key_groups: int = Field(
        512, ge=1, le=1 << 15, description="hash ranges of keys, fixed when a job is created"
    )
    slots: int | None = Field(
        None, ge=1, description="cores that run tasks at the same time; none: all of the master"
    )
    start: str = Field(
        "earliest",
        description="where a new job begins to read inputs that do not say so themselves: "
        "earliest, latest, or an event time such as 2013-01-31T05:15",
    )
    bounded: bool = Field(False, description="stop at the end of the inputs as it is at the start")
    replace_outputs: bool = Field(
        False,
        description="when a bounded job that has ended is run again, drop what its output streams "
        "hold first; false: the results of the new run follow those of the last",
    )
    dead_letters: str | None = Field(
        None, min_length=1, description="stream of dead letters; none: the job's name and .dead"
    )
    call_timeout_s: float | None = Field(
        300.0,
        gt=0,
        description="how long one call of a function of the job may take; none: for ever",
    )
    slot_silence_s: float | None = Field(
        3.0,
        gt=0,
        description="how long a slot may give no sign of life before its host is taken for frozen "
        "and its tasks go to others; none: for ever",
    )
    rows_per_message: int = Field(
        1_000_000, ge=1, description="messages that flat_map or process may make of one"
    )
    max_concurrency: int = Field(
        1,
        ge=1,
        description="calls of an asynchronous processor that may be open in a task, where it does "
        "not say so itself",
    )
    threads: int = Field(
        0,
        ge=0,
        description="threads of each process in which plain processors run; 0: in none, one task "
        "after the other",
    )

    state_semantics: SEMANTICS = Field(
        "exactly_once",
        description="how often an input record counts in the state although processes die, for "
        "jobs that do not say so themselves",
    )
    output_semantics: SEMANTICS | None = Field(
        None,
        description="how often a result shows up in outputs that do not say so themselves; none: "
        "as the state",
    )

    @field_validator("start")
    @classmethod
    def _start_can_be_read(cls, value: str) -> str:
        read_start(value, "job.start")
        return value

    @model_validator(mode="after")
    def _tasks_have_groups(self) -> JobSettings:
        if self.tasks > self.key_groups:
            raise ValueError(
                f"job.tasks is {self.tasks} but job.key_groups is {self.key_groups}; "
                "a task needs at least one key group"
            )
        return self


class EpochSettings(Section):
    """How large and how frequent epochs are."""

    interval_ms: int = Field(0, ge=0, description="least time from one epoch's start to the next's")
    max_rows: int = Field(8_000_000, ge=1, description="input rows of an epoch, over all inputs")
    max_bytes: int = Field(1024 * MIB, ge=1, description="input bytes of an epoch, over all inputs")
    timeout_s: float = Field(
        600.0, gt=0, description="after this long an epoch reads no more input and ends"
    )
    calls_ms: int = Field(
        10_000,
        ge=1,
        description="how long an epoch begins asynchronous calls; it commits what has completed",
    )
    wait_ms: int = Field(
        1000,
        ge=0,
        description="how long an epoch waits for open asynchronous calls while none completes; "
        "they go on in the next",
    )
    max_waiting: int = Field(
        100_000,
        ge=0,
        description="messages that may wait for asynchronous calls from one epoch to the next; "
        "while more do, no input is read",
    )
    tick_ms: int = Field(
        100, ge=1, description="how often an idle job looks for new input and for due deadlines"
    )
    order: Literal["even", "lagging"] = Field(
        "even",
        description="of inputs of one priority: even, all at the same time; lagging, the one whose "
        "watermark is the oldest first",
    )


class StateSettings(Section):
    """Where keyed state lives, and how much of an epoch's changes is held."""

    dir: Folder | None = Field(
        None, description="folder on a local disk of each host; none: state, below home"
    )
    overlay_bytes: int = Field(
        128 * MIB,
        ge=1,
        description="changes that a task may hold in an epoch; when one holds more, "
        "the next are smaller",
    )
    cache_bytes: int = Field(
        256 * MIB,
        ge=0,
        description="values of key-value stores that a process keeps between epochs, about",
    )
    block_cache_bytes: int = Field(
        128 * MIB,
        ge=0,
        description="blocks, indexes and filters of RocksDB stores that a process keeps, and "
        "with them what is not yet written to files",
    )
    write_buffer_bytes: int = Field(
        96 * MIB,
        ge=1 * MIB,
        description="entries of RocksDB stores that a process has not yet written to files",
    )
    keep_epochs: int = Field(
        100,
        ge=0,
        description="epochs before the last whose state can still be read, by `state` commands; "
        "files that only they need stay as long",
    )
    keep_bytes: int = Field(
        1024 * MIB,
        ge=0,
        description="files that only kept epochs need; fewer epochs are kept where these are more",
    )
    durability: DURABILITY = Field(
        "epoch",
        description="epoch: epochs commit to job_dir; backup(30s): to this host's disk, with a "
        "copy in job_dir each 30 s",
    )
    recovery_timeout_s: float = Field(
        300.0, gt=0, description="a task whose recovery has not moved for this long is given up"
    )
    disk_wait_s: float | None = Field(
        None,
        ge=0,
        description="how long a job waits for room on a full disk, or for a sink that is away, "
        "before it fails; none: until it is stopped",
    )
    keep_unused_s: float = Field(
        86_400.0,
        ge=0,
        description="how long the local state of removed jobs and old tasks is kept",
    )


class PlacementSettings(Section):
    """Which host runs which task."""

    affinity: Literal["strict", "best-effort", "none"] = Field(
        "strict",
        description="of tasks for the host with their state: strict, a host that is lost is waited "
        "for before its tasks go to others; best-effort, they go at once; none, tasks are dealt "
        "evenly wherever they were",
    )
    wait_s: float = Field(
        5.0, ge=0, description="how long a lost host is waited for where affinity is strict"
    )
    max_moves: int = Field(
        4,
        ge=1,
        description="tasks with state that may leave, in one epoch, a host that is there: for one "
        "that is new or back, or because theirs is drained",
    )


class StandbySettings(Section):
    """Copies of RocksDB stores that are kept up to date on other hosts."""

    enabled: bool = Field(
        False, description="keep copies of tasks' RocksDB stores on other hosts, to take over from"
    )
    copies: int = Field(
        1, ge=1, description="of each task, as far as there are hosts; each on a host of its own"
    )
    share: float = Field(
        0.5, gt=0, le=1, description="of a core that the copies of a process may use to follow"
    )

    @property
    def wanted(self) -> int:
        """How many copies of each task are to be kept."""
        return self.copies if self.enabled else 0


class ControlSettings(Section):
    """The HTTP API of a running driver."""

    enabled: bool = Field(True, description="serve the HTTP API while `headrace run` runs a job")
    host: str = Field("127.0.0.1", min_length=1, description="address that it is bound to")
    port: int = Field(0, ge=0, le=65535, description="port that it listens on; 0: any that is free")


class RemoteSettings(Section):
    """Where stores of kind ``remote`` are."""

    url: str | None = Field(
        None,
        description="Redis server of the remote stores that name none, as redis://host:6379/0; "
        "${NAME} is taken from the environment of the executors",
    )


class StandaloneSettings(Section):
    """Jobs inside Python processes, without Spark."""

    workers: Literal["auto", "threads", "processes"] = Field(
        "auto",
        description="what slots are: threads of the process, or child processes; auto: one slot a "
        "thread, several child processes",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address at which processes that share a job join the one that drives it; that "
        "of a network where they are on several hosts",
    )
    lease_s: float = Field(
        5.0,
        ge=0.5,
        description="after so long without a sign of life a process that shares a job is taken for "
        "lost, also the one that drives it",
    )


class SparkSettings(Section):
    """Which Spark runs the slots, and how the driver calls it."""

    master: str = Field("local[*]", min_length=1, description="Spark master, as Spark names it")
    loop: Literal["direct", "query"] = Field(
        "direct", description="what drives epochs: a loop, or a Structured Streaming query"
    )
    conf: dict[str, SPARK_TEXT] = Field(
        default_factory=dict, description="further Spark settings, passed on as they are"
    )


@dataclass(frozen=True)
class Explanation:
    """What is known of one setting: ``explain`` prints it."""

    key: str
    type: str
    default: str
    value: str
    source: str
    description: str

    def __str__(self) -> str:
        """Return one line for each fact."""
        return (
            f"{self.key}: {self.description}\n  type     {self.type}\n"
            f"  default  {self.default}\n  value    {self.value}\n  source   {self.source}"
        )


class Settings(Section):
    """The whole tree."""

    home: Folder = Field(
        Path(".headrace"), description="folder of what is embedded: bus, jobs and state"
    )
    job: JobSettings = JobSettings()
    epoch: EpochSettings = EpochSettings()
    state: StateSettings = StateSettings()
    placement: PlacementSettings = PlacementSettings()
    standby: StandbySettings = StandbySettings()
    control: ControlSettings = ControlSettings()
    observe: ObserveSettings = ObserveSettings()
    alerts: AlertSettings = AlertSettings()
    tracing: TracingSettings = TracingSettings()
    bus: BusSettings = BusSettings()
    warehouse: WarehouseSettings = WarehouseSettings()
    inputs: dict[str, InputSettings] = Field(
        default_factory=dict,
        description="tables `[inputs.NAME]`: what stands for a stream that jobs read",
    )
    remote: RemoteSettings = RemoteSettings()
    standalone: StandaloneSettings = StandaloneSettings()
    spark: SparkSettings = SparkSettings()
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    def with_sources(self, sources: dict[str, str]) -> Settings:
        """Return these settings, knowing where the values that are not defaults came from."""
        copy = self.model_copy()
        copy._sources = dict(sources)  # noqa: SLF001 - of its own class
        return copy

    @property
    def sources(self) -> dict[str, str]:
        """Where the values come from that are not defaults, by key."""
        return dict(self._sources)

    @property
    def bus_dir(self) -> Path:
        """Streams of the file bus."""
        return self.home / "bus"

    @property
    def jobs_dir(self) -> Path:
        """What the driver and all hosts of a job share; one folder a job."""
        return self.home / "jobs"

    @property
    def state_dir(self) -> Path:
        """Stores of this host's tasks."""
        return self.state.dir or self.home / "state"

    @property
    def warehouse_dir(self) -> Path:
        """Tables that jobs write by day."""
        return self.warehouse.dir or self.home / "warehouse"

    def explain(self, key: str) -> Explanation:
        """Say what a setting is, and where its value came from.

        Raises:
            InvalidInputError: no setting has that name.
        """
        if key not in LEAVES:
            key = samza.setting_of(key) or key
        spark = key.startswith(OPEN_KEY)
        if not spark and key not in LEAVES:
            raise unknown_setting(key)
        below = (place for part, place in self._sources.items() if part.startswith(f"{key}."))
        source = self._sources.get(key) or "; ".join(dict.fromkeys(below)) or "default"
        if spark:
            value = self.spark.conf.get(key.removeprefix(OPEN_KEY), "unset")
            return Explanation(key, "text", "left to Spark", value, source, "a setting of Spark")
        section, name = LEAVES[key]
        info = section.model_fields[name]
        owner = self if section is Settings else getattr(self, key.partition(".")[0])
        return Explanation(
            key,
            type_name(info.annotation),
            _shown(info.get_default(call_default_factory=True)),
            _shown(getattr(owner, name)),
            source,
            info.description or "",
        )


def _leaves() -> Iterator[tuple[str, tuple[type[Section], str]]]:
    for name, info in Settings.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for inner in kind.model_fields:
                yield f"{name}.{inner}", (kind, inner)
        else:
            yield name, (Settings, name)


LEAVES = dict(_leaves())
SECTIONS = {key.partition(".")[0] for key in LEAVES if "." in key} | {"spark.conf", INPUTS}


def setting_keys() -> tuple[str, ...]:
    """Return the names of all settings, in order; ``spark.conf`` stands for all of Spark's."""
    return tuple(LEAVES)


def unknown_setting(key: str) -> InvalidInputError:
    """Return the error for a name that no setting has, with the nearest one that exists."""
    if (instead := samza.place_of(key)) is not None:
        return InvalidInputError(f"{key} is a property of Samza, no setting here: {instead}")
    same = [known for known in LEAVES if known.rpartition(".")[2] == key.rpartition(".")[2]]
    near = difflib.get_close_matches(key, LEAVES, n=1, cutoff=0.5)
    if same or near:
        return InvalidInputError(
            f"unknown setting {key}; did you mean {(same or near)[0]}?", setting=key
        )
    sections = ", ".join(sorted(SECTIONS - {OPEN_KEY.rstrip(".")}))
    return InvalidInputError(
        f"unknown setting {key}; known are home and those of {sections}", setting=key
    )


def type_name(kind: Any) -> str:
    """Return the type of a setting in plain words."""
    plain = {"int": "integer", "str": "text", "bool": "true or false", "float": "number"}
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return {"Path": "path"}.get(kind.__name__, plain.get(kind.__name__, kind.__name__))
    arguments: tuple[Any, ...] = getattr(kind, "__args__", ())
    if arguments and all(isinstance(argument, str) for argument in arguments):
        return "one of " + ", ".join(arguments)
    if type(None) in arguments:
        return f"{type_name(arguments[0])}, or none"
    if getattr(kind, "__origin__", None) is dict:
        return "table of text"
    if getattr(kind, "__origin__", None) is tuple:
        return "list of tables"
    return type_name(arguments[0]) if arguments else str(kind)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict) and value and all(hasattr(one, "text") for one in value.values()):
        return "; ".join(f"{name}: {one.text}" for name, one in value.items())
    if isinstance(value, tuple):
        return "; ".join(f"{rule.name}: {rule.text}" for rule in value) or "none"
    return "none" if value is None else str(value)
