"""Drained and cordoned hosts: the marks, and what has to be true for them.

A drained host is to be empty of one job: a mark in its manifest. A cordoned host is to be empty
of all jobs of a home: a small file beside the jobs, which each driver takes over into its
manifest between two epochs, so a job that begins later does, too. What a mark does is in
``placement``: nothing is placed on such a host, and what is there moves away, within the limit
of moves and once its standbys have caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.coordinator.host_state import ClusterEvent, EventKind, Hosts, HostState, recent_events
from headrace.coordinator.manifest import JobState
from headrace.coordinator.manifest_writer import FencedManifestWriter
from headrace.errors import InvalidInputError
from headrace.faults import fault
from headrace.files import Files
from headrace.remote import is_remote

CORDON_FOLDER = "_drained"
"""Beside the storages of jobs; no job can have this name."""


class CordonedHost(msgspec.Struct, frozen=True):
    """A host that is to be empty of all jobs.

    Args:
        host: its identity; empty: no job knew it.
        address: where it was named so; it then means whatever host has that address.
        time_ms: wall clock, since when.
    """

    host: str
    address: str = ""
    time_ms: int = 0

    def means(self, host: str, held: HostState) -> bool:
        """Say whether a host that a job knows is meant."""
        is_named = bool(self.host) and host == self.host
        return is_named or bool(self.address and held.address == self.address)


class CordonedHosts:
    """The hosts that are to be empty of all jobs of a home.

    Args:
        jobs_dir: where the storages of the jobs are.
        files: the file system.
    """

    def __init__(self, jobs_dir: Path, files: Files) -> None:
        self._folder, self._files = jobs_dir / CORDON_FOLDER, files
        self.is_remote = is_remote(self._folder)
        """Whether each look is a request."""

    def read(self) -> tuple[CordonedHost, ...]:
        """Return them; a file that cannot be read counts for nothing."""
        found = []
        for name in self._files.names(self._folder):
            try:
                data = self._files.read(self._folder / name)
                found.append(msgspec.json.decode(data, type=CordonedHost))
            except (FileNotFoundError, msgspec.DecodeError):
                continue
        return tuple(found)

    def add(self, one: CordonedHost) -> None:
        """Have a host be empty."""
        self._files.replace(self._path(one), msgspec.json.encode(one))

    def remove(self, one: CordonedHost) -> None:
        """Let a host be used again."""
        self._files.remove(self._path(one))

    def _path(self, one: CordonedHost) -> Path:
        return self._folder / f"{quote(one.host or one.address, safe='')}.json"


def with_cordons(hosts: Mapping[str, HostState], drained: Iterable[CordonedHost]) -> Hosts:
    """Return the hosts of a job as those of all jobs are marked; its own marks stay as they are."""
    every, found = tuple(drained), {}
    for name, held in hosts.items():
        is_meant = any(one.means(name, held) for one in every)
        is_own = held.drained and not held.cordoned
        is_new = is_meant != held.cordoned and not is_own
        now = msgspec.structs.replace(held, drained=is_meant, cordoned=is_meant)
        found[name] = now if is_new else held
    return found


def with_current_cordons(state: JobState, jobs_dir: Path) -> JobState:
    """Return a job as its driver will see it, for commands that show one that may not run."""
    try:
        drained = CordonedHosts(jobs_dir, Files(sync=False)).read()
    except OSError:  # its driver keeps the marks that it has, too
        return state
    return msgspec.structs.replace(state, hosts=with_cordons(state.hosts, drained))


MIN_PREFIX = 4
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
    if not found and len(named) >= MIN_PREFIX:
        found = [host for host in hosts if host.startswith(named)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{held.named(host)} ({host})" for host, held in hosts.items()) or "none yet"
    what = "no host" if not found else f"{len(found)} hosts are"
    raise InvalidInputError(f"{what} called {named!r}; the job's hosts are: {known}")


def with_drained(state: JobState, host: str, *, undo: bool) -> JobState:
    """Return a state in which a host is to be empty, or is not any more; the same if it is so.

    Raises:
        InvalidInputError: no other host would be left to run on, or all jobs are to leave it.
    """
    held = state.hosts.get(host, HostState())
    if undo and held.cordoned:
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
    writer: FencedManifestWriter,
    named: str,
    publish: Callable[[], object],
    hosts: Callable[[JobState], Mapping[str, HostState]] = lambda state: state.hosts,
    *,
    undo: bool,
) -> str:
    """Commit that a host is to be empty, or not any more; returns its identity.

    Args:
        writer: that has begun.
        named: the host, as ``find_host`` takes it.
        publish: brings out the outputs of the last epoch, unless that was done.
        hosts: those that the job knows by now.
        undo: that it is not any more.

    Raises:
        InvalidInputError: no such host, or none would be left.
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        publish()
        before = msgspec.structs.replace(writer.state, hosts=dict(hosts(writer.state)))
        host = find_host(before.hosts, named)
        after = with_drained(before, host, undo=undo)
        if after is before:
            return host
        what = EventKind.UNDRAIN if undo else EventKind.DRAIN
        events = recent_events(after.host_events, [ClusterEvent(writer.clock.now_ms(), what, host)])
        if writer.publish_next(msgspec.structs.replace(after, host_events=events)):
            fault("drain.committed")
            return host


def commit_cordons(
    writer: FencedManifestWriter,
    cordons: Collection[CordonedHost],
    publish: Callable[[], object],
    hosts: Callable[[JobState], Mapping[str, HostState]],
) -> bool:
    """Commit which hosts are to be empty of all jobs; returns whether any is new, or no more so.

    Args:
        writer: that has begun.
        cordons: hosts that all jobs are to leave, whether the job knows them or not.
        publish: brings out the outputs of the last epoch, unless that was done.
        hosts: those that the job knows by now.

    Raises:
        NotOwnerError: a newer driver has taken over.
    """
    while True:
        known = hosts(writer.state)
        after = with_cordons(known, cordons)
        changed = [name for name, now in after.items() if now.cordoned != known[name].cordoned]
        if not changed:
            return False
        publish()
        now = writer.clock.now_ms()
        whats = {True: EventKind.DRAIN, False: EventKind.UNDRAIN}
        news = [ClusterEvent(now, whats[after[name].drained], name, ALL_JOBS) for name in changed]
        state, events = writer.state, recent_events(writer.state.host_events, news)
        if writer.publish_next(msgspec.structs.replace(state, hosts=after, host_events=events)):
            fault("drain.committed")
            return True


def parts_with_host(
    states: Mapping[Path, JobState], named: str, *, undo: bool, cordon: bool = False
) -> dict[Path, tuple[JobState, str]]:
    """Return the parts that have a host, and its identity; refuses what cannot be.

    Args:
        states: of the parts, by storage.
        named: identity of the host or its begin, or its address.
        undo: it is to be used again.
        cordon: by all jobs.

    Raises:
        InvalidInputError: no part knows the host, or one could run nowhere without it.
    """
    found: dict[Path, tuple[JobState, str]] = {}
    for root, state in states.items():
        try:
            host = find_host(state.hosts, named)
        except InvalidInputError:
            continue
        if not (undo and cordon):
            with_drained(state, host, undo=undo)
        found[root] = (state, host)
    if not found:
        every = {name: one for state in states.values() for name, one in state.hosts.items()}
        find_host(every, named)
    return found
