"""The contracts of a store's committed data: position, owner, backend, and chain of segments.

A position names one manifest. Two stores with equal positions hold equal data; a store whose
position is not on the chain of manifests is thrown away, never repaired. A backend never sees an
epoch that is not committed, so it has no transactions and no rollback: it moves from one position
to a later one, data and position in one step, or is cleared and filled again. ``memory`` and
``rocksdb`` implement it; ``headrace.testing`` ships the contract as a test suite. The coordinator's
manifests implement ``SegmentSource``. A task's local directory has one owner at a time, across
processes and within one: see ``fencing.DirectoryLock``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.fencing import DirectoryOwner


class Position(NamedTuple):
    """One committed manifest: its lineage, its epoch, and the digest of its bytes."""

    lineage: str
    epoch: int
    digest: str


class Target(NamedTuple):
    """The position to reach.

    ``attempt`` is the attempt whose changes of this task were committed in that epoch, or
    ``None`` when the task changed nothing in it. A worker that still holds the changes of
    that very attempt applies them from memory. ``shape`` changes whenever a merge took
    effect: the same state then lies in other files. ``owner`` is for whom stores are opened.
    """

    position: Position
    attempt: str | None = None
    shape: int = 0
    owner: DirectoryOwner | None = None


Changes = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Keys and their values, of equal length; a value of ``None`` deletes. Keys do not repeat."""

Columns = tuple[pa.BinaryArray, pa.BinaryArray]
"""The same as columns."""


class Backend(ABC):
    """Committed entries of one task over several named stores.

    Keys are full keys: two bytes of key group, big endian, then the user's key. One thread
    at a time calls; an open scan sees the data as it was when it began, and ends at ``close``.
    """

    @property
    @abstractmethod
    def position(self) -> Position | None:
        """The committed state held, or ``None`` when empty or filled only in part."""

    @property
    def is_damaged(self) -> bool:
        """Say whether local data was found unreadable; only ``clear`` helps."""
        return False

    def own(self, owner: DirectoryOwner | None) -> None:  # noqa: B027 - what is not on disk needs none
        """Continue for an owner; called before anything else of an epoch.

        Raises:
            NotOwnerError: a newer generation has taken what is on disk; close, do not retry.
        """

    @abstractmethod
    def apply(self, changes: Mapping[str, Changes], position: Position | None) -> None:
        """Write changes and position in one atomic step.

        After a crash the data is that of the position, and applying the same changes again
        leaves the same data. Where stores reached the disk one after the other, some may be
        ahead of the position; applying what follows it brings all to the same.

        Args:
            changes: by store; sorted keys are written faster.
            position: reached by these changes; ``None`` while a snapshot is loaded in
                several steps, so that a crash between them leaves no position behind.

        Raises:
            InvalidInputError: a store that this backend was not opened with.
            CorruptDataError: local data is unreadable; clear and fill again.
            UnavailableError: the disk is full or refuses to write.
        """

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Fill a store that is empty, after ``clear``; leaves no position, as ``apply`` of None.

        Args:
            store: its name.
            batches: of full keys and values, none null, rising over all batches.

        Raises:
            InvalidInputError: a store that this backend was not opened with.
            CorruptDataError: local data is unreadable; clear and fill again.
            UnavailableError: the disk is full or refuses to write.
        """
        for keys, values in batches:
            self.apply({store: (keys.to_pylist(), values.to_pylist())}, None)

    @abstractmethod
    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key in order, ``None`` where there is none."""

    @abstractmethod
    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``low <= key < high`` in key order; ``None`` has no upper end."""

    @abstractmethod
    def clear(self) -> None:
        """Throw away all data and the position."""

    @abstractmethod
    def store_bytes(self) -> dict[str, int]:
        """Return about how many bytes the live entries of each store take."""

    @abstractmethod
    def flush(self, *, wait: bool = True) -> None:
        """Make what was applied survive a crash of the process; costs I/O.

        Without ``wait`` that only begins, and is done some time later.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush, release files and locks; closing twice is fine, other use is an error."""


class ChainStep(NamedTuple):
    """What one committed epoch changed, or several: the position after them, and the files.

    ``paths`` are the changelog segments of the winning attempts that hold changes of the
    asked task, or of the tasks that owned its key groups then; there may be several. A merged
    segment stands for the epochs from ``first_epoch`` on.
    """

    position: Position
    paths: tuple[Path, ...]
    first_epoch: int = -1

    def is_within(self, position: Position) -> bool:
        """Say whether a position may be one of those that a merged segment stands for."""
        begins = 0 <= self.first_epoch <= position.epoch < self.position.epoch
        return begins and position.lineage == self.position.lineage


Checksums = Mapping[Path, int]
"""What the manifest says of files, by path; a file that differs is refused as damaged."""


@dataclass(frozen=True)
class SegmentChain:
    """How to come from a position to the newest committed state.

    Args:
        start: the position that ``steps`` build on. Equal to the one asked for: continue from
            there. Otherwise the store is thrown away first: ``None`` begins from an empty
            store, another position is the one of ``snapshot``.
        snapshot: files to load first, one after the other; several after a change of task
            count, and then of any kind and lineage.
        groups: key groups that each of these counts for, where it is not all of the task's: the
            same file may hold more that is out of date. Empty: all count for all.
        steps: later epochs in order; those that changed nothing for the task may be left out.
            The first may be a merged segment that the position is within: it counts only if
            its footer lists the position.
        checksums: of the files named, as far as they are known.
    """

    start: Position | None
    snapshot: tuple[Path, ...] = ()
    steps: tuple[ChainStep, ...] = ()
    checksums: Checksums = field(default_factory=dict)
    groups: tuple[tuple[int, int] | None, ...] = ()

    def snapshots(self, own: tuple[int, int]) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Yield the files to load first, with the key groups to take of each.

        Args:
            own: the task's key groups, the first and the one after the last.
        """
        ranges = self.groups or (None,) * len(self.snapshot)
        for path, groups in zip(self.snapshot, ranges, strict=True):
            low, high = groups or own
            if max(low, own[0]) < min(high, own[1]):
                yield path, (max(low, own[0]), min(high, own[1]))


class SegmentSource(Protocol):
    """The committed segments of a job, up to one manifest."""

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        """Return how a task's store gets to the manifest that this source stands for.

        Args:
            stage: name of the stage.
            task: number of the task.
            groups: its first key group and the one after its last.
            after: what the store holds, ``None`` for nothing; not on the chain of manifests
                (another lineage, an unknown digest) is the same as nothing.
        """
        ...
