"""The one way to commit a manifest: under a generation, as long as no newer one has begun.

``FencedManifestWriter`` holds a driver's generation and the state that it has seen committed.
``fenced_writer`` takes a generation of a stopped job for a moment, so that something can be done
to it beside its epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from headrace.bus.bus import Bus
from headrace.bus.spec import Fence
from headrace.clock import Clock
from headrace.coordinator.backup import backup_hooks
from headrace.coordinator.commit_log import (
    PRUNE_MARGIN,
    CommitLog,
    FileCommitLog,
    holder_here,
    holder_text,
    load_state,
    newest_base,
)
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.job_parts import JobGeneration
from headrace.coordinator.job_storage import JobContext
from headrace.coordinator.manifest import (
    FORMAT,
    JobState,
    Manifest,
    base_manifest,
    decode_manifest,
    encode_manifest,
    fold,
)
from headrace.coordinator.outputs import check_sinks_confirmed, publish_outputs
from headrace.errors import CorruptDataError, InvalidInputError, NotOwnerError
from headrace.fencing import FencedFiles
from headrace.plan.stages import job_of


class FencedManifestWriter:
    """Publishes manifests as long as no newer generation has begun.

    Args:
        job: its name.
        log: of manifests.
        bus: where the job's streams are; refuses what an older generation still asks.
        clock: for who began when.
        hooks: of the modes of the job.
        group: the generation of the whole job; ``None`` where this is all of it.
    """

    def __init__(
        self,
        job: str,
        log: CommitLog,
        bus: Bus,
        clock: Clock,
        hooks: Sequence[JobHook] = (),
        group: JobGeneration | None = None,
    ) -> None:
        self._job, self._log, self._bus = job, log, bus
        self.clock = clock
        """Gives what is committed its time and names."""
        self._hooks, self._group = hooks, group
        self.has_begun = False
        """Whether there is a state."""
        self.state: JobState  # while ``has_begun``
        """The job's state after the last committed epoch."""
        self.generation = 0
        self.fence: Fence  # since ``begin``
        """What changes of streams are to name, so that a newer generation's are not undone."""

    @property
    def files(self) -> FencedFiles:
        """By these the job's storage is changed; they refuse, once a newer driver has begun."""
        return self._log.files

    def begin(self, above: int = 0) -> bool:
        """Take a generation and fold the manifests; False when the job has none yet.

        From here on the bus refuses what older generations ask. One of a job that was deleted may
        be known there still, so the new one is above that too.

        Args:
            above: the generation is to be a later one, for files of this one came from elsewhere.

        Raises:
            CorruptDataError: a manifest is damaged or missing.
            NotOwnerError: a newer generation has begun meanwhile.
        """
        above = max([above, *(hook.before_generation() for hook in self._hooks)])
        if self._group is None:
            above = max(above, self._bus.fenced(self._job))
            self.generation = self._log.take_generation(holder_here(self.clock), above)
        else:
            self.generation = self._group.take(self._job, self._log, above)
        self.fence = Fence(self._job, self.generation)
        self._bus.fence(self.fence)
        for hook in self._hooks:
            hook.begin(self.generation)
        return self._continue_from(load_state(self._log))

    def _continue_from(self, state: JobState | None) -> bool:
        self.has_begun = state is not None
        if state is not None:
            self.state = state
        return self.has_begun

    def check(self, cause: Exception | None = None) -> None:
        """Make sure that this is the newest generation.

        Raises:
            NotOwnerError: a newer one has begun.
        """
        for hook in self._hooks:
            hook.check()
        newest, holder = self._log.newest_generation()
        if newest != self.generation:
            raise self._taken_over(newest, holder) from cause

    def _taken_over(self, newest: int, holder: Mapping[str, str | int]) -> NotOwnerError:
        by = holder_text(holder)
        return NotOwnerError.taken_over(
            f"job {self._job!r}", self.generation, newer=newest, holder=by, job=self._job
        )

    def successor(self) -> NotOwnerError | None:
        """Return the refusal of this driver, with all that the storage knows of who follows it.

        ``None`` where the storage knows of none, as when the job was deleted.
        """
        with suppress(OSError, CorruptDataError):
            newest, holder = self._log.newest_generation()
            if newest > self.generation > 0:
                return self._taken_over(newest, holder)
        return None

    def publish(self, manifest: Manifest) -> bool:
        """Commit a manifest and fold it; False when another's was there and was folded instead.

        That other one is an older driver's. It was its last: the next it tries is refused.

        Raises:
            NotOwnerError: a newer generation has begun; nothing was committed.
        """
        self.check()
        won = self.append(manifest)
        if not won:
            self.check()
        return won

    def append(self, manifest: Manifest) -> bool:
        """Do as ``publish`` without a look at the generation, which is to come before.

        After a False the look is to come once more: a newer driver's manifest is not built on.
        """
        data, digest = encode_manifest(manifest)
        won = self._log.publish(manifest.epoch, data)
        if won:
            self.state = fold(self.state if self.has_begun else None, manifest, digest)
            self.has_begun = True
        else:
            self._continue_from(load_state(self._log))
        return won

    def finish(self, state: JobState | None = None) -> None:
        """Let the modes of the job take its last state.

        Args:
            state: that they are to take; by default the last one.

        Raises:
            RecoveryStalledError: job_dir hangs; what was committed stands.
        """
        for hook in self._hooks:
            hook.finish(state or self.state)

    def create(self, state: JobState) -> bool:
        """Publish the first state of a job; False when another driver's is there already."""
        return self.publish(base_manifest(state, previous=""))

    def append_base(self, manifest: Manifest) -> bool:
        """Append a delta as a base, and remove the manifests before it."""
        previous = self.state.digest
        base = base_manifest(fold(self.state, manifest, ""), previous)
        won = self.append(msgspec.structs.replace(base, is_half=manifest.is_half))
        if won:
            kept_from = self.state.kept_from
            oldest = newest_base(self._log, min(manifest.epoch - PRUNE_MARGIN, kept_from))
            if oldest is not None:  # what is kept is read from it on
                self._log.prune(oldest)
        return won

    def publish_end(self, until: dict[str, list[int]]) -> bool:
        """Commit an epoch that only fixes where each partition of the inputs ends."""
        state = self.state
        return self.publish(
            Manifest(
                format=FORMAT,
                kind="delta",
                job=state.job,
                lineage=state.lineage,
                generation=self.generation,
                epoch=state.epoch + 1,
                time_ms=max(self.clock.now_ms(), state.time_ms),
                previous=state.digest,
                until=until,
            )
        )

    def publish_next(self, state: JobState) -> bool:
        """Commit an epoch that reads nothing and after which the whole state is as given."""
        before = self.state
        after = msgspec.structs.replace(
            state,
            generation=self.generation,
            epoch=before.epoch + 1,
            time_ms=max(self.clock.now_ms(), before.time_ms),
            outputs=(),
            sinks=(),
        )
        return self.publish(base_manifest(after, before.digest))

    @property
    def is_half(self) -> bool:
        """Say whether the last manifest is the first of two: an older driver may yet win the other.

        That one names files of this epoch.
        """
        epoch = self.state.epoch
        return decode_manifest(self._log.read(epoch), f"of epoch {epoch}")[0].is_half

    @property
    def is_newest(self) -> bool:
        """Say whether no later epoch than the state's has been committed."""
        return self._log.epochs()[-1] == self.state.epoch


def generation_of(context: JobContext, root: Path) -> JobGeneration:
    """Return the generation that a command is to take, once, for all that it does to a job.

    Args:
        context: of the job.
        root: the storage of any part.
    """
    return JobGeneration(context.job, root.parent, context.bus, context.files, context.clock)


def take_fence(
    log: FileCommitLog, job: str, bus: Bus, clock: Clock, group: JobGeneration | None = None
) -> Fence:
    """Take a generation of a job for a change of its streams before a driver has one, or without.

    The caller holds its ``DriverLock``. From here on the bus and the storage refuse what older
    ones ask; the log's files are those of the generation.

    Args:
        log: of the job.
        job: its name.
        bus: the streams.
        clock: time and names.
        group: of all parts that the caller takes; by default the generation is one of its own.

    Raises:
        NotOwnerError: a newer generation has begun meanwhile.
    """
    folder, files = log.files.root.parent, log.files.beneath
    group = group or JobGeneration(job_of(job), folder, bus, files, clock)
    fence = Fence(job, group.take(job, log))
    bus.fence(fence)
    return fence


@contextmanager
def fenced_writer(
    context: JobContext,
    root: Path,
    group: JobGeneration | None = None,
) -> Iterator[tuple[FencedManifestWriter, Callable[[], None]]]:
    """Take a generation of a part of a job for a block; the caller holds the ``DriverLock``.

    When the block has ended the modes of the job take its state: a copy in job_dir follows, so
    that the loss of this host takes nothing of it back.

    Args:
        context: of the job.
        root: the part's storage, which has its name.
        group: of all parts that the caller takes; by default the generation is one of its own.

    Yields:
        The writer, and what brings out the outputs of its last epoch: call it before anything
        that begins a lineage is published.

    Raises:
        InvalidInputError: the job has no epoch yet; or, by the second, a sink has not
            confirmed the last one.
        NotOwnerError: a driver elsewhere runs the job.
        RecoveryStalledError: job_dir hangs; what the block did stands.
    """
    group = group or generation_of(context, root)
    job, bus, clock = root.name, context.bus, context.clock
    log = FileCommitLog(root, context.files)
    hooks = backup_hooks(context, root)
    writer = FencedManifestWriter(job, log, bus, clock, hooks, group)
    if not writer.begin():
        raise InvalidInputError(f"job {job!r} has not committed an epoch yet; run it", job=job)

    def publish() -> None:
        check_sinks_confirmed(writer.state, root)
        publish_outputs(writer.state, bus, root, writer.fence)

    before = writer.state
    try:
        yield writer, publish
    except Exception:
        writer.finish(before)
        raise
    writer.finish()
