"""The least that can stand for a coordinator: committed epochs in a list, segments on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.files import Files
from headrace.state.backend import ChainStep, Changes, Position, SegmentChain, Target
from headrace.state.compaction import CompactionInput, SegmentCompaction, compact_files
from headrace.state.segment import SegmentHeader
from headrace.state.segment_writer import SegmentWriter

FILES = Files(sync=False)
JOB, STAGE, GROUPS = "job", "stage", 4


@dataclass
class Ledger:
    """Commits epochs of one stage and tells tasks how to follow; a ``SegmentSource``."""

    root: Path
    lineage: str = "line-0"
    epoch: int = 0
    steps: list[ChainStep] = field(default_factory=list)
    winners: dict[int, str] = field(default_factory=dict)
    snapshot: tuple[Position, tuple[Path, ...]] | None = None
    written: int = 0

    @property
    def position(self) -> Position:
        """The newest committed position."""
        return Position(self.lineage, self.epoch, f"digest-{self.lineage}-{self.epoch}")

    @property
    def upcoming(self) -> Position:
        """The position that the next commit will have."""
        return Position(self.lineage, self.epoch + 1, f"digest-{self.lineage}-{self.epoch + 1}")

    def target(self, task: int) -> Target:
        """What a task is asked to reach."""
        return Target(self.position, self.winners.get(task))

    def write(self, attempt: str, changes: Mapping[int, Mapping[str, Changes]]) -> Path:
        """Write the segment of one attempt at the next epoch, by task and store."""
        writer = self._writer("changelog", self.upcoming, attempt)
        for task, stores in changes.items():
            for store, (keys, values) in stores.items():
                writer.add(STAGE, task, store, keys, values)
        return writer.close().path

    def commit(self, attempt: str, tasks: list[int], paths: tuple[Path, ...]) -> None:
        """Make the next epoch, with these files, the newest."""
        self.epoch += 1
        self.steps.append(ChainStep(self.position, paths))
        self.winners = dict.fromkeys(tasks, attempt)

    def rescale(self) -> None:
        """Begin another lineage over the same state."""
        self.lineage = f"line-{int(self.lineage[5:]) + 1}"
        self.epoch += 1
        self.steps.append(ChainStep(self.position, ()))
        self.winners = {}

    def write_snapshot(self) -> None:
        """Merge all files into a snapshot, and forget the steps before it."""
        if not self.steps:
            return
        before = self.snapshot[1] if self.snapshot else ()
        paths = [*before, *(path for step in self.steps for path in step.paths)]
        self.written += 1
        target = self.root / f"snapshot-{self.epoch}-{self.written}"
        job = SegmentCompaction(
            target,
            SegmentHeader(
                "snapshot", JOB, self.position.lineage, 1, self.position.epoch, "snapshot"
            ),
            STAGE,
            0,
            (),
            tuple(CompactionInput(path, None, (0, GROUPS)) for path in paths),
            0,
        )
        self.snapshot = (self.position, (compact_files(job, FILES).path,))
        self.steps = []

    def _writer(self, kind, position: Position, attempt: str) -> SegmentWriter:
        self.written += 1
        path = self.root / f"{kind}-{position.epoch}-{self.written}"
        return SegmentWriter(
            FILES, path, SegmentHeader(kind, JOB, position.lineage, 1, position.epoch, attempt)
        )

    def chain(
        self, stage: str, task: int, groups: tuple[int, int], after: Position | None
    ) -> SegmentChain:
        """Answer a task, from the position it holds if that is of this lineage."""
        assert stage == STAGE
        start, files = self.snapshot or (None, ())
        known = [step.position for step in self.steps]
        if after is not None and after.lineage == self.lineage:
            if after in known:
                return SegmentChain(after, (), tuple(self.steps[known.index(after) + 1 :]))
            if after == start:
                return SegmentChain(after, (), tuple(self.steps))
        return SegmentChain(start, files, tuple(self.steps))
