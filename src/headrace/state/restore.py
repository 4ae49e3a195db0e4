"""Bring one backend to a committed position from segments and snapshots on disk, and say how far.

``task_state`` decides whether files are needed at all; ``StateRestorer`` reads and applies them. A
slot writes its progress into one small file before it opens each, for that may be where it hangs;
the driver reads it to show recovery, and to notice that it does not move.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from headrace.clock import Clock
from headrace.errors import CorruptDataError, InternalError
from headrace.files import Files
from headrace.state.backend import (
    Backend,
    ChainStep,
    Changes,
    Columns,
    Position,
    SegmentChain,
    SegmentSource,
)
from headrace.state.compaction import merge_entries
from headrace.state.segment import CHANGELOG, SNAPSHOT, SegmentReader

FOLDER = "recovery"
EVERY_S = 0.25


class RestoreListener(Protocol):
    """Called while stores are brought back; may raise to have it stopped."""

    def opens(self, path: Path) -> None:
        """Say which file or folder is about to be opened."""
        ...

    def reads(self, size: int, rows: int) -> None:
        """Say that bytes and rows were read and applied."""
        ...


class RestoreProgress(msgspec.Struct, frozen=True):
    """How far one slot is.

    ``file`` is what it is about to read, or the folder that it opens. Bytes are those of the
    tasks in committed files, at most what has to be read. ``step`` rises with each word.
    """

    slot: int
    epoch: int
    stage: str
    task: int
    file: str
    tasks_done: int
    tasks: int
    bytes_done: int
    bytes_total: int
    rows: int
    step: int


class RestoreProgressFile:
    """One slot's word on its recovery.

    Args:
        path: of the file; its folder exists.
        clock: for not writing too frequently.
        slot: its number.
        epoch: that is about to run.
        sizes: bytes of each task in committed files.
    """

    def __init__(
        self, path: Path, clock: Clock, slot: int, epoch: int, sizes: Mapping[tuple[str, int], int]
    ) -> None:
        self._path, self._clock, self._sizes = path, clock, sizes
        self._temporary = path.with_name(f".{path.name}.tmp")
        total = sum(sizes.values())
        self._said = RestoreProgress(slot, epoch, "", 0, "", 0, len(sizes), 0, total, 0, 0)
        self._before = 0
        self._in_task = 0
        self._written: float | None = None

    def task(self, stage: str, task: int) -> None:
        """Begin with a task; the one before is done."""
        said = self._said
        if said.stage:
            self._before += self._sizes.get((said.stage, said.task), 0)
        self._in_task = 0
        self._said = msgspec.structs.replace(
            said,
            stage=stage,
            task=task,
            file="",
            tasks_done=said.tasks_done + bool(said.stage),
            bytes_done=self._before,
        )

    def opens(self, path: Path) -> None:
        """Say which file or folder is about to be opened."""
        self._said = msgspec.structs.replace(self._said, file=str(path))
        self._write()

    def reads(self, size: int, rows: int) -> None:
        """Say that bytes and rows were read and applied."""
        said = self._said
        self._in_task += size
        most = self._sizes.get((said.stage, said.task), 0)
        self._said = msgspec.structs.replace(
            said, bytes_done=self._before + min(self._in_task, most), rows=said.rows + rows
        )
        if self._written is None or self._clock.monotonic() - self._written >= EVERY_S:
            self._write()

    def _write(self) -> None:
        self._said = msgspec.structs.replace(self._said, step=self._said.step + 1)
        with contextlib.suppress(OSError):  # a full disk stops the epoch, not word of it
            if self._written is None:
                self._path.parent.mkdir(exist_ok=True)
            with open(self._temporary, "wb", buffering=0) as file:
                file.write(msgspec.json.encode(self._said))
            os.replace(self._temporary, self._path)
            self._written = self._clock.monotonic()

    def close(self) -> None:
        """Recovery is over."""
        if self._written is not None:
            self._path.unlink(missing_ok=True)


FLUSH_BYTES = 256 << 10
"""What was read of changes is written to disk from so many bytes on. A process that is killed
leaves what it had in memory to the next one: where each epoch finds a new process, every one of
them would read more than the one before."""


@dataclass(frozen=True)
class TaskName:
    """Which task: its job, stage and number, and the key groups it owns.

    ``groups`` are the first key group and the one after the last.
    """

    job: str
    stage: str
    task: int
    groups: tuple[int, int]


@dataclass
class RestoreCounts:
    """What a catch-up read and applied; ``log`` gets its progress."""

    bytes_read: int = 0
    entries: int = 0
    from_memory: bool = False
    files: set[Path] = field(default_factory=set)
    log: RestoreListener | None = None

    def opens(self, path: Path) -> None:
        """Note a file or folder that is about to be opened."""
        if self.log is not None:
            self.log.opens(path)

    def applied(self, size: int, entries: int) -> None:
        """Note what was read and applied."""
        self.bytes_read += size
        self.entries += entries
        if self.log is not None:
            self.log.reads(size, entries)


@contextmanager
def _naming_epochs(chain: SegmentChain, backend: Backend) -> Iterator[None]:
    """Say in the error of a committed file that is damaged of which epoch it is."""
    try:
        yield
    except CorruptDataError as error:
        if not backend.is_damaged and "file" in error.fields:
            epochs = {path: step.position.epoch for step in chain.steps for path in step.paths}
            first = None if chain.start is None else chain.start.epoch
            epoch = epochs.get(Path(str(error.fields["file"])), first)
            if epoch is not None:
                error.fields = {"epoch": epoch, **error.fields}
        raise


def _counted(
    batches: Iterable[Columns], readers: Sequence[SegmentReader], counts: RestoreCounts
) -> Iterator[Columns]:
    for keys, values in batches:
        yield keys, values
        counts.applied(sum(reader.bytes_read for reader in readers), len(keys))
        for reader in readers:
            reader.bytes_read = 0


class StateRestorer:
    """Reads committed files for one task.

    Args:
        name: which task.
        files: where segments are read.
    """

    def __init__(self, name: TaskName, files: Files) -> None:
        self.name = name
        self._files = files

    def fill(
        self,
        backend: Backend,
        stores: tuple[str, ...],
        target: Position,
        source: SegmentSource,
        counts: RestoreCounts,
    ) -> None:
        """Apply what the backend has not seen; throw unreadable local data away once.

        Args:
            backend: to bring forward.
            stores: its stores.
            target: the position to reach.
            source: the committed segments up to it.
            counts: added to.
        """
        try:
            self._follow(backend, stores, target, source, counts)
        except CorruptDataError:
            if not backend.is_damaged:
                raise
            backend.clear()
            self._follow(backend, stores, target, source, counts)

    def _follow(
        self,
        backend: Backend,
        stores: tuple[str, ...],
        target: Position,
        source: SegmentSource,
        counts: RestoreCounts,
    ) -> None:
        name = self.name
        chain = source.chain(name.stage, name.task, name.groups, backend.position)
        if not self._goes_on(backend, chain):
            chain = source.chain(name.stage, name.task, name.groups, None)
        with _naming_epochs(chain, backend):
            if chain.start is None or chain.start != backend.position:
                self._rebuild(backend, stores, chain, counts)
            else:
                self._go_on(backend, stores, chain, counts)
        if backend.position != target:
            backend.apply({}, target)

    def _go_on(
        self, backend: Backend, stores: tuple[str, ...], chain: SegmentChain, counts: RestoreCounts
    ) -> None:
        before = counts.bytes_read
        for step in chain.steps:
            changes: dict[str, Changes] = {}
            for path in step.paths:
                reader = self._step_reader(path, step, chain, counts)
                self._read_step(reader, stores, changes, counts)
            backend.apply(changes, step.position)
        if counts.bytes_read - before >= FLUSH_BYTES:
            backend.flush(wait=False)

    def _goes_on(self, backend: Backend, chain: SegmentChain) -> bool:
        """Say whether a merged first step lists the position that lies within it.

        Then the changes before that position are applied once more, and the newest win.
        """
        held = backend.position
        if held is None or chain.start != held or not chain.steps:
            return True
        first = chain.steps[0]
        if not first.is_within(held):
            return True
        for path in first.paths:
            with _naming_epochs(chain, backend):
                reader = SegmentReader(self._files, path, chain.checksums.get(path))
            if (held.epoch, held.digest) not in reader.header.covers:
                return False
        return True

    def _rebuild(
        self, backend: Backend, stores: tuple[str, ...], chain: SegmentChain, counts: RestoreCounts
    ) -> None:
        if chain.start is not None and not chain.snapshot:
            raise InternalError(
                f"a chain begins at {chain.start} without a snapshot; the store holds "
                f"{backend.position}",
                job=self.name.job,
                stage=self.name.stage,
                task=self.name.task,
            )
        backend.clear()
        sources = self._sources(chain, counts)
        for store in stores:
            merged = merge_entries(store, sources, drop_deleted=True)
            backend.load(store, _counted(merged, [reader for reader, _ in sources], counts))
        stands = chain.steps[-1].position if chain.steps else chain.start
        if stands is not None:
            backend.apply({}, stands)
            # Else a process that dies soon would leave nothing of what took so long.
            backend.flush(wait=False)

    def _sources(
        self, chain: SegmentChain, counts: RestoreCounts
    ) -> list[tuple[SegmentReader, tuple[int, int]]]:
        """Open all files, oldest first, each with the key groups to take of it."""
        found = []
        for path, groups in chain.snapshots(self.name.groups):
            # Where a lineage began, it began with the files of the one before, of any kind.
            found.append((self._reader(path, (SNAPSHOT, CHANGELOG), chain, counts), groups))
        found += [
            (self._step_reader(path, step, chain, counts), self.name.groups)
            for step in chain.steps
            for path in step.paths
        ]
        return found

    def _step_reader(
        self, path: Path, step: ChainStep, chain: SegmentChain, counts: RestoreCounts
    ) -> SegmentReader:
        reader = self._reader(path, (CHANGELOG,), chain, counts)
        header, position = reader.header, step.position
        if (header.lineage, header.epoch) != (position.lineage, position.epoch):
            raise CorruptDataError(
                f"segment {reader.path} is of epoch {header.epoch} in lineage {header.lineage}, "
                f"expected epoch {position.epoch} in {position.lineage}",
                file=str(reader.path),
            )
        return reader

    def _read_step(
        self,
        reader: SegmentReader,
        stores: tuple[str, ...],
        changes: dict[str, Changes],
        counts: RestoreCounts,
    ) -> None:
        for store in stores:
            keys, values = reader.read(store, self.name.groups)
            if keys:
                before = changes.get(store, ((), ()))
                changes[store] = ([*before[0], *keys], [*before[1], *values])
            counts.applied(reader.bytes_read, len(keys))
            reader.bytes_read = 0

    def _reader(
        self, path: Path, kinds: tuple[str, ...], chain: SegmentChain, counts: RestoreCounts
    ) -> SegmentReader:
        counts.opens(path)
        checksum = chain.checksums.get(path)
        reader = SegmentReader(self._files, path, checksum)
        found = reader.header
        # A job that began from another one's savepoint has files of that one, by their checksums.
        if found.kind not in kinds or (checksum is None and found.job != self.name.job):
            raise CorruptDataError(
                f"segment {path} is a {found.kind} of job {found.job!r}, expected a "
                f"{' or '.join(kinds)} of {self.name.job!r}",
                file=str(path),
            )
        counts.files.add(path)
        return reader
