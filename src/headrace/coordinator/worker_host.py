"""Makes a process ready to run slots: its files, bus, plans and stores, and the host's identity.

Local state that nobody needs any more is collected here, too: of removed jobs, and of tasks of
the past. That runs on each host, in whichever process comes first. What is not needed is marked,
and goes when it has not been needed for a while and nobody has it open; it could be built again
from the job's storage, so the pause only saves work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from threading import Thread

from headrace.bus import Bus, open_bus
from headrace.clock import CLOCK_RECORD, Clock, SteadyClock, SystemClock
from headrace.config import Settings
from headrace.coordinator.commit_log import CommitLog, FileCommitLog, load_state
from headrace.coordinator.epoch_ranges import task_name
from headrace.coordinator.file_copier import FileCopier, named_files
from headrace.coordinator.job_storage import STORAGES, DriverLock, job_storages
from headrace.coordinator.manifest import JobState, TaskState
from headrace.coordinator.plan_files import load_plan
from headrace.errors import CorruptDataError, HeadraceError, NotOwnerError
from headrace.fencing import DirectoryLock, StoreHeldError
from headrace.files import TRASH, Files, sole_user
from headrace.records.keys import group_range
from headrace.remote import DEFAULT_CACHE_BYTES as DEFAULT_CACHED
from headrace.remote import FOLDER as REMOTE
from headrace.remote import bound_caches, is_remote, on_host
from headrace.runtime.async_loop import CallLoop
from headrace.runtime.background import Background, MergeScheduler, ThreadBackground
from headrace.runtime.exchange import ExchangeFiles
from headrace.runtime.exchange_network import FOLDER as EXCHANGE
from headrace.runtime.exchange_network import NetworkAddress, NetworkExchange
from headrace.runtime.host_storage import SCHEME as SERVED
from headrace.runtime.host_storage import ServedStorage
from headrace.runtime.orders import SlotOrder
from headrace.runtime.sink_shares import ShareSender
from headrace.runtime.slot_host import BroadcastTables, SlotHost
from headrace.runtime.standbys import SHARE, StandbyStores
from headrace.sources.bounded_bus import saved_inputs
from headrace.state.backend import ChainStep, Position, SegmentChain
from headrace.state.object_store import DEFAULT_CACHE_BYTES
from headrace.state.rocksdb import DEFAULT_SETTINGS, RocksDBBackend, RocksDBSettings
from headrace.state.task_state import BACKENDS, BackendFactory, TaskStateCache


def host_identity(state_dir: Path, clock: Clock, files: Files) -> str:
    """Return the identity of a host's state directory, made at its first use.

    What has to be found again is the disk with the stores, not the machine's name.
    """
    path = state_dir / "host-id"
    if not path.exists():
        files.make_folder(state_dir, 0o700)
        files.publish(path, clock.new_id().encode())
    return files.read(path).decode()


STOP_LOOK_S = 1.0
STORAGE_RECORD = "STORAGE"
DELETED_MARK = "DELETED"
UNNEEDED_MARK = "UNNEEDED"


def record_job_storage(state_dir: Path, storage: Path, copy: Path | None, files: Files) -> None:
    """Leave a word, beside the state of a job, of where its storage is.

    Of one on the disk of another host, which nobody serves after the run, it is that of its copy.
    """
    path = state_dir / storage.name / STORAGE_RECORD
    lasting = copy if copy is not None and is_remote(storage) else storage
    if _text(path) != str(lasting):
        files.make_missing(path.parent, 0o700)
        files.replace(path, str(lasting).encode())


def collect_garbage(state_dir: Path, files: Files, clock: Clock, keep_s: float) -> list[Path]:
    """Remove what has not been needed for ``keep_s`` seconds; returns the folders that went.

    A job is gone when its folder is no longer in a job_dir that is there, or holds a file
    ``DELETED_MARK``. Of a job that is there, tasks are gone whose key groups no task has now, and
    those that run on another host and have no standby here. What cannot be judged, such as when
    job_dir does not answer, stays; so does what is open.
    """
    with sole_user(state_dir / "COLLECTOR") as is_alone:
        if not is_alone:
            return []
        for path in state_dir.glob(f"**/{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)
        host = host_identity(state_dir, clock, files)
        jobs = _jobs(state_dir, files)
        found = [path for folder in jobs for path in _unneeded(folder, host, files)]
        found += [path for path in _storages(state_dir, files) if (path / DELETED_MARK).exists()]
        due = [path for path in found if _is_due(path, clock, keep_s)]
        return [path for path in due if _remove(path, state_dir, files, clock)]


def collect_garbage_in_background(
    state_dir: Path, files: Files, clock: Clock, keep_s: float
) -> None:
    """Collect in a thread, which nobody waits for; what fails is left for another time."""

    def run() -> None:
        with contextlib.suppress(OSError, HeadraceError):
            collect_garbage(state_dir, files, clock, keep_s)

    Thread(target=run, name="headrace-collector", daemon=True).start()


def _jobs(state_dir: Path, files: Files) -> list[Path]:
    folders = [state_dir / name for name in files.names(state_dir)]
    return [folder for folder in folders if (folder / STORAGE_RECORD).exists()]


def _storages(state_dir: Path, files: Files) -> list[Path]:
    folder = state_dir / STORAGES
    return [folder / name for name in files.names(folder)]


def _unneeded(folder: Path, host: str, files: Files) -> list[Path]:
    """Return the folder of a job that is gone, or those of its tasks that are."""
    storage = Path(_text(folder / STORAGE_RECORD))
    try:
        is_gone = storage.parent.is_dir() and not storage.exists()
        if is_remote(storage):  # its folder here is made by whatever looks at it
            is_gone = not files.names(storage / "manifests")
        if is_gone or (storage / DELETED_MARK).exists():
            return [folder]
        _needed(folder)
        wanted = _task_folders(storage, host, files)
    except (OSError, HeadraceError):
        return []
    gone = []
    for path in folder.iterdir():
        if path.is_dir() and wanted is not None and path.name not in wanted:
            gone.append(path)
        else:
            _needed(path)
    return gone


def _task_folders(storage: Path, host: str, files: Files) -> set[str] | None:
    """Return the names of the folders of the tasks that a host has now; ``None``: not known."""
    if not files.names(storage / "manifests"):
        return None
    state = load_state(FileCommitLog(storage, files))
    if state is None:
        return None
    return {
        "{}-{}-{}".format(stage, *group_range(task, count, state.key_groups))
        for stage, count in state.task_counts.items()
        for task in range(count)
        if host in _hosts_of(state, task_name(stage, task))
        or state.tasks.get(task_name(stage, task), TaskState()).host == ""
    }


def _hosts_of(state: JobState, name: str) -> set[str]:
    """Return where a task runs, and where its standbys are."""
    own = state.tasks.get(name, TaskState()).host
    return {own, *(standby.host for standby in state.standbys.get(name, ()))}


def _needed(path: Path) -> None:
    if path.is_dir():
        (path / UNNEEDED_MARK).unlink(missing_ok=True)


def _is_due(path: Path, clock: Clock, keep_s: float) -> bool:
    """Say whether a folder has been marked for so long; the first time marks it."""
    now, since = clock.now_ms(), _text(path / UNNEEDED_MARK)
    if not since.isdigit():
        (path / UNNEEDED_MARK).write_text(str(now))
        since = str(now)
    return now - int(since) >= keep_s * 1000


def _remove(path: Path, state_dir: Path, files: Files, clock: Clock) -> bool:
    """Remove a folder unless somebody has it, or a part of it, open.

    A storage is looked at once more under the lock of its driver: since it was found to be gone,
    a job of its name may have begun there.
    """
    with ExitStack() as held:
        try:
            if (path / "driver.lock").exists():
                held.callback(DriverLock(path, path.name, clock).release)
            for lock in sorted(path.glob("**/LOCK")):
                if not any(part.startswith("db-") for part in lock.relative_to(path).parts):
                    held.callback(DirectoryLock(lock.parent).release)
        except (StoreHeldError, NotOwnerError):
            return False
        if path.parent == state_dir / STORAGES and not (path / DELETED_MARK).exists():
            return False
        # Who waits for a lock in it finds that it is no longer in its place.
        files.remove_tree(path)
        if path.parent == state_dir:
            files.remove_tree(state_dir / EXCHANGE / path.name)
            _drop_served(state_dir, path.name)
    return True


def _drop_served(state_dir: Path, job: str, kept: Path | None = None) -> None:
    """Remove what is cached of a job's storage on the disks of drivers' hosts, but for one."""
    for folder in (state_dir / REMOTE / SERVED).glob(f"*/{job}"):
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.read_text()
    return ""


KEPT_PLANS = 4
"""Of a process: a job that reads streams by pattern is planned again whenever one comes or goes."""


class _ManifestStates:
    """The states of a job after its epochs; each is built on the one that was asked for before."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._last: JobState | None = None

    def at(self, epoch: int) -> JobState | None:
        """Return the state after the newest epoch up to one."""
        state = self._last = load_state(self._log, epoch, self._last)
        return state


class ManifestSegments:
    """The committed segments that a job's manifests name, up to one epoch.

    Args:
        state_at: returns the state after the newest epoch up to one; called when the first store
            turns out to be behind.
        root: the job's storage.
        epoch: the last one that counts.
        copy: has good copies of files, if there are any.
    """

    def __init__(
        self,
        state_at: Callable[[int], JobState | None],
        root: Path,
        epoch: int,
        copy: FileCopier | None = None,
    ) -> None:
        self._state_at, self._root, self._epoch, self._copy = state_at, root, epoch, copy

    @cached_property
    def _state(self) -> JobState | None:
        return self._state_at(self._epoch)

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        """Return how a task's store gets to the epoch's state."""
        del groups
        state = self._state
        if state is None:
            raise CorruptDataError(f"no manifest up to epoch {self._epoch}", epoch=self._epoch)
        held = state.tasks.get(f"{stage}/{task}", TaskState())
        steps = tuple(
            ChainStep(
                Position(state.lineage, ref.epoch, ref.attempt),
                (self._root / ref.path,),
                ref.first_epoch,
            )
            for ref in held.segments
        )
        sums = {self._root / r.path: r.checksum for r in held.files if r.checksum is not None}
        at = _next_step(steps, after)
        if at is not None:
            return SegmentChain(after, steps=steps[at:], checksums=sums)
        if not held.snapshots:
            return SegmentChain(None, steps=steps, checksums=sums)
        stands = Position(state.lineage, held.snapshot_epoch, held.snapshot_attempt)
        first = () if after == stands else held.snapshots
        return SegmentChain(
            stands,
            tuple(self._root / ref.path for ref in first),
            steps,
            sums,
            tuple(ref.groups for ref in first),
        )

    def repair(self, path: Path) -> bool:
        """Put the file that the copy in job_dir has in the place of a damaged one."""
        if self._copy is None or not path.is_relative_to(self._root):
            return False
        state = self._state
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


def _next_step(steps: tuple[ChainStep, ...], after: Position | None) -> int | None:
    """Which step continues from a position: the one after it, or a merged one that it is within."""
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
    network: NetworkAddress | None = None,
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
        network: where slots of other hosts reach this one; ``None``: what slots exchange goes
            through the storage.
    """
    states = _ManifestStates(FileCommitLog(storage, files))
    good = FileCopier(copy, storage, files) if copy is not None else None

    opened: BackendFactory = partial(RocksDBBackend, settings=rocksdb)
    backends = {**BACKENDS, "rocksdb": opened}

    def segments(order: SlotOrder) -> ManifestSegments:
        return ManifestSegments(states.at, storage, order.epoch - 1, good)

    record_job_storage(state_dir, storage, copy, files)
    _drop_served(state_dir, storage.name, storage)
    identity = host_identity(state_dir, clock, files)
    exchange = ExchangeFiles(files, storage)
    if network is not None and is_remote(storage):
        exchange = NetworkExchange(files, storage, state_dir, identity, network)
    return SlotHost(
        files=files,
        clock=clock,
        bus=bus,
        storage=storage,
        state_dir=state_dir,
        host=identity,
        plans=lru_cache(KEPT_PLANS)(lambda digest: load_plan(storage, digest, files)),
        segments=segments,
        registry=TaskStateCache(cache_bytes=cache_bytes, backends=backends),
        runtimes={},
        merges=MergeScheduler(background or ThreadBackground(), files, clock, storage),
        tables=BroadcastTables(bus, files, storage),
        standbys=StandbyStores(background_of_standbys or ThreadBackground(), clock, standby_share),
        should_stop=_StopWatch(storage, files, clock).is_set,
        repair=lambda order, path: segments(order).repair(path),
        loop=CallLoop(clock),
        shares=ShareSender(files, clock, storage),
        exchange=exchange,
        adopt_bytes=adopt_bytes,
        hot_keys=hot_keys,
    )


class _StopWatch:
    """Looks for stop files: each time on a file system, once in a while in an object storage."""

    def __init__(self, storage: Path, files: Files, clock: Clock) -> None:
        self._storage, self._files, self._clock = storage, files, clock
        self._every_s = STOP_LOOK_S if is_remote(storage) else 0.0
        self._looked_s = float("-inf")

    def is_set(self, generation: int) -> bool:
        """Say whether the driver of a generation wants its epoch to end early."""
        path = stop_file(self._storage, generation)
        if not self._every_s:
            return path.exists()
        now = self._clock.monotonic()
        if now - self._looked_s < self._every_s:
            return False
        self._looked_s = now
        return self._files.exists(path)


def stop_file(storage: Path, generation: int) -> Path:
    """Return the file whose presence asks the slots of a generation to end their epoch."""
    return storage / f"stop-{generation:08d}"


PACKED = "HEADRACE_PACKED"
"""Set where code and environment came with the job."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker has to know of a job; travels once, with the slots.

    ``state_dir`` is a host's own folder; the variable ``HEADRACE_STATE_DIR`` of a host
    overrides it there. ``address`` is where other hosts reach this one; empty: they do not.
    ``served`` is how they reach the storage, where that is on the disk of the driver's host.
    """

    job: str
    slot: int
    storage: str
    bus: str
    state_dir: str
    paths: tuple[str, ...]
    adopt_bytes: int
    cache_bytes: int
    block_cache_bytes: int
    write_buffer_bytes: int
    copy: str = ""
    keep_unused_s: float = 86_400.0
    standby_share: float = 0.5
    hot_keys: bool = True
    storage_cache_bytes: int = DEFAULT_CACHED
    address: str = ""
    served: ServedStorage | None = None


def worker_settings(
    job: str, storage: Path, settings: Settings, served: ServedStorage | None = None
) -> WorkerSettings:
    """Return what the workers of a part have to know; of slot 0."""
    if served is not None:
        storage = served.path(settings.state_dir, job)
    return WorkerSettings(
        served=served,
        job=job,
        slot=0,
        storage=str(storage),
        bus=str(settings.bus_dir),
        state_dir=str(settings.state_dir),
        paths=import_paths(),
        adopt_bytes=settings.bus.adopt_bytes,
        cache_bytes=settings.state.cache_bytes,
        block_cache_bytes=settings.state.block_cache_bytes,
        write_buffer_bytes=settings.state.write_buffer_bytes,
        keep_unused_s=settings.state.keep_unused_s,
        standby_share=settings.standby.share,
        hot_keys=settings.observe.hot_keys,
        storage_cache_bytes=settings.storage.cache_bytes,
        copy=str(job_storages(settings, job).copy or ""),
    )


def import_paths() -> tuple[str, ...]:
    """Folders that workers search for the user's modules: those of this process, existing.

    None where all was packed for them: a folder of the same name there is another.
    """
    if os.environ.get(PACKED):
        return ()
    here = os.getcwd()
    return tuple(dict.fromkeys(os.path.abspath(p or here) for p in sys.path if p != "" or here))


def state_dir_here(settings: Settings | WorkerSettings) -> Path:
    """Return the folder of this host's stores: its environment goes before the settings."""
    return Path(os.environ.get("HEADRACE_STATE_DIR", settings.state_dir)).absolute()


def open_worker(
    settings: WorkerSettings, state_dir: Path | None = None, anchor: int | None = None
) -> SlotHost:
    """Make this process ready to run a slot; it finds the user's modules from now on.

    Args:
        settings: of the worker.
        state_dir: of this host; left out, that of the settings or of its environment.
        anchor: the process that servers of this host end with; left out, this one.
    """
    for path in reversed(settings.paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    state_dir = state_dir or state_dir_here(settings)
    storage = on_host(Path(settings.storage), state_dir)
    if settings.served is not None:
        settings.served.connect()
    bus = on_host(Path(settings.bus), state_dir)
    bound_caches(settings.storage_cache_bytes)
    return open_host(
        storage=storage,
        bus=saved_inputs(open_bus(bus), storage),
        state_dir=state_dir,
        clock=SteadyClock(SystemClock(), record=bus / CLOCK_RECORD),
        files=Files(),
        adopt_bytes=settings.adopt_bytes,
        copy=on_host(Path(settings.copy), state_dir) if settings.copy else None,
        cache_bytes=settings.cache_bytes,
        standby_share=settings.standby_share,
        hot_keys=settings.hot_keys,
        network=NetworkAddress(settings.address, anchor or os.getpid())
        if settings.address
        else None,
        rocksdb=RocksDBSettings.within(settings.block_cache_bytes, settings.write_buffer_bytes),
    )
