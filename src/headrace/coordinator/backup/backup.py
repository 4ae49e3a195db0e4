"""The copy of a job's storage in job_dir: one consistent prefix, and the way back from it.

``copy`` brings one epoch's state over; ``restore`` begins a storage from what was copied.
Both only copy files and publish names, so each may die at any step and be done again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.coordinator.backup.copying import FileCopier
from headrace.coordinator.backup.lease import Lease
from headrace.coordinator.catalog import load_catalog, save_catalog
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.manifest import JobState, base_manifest, encode_manifest
from headrace.coordinator.storage import FOLDERS, JobStorage, generation_of
from headrace.errors import CorruptDataError, NotOwnerError, UnavailableError
from headrace.faults import fault
from headrace.files import Files

MARK = "copy-id"


class Backup:
    """A job's storage on the host's own disk, and its copy.

    Args:
        local: the storage, where epochs commit.
        remote: the job's folder in job_dir.
        job: its name.
        host_id: identity of this host's state directory.
        files: the file system.
        clock: for names and times.
    """

    def __init__(
        self, local: Path, remote: Path, job: str, host_id: str, files: Files, clock: Clock
    ) -> None:
        self.local, self.remote, self.job, self.host_id = local, remote, job, host_id
        self._files, self._clock = files, clock
        self.lease = Lease(remote, job, host_id, files, clock)

    def attach(self) -> None:
        """Make sure that job_dir is the one that holds this storage's copy.

        An empty folder where a copy was is a mount that is missing, not a place to write to.

        Raises:
            UnavailableError: it is not.
            OSError: it does not answer.
        """
        mine, there = _read(self.local / MARK), _read(self.remote / MARK)
        if mine is not None and mine != there:
            found = "no mark" if there is None else "the mark of another copy"
            raise UnavailableError(
                f"{self.remote} holds {found}, so it is not where the copies of job {self.job!r} "
                f"went; mount the right one, or remove {self.local / MARK} to begin a new copy",
                job=self.job,
            )
        if there is None:
            self.remote.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = self._clock.new_id().encode()
            self._files.publish(self.remote / MARK, made, self._clock.new_id())
            there = self._files.read(self.remote / MARK)
        if mine is None:
            self.local.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._files.publish(self.local / MARK, there, self._clock.new_id())

    def copy(self, state: JobState, beat: Callable[[int], None]) -> int:
        """Bring a committed epoch over; returns the bytes that were copied.

        1. Make sure of the folder and of the lease. 2. Copy every file that the state names
        and the copy lacks, each verified. 3. Make sure of the lease again. 4. Publish the
        state as a base manifest. 5. Make sure of the lease once more: a driver that took over
        before has not seen this manifest, so it is taken back. 6. Sweep what neither it nor
        the copy before names. Whoever takes over from here on begins with this copy, and
        what it makes is of a later generation, which no sweep of this driver touches.

        Args:
            state: after the epoch; its files must stay until this returns.
            beat: called after each chunk with its bytes; may raise to end the copying.

        Raises:
            NotOwnerError: another driver has taken over; stop.
            CorruptDataError: a file of the storage is damaged; the copy is as it was.
            OSError: one side does not answer; nothing is visible, try again.
        """
        self.attach()
        self.lease.check()
        JobStorage(self.remote, self._files).create()
        copier = FileCopier(self.local, self.remote, self._files, self._clock, beat)
        copied = copier.bring(state)
        catalog = load_catalog(self.local, state.generation, self._files)
        if catalog is not None:  # so that commands can read the copy where the host is gone
            unique = self._clock.new_id()
            save_catalog(self.remote, state.generation, catalog, self._files, unique)
        fault("copy.files_done")
        self.lease.check()
        log = FileCommitLog(self.remote, self._files, self._clock)
        before = self.copied()
        self._drop_newer(log, state)
        log.publish(state.epoch, _as_copy(state))
        fault("copy.published")
        try:
            self.lease.check()
        except NotOwnerError:
            self._drop(log, state.epoch)
            raise
        fault("copy.confirmed")
        named = state.files() | (before.files() if before is not None else set())
        kept = {state.epoch, *([before.epoch] if before is not None else [])}
        self._sweep(named, kept)
        fault("copy.swept")
        return copied

    def copied(self) -> JobState | None:
        """Return the state that the newest copy is of; ``None`` without one that can be read.

        A new copy takes the place of one that nobody can read.
        """
        return _state_at(FileCommitLog(self.remote, self._files, self._clock))

    def is_overtaken(self) -> bool:
        """Say whether the copy is of a driver after the last one that committed here.

        One of another host that took a generation, and copied nothing, has overtaken nobody:
        what it may have committed is on its own disk, and this storage is the newest elsewhere.
        """
        copied = self.copied()
        own = _state_at(FileCommitLog(self.local, self._files, self._clock))
        return copied is not None and (own is None or copied.generation > own.generation)

    def _drop_newer(self, log: FileCommitLog, state: JobState) -> None:
        """Remove what a driver that was fenced meanwhile still published above this epoch."""
        for epoch in log.epochs():
            found = _state_at(log, epoch)
            if epoch >= state.epoch and (found is None or found.copy_of != state.digest):
                self._drop(log, epoch)

    def _drop(self, log: FileCommitLog, epoch: int) -> None:
        """Remove the manifest of a copy, unless a driver after this one made it."""
        found = _state_at(log, epoch)
        if found is None or found.generation <= self.lease.generation:
            self._files.remove(self.remote / "manifests" / f"{epoch:012d}.json")

    def _sweep(self, named: set[str], kept: set[int]) -> None:
        """Remove what earlier copies held, and what copies that did not end left behind."""
        for folder in FOLDERS:
            inside = self.remote / folder
            found = {path.name for path in inside.glob(".*.tmp")} | set(self._files.names(inside))
            for name in found:
                if f"{folder}/{name}" not in named and self._is_swept(name):
                    self._files.remove(inside / name)
        log = FileCommitLog(self.remote, self._files, self._clock)
        for epoch in log.epochs():
            if epoch not in kept:
                self._drop(log, epoch)

    def _is_swept(self, name: str) -> bool:
        made_by = generation_of(name)
        return made_by is None or made_by <= self.lease.generation

    def restore(self, beat: Callable[[int], None]) -> JobState | None:
        """Begin the storage from the newest copy; ``None`` when there is none.

        The manifest comes last: a crash before it leaves a storage that is restored again.

        Raises:
            CorruptDataError: the copy is damaged; names the file.
            OSError: one side does not answer.
        """
        state = load_state(FileCommitLog(self.remote, self._files, self._clock))
        if state is None:
            return None
        JobStorage(self.local, self._files).create()
        copier = FileCopier(self.remote, self.local, self._files, self._clock, beat)
        copier.bring(state, parallel=True)
        log = FileCommitLog(self.local, self._files, self._clock)
        copied = state.copy_of or state.digest
        log.publish(state.epoch, _as_copy(msgspec.structs.replace(state, digest=copied)))
        return state

    def discard(self) -> None:
        """Throw away a storage that another host's has overtaken; its manifests go at once."""
        manifests = self.local / "manifests"
        if manifests.exists():
            manifests.rename(self.local / f".manifests.{self._clock.new_id()}.old")
        for path in (*self.local.glob(".manifests.*.old"), *map(self.local.joinpath, FOLDERS)):
            shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.local / "generations", ignore_errors=True)
        JobStorage(self.local, self._files).create()
        FileCommitLog(self.local, self._files, self._clock)  # makes its folders

    @property
    def has_local(self) -> bool:
        """Say whether the storage holds a committed epoch."""
        return bool(self._files.names(self.local / "manifests"))


def _state_at(log: FileCommitLog, epoch: int | None = None) -> JobState | None:
    """Return the state after an epoch, or the newest; ``None`` where nobody can read it."""
    try:
        return load_state(log, epoch)
    except CorruptDataError:
        return None


def _as_copy(state: JobState) -> bytes:
    # Older epochs, which the storage may keep, are not in the copy.
    copy = msgspec.structs.replace(state, copy_of=state.digest, kept_from=state.epoch)
    data, _ = encode_manifest(base_manifest(copy, previous=""))
    return data


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
