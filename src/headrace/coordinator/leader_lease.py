"""Who drives a job: the lease and generations in its storage, and the driver as others see it.

The lease says that a driver lives and keeps a second one, on another host, from starting; it is
renewed every few seconds. Generations fence: who takes one stops the driver before, as soon
as that one reaches the storage again. ``driver_of`` looks from outside and disturbs nobody.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.clock import Clock
from headrace.coordinator.commit_log import FileCommitLog
from headrace.errors import NotOwnerError
from headrace.files import Files, is_alive

LEASE_S = 30.0
RENEWALS = 6
"""So often is a lease renewed in the time that it counts."""

RENEW_S = LEASE_S / RENEWALS
_MAX_SKEW_S = 2.0


class _LastRenewal(NamedTuple):
    """A time that a lease was renewed at, since when this process knows it, and whether another."""

    renewed: float
    since_s: float
    has_changed: bool


class LeaseHolder(msgspec.Struct, frozen=True):
    """Who holds a lease; ``host_id`` is the identity of its state directory.

    ``machine`` names what its process number means something in: a boot, and a namespace.
    The lease counts for ``lasts_s`` after it was renewed.
    """

    host_id: str
    host: str
    process: int
    machine: str = ""
    lasts_s: float = LEASE_S


class LeaderLease:
    """One driver's lease on a job.

    Args:
        root: the job's folder in job_dir.
        job: its name.
        host_id: identity of this host's state directory.
        files: the file system; fenced ones refuse to renew once another driver took over.
        clock: for names, and for when to renew.
        renew_s: how often it is renewed at most.
        lasts_s: how long it counts after that.
    """

    def __init__(
        self,
        root: Path,
        job: str,
        host_id: str,
        files: Files,
        clock: Clock,
        renew_s: float = RENEW_S,
        lasts_s: float = LEASE_S,
    ) -> None:
        self._root, self._job, self._files, self._clock = root, job, files, clock
        self._path, self._renew_s = root / "lease.json", renew_s
        self._mine = LeaseHolder(host_id, os.uname().nodename, os.getpid(), this_machine(), lasts_s)
        self._renewed: float | None = None
        self._watched: _LastRenewal | None = None
        self._is_ahead = False
        self.generation = 0

    def refuse_others(self) -> None:
        """Make sure that no driver of another host holds a lease that still counts.

        Without an identity of its own, as of a driver whose epochs commit to job_dir itself,
        every holder is another, but for this process.

        Raises:
            NotOwnerError: one does; names it.
            OSError: job_dir does not answer.
        """
        holder, age = self.holder()
        if holder is None or holder.host_id == self._mine.host_id or age > holder.lasts_s:
            return
        own = (self._mine.process, self._mine.machine)
        if not self._mine.host_id and (holder.process, holder.machine) == own:
            return
        if holder.machine == self._mine.machine and not is_alive(holder.process):
            return
        if self._is_ahead:
            self._clock.sleep(holder.lasts_s)  # a living holder renews it meanwhile
            holder, age = self.holder()
            if holder is None or (self._is_ahead and age >= holder.lasts_s):
                return
        raise NotOwnerError(
            f"job {self._job!r} is driven by process {holder.process} on host {holder.host}, which "
            f"renewed its lease {age:.0f} s ago; stop that driver first, or, if it is dead, try "
            f"again in {holder.lasts_s - age:.0f} s",
            job=self._job,
        )

    @property
    def mine(self) -> LeaseHolder:
        """What this process says of itself when it holds the lease."""
        return self._mine

    def force(self) -> None:
        """Take the lease now, also from another holder.

        Raises:
            OSError: job_dir does not answer.
        """
        self._renewed = None
        self.renew()

    def holder(self) -> tuple[LeaseHolder | None, float]:
        """Return the holder, and the seconds since it renewed by the file system's own clock.

        Raises:
            OSError: job_dir does not answer.
        """
        try:
            renewed = self._files.status(self._path).written_s
            holder = msgspec.json.decode(self._files.read(self._path), type=LeaseHolder)
        except FileNotFoundError:
            return None, 0.0
        except msgspec.DecodeError:  # not ours to judge, and its writer writes it again
            return None, 0.0
        return holder, self._age_s(renewed, self._files.now_s(self._root))

    def _age_s(self, renewed: float, now: float) -> float:
        """Return the age of a lease, though the clock of the storage may have jumped since then.

        One that this process has seen renewed is no older than that; one of the future is as old
        as this process knows it.
        """
        here, age = self._clock.monotonic(), now - renewed
        if self._watched is None:
            self._watched = _LastRenewal(renewed, here, False)
        elif self._watched.renewed != renewed:
            self._watched = _LastRenewal(renewed, here, True)
        known_s = here - self._watched.since_s
        self._is_ahead = age < -_MAX_SKEW_S
        if self._is_ahead:
            return known_s
        return min(age, known_s) if self._watched.has_changed else max(0.0, age)

    def newest(self) -> tuple[int, bool]:
        """Return the newest generation in job_dir, and whether this host took it."""
        number, holder = self._log().newest_generation()
        return number, holder.get("host_id") == self._mine.host_id

    def take(self, generation: int) -> None:
        """Take a generation, which fences the driver before, and the lease.

        Raises:
            NotOwnerError: somebody else took that number, or a later one.
            OSError: job_dir does not answer.
        """
        holder: dict[str, str | int] = {
            "process": self._mine.process,
            "host": self._mine.host,
            "host_id": self._mine.host_id,
            "time_ms": self._clock.now_ms(),
        }
        log, self.generation = self._log(), generation
        if not log.claim_generation(generation, holder):
            # It may be this very driver that has it: what came after the claim had failed.
            newest, taker = log.newest_generation()
            own = all(taker.get(name) == holder[name] for name in ("process", "host_id"))
            if newest != generation or not own:
                raise self._fenced(newest)
            log.files.take(generation)
        self._renewed = None
        self.renew()

    def check(self) -> None:
        """Make sure that nobody took a later generation.

        Raises:
            NotOwnerError: somebody did; stop.
            OSError: job_dir does not answer.
        """
        newest, _ = self._log().newest_generation()
        if newest != self.generation:
            raise self._fenced(newest)

    def _fenced(self, newest: int) -> NotOwnerError:
        return NotOwnerError.taken_over(
            f"job {self._job!r}",
            self.generation,
            newer=newest,
            job=self._job,
            directory=str(self._root),
        )

    def renew(self) -> None:
        """Say that this driver lives, if it was a while ago that it did.

        Raises:
            OSError: job_dir does not answer.
        """
        now = self._clock.monotonic()
        if self._renewed is not None and now - self._renewed < self._renew_s:
            return
        data = msgspec.json.encode(self._mine)
        self._files.replace(self._path, data)
        self._renewed = now

    def release(self) -> None:
        """Let the next driver start at once.

        Raises:
            OSError: job_dir does not answer.
        """
        holder, _ = self.holder()
        if holder == self._mine:
            self._files.remove(self._path)

    def _log(self) -> FileCommitLog:
        return FileCommitLog(self._root, self._files)


def this_machine() -> str:
    """Return what process numbers mean something in: a boot of a machine, and a namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{os.uname().nodename}:{os.getpid()}"  # like no other: only the age counts


class DriverProcess(NamedTuple):
    """A driver that runs: its process, the host it is on, and whether that is this one."""

    process: int
    host: str
    is_here: bool

    def __str__(self) -> str:
        """Return ``process N``, with the host when it is another."""
        return f"process {self.process}" + ("" if self.is_here else f" on host {self.host}")


def driver_of(storage: Path, shared: Path, job: str, clock: Clock) -> DriverProcess | None:
    """Return who drives a job; ``None``: nobody.

    A driver of another host is known by its lease, or by the lock where the file system
    shows it, and then by its generation.

    Args:
        storage: of the job.
        shared: its folder in job_dir, which may be the same.
        job: its name.
        clock: for names.
    """
    here = os.uname().nodename
    process = lock_holder(storage / "driver.lock")
    if process is not None and is_alive(process) and is_locked(storage / "driver.lock"):
        return DriverProcess(process, here, is_here=True)
    if Files(sync=False).exists(shared / "lease.json"):
        holder, age = LeaderLease(shared, job, "", Files(sync=False), clock).holder()
        if holder is not None and age <= holder.lasts_s and holder.host != here:
            return DriverProcess(holder.process, holder.host, is_here=False)
    if not Files(sync=False).exists(storage / "generations"):
        return None
    log = FileCommitLog(storage, Files(sync=False))
    _, taken = log.newest_generation()
    host = str(taken.get("host", here))
    if host != here and is_locked(storage / "driver.lock"):
        return DriverProcess(int(taken.get("process", 0)), host, is_here=False)
    return None


def lock_holder(lock: Path) -> int | None:
    """Return the process that has written itself into a lock, whether it has it or not."""
    try:
        said = lock.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None


def is_locked(lock: Path) -> bool:
    """Say whether somebody drives; shared, and for so short that a driver is not in its way."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


MEMBERS_FILE = "members.json"


@dataclass(frozen=True)
class MemberInfo:
    """A process of a shared job; ``host_id`` is the identity of its state directory."""

    host_id: str
    host: str
    process: int
    slots: int
    drives: bool


def read_members(storage: Path) -> list[MemberInfo]:
    """Return the processes that were in last; none where no job is shared."""
    with suppress(OSError, msgspec.DecodeError):
        data = Files(sync=False).read(storage / MEMBERS_FILE)
        return msgspec.json.decode(data, type=list[MemberInfo])
    return []
