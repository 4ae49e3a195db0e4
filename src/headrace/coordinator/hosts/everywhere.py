"""Hosts that are to be empty of all jobs of a home: a small file for each, beside the jobs.

A driver takes such a mark over into its manifest between two epochs, as soon as it knows the host:
so a job that begins later does, too. When the file is gone, it lets go of the mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.clock import Clock
from headrace.coordinator.hosts.record import Hosts, HostState
from headrace.coordinator.manifest import JobState
from headrace.files import Files

FOLDER = "_drained"
"""Beside the storages of jobs; no job can have this name."""


class Drained(msgspec.Struct, frozen=True):
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


class DrainedHosts:
    """The hosts that are to be empty of all jobs of a home.

    Args:
        jobs_dir: where the storages of the jobs are.
        files: the file system.
    """

    def __init__(self, jobs_dir: Path, files: Files) -> None:
        self._folder, self._files = jobs_dir / FOLDER, files

    def read(self) -> tuple[Drained, ...]:
        """Return them; a file that cannot be read counts for nothing."""
        found = []
        for name in self._files.names(self._folder):
            try:
                data = self._files.read(self._folder / name)
                found.append(msgspec.json.decode(data, type=Drained))
            except (FileNotFoundError, msgspec.DecodeError):
                continue
        return tuple(found)

    def add(self, one: Drained, clock: Clock) -> None:
        """Have a host be empty."""
        self._folder.mkdir(parents=True, exist_ok=True)  # drivers of other users read it
        self._files.replace(self._path(one), msgspec.json.encode(one), clock.new_id())

    def remove(self, one: Drained) -> None:
        """Let a host be used again."""
        self._files.remove(self._path(one))

    def _path(self, one: Drained) -> Path:
        return self._folder / f"{quote(one.host or one.address, safe='')}.json"


def marked(hosts: Mapping[str, HostState], drained: Iterable[Drained]) -> Hosts:
    """Return the hosts of a job as those of all jobs are marked; its own marks stay as they are."""
    every, found = tuple(drained), {}
    for name, held in hosts.items():
        is_meant = any(one.means(name, held) for one in every)
        is_own = held.drained and not held.everywhere
        is_new = is_meant != held.everywhere and not is_own
        now = msgspec.structs.replace(held, drained=is_meant, everywhere=is_meant)
        found[name] = now if is_new else held
    return found


def as_marked(state: JobState, jobs_dir: Path) -> JobState:
    """Return a job as its driver will see it, for whoever tells of one that may not run."""
    try:
        drained = DrainedHosts(jobs_dir, Files(sync=False)).read()
    except OSError:  # its driver keeps the marks that it has, too
        return state
    return msgspec.structs.replace(state, hosts=marked(state.hosts, drained))
