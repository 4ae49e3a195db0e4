"""The event log of a job, and its hosts as the last epoch left them: for people.

One file for each day (UTC) in the job's storage, a line of JSON for each event, for its owner
alone. What a driver notes is written here at once, though an epoch commits it later; what others
committed, once it is seen. A line that a crash tore is passed over, and a file that cannot be
read; a line that cannot be written is left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.coordinator.host_state import ClusterEvent, EventKind, HostState
from headrace.coordinator.manifest import JobState
from headrace.coordinator.slot_reports import SlotMetrics
from headrace.redaction import redacted


def event_text(one: ClusterEvent, state: JobState) -> str:
    """Say in words what happened."""
    name = state.hosts.get(one.host, HostState()).named(one.host)
    match one.what:
        case EventKind.DRIVER:
            return f"a driver began: {one.detail}"
        case EventKind.ASKED:
            return f"slots were looked up again: {one.detail}"
        case EventKind.LOST:
            return f"host {name} was lost: {one.detail}"
        case EventKind.RETURNED:
            return f"host {name} came back"
        case EventKind.JOINED:
            return f"host {name} is new"
        case EventKind.DRAIN:
            return f"host {name} is to be drained {one.detail}".rstrip()
        case EventKind.EMPTY:
            return f"host {name} is empty"
        case EventKind.UNDRAIN:
            return f"host {name} is used again {one.detail}".rstrip()
        case EventKind.RENEWED:
            return f"host {name} has new processes: {one.detail}"


EVENTS_FOLDER = "history"
KEEP_DAYS = 7
DAY_MS = 86_400_000
MAX_DAY_BYTES = 1 << 20
"""Of a day; what comes after that is left out."""

IDLE_S = 50.0
"""Spark ends a process that had nothing to do for a minute, which is no loss."""

PAUSED, RESUMED = ("paused", "paused: no epoch begins"), ("resumed", "paused no more")
WAITING = "waiting"
MERGING = "paused", "paused while results over old data are merged into its own"

_SHARED_KINDS = {EventKind.DRIVER.value, "paused", "resumed", "stopped", "failed"}
"""What the parts of a job have in common."""


class JobEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened, by the driver's wall clock; ``epoch`` is the last committed one."""

    time_ms: int
    kind: str
    text: str
    epoch: int = -1


class JobEventFile:
    """The events of a job, as they are kept.

    Args:
        storage: of the job.
    """

    def __init__(self, storage: Path) -> None:
        self._folder = storage / EVENTS_FOLDER

    def append(self, event: JobEvent) -> None:
        """Keep one more, if that can be; on the first of a day those go that are too old."""
        event = msgspec.structs.replace(event, text=redacted(event.text))
        path = self._path(event.time_ms // DAY_MS)
        with suppress(OSError):
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._forget(event.time_ms)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with open(os.open(path, flags, 0o600), "ab") as file:
                if (size := file.tell()) < MAX_DAY_BYTES:
                    is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
                    begin = b"\n" if is_torn else b""
                    file.write(begin + msgspec.json.encode(event) + b"\n")

    def _path(self, day: int) -> Path:
        return self._folder / f"events-{day:06d}.jsonl"

    def _days(self) -> list[int]:
        names = [path.stem.removeprefix("events-") for path in self._folder.glob("events-*.jsonl")]
        return sorted(int(name) for name in names if name.isdigit())

    def _forget(self, now_ms: int) -> None:
        for day in self._days():
            if day <= now_ms // DAY_MS - KEEP_DAYS:
                self._path(day).unlink(missing_ok=True)

    def read(self, since_ms: int = 0) -> Iterator[JobEvent]:
        """Yield the events from a moment on, oldest first."""
        decoder = msgspec.json.Decoder(JobEvent)
        for day in self._days():
            if day < since_ms // DAY_MS:
                continue
            with suppress(OSError):  # its day was over meanwhile, or the disk does not give it
                for line in self._path(day).read_bytes().splitlines():
                    with suppress(msgspec.DecodeError):
                        event = decoder.decode(line)
                        if event.time_ms >= since_ms:
                            yield event

    def last(self, count: int) -> list[JobEvent]:
        """Return the newest events, oldest first."""
        return list(self.read())[-count:]


class JobEventLog:
    """Writes the events of one driver.

    Args:
        log: of its job.
        clock: where time comes from.
    """

    def __init__(self, log: JobEventFile, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._seen: JobState | None = None
        self._reported: frozenset[ClusterEvent] = frozenset()
        self._workers: dict[int, tuple[str, int, float]] = {}

    def record(self, kind: str, text: str, time_ms: int | None = None) -> None:
        """Write an event down."""
        epoch = -1 if self._seen is None else self._seen.epoch
        now = self._clock.now_ms() if time_ms is None else time_ms
        self._log.append(JobEvent(now, kind, text, epoch))

    def observe(self, state: JobState, noted: Iterable[ClusterEvent] = ()) -> None:
        """Report what happened to the job by its manifests, up to this one; each is reported once.

        Args:
            state: after the last epoch.
            noted: what has happened since, which the next epoch commits.
        """
        before, self._seen = self._seen, state
        noted, reported = tuple(noted), self._reported
        self._reported = frozenset((*state.host_events, *noted))
        if before is None:
            self._catch_up(state)
        elif before is not state:
            self._report_changes(before, state, reported)
        if noted:
            known = {
                *reported,
                *state.host_events,
            }  # all of an epoch that was just committed is there
            self._report_all([one for one in noted if one not in known], state)

    def _report_changes(
        self, before: JobState, state: JobState, reported: Collection[ClusterEvent]
    ) -> None:
        new = [one for one in state.host_events if one not in before.host_events]
        if new:
            self._report_all([one for one in new if one not in reported], state)
        if before.lineage == state.lineage:
            self._report_moves(before, state, new)
        for stage, tasks in state.task_counts.items():
            if (had := before.task_counts.get(stage, tasks)) != tasks:
                self.record("rescaled", f"stage {stage}: {had} to {tasks} tasks")
        if state.ended and not before.ended:
            self.record("ended", f"the job ended, in epoch {state.epoch}")

    def _catch_up(self, state: JobState) -> None:
        """Report what a driver before committed and could not report."""
        reported = max((one.time_ms for one in self._log.read()), default=0)
        self._report_all((one for one in state.host_events if one.time_ms > reported), state)

    def _report_all(self, new: Iterable[ClusterEvent], state: JobState) -> None:
        for one in new:
            self.record(one.what.value, event_text(one, state), one.time_ms)

    def _report_moves(self, before: JobState, state: JobState, new: list[ClusterEvent]) -> None:
        moved = [
            name
            for name, task in before.tasks.items()
            if task.host and name in state.tasks and state.tasks[name].host != task.host
        ]
        if not moved:
            return
        copies = {name: {one.host for one in before.standbys.get(name, ())} for name in moved}
        there = sum(state.tasks[name].host in hosts for name, hosts in copies.items())
        standbys = f", {there} to {'its standby' if there == 1 else 'their standbys'}"
        since = [one.time_ms for one in new if one.what in {EventKind.ASKED, EventKind.LOST}]
        late = (self._clock.now_ms() - min(since)) / 1000 if since else None
        after = "" if late is None else f"; first commit after {late:.1f} s"
        tasks = "1 task" if len(moved) == 1 else f"{len(moved)} tasks"
        self.record("moved", f"{tasks} moved{standbys if there else ''}{after}")

    def ran(self, slots: Iterable[SlotMetrics], state: JobState) -> None:
        """Report processes that others took the place of, although they were not idle."""
        now = self._clock.monotonic()
        for one in slots:
            host, process, at = self._workers.get(one.slot, ("", 0, 0.0))
            if host == one.host and process != one.process and now - at < IDLE_S:
                name = _name(state, host)
                gone = f"process {process} of slot {one.slot} on host {name} is gone"
                self.record("worker", f"{gone}: process {one.process} continues")
            self._workers[one.slot] = (one.host, one.process, now)


def _name(state: JobState, host: str) -> str:
    return state.hosts.get(host, HostState()).named(host)


def job_events(folders: Iterable[Path], since_ms: int = 0) -> list[JobEvent]:
    """Return the events of a job, oldest first.

    Args:
        folders: storages of its parts, the first one first.
        since_ms: from this moment on.
    """
    return merge_events(JobEventFile(folder).read(since_ms) for folder in folders)


def merge_events(logs: Iterable[Iterable[JobEvent]]) -> list[JobEvent]:
    """Return the events of the parts of a job as one log; each part has the same drivers."""
    first, *others = [list(log) for log in logs]
    more = [one for log in others for one in log if one.kind not in _SHARED_KINDS]
    return sorted([*first, *more], key=lambda one: one.time_ms)
