"""The copy of a job's storage in job_dir: one consistent prefix, kept up in the background.

``Backup.copy`` brings one epoch's state over; ``restore`` begins a storage from what was copied.
Both only copy files and publish names, so each may die at any step and be done again.

``BackupCopier`` does that beside the epochs and never in their way: ``before_generation``
and ``begin`` belong to a driver's start. Then ``observe`` takes each committed epoch, and a thread
copies the newest each interval.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.clock import Clock, Deadline
from headrace.config import Durability, Settings
from headrace.coordinator.catalog import load_catalog, save_catalog
from headrace.coordinator.commit_log import FileCommitLog, load_state
from headrace.coordinator.epoch_records import BackupLag, EpochSummary
from headrace.coordinator.file_copier import FileCopier
from headrace.coordinator.hooks import JobHook
from headrace.coordinator.job_storage import (
    FOLDERS,
    STORAGES,
    JobContext,
    JobStorage,
    generation_of,
)
from headrace.coordinator.leader_lease import LEASE_S, RENEWALS, LeaderLease
from headrace.coordinator.manifest import JobState, base_manifest, begin_lineage, encode_manifest
from headrace.coordinator.recovery import RecoveryStalledError
from headrace.coordinator.worker_host import host_identity
from headrace.errors import (
    CorruptDataError,
    HeadraceError,
    InvalidInputError,
    NotOwnerError,
    UnavailableError,
)
from headrace.faults import fault
from headrace.fencing_objects import fenced_files
from headrace.files import TRASH, Files
from headrace.remote import address_of

MARK = "copy-id"


class Backup:
    """A job's storage on the host's own disk, and its copy in a folder or an object storage.

    Args:
        local: the storage, where epochs commit.
        remote: the job's folder in job_dir.
        job: its name.
        host_id: identity of this host's state directory.
        files: the file system.
        clock: for names and times.
        lease_s: how long the driver's lease in job_dir counts.
    """

    def __init__(
        self,
        local: Path,
        remote: Path,
        job: str,
        host_id: str,
        files: Files,
        clock: Clock,
        lease_s: float = LEASE_S,
    ) -> None:
        self.local, self.remote, self.job, self.host_id = local, remote, job, host_id
        self._files, self._clock = files, clock
        self._fenced = fenced_files(files, remote)
        renew_s = lease_s / RENEWALS
        self.lease = LeaderLease(remote, job, host_id, self._fenced, clock, renew_s, lease_s)

    def attach(self) -> None:
        """Make sure that job_dir is the one that holds this storage's copy.

        An empty folder where a copy was is a mount that is missing, not a place to write to.

        Raises:
            UnavailableError: it is not.
            OSError: it does not answer.
        """
        mine, there = self._mark(self.local), self._mark(self.remote)
        if mine is not None and mine != there:
            found = "no mark" if there is None else "the mark of another copy"
            raise UnavailableError(
                f"{self.where} holds {found}, so it is not where the copies of job {self.job!r} "
                f"went; mount the right one, or remove {self.local / MARK} to begin a new copy",
                job=self.job,
            )
        if there is None:
            self._files.make_folder(self.remote, 0o700)
            made = self._clock.new_id().encode()
            self._fenced.publish(self.remote / MARK, made)
            there = self._files.read(self.remote / MARK)
        if mine is None:
            self._files.make_folder(self.local, 0o700)
            self._files.publish(self.local / MARK, there)

    def _mark(self, folder: Path) -> bytes | None:
        try:
            return self._files.read(folder / MARK)
        except FileNotFoundError:
            return None

    def copy(self, state: JobState, beat: Callable[[int], None]) -> int:
        """Bring a committed epoch over; returns the bytes that were copied.

        1. Make sure of the folder and of the lease. 2. Copy every file that the state names
        and the copy lacks, each verified. 3. Make sure of the lease again. 4. Publish the
        state as a base manifest. 5. Sweep what neither it nor the copy before names. From the
        claim of the lease on job_dir is changed by fenced files alone, so each name that is given
        or taken is refused once another driver has taken over, whatever was looked at before.

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
        JobStorage(self.remote, self._fenced).create()
        copier = FileCopier(self.local, self.remote, self._fenced, beat)
        copied = copier.bring(state)
        catalog = load_catalog(self.local, state.generation, self._files)
        if catalog is not None:  # so that commands can read the copy where the host is gone
            save_catalog(self.remote, state.generation, catalog, self._fenced)
        fault("copy.files_done")
        self.lease.check()
        log = FileCommitLog(self.remote, self._fenced)
        before = self.copied()
        self._drop_newer(log, state)
        log.publish(state.epoch, _as_copy(state))
        fault("copy.published")
        named = state.files() | (before.files() if before is not None else set())
        kept = {state.epoch, *([before.epoch] if before is not None else [])}
        self._sweep(named, kept)
        fault("copy.swept")
        return copied

    def copied(self) -> JobState | None:
        """Return the state that the newest copy is of; ``None`` without one that can be read.

        A new copy takes the place of one that nobody can read.
        """
        return _state_at(FileCommitLog(self.remote, self._files))

    def is_overtaken(self) -> bool:
        """Say whether the copy is of a driver after the last one that committed here.

        One of another host that took a generation, and copied nothing, has overtaken nobody:
        what it may have committed is on its own disk, and this storage is the newest elsewhere.
        """
        copied = self.copied()
        own = _state_at(FileCommitLog(self.local, self._files))
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
            self._fenced.remove(self.remote / "manifests" / f"{epoch:012d}.json")

    def _sweep(self, named: set[str], kept: set[int]) -> None:
        """Remove what earlier copies held, and what copies that did not end left behind."""
        for folder in FOLDERS:
            inside = self.remote / folder
            found = {path.name for path in inside.glob(".*.tmp")} | set(self._files.names(inside))
            for name in found:
                if f"{folder}/{name}" not in named and self._is_swept(name):
                    self._fenced.remove(inside / name)
        log = FileCommitLog(self.remote, self._fenced)
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
        state = load_state(FileCommitLog(self.remote, self._files))
        if state is None:
            return None
        JobStorage(self.local, self._files).create()
        copier = FileCopier(self.remote, self.local, self._files, beat)
        copier.bring(state, parallel=True)
        log = FileCommitLog(self.local, self._files)
        copied = state.copy_of or state.digest
        log.publish(state.epoch, _as_copy(msgspec.structs.replace(state, digest=copied)))
        return state

    def discard(self) -> None:
        """Throw away a storage that another host's has overtaken; its manifests go at once."""
        for name in ("manifests", *FOLDERS, "generations"):
            self._files.remove_tree(self.local / name)
        for path in (*self.local.glob(f"{TRASH}*"), *self.local.glob(".manifests.*.old")):
            shutil.rmtree(path, ignore_errors=True)
        JobStorage(self.local, self._files).create()

    @property
    def where(self) -> str:
        """The folder or the address of the copy, for people."""
        return address_of(self.remote)

    @property
    def exists(self) -> bool:
        """Say whether there is anything where the copy goes."""
        return self._files.exists(self.remote)

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


REACHABLE_S = 10.0
STUCK_S = 30.0
WAKE_S = 1.0
LAST_COPY_S = 1.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class BackupStatus:
    """How the copy stands.

    Args:
        epoch: the newest that was copied; -1: none by this driver yet.
        time_ms: the wall clock of that epoch.
        copies: how many copies were finished.
        copied_bytes: of all of them.
        failures: tries that failed since one was finished.
        problem: why the last one failed; empty when it did not.
    """

    epoch: int = -1
    time_ms: int = 0
    copies: int = 0
    copied_bytes: int = 0
    failures: int = 0
    problem: str = ""


class _StoppedError(Exception):
    """The copying was asked to end; what it did so far stays."""


class BackupCopier(JobHook):
    """The background copying of one driver.

    ``observe``, ``pinned``, ``check`` and ``lag`` may be called while the thread copies.

    Args:
        backup: the storage and its copy.
        durability: as it is set: how long it is from the begin of one copy to that of the next.
        stuck_s: how long a copy that is being restored may give no byte.
        clock: for intervals and deadlines.
        notify: called with a line when job_dir goes away and when it is back.
    """

    def __init__(
        self,
        backup: Backup,
        durability: str,
        stuck_s: float,
        clock: Clock,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._backup, self._clock = backup, clock
        interval_ms = Durability.parse(durability).interval_ms
        assert interval_ms is not None
        self._interval_s, self._stuck_s = interval_ms / 1000, stuck_s
        self.notify, self.takes_over = notify, False
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._latest: JobState | None = None
        self._copying: JobState | None = None
        self._copied = ""
        self._due: float | None = None
        self._fenced: NotOwnerError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._generation = 0
        self._has_lease = False
        self._moved = clock.monotonic()
        self.status = BackupStatus()

    def before_generation(self) -> int:
        """Make sure that this host may drive the job; returns the generation to go above.

        A storage that the copy of another host has overtaken is thrown away.

        Raises:
            NotOwnerError: a driver of another host is alive.
            UnavailableError: there is no storage here, and job_dir does not answer.
        """
        backup = self._backup
        try:
            newest, is_overtaken = call_with_timeout(self._look)
        except (OSError, UnavailableError) as error:
            if not backup.has_local:
                raise UnavailableError(
                    f"job {backup.job!r} has no storage on this host, and {backup.where}, where "
                    f"its copy is, cannot be used: {_reason(error)}; run again when it can",
                    job=backup.job,
                ) from error
            self._failed(error)
            return 0
        if is_overtaken:
            backup.discard()
        return newest

    def _look(self) -> tuple[int, bool]:
        backup = self._backup
        if backup.exists and not self.takes_over:
            backup.lease.refuse_others()
        backup.attach()
        newest, is_mine = backup.lease.newest()
        return newest, bool(newest) and not is_mine and backup.is_overtaken()

    def begin(self, generation: int) -> None:
        """Take the generation in job_dir too, then restore the storage if it is missing here.

        Raises:
            NotOwnerError: another driver took it first.
            CorruptDataError: the copy is damaged.
            UnavailableError: job_dir went away meanwhile.
        """
        self._generation = generation
        if self.status.failures:
            return
        try:
            call_with_timeout(self._take)
        except (OSError, UnavailableError) as error:
            self._failed(error)
        if not self._backup.has_local:
            self._restore()

    def _restore(self) -> None:
        if self.status.problem:
            raise UnavailableError(
                f"the copy of job {self._backup.job!r} cannot be used: {self.status.problem}",
                job=self._backup.job,
            )
        state = self._while_it_moves(lambda: self._backup.restore(self._beat))
        if state is not None:
            self.notify(
                f"this host has no storage of job {state.job!r}; it continues from the copy of "
                f"epoch {state.epoch}; input is read again from there"
            )

    def _while_it_moves(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return what a call answers that reports each chunk, however long it takes."""
        self._moved = self._clock.monotonic()
        found = _beside(ask)
        while not wait([found], WAKE_S / 10).done:
            if self._clock.monotonic() - self._moved > self._stuck_s:
                remote = self._backup.where
                raise RecoveryStalledError(
                    f"the copy of job {self._backup.job!r} in {remote} has given no byte for "
                    f"{self._stuck_s:.0f} s; check whether its disk answers, then run again, or "
                    "raise state.recovery_timeout_s",
                    job=self._backup.job,
                    file=remote,
                )
        return found.result()

    def _take(self) -> None:
        self._backup.lease.take(self._generation)
        self._has_lease = True
        copied = self._backup.copied()
        if copied is not None:
            self._copied = copied.copy_of
            self.status = replace(self.status, epoch=copied.epoch, time_ms=copied.time_ms)

    def _take_late(self) -> None:
        """Take the generation in a job_dir that did not answer when this driver started."""
        self._backup.attach()
        newest, is_mine = self._backup.lease.newest()
        if newest and not is_mine:
            error = NotOwnerError.taken_over(
                f"job {self._backup.job!r}",
                self._generation,
                newer=newest,
                holder="of another host",
                job=self._backup.job,
            )
            error.also = (
                f"that was while {self._backup.where} did not answer; the next start here "
                "continues from the other's copy, if there is one by then"
            )
            raise error
        self._take()

    @property
    def storage_host(self) -> str:
        """The identity of the state directory that the storage is in."""
        return self._backup.host_id

    def observe(self, state: JobState) -> None:
        """Take a committed epoch. Call before files that it no longer names are swept."""
        with self._lock:
            self._latest = state

    def pinned(self) -> set[str]:
        """Return the files that are being copied, which no sweep may remove."""
        with self._lock:
            return self._copying.files() if self._copying is not None else set()

    def check(self) -> None:
        """Make sure that no driver of another host took over, as far as is known.

        Raises:
            NotOwnerError: one did; stop.
        """
        if self._fenced is not None:
            raise self._fenced

    def summed_up(self, summary: EpochSummary) -> EpochSummary:
        """Return what is reported of an epoch, with how far the copy is behind."""
        return replace(summary, copy=self.lag())

    def lag(self) -> BackupLag:
        """Return how far the copy is behind."""
        latest, status = self._latest, self.status
        behind = 0 if latest is None else max(0, latest.epoch - max(status.epoch, 0))
        late_ms = 0
        if latest is not None and behind:
            late_ms = latest.time_ms - (status.time_ms or latest.time_ms)
        return BackupLag(behind, late_ms / 1000, status.failures, status.problem)

    def step(self, *, force: bool = False) -> bool:
        """Copy the newest epoch if that is due; says whether the copy is now up to it.

        Args:
            force: whether it is due or not.
        """
        with self._turn:
            return self._step(force=force)

    def _step(self, *, force: bool) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            latest = self._latest
            is_due = force or self._due is None or now >= self._due
            if latest is None or not is_due:
                return latest is None or latest.digest == self._copied
            self._due = now + self._interval_s
            self._copying = latest
        try:
            if not self._has_lease:
                self._take_late()
            if latest.digest == self._copied:
                self._backup.lease.check()
                self._backup.lease.renew()
            else:
                self._copy(latest)
            self._works()
            return True
        except _StoppedError:
            return False
        except NotOwnerError as error:
            self._fenced = error
            return False
        except (OSError, HeadraceError) as error:
            self._failed(error)
            return False
        finally:
            with self._lock:
                self._copying = None

    def _copy(self, state: JobState) -> None:
        size = self._backup.copy(state, self._beat)
        self._copied = state.digest
        status = self.status
        self.status = replace(
            status,
            epoch=state.epoch,
            time_ms=state.time_ms,
            copies=status.copies + 1,
            copied_bytes=status.copied_bytes + size,
        )

    def _beat(self, size: int) -> None:
        del size
        self._moved = self._clock.monotonic()
        if self._stop.is_set():
            raise _StoppedError
        if self._has_lease:
            self._backup.lease.renew()

    def _works(self) -> None:
        status = self.status
        if status.failures:
            self.notify(
                f"{self._backup.where} is back after {status.failures} failed tries; the copy is "
                f"of epoch {status.epoch}"
            )
        self.status = replace(status, failures=0, problem="")

    def _failed(self, error: Exception) -> None:
        status, problem = self.status, _reason(error)
        if not status.failures:
            self.notify(
                f"no copy in {self._backup.where}: {problem}; the job continues, and the loss of "
                f"this host would step back to epoch {max(status.epoch, 0)}"
            )
        self.status = replace(status, failures=status.failures + 1, problem=problem)

    @contextmanager
    def running(
        self, has_ended: Callable[[], bool], notify: Callable[[str], None], *, takes_over: bool
    ) -> Iterator[None]:
        """Let the copy follow, to the last epoch when the run ends.

        From the start on, for a driver that waits there has to keep its lease.
        """
        self.notify, self.takes_over = notify, takes_over
        self.start()
        try:
            yield
        finally:
            self.stop(None if has_ended() else LAST_COPY_S)

    def start(self) -> None:
        """Copy what is observed from now on, in a thread of its own; before ``begin`` or after."""
        self._thread = threading.Thread(target=self._run, name="headrace-copier", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(min(WAKE_S, self._interval_s)):
            if self._fenced is not None:
                return
            self.step()
            self._renew()

    def _renew(self) -> None:
        """Say that this driver lives, also when it waits and has nothing to copy."""
        if self._has_lease and not self.status.failures:
            try:
                self._backup.lease.renew()
            except NotOwnerError as error:
                self._fenced = error
            except OSError as error:
                self._failed(error)

    def stop(self, last_copy_s: float | None) -> None:
        """End the thread, and bring the last epoch over if that takes no longer than given.

        Args:
            last_copy_s: how long the last copy may take; ``None``: as long as it moves.
        """
        deadline = Deadline(self._clock, last_copy_s)
        self._moved = self._clock.monotonic()
        last = threading.Thread(target=self._last_copy, name="headrace-last-copy", daemon=True)
        last.start()
        while last.is_alive() and not deadline.expired and not self._is_stuck():
            last.join(WAKE_S / 10)
        self._stop.set()
        last.join(WAKE_S)  # it ends at its next chunk; one that hangs is left behind

    def finish(self, state: JobState) -> None:
        """Bring one state over without a thread, as long as that moves, and release the lease.

        Raises:
            RecoveryStalledError: job_dir hangs.
        """
        self.observe(state)
        self._while_it_moves(self._last_copy)

    def _is_stuck(self) -> bool:
        return self._clock.monotonic() - self._moved > STUCK_S

    def _last_copy(self) -> None:
        self.step(force=True)
        if self._has_lease and self._fenced is None and not self.status.failures:
            with suppress(OSError, NotOwnerError):  # then it ends by itself, a while later
                self._backup.lease.release()


def _beside(ask: Callable[[], _Answer]) -> Future[_Answer]:
    """Call a function in a thread of its own, which is left behind when nobody waits any longer."""
    found: Future[_Answer] = Future()

    def run() -> None:
        try:
            found.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.set_exception(error)

    threading.Thread(target=run, name="headrace-reach", daemon=True).start()
    return found


def call_with_timeout(ask: Callable[[], _Answer]) -> _Answer:
    """Return what a call answers, or give up: a file system may hang forever.

    Raises:
        UnavailableError: no answer in time.
    """
    found = _beside(ask)
    if not wait([found], REACHABLE_S).done:
        raise UnavailableError(f"no answer in {REACHABLE_S:.0f} s")
    return found.result()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, HeadraceError):
        return f"{error.strerror or type(error).__name__} ({error.filename or 'job_dir'})"
    return error.message if isinstance(error, HeadraceError) else str(error)


def backup_hooks(context: JobContext, root: Path) -> tuple[JobHook, ...]:
    """Return what keeps the copy of a job's storage up; nothing where there is no copy.

    Args:
        context: of the job, or of a part of it.
        root: the storage of any part of the job.

    Raises:
        InvalidInputError: epochs are about to commit to job_dir, which is behind a storage here.
    """
    if root.name != context.job:  # a job with a copy has one part
        return ()
    copier = open_copier(context)
    return () if copier is None else (copier,)


def open_copier(context: JobContext) -> BackupCopier | None:
    """Return what keeps the copy of a job's storage up; ``None`` where there is none.

    Args:
        context: of the job, or of a part of it.

    Raises:
        InvalidInputError: epochs are about to commit to job_dir, which is behind a storage here.
    """
    settings, job, files, clock = context.settings, context.job, context.files, context.clock
    where = context.storages
    if where.copy is None:
        _check_left(settings.state_dir / STORAGES / job, where.storage, files)
        return None
    host = host_identity(settings.state_dir, clock, files)
    lease_s = settings.job.lease_s
    backup = Backup(where.storage, where.copy, job, host, files, clock, lease_s)
    state = settings.state
    stuck_s, notify = state.recovery_timeout_s, context.notify
    return BackupCopier(backup, state.durability, stuck_s, clock, notify)


def settled_state(state: JobState, durability: str, clock: Clock) -> JobState | None:
    """Return a state that says what is promised from now on; ``None``: it does so already.

    One from a copy begins a lineage. What was committed after the copy is gone, but its outputs
    may be out: those of the epochs to come must not pass for them.

    Args:
        state: that a driver continues from.
        durability: what the setting says now.
        clock: for the name of a lineage.
    """
    if not state.copy_of and state.durability == durability:
        return None
    settled = msgspec.structs.replace(state, durability=durability)
    return begin_lineage(settled, clock.new_id()) if state.copy_of else settled


def check_shared_storage(settings: Settings, job: str) -> None:
    """Refuse a storage on the disk of one process where several are to share it.

    Raises:
        InvalidInputError: the job's storage would be there, with a copy in job_dir.
    """
    if Durability.parse(settings.state.durability).is_backup:
        raise InvalidInputError(
            f"state.durability is {settings.state.durability}, which keeps the job's "
            "storage on the disk of one process; processes that share a job need "
            "state.durability=epoch",
            job=job,
        )


def _check_left(left: Path, root: Path, files: Files) -> None:
    """Refuse to continue from a copy while this host has what was committed after it."""
    if not files.names(left / "manifests"):
        return
    copied = load_state(FileCommitLog(root, files))
    ahead = load_state(FileCommitLog(left, files))
    if copied is None or ahead is None or not copied.copy_of or ahead.digest == copied.copy_of:
        return
    raise InvalidInputError(
        f"job {ahead.job!r} has epochs up to {ahead.epoch} in {left}, and its copy in {root} is of "
        f"epoch {copied.epoch}; run it once more with state.durability={ahead.durability}, which "
        "copies the rest when it stops, or remove the former to step back to the copy",
        job=ahead.job,
    )
