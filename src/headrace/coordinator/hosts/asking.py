"""Asks the parts of a running job, through their storages, for what concerns its hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.clock import Clock
from headrace.coordinator.changes.requests import (
    drain_request,
    drains,
    restart_request,
    restarts,
)
from headrace.coordinator.hosts.draining import drained, find_host
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError
from headrace.files import Files


def concerned(
    states: Mapping[Path, JobState], named: str, *, undo: bool, everywhere: bool = False
) -> dict[Path, tuple[JobState, str]]:
    """Return the parts that have a host, and its identity; refuses what cannot be.

    Args:
        states: of the parts, by storage.
        named: identity of the host or its begin, or its address.
        undo: it is to be used again.
        everywhere: by all jobs.

    Raises:
        InvalidInputError: no part knows the host, or one could run nowhere without it.
    """
    found: dict[Path, tuple[JobState, str]] = {}
    for root, state in states.items():
        try:
            host = find_host(state.hosts, named)
        except InvalidInputError:
            continue
        if not (undo and everywhere):
            drained(state, host, undo=undo)
        found[root] = (state, host)
    if not found:
        every = {name: one for state in states.values() for name, one in state.hosts.items()}
        find_host(every, named)
    return found


def ask_drain(
    states: Mapping[Path, JobState],
    named: str,
    files: Files,
    clock: Clock,
    wait_s: float,
    *,
    undo: bool,
    everywhere: bool = False,
) -> str:
    """Ask a running job that a host be empty, or be used again; returns its identity.

    Args:
        states: of its parts, by storage.
        named: identity of the host or its begin, or its address.
        files: the file system.
        clock: for names and waiting.
        wait_s: for the answer of each part.
        undo: it is to be used again.
        everywhere: by all jobs, which is noted beside them already.

    Raises:
        InvalidInputError: no such host, or nothing could run without it; nobody was asked.
        UnavailableError: the driver does not answer.
    """
    host = ""
    for root in concerned(states, named, undo=undo, everywhere=everywhere):
        request = drain_request(named, clock, undo=undo, everywhere=everywhere)
        answer = drains(root, files, clock).ask(request, wait_s)
        if answer.error:
            raise InvalidInputError(answer.error)
        host = answer.host
    return host


def ask_restart(
    states: Mapping[Path, JobState], files: Files, clock: Clock, wait_s: float, *, rolling: bool
) -> list[str]:
    """Ask a running job for new processes, part after part; returns the hosts that got some.

    Args:
        states: of its parts, by storage.
        files: the file system.
        clock: for names and waiting.
        wait_s: for each part; what is not done by then is not done at all.
        rolling: one host after the other.

    Raises:
        UnavailableError: it was not over in time.
    """
    hosts: set[str] = set()
    for root in states:
        answer = restarts(root, files, clock).ask(restart_request(clock, rolling=rolling), wait_s)
        hosts.update(answer.hosts)
    return sorted(hosts)
