"""Where readers of a compacted stream stand: nothing from there on is compacted.

So an epoch that was planned over a range reads the same rows again after a crash. A hold that
its reader has not renewed for ``StreamSettings.hold_ms`` counts no longer: one forgotten job
must not fill the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from headrace.bus.settings import signed_json, verified_json
from headrace.bus.spec import check_name
from headrace.clock import Clock
from headrace.files import Files

FORMAT = 1
UNHELD = 2**63 - 1


class Hold(NamedTuple):
    """What one reader holds: an offset of each partition, and when it said so."""

    offsets: tuple[int, ...]
    at_ms: int


class HoldStore(ABC):
    """The holds of a stream. Safe for many threads and processes."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Keep holds from being set or released meanwhile; a compaction counts inside."""

    @abstractmethod
    def all(self) -> dict[str, Hold]:
        """Return the hold of each reader."""

    @abstractmethod
    def set(self, reader: str, offsets: Sequence[int]) -> None:
        """Replace the hold of a reader, durably; no compaction goes on meanwhile."""

    @abstractmethod
    def release(self, reader: str) -> None:
        """Forget the hold of a reader, if it has one."""

    def lowest(self, partition: int, now_ms: int, hold_ms: int) -> int:
        """Return the offset of a partition that holds the most back."""
        return min(
            (
                hold.offsets[partition]
                for hold in self.all().values()
                if partition < len(hold.offsets) and hold.at_ms + hold_ms > now_ms
            ),
            default=UNHELD,
        )


class MemoryHolds(HoldStore):
    """The holds of a stream in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._holds: dict[str, Hold] = {}

    def locked(self) -> AbstractContextManager[None]:
        """Keep holds from being set or released meanwhile."""
        return self._locked()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield

    def all(self) -> dict[str, Hold]:
        """Return the hold of each reader."""
        with self._lock:
            return dict(self._holds)

    def set(self, reader: str, offsets: Sequence[int]) -> None:
        """Replace the hold of a reader."""
        check_name(reader)
        with self._lock:
            self._holds[reader] = Hold(tuple(offsets), self._clock.now_ms())

    def release(self, reader: str) -> None:
        """Forget the hold of a reader, if it has one."""
        with self._lock:
            self._holds.pop(reader, None)


class HoldFiles(HoldStore):
    """The files ``holds/<reader>.json`` of a stream's folder, under one lock of their own."""

    def __init__(self, folder: Path, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder / "holds", files, clock

    def locked(self) -> AbstractContextManager[None]:
        """Keep holds from being set or released meanwhile."""
        return self._locked()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(exist_ok=True)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def all(self) -> dict[str, Hold]:
        """Return the hold of each reader.

        Raises:
            CorruptDataError: a file is damaged.
        """
        found = {}
        for name in self._files.names(self._folder):
            if name.endswith(".json"):
                path = self._folder / name
                with contextlib.suppress(FileNotFoundError):  # released meanwhile
                    content = verified_json(self._files.read(path), str(path), FORMAT)
                    found[content["reader"]] = Hold(tuple(content["offsets"]), content["at_ms"])
        return found

    def set(self, reader: str, offsets: Sequence[int]) -> None:
        """Replace the hold of a reader, durably."""
        check_name(reader)
        content = {
            "format": FORMAT,
            "reader": reader,
            "offsets": list(offsets),
            "at_ms": self._clock.now_ms(),
        }
        with self.locked():
            path = self._folder / f"{reader}.json"
            self._files.replace(path, signed_json(content), self._clock.new_id())

    def release(self, reader: str) -> None:
        """Forget the hold of a reader, if it has one."""
        check_name(reader)
        path = self._folder / f"{reader}.json"
        if path.exists():
            with self.locked():
                self._files.remove(path)
