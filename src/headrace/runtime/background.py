"""Work beside the epochs: one thread of low priority in each worker process.

What it does is a pure function of committed files that never change, so nothing of it
survives and nothing has to: a result that nobody took is made again. A slot submits work,
never waits for it, and looks later whether it is done. Merges of tasks' files are such work:
asked for by orders, named in reports.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from headrace.clock import Clock
from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.operators import StoreSpec
from headrace.runtime.orders import Merged, MergedTask, MergeOrder, SegmentRef, SlotOrder, TaskOrder
from headrace.state.compaction import CompactionInput, SegmentCompaction, compact_files
from headrace.state.segment import CHANGELOG, SNAPSHOT, SegmentHeader, SegmentReader

MOST_WAITING = 64
NICE = 5
"""Added to the nice value of the thread: a third of a slot's share where processors are short. With
more a merge starves there, and what it holds of the interpreter lock is held for longer."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class BackgroundWork(Protocol[T_co]):
    """Something to be done once."""

    def run(self, should_stop: Callable[[], bool]) -> T_co:
        """Do it; may raise anything, also because it was asked to stop."""
        ...

    def forget(self) -> None:
        """Remove what it has made, if anything; called once, when nobody wants it any more."""
        ...


class WorkHandle(Generic[T]):
    """Work that was submitted; ``is_done`` once there is a result or an error."""

    def __init__(self, work: BackgroundWork[T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_dropped = self._is_running = False
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def perform(self) -> None:
        """Do the work, in whatever thread calls."""
        with self._lock:
            if self._is_dropped:
                return
            self._is_running = True
        try:
            self.result = self._work.run(self._dropped)
        except Exception as error:  # noqa: BLE001 - raised in the caller of the result
            self.error = error
        with self._lock:
            self._is_running, self.is_done = False, True
        if self._dropped():
            self._work.forget()

    def _dropped(self) -> bool:
        return self._is_dropped

    def drop(self) -> None:
        """Stop the work if it runs, and remove what it made; a second time is fine."""
        with self._lock:
            already, self._is_dropped = self._is_dropped, True
            if already or self._is_running:
                return
        self._work.forget()


class Background(ABC):
    """Where work is done while epochs continue."""

    @abstractmethod
    def submit(self, work: BackgroundWork[T]) -> WorkHandle[T] | None:
        """Take work; ``None`` when too much of it waits already."""

    @abstractmethod
    def look(self, ticket: WorkHandle[T]) -> bool:
        """Say whether work is done; never waits for it."""

    @abstractmethod
    def close(self) -> None:
        """Drop everything and let no thread behind; work may be submitted again."""


class ThreadBackground(Background):
    """One thread, there only while there is work; a forked child begins without any."""

    def __init__(self, most_waiting: int = MOST_WAITING, nice: int = NICE) -> None:
        self._most, self._nice = most_waiting, nice
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[WorkHandle[object]] = deque()
        self._current: WorkHandle[object] | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: BackgroundWork[T]) -> WorkHandle[T] | None:
        """Queue work, and start the thread if it is not there."""
        if self._pid != os.getpid():
            self._begin()
        ticket = WorkHandle(work)
        with self._lock:
            if len(self._waiting) >= self._most:
                return None
            self._waiting.append(ticket)  # type: ignore[arg-type]
            if self._thread is None:
                # A daemon, for an interpreter must not wait for it; _close_all joins it.
                self._thread = threading.Thread(
                    target=self._serve, name="headrace-background", daemon=True
                )
                self._thread.start()
        _started.add(self)
        return ticket

    def look(self, ticket: WorkHandle[T]) -> bool:
        """Say whether work is done."""
        return ticket.is_done

    def _serve(self) -> None:
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        try:
            while (ticket := self._next()) is not None:
                ticket.perform()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = self._current = None

    def _next(self) -> WorkHandle[object] | None:
        with self._lock:
            self._current = self._waiting.popleft() if self._waiting else None
            if self._current is None:
                self._thread = None  # the next to submit begins another
            return self._current

    def close(self) -> None:
        """Drop what waits, stop what runs, wait for the thread to end."""
        if self._pid != os.getpid():
            self._begin()
            return
        with self._lock:
            dropped, thread = list(self._waiting), self._thread
            self._waiting.clear()
            if self._current is not None:
                dropped.append(self._current)
        for ticket in dropped:
            ticket.drop()
        if thread is not None:
            thread.join()


class InlineBackground(Background):
    """Does work in the thread that looks for it, when a schedule says so; for tests.

    Args:
        is_time: asked at each look whether that work is done now.
    """

    def __init__(self, is_time: Callable[[], bool] = lambda: True) -> None:
        self._is_time = is_time
        self._left: list[WorkHandle[object]] = []

    def submit(self, work: BackgroundWork[T]) -> WorkHandle[T]:
        """Keep work until somebody looks."""
        ticket = WorkHandle(work)
        self._left.append(ticket)  # type: ignore[arg-type]
        return ticket

    def look(self, ticket: WorkHandle[T]) -> bool:
        """Do the work if it is time."""
        if not ticket.is_done and self._is_time():
            self._left = [other for other in self._left if other is not ticket]
            ticket.perform()
        return ticket.is_done

    def close(self) -> None:
        """Drop everything."""
        for ticket in self._left:
            ticket.drop()
        self._left = []


_started: weakref.WeakSet[ThreadBackground] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for background in list(_started):
        background.close()


RETRY_EPOCHS = 16
"""So many epochs after a merge failed, such as on a full disk, it is tried again."""

_Key = tuple[str, str, int]


@dataclass(frozen=True)
class MergeWork:
    """One merge, as the background knows it."""

    job: SegmentCompaction
    path: Path
    files: Files

    def run(self, should_stop: object) -> None:
        """Write the file, and give it its name unless another process has done so."""
        compact_files(self.job, self.files, should_stop)  # type: ignore[arg-type]
        fault("slot.merge_written")
        try:
            self.files.link(self.job.target, self.path)
        except FileExistsError:
            self.files.sync_folder(self.path.parent)
        fault("slot.merge_linked")
        self.forget()

    def forget(self) -> None:
        """Remove the temporary file."""
        self.files.remove(self.job.target)


@dataclass
class _Entry:
    lineage: str
    shape: int
    order: MergeOrder
    ticket: WorkHandle[None] | None
    """``None``: the file was there."""
    was_reported: bool = False


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
class MergeScheduler:
    """The merges of one process; one thread calls.

    Args:
        background: where they run.
        files: the file system.
        clock: for names.
        storage: of the job.
        entries: the merges that are under way, or done and not forgotten, by task.
        failed: the tasks whose last merge failed.
    """

    background: Background
    files: Files
    clock: Clock
    storage: Path
    entries: dict[_Key, _Entry] = field(default_factory=dict)
    failed: dict[_Key, _Failure] = field(default_factory=dict)
    _pid: int = field(default_factory=os.getpid)

    def begin(self, order: SlotOrder, task: TaskOrder, stores: Sequence[StoreSpec]) -> bool:
        """See to what an order asks for, unless this process has begun with it.

        Returns:
            Whether a snapshot is about to stand for the task's files; then its own stores should
            be flushed, for one that comes back from before it has to start over.
        """
        self._check_process()
        key, wanted = (order.job, task.stage, task.task), task.merge
        held = self.entries.get(key)
        if held is not None and not _is_still_wanted(held, order, task):
            self._drop(key)
            held = None
        failed = self.failed.get(key)
        is_late = failed is not None and order.epoch < failed.epoch + RETRY_EPOCHS
        if wanted is None or held is not None or is_late:
            return False
        ticket: WorkHandle[None] | None = None
        path = self.storage / wanted.path
        if self.files.exists(path):
            self.files.sync_folder(path.parent)  # its process may have ended before it did so
        else:
            work = MergeWork(self._job(order, task, wanted, stores), path, self.files)
            if wanted.at_once:
                ticket = WorkHandle(work)
                ticket.perform()
            elif (ticket := self.background.submit(work)) is None:
                return False
        self.entries[key] = _Entry(order.lineage, task.state.shape, wanted, ticket)
        return wanted.snapshot

    def _job(
        self, order: SlotOrder, task: TaskOrder, merge: MergeOrder, stores: Sequence[StoreSpec]
    ) -> SegmentCompaction:
        return SegmentCompaction(
            (self.storage / merge.path).with_name(f".merge-{self.clock.new_id()}.tmp"),
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
                CompactionInput(self.storage / ref.path, ref.checksum, groups)
                for ref in merge.sources
                if (groups := _own(ref, task)) is not None
            ),
            merge.now_ms,
            merge.watermark,
        )

    def finished(self, order: SlotOrder, stages: Collection[str]) -> list[MergedTask]:
        """Return the merges that are done; of tasks that the order leaves out each one once.

        Args:
            order: of the slot.
            stages: those of its level.

        Raises:
            CorruptDataError: a committed file is damaged; names it.
        """
        found: list[MergedTask] = []
        running = {(task.stage, task.task) for task in order.tasks}
        for key, entry in list(self.entries.items()):
            job, stage, task = key
            if (job, entry.lineage) != (order.job, order.lineage) or stage not in stages:
                continue
            if entry.was_reported and (stage, task) not in running:
                continue
            ticket = entry.ticket
            if ticket is None or ticket.is_done or self.background.look(ticket):
                merged = self._merged(order, key, entry)
                found += [] if merged is None else [MergedTask(stage, task, merged)]
        return found

    def _merged(self, order: SlotOrder, key: _Key, entry: _Entry) -> Merged | None:
        path, merge = self.storage / entry.order.path, entry.order
        try:
            if entry.ticket is not None and entry.ticket.error is not None:
                raise entry.ticket.error
            if not self.files.exists(path):  # swept, for the driver wants another one by now
                self._drop(key)
                return None
            reader = SegmentReader(self.files, path)
        except CorruptDataError:
            self._drop(key)
            raise
        except Exception as problem:  # noqa: BLE001 - the epoch does not depend on a merge
            self._drop(key)
            self.failed[key] = _Failure(order.epoch, f"{type(problem).__name__}: {problem}")
            return None
        self.failed.pop(key, None)
        entry.was_reported = True
        header, info = reader.header, reader.info
        ref = SegmentRef(
            merge.path,
            info.bytes,
            header.epoch,
            header.attempt,
            info.checksum,
            sum(section.end - section.begin for section in info.sections),
            sum(section.rows for section in info.sections),
            header.first_epoch,
        )
        return Merged(ref, tuple(source.path for source in merge.sources), merge.snapshot)

    def problem(self, order: SlotOrder, task: TaskOrder) -> str:
        """Return why the last merge of a task failed; empty when it did not."""
        failed = self.failed.get((order.job, task.stage, task.task))
        return failed.message if failed is not None else ""

    def _drop(self, key: _Key) -> None:
        ticket = self.entries.pop(key).ticket
        if ticket is not None:
            ticket.drop()

    def _check_process(self) -> None:
        # After a fork the merges and their files belong to the parent.
        if self._pid != os.getpid():
            self.entries, self.failed = {}, {}
            self._pid = os.getpid()

    def close(self) -> None:
        """Stop and forget everything, and let no thread behind."""
        self._check_process()
        for key in list(self.entries):
            self._drop(key)
        self.failed.clear()
        self.background.close()


def _is_still_wanted(held: _Entry, order: SlotOrder, task: TaskOrder) -> bool:
    """Say whether a merge is still the one that is asked for, or may be."""
    if (held.lineage, held.shape) != (order.lineage, task.state.shape):
        return False
    return task.merge is None or task.merge.path == held.order.path
