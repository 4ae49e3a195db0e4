"""One driver's reign over a job: its generation, and the state that it has seen committed."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from headrace.clock import Clock
from headrace.coordinator.backup.copier import Copier
from headrace.coordinator.commit_log import PRUNE_MARGIN, CommitLog
from headrace.coordinator.history import load_state, newest_base
from headrace.coordinator.manifest import (
    FORMAT,
    JobState,
    Manifest,
    base_manifest,
    decode_manifest,
    encode_manifest,
    fold,
)
from headrace.errors import InternalError, NotOwnerError


class Reign:
    """Publishes manifests as long as no newer generation has begun.

    Args:
        job: its name.
        log: of manifests.
        clock: for who began when.
        copier: brings copies to job_dir, where epochs commit elsewhere.
    """

    def __init__(
        self, job: str, log: CommitLog, clock: Clock, copier: Copier | None = None
    ) -> None:
        self._job, self._log, self._clock = job, log, clock
        self._copier = copier
        self._state: JobState | None = None
        self.generation = 0

    @property
    def has_begun(self) -> bool:
        """Say whether there is a state."""
        return self._state is not None

    @property
    def state(self) -> JobState:
        """The job's state after the last committed epoch.

        Raises:
            InternalError: there is none yet.
        """
        if self._state is None:
            raise InternalError("the coordinator was not started", job=self._job)
        return self._state

    def begin(self, above: int = 0) -> bool:
        """Take a generation and fold the manifests; False when the job has none yet.

        Args:
            above: the generation is to be a later one, for files of this one came from elsewhere.

        Raises:
            CorruptDataError: a manifest is damaged or missing.
        """
        now, host = self._clock.now_ms(), os.uname().nodename
        above = max(above, 0 if self._copier is None else self._copier.take_home())
        self.generation = self._log.take_generation(
            {"process": os.getpid(), "host": host, "time_ms": now}, above
        )
        if self._copier is not None:
            self._copier.begin(self.generation)
        self._state = load_state(self._log)
        return self._state is not None

    def check(self, cause: Exception | None = None) -> None:
        """Make sure that this is the newest generation.

        Raises:
            NotOwnerError: a newer one has begun.
        """
        if self._copier is not None:
            self._copier.check()
        newest, holder = self._log.newest_generation()
        if newest != self.generation:
            raise NotOwnerError(
                f"job {self._job!r} was taken over by generation {newest}, {_driver(holder)}; this "
                f"driver, of generation {self.generation}, stops: headrace jobs ls tells who runs "
                "it",
                job=self._job,
            ) from cause

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
        self._state = fold(self._state, manifest, digest) if won else load_state(self._log)
        return won

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
                time_ms=max(self._clock.now_ms(), state.time_ms),
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
            time_ms=max(self._clock.now_ms(), before.time_ms),
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


def _driver(holder: Mapping[str, str | int]) -> str:
    """Name a driver by what it said when it took its generation."""
    process, host = holder.get("process"), holder.get("host")
    return "another driver" if process is None else f"process {process} on {host}"
