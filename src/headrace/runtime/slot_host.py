"""What a process gives the slots that run in it, and what it keeps of them between epochs.

Tasks and their nodes, stores brought to the committed state, standbys that follow it, one copy of
each broadcast table; and the changelog segment of a slot's attempt, in one file for all tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.bus.bus import Bus, Stream
from headrace.clock import Clock
from headrace.errors import CorruptDataError, HeadraceError, InternalError
from headrace.fencing import DirectoryOwner
from headrace.files import Files
from headrace.graph.operator_base import TableBinding
from headrace.graph.operators import StoreSpec
from headrace.plan.stages import (
    JobPlan,
    Stage,
)
from headrace.records.evolution import cast_to_plan
from headrace.records.schema import normalise
from headrace.runtime.async_loop import CallLoop
from headrace.runtime.background import MergeScheduler
from headrace.runtime.exchange import ExchangeFiles
from headrace.runtime.orders import (
    NO_WATERMARK,
    FileRef,
    SlotOrder,
    StandbyOrder,
    StandbyReport,
    StateTarget,
    TaskOrder,
)
from headrace.runtime.sink_shares import ShareSender
from headrace.runtime.stage_task import StageTask, store_specs
from headrace.runtime.standbys import StandbyStores, standby_specs
from headrace.state.backend import Changes, Position, SegmentChain, SegmentSource, Target
from headrace.state.broadcast import BroadcastTable
from headrace.state.columnar_table import TableChanges
from headrace.state.restore import FOLDER as RECOVERY
from headrace.state.restore import RestoreProgressFile, TaskName
from headrace.state.segment import SegmentHeader, SegmentInfo
from headrace.state.segment_writer import SegmentWriter
from headrace.state.task_state import TaskState, TaskStateCache


class BroadcastTables:
    """The tables that this process holds, by name.

    Args:
        bus: where streams are read.
        files: where files are read.
        storage: of the job, which holds the files.
    """

    def __init__(self, bus: Bus, files: Files, storage: Path) -> None:
        self._bus, self._files, self._storage = bus, files, storage
        self._held: dict[str, tuple[TableBinding, str, BroadcastTable]] = {}

    def at(
        self, plan: JobPlan, names: Collection[str], offsets: Mapping[str, Sequence[int]]
    ) -> dict[str, BroadcastTable]:
        """Return tables as they are at an epoch's offsets.

        The objects stay the same from epoch to epoch while the plan binds them to the same stream.

        Args:
            plan: of the job.
            names: of the tables.
            offsets: by name, those up to which each partition is read.

        Raises:
            InvalidInputError: the stream does not hold its first records any more.
            CorruptDataError: the stream or the file is damaged.
        """
        found = {}
        for binding in plan.tables:
            if binding.name in names:
                table = self._table(binding)
                if binding.stream is not None:
                    self._follow(binding, binding.stream, table, offsets.get(binding.name, ()))
                found[binding.name] = table
        return found

    def _table(self, binding: TableBinding) -> BroadcastTable:
        held = self._held.get(binding.name)
        identity = "" if binding.stream is None else self._bus.stream(binding.stream).identity
        if held is not None and held[:2] == (binding, identity):
            return held[2]
        partitions = binding.partitions if binding.stream is not None else 1
        table = BroadcastTable(binding.key, binding.schema, binding.values, partitions)
        if binding.stream is None:
            rows = self._read_file(binding)
            table.apply({0: (rows, rows.num_rows)})
        self._held[binding.name] = binding, identity, table
        return table

    def _follow(
        self, binding: TableBinding, name: str, table: BroadcastTable, upto: Sequence[int]
    ) -> None:
        if len(upto) != len(table.offsets):
            raise InternalError(
                f"broadcast store {binding.name!r} has {len(table.offsets)} partitions, found "
                f"{len(upto)} offsets"
            )
        if any(have > want for have, want in zip(table.offsets, upto, strict=True)):
            table.clear()  # an older epoch is run again
        columns = list(dict.fromkeys((*binding.schema.names, *binding.values)))
        stream = self._bus.stream(name)
        if _missed(table.offsets, upto, stream):
            table.clear()
        news = {}
        for partition, (have, want) in enumerate(zip(table.offsets, upto, strict=True)):
            if want > have:
                parts = stream.read(partition, have, want, columns=columns)
                rows = normalise(pa.Table.from_batches([part.batch for part in parts]))
                news[partition] = cast_to_plan(rows, binding.schema, name), want
        table.apply(news)

    def _read_file(self, binding: TableBinding) -> pa.RecordBatch:
        data = self._files.read(self._storage / binding.file)
        if hashlib.blake2b(data, digest_size=16).hexdigest() != binding.digest:
            raise CorruptDataError(
                f"{binding.file} of broadcast store {binding.name!r} does not match its digest; "
                "start the job again, which copies the file again",
                file=binding.file,
            )
        return normalise(pa.ipc.open_stream(data).read_all())


def _missed(have: Sequence[int], want: Sequence[int], stream: Stream) -> bool:
    """Say whether a compaction may have removed deletes that a table has not seen."""
    if not stream.spec.compact:
        return False
    compacted = stream.compacted()
    return any(0 < h < min(c, w) for h, c, w in zip(have, compacted, want, strict=True))


TaskId = tuple[str, int]


class PartSize(NamedTuple):
    """One task's part of a file."""

    bytes: int = 0
    rows: int = 0


class SealedTask(NamedTuple):
    """A task whose stores are sealed, and what each of them changed."""

    order: TaskOrder
    state: TaskState
    changes: Mapping[str, Changes | TableChanges]


def write_changes(
    files: Files,
    storage: Path,
    name: str,
    header: SegmentHeader,
    changed: Sequence[SealedTask],
    groups: int,
) -> tuple[FileRef, dict[TaskId, PartSize]]:
    """Write a segment durably, and notify each task's stores where it is.

    Args:
        files: the file system.
        storage: of the job.
        name: of the segment, below the storage.
        header: where it belongs.
        changed: the tasks, in the order of the slot.
        groups: number of key groups of the job.

    Returns:
        The file, and each task's part of it.
    """
    writer = SegmentWriter(files, storage / name, header)
    for task, _, changes in changed:
        for store, own in changes.items():
            if isinstance(own, TableChanges):
                rows = (own.schema, own.batches)
                writer.add_table(task.stage, task.task, store, *rows, groups)
            else:
                writer.add(task.stage, task.task, store, *own)
    info = writer.close()
    files.sync_folder((storage / name).parent)
    for _, state, _ in changed:
        state.written(storage / name, info.checksum)
    return FileRef(name, info.bytes, header.epoch, header.attempt, info.checksum), _sizes(info)


def _sizes(info: SegmentInfo) -> dict[TaskId, PartSize]:
    sizes: dict[TaskId, PartSize] = {}
    for section in info.sections:
        task = (section.stage, section.task)
        held = sizes.get(task, PartSize())
        size = section.end - section.begin
        sizes[task] = PartSize(held.bytes + size, held.rows + section.rows)
    return sizes


@dataclass(frozen=True)
class CachedTask:
    """A task's nodes after an epoch, and what must have been committed for them to continue."""

    task: StageTask
    plan: str
    lineage: str
    epoch: int
    expected: tuple[int, str]
    state: TaskState | None

    def fits(self, order: SlotOrder, task: TaskOrder, state: TaskState | None) -> bool:
        """Say whether what the nodes hold in memory is what the manifest says."""
        committed: StateTarget = task.state
        same = self.plan == order.plan and self.lineage == order.lineage
        return (
            same
            and self.state is state
            and self.epoch < order.epoch
            and (committed.epoch, committed.attempt) == self.expected
        )


@dataclass(frozen=True)
class SlotHost:
    """What a process gives the slots that run in it.

    Args:
        files, clock, bus: where bytes, time and streams come from.
        storage: the job's storage, which all hosts reach.
        state_dir: of this host.
        host: identity of ``state_dir``.
        plans: returns the plan of a digest.
        segments: returns the committed segments, for stores that are behind.
        registry: the stores that this process has open.
        runtimes: the tasks that this process has built, by job, stage and task.
        merges: what this process merges beside the epochs.
        tables: the broadcast stores that this process holds.
        should_stop: says that the driver of a generation wants its epoch to end early.
        standbys: the standbys that this process keeps.
        loop: runs the asynchronous calls of all its tasks.
        shares: passes on what a committed epoch sends to sinks.
        exchange: the files that its slots send to the next level, and those that they are sent.
        repair: puts a good copy in the place of a damaged committed file, where there is one.
        adopt_bytes: from this size on an output part gets a file of its own.
        hot_keys: whether heavy keys are looked for.
    """

    files: Files
    clock: Clock
    bus: Bus
    storage: Path
    state_dir: Path
    host: str
    plans: Callable[[str], JobPlan]
    segments: Callable[[SlotOrder], SegmentSource]
    registry: TaskStateCache
    runtimes: dict[tuple[str, str, int], CachedTask]
    merges: MergeScheduler
    tables: BroadcastTables
    should_stop: Callable[[int], bool]
    standbys: StandbyStores
    repair: Callable[[SlotOrder, Path], bool]
    loop: CallLoop
    shares: ShareSender
    exchange: ExchangeFiles
    adopt_bytes: int = 4 << 20
    hot_keys: bool = True


def release_all(host: SlotHost) -> None:
    """Close the tasks and stores that a process keeps, so that another one may open them."""
    for kept in host.runtimes.values():
        with suppress(HeadraceError):  # of the user's close(): the task is over
            kept.task.close()
    host.runtimes.clear()
    host.standbys.close()
    host.loop.close()
    host.merges.close()
    host.registry.close_all()
    host.shares.close()


def revoke(host: SlotHost, order: SlotOrder) -> None:
    """Close the tasks that an order names, and their standbys, for another process opens them."""
    if order.renew:
        release_all(host)
        return
    for stage, task in order.leaves:
        key = (order.job, stage, task)
        kept = host.runtimes.pop(key, None)
        if kept is not None:
            with suppress(HeadraceError):  # of the user's close(): the task is over
                kept.task.close()
        host.standbys.stop(key)
        host.registry.close(key)


class SlotStores:
    """What one attempt at an order opens.

    A state that has to read files asks this for them, and says how far it is; most have none to
    read, so what answers is made when it is first asked.

    Args:
        order: of the slot.
        host: its process.
        attempt: its name.
    """

    def __init__(self, order: SlotOrder, host: SlotHost, attempt: str) -> None:
        self._order, self._host, self._id = order, host, attempt
        self._begun: list[TaskId] = []  # tasks whose stores are caught up, or about to be
        self._progress: RestoreProgressFile | None = None  # of the restore of its stores
        self._reported = 0  # of those that are begun

    def state(self, stage: Stage, task: TaskOrder) -> TaskState | None:
        """Open a task's stores and bring them to the committed state; ``None``: it has none."""
        specs = store_specs(stage)
        if not specs:
            return None
        order, host = self._order, self._host
        key = (order.job, stage.name, task.task)
        if host.standbys.held:
            host.standbys.stop(key)
        state = host.registry.get(key, lambda: self._opened(specs, task), task.groups)
        self._begun.append((stage.name, task.task))
        state.catch_up(self._target(task.state), self, self)
        before = order.watermarks_before.get(stage.name, NO_WATERMARK)
        if (
            task.watermark_hold_ms is not None
        ):  # what follows calls that were waited for is not further
            before = min(before, task.watermark_hold_ms)
        state.begin(order.epoch, self._id, order.time_ms, before, task.swept_ms)
        return state

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        """Return how a task's store gets to the committed state; see ``SegmentSource``."""
        return self._committed.chain(stage, task, groups, after)

    def opens(self, path: Path) -> None:
        """Say which file or folder is about to be opened."""
        self._restore().opens(path)

    def reads(self, size: int, rows: int) -> None:
        """Say that bytes and rows were read and applied."""
        self._restore().reads(size, rows)

    def _restore(self) -> RestoreProgressFile:
        """Return where it is said how far the restore is."""
        order, host = self._order, self._host
        if self._progress is None:
            name = f"{order.generation:08d}-{order.slot:04d}.json"
            sizes = {(task.stage, task.task): task.state.bytes for task in order.tasks}
            path = host.storage / RECOVERY / name
            self._progress = RestoreProgressFile(path, host.clock, order.slot, order.epoch, sizes)
        for stage, task in self._begun[self._reported :]:
            self._progress.task(stage, task)
        self._reported = len(self._begun)
        return self._progress

    def end_restore(self) -> None:
        """Forget how far the restore is, once it is over or given up."""
        if self._progress is not None:
            self._progress.close()

    def _opened(self, specs: list[StoreSpec], of: TaskOrder | StandbyOrder) -> TaskState:
        job, host, registry = self._order.job, self._host, self._host.registry
        name = TaskName(job, of.stage, of.task, of.groups)
        folder = host.state_dir / job / f"{of.stage}-{of.groups[0]}-{of.groups[1]}"
        return TaskState(name, specs, folder, host.files, registry.backends, cache=registry.cache)

    def _target(self, held: StateTarget) -> Target:
        order = self._order
        position = Position(order.lineage, held.epoch, held.attempt)
        owner = DirectoryOwner(order.origin or order.lineage, order.generation)
        return Target(position, held.attempt, held.shape, owner)

    @cached_property
    def _committed(self) -> SegmentSource:
        return self._host.segments(self._order)

    def follow(self, stages: dict[str, Stage]) -> list[StandbyReport]:
        """Have the standbys of this slot continue, beside the epochs to come.

        Args:
            stages: of the order's level, by name.
        """
        order, kept = self._order, self._host.standbys
        kept.keep(order.job, {(one.stage, one.task) for one in order.standbys}, set(stages))
        return [
            kept.follow(
                (order.job, one.stage, one.task),
                one.groups,
                partial(self._opened, standby_specs(store_specs(stages[one.stage])), one),
                self._target(one.state),
                self._committed,
            )
            for one in order.standbys
        ]
