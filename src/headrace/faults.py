"""Named points where a test may stop, delay or fail the code; free when none is set.

A protocol calls ``fault("commit.published")`` between two of its steps. Tests install a
hook with ``injected``; ``FAULT_POINTS`` lists every name, and a hook that names another
one is refused, so that a test cannot pass by missing its point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import InvalidInputError

FAULT_POINTS: dict[str, str] = {
    "epoch.planned": "plans are on disk, nothing has run",
    "epoch.level_done": "a level has run, its reports are in the driver",
    "epoch.before_commit": "all levels have run, nothing is visible",
    "commit.step_begins": "a step of a commit is about to be done: a manifest, or output alone",
    "commit.step_done": "a step of a commit is done, the next one has not begun",
    "output.emitted": "one append of an output that is not exactly-once is done",
    "commit.written": "the manifest is in a temporary file, not yet linked",
    "commit.published": "the manifest is visible, outputs are not yet published",
    "epoch.output_published": "one output append of the epoch is done",
    "epoch.published": "all outputs are published, nothing is swept",
    "epoch.swept": "the epoch is over",
    "feed.mark_published": "an epoch's rows and one of its marks are in an internal stream",
    "feed.trim_due": "it is known how far a partition of an internal stream may go, nothing has",
    "feed.trimmed": "a partition of an internal stream is trimmed, others are not yet",
    "parts.set_back": "one part of a job is set back, others are not yet",
    "parts.stream_removed": "an internal stream of a job that is reset or deleted is gone",
    "sink.due": "an epoch is committed, and one of its sinks is about to be handed its rows",
    "sink.sent": "a receiver has the rows of an epoch, none of them is visible",
    "sink.part_sent": "a receiver that takes an epoch in batches has some, and how far it is",
    "sink.shared": "a slot has passed on its share of a committed epoch, the driver does not know",
    "sink.merged": "small files of a sink are merged, its listing does not name the file yet",
    "sink.listed": "a sink's listing names the merged file, what it replaces is still there",
    "sink.committed": "a receiver has committed the epoch, the driver has not noted it",
    "warehouse.written": "the files of an epoch are in a table's data, its snapshot has none",
    "warehouse.listed": "a table's snapshot names other files, the folders of days do not show it",
    "warehouse.shown": "the folder of a day is as the snapshot says",
    "warehouse.merged": "small files of a table are merged, its snapshot does not name the file",
    "rescale.published": "the last epoch's outputs are out, nothing of the rescale is visible",
    "rescale.committed": "the manifest with other numbers of tasks is visible, nobody knows yet",
    "placement.let_go": "slots have released the tasks that move, no other slot has opened them",
    "drain.committed": "the manifest that names the hosts to drain is visible, no task has moved",
    "generation.taken": "a generation is taken for all parts of a job, one part does not have it",
    "hold.due": "it is known what a job holds of a compacted stream, or that it holds no more",
    "sweep.due": "it is known that nothing names a file of a job, it is there",
    "prune.due": "it is known that a manifest is read no more, it is there",
    "tidy.due": "what a driver left that was killed is found, it is there",
    "catalog.due": "it is known what the stores of a job hold, its description is not there",
    "failure.due": "an epoch has failed, what it was planned to be is not there",
    "request.answer_due": "a driver has done what others asked for, its answer is not there",
    "run.empty_due": "a run begins with empty outputs, a partition of one has its rows",
    "run.outputs_emptied": "a run begins, its outputs are empty, its parts have the last one's end",
    "run.conclude_due": "a run has ended, that its driver saw that is not noted",
    "streams.followed": "the manifest with the streams that came to a pattern, or went, is visible",
    "set_back.published": "the last epoch's outputs are out, the reset or rewind is not visible",
    "set_back.committed": "the manifest of a reset or rewind is visible, nobody knows yet",
    "delete.published": "the last epoch's outputs are out, the job is still there",
    "delete.renamed": "one storage of the job, or the copy of it, has no manifests any more",
    "delete.gone": "none has, what else it holds is there",
    "aliases.swapped": "several aliases are swapped, their own files do not say so yet",
    "aliases.one_written": "the file of one alias is as it is to be, those of others may not be",
    "merge.appended": "one partition of a live stream, or a sink, has rows of a run over old data",
    "savepoint.cut": "it is known which epochs a savepoint is made of, nothing is written",
    "savepoint.pinned": "files of the epoch have second names, none of them is in the savepoint",
    "savepoint.file_brought": "a file is in a savepoint that has no name yet",
    "savepoint.stream_saved": "rows of an internal stream are in a savepoint that has no name yet",
    "savepoint.filled": "all that a savepoint holds is there, its manifest and its name are not",
    "savepoint.written": "a savepoint is complete, its name is not there",
    "savepoint.named": "a savepoint exists, its requester does not know yet",
    "savepoint.verified": "a savepoint is found whole, nothing of the job that begins is there",
    "savepoint.streams_made": "the internal streams of a job that begins are there, no state is",
    "savepoint.file_linked": "a file of the savepoint is in the storage, no manifest names it",
    "savepoint.files_brought": "all files of the savepoint are there, no manifest names them",
    "savepoint.begun": "a part of the job has begun from a savepoint, others may not have",
    "slot.caught_up": "a task has applied the committed segments",
    "slot.ran": "a task has run its input, nothing is written",
    "slot.exchange_written": "exchange files are complete",
    "slot.merge_written": "a merged file is complete under a temporary name",
    "slot.merge_linked": "a merged file has its name, no report names it",
    "slot.segment_written": "the changelog segment is durable",
    "slot.output_written": "output segments are durable, the report is not sent",
    "slot.remote_sent": "changes of remote stores are sent, the report is not",
    "bus.frame_written": "an append's frame is written, its index entry is not",
    "bus.index_written": "an append's index entry is written, the caller does not know yet",
    "stream.prepared": "the folders of a stream are there, it does not exist yet",
    "stream.chosen": "it is known which stream is to be removed, it is still there",
    "stream.removed": "a stream exists no more, its rows are still there",
    "seal.barred": "who has the lock of a partition is kept out, its entries are not counted",
    "seal.counted": "entries before a barrier are counted and durable, nobody else knows",
    "seal.published": "it is known which entries count, who polls older files does not see it",
    "trim.written": "a partition begins later now, nothing is removed yet",
    "trim.segment_removed": "a segment of what was trimmed is removed",
    "trim.index_removed": "an index file of what was trimmed is removed",
    "compact.segment_written": "a segment of compacted rows is durable under a hidden name",
    "compact.segment_named": "a segment of compacted rows has its name, no entry names it",
    "compact.written": "compacted rows replace the earlier ones, nothing is removed yet",
    "compact.segment_removed": "a segment of what was compacted is removed",
    "copy.file_written": "a file is copied under a temporary name and verified, not yet linked",
    "copy.file_linked": "a file of the copy has its name",
    "copy.files_done": "all files that the state names are in job_dir, its manifest is not",
    "copy.published": "the manifest is in job_dir, nothing is swept there",
    "copy.swept": "the copy is over",
    "pipe.acknowledged": "a client of a pipe has acknowledged a span, nothing of that is durable",
    "pipe.output_staged": "output of a span is durable, no checkpoint names it",
    "pipe.checkpointed": "a checkpoint is durable, its output is not in its stream",
    "pipe.appended": "the output of a checkpoint is in its stream, the pipe does not know yet",
    "spark.rows_written": "the rows of a DataFrame are in files of the run, no list names them yet",
    "spark.staged": "a task of Spark has staged its rows for a stream, nobody knows yet",
    "spark.recorded": "it is durable which staged files a batch of Spark is, none is appended",
    "spark.part_appended": "one staged file of a batch of Spark is appended",
    "spark.appended": "all of a batch of Spark is appended, Spark does not know yet",
}

_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """Give an installed hook its chance at the named point."""
    if _hook is not None:
        _hook(point)


@contextmanager
def injected(hook: Callable[[str], None], points: tuple[str, ...] = ()) -> Iterator[None]:
    """Call ``hook(point)`` at every fault point of this process while the context lasts.

    Args:
        hook: may raise, or return to continue.
        points: names that the hook means to act on; each must exist.
    """
    global _hook
    unknown = [name for name in points if name not in FAULT_POINTS]
    if unknown:
        raise InvalidInputError(f"unknown fault points {unknown}; known: {sorted(FAULT_POINTS)}")
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before
