"""The status of a job: one frozen model for the API, the command line and metrics.

``job_status`` makes it from the manifests and the files of a job, which need neither its code nor
its driver. Where a driver answers, ``LiveJob.status`` makes it in the same way of the state that
it holds, and adds what only a driver knows. ``status_schema`` writes it. Times are in ms, UTC.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from headrace.bus import Bus, LogAwayError
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.alert_rules import RuleStatus, load_alerts
from headrace.coordinator.catalog import Catalog, TimeEntry, load_catalog
from headrace.coordinator.drain import with_current_cordons
from headrace.coordinator.driver_standby import standby_drivers
from headrace.coordinator.epoch_ranges import task_name
from headrace.coordinator.host_state import (
    FOLLOWED_BYTES,
    FOLLOWED_MS,
    LOST,
    MOVED,
    STANDBY,
    drained_hosts,
)
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.job_events import EVENTS_FOLDER, JobEvent, event_text, job_events
from headrace.coordinator.job_parts import group_state, part_folders
from headrace.coordinator.job_storage import (
    check_job_name,
    job_storages,
    newest_storage,
)
from headrace.coordinator.leader_lease import (
    DriverProcess,
    MemberInfo,
    driver_of,
    read_members,
)
from headrace.coordinator.manifest import (
    SINK_ROWS,
    JobState,
    TaskState,
    partition_lags,
    state_bytes,
)
from headrace.coordinator.outputs import sinks_confirmed
from headrace.coordinator.placement import StageTasks, assign_hosts
from headrace.coordinator.watermarks import Now, input_watermark
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.sources.bounded_bus import saved_inputs

SHOWN_EVENTS = 6
SHOWN_KEYS = 3
"""Of the last events, and of the heaviest keys of each ``partition_by``."""

HOT_KEYS_FILE = "hot-keys.json"

Plain = str | int | float | bool | None

if TYPE_CHECKING:  # status_schema gives them to this module: a short run goes without pydantic
    from pydantic import Field

    _Kind = TypeVar("_Kind")
    Hidden = Annotated[_Kind, Field(exclude=True)]


@dataclass(frozen=True)
class PartitionStatus:
    """How far one partition of an input has been read."""

    input: str
    partition: int
    next_offset: int
    lag: Annotated[
        int | None, Field(description="rows before it now; null where its stream is silent")
    ]
    max_time_ms: int | None


@dataclass(frozen=True)
class InputStatus:
    """How far one input operator is; ``lag`` is ``None`` where its stream is not on the bus."""

    operator: str
    stream: str
    read: int
    lag: int | None
    watermark_ms: int | None
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class StandbyStatus:
    """The standbys of a stage: how many, how many of them hold what is committed but for a tail.

    ``epochs`` and ``size`` are how far the last of these is behind: epochs, and bytes of changes;
    ``wanted`` how many there are to be, which too few hosts have no place for.
    """

    standbys: int
    filled: int
    epochs: int
    size: int
    wanted: int = 0


@dataclass(frozen=True)
class StageStatus:
    """A keyed stage: its tasks, about how large their state is, and the hosts that have it."""

    stage: str
    tasks: int
    state_bytes: int
    hosts: tuple[str, ...]
    standby: StandbyStatus | None = None

    @property
    def copies(self) -> StandbyStatus:
        """Its standbys, also where it has none and is to have none."""
        return self.standby or StandbyStatus(0, 0, 0, 0)


@dataclass(frozen=True)
class StandbyTask:
    """A copy of a task's stores on another host, and the epoch that it holds; -1: none yet."""

    host: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """One task: of a keyed stage, or one that reads a partition of an input."""

    __pydantic_config__: ClassVar[Any] = {"json_schema_serialization_defaults_required": True}

    task: Annotated[str, Field(description="STAGE/NUMBER, or INPUT/PARTITION")]
    host: Annotated[str, Field(description="empty: it goes to another with each epoch")] = ""
    next_offset: Annotated[
        int | None, Field(description="of the partition that it reads; null: it reads none")
    ] = None
    lag: Annotated[
        int | None, Field(description="rows of the partition before it; null: none, or not known")
    ] = None
    epoch: Annotated[int, Field(description="the last one that changed it; -1: none did")] = -1
    state_bytes: int = 0
    changelog_bytes: int = 0
    stores: Annotated[
        dict[str, int],
        Field(description="bytes of each store; empty until the task has run under this driver"),
    ] = field(default_factory=dict)
    watermark_ms: int | None = None
    waiting: Annotated[int, Field(description="messages that wait for asynchronous calls")] = 0
    event_deadline_ms: int | None = None
    wall_deadline_ms: int | None = None
    standbys: tuple[StandbyTask, ...] = ()


@dataclass(frozen=True)
class SinkStatus:
    """What one sink has committed: rows, all up to an epoch; ``waiting`` are not confirmed yet."""

    operator: str
    identity: str
    promise: str
    rows: int
    epoch: int
    waiting: int


@dataclass(frozen=True)
class PartStatus:
    """One of several parts of a job: the name it is kept under, and its epochs."""

    part: str
    epoch: int
    oldest_epoch: int
    ended: bool


@dataclass(frozen=True)
class EventStatus:
    """Something that happened to drivers, hosts or workers of the job."""

    at_ms: int
    kind: str
    text: str
    epoch: Annotated[int | None, Field(description="the last committed one")]

    @classmethod
    def of(cls, event: JobEvent) -> EventStatus:
        """Return an event of the job's log."""
        return cls(event.time_ms, event.kind, event.text, event.epoch if event.epoch >= 0 else None)


@dataclass(frozen=True)
class HostStatus:
    """One host of the job."""

    host: Annotated[str, Field(description="identity of its state directory")]
    address: Annotated[str, Field(description="or name; empty where it is not known")]
    status: Annotated[str, Field(description="up, lost, draining or drained")]
    slots: int
    tasks: int
    standbys: int
    state_bytes: int
    everywhere: Annotated[
        bool, Field(description="all jobs of the home are to leave it, not this one alone")
    ]

    @property
    def is_empty(self) -> bool:
        """Say whether it has neither tasks nor standbys."""
        return not self.tasks and not self.standbys


@dataclass(frozen=True)
class HostEvent:
    """Something that happened to the hosts of the job, as its manifest has it."""

    time_ms: int
    what: str
    host: str
    text: str


@dataclass(frozen=True)
class Moves:
    """How many tasks changed their host, by choice or by a loss, and how many are to."""

    done: int
    lost: int
    pending: Annotated[int, Field(description="tasks that are to leave hosts that are up")]


@dataclass(frozen=True)
class PlacementStatus:
    """Where the tasks of a job are; the ``story`` is oldest first."""

    hosts: tuple[HostStatus, ...]
    moves: Moves
    story: tuple[HostEvent, ...]


@dataclass(frozen=True)
class StandbyReads:
    """What the standbys of a stage have read so far, and how long that took."""

    bytes: int
    ms: int


@dataclass(frozen=True)
class HeavyKey:
    """One key: its values as JSON has them, about how many rows, and their share of all keys'."""

    key: tuple[Plain, ...]
    rows: float
    share: float


@dataclass(frozen=True)
class HeavyKeys:
    """The heaviest keys of one ``partition_by``, of a sample of its rows, heaviest first.

    ``rows`` are of all keys lately: what is a minute old counts half. ``too_low`` is the part of
    all rows by which a share may be too low, ``tasks`` how many reported some.
    """

    operator: str
    columns: tuple[str, ...]
    rows: float
    too_low: float
    tasks: int
    at_ms: int
    keys: tuple[HeavyKey, ...]


@dataclass(frozen=True)
class StandbyDriverStatus:
    """A standby driver; ``warm``: its Spark session and workers have begun."""

    process: int
    host: str
    warm: bool


@dataclass(frozen=True)
class JobStatus:
    """A job as of its last epoch; ``None`` where something is not known.

    ``live``: its driver answered, else its files were read. ``process`` is that of the driver, if
    one runs. Of a job that cannot be read there is a ``problem``, and no epoch. ``lag`` is of now,
    ``unread`` what the last epoch left. The hidden fields only a driver knows.
    """

    job: str
    status: Annotated[
        str,
        Field(description="starting, running, paused, stopping, stopped, ended, reset or damaged"),
    ]
    live: bool
    process: int | None
    host: str | None
    storage: str
    problem: str | None = None
    members: tuple[MemberInfo, ...] = ()
    standby_drivers: Annotated[
        tuple[StandbyDriverStatus, ...],
        Field(description="processes that drive it as soon as nobody does"),
    ] = ()
    epoch: int | None = None
    oldest_epoch: int | None = None
    epoch_ms: Annotated[int | None, Field(description="wall clock of the last epoch")] = None
    rows: int | None = None
    late: int | None = None
    dropped: int | None = None
    dead_letters: int | None = None
    counts: Annotated[dict[str, int] | None, Field(description="of all its epochs, by name")] = None
    lag: int | None = None
    state_bytes: int = 0
    durability: str | None = None
    lineage: str | None = None
    run: int | None = None
    bounded: bool | None = None
    generation: int | None = None
    rescaled_in: int | None = None
    parts: tuple[PartStatus, ...] = ()
    inputs: tuple[InputStatus, ...] = ()
    stages: tuple[StageStatus, ...] = ()
    failures: dict[str, int] | None = None
    deployed: bool = False
    standbys_to_fill: int = 0
    standbys_followed: dict[str, StandbyReads] | None = None
    placement: PlacementStatus | None = None
    outputs: tuple[str, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    alerts: tuple[RuleStatus, ...] = ()
    hot_keys: tuple[HeavyKeys, ...] = ()
    events: tuple[EventStatus, ...] = ()
    began_ms: Hidden[int | None] = None
    unread: Hidden[int | None] = None
    eta_s: Hidden[float | None] = None
    watermarks: Hidden[dict[str, int]] = field(default_factory=dict)

    def at(self, state: JobState) -> JobStatus:
        """Return it with what a manifest alone says."""
        counts = state.counts
        return replace(
            self,
            epoch=state.epoch,
            epoch_ms=state.time_ms,
            rows=counts.get("in", 0),
            late=counts.get("late", 0),
            dropped=counts.get("dropped", 0),
            dead_letters=counts.get("dead_letters", 0),
            counts=dict(counts),
            durability=state.durability,
            lineage=state.lineage,
            run=state.run,
            bounded=state.until is not None,
            generation=state.generation,
            rescaled_in=state.rescaled_at if state.rescaled_at >= 0 else None,
            failures=_under(STANDBY, counts),
            standbys_followed={
                name: StandbyReads(size, counts.get(FOLLOWED_MS + name, 0))
                for name, size in _under(FOLLOWED_BYTES, counts).items()
            },
        )


class _Part(NamedTuple):
    """A part of a job, as its files have it."""

    root: Path
    state: JobState
    oldest_epoch: int
    catalog: Catalog


def job_status(
    settings: Settings,
    job: str,
    bus: Bus,
    clock: Clock,
    driver: DriverProcess | None = None,
    known: Mapping[str, JobState] | None = None,
) -> JobStatus:
    """Return the status of a job, of all its parts together.

    Args:
        settings: of the home.
        job: its name.
        bus: its streams.
        clock: for names.
        driver: its driver, where that asks for its own job; else it is looked for.
        known: the states that this one holds, by part; others are read.

    Raises:
        InvalidInputError: there is no such job.
    """
    root = newest_storage(settings, check_job_name(job))
    driver = driver or driver_of(root, settings.jobs_dir / job, job, clock)
    folders = [root, *part_folders(settings, job)]
    parts = []
    found = JobStatus(
        job,
        "damaged",
        live=False,
        process=driver and driver.process,
        host=driver and driver.host,
        storage=str(root),
        members=_members(root, driver),
        standby_drivers=tuple(
            StandbyDriverStatus(one.process, one.host, one.warm)
            for one in standby_drivers(_shared(settings, job), clock)
        ),
        alerts=_kept_rules(root, clock),
        hot_keys=tuple(replace(one, keys=one.keys[:SHOWN_KEYS]) for one in kept_keys(root)),
        events=tuple(map(EventStatus.of, job_events(folders)[-SHOWN_EVENTS:])),
    )
    for folder in folders:
        name = job if folder == root else folder.name
        try:
            parts.append(_read_part(folder, name, (known or {}).get(name)))
        except CorruptDataError as error:
            return replace(found, job=name, storage=str(folder), problem=str(error))
    state, bus = group_state([one.state for one in parts]), saved_inputs(bus, root)
    inputs = tuple(one for part in parts for one in _inputs(part, bus))
    lags = [one.lag for one in inputs if one.lag is not None]
    stages = tuple(
        stage for part in parts for stage in stage_statuses(part.state, part.catalog.standbys)
    )
    standbys = [one.standby for one in stages if one.standby is not None]
    to_fill = sum(max(one.wanted, one.standbys) - one.filled for one in standbys)
    homes = {task.host for task in state.tasks.values() if task.host in state.hosts}
    return replace(
        found.at(state),
        status=_status(state, driver),
        oldest_epoch=parts[0].oldest_epoch,
        lag=sum(lags) if len(lags) == len(inputs) else None,
        state_bytes=sum(one.state_bytes for one in stages),
        parts=tuple(
            PartStatus(one.state.job, one.state.epoch, one.oldest_epoch, one.state.ended)
            for one in (parts if len(parts) > 1 else ())
        ),
        inputs=inputs,
        stages=stages,
        deployed=driver is not None
        and not to_fill
        and all(state.hosts[home].slots for home in homes),
        standbys_to_fill=to_fill,
        placement=placement_status(with_current_cordons(state, root.parent)),
        outputs=tuple(sorted({name for one in parts for name in one.catalog.outputs})),
        sinks=tuple(sink for one in parts for sink in _sinks(one)),
    )


def stage_statuses(state: JobState, wanted: Mapping[str, int]) -> Iterable[StageStatus]:
    """Yield the keyed stages of a job.

    Args:
        state: of the job, or of a part.
        wanted: how many standbys each task of a stage is to have.
    """
    for stage, count in state.task_counts.items():
        tasks = [task for name, task in state.tasks.items() if name.rpartition("/")[0] == stage]
        yield StageStatus(
            stage,
            count,
            sum(map(state_bytes, tasks)),
            tuple(sorted({task.host for task in tasks if task.host})),
            _standby(state, stage, count * wanted.get(stage, 0)),
        )


def task_statuses(
    state: JobState,
    stores: Mapping[str, Mapping[str, int]],
    partitions: Iterable[PartitionStatus] = (),
) -> Iterable[TaskStatus]:
    """Yield the tasks of keyed stages, then those that read inputs.

    Args:
        state: of the job.
        stores: bytes of each store of each task, where they are known.
        partitions: of the inputs.
    """
    for name, task in state.tasks.items():
        watermark = state.watermarks.get(name.rpartition("/")[0], NO_WATERMARK)
        held = (
            watermark if task.watermark_hold_ms is None else min(watermark, task.watermark_hold_ms)
        )
        yield TaskStatus(
            task=name,
            host=task.host,
            epoch=task.epoch,
            state_bytes=state_bytes(task),
            changelog_bytes=task.segment_bytes,
            stores=dict(stores.get(name, {})),
            watermark_ms=known_time(held),
            waiting=task.waiting,
            event_deadline_ms=task.event_deadline,
            wall_deadline_ms=task.wall_deadline,
            standbys=tuple(StandbyTask(s.host, s.epoch) for s in state.standbys.get(name, ())),
        )
    for read in partitions:
        yield TaskStatus(
            task=f"{read.input}/{read.partition}",
            next_offset=read.next_offset,
            lag=read.lag,
            watermark_ms=read.max_time_ms,
        )


def partition_statuses(
    state: JobState, lags: Mapping[tuple[str, int], int]
) -> Iterable[PartitionStatus]:
    """Yield how far each partition of each input has been read, with what lies before it."""
    for name, positions in state.inputs.items():
        for partition, held in sorted(positions.items()):
            lag, at_ms = lags.get((name, partition)), known_time(held.max_time)
            yield PartitionStatus(name, partition, held.next_offset, lag, at_ms)


def input_status(state: JobState, time: TimeEntry, ends: Sequence[int] | None) -> InputStatus:
    """Return how far an input is.

    Args:
        state: of the job, or of a part.
        time: the input, its stream, and what its watermark follows.
        ends: of the stream, by partition; ``None``: it is not there.
    """
    positions = state.inputs.get(time.operator, {})
    offsets = tuple(positions[p].next_offset for p in sorted(positions))
    lag = None if ends is None else sum(partition_lags(positions, ends))
    now = Now(state.time_ms, {} if ends is None else {time.stream: ends})
    watermark = input_watermark(time, positions, now)
    return InputStatus(time.operator, time.stream, sum(offsets), lag, watermark, offsets)


def placement_status(state: JobState) -> PlacementStatus:
    """Return the hosts of a job, by address, and what became of them."""
    tasks: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for task in state.tasks.values():
        tasks[task.host] += 1
        sizes[task.host] += state_bytes(task)
    copies = Counter(one.host for held in state.standbys.values() for one in held)
    hosts = []
    for host, held in state.hosts.items():
        counts = held.slots, tasks[host], copies[host], sizes[host]
        status = "up" if held.slots else "lost"
        if held.drained:
            status = "draining" if tasks[host] or copies[host] else "drained"
        hosts.append(HostStatus(host, held.address, status, *counts, held.cordoned))
    counted = state.counts
    return PlacementStatus(
        tuple(sorted(hosts, key=lambda one: (one.address, one.host))),
        Moves(counted.get(MOVED, 0), counted.get(LOST, 0), _pending_moves(state)),
        tuple(
            HostEvent(one.time_ms, str(one.what), one.host, event_text(one, state))
            for one in state.host_events
        ),
    )


def _pending_moves(state: JobState) -> int:
    """Return how many tasks are to leave hosts that are there, until all are in balance."""
    cores = {host: held.slots for host, held in sorted(state.hosts.items()) if held.slots}
    found = 0
    for stage, count in state.task_counts.items() if cores else ():
        names = [task_name(stage, number) for number in range(count)]
        home = {name: state.tasks.get(name, TaskState()).host for name in names}
        if any(home.values()):
            found += len(
                assign_hosts(names, cores, StageTasks(home), away=drained_hosts(state.hosts)).moves
            )
    return found


def known_time(at_ms: int) -> int | None:
    """Return an event time, ms; ``None`` where there is none yet, or it has ended."""
    return at_ms if NO_WATERMARK < at_ms < END_WATERMARK else None


def kept_keys(storage: Path) -> list[HeavyKeys]:
    """Return the heaviest keys that a driver kept last; nothing where they cannot be read."""
    try:
        data = (storage / EVENTS_FOLDER / HOT_KEYS_FILE).read_bytes()
        return msgspec.json.decode(data, type=list[HeavyKeys])
    except (OSError, msgspec.DecodeError):
        return []


def keep_keys(storage: Path, found: Sequence[HeavyKeys]) -> None:
    """Keep the heaviest keys where commands find them, in one step."""
    path = storage / EVENTS_FOLDER / HOT_KEYS_FILE
    temporary = path.with_name(f".{HOT_KEYS_FILE}.tmp")
    temporary.write_bytes(msgspec.json.encode(found))
    os.replace(temporary, path)


def _kept_rules(storage: Path, clock: Clock) -> tuple[RuleStatus, ...]:
    with suppress(CorruptDataError, OSError):  # ``alerts ls`` reports it
        rules = load_alerts(storage, clock).rules
        return tuple(held.status(name) for name, held in sorted(rules.items()))
    return ()


def _shared(settings: Settings, job: str) -> Path:
    where = job_storages(settings, job)
    return where.copy or where.storage


def _members(root: Path, driver: DriverProcess | None) -> tuple[MemberInfo, ...]:
    """Return the processes that share a job that is driven by one of them."""
    found = read_members(root)
    is_theirs = driver is not None and any(m.drives and m.process == driver.process for m in found)
    return tuple(found) if is_theirs else ()


def _read_part(root: Path, name: str, known: JobState | None) -> _Part:
    files = Files(sync=False)
    reader = JobReader(root, name, files)
    state = known or reader.state()
    # A job that only an older version has run has none.
    catalog = load_catalog(root, state.generation, files) or Catalog(0, name, ())
    return _Part(root, state, reader.kept(state).oldest, catalog)


def _under(begin: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts whose names begin so, by the rest of their names."""
    return {n.removeprefix(begin): count for n, count in counts.items() if n.startswith(begin)}


def _status(state: JobState, driver: DriverProcess | None) -> str:
    if driver is not None:
        return "running"
    if state.ended:
        return "ended"
    return "stopped" if state.fingerprint else "reset"


def _inputs(part: _Part, bus: Bus) -> Iterable[InputStatus]:
    state, catalog = part.state, part.catalog
    times = {time.operator: time for stage in catalog.stages for time in stage.times}
    there = {*bus.names(), *bus.aliases()}
    for operator, positions in state.inputs.items():
        name, behind = catalog.inputs.get(operator, operator), catalog.lateness_ms.get(operator, 0)
        time = times.get(operator, TimeEntry(operator, name, len(positions), behind))
        ends = None
        if name in there:
            with suppress(LogAwayError):  # a topic carries it, whose broker does not answer
                ends = (state.until or {}).get(name) or bus.stream(name).ends()
        yield input_status(state, time, ends)


def _standby(state: JobState, stage: str, wanted: int) -> StandbyStatus | None:
    pairs = [
        (state.tasks.get(name, TaskState()), standby)
        for name, found in state.standbys.items()
        if name.rpartition("/")[0] == stage
        for standby in found
    ]
    if not pairs and not wanted:
        return None
    filled = [pair for pair in pairs if pair[1].epoch >= 0 or pair[0].epoch < 0]
    epochs = [max(0, task.epoch - standby.epoch) for task, standby in filled]
    sizes = [
        sum(ref.bytes for ref in task.segments if ref.epoch > standby.epoch)
        for task, standby in filled
    ]
    furthest = max(epochs, default=0), max(sizes, default=0)
    return StandbyStatus(len(pairs), len(filled), *furthest, wanted)


def _sinks(part: _Part) -> Iterable[SinkStatus]:
    state = part.state
    is_done = not state.sinks or sinks_confirmed(state, part.root)
    for entry in part.catalog.sinks:
        sent = state.counts.get(SINK_ROWS + entry.operator, 0)
        own = [one.rows for one in state.sinks if one.operator == entry.operator]
        waiting = 0 if is_done else sum(own)
        yield SinkStatus(
            entry.operator,
            entry.identity,
            entry.promise,
            sent - waiting,
            state.epoch if is_done else state.epoch - 1,  # which each had before this epoch
            waiting,
        )
