"""Keeps the copy of a job's storage in job_dir up, beside the epochs and never in their way.

``take_home`` and ``begin`` belong to a driver's start. Then ``observe`` takes each committed
epoch, and a thread copies the newest each interval. ``backup`` does the copying itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headrace.clock import Clock, Deadline
from headrace.coordinator.backup.backup import Backup
from headrace.coordinator.manifest import JobState
from headrace.coordinator.recovery import RecoveryStalledError
from headrace.errors import HeadraceError, NotOwnerError, UnavailableError

REACH_S = 10.0
STUCK_S = 30.0
WAKE_S = 1.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class CopyStatus:
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


@dataclass(frozen=True)
class CopyLag:
    """How far the copy in job_dir is behind the epochs: what the loss of this host would cost."""

    epochs: int
    seconds: float
    failures: int
    problem: str


class _StoppedError(Exception):
    """The copying was told to end; what it did so far stays."""


class Copier:
    """The background copying of one driver.

    ``observe``, ``pinned``, ``check`` and ``lag`` may be called while the thread copies.

    Args:
        backup: the storage and its copy.
        interval_ms: from the begin of one copy to that of the next.
        stuck_s: how long a copy that is being restored may give no byte.
        clock: for intervals and deadlines.
        tell: called with a line when job_dir goes away and when it is back.
    """

    def __init__(
        self,
        backup: Backup,
        interval_ms: int,
        stuck_s: float,
        clock: Clock,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._backup, self._clock = backup, clock
        self._interval_s, self._stuck_s = interval_ms / 1000, stuck_s
        self.tell, self.takes_over = tell, False
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
        self.status = CopyStatus()

    @property
    def host_id(self) -> str:
        """The identity of the state directory that the storage is in."""
        return self._backup.host_id

    def take_home(self) -> int:
        """Make sure that this host may drive the job; returns the generation to go above.

        A storage that the copy of another host has overtaken is thrown away.

        Raises:
            NotOwnerError: a driver of another host is alive.
            UnavailableError: there is no storage here, and job_dir does not answer.
        """
        backup = self._backup
        try:
            newest, is_overtaken = within(REACH_S, self._look)
        except (OSError, UnavailableError) as error:
            if not backup.has_local:
                raise UnavailableError(
                    f"job {backup.job!r} has no storage on this host, and {backup.remote}, where "
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
        if backup.remote.exists() and not self.takes_over:
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
            within(REACH_S, self._take)
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
            self.tell(
                f"this host has no storage of job {state.job!r}: it goes on from the copy of "
                f"epoch {state.epoch}; input is read again from there"
            )

    def _while_it_moves(self, ask: Callable[[], _Answer]) -> _Answer:
        """Return what a call answers that reports each chunk, however long it takes."""
        self._moved = self._clock.monotonic()
        found = _Asked(ask)
        while not found.over.wait(WAKE_S / 10):
            if self._clock.monotonic() - self._moved > self._stuck_s:
                remote = self._backup.remote
                raise RecoveryStalledError(
                    f"the copy of job {self._backup.job!r} in {remote} has given no byte for "
                    f"{self._stuck_s:.0f} s; look whether its disk answers, then run again, or "
                    "raise state.recovery_timeout_s",
                    job=self._backup.job,
                    file=str(remote),
                )
        return found.answer()

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
            raise NotOwnerError(
                f"job {self._backup.job!r} was taken over by generation {newest} of another host "
                f"while {self._backup.remote} did not answer; this driver stops, and its next "
                "start goes on from the other's copy, if there is one by then",
                job=self._backup.job,
            )
        self._take()

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

    def lag(self) -> CopyLag:
        """Return how far the copy is behind."""
        latest, status = self._latest, self.status
        behind = 0 if latest is None else max(0, latest.epoch - max(status.epoch, 0))
        late_ms = 0
        if latest is not None and behind:
            late_ms = latest.time_ms - (status.time_ms or latest.time_ms)
        return CopyLag(behind, late_ms / 1000, status.failures, status.problem)

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
            self.tell(
                f"{self._backup.remote} is back after {status.failures} failed tries; the copy is "
                f"of epoch {status.epoch}"
            )
        self.status = replace(status, failures=0, problem="")

    def _failed(self, error: Exception) -> None:
        status, problem = self.status, _reason(error)
        if not status.failures:
            self.tell(
                f"no copy in {self._backup.remote}: {problem}; the job goes on, and the loss of "
                f"this host would step back to epoch {max(status.epoch, 0)}"
            )
        self.status = replace(status, failures=status.failures + 1, problem=problem)

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
        """Bring one state over without a thread, as long as that moves, and let go of the lease.

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
            with suppress(OSError):  # then it ends by itself, a while later
                self._backup.lease.release()


class _Asked(Generic[_Answer]):
    """A call in a thread of its own, which is left behind when nobody waits any longer."""

    def __init__(self, ask: Callable[[], _Answer]) -> None:
        self._ask, self.over = ask, threading.Event()
        self._answers: list[_Answer] = []
        self._failures: list[BaseException] = []
        threading.Thread(target=self._run, name="headrace-reach", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failures.append(error)
        self.over.set()

    def answer(self) -> _Answer:
        """Return or raise what came of it, once it is over."""
        if self._failures:
            raise self._failures[0]
        return self._answers[0]


def within(seconds: float, ask: Callable[[], _Answer]) -> _Answer:
    """Return what a call answers, or give up: a file system may hang for good.

    Raises:
        UnavailableError: no answer in time.
    """
    found = _Asked(ask)
    if not found.over.wait(seconds):
        raise UnavailableError(f"no answer in {seconds:.0f} s")
    return found.answer()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or type(error).__name__} ({error.filename or 'job_dir'})"
    return error.message if isinstance(error, HeadraceError) else str(error)
