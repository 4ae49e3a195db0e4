"""Where manifests are published: of all that race for one epoch, one wins.

``CommitLog`` is the contract, ``FileCommitLog`` the one on a file system that knows
hard links, which local disks and shared POSIX file systems do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.errors import CorruptDataError
from headrace.faults import fault
from headrace.files import Files

KEPT_GENERATIONS = 100
PRUNE_MARGIN = 64
"""Epochs that are kept below the one before which others may go; see ``publish``."""


class CommitLog(ABC):
    """An ordered set of small blobs by epoch, each created once; and generations.

    Safe for any number of processes at once. What ``publish`` returned is durable.
    """

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
    def newest_generation(self) -> tuple[int, dict[str, str | int]]:
        """Return the highest generation, with who holds it; 0 when there was none."""


class FileCommitLog(CommitLog):
    """Manifests as files below ``<root>/manifests``, generations below ``<root>/generations``."""

    def __init__(self, root: Path, files: Files, clock: Clock) -> None:
        self._manifests, self._generations = root / "manifests", root / "generations"
        self._files, self._clock = files, clock
        self._manifests.mkdir(parents=True, exist_ok=True)
        self._generations.mkdir(parents=True, exist_ok=True)

    def _path(self, epoch: int) -> Path:
        return self._manifests / f"{epoch:012d}.json"

    def publish(self, epoch: int, data: bytes) -> bool:
        """Create the manifest's file if no other and no later one exists."""
        path = self._path(epoch)
        if any(later >= epoch for later in self.epochs()):
            self._files.sync_folder(self._manifests)
            return False
        won = self._files.publish(path, data, self._clock.new_id(), lambda: fault("commit.written"))
        if won and self.epochs()[-1] >= epoch + PRUNE_MARGIN:
            # So far behind, the name was free only because it had been pruned. A nearer later
            # epoch is one that builds on this one.
            self._files.remove(path)
            return False
        return won

    def epochs(self) -> list[int]:
        """Return the epochs that are there, rising."""
        return [int(name.removesuffix(".json")) for name in self._files.names(self._manifests)]

    def read(self, epoch: int) -> bytes:
        """Return the content of a manifest's file."""
        try:
            return self._files.read(self._path(epoch))
        except FileNotFoundError as error:
            raise CorruptDataError(f"manifest of epoch {epoch} is missing", epoch=epoch) from error

    def prune(self, before: int) -> None:
        """Remove the files of old epochs."""
        for epoch in self.epochs()[:-1]:
            if epoch < before:
                self._files.remove(self._path(epoch))

    def take_generation(self, holder: dict[str, str | int], above: int = 0) -> int:
        """Create the next numbered file; a loser of the race tries again."""
        data = msgspec.json.encode(holder)
        while True:
            number = max(self._numbers()[-1], above) + 1
            created = self._files.publish(self._generation(number), data, self._clock.new_id())
            # One that is so far below the newest was free only because it is long over.
            if created and self._numbers()[-1] < number + KEPT_GENERATIONS:
                break
        self._files.sync_folder(self._manifests)  # a name that is built on must be durable
        for old in self._numbers()[1:-KEPT_GENERATIONS]:
            self._files.remove(self._generation(old))
        return number

    def claim_generation(self, number: int, holder: dict[str, str | int]) -> bool:
        """Begin the generation of a number chosen elsewhere; False when it is no longer free."""
        if self._numbers()[-1] >= number:
            return False
        data = msgspec.json.encode(holder)
        return self._files.publish(self._generation(number), data, self._clock.new_id())

    def _numbers(self) -> list[int]:
        names = self._files.names(self._generations)
        return [0, *(int(name.removesuffix(".json")) for name in names)]

    def _generation(self, number: int) -> Path:
        return self._generations / f"{number:08d}.json"

    def newest_generation(self) -> tuple[int, dict[str, str | int]]:
        """Return the highest numbered file and its content."""
        number = self._numbers()[-1]
        if number == 0:
            return 0, {}
        try:
            return number, msgspec.json.decode(self._files.read(self._generation(number)))
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
    return sorted(path.stat().st_mtime_ns // 1_000_000 for path in root.glob("generations/*.json"))
