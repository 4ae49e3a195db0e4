"""Bring one backend to a committed position from segments and snapshots on disk.

``task_state`` decides whether files are needed at all; this reads and applies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import CorruptDataError, InternalError
from headrace.files import Files
from headrace.state.backend import Backend, Changes, Columns
from headrace.state.chain import CatchUpStats, Chain, SegmentSource, Step
from headrace.state.merging import merge_entries
from headrace.state.position import Position
from headrace.state.recovery import Progress
from headrace.state.segment import CHANGELOG, SNAPSHOT
from headrace.state.segment_reader import SegmentReader


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
class Counts:
    """What a catch-up did so far; ``log`` is told as it gets on."""

    bytes_read: int = 0
    entries: int = 0
    from_memory: bool = False
    files: set[Path] = field(default_factory=set)
    log: Progress | None = None

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

    def stats(self) -> CatchUpStats:
        """Return the sums."""
        return CatchUpStats(self.bytes_read, len(self.files), self.from_memory, self.entries)


@contextmanager
def _reading(path: Path, epoch: int | None, backend: Backend) -> Iterator[None]:
    """Name file and epoch of a committed file that is damaged."""
    try:
        yield
    except CorruptDataError as error:
        if not backend.is_damaged:
            where = {"file": str(path)} if epoch is None else {"file": str(path), "epoch": epoch}
            error.fields = {**where, **error.fields}
        raise


@contextmanager
def _reading_all(epochs: Mapping[Path, int], first: int | None, backend: Backend) -> Iterator[None]:
    """The same while several files are read at once; the error tells which one it is."""
    try:
        yield
    except CorruptDataError as error:
        if not backend.is_damaged and "file" in error.fields:
            epoch = epochs.get(Path(str(error.fields["file"])), first)
            if epoch is not None:
                error.fields = {"epoch": epoch, **error.fields}
        raise


def _counted(
    batches: Iterable[Columns], readers: Sequence[SegmentReader], counts: Counts
) -> Iterator[Columns]:
    for keys, values in batches:
        yield keys, values
        counts.applied(sum(reader.bytes_read for reader in readers), len(keys))
        for reader in readers:
            reader.bytes_read = 0


class Follower:
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
        counts: Counts,
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
        counts: Counts,
    ) -> None:
        name = self.name
        chain = source.chain(name.stage, name.task, name.groups, backend.position)
        if not self._goes_on(backend, chain):
            chain = source.chain(name.stage, name.task, name.groups, None)
        if chain.start is None or chain.start != backend.position:
            self._begin_anew(backend, stores, chain, counts)
        else:
            self._go_on(backend, stores, chain, counts)
        if backend.position != target:
            backend.apply({}, target)

    def _go_on(
        self, backend: Backend, stores: tuple[str, ...], chain: Chain, counts: Counts
    ) -> None:
        for step in chain.steps:
            changes: dict[str, Changes] = {}
            for path in step.paths:
                with _reading(path, step.position.epoch, backend):
                    reader = self._step_reader(path, step, chain, counts)
                    self._read_step(reader, stores, changes, counts)
            backend.apply(changes, step.position)

    def _goes_on(self, backend: Backend, chain: Chain) -> bool:
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
            with _reading(path, first.position.epoch, backend):
                reader = SegmentReader(self._files, path, chain.checksums.get(path))
            if (held.epoch, held.digest) not in reader.header.covers:
                return False
        return True

    def _begin_anew(
        self, backend: Backend, stores: tuple[str, ...], chain: Chain, counts: Counts
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
        sources = self._sources(chain, backend, counts)
        epochs = {path: step.position.epoch for step in chain.steps for path in step.paths}
        for store in stores:
            merged = merge_entries(store, sources, drop_deleted=True)
            with _reading_all(epochs, chain.start and chain.start.epoch, backend):
                backend.load(store, _counted(merged, [reader for reader, _ in sources], counts))
        stands = chain.steps[-1].position if chain.steps else chain.start
        if stands is not None:
            backend.apply({}, stands)
            # Else a process that dies soon would leave nothing of what took so long.
            backend.flush(wait=False)

    def _sources(
        self, chain: Chain, backend: Backend, counts: Counts
    ) -> list[tuple[SegmentReader, tuple[int, int]]]:
        """Open all files, oldest first, each with the key groups to take of it."""
        found = []
        for path, groups in chain.snapshots(self.name.groups):
            # Where a lineage began, it began with the files of the one before, of any kind.
            with _reading(path, chain.start and chain.start.epoch, backend):
                found.append((self._reader(path, (SNAPSHOT, CHANGELOG), chain, counts), groups))
        for step in chain.steps:
            for path in step.paths:
                with _reading(path, step.position.epoch, backend):
                    reader = self._step_reader(path, step, chain, counts)
                    found.append((reader, self.name.groups))
        return found

    def _step_reader(self, path: Path, step: Step, chain: Chain, counts: Counts) -> SegmentReader:
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
        counts: Counts,
    ) -> None:
        for store in stores:
            keys, values = reader.read(store, self.name.groups)
            if keys:
                before = changes.get(store, ((), ()))
                changes[store] = ([*before[0], *keys], [*before[1], *values])
            counts.applied(reader.bytes_read, len(keys))
            reader.bytes_read = 0

    def _reader(
        self, path: Path, kinds: tuple[str, ...], chain: Chain, counts: Counts
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
