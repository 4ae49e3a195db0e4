"""Where a store gets the committed segments it has not seen: the contract, no code.

The coordinator's manifests implement ``SegmentSource``; so may a test or a replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from headrace.state.position import Position


class Step(NamedTuple):
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
class Chain:
    """How to come from a position to the newest committed state.

    Args:
        start: the position that ``steps`` build on. Equal to the one asked for: go on from
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
    steps: tuple[Step, ...] = ()
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
    ) -> Chain:
        """Return how a task's store gets to the manifest that this source stands for.

        Args:
            stage: name of the stage.
            task: number of the task.
            groups: its first key group and the one after its last.
            after: what the store holds, ``None`` for nothing; not on the chain of manifests
                (another lineage, an unknown digest) is the same as nothing.
        """
        ...


class CatchUpStats(NamedTuple):
    """What one ``catch_up`` cost."""

    bytes_read: int = 0
    segments: int = 0
    from_memory: bool = False
    entries: int = 0
