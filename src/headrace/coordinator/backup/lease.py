"""Who drives a job whose epochs commit elsewhere: a lease and generations in job_dir.

The lease says that a driver lives and keeps a second one, on another host, from starting; it
is renewed every few seconds. Generations fence: who takes one stops whoever had one before,
as soon as that one reaches job_dir again. Both hold only as far as job_dir can be reached.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.storage import is_alive
from headrace.errors import NotOwnerError
from headrace.files import Files

LEASE_S = 30.0
RENEW_S = 5.0


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lease; ``host_id`` is the identity of its state directory.

    ``machine`` names what its process number means something in: a boot, and a namespace.
    The lease counts for ``lasts_s`` after it was renewed.
    """

    host_id: str
    host: str
    process: int
    machine: str = ""
    lasts_s: float = LEASE_S


class Lease:
    """One driver's lease on a job.

    Args:
        root: the job's folder in job_dir.
        job: its name.
        host_id: identity of this host's state directory.
        files: the file system.
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
        self._mine = Holder(host_id, os.uname().nodename, os.getpid(), _machine(), lasts_s)
        self._renewed: float | None = None
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
        raise NotOwnerError(
            f"job {self._job!r} is driven by process {holder.process} on host {holder.host}, which "
            f"renewed its lease {age:.0f} s ago; stop that driver first, or, if it is dead, try "
            f"again in {holder.lasts_s - age:.0f} s",
            job=self._job,
        )

    @property
    def mine(self) -> Holder:
        """What this process says of itself when it holds the lease."""
        return self._mine

    def force(self) -> None:
        """Take the lease now, whoever holds it.

        Raises:
            OSError: job_dir does not answer.
        """
        self._renewed = None
        self.renew()

    def holder(self) -> tuple[Holder | None, float]:
        """Return the holder, and the seconds since it renewed by the file system's own clock.

        Raises:
            OSError: job_dir does not answer.
        """
        try:
            renewed = self._path.stat().st_mtime
            holder = msgspec.json.decode(self._files.read(self._path), type=Holder)
        except FileNotFoundError:
            return None, 0.0
        except msgspec.DecodeError:  # not ours to judge, and whoever wrote it does so again
            return None, 0.0
        probe = self._root / f".lease.{self._clock.new_id()}.tmp"
        self._files.write_new(probe, [b""], durable=False)
        try:
            return holder, probe.stat().st_mtime - renewed
        finally:
            self._files.remove(probe)

    def newest(self) -> tuple[int, bool]:
        """Return the newest generation in job_dir, and whether this host took it."""
        number, holder = self._log().newest_generation()
        return number, holder.get("host_id") == self._mine.host_id

    def take(self, generation: int) -> None:
        """Take a generation, which fences whoever had one before, and the lease.

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
        return NotOwnerError(
            f"job {self._job!r} was taken over by generation {newest} of another driver in "
            f"{self._root}; this one had {self.generation} and stops",
            job=self._job,
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
        self._files.replace(self._path, data, self._clock.new_id())
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
        return FileCommitLog(self._root, self._files, self._clock)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{os.uname().nodename}:{os.getpid()}"  # like no other: only the age counts
