"""From a graph and settings to a coordinator that can start: the order of things at deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from headrace.bus import Bus
from headrace.config import Settings, read_start
from headrace.coordinator.backup import backup_hooks
from headrace.coordinator.bindings import (
    LoadedFile,
    broadcast_specs,
    check_no_own_output,
    load_table_files,
    patterns_of,
    readable_names,
    store_table_files,
    streams_of,
    with_bound_streams,
    with_deployed_sinks,
    with_placed_outputs,
    with_store_servers,
)
from headrace.coordinator.bounded_runs import bounded_run_hooks
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.coordinator import Coordinator
from headrace.coordinator.dataframe_inputs import check_has_columns
from headrace.coordinator.epoch import Runner
from headrace.coordinator.epoch_records import EpochLimits
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.internal_streams import internal_stream_hooks
from headrace.coordinator.job_parts import JobGeneration, check_deployable, part_folders
from headrace.coordinator.job_storage import (
    JobContext,
    JobStorage,
    check_job_name,
    job_storages,
)
from headrace.coordinator.manifest import JobState
from headrace.coordinator.placement import PlacementRules
from headrace.coordinator.plan_files import save_plan
from headrace.fencing_objects import fenced_files
from headrace.files import Files
from headrace.graph.operators import Input, JobGraph, SendTo
from headrace.plan import StreamInfo, plan
from headrace.plan.dead_letters import dead_streams
from headrace.plan.parts import internal_stream_names, split_parts
from headrace.plan.semantics import RequestedSemantics
from headrace.plan.stages import CallLimits, JobPlan, with_task_counts
from headrace.sources.bounded_bus import from_beginning, look_again, share_sources


@dataclass(frozen=True)
class Deployment:
    """A job that is planned and saved, ready for a runner.

    Args:
        plan: of the job.
        digest: names the plan to the slots.
        storage: of the job's files.
        hooks: of the modes of the job.
        planner: plans it again when streams of a pattern come or go.
        group: the generation of the job, which its parts share.
    """

    plan: JobPlan
    digest: str
    storage: JobStorage
    hooks: Sequence[JobHook] = ()
    planner: JobPlanner | None = None
    group: JobGeneration | None = None

    @property
    def storage_host(self) -> str:
        """Identity of the host on whose disk the storage is; empty: all hosts reach it."""
        return next((hook.storage_host for hook in self.hooks if hook.storage_host), "")

    def coordinator(self, runner: Runner, context: JobContext) -> Coordinator:
        """Return the coordinator that drives this deployment on a runner."""
        settings, clock = context.settings, context.clock
        return Coordinator(
            self.plan,
            self.digest,
            bus=context.bus,
            log=FileCommitLog(self.storage.root, self.storage.files),
            storage=self.storage,
            runner=runner,
            clock=clock,
            limits=EpochLimits(
                settings.epoch.max_rows,
                settings.epoch.max_bytes,
                settings.epoch.timeout_s,
                settings.state.overlay_bytes,
                settings.state.durability,
                settings.state.keep_epochs,
                settings.state.keep_bytes,
                read_start(settings.job.start, "job.start"),
                settings.epoch.order,
                settings.standby.wanted,
                settings.epoch.max_waiting,
                PlacementRules.of(settings.placement),
            ),
            hooks=self.hooks,
            planner=self.planner,
            group=self.group,
        )


@dataclass(frozen=True)
class JobPlanner:
    """Plans a deployed job again, over the streams that match its patterns by then.

    Args:
        graph: as it was written.
        bus: the streams.
        settings: of the run.
        tables: the files of broadcast stores, as they were at deployment.
        storage: of the job's files.
        module: the user's module, which is shipped by value.
        part: of several, by its name; empty: the first.
        inputs: operators, of the part.
    """

    graph: JobGraph
    bus: Bus
    settings: Settings
    tables: Mapping[str, LoadedFile]
    storage: JobStorage
    module: str
    part: str
    inputs: frozenset[str]

    @cached_property
    def patterns(self) -> dict[str, str]:
        """The pattern of each input of the part that has one, by the name of the input."""
        found = patterns_of(self.graph)
        return {name: pattern for name, pattern in found.items() if name in self.inputs}

    def matching(self) -> set[tuple[str, str]]:
        """Return input and stream for all streams that match a pattern now."""
        look_again(self.bus)
        inputs = [one for one in self.graph.operators if isinstance(one, Input)]
        names = readable_names(self.bus)
        return {
            (one.name, name)
            for one in inputs
            if one.name in self.patterns
            for name in streams_of(one, self.bus, names)
        }

    def plan(self) -> tuple[JobPlan, str]:
        """Plan the job, and save the part's plan; return it with its digest.

        Raises:
            InvalidInputError: the graph does not fit its streams, or cannot be shipped.
        """
        parts = split_parts(make_plan(self.graph, self.bus, self.settings, files=self.tables))
        made = next(one for one in parts if one.part == self.part)
        share_sources(self.bus, [self.storage.root], self.storage.files)
        return made, self.save(made)

    def save(self, made: JobPlan) -> str:
        """Save a plan of the part where the slots find it; return its digest.

        Raises:
            InvalidInputError: it cannot be shipped.
        """
        self.storage.create()
        return save_plan(made, self.storage.root, self.storage.files, self.module)


def stream_infos(graph: JobGraph, bus: Bus, *, absent_ok: bool = False) -> dict[str, StreamInfo]:
    """Return what the planner has to know of the graph's streams that exist.

    Args:
        graph: of the job.
        bus: the streams.
        absent_ok: leave out an input that does not exist if its schema is given.

    Raises:
        InvalidInputError: an input stream does not exist, or has yet to be made of a DataFrame.
    """
    infos = {}
    known = set(bus.names())
    for operator in graph.operators:
        is_needed = isinstance(operator, Input) and not (absent_ok and operator.schema is not None)
        if absent_ok and isinstance(operator, Input) and operator.stream not in known:
            check_has_columns(graph.name, operator)
        if isinstance(operator, Input | SendTo) and (is_needed or operator.stream in known):
            infos[operator.stream] = _info(bus, operator.stream)
    for stream in internal_stream_names(graph).values():
        if stream in known:
            infos[stream] = _info(bus, stream)
    for table in broadcast_specs(graph).values():
        is_needed = not (absent_ok and table.schema is not None)
        if table.stream is not None and (is_needed or table.stream in known):
            infos[table.stream] = _info(bus, table.stream)
    return infos


def _info(bus: Bus, stream: str) -> StreamInfo:
    found = bus.stream(stream)
    settings = found.settings
    spec, written = found.spec, settings.counts(found.created.partitions)[0]
    version = len(settings.columns)
    place = (spec.time, spec.key, written, version, spec.added, spec.compact, found.said)
    return StreamInfo(spec.schema, spec.partitions, *place)


def make_plan(
    graph: JobGraph,
    bus: Bus,
    settings: Settings,
    *,
    absent_ok: bool = False,
    files: Mapping[str, LoadedFile] | None = None,
) -> JobPlan:
    """Return the plan of a graph over the streams of a bus.

    The number of key groups is fixed when a job is created; after that the manifest's holds, and
    after a rescale so do its numbers of tasks.
    With ``absent_ok`` an input need not exist if its schema is given: enough to look at.
    ``files`` are those of broadcast stores; they are read when left out.
    """
    graph = with_placed_outputs(graph, settings)
    dead = dead_streams(graph, settings.job.dead_letters)
    check_no_own_output(graph, bus, dead)
    graph = with_bound_streams(from_beginning(graph, bus), bus)
    if files is None:
        files = load_table_files(graph, absent_ok=absent_ok)
    held = _stored_state(job_storages(settings, check_job_name(graph.name)).readable)
    if held is not None and not held.fingerprint:  # a reset job is cut like a new one
        held = None
    infos = stream_infos(graph, bus, absent_ok=absent_ok)
    infos |= {name: _info(bus, name) for name in dead.keys() & bus.names()}
    made = plan(
        with_deployed_sinks(
            with_store_servers(graph, settings.remote.url, absent_ok=absent_ok), settings
        ),
        infos,
        key_groups=held.key_groups if held else settings.job.key_groups,
        tasks=settings.job.tasks,
        files={path: file.bound for path, file in files.items()},
        dead_letters=settings.job.dead_letters,
        limits=CallLimits(
            settings.job.call_timeout_s,
            settings.job.rows_per_message,
            settings.job.max_concurrency,
            settings.job.threads,
            settings.epoch.calls_ms / 1000,
            settings.epoch.wait_ms / 1000,
        ),
        semantics=RequestedSemantics(settings.job.state_semantics, settings.job.output_semantics),
    )
    counts: dict[str, int] = {}
    for state in (held, *(_stored_state(path) for path in part_folders(settings, graph.name))):
        if state is not None and state.rescaled_at >= 0:
            counts |= state.task_counts
    return with_task_counts(made, counts)


def _stored_state(root: Path) -> JobState | None:
    if not Files(sync=False).exists(root / "manifests"):
        return None
    return load_state(FileCommitLog(root, Files(sync=False)))


def deploy(
    graph: JobGraph,
    context: JobContext,
    module: str = "",
    tables: Mapping[str, LoadedFile] | None = None,
) -> tuple[Deployment, ...]:
    """Plan a graph and save its parts where the slots find them; senders come first.

    Args:
        graph: of the job.
        context: of the job.
        module: the user's module, which is shipped by value.
        tables: the files of broadcast stores; they are read when left out.

    Raises:
        InvalidInputError: the graph does not fit its streams, or cannot be shipped.
    """
    if tables is None:
        tables = load_table_files(graph)
    settings, bus, files, clock = context.settings, context.bus, context.files, context.clock
    parts = split_parts(make_plan(graph, bus, settings, files=tables))
    check_deployable(parts, settings, files)
    names = [one.job for one in parts]
    group = JobGeneration(parts[0].job, context.storage.parent, bus, files, clock, names)
    deployments = []
    for one in parts:
        part = replace(context, job=one.job)
        root = part.storage
        storage = JobStorage(root, fenced_files(files, root))
        inputs = frozenset(b.pattern or b.operator for s in one.stages for b in s.inputs)
        planner = JobPlanner(graph, bus, settings, tables, storage, module, one.part, inputs)
        digest = planner.save(one)
        store_table_files(tables.values(), storage)
        hooks = (
            *backup_hooks(part, root),
            *bounded_run_hooks(settings),
            *internal_stream_hooks(one, bus),
        )
        deployments.append(Deployment(one, digest, storage, hooks, planner, group))
    return tuple(deployments)
