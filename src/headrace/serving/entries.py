"""Where the entries of a served table are: in memory, or on disk where they need not fit it.

Both hold one version of a table, are filled by one thread and read by several. On disk they are a
RocksDB of the state layer, as the stores of a task are; it ends with its server.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.closeable import Closeable
from headrace.state.rocksdb import RocksDBBackend

CHUNK_ROWS = 1_000_000
"""So many entries are sorted at once while a table on disk is filled."""

FILE_ROWS = 65_536
_STORE = "entries"
_HEAD = b"\0\0"
"""Before each key on disk: the keys of a backend begin with two bytes."""


class Entries(Closeable):
    """Keys and values in the order of keys."""

    @abstractmethod
    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries while nobody reads; of a key that comes twice the last value counts."""

    def loaded(self) -> None:
        """Make all that was loaded readable."""

    @abstractmethod
    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set entries, or delete those whose value is ``None``; no key comes twice."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, ``None`` where there is none."""

    @abstractmethod
    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries with ``low <= key < high``; ``None`` has no upper end."""

    @abstractmethod
    def count(self) -> int:
        """Return how many there are; on disk about how many."""


class MemoryEntries(Entries):
    """Entries in a dict; their order is made when it is first asked for, and kept up after that."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None
        self._added: list[bytes] = []

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries."""
        self._values.update(zip(keys, values, strict=True))

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete."""
        held = self._values
        if self._order is not None:
            self._added += [k for k, v in zip(keys, values, strict=True) if k not in held and v]
        if None in values:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    held.pop(key, None)
                else:
                    held[key] = value
        else:
            held.update(zip(keys, values, strict=True))  # type: ignore[arg-type]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        return list(map(self._values.get, keys))

    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries of a range."""
        order, values, found = self._ordered(), self._values, list[tuple[bytes, bytes]]()
        for at in range(bisect_left(order, low), len(order)):
            key = order[at]
            if len(found) >= most or (high is not None and key >= high):
                break
            value = values.get(key)
            if value is not None:
                found.append((key, value))
        return found

    def _ordered(self) -> list[bytes]:
        """The keys in order; of those that were deleted some may still be among them."""
        if self._order is None or len(self._order) > 2 * len(self._values) + CHUNK_ROWS:
            self._order = sorted(self._values)
        elif self._added:
            # Two sorted runs, which the sort merges; a key that was deleted and set again is twice.
            self._order = list(dict.fromkeys(sorted(self._order + sorted(self._added))))
        self._added = []
        return self._order

    def count(self) -> int:
        """Return how many there are."""
        return len(self._values)

    def close(self) -> None:
        """Forget them."""
        self._values, self._order = {}, None


class DiskEntries(Entries):
    """Entries in a RocksDB of their own, of any size.

    Args:
        folder: on a local disk; made, and removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self._backend = RocksDBBackend(folder, (_STORE,))
        self._waiting: dict[bytes, bytes] = {}
        self._count = 0

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries, by sorted files."""
        self._waiting.update(zip(keys, values, strict=True))
        if len(self._waiting) >= CHUNK_ROWS:
            self.loaded()

    def loaded(self) -> None:
        """Write what waits, in the order of keys."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._count += len(waiting)
            self._backend.load(_STORE, _columns(waiting))

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete in one step."""
        full = [_HEAD + key for key in keys]
        self._count += len(keys) - 2 * sum(value is None for value in values)
        self._backend.apply({_STORE: (full, values)}, None)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key by one batched read."""
        return self._backend.get_many(_STORE, [_HEAD + key for key in keys])

    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries of a range."""
        end = b"\0\1" if high is None else _HEAD + high
        rows = self._backend.scan(_STORE, _HEAD + low, end)
        return [(key[2:], value) for (key, value), _ in zip(rows, range(most), strict=False)]

    def count(self) -> int:
        """Return about how many there are: what is set again counts again."""
        return max(0, self._count)

    def close(self) -> None:
        """Close the database and remove it."""
        self._backend.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _columns(entries: dict[bytes, bytes]) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
    order = sorted(entries)
    for at in range(0, len(order), FILE_ROWS):
        keys = order[at : at + FILE_ROWS]
        yield (
            pa.array([_HEAD + key for key in keys], pa.binary()),
            pa.array([entries[key] for key in keys], pa.binary()),
        )
