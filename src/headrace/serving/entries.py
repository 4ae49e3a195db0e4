"""Where the entries of a served table are: in memory, or on disk where they need not fit it.

Both hold one version of a table, are filled by one thread and read by several. On disk they are a
RocksDB of the state layer, as the stores of a task are; it ends with its server.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.closeable import Closeable
from headrace.serving.resp import bulk, bulk_value, bulks, bulks_or
from headrace.state.backend import Columns
from headrace.state.rocksdb import RocksDBBackend, RocksDBSettings

CHUNK_ROWS = 1_000_000
"""So many entries are sorted at once while a table on disk is filled."""

STEPS = 16
"""In so many steps they are written."""

_STORE = "entries"
_BYTES = pa.large_binary()
_STORED = pa.schema([("key", _BYTES), ("value", _BYTES)])
SETTINGS = RocksDBSettings(in_pieces=True)
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

    def replies(self, keys: Sequence[bytes], null: bytes) -> list[bytes]:
        """Return the reply of each key in Redis's protocol, ``null`` where there is none."""
        return bulks_or(null, self.get_many(keys))

    @abstractmethod
    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries with ``low <= key < high``; ``None`` has no upper end."""

    @abstractmethod
    def count(self) -> int:
        """Return how many there are; on disk about how many."""


class MemoryEntries(Entries):
    """Entries in a dict; their order is made when it is first asked for, and kept up after that.

    A value is kept as the reply that it becomes, as most are read as that.
    """

    def __init__(self) -> None:
        self._replies: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None
        self._added: list[bytes] = []

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries."""
        self._replies.update(zip(keys, bulks(values), strict=True))

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete."""
        held = self._replies
        if self._order is not None:
            self._added += [k for k, v in zip(keys, values, strict=True) if k not in held and v]
        if None in values:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    held.pop(key, None)
                else:
                    held[key] = bulk(value)
        else:
            held.update(zip(keys, bulks(values), strict=True))  # type: ignore[arg-type]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        found = map(self._replies.get, keys)
        return [None if reply is None else bulk_value(reply) for reply in found]

    def replies(self, keys: Sequence[bytes], null: bytes) -> list[bytes]:
        """Return the reply of each key."""
        return list(map(self._replies.get, keys, repeat(null)))

    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries of a range."""
        order, held, found = self._ordered(), self._replies, list[tuple[bytes, bytes]]()
        for at in range(bisect_left(order, low), len(order)):
            key = order[at]
            if len(found) >= most or (high is not None and key >= high):
                break
            reply = held.get(key)
            if reply is not None:
                found.append((key, bulk_value(reply)))
        return found

    def _ordered(self) -> list[bytes]:
        """The keys in order; of those that were deleted some may still be among them."""
        if self._order is None or len(self._order) > 2 * len(self._replies) + CHUNK_ROWS:
            self._order = sorted(self._replies)
        elif self._added:
            # Two sorted runs, which the sort merges; a key that was deleted and set again is twice.
            self._order = list(dict.fromkeys(sorted(self._order + sorted(self._added))))
        self._added = []
        return self._order

    def count(self) -> int:
        """Return how many there are."""
        return len(self._replies)

    def close(self) -> None:
        """Forget them."""
        self._replies, self._order = {}, None


class DiskEntries(Entries):
    """Entries in a RocksDB of their own, of any size.

    Args:
        folder: on a local disk; made, and removed at the end.
        settings: memory, and how filters are read.
        chunk_rows: so many entries are sorted at once while it is filled.
    """

    def __init__(
        self,
        folder: Path,
        settings: RocksDBSettings = SETTINGS,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self._folder, self._chunk_rows = folder, chunk_rows
        shutil.rmtree(folder, ignore_errors=True)
        self._backend = RocksDBBackend(folder, (_STORE,), settings=settings)
        self._waiting: list[Columns] = []
        self._count = 0

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries, by sorted files."""
        self._waiting.append((pa.array(keys, _BYTES), pa.array(values, _BYTES)))
        if sum(len(found) for found, _ in self._waiting) >= self._chunk_rows:
            self.loaded()

    def loaded(self) -> None:
        """Write what waits, in the order of keys."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            rows = _in_order(waiting)
            self._count += rows.height
            self._backend.load(_STORE, _columns(rows, -(-self._chunk_rows // STEPS)))

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


def _in_order(parts: Sequence[Columns]) -> pl.DataFrame:
    """Return entries in the order of keys; of a key that comes twice the last one."""
    keys, values = (pa.chunked_array(found) for found in zip(*parts, strict=True))
    rows = pl.DataFrame({"key": pl.from_arrow(keys), "value": pl.from_arrow(values)})
    rows = rows.sort("key", maintain_order=True)
    return rows.filter(pl.col("key").ne_missing(pl.col("key").shift(-1)))


def _columns(rows: pl.DataFrame, step: int) -> Iterator[Columns]:
    head, nothing = (pa.scalar(one, _BYTES) for one in (_HEAD, b""))
    for part in rows.iter_slices(step):
        found = part.to_arrow().cast(_STORED)
        keys = pc.binary_join_element_wise(head, found.column(0), nothing)
        yield keys.combine_chunks(), found.column(1).combine_chunks()
