"""Makes a process ready to run slots: its files, bus, plans, stores, and who it is."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.coordinator.backup.copying import FileCopier, named_files
from headrace.coordinator.collector import record_storage
from headrace.coordinator.commit_log import CommitLog, FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.identity import host_identity
from headrace.coordinator.manifest import JobState
from headrace.coordinator.plans import load_plan
from headrace.coordinator.task_files import TaskState
from headrace.errors import CorruptDataError
from headrace.files import Files
from headrace.state.chain import Chain, Step
from headrace.state.object_cache import DEFAULT_CACHE_BYTES
from headrace.state.options import DEFAULT_SETTINGS, RocksDBSettings
from headrace.state.position import Position
from headrace.state.registry import Registry
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.task_state import BACKENDS, BackendFactory
from headrace.task.asynchronous.loop import CallLoop
from headrace.task.background import Background, ThreadBackground
from headrace.task.merges import Merges
from headrace.task.orders import SlotOrder
from headrace.task.slot_host import SlotHost
from headrace.task.standbys import SHARE, StandbyStores
from headrace.task.tables import Tables


class ManifestSegments:
    """The committed segments that a job's manifests name, up to one epoch.

    The manifests are read when the first store turns out to be behind.
    """

    def __init__(
        self, log: CommitLog, root: Path, epoch: int, copy: FileCopier | None = None
    ) -> None:
        self._log, self._root, self._epoch, self._copy = log, root, epoch, copy
        self._state: JobState | None = None

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> Chain:
        """Return how a task's store gets to the epoch's state."""
        del groups
        return self._chain(stage, task, after)

    def mend(self, path: Path) -> bool:
        """Put the file that the copy in job_dir has in the place of a damaged one."""
        if self._copy is None or not path.is_relative_to(self._root):
            return False
        state = load_state(self._log, self._epoch)
        wanted = path.relative_to(self._root).as_posix()
        named = [] if state is None else named_files(state)
        found = next((file for file in named if file.path == wanted), None)
        if found is None or found.checksum is None:
            return False
        try:
            self._copy.replace(found)
        except (OSError, CorruptDataError):
            return False
        return True

    def _chain(self, stage: str, task: int, after: Position | None) -> Chain:
        if self._state is None:
            self._state = load_state(self._log, self._epoch)
        state = self._state
        if state is None:
            raise CorruptDataError(f"no manifest up to epoch {self._epoch}", epoch=self._epoch)
        held = state.tasks.get(f"{stage}/{task}", TaskState())
        steps = tuple(
            Step(
                Position(state.lineage, ref.epoch, ref.attempt),
                (self._root / ref.path,),
                ref.first_epoch,
            )
            for ref in held.segments
        )
        sums = {self._root / r.path: r.checksum for r in held.files if r.checksum is not None}
        at = _next_step(steps, after)
        if at is not None:
            return Chain(after, steps=steps[at:], checksums=sums)
        if not held.snapshots:
            return Chain(None, steps=steps, checksums=sums)
        stands = Position(state.lineage, held.snapshot_epoch, held.snapshot_attempt)
        first = () if after == stands else held.snapshots
        return Chain(
            stands,
            tuple(self._root / ref.path for ref in first),
            steps,
            sums,
            tuple(ref.groups for ref in first),
        )


def _next_step(steps: tuple[Step, ...], after: Position | None) -> int | None:
    """Which step goes on from a position: the one after it, or a merged one that it is within."""
    if after is None:
        return None
    for at, step in enumerate(steps):
        if step.position == after:
            return at + 1
        if step.is_within(after):
            return at
    return None


def open_host(  # noqa: PLR0913 - each is a part of its own, by name
    *,
    storage: Path,
    bus: Bus,
    state_dir: Path,
    clock: Clock,
    files: Files,
    adopt_bytes: int = 4 << 20,
    background: Background | None = None,
    background_of_standbys: Background | None = None,
    standby_share: float = SHARE,
    copy: Path | None = None,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    rocksdb: RocksDBSettings = DEFAULT_SETTINGS,
    hot_keys: bool = True,
) -> SlotHost:
    """Return what ``run_slot`` needs in this process.

    Args:
        storage: the job's.
        bus: inputs.
        state_dir: of this host; made when missing, readable by its owner only.
        clock: where time comes from.
        files: the file system.
        adopt_bytes: from this size on an output part gets a file of its own.
        copy: folder in job_dir with a copy of the storage, if there is one.
        background: where merges run; a thread of low priority when left out.
        background_of_standbys: where standbys follow; another such thread when left out.
        standby_share: of a core that standbys may use.
        cache_bytes: what the process may keep of stores' values between epochs.
        rocksdb: memory of its RocksDB stores.
        hot_keys: whether heavy keys are looked for.
    """
    log = FileCommitLog(storage, files, clock)
    good = FileCopier(copy, storage, files, clock) if copy is not None else None

    opened: BackendFactory = partial(RocksDBBackend, settings=rocksdb)
    backends = {**BACKENDS, "rocksdb": opened}

    def segments(order: SlotOrder) -> ManifestSegments:
        return ManifestSegments(log, storage, order.epoch - 1, good)

    record_storage(state_dir, storage, files, clock)
    return SlotHost(
        files=files,
        clock=clock,
        bus=bus,
        storage=storage,
        state_dir=state_dir,
        host=host_identity(state_dir, clock, files),
        plans=cache(lambda digest: load_plan(storage, digest, files)),
        segments=segments,
        registry=Registry(cache_bytes=cache_bytes, backends=backends),
        runtimes={},
        merges=Merges(background or ThreadBackground(), files, clock, storage),
        tables=Tables(bus, files, storage),
        standbys=StandbyStores(background_of_standbys or ThreadBackground(), clock, standby_share),
        should_stop=lambda generation: stop_file(storage, generation).exists(),
        mend=lambda order, path: segments(order).mend(path),
        loop=CallLoop(clock),
        adopt_bytes=adopt_bytes,
        hot_keys=hot_keys,
    )


def stop_file(storage: Path, generation: int) -> Path:
    """Return the file whose presence asks the slots of a generation to end their epoch."""
    return storage / f"stop-{generation:08d}"
