"""All keyed state of one task: its stores, their epochs, and the one way they move on.

An epoch of a task is ``catch_up``, ``begin``, user code, ``seal``. What was sealed is written as a
segment by the slot, and applied here only when a later ``catch_up`` learns that it was committed.
So a store on disk is never ahead of the manifest. Of tables nothing is applied and nothing copied:
to catch up is to know which runs of the named files count. ``TaskStateCache`` keeps the open states
of a worker process between epochs; what is not found there is opened and caught up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from headrace.errors import (
    ClosedError,
    CorruptDataError,
    InternalError,
    InvalidInputError,
    NotOwnerError,
)
from headrace.fencing import DirectoryOwner
from headrace.files import Files
from headrace.graph.operators import COLUMNAR, StoreSpec
from headrace.records.schema import TableLayout
from headrace.state.backend import Backend, Changes, Position, SegmentSource, Target
from headrace.state.columnar_table import ColumnarTable, TableChanges
from headrace.state.memory import MemoryBackend
from headrace.state.object_store import DEFAULT_CACHE_BYTES, CacheBudget, ObjectCache, ObjectStore
from headrace.state.restore import RestoreCounts, RestoreListener, StateRestorer, TaskName
from headrace.state.rocksdb import RocksDBBackend
from headrace.state.segment import SegmentReader, open_runs
from headrace.state.sorted_run import SortedRun
from headrace.state.store import NEVER_EXPIRED, KeyValueStore, TtlStore

Groups = tuple[int, int]


_opened: WeakValueDictionary[tuple[Path, int | None], SegmentReader] = WeakValueDictionary()
"""The files that tables of this process are laid over: one serves all tasks of a slot."""


class _ChainFile(NamedTuple):
    """A file of the chain, and the key groups of it that count."""

    path: Path
    groups: Groups


class TableStores:
    """All columnar stores of a task.

    Args:
        name: which task.
        layouts: of each store.
        files: where segments are read.
    """

    def __init__(self, name: TaskName, layouts: Mapping[str, TableLayout], files: Files) -> None:
        self._name, self._files = name, files
        self.tables = {store: ColumnarTable(layout) for store, layout in layouts.items()}
        self._opened: dict[_ChainFile, dict[str, list[SortedRun]]] = {}
        self._shape: int | None = None
        self._written: tuple[Path, int | None] | None = None
        self.position: Position | None = None

    def is_at(self, target: Target) -> bool:
        """Say whether the tables show what is asked for, from the files that hold it now."""
        return self.position == target.position and self._shape == target.shape

    def begin(self, wall_ms: int, watermark: int | None = None) -> None:
        """Begin an epoch.

        Args:
            wall_ms: its wall clock.
            watermark: of the stage before it, for tables that go by event time.
        """
        self._written = None
        for table in self.tables.values():
            table.begin(watermark if table.layout.by_event else wall_ms)

    def seal(self) -> dict[str, TableChanges]:
        """Return the changes of those tables that have any."""
        sealed = {store: table.seal() for store, table in self.tables.items()}
        return {store: changes for store, changes in sealed.items() if changes is not None}

    def written(self, path: Path, checksum: int | None) -> None:
        """Learn which file holds the sealed changes."""
        self._written = (path, checksum)

    def go_on(self, target: Target, counts: RestoreCounts) -> bool:
        """Lay what was sealed, and has been committed since, over the other runs.

        Returns:
            False when that cannot be: then follow the committed files.
        """
        if self._written is None or self._shape != target.shape or self.position is None:
            return False
        path, checksum = self._written
        self._open(_ChainFile(path, self._name.groups), checksum, counts)
        self._attach(target)
        return True

    def follow(self, target: Target, source: SegmentSource, counts: RestoreCounts) -> None:
        """Open the committed files that are not open yet, and release those that are gone.

        Raises:
            CorruptDataError: one is missing or damaged; names it.
        """
        name = self._name
        chain = source.chain(name.stage, name.task, name.groups, None)
        named = [_ChainFile(*found) for found in chain.snapshots(name.groups)]
        named += [_ChainFile(path, name.groups) for step in chain.steps for path in step.paths]
        before, self._opened = self._opened, {}
        for file in named:
            if file in before:
                self._opened[file] = before[file]
            else:
                counts.opens(file.path)
                self._open(file, chain.checksums.get(file.path), counts)
        self._attach(target)

    def _open(self, file: _ChainFile, checksum: int | None, counts: RestoreCounts) -> None:
        reader = _opened.get((file.path, checksum))
        if reader is None:
            reader = SegmentReader(self._files, file.path, checksum)
            _opened[file.path, checksum] = reader
        # A job that began from another one's savepoint has files of that one, by their checksums.
        if checksum is None and reader.header.job != self._name.job:
            raise CorruptDataError(
                f"segment {file.path} is of job {reader.header.job!r}, expected {self._name.job!r}",
                file=str(file.path),
            )
        self._opened[file] = {
            store: open_runs(reader, store, table.layout, file.groups)
            for store, table in self.tables.items()
        }
        counts.files.add(file.path)

    def _attach(self, target: Target) -> None:
        for store, table in self.tables.items():
            table.attach([run for runs in self._opened.values() for run in runs[store]])
        self.position, self._shape = target.position, target.shape
        self._written = None

    def discard(self) -> None:
        """Forget the changes of the epoch."""
        for table in self.tables.values():
            table.discard()

    @property
    def overlay_bytes(self) -> int:
        """How much memory the changes of the epoch take."""
        return sum([table.overlay_bytes for table in self.tables.values()])

    @property
    def store_bytes(self) -> dict[str, int]:
        """About how many bytes the live rows of each table take."""
        return {store: table.live_bytes for store, table in self.tables.items()}

    def close(self) -> None:
        """Release all files."""
        self.discard()
        self._opened = {}
        for table in self.tables.values():
            table.attach(())


class BackendFactory(Protocol):
    """Makes a backend: of a folder, stores, what the data belongs to, those with prefix filters."""

    def __call__(
        self, directory: Path, stores: Sequence[str], scope: str, *, by_prefix: Collection[str]
    ) -> Backend:
        """Return a backend that opens nothing before it is used."""
        ...


BACKENDS: Mapping[str, BackendFactory] = {"rocksdb": RocksDBBackend, "memory": MemoryBackend}


@dataclass
class _Attempt:
    """One attempt at an epoch: what it builds on, and its changes once sealed."""

    attempt: str
    epoch: int
    base: Position | None
    changes: dict[str, Changes] | None = None


class TaskState:
    """The stores of one task.

    Args:
        name: which task.
        specs: its stores.
        directory: of the task on the local disk; only disk backends use it.
        files: where segments are read.
        backends: how each kind of store is opened.
        cache: what the process may keep of values between epochs.

    Raises:
        InvalidInputError: a store kind that is not known, or a name twice.
    """

    def __init__(
        self,
        name: TaskName,
        specs: Sequence[StoreSpec],
        directory: Path,
        files: Files,
        backends: Mapping[str, BackendFactory] = BACKENDS,
        cache: CacheBudget | None = None,
    ) -> None:
        self._cache = CacheBudget() if cache is None else cache
        self.name = name
        self._follower = StateRestorer(name, files)
        self._backends: dict[str, tuple[Backend, tuple[str, ...]]] = {}
        self._stores: dict[str, KeyValueStore] = {}
        self._ttl_stores: list[TtlStore] = []
        self._objects: dict[str, ObjectStore] = {}
        self._values = {spec.name: spec.value for spec in specs}
        self._ttls = {spec.name: spec.ttl_ms for spec in specs}
        self._unlogged = {spec.name for spec in specs if not spec.changelog}
        self._attempt: _Attempt | None = None
        self._closed = self._is_open = False
        self._directory = directory
        layouts = _layouts(specs)
        self._tables = TableStores(name, layouts, files) if layouts else None
        self._open_backends(specs, directory, backends)

    def _open_backends(
        self, specs: Sequence[StoreSpec], directory: Path, backends: Mapping[str, BackendFactory]
    ) -> None:
        unknown = sorted({spec.kind for spec in specs} - {COLUMNAR} - backends.keys())
        if unknown or len(self._values) != len(specs):
            raise InvalidInputError(
                f"stores of stage {self.name.stage} cannot open: unknown kinds {unknown}, or a "
                f"name twice in {[spec.name for spec in specs]}; known: "
                f"{sorted((*backends, COLUMNAR))}"
            )
        specs = [spec for spec in specs if spec.kind != COLUMNAR]
        low, high = self.name.groups
        scope = f"{self.name.job}/{self.name.stage}/{low}-{high}"
        for kind, is_logged in sorted({(spec.kind, spec.changelog) for spec in specs}):
            alike = [spec for spec in specs if (spec.kind, spec.changelog) == (kind, is_logged)]
            names = tuple(sorted(spec.name for spec in alike))
            folder = kind if is_logged else f"{kind}-unlogged"
            by_prefix = {spec.name for spec in alike if spec.prefix_bloom}
            backend = backends[kind](directory / folder, names, scope, by_prefix=by_prefix)
            self._backends[folder] = (backend, names)
            for store in names:
                ttl_ms = self._ttls[store]
                if ttl_ms is None:
                    self._stores[store] = KeyValueStore(backend, store)
                else:
                    timed = TtlStore(backend, store, ttl_ms, self.name.groups)
                    self._stores[store] = timed
                    self._ttl_stores.append(timed)

    def own(self, owner: DirectoryOwner | None) -> None:
        """Say for whom the stores are opened, before anything else is asked of them.

        Raises:
            NotOwnerError: a newer generation has taken what is on disk; close, do not retry.
        """
        for backend, _ in self._backends.values():
            backend.own(owner)

    @property
    def position(self) -> Position | None:
        """The committed state that all stores hold, ``None`` when they differ or hold none."""
        held = {backend.position for backend, _ in self._backends.values()}
        if self._tables is not None:
            held.add(self._tables.position)
        return held.pop() if len(held) == 1 else None

    def store(self, name: str) -> KeyValueStore:
        """Return a store of bytes; use either this or ``objects`` for one store."""
        try:
            return self._stores[name]
        except KeyError:
            raise InvalidInputError(
                f"no store {name!r}; known: {sorted(self._stores)}; declare it on its operator"
            ) from None

    def table(self, name: str) -> ColumnarTable:
        """Return a columnar store, the same object at each call."""
        tables = {} if self._tables is None else self._tables.tables
        try:
            return tables[name]
        except KeyError:
            raise InvalidInputError(
                f"no table {name!r}; known: {sorted(tables)}; declare it on its operator"
            ) from None

    def objects(self, name: str) -> ObjectStore:
        """Return a store of Python values, the same object at each call."""
        found = self._objects.get(name)
        if found is None:
            store = self.store(name)
            cache = ObjectCache(self._values[name], self._cache) if self._is_cached(name) else None
            found = self._objects[name] = ObjectStore(store, self._values[name], cache=cache)
        return found

    def _is_cached(self, name: str) -> bool:
        # What has a time to live may go while it is cached, and a store in memory gains nothing.
        in_memory = name in self._backends.get("memory", (None, ()))[1]
        return self._cache.limit > 0 and self._ttls[name] is None and not in_memory

    def catch_up(
        self, target: Target, source: SegmentSource, log: RestoreListener | None = None
    ) -> RestoreCounts:
        """Bring all stores to a committed position, whatever they hold now.

        1. Forget changes of an epoch that was not sealed, and all objects but those that
           show what is committed.
        2. A store at the target is done.
        3. Where what this object sealed is what was committed, apply it from memory.
        4. Otherwise apply the committed segments the store has not seen, one atomic write
           each; a store that is not on the chain is thrown away and begins at a snapshot.
        5. A store found unreadable on the way is thrown away and filled once more.
        6. Tables are laid over the committed files, which are mapped, not read.
        7. A store without changelog that cannot be brought forward from memory begins empty.

        Args:
            target: the position, and the attempt that won this task's part of it.
            source: the committed segments up to that position.
            log: gets what is opened and read.

        Returns:
            What was read and applied.

        Raises:
            NotOwnerError: the store is ahead: an older driver asks; stop.
            CorruptDataError: a segment is damaged or missing.
            UnavailableError: the local directory is held or its disk does not answer.
        """
        self._check_open()
        sealed, self._attempt = self._attempt, None
        for store in self._stores.values():
            store.discard()
        counts = RestoreCounts(log=log)
        if not self._is_open:
            counts.opens(self._directory)
            self._is_open = True
        for backend, stores in self._backends.values():
            backend.own(target.owner)
            if backend.is_damaged:
                backend.clear()
            held = backend.position
            if held == target.position:
                if sealed is not None and not _changed_nothing(sealed, stores):
                    self._discard_objects(stores)
                continue
            self._refuse_older(held, target.position)
            if sealed is not None and _was_committed(sealed, target, held):
                assert sealed.changes is not None
                own = {name: sealed.changes[name] for name in stores if name in sealed.changes}
                backend.apply(own, target.position)
                counts.from_memory = True
                counts.entries += sum([len(keys) for keys, _ in own.values()])
                continue
            self._discard_objects(stores)
            if stores[0] in self._unlogged:
                backend.clear()
                backend.apply({}, target.position)
                continue
            self._follower.fill(backend, stores, target.position, source, counts)
        if self._tables is not None:
            self._catch_up_tables(self._tables, sealed, target, source, counts)
        return counts

    def _catch_up_tables(
        self,
        tables: TableStores,
        sealed: _Attempt | None,
        target: Target,
        source: SegmentSource,
        counts: RestoreCounts,
    ) -> None:
        if tables.is_at(target):
            tables.discard()
            return
        self._refuse_older(tables.position, target.position)
        was_committed = sealed is not None and _was_committed(sealed, target, tables.position)
        if was_committed and tables.go_on(target, counts):
            counts.from_memory = True
            return
        tables.follow(target, source, counts)

    def _refuse_older(self, held: Position | None, target: Position) -> None:
        if held is not None and held.lineage == target.lineage and held.epoch > target.epoch:
            raise NotOwnerError(
                f"the state is at epoch {held.epoch}, asked for {target.epoch} of the same "
                "lineage; an older driver is running, or the job directory was set back: stop "
                "that driver, or remove the local state",
                job=self.name.job,
                stage=self.name.stage,
                task=self.name.task,
            )

    def begin(
        self,
        epoch: int,
        attempt: str,
        wall_ms: int = 0,
        watermark: int | None = None,
        swept_ms: int = NEVER_EXPIRED,
    ) -> None:
        """Begin an attempt at an epoch, on top of the position reached by ``catch_up``.

        Args:
            epoch: its number.
            attempt: a name that no other attempt ever has.
            wall_ms: the epoch's wall clock, the same at each attempt.
            watermark: of the stage at the end of the epoch before.
            swept_ms: what the property of that name was at the end of the task's last epoch.
        """
        self._check_open()
        if self._attempt is not None:
            raise InternalError("an attempt is under way or sealed; catch up or discard first")
        self._attempt = _Attempt(attempt, epoch, self.position)
        for store in self._stores.values():
            store.begin(wall_ms, swept_ms)
        for objects in self._objects.values():
            objects.begin()
        if self._tables is not None:
            self._tables.begin(wall_ms, watermark)

    def seal(self) -> dict[str, Changes | TableChanges]:
        """End the attempt and return its changes by store, sorted by key, none left out.

        They stay in memory until the next ``catch_up`` decides over them. Stores without
        changes are left out. Those without changelog come with one deletion of what was never
        there: it logs that they changed, and by which attempt.
        """
        self._check_open()
        attempt = self._attempt
        if attempt is None or attempt.changes is not None:
            raise InternalError("nothing to seal: begin an attempt first")
        for objects in self._objects.values():
            objects.seal()
        mark: Changes = ([self.name.groups[0].to_bytes(2, "big")], [None])
        attempt.changes = {}
        logged: dict[str, Changes | TableChanges] = {}
        for name, store in self._stores.items():
            changes = store.take_changes()
            if changes[0]:
                attempt.changes[name] = changes
                logged[name] = mark if name in self._unlogged else changes
        if self._tables is not None:
            logged |= self._tables.seal()
        return logged

    @property
    def swept_ms(self) -> int:
        """The wall clock up to which expired entries were looked for; to be committed."""
        return min(map(attrgetter("swept_ms"), self._ttl_stores), default=NEVER_EXPIRED)

    def written(self, path: Path, checksum: int | None) -> None:
        """Learn which file holds what was sealed: tables continue there once it is committed."""
        if self._tables is not None:
            self._tables.written(path, checksum)

    def discard(self) -> None:
        """Forget the attempt, sealed or not."""
        self._attempt = None
        self._discard_overlays()

    def _discard_objects(self, stores: Iterable[str]) -> None:
        for name in stores:
            if name in self._objects:
                self._objects[name].discard()

    def _discard_overlays(self) -> None:
        self._discard_objects(self._objects)
        for store in self._stores.values():
            store.discard()
        if self._tables is not None:
            self._tables.discard()

    @property
    def overlay_bytes(self) -> int:
        """About how much memory the changes of the attempt take; end the epoch when too much."""
        size = 0 if self._tables is None else self._tables.overlay_bytes
        for store in self._stores.values():
            size += store.overlay_bytes
        for objects in self._objects.values():
            size += objects.overlay_bytes
        return size

    def counts(self) -> dict[str, int]:
        """Return what was found in memory and what was read since ``begin``, by name."""
        hits = misses = 0
        for objects in self._objects.values():
            found, read = objects.hits
            hits, misses = hits + found, misses + read
        return {"cache.hits": hits, "cache.misses": misses}

    @property
    def store_bytes(self) -> dict[str, int]:
        """About how many bytes the committed entries of each store with changelog take."""
        found = {} if self._tables is None else self._tables.store_bytes
        for backend, names in self._backends.values():
            if names[0] not in self._unlogged:
                found |= backend.store_bytes()
        return found

    def flush(self, *, wait: bool = True) -> None:
        """Make what was caught up survive a crash of this process without reading segments."""
        for backend, _ in self._backends.values():
            backend.flush(wait=wait)

    def close(self) -> None:
        """Forget the attempt, flush and close all stores; closing twice is fine."""
        if self._closed:
            return
        self.discard()
        self._closed = True
        with ExitStack() as last:  # one that cannot flush must not keep the others open
            if self._tables is not None:
                last.callback(self._tables.close)
            for backend, _ in self._backends.values():
                last.callback(backend.close)
            for objects in self._objects.values():
                last.callback(objects.close)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the task's state was closed; open it again", task=self.name.task)


def _layouts(specs: Sequence[StoreSpec]) -> dict[str, TableLayout]:
    """Return the layout of each store that is a table."""
    tables = [spec for spec in specs if spec.kind == COLUMNAR]
    wrong = sorted(spec.name for spec in tables if spec.layout is None or not spec.changelog)
    if wrong:
        raise InvalidInputError(
            f"columnar stores {wrong} have no layout or no changelog, and need both: their "
            "segments are the table"
        )
    return {spec.name: spec.layout for spec in tables if spec.layout is not None}


def _was_committed(sealed: _Attempt, target: Target, held: Position | None) -> bool:
    return (
        sealed.changes is not None
        and sealed.attempt == target.attempt
        and sealed.epoch == target.position.epoch
        and sealed.base == held
    )


def _changed_nothing(sealed: _Attempt, stores: Iterable[str]) -> bool:
    return sealed.changes is not None and sealed.changes.keys().isdisjoint(stores)


MAX_OPEN = 256

Key = tuple[str, str, int]
"""Job, stage, task."""


class TaskStateCache:
    """Open task states by job, stage and task; for one thread.

    Args:
        limit: states kept open; beyond, the one longest unused is closed.
        cache_bytes: what their stores may keep of values between epochs, together.
        backends: how each kind of store is opened.
    """

    def __init__(
        self,
        limit: int = MAX_OPEN,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        backends: Mapping[str, BackendFactory] = BACKENDS,
    ) -> None:
        self.backends = backends
        self._limit = limit
        self.cache = CacheBudget(cache_bytes)
        self._open: dict[Key, TaskState] = {}
        self._left_behind: list[TaskState] = []
        self._pid = os.getpid()

    def get(
        self, key: Key, opened: Callable[[], TaskState], groups: tuple[int, int] | None = None
    ) -> TaskState:
        """Return the state of a task, opening it when it is not here.

        Args:
            key: job, stage, task.
            opened: makes the state; called when there is none, or it owns other key groups.
            groups: those that it must own; ``None``: whichever.
        """
        self._check_process()
        held = self._open.get(key)
        if held is not None and groups not in (None, held.name.groups):
            self.close(key)
        found = self._open.pop(key, None)
        if found is None:
            while len(self._open) >= self._limit:
                self.close(next(iter(self._open)))
            found = opened()
        self._open[key] = found
        return found

    def reserve(self, count: int) -> None:
        """Keep at least so many open from now on: what one epoch needs at the same time."""
        self._limit = max(self._limit, count)

    def close(self, key: Key) -> None:
        """Close one state; it may be closed already."""
        self._check_process()
        found = self._open.pop(key, None)
        if found is not None:
            found.close()

    def close_all(self) -> None:
        """Close all states, for a clean end of the process."""
        self._check_process()
        for key in list(self._open):
            self.close(key)

    def __len__(self) -> int:
        """Return how many states are open."""
        self._check_process()
        return len(self._open)

    def _check_process(self) -> None:
        # After a fork the states belong to the parent: they are left alone, not closed.
        if self._pid != os.getpid():
            self._left_behind += self._open.values()
            self._open = {}
            self._pid = os.getpid()
