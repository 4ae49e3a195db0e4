"""To drain a host: the mark in the manifest, and what has to be true for it to be set.

What the mark does is in ``balance``: nothing is placed on such a host, and what is there moves
away, within the limit of moves and once its standbys have caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from headrace.clock import Clock
from headrace.coordinator.hosts.everywhere import Drained, marked
from headrace.coordinator.hosts.record import Happening, HostState, What, told
from headrace.coordinator.manifest import JobState
from headrace.coordinator.reign import Reign
from headrace.errors import InvalidInputError
from headrace.faults import fault

LEAST_PREFIX = 4
ALL_JOBS = "for all jobs"


def find_host(hosts: Mapping[str, HostState], named: str) -> str:
    """Return the identity of the host that somebody means.

    Args:
        hosts: those that the job knows.
        named: an identity or its begin, or an address.

    Raises:
        InvalidInputError: no host is called that, or several are.
    """
    if named in hosts:
        return named
    found = [host for host, held in hosts.items() if held.address == named]
    found = [host for host in found if hosts[host].slots] or found
    if not found and len(named) >= LEAST_PREFIX:
        found = [host for host in hosts if host.startswith(named)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{held.named(host)} ({host})" for host, held in hosts.items()) or "none yet"
    what = "no host" if not found else f"{len(found)} hosts are"
    raise InvalidInputError(f"{what} called {named!r}; the job's hosts are: {known}")


def drained(state: JobState, host: str, *, undo: bool) -> JobState:
    """Return a state in which a host is to be empty, or is not any more; the same if it is so.

    Raises:
        InvalidInputError: no other host would be left to run on, or all jobs are to leave it.
    """
    held = state.hosts.get(host, HostState())
    if undo and held.everywhere:
        raise InvalidInputError(
            f"host {held.named(host)} is drained for all jobs, so job {state.job!r} alone cannot "
            f"use it; use it again for all with: headrace cluster drain {held.named(host)} --undo"
        )
    if held.drained != undo:
        return state
    others = [one for name, one in state.hosts.items() if name != host]
    if not undo and not any(one.slots and not one.drained for one in others):
        raise InvalidInputError(
            f"host {held.named(host)} is the only one that job {state.job!r} can run on, so it "
            "cannot be drained; add another host first, or stop the job"
        )
    hosts = {**state.hosts, host: msgspec.structs.replace(held, drained=not undo)}
    return msgspec.structs.replace(state, hosts=hosts)


def commit_drain(
    reign: Reign,
    named: str,
    clock: Clock,
    publish: Callable[[], object],
    hosts: Callable[[JobState], Mapping[str, HostState]] = lambda state: state.hosts,
    *,
    undo: bool,
) -> str:
    """Commit that a host is to be empty, or not any more; returns its identity.

    Args:
        reign: that has begun.
        named: the host, as ``find_host`` takes it.
        clock: for when it was.
        publish: brings out the outputs of the last epoch, unless that was done.
        hosts: those that the job knows by now.
        undo: that it is not any more.

    Raises:
        InvalidInputError: no such host, or none would be left.
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        publish()
        before = msgspec.structs.replace(reign.state, hosts=dict(hosts(reign.state)))
        host = find_host(before.hosts, named)
        after = drained(before, host, undo=undo)
        if after is before:
            return host
        what = What.UNDRAIN if undo else What.DRAIN
        story = told(after.story, [Happening(clock.now_ms(), what, host)])
        if reign.publish_next(msgspec.structs.replace(after, story=story)):
            fault("drain.committed")
            return host


def commit_everywhere(
    reign: Reign,
    everywhere: Collection[Drained],
    clock: Clock,
    publish: Callable[[], object],
    hosts: Callable[[JobState], Mapping[str, HostState]],
) -> bool:
    """Commit which hosts are to be empty of all jobs; returns whether any is new, or no more so.

    Args:
        reign: that has begun.
        everywhere: hosts that are, whether the job knows them or not.
        clock: for when it was.
        publish: brings out the outputs of the last epoch, unless that was done.
        hosts: those that the job knows by now.

    Raises:
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        known = hosts(reign.state)
        after = marked(known, everywhere)
        changed = [name for name, now in after.items() if now.everywhere != known[name].everywhere]
        if not changed:
            return False
        publish()
        now = clock.now_ms()
        whats = {True: What.DRAIN, False: What.UNDRAIN}
        news = [Happening(now, whats[after[name].drained], name, ALL_JOBS) for name in changed]
        state, story = reign.state, told(reign.state.story, news)
        if reign.publish_next(msgspec.structs.replace(state, hosts=after, story=story)):
            fault("drain.committed")
            return True
