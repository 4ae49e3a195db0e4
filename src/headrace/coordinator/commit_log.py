"""Where manifests are published: of all that race for one epoch, one wins.

``CommitLog`` is the contract, ``FileCommitLog`` the one on a file system that knows
hard links, which local disks and shared POSIX file systems do. ``load_state`` folds the
manifests to the job's state; ``CheckpointRetention`` knows which files kept epochs still need.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.coordinator.manifest import JobState, Manifest, decode_manifest, fold
from headrace.errors import CorruptDataError, NotOwnerError
from headrace.faults import fault
from headrace.fencing import FencedFiles
from headrace.fencing_objects import fenced_files
from headrace.files import Files

KEPT_GENERATIONS = 100
PRUNE_MARGIN = 64
"""Epochs that are kept below the one before which others may go; see ``publish``."""


class CommitLog(ABC):
    """An ordered set of small blobs by epoch, each created once; and generations.

    Safe for any number of processes at once. What ``publish`` returned is durable.
    """

    files: FencedFiles
    """By these alone, who has taken a generation changes what is beside the log."""

    @abstractmethod
    def publish(self, epoch: int, data: bytes) -> bool:
        """Create the blob of an epoch; False when somebody else's is already there, or later."""

    @abstractmethod
    def epochs(self) -> list[int]:
        """Return the epochs that are there, rising."""

    @abstractmethod
    def read(self, epoch: int) -> bytes:
        """Return a blob.

        Raises:
            CorruptDataError: it is not there.
        """

    @abstractmethod
    def prune(self, before: int) -> None:
        """Remove the blobs of epochs below ``before``; the newest one always stays."""

    @abstractmethod
    def take_generation(self, holder: dict[str, str | int], above: int = 0) -> int:
        """Begin a new generation, above all before it and ``above``; return its number."""

    @abstractmethod
    def claim_generation(self, number: int, holder: dict[str, str | int]) -> bool:
        """Begin the generation of a number chosen elsewhere.

        False when that number, or a later one, has been taken.
        """

    @abstractmethod
    def newest_generation(self) -> tuple[int, dict[str, str | int]]:
        """Return the highest generation, with who holds it; 0 when there was none."""


def holder_here(clock: Clock) -> dict[str, str | int]:
    """Return what a generation says of this process when it takes it."""
    return {"process": os.getpid(), "host": os.uname().nodename, "time_ms": clock.now_ms()}


def holder_text(holder: Mapping[str, str | int]) -> str:
    """Name a driver by what it said when it took its generation; empty if that is not known."""
    process, host = holder.get("process"), holder.get("host")
    return "" if process is None else f"process {process} on {host}"


class FileCommitLog(CommitLog):
    """Manifests as files below ``<root>/manifests``, generations below ``<root>/generations``.

    Who takes a generation changes the root from then on by ``files`` alone: these refuse what
    had an earlier one, whatever that one has looked at before.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self._manifests, self._generations = root / "manifests", root / "generations"
        self.files = files if isinstance(files, FencedFiles) else fenced_files(files, root)
        self._plain = self.files.beneath  # reads need no right
        for folder in (self._manifests, self._generations):
            files.make_missing(folder)

    def _path(self, epoch: int) -> Path:
        return self._manifests / f"{epoch:012d}.json"

    def publish(self, epoch: int, data: bytes) -> bool:
        """Create the manifest's file if no other and no later one exists."""
        path = self._path(epoch)
        if self._newest(self._manifests) >= epoch:
            self._plain.sync_folder(self._manifests)
            return False
        won = self.files.publish(path, data, lambda: fault("commit.written"))
        if won and self._newest(self._manifests) >= epoch + PRUNE_MARGIN:
            # So far behind, the name was free only because it had been pruned. A nearer later
            # epoch is one that builds on this one.
            self.files.remove(path)
            return False
        return won

    def _newest(self, folder: Path) -> int:
        """The highest number of a manifest or a generation; -1: there is none."""
        names = self._plain.names(folder)
        return int(names[-1].removesuffix(".json")) if names else -1

    def epochs(self) -> list[int]:
        """Return the epochs that are there, rising."""
        return [int(name.removesuffix(".json")) for name in self._plain.names(self._manifests)]

    def read(self, epoch: int) -> bytes:
        """Return the content of a manifest's file."""
        try:
            return self._plain.read(self._path(epoch))
        except FileNotFoundError as error:
            raise CorruptDataError(f"manifest of epoch {epoch} is missing", epoch=epoch) from error

    def prune(self, before: int) -> None:
        """Remove the files of old epochs."""
        for epoch in self.epochs()[:-1]:
            if epoch < before:
                fault("prune.due")
                self.files.remove(self._path(epoch))

    def take_generation(self, holder: dict[str, str | int], above: int = 0) -> int:
        """Create the next numbered file; a loser of the race tries again."""
        data, plain = msgspec.json.encode(holder), self._plain
        while True:
            number = max(self._newest(self._generations), above, 0) + 1
            created = plain.publish(self._generation(number), data)
            # One that is so far below the newest was free only because it is long over.
            if created and self._newest(self._generations) < number + KEPT_GENERATIONS:
                break
        self._begin(number)
        return number

    def claim_generation(self, number: int, holder: dict[str, str | int]) -> bool:
        """Create the file of that number, if there is neither it nor a later one."""
        if self._newest(self._generations) >= number:
            return False
        data, path = msgspec.json.encode(holder), self._generation(number)
        if not self._plain.publish(path, data):
            return False
        self._begin(number)
        return True

    def _begin(self, number: int) -> None:
        """Take the right to change the root, as the holder of a number that was created."""
        with suppress(NotOwnerError):  # a newer one was faster: nothing of this one is taken
            self.files.take(number)
        self._plain.sync_folder(self._manifests)  # a name that is built on must be durable
        for name in self._plain.names(self._generations)[:-KEPT_GENERATIONS]:
            self._plain.remove(self._generations / name)

    def _generation(self, number: int) -> Path:
        return self._generations / f"{number:08d}.json"

    def newest_generation(self) -> tuple[int, dict[str, str | int]]:
        """Return the highest numbered file and its content."""
        number = self._newest(self._generations)
        if number < 0:
            return 0, {}
        try:
            return number, msgspec.json.decode(self._plain.read(self._generation(number)))
        except msgspec.DecodeError as error:
            path = self._generation(number)
            raise CorruptDataError(
                f"generation {path} cannot be read: {error}; remove it when no driver runs",
                file=str(path),
            ) from error
        except FileNotFoundError:  # so many were taken meanwhile that this one is gone
            return self.newest_generation()


def generation_times(root: Path) -> list[int]:
    """Return when each of the last generations of a job was taken, ms; commands take some, too."""
    files, folder = Files(sync=False), root / "generations"
    found = [files.status(folder / name).written_s for name in files.names(folder)]
    return sorted(int(written_s * 1000) for written_s in found)


def load_state(
    log: CommitLog, upto: int | None = None, known: JobState | None = None
) -> JobState | None:
    """Return the state after the newest epoch, or after ``upto``; ``None``: no job yet.

    Args:
        log: the job's.
        upto: the last epoch that counts.
        known: a state that was read before: where its manifest is still one of the log, only
            those behind it are read.

    Raises:
        CorruptDataError: a manifest is damaged, missing, or does not follow the one before.
    """
    while True:
        epochs = [epoch for epoch in log.epochs() if upto is None or epoch <= upto]
        if not epochs:
            return None
        try:
            return _fold_all(log, epochs, known)
        except CorruptDataError:
            if log.epochs()[0] <= epochs[0]:
                raise
            # A driver pruned meanwhile what was about to be read.


def retained_states(log: CommitLog, upto: int) -> Iterator[JobState]:
    """Yield the states after the epochs that can still be read, oldest first.

    Raises:
        CorruptDataError: a manifest is damaged, missing, or does not follow the one before.
    """
    state: JobState | None = None
    for epoch in log.epochs():
        if epoch > upto:
            return
        try:
            manifest, digest = decode_manifest(log.read(epoch), f"of epoch {epoch}")
        except CorruptDataError:
            if state is None and log.epochs()[0] > epoch:
                continue  # a driver pruned it meanwhile
            raise
        if state is not None or manifest.kind == "base":
            state = fold(state, manifest, digest)
            yield state


def newest_base(log: CommitLog, upto: int) -> int | None:
    """Return the newest epoch up to one whose manifest is a base; ``None``: there is none."""
    for epoch in reversed(log.epochs()):
        if epoch <= upto:
            manifest, _ = decode_manifest(log.read(epoch), f"of epoch {epoch}")
            if manifest.kind == "base":
                return epoch
    return None


def _fold_all(log: CommitLog, epochs: list[int], known: JobState | None) -> JobState | None:
    chain: list[tuple[Manifest, str]] = []
    state: JobState | None = None
    for epoch in range(epochs[-1], epochs[0] - 1, -1):
        manifest, digest = decode_manifest(log.read(epoch), f"of epoch {epoch}")
        if known is not None and known.digest == digest:
            state = known
            break
        chain.append((manifest, digest))
        if manifest.kind == "base":
            break
    else:
        raise CorruptDataError(
            f"no base manifest between epochs {epochs[0]} and {epochs[-1]}", epoch=epochs[-1]
        )
    for manifest, digest in reversed(chain):
        state = fold(state, manifest, digest)
    return state


class CheckpointRetention:
    """Watches which files epochs no longer name, and until when these stay.

    ``observe`` gets every committed state; a driver that starts reads the epochs that are
    kept once, so a restart forgets nothing.

    Args:
        log: of manifests.
        keep: how many epochs before the newest can be read.
        most_bytes: of files that only they need; fewer epochs are kept where these are more.
    """

    def __init__(self, log: CommitLog, keep: int, most_bytes: int) -> None:
        self._log, self._keep, self._most_bytes = log, keep, most_bytes
        self._last: JobState | None = None
        self._released: dict[str, tuple[int, int]] = {}  # the last epoch that names it, bytes
        self._generations: list[tuple[int, int]] = []  # epochs that are the first of a generation

    def first_of(self, epoch: int, before: int) -> int:
        """Return the oldest epoch that is kept once another is committed.

        Args:
            epoch: that one.
            before: the oldest that was kept before; what is gone does not come back.
        """
        first = max(before, epoch - self._keep, 0)
        held = sorted([entry for entry in self._released.values() if entry[0] >= first])
        size = sum([own for _, own in held])
        for released, own in held:
            if size <= self._most_bytes:
                break
            first, size = released + 1, size - own
        return min(first, epoch)

    def observe(self, state: JobState) -> None:
        """Take note of the newest state."""
        last = self._last
        if last is not None and last.digest == state.digest:
            return
        self._note(state)
        if last is None or last.epoch + 1 != state.epoch or state.lineage != last.lineage:
            self._read(state)
        else:
            self._compare(last, state)
        self._last = state

    def _read(self, state: JobState) -> None:
        before: JobState | None = None
        self._generations = []
        for later in retained_states(self._log, state.epoch):
            self._note(later)
            if before is not None:
                self._compare(before, later)
            before = later

    def _note(self, state: JobState) -> None:
        if not self._generations or self._generations[-1][1] != state.generation:
            self._generations.append((state.epoch, state.generation))

    def generation(self, state: JobState) -> int:
        """Return the generation that committed the oldest epoch that is kept."""
        self.observe(state)
        found = [number for epoch, number in self._generations if epoch <= state.kept_from]
        return found[-1] if found else self._generations[0][1]

    def _compare(self, before: JobState, after: JobState) -> None:
        for name, task in before.tasks.items():
            later = after.tasks.get(name)
            if later is task:
                continue
            kept = {ref.path for ref in later.files} if later is not None else set()
            for ref in task.files:
                if ref.path not in kept:
                    self._released[ref.path] = before.epoch, ref.size

    def files(self, state: JobState) -> set[str]:
        """Return the files that the newest state or a kept one names."""
        self.observe(state)
        for path, (epoch, _) in list(self._released.items()):
            if epoch < state.kept_from:
                del self._released[path]
        return state.files() | self._released.keys()
