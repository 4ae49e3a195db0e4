"""The tree of settings: names, types, bounds, defaults and one sentence for each.

Settings are numbers, names and paths; parts that do work, such as clocks and stores, are
passed to constructors, never named here. Read ``sources`` for where values come from.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace import redaction
from headrace.config import samza
from headrace.config.explore import ExploreSettings, UiSettings
from headrace.config.fields import FieldInfo, Section, fields_of, setting
from headrace.config.inputs import INPUTS, InputSettings
from headrace.config.sections import (
    MIB,
    OUTPUTS,
    AlertSettings,
    BusSettings,
    Durability,
    ObserveSettings,
    OutputSettings,
    SuperviseSettings,
    TracingSettings,
    WarehouseSettings,
    absolute,
    place_address,
    place_of,
    read_start,
    spark_texts,
)
from headrace.errors import InvalidInputError
from headrace.remote import bound_caches, is_remote

OPEN_KEY = "spark.conf."  # everything below it belongs to Spark and is not checked here


def _durability(value: str) -> str:
    return str(Durability.parse(value))


def _start(value: str) -> str:
    read_start(value, "job.start")
    return value


SEMANTICS = Literal["exactly_once", "at_least_once", "at_most_once"]


@dataclass(frozen=True, kw_only=True)
class JobSettings(Section):
    """How a job is cut and how long it runs."""

    tasks: int = setting(
        4,
        least=1,
        description="tasks of each keyed stage of a new job, unless its `partition_by` says "
        "otherwise; change them later with `jobs rescale`",
    )
    key_groups: int = setting(
        512, least=1, most=1 << 15, description="hash ranges of keys, fixed when a job is created"
    )
    slots: int | None = setting(
        None, least=1, description="cores that run tasks at the same time; none: all of the master"
    )
    start: str = setting(
        "earliest",
        read=_start,
        description="where a new job starts to read inputs without a start of their own: "
        "earliest, latest, or an event time such as 2013-01-31T05:15",
    )
    bounded: bool = setting(False, description="stop at the end that the inputs have at the start")
    replace_outputs: bool = setting(
        False,
        description="when a bounded job that has ended runs again, first remove the rows of "
        "its output streams; false: append the new results",
    )
    dead_letters: str | None = setting(
        None, min_length=1, description="stream of dead letters; none: the job's name and .dead"
    )
    call_timeout_s: float | None = setting(
        300.0,
        above=0,
        description="time limit of one call of a function of the job; none: no limit",
    )
    slot_silence_s: float | None = setting(
        3.0,
        above=0,
        description="how long a slot can be silent before its host counts as frozen and its "
        "tasks move; none: no limit",
    )
    lease_s: float = setting(
        30.0,
        least=3.0,
        description="time without a renewal after which the driver of a job on Spark counts as "
        "lost to other hosts and to standby drivers",
    )
    rows_per_message: int = setting(
        1_000_000,
        least=1,
        description="most messages that flat_map or process can make of one message",
    )
    max_concurrency: int = setting(
        1,
        least=1,
        description="most open calls of an asynchronous processor in a task, unless the "
        "operator says otherwise",
    )
    threads: int = setting(
        0,
        least=0,
        description="threads of each process that run plain processors; 0: none, one task "
        "after the other",
    )

    state_semantics: SEMANTICS = setting(
        "exactly_once",
        description="how often an input record counts in the state after failures, for jobs "
        "without semantics in their code",
    )
    output_semantics: SEMANTICS | None = setting(
        None,
        description="how often a result appears after failures, for outputs without semantics "
        "in the code; none: as the state",
    )

    def check(self) -> None:
        """Refuse tasks that no key groups are left for."""
        if self.tasks > self.key_groups:
            raise ValueError(
                f"job.tasks is {self.tasks} but job.key_groups is {self.key_groups}; "
                "a task needs at least one key group"
            )


@dataclass(frozen=True, kw_only=True)
class EpochSettings(Section):
    """How large and how frequent epochs are."""

    interval_ms: int = setting(
        0, least=0, description="least time between the starts of two epochs"
    )
    max_rows: int = setting(
        8_000_000, least=1, description="most input rows of an epoch, over all inputs"
    )
    max_bytes: int = setting(
        1024 * MIB, least=1, description="most input bytes of an epoch, over all inputs"
    )
    timeout_s: float = setting(
        600.0, above=0, description="time after which an epoch reads no more input and ends"
    )
    clock_jump_s: float | None = setting(
        60.0,
        above=0,
        description="largest difference between the clock and the time that has passed; beyond it "
        "the clock counts only when it is right again, or after `jobs accept-clock`; none: always",
    )
    calls_ms: int = setting(
        10_000,
        least=1,
        description="how long an epoch begins asynchronous calls; it commits those that have "
        "completed",
    )
    wait_ms: int = setting(
        1000,
        least=0,
        description="how long an epoch waits for open asynchronous calls while none "
        "completes; they continue in the next epoch",
    )
    max_waiting: int = setting(
        100_000,
        least=0,
        description="messages that can wait for asynchronous calls from one epoch to the "
        "next; while more wait, no input is read",
    )
    tick_ms: int = setting(
        100, least=1, description="how often an idle job checks for new input and due deadlines"
    )
    order: Literal["even", "lagging"] = setting(
        "even",
        description="how inputs of the same priority share an epoch; even: equally; lagging: "
        "the input with the oldest watermark first",
    )


@dataclass(frozen=True, kw_only=True)
class StateSettings(Section):
    """Where keyed state lives, and how much of an epoch's changes is held."""

    dir: Path | None = setting(
        None,
        read=absolute,
        description="folder on a local disk of each host; none: state, below home",
    )
    overlay_bytes: int = setting(
        128 * MIB,
        least=1,
        description="changes that a task can hold in an epoch; if a task holds more, the next "
        "epochs are smaller",
    )
    cache_bytes: int = setting(
        256 * MIB,
        least=0,
        description="approximate size of the values of key-value stores that a process keeps "
        "between epochs",
    )
    block_cache_bytes: int = setting(
        128 * MIB,
        least=0,
        description="blocks, indexes and filters of RocksDB stores that a process keeps, "
        "including data not yet written to files",
    )
    write_buffer_bytes: int = setting(
        96 * MIB,
        least=1 * MIB,
        description="entries of RocksDB stores that a process has not yet written to files",
    )
    keep_epochs: int = setting(
        100,
        least=0,
        description="epochs before the last one whose state `state` commands can read; files "
        "that only they need are kept as long",
    )
    keep_bytes: int = setting(
        1024 * MIB,
        least=0,
        description="most bytes of files that only kept epochs need; if they need more, fewer "
        "epochs are kept",
    )
    durability: str = setting(
        "epoch",
        read=_durability,
        description="epoch: epochs commit to job_dir; backup(30s): to the disk of the driver's "
        "host, with a copy in job_dir every 30 s",
    )
    recovery_timeout_s: float = setting(
        300.0, above=0, description="time without progress after which the recovery of a task fails"
    )
    disk_wait_s: float | None = setting(
        None,
        least=0,
        description="how long a job waits for space on a full disk, or for a sink that does "
        "not answer, before it fails; none: until it is stopped",
    )
    keep_unused_s: float = setting(
        86_400.0,
        least=0,
        description="how long the local state of deleted jobs and former tasks is kept",
    )


@dataclass(frozen=True, kw_only=True)
class PlacementSettings(Section):
    """Which host runs which task."""

    affinity: Literal["strict", "best-effort", "none"] = setting(
        "strict",
        description="of tasks for the host with their state; strict: wait for a lost host "
        "before its tasks move; best-effort: move them at once; none: divide "
        "tasks evenly, wherever they were",
    )
    wait_s: float = setting(
        10.0,
        least=0,
        description="how long to wait at most for a lost host, with strict affinity; shorter, or "
        "not at all, where other hosts read its state again sooner",
    )
    max_moves: int = setting(
        4,
        least=1,
        description="most tasks with state that leave an available host in one epoch, to a "
        "new or returned host, or because theirs is drained",
    )


@dataclass(frozen=True, kw_only=True)
class StandbySettings(Section):
    """Copies of RocksDB stores that are kept up to date on other hosts."""

    enabled: bool = setting(
        False,
        description="keep standbys, copies of tasks' RocksDB stores on other hosts, for failover",
    )
    copies: int = setting(
        1,
        least=1,
        description="standbys of each task, each on its own host, if there are enough hosts",
    )
    share: float = setting(
        0.5, above=0, most=1, description="share of a core that the standbys of a process can use"
    )

    @property
    def wanted(self) -> int:
        """How many copies of each task are to be kept."""
        return self.copies if self.enabled else 0


@dataclass(frozen=True, kw_only=True)
class StorageSettings(Section):
    """Where the storages of jobs are: manifests, segments, snapshots, plans."""

    address: str = setting(
        "",
        read=place_address,
        description="`s3://BUCKET/PREFIX`, `gs://`, `az://` or `hdfs://` likewise, or "
        "`file:///PATH`, which all hosts of a job reach; empty: the folder jobs, below home",
    )
    cache_bytes: int = setting(
        4096 * MIB,
        least=1 * MIB,
        description="files of such a storage that a host keeps copies of on its disk, below "
        "state.dir; the longest unused go",
    )


@dataclass(frozen=True, kw_only=True)
class ControlSettings(Section):
    """The HTTP API of a running driver."""

    enabled: bool = setting(True, description="serve the HTTP API while `headrace run` runs a job")
    host: str = setting("127.0.0.1", min_length=1, description="address to listen on")
    port: int = setting(0, least=0, most=65535, description="port to listen on; 0: any free port")
    token_file: Path | None = setting(
        None,
        description="file with the token that requests must bring, read when a driver starts; "
        "unset: each driver makes one of its own",
    )


@dataclass(frozen=True, kw_only=True)
class RemoteSettings(Section):
    """Where stores of kind ``remote`` are."""

    url: str | None = setting(
        None,
        description="Redis server of remote stores without a URL of their own, as "
        "redis://host:6379/0; ${NAME} is taken from the environment of the "
        "executors",
    )


@dataclass(frozen=True, kw_only=True)
class StandaloneSettings(Section):
    """Jobs inside Python processes, without Spark."""

    workers: Literal["auto", "threads", "processes"] = setting(
        "auto",
        description="what slots are: threads of the process, or child processes; auto: a "
        "thread for one slot, child processes for several",
    )
    host: str = setting(
        "127.0.0.1",
        min_length=1,
        description="address at which processes that share a job reach the one that drives "
        "it; set a network address if they are on several hosts",
    )
    lease_s: float = setting(
        5.0,
        least=0.5,
        description="time without a heartbeat after which a process that shares a job counts "
        "as lost, also the one that drives it",
    )


@dataclass(frozen=True, kw_only=True)
class SparkSettings(Section):
    """Which Spark runs the slots, and how the driver calls it."""

    master: str = setting("local[*]", min_length=1, description="Spark master, as Spark names it")
    loop: Literal["direct", "query"] = setting(
        "direct",
        description="deprecated, without effect: the driver's own loop drives epochs; leave it out",
    )
    progress: Literal["auto", "on", "off"] = setting(
        "auto",
        description="show jobs in Spark's UI and event log: committed epochs as a streaming query "
        "(auto: once a run takes 10 s), and metrics of slots; off: neither",
    )
    conf: dict[str, str] = setting(
        factory=dict, read=spark_texts, description="other Spark settings, passed on unchanged"
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


@dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """The whole tree."""

    home: Path = setting(
        Path(".headrace"), read=absolute, description="folder of the embedded bus, jobs and state"
    )
    job: JobSettings = setting(JobSettings())
    epoch: EpochSettings = setting(EpochSettings())
    state: StateSettings = setting(StateSettings())
    storage: StorageSettings = setting(StorageSettings())
    placement: PlacementSettings = setting(PlacementSettings())
    standby: StandbySettings = setting(StandbySettings())
    control: ControlSettings = setting(ControlSettings())
    observe: ObserveSettings = setting(ObserveSettings())
    alerts: AlertSettings = setting(AlertSettings())
    tracing: TracingSettings = setting(TracingSettings())
    bus: BusSettings = setting(BusSettings())
    warehouse: WarehouseSettings = setting(WarehouseSettings())
    explore: ExploreSettings = setting(ExploreSettings())
    ui: UiSettings = setting(UiSettings())
    inputs: dict[str, InputSettings] = setting(
        factory=dict,
        description="tables `[inputs.NAME]`: what replaces a stream that jobs read",
    )
    outputs: dict[str, OutputSettings] = setting(
        factory=dict,
        description="tables `[outputs.NAME]`: what replaces a stream that jobs send to",
    )
    remote: RemoteSettings = setting(RemoteSettings())
    standalone: StandaloneSettings = setting(StandaloneSettings())
    supervise: SuperviseSettings = setting(SuperviseSettings())
    spark: SparkSettings = setting(SparkSettings())
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where the values come from that are not defaults, by key."""

    def check(self) -> None:
        """Hide the secrets in all that this process writes or shows.

        Raises:
            InvalidInputError: two settings do not go together.
        """
        own, other = self.storage.address, self.bus.address
        if own and other and f"{own}/".startswith(f"{other}/"):
            raise InvalidInputError(
                f"storage.address {own} is in bus.address {other}; give each a prefix of its own, "
                f"such as {other}/jobs and {other}/bus"
            )
        far = self.bus.offload_address
        if far and is_remote(self.bus_dir):
            raise InvalidInputError(
                f"bus.offload_address is {far}, and bus.address is {other}: streams in an object "
                "storage have no files to move; set one of the two"
            )
        if far and own and (f"{own}/".startswith(f"{far}/") or f"{far}/".startswith(f"{own}/")):
            raise InvalidInputError(
                f"storage.address is {own}, and bus.offload_address is {far}; give each a prefix "
                "of its own, such as .../jobs and .../streams"
            )
        self._check_warehouse()
        bound_caches(self.storage.cache_bytes)
        for name in ("remote", "spark", "alerts", "tracing"):
            redaction.remember_setting(name, {**vars(getattr(self, name)), "rules": ()})
        for one in self.inputs.values():
            if one.dataframe is not None:
                redaction.remember_setting("", vars(one.dataframe))

    def _check_warehouse(self) -> None:
        tables = self.warehouse.address
        if tables and self.warehouse.dir is not None:
            raise InvalidInputError(
                f"warehouse.address is {tables}, and warehouse.dir is {self.warehouse.dir}; set "
                "one of the two"
            )
        others = {
            "storage.address": self.storage.address,
            "bus.address": self.bus.address,
            "bus.offload_address": self.bus.offload_address,
        }
        for name, other in others.items():
            ways = (f"{tables}/", f"{other}/")
            if tables and other and (ways[0].startswith(ways[1]) or ways[1].startswith(ways[0])):
                raise InvalidInputError(
                    f"warehouse.address is {tables}, and {name} is {other}; give each a prefix of "
                    "its own, such as .../warehouse and .../jobs"
                )

    @property
    def bus_dir(self) -> Path:
        """Streams: a folder, or what stands for ``bus.address`` on this host."""
        if self.bus.address:
            return place_of(self.bus.address, self.state_dir)
        return self.home / "bus"

    @property
    def jobs_dir(self) -> Path:
        """What the driver and all hosts of a job share; one folder a job."""
        if self.storage.address:
            return place_of(self.storage.address, self.state_dir)
        return self.home / "jobs"

    @property
    def state_dir(self) -> Path:
        """Stores of this host's tasks."""
        return self.state.dir or self.home / "state"

    @property
    def warehouse_dir(self) -> Path:
        """Tables that jobs write by day: a folder, or what stands for an address on this host."""
        if self.warehouse.address:
            return place_of(self.warehouse.address, self.state_dir)
        return self.warehouse.dir or self.home / "warehouse"

    @property
    def explore_dir(self) -> Path:
        """Rows of streams as columns, to explore."""
        return self.explore.dir or self.home / "explore"

    def explain_all(self) -> list[Explanation]:
        """Return all settings, in order, then those of Spark that are set; secrets are hidden."""
        keys = [key for key in LEAVES if key != "spark.conf"]
        return [self.explain(key) for key in (*keys, *(OPEN_KEY + one for one in self.spark.conf))]

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
        below = (place for part, place in self.sources.items() if part.startswith(f"{key}."))
        source = self.sources.get(key) or "; ".join(dict.fromkeys(below)) or "default"
        if spark:
            value = self.spark.conf.get(key.removeprefix(OPEN_KEY), "unset")
            shown = redaction.shown(key, value)
            return Explanation(key, "text", "left to Spark", shown, source, "a setting of Spark")
        info, section = LEAVES[key], key.rpartition(".")[0]
        owner = getattr(self, section) if section else self
        return Explanation(
            key,
            type_name(info.kind),
            _shown(info.default),
            redaction.shown(key, _shown(getattr(owner, info.name))),
            source,
            info.setting.description,
        )


def _leaves() -> Iterator[tuple[str, FieldInfo]]:
    for name, info in fields_of(Settings).items():
        if isinstance(info.kind, type) and issubclass(info.kind, Section):
            yield from ((f"{name}.{one.name}", one) for one in fields_of(info.kind).values())
        else:
            yield name, info


LEAVES = dict(_leaves())
TABLES = {INPUTS, OUTPUTS}
SECTIONS = {key.partition(".")[0] for key in LEAVES if "." in key} | {"spark.conf"} | TABLES


def setting_keys() -> tuple[str, ...]:
    """Return the names of all settings, in order; ``spark.conf`` stands for all of Spark's."""
    return tuple(LEAVES)


def unknown_setting(key: str) -> InvalidInputError:
    """Return the error for a name that no setting has, with the nearest one that exists."""
    if (instead := samza.replacement_of(key)) is not None:
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
