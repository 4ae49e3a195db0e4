"""To renew the processes of a job, host by host or all at once, while its driver goes on.

Between two epochs no attempt runs, so a process can end there and nothing is lost but what it held
in memory. The stores of its tasks stay on the disk of its host: its successor opens them in the
epoch after, which runs all tasks. Only then is the next host renewed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.errors import InternalError


@dataclass(frozen=True)
class Renew:
    """End the processes of these hosts."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Run an epoch of all tasks, in which new processes open their stores."""


@dataclass(frozen=True)
class Over:
    """All hosts are renewed."""


@dataclass(frozen=True)
class Restart:
    """The course of a restart.

    Args:
        left: hosts that are to be renewed yet, in order.
        is_rolling: one after the other.
        renewed: hosts whose processes have ended.
        cold: hosts whose new processes have not run yet.
    """

    left: tuple[str, ...]
    is_rolling: bool
    renewed: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()

    @property
    def action(self) -> Renew | Run | Over:
        """What is to be done now."""
        if self.cold:
            return Run()
        if self.left:
            return Renew(self.left[:1] if self.is_rolling else self.left)
        return Over()

    def after_renewal(self) -> Restart:
        """Return the restart after the processes of its action have ended."""
        match self.action:
            case Renew(hosts):
                left = self.left[len(hosts) :]
                return replace(self, left=left, renewed=(*self.renewed, *hosts), cold=hosts)
        raise InternalError(f"nothing was to be renewed: {self}")

    def after_epoch(self) -> Restart:
        """Return the restart after an epoch of all tasks."""
        return replace(self, cold=())

    def without(self, hosts: Collection[str]) -> Restart:
        """Return the restart when hosts are lost: they have no processes to renew."""
        left = tuple(host for host in self.left if host not in hosts)
        return replace(self, left=left, cold=tuple(h for h in self.cold if h not in hosts))

    def validate(self) -> None:
        """Make sure that a restart is one that can be.

        Raises:
            InternalError: it is not.
        """
        if self.is_rolling and len(self.cold) > 1:
            raise InternalError(f"more than one host is away: {self}")
        if set(self.left) & set(self.renewed) or not set(self.cold) <= set(self.renewed):
            raise InternalError(f"a host is renewed and is not: {self}")
