"""What is known of each job from its files: for ``jobs ls`` and ``jobs describe``.

Needs neither the job's code nor its driver, and is right while that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.catalog import Catalog, TimeEntry, load_catalog
from headrace.coordinator.inspection.job_reader import JobReader
from headrace.coordinator.job_events import JobEvent, job_events
from headrace.coordinator.job_parts import group_state, part_folders
from headrace.coordinator.job_storage import STORAGES, check_job_name, newest_storage
from headrace.coordinator.leader_lease import DriverProcess, MemberInfo, driver_of, read_members
from headrace.coordinator.manifest import (
    SINK_ROWS,
    JobState,
    TaskState,
    partition_lags,
    state_bytes,
)
from headrace.coordinator.outputs import sinks_confirmed
from headrace.coordinator.watermarks import Now, input_watermark
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.plan.stages import PART
from headrace.sources.bounded_bus import saved_inputs

SHOWN_EVENTS = 6
"""So many of the last events are told of."""

Status = Literal["running", "stopped", "ended", "reset", "damaged", "paused", "stopping"]
"""The last two are known to the driver alone."""


@dataclass(frozen=True)
class InputView:
    """How far one input operator is; ``lag`` is ``None`` where its stream is not on the bus."""

    operator: str
    stream: str
    read: int
    lag: int | None
    watermark_ms: int | None
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class StandbyView:
    """The standbys of a stage: how many, how many of them hold what is committed but for a tail.

    ``epochs`` and ``size`` tell how far the last of these is behind: epochs, and bytes of changes;
    ``wanted`` how many there are to be, which too few hosts have no place for.
    """

    standbys: int
    filled: int
    epochs: int
    size: int
    wanted: int = 0


@dataclass(frozen=True)
class StageView:
    """A keyed stage: its tasks, about how large their state is, and the hosts that have it."""

    stage: str
    tasks: int
    state_bytes: int
    hosts: tuple[str, ...]
    standby: StandbyView | None = None


@dataclass(frozen=True)
class SinkView:
    """What one sink has committed: rows, all up to an epoch; ``waiting`` are not confirmed yet."""

    operator: str
    identity: str
    promise: str
    rows: int
    epoch: int
    waiting: int


@dataclass(frozen=True)
class PartView:
    """One of several parts of a job: the name it is kept under, and its epochs."""

    part: str
    epoch: int
    oldest_epoch: int
    ended: bool


@dataclass(frozen=True)
class JobView:
    """One job as of its last epoch; ``state`` is ``None`` where that cannot be read.

    ``parts`` are there where there are several, ``members`` where processes share the job;
    ``events`` are the last of its story.
    """

    job: str
    status: Status
    driver: DriverProcess | None
    storage: Path
    state: JobState | None
    oldest_epoch: int | None
    inputs: tuple[InputView, ...]
    stages: tuple[StageView, ...]
    outputs: tuple[str, ...]
    sinks: tuple[SinkView, ...] = ()
    parts: tuple[PartView, ...] = ()
    problem: str = ""
    members: tuple[MemberInfo, ...] = ()
    events: tuple[JobEvent, ...] = ()

    @property
    def lag(self) -> int | None:
        """Rows that no epoch has read yet; ``None`` where an input is not known."""
        lags = [found.lag for found in self.inputs if found.lag is not None]
        return sum(lags) if len(lags) == len(self.inputs) else None

    @property
    def state_bytes(self) -> int:
        """About how large the state of all tasks is."""
        return sum(stage.state_bytes for stage in self.stages)

    @property
    def standbys_to_fill(self) -> int:
        """How many standbys are not up yet, those too that there is no host for."""
        held = [stage.standby for stage in self.stages if stage.standby is not None]
        return sum(max(one.wanted, one.standbys) - one.filled for one in held)

    @property
    def is_deployed(self) -> bool:
        """Say whether it runs, and all its tasks and standbys are up (seed 002)."""
        if self.driver is None or self.state is None or self.standbys_to_fill:
            return False
        hosts = self.state.hosts
        homes = {task.host for task in self.state.tasks.values()} - {""}
        return all(hosts[home].slots for home in homes if home in hosts)


def job_names(settings: Settings) -> list[str]:
    """Return the names of all jobs that have committed anything, sorted."""
    folders = (settings.jobs_dir, settings.state_dir / STORAGES)
    return sorted(
        {
            path.name
            for folder in folders
            if folder.is_dir()
            for path in folder.iterdir()
            if not path.name.startswith(".") and PART not in path.name
            if any((path / "manifests").glob("[0-9]*.json"))
        }
    )


def view_job(
    settings: Settings,
    job: str,
    bus: Bus,
    clock: Clock,
    driver: DriverProcess | None = None,
    known: Mapping[str, JobState] | None = None,
) -> JobView:
    """Return what is known of a job, of all its parts together.

    Args:
        settings: of the home.
        job: its name.
        bus: its streams.
        clock: for names.
        driver: its driver, for one that tells of its own job; else it is looked for.
        known: the states that this one holds, by part; others are read.

    Raises:
        InvalidInputError: there is no such job.
    """
    root = newest_storage(settings, check_job_name(job))
    driver = driver or driver_of(root, settings.jobs_dir / job, job, clock)
    bus, known = saved_inputs(bus, root), known or {}
    found = _view(root, job, driver, bus, clock, known.get(job))
    first = replace(found, members=_members(root, driver))
    folders = list(part_folders(settings, job))
    others = [_view(path, path.name, driver, bus, clock, known.get(path.name)) for path in folders]
    view = group_view([first, *others]) if others else first
    return replace(view, events=tuple(job_events([root, *folders])[-SHOWN_EVENTS:]))


def _members(root: Path, driver: DriverProcess | None) -> tuple[MemberInfo, ...]:
    """Return the processes that share a job that is driven by one of them."""
    found = read_members(root)
    is_theirs = driver is not None and any(m.drives and m.process == driver.process for m in found)
    return tuple(found) if is_theirs else ()


def group_view(views: Sequence[JobView]) -> JobView:
    """Return several parts as one job; one that is damaged hides what the others are."""
    states = [view.state for view in views if view.state is not None]
    if len(states) < len(views):
        return next(view for view in views if view.state is None)
    state = group_state(states)
    return replace(
        views[0],
        status=_status(state, views[0].driver),
        state=state,
        inputs=tuple(found for view in views for found in view.inputs),
        stages=tuple(stage for view in views for stage in view.stages),
        outputs=tuple(sorted({name for view in views for name in view.outputs})),
        sinks=tuple(sink for view in views for sink in view.sinks),
        parts=tuple(
            PartView(one.job, one.epoch, view.oldest_epoch or 0, ended=one.ended)
            for one, view in zip(states, views, strict=True)
        ),
    )


def _view(
    root: Path,
    job: str,
    driver: DriverProcess | None,
    bus: Bus,
    clock: Clock,
    known: JobState | None,
) -> JobView:
    files = Files(sync=False)
    try:
        reader = JobReader(root, job, files, clock)
        state = known or reader.state()
        oldest = reader.kept(state).oldest
        catalog = load_catalog(root, state.generation, files)
    except CorruptDataError as error:
        return JobView(job, "damaged", driver, root, None, None, (), (), (), problem=str(error))
    return JobView(
        job,
        _status(state, driver),
        driver,
        root,
        state,
        oldest,
        tuple(_inputs(state, catalog, bus)),
        tuple(stage_views(state, catalog.standbys if catalog is not None else {})),
        catalog.outputs if catalog is not None else (),
        tuple(_sinks(state, catalog, root)) if catalog is not None else (),
    )


def _status(state: JobState, driver: DriverProcess | None) -> Status:
    if driver is not None:
        return "running"
    if state.ended:
        return "ended"
    return "stopped" if state.fingerprint else "reset"


def _inputs(state: JobState, catalog: Catalog | None, bus: Bus) -> Iterable[InputView]:
    streams = catalog.inputs if catalog is not None else {}
    lateness = catalog.lateness_ms if catalog is not None else {}
    stages = catalog.stages if catalog is not None else ()
    times = {time.operator: time for stage in stages for time in stage.times}
    there = {*bus.names(), *bus.aliases()}
    for operator, positions in state.inputs.items():
        name = streams.get(operator, operator)
        offsets = tuple(positions[p].next_offset for p in sorted(positions))
        behind = lateness.get(operator, 0)
        time = times.get(operator, TimeEntry(operator, name, len(positions), behind))
        now = Now(state.time_ms)
        lag = None
        if name in there:
            ends = (state.until or {}).get(name) or bus.stream(name).ends()
            now = Now(state.time_ms, {name: ends})
            lag = sum(partition_lags(positions, ends))
        yield InputView(
            operator,
            name,
            sum(offsets),
            lag,
            input_watermark(time, positions, now),
            offsets,
        )


def stage_views(state: JobState, copies: Mapping[str, int] | None = None) -> Iterable[StageView]:
    """Yield the keyed stages of a job, of whose tasks each is to have so many standbys."""
    for stage, count in state.task_counts.items():
        tasks = [task for name, task in state.tasks.items() if name.rpartition("/")[0] == stage]
        hosts = sorted({task.host for task in tasks if task.host})
        yield StageView(
            stage,
            count,
            sum(map(state_bytes, tasks)),
            tuple(hosts),
            _standby(state, stage, count * (copies or {}).get(stage, 0)),
        )


def _standby(state: JobState, stage: str, wanted: int) -> StandbyView | None:
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
    return StandbyView(len(pairs), len(filled), *furthest, wanted)


def _sinks(state: JobState, catalog: Catalog, root: Path) -> Iterable[SinkView]:
    is_done = not state.sinks or sinks_confirmed(state, root)
    for entry in catalog.sinks:
        sent = state.counts.get(SINK_ROWS + entry.operator, 0)
        own = [part.rows for part in state.sinks if part.operator == entry.operator]
        waiting = 0 if is_done else sum(own)
        yield SinkView(
            entry.operator,
            entry.identity,
            entry.promise,
            sent - waiting,
            state.epoch if is_done else state.epoch - 1,  # which each had before this epoch
            waiting,
        )
