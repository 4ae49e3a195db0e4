"""Which processes share a job, as its driver sees them: a pure table, moved on by events.

A process is in, leaving, or out. ``version`` changes whenever slots come or go, so whoever placed
tasks by an older one places them anew. A new driver waits a moment for those who were in with the
one before it; how long a lost host is waited for beyond that is up to placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.errors import InternalError

SETTLE_S = 1.0
"""So long does a new driver wait for those who were in with the one before."""


@dataclass(frozen=True)
class Member:
    """A process that runs slots: its number, the identity of its state directory, who it is."""

    number: int
    host: str
    machine: str
    process: int
    slots: int
    is_leaving: bool = False


@dataclass
class Membership:
    """The processes of a job.

    Args:
        silence_s: after so long without a sign of life a process is lost.
    """

    silence_s: float
    members: dict[int, Member] = field(default_factory=dict)
    version: int = 0
    _heard: dict[int, float] = field(default_factory=dict)
    _awaited: dict[str, float] = field(default_factory=dict)
    _waited: dict[int, float] = field(default_factory=dict)
    _next: int = 0

    def join(self, host: str, machine: str, process: int, slots: int, now: float) -> Member:
        """Take a process in; another one with its state directory is out by that."""
        for other in [one for one in self.members.values() if one.host == host]:
            self._remove(other.number)
        member = Member(self._next, host, machine, process, slots)
        self._next += 1
        self.members[member.number] = member
        self._heard[member.number] = now
        self._awaited.pop(host, None)
        self.version += 1
        return member

    def heard(self, number: int, now: float) -> None:
        """Note a sign of life."""
        if number in self.members:
            self._heard[number] = now

    def leave(self, number: int) -> None:
        """Note that a process would like to go: it is given nothing more to do."""
        member = self.members.get(number)
        if member is not None and not member.is_leaving:
            self.members[number] = replace(member, is_leaving=True)
            self.version += 1

    def lose(self, number: int, now: float) -> None:
        """Note that a process has gone."""
        member = self.members.get(number)
        if member is None:
            return
        silent_s = now - self._heard[number]
        if member.is_leaving:
            self._waited[number] = float("inf")
        elif silent_s >= self.silence_s:
            self._waited[number] = silent_s
        self._remove(number)

    def waited_s(self, numbers: Iterable[int]) -> float:
        """Return how long those of these that have gone, or would like to, have been waited for.

        For one that has asked to leave nobody need wait.
        """
        able = {member.number for member in self.able()}
        left = {number for number, one in self.members.items() if one.is_leaving}
        found = [
            float("inf") if number in left else self._waited.get(number, 0.0)
            for number in numbers
            if number not in able
        ]
        return min(found, default=0.0)

    def _remove(self, number: int) -> None:
        del self.members[number], self._heard[number]
        self.version += 1

    def expect(self, hosts: Iterable[str], now: float) -> None:
        """Wait for hosts that were in with the driver before, and may just be coming over."""
        here = {member.host for member in self.members.values()}
        self._awaited.update(dict.fromkeys(set(hosts) - here, now + SETTLE_S))

    def silent(self, now: float) -> list[Member]:
        """Return the processes that have given no sign of life for too long."""
        return [
            member
            for number, member in self.members.items()
            if now - self._heard[number] >= self.silence_s
        ]

    def awaited(self, now: float) -> set[str]:
        """Return the hosts that are still waited for."""
        return {host for host, until in self._awaited.items() if now < until}

    def able(self) -> list[Member]:
        """Return the processes that slots can be used of, in the order in which they came."""
        return [member for member in self.members.values() if not member.is_leaving]

    def unneeded(self, used: Iterable[int]) -> list[Member]:
        """Return the processes that are leaving and whose slots nobody uses any more."""
        busy = set(used)
        return [one for one in self.members.values() if one.is_leaving and one.number not in busy]

    def validate(self) -> None:
        """Check what must always hold.

        Raises:
            InternalError: it does not.
        """
        hosts = [member.host for member in self.members.values()]
        if len(set(hosts)) != len(hosts):
            raise InternalError(f"two processes with one state directory: {sorted(hosts)}")
        if set(hosts) & set(self._awaited):
            raise InternalError("a host that is here is waited for")
        if self.members.keys() != self._heard.keys():
            raise InternalError("signs of life are kept of others than members")
