"""Merges of tasks' files that this process has under way: asked for by orders, told in reports.

1. An order says which of a task's committed files are worth merging. 2. The merge runs in
the background, into a temporary file. 3. A later attempt finds it done, links it to a name of
its own epoch, generation, slot and attempt, and reports it. 4. Once the manifest names other
files for the task (its ``shape`` is another), the temporary file goes. An attempt that is not
committed leaves the merge as it was, so the next one reports it again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headrace.clock import Clock
from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.state.merging import MergeJob, SourceFile, merge_files
from headrace.state.segment import CHANGELOG, SNAPSHOT, SegmentHeader, SegmentInfo
from headrace.task.background import Background, Ticket
from headrace.task.orders import Merged, MergeOrder, SegmentRef, SlotOrder, TaskOrder

GIVE_UP_EPOCHS = 4
"""So many epochs after a merge was reported without effect, it is let go of."""

RETRY_EPOCHS = 16
"""So many epochs after a merge failed, such as on a full disk, it is tried again."""

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class MergeWork:
    """One merge, as the background knows it."""

    job: MergeJob
    files: Files

    def run(self, should_stop: object) -> SegmentInfo:
        """Write the temporary file."""
        info = merge_files(self.job, self.files, should_stop)  # type: ignore[arg-type]
        fault("slot.merge_written")
        return info

    def forget(self) -> None:
        """Remove the temporary file."""
        self.files.remove(self.job.target)


class _Entry(NamedTuple):
    lineage: str
    shape: int
    order: MergeOrder
    work: MergeWork
    ticket: Ticket[SegmentInfo]


def _own(ref: SegmentRef, task: TaskOrder) -> tuple[int, int] | None:
    """Which key groups of a file count for a task; one from before a rescale may hold others."""
    low, high = ref.groups or task.groups
    low, high = max(low, task.groups[0]), min(high, task.groups[1])
    return (low, high) if low < high else None


@dataclass
class _Failure:
    epoch: int
    message: str


@dataclass
class Merges:
    """The merges of one process; one thread calls.

    Args:
        background: where they run.
        files: the file system.
        clock: for names.
        storage: of the job.
    """

    background: Background
    files: Files
    clock: Clock
    storage: Path
    _entries: dict[_Key, _Entry] = field(default_factory=dict)
    _failed: dict[_Key, _Failure] = field(default_factory=dict)
    _reported: dict[_Key, int] = field(default_factory=dict)
    _pid: int = field(default_factory=os.getpid)

    def begin(self, order: SlotOrder, task: TaskOrder, stores: Sequence[StoreSpec]) -> bool:
        """Start what an order asks for, unless a merge of the task is under way.

        Returns:
            Whether a snapshot was started; then the task's own stores should be flushed, for
            one that comes back from before it has to begin anew.
        """
        self._check_process()
        key = (order.job, task.stage, task.task)
        held = self._entries.get(key)
        refused = order.epoch > self._reported.get(key, order.epoch) + GIVE_UP_EPOCHS
        now = (order.lineage, task.state.shape)
        if held is not None and (refused or (held.lineage, held.shape) != now):
            self._drop(key)
            held = None
        failed = self._failed.get(key)
        is_late = failed is not None and order.epoch < failed.epoch + RETRY_EPOCHS
        if task.merge is None or held is not None or is_late:
            return False
        work = MergeWork(self._job(order, task, task.merge, stores), self.files)
        ticket = self.background.submit(work)
        if ticket is None:
            return False
        self._entries[key] = _Entry(order.lineage, task.state.shape, task.merge, work, ticket)
        return task.merge.snapshot

    def _job(
        self, order: SlotOrder, task: TaskOrder, merge: MergeOrder, stores: Sequence[StoreSpec]
    ) -> MergeJob:
        folder = SNAPSHOT if merge.snapshot else "segment"
        return MergeJob(
            self.storage / folder / f".merge-{self.clock.new_id()}.tmp",
            SegmentHeader(
                SNAPSHOT if merge.snapshot else CHANGELOG,
                order.job,
                order.lineage,
                order.generation,
                merge.epoch,
                merge.attempt,
                merge.sources[0].first_epoch,
            ),
            task.stage,
            task.task,
            tuple(stores),
            tuple(
                SourceFile(self.storage / ref.path, ref.checksum, groups)
                for ref in merge.sources
                if (groups := _own(ref, task)) is not None
            ),
            merge.now_ms,
            merge.watermark,
        )

    def finished(self, order: SlotOrder, task: TaskOrder, stem: str) -> Merged | None:
        """Return a merge that is done, under a name of this attempt; ``None`` when there is none.

        Args:
            order: of the slot.
            task: its task's part.
            stem: with which the names of the attempt's files begin.

        Raises:
            CorruptDataError: a committed file is damaged; names it.
        """
        key = (order.job, task.stage, task.task)
        held = self._entries.get(key)
        if held is None or not self.background.look(held.ticket):
            return None
        error, info = held.ticket.error, held.ticket.result
        path = held.work.job.target.with_name(f"{stem}-{task.stage}-{task.task}.seg")
        try:
            if error is not None:
                raise error
            assert info is not None
            self.files.link(held.work.job.target, path)
        except CorruptDataError:
            self._drop(key)
            raise
        except FileNotFoundError:  # it waited so long that it was swept as left behind
            self._drop(key)
            return None
        except Exception as problem:  # noqa: BLE001 - the epoch does not depend on a merge
            self._drop(key)
            self._failed[key] = _Failure(order.epoch, f"{type(problem).__name__}: {problem}")
            return None
        fault("slot.merge_linked")
        self._failed.pop(key, None)
        self._reported.setdefault(key, order.epoch)
        merge = held.order
        ref = SegmentRef(
            str(path.relative_to(self.storage)),
            info.bytes,
            merge.epoch,
            merge.attempt,
            info.checksum,
            sum(section.end - section.begin for section in info.sections),
            sum(section.rows for section in info.sections),
            merge.sources[0].first_epoch,
        )
        return Merged(ref, tuple(source.path for source in merge.sources), merge.snapshot)

    def problem(self, order: SlotOrder, task: TaskOrder) -> str:
        """Return why the last merge of a task failed; empty when it did not."""
        failed = self._failed.get((order.job, task.stage, task.task))
        return failed.message if failed is not None else ""

    def _drop(self, key: _Key) -> None:
        self._reported.pop(key, None)
        self._entries.pop(key).ticket.drop()

    def _check_process(self) -> None:
        # After a fork the merges and their files belong to the parent.
        if self._pid != os.getpid():
            self._entries, self._failed, self._reported = {}, {}, {}
            self._pid = os.getpid()

    def close(self) -> None:
        """Stop and forget everything, and let no thread behind."""
        self._check_process()
        for key in list(self._entries):
            self._drop(key)
        self._failed.clear()
        self.background.close()
