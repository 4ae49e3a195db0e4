"""The parts of a job that were kept so far, and whether a graph is still cut in the same way.

``JobGeneration`` is the number under which one driver acts for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.bus.bus import Bus
from headrace.clock import Clock
from headrace.config import Durability, Settings
from headrace.coordinator.commit_log import (
    CommitLog,
    FileCommitLog,
    holder_here,
    holder_text,
    load_state,
)
from headrace.coordinator.host_state import ClusterEvent, Hosts, HostState, recent_events
from headrace.coordinator.job_storage import STORAGES
from headrace.coordinator.manifest import JobState
from headrace.errors import InvalidInputError, NotOwnerError, PartsError
from headrace.faults import fault
from headrace.files import Files
from headrace.graph.semantics import Semantics
from headrace.plan.compatibility import JOB
from headrace.plan.stages import PART, JobPlan

UNFINISHED = "unfinished"
"""A file in a job's storage while its parts are reset or deleted, one after the other."""

SAVEPOINT = "savepoint"
"""What that file says while they begin from a savepoint."""

RUN = "run"
"""What it says while the parts begin the next run of a bounded job."""


def job_names(settings: Settings) -> list[str]:
    """Return the names of all jobs that have committed anything, sorted."""
    folders = (settings.jobs_dir, settings.state_dir / STORAGES)
    files = Files(sync=False)
    return sorted(
        {
            name
            for folder in folders
            for name in files.names(folder)
            if PART not in name and _has_epoch(files.names(folder / name / "manifests"))
        }
    )


def _has_epoch(names: Sequence[str]) -> bool:
    return any(name[:1].isdigit() for name in names)


def part_folders(settings: Settings, job: str) -> list[Path]:
    """Return the storages of the parts that a job has kept beside its first, sorted.

    Those of parts that have no epoch yet, for their first start failed, are left out.
    """
    made = made_folders(settings, job)
    files = Files(sync=False)
    return [path for path in made if files.names(path / "manifests")]


def made_folders(settings: Settings, job: str) -> list[Path]:
    """Return the same with those of parts that have not begun."""
    near = Files(sync=False).names(settings.jobs_dir)
    return [settings.jobs_dir / name for name in near if name.startswith(f"{job}{PART}")]


def check_deployable(parts: Sequence[JobPlan], settings: Settings, files: Files) -> None:
    """Make sure that a job can be run in these parts.

    Raises:
        PartsError: a reset or a deletion has not been completed; state belongs to another
            part by now; or the setting of durability does not hold for several parts.
        InvalidInputError: it does not hold for at-most-once outputs.
    """
    job = parts[0].job
    root = settings.jobs_dir / job
    if files.exists(root / UNFINISHED):
        what = files.read(root / UNFINISHED).decode()
        moves = {RUN: "start it again with --bounded", SAVEPOINT: "headrace run --from-savepoint"}
        move = moves.get(what, f"headrace jobs {what} {job}")
        raise PartsError(
            f"a {what} of job {job!r} was not completed: some of its parts have state, others have "
            f"none; run it again: {move}",
            job=job,
        )
    if len(parts) > 1 and Durability.parse(settings.state.durability).is_backup:
        raise PartsError(
            f'job {job!r} has {len(parts)} parts, joined by via="bus", and state.durability is '
            f"{settings.state.durability}: a part that went back to its last copy would send "
            "again what another has taken in; use state.durability=epoch",
            job=job,
        )
    _check_semantics(parts, settings)
    _check_moved(parts, [root, *part_folders(settings, job)], files)


def _check_semantics(parts: Sequence[JobPlan], settings: Settings) -> None:
    """Refuse at-most-once where a host that is lost sets the job back to a copy."""
    most = Semantics.AT_MOST_ONCE
    found = [b.operator for part in parts for b in part.sent if b.semantics == most]
    if found and Durability.parse(settings.state.durability).is_backup:
        raise InvalidInputError(
            f"operators {found} of job {parts[0].job!r} send at most once, and state.durability is "
            f"{settings.state.durability}: a job that continues from its copy sends again what it "
            "sent since; use state.durability=epoch, or other semantics",
            job=parts[0].job,
        )


def _check_moved(parts: Sequence[JobPlan], folders: Sequence[Path], files: Files) -> None:
    """Refuse operators whose state is in another part than the graph has them in now."""
    home = {name: part.job for part in parts for name in part.fingerprint if name != JOB}
    for folder in folders:
        if not files.exists(folder / "manifests"):
            continue
        state = load_state(FileCommitLog(folder, files))
        for name in state.fingerprint if state is not None else ():
            if home.get(name, folder.name) != folder.name:
                raise PartsError(
                    f"operator {name!r} of job {parts[0].job!r} has its state in part "
                    f"{folder.name!r}, and would be in {home[name]!r} now: via= of a partition_by "
                    f"before it has changed; change it back, or start over: headrace jobs reset "
                    f"{parts[0].job}",
                    job=parts[0].job,
                )


def group_state(states: Sequence[JobState]) -> JobState:
    """Return the state of the first part, with what the others have beside it.

    Epochs are those of the first part; the job has ended when all parts have.
    """
    first = states[0]
    if len(states) == 1:
        return first
    counts: Counter[str] = Counter()
    for state in states:
        counts.update(state.counts)
    ends = [state.until for state in states if state.until is not None]
    return msgspec.structs.replace(
        first,
        inputs={name: held for state in states for name, held in state.inputs.items()},
        until={name: end for until in ends for name, end in until.items()} if ends else None,
        watermarks={name: at for state in states for name, at in state.watermarks.items()},
        tasks={name: task for state in states for name, task in state.tasks.items()},
        task_counts={name: n for state in states for name, n in state.task_counts.items()},
        standbys={name: found for state in states for name, found in state.standbys.items()},
        hosts=_hosts(states),
        host_events=recent_events(
            (), sorted({one for state in states for one in state.host_events}, key=_order)
        ),
        counts=dict(counts),
        ended=all(state.ended for state in states),
        rescaled_at=max(state.rescaled_at for state in states),
        fingerprint={name: text for state in states for name, text in state.fingerprint.items()},
    )


def _hosts(states: Sequence[JobState]) -> Hosts:
    """Return the hosts of all parts, which share the slots of each."""
    found: Hosts = {}
    for state in states:
        for name, host in state.hosts.items():
            held = found.get(name, HostState())
            found[name] = HostState(
                host.address or held.address,
                held.slots + host.slots,
                held.drained or host.drained,
                held.cordoned or host.cordoned,
            )
    return found


def _order(one: ClusterEvent) -> tuple[int, str, str]:
    return one.time_ms, one.what, one.host


class JobGeneration:
    """The number under which one driver, or one command, acts for all parts of a job.

    Args:
        job: its name, which is that of its first part.
        folder: of the storages of its parts.
        bus: where the job's streams are.
        files: the file system.
        clock: time and names.
        parts: names of those that may have no storage yet.
    """

    def __init__(
        self,
        job: str,
        folder: Path,
        bus: Bus,
        files: Files,
        clock: Clock,
        parts: Iterable[str] = (),
    ) -> None:
        self._job, self._folder, self._bus = job, folder, bus
        self._files, self._clock = files, clock
        self._parts = frozenset(parts)
        self._has: set[Path] = set()
        self.number = 0

    def take(self, part: str, log: CommitLog, above: int = 0) -> int:
        """Begin the generation of a part; the first call takes the number of all.

        Args:
            part: its name.
            log: of the part.
            above: the number is to be a later one, if it is this call that takes it.

        Returns:
            The number.

        Raises:
            NotOwnerError: a newer driver or command has the part.
        """
        holder, root = holder_here(self._clock), log.files.root
        if not self.number:
            above = max(above, self._known(root))
            first = log if part == self._job else self._first_log()
            self.number = first.take_generation(holder, above)
            self._has.add(first.files.root)
            if first is log:
                return self.number
        if root in self._has:  # asked for once more
            if log.newest_generation()[0] == self.number:
                log.files.take(self.number)
                return self.number
        else:
            fault("generation.taken")
            is_newer = self._bus.fenced(part) <= self.number
            if is_newer and log.claim_generation(self.number, holder):
                self._has.add(root)
                return self.number
        newest, by = log.newest_generation()
        raise NotOwnerError.taken_over(
            f"job {part!r}", self.number, newer=newest, holder=holder_text(by), job=part
        )

    def _first_log(self) -> FileCommitLog:
        return FileCommitLog(self._folder / self._job, self._files)

    def _known(self, root: Path) -> int:
        """Return the highest number that any part has, whether it is still kept or not."""
        near = self._files.names(self._folder)
        kept = {name for name in near if name.startswith(f"{self._job}{PART}")}
        names = {self._job, *self._parts, *kept}
        folders = {root, *(self._folder / name for name in names)}
        numbers = [self._bus.fenced(name) for name in names]
        for folder in folders:
            files = self._files.names(folder / "generations")
            numbers += [int(name.removesuffix(".json")) for name in files]
        return max(numbers)
