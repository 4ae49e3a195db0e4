"""Where the entries of a served table are: in memory, or on disk where they need not fit it.

Both hold one version of a table, are filled by one thread and read by several. On disk they are a
RocksDB of the state layer, as the stores of a task are; it ends with its server.
"""

from __future__ import annotations

import shutil
import sys
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import merge
from itertools import islice, pairwise, repeat
from operator import itemgetter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.closeable import Closeable
from headrace.errors import ClosedError
from headrace.serving.resp import bulk, bulk_value, bulks, bulks_or
from headrace.state.backend import Columns
from headrace.state.rocksdb import RocksDBBackend, RocksDBSettings

CHUNK_ROWS = 1_000_000
"""So many entries are sorted at once while a table on disk is filled."""

MERGED_AT_ONCE = 4
"""A range that is merged has a fourth of these: three of them are in memory, one is written."""

SAMPLES = 64
"""So many parts has a sorted run; their first keys say where ranges that are merged begin."""

STEPS = 16
"""In so many steps they are written."""

RECENT_KEYS, RECENT_SHARE = 5_000, 32
"""In memory, so many keys, and this part of all, are kept apart before the order is made again."""

FREED_AT_ONCE = 5_000

HUGE_ROWS = 50_000
"""From so many entries on, finding the page of one takes as long as reading it."""

SAMPLED = 64
"""One of so many values says which pages have them."""

HUGE_BYTES, COLLAPSE = 2 << 20, 25  # of Linux

_STORE = "entries"
_BYTES = pa.large_binary()
_key = pa.LargeBinaryScalar.as_py
_STORED = pa.schema([("key", _BYTES), ("value", _BYTES)])
SETTINGS = RocksDBSettings(in_pieces=True)
_HEAD = b"\0\0"
"""Before each key on disk: the keys of a backend begin with two bytes."""


def _never() -> bool:
    return False


class Entries(Closeable):
    """Keys and values in the order of keys.

    Args:
        is_over: asked while they are loaded; once it is true, that ends with ``ClosedError``.
    """

    def __init__(self, is_over: Callable[[], bool] = _never) -> None:
        self._is_over = is_over

    def _check_over(self) -> None:
        if self._is_over():
            raise ClosedError("the server ends, so its tables are not loaded any further")

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

    def replies(self, keys: Sequence[bytes], null: bytes) -> tuple[Sequence[bytes], int]:
        """Return the reply of each key in Redis's protocol, ``null`` where there is none.

        Returns:
            The replies, and how many of them are ``null``.
        """
        values = self.get_many(keys)
        return bulks_or(null, values), values.count(None)

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

    def __init__(self, is_over: Callable[[], bool] = _never) -> None:
        super().__init__(is_over)
        self._replies: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None
        self._recent: list[bytes] = []
        self._added: list[bytes] = []

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries."""
        self._check_over()
        self._replies.update(zip(keys, bulks(values), strict=True))

    def loaded(self) -> None:
        """Make reads of many entries quicker."""
        if len(self._replies) >= HUGE_ROWS:
            use_huge_pages(self._replies)

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete."""
        held = self._replies
        if self._order is not None:
            pairs = zip(keys, values, strict=True)
            self._added += [k for k, v in pairs if k not in held and v is not None]
            if len(self._added) > len(held) + CHUNK_ROWS:  # nobody has asked for a long time
                self._order, self._recent, self._added = None, [], []
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

    def replies(self, keys: Sequence[bytes], null: bytes) -> tuple[Sequence[bytes], int]:
        """Return the reply of each key."""
        held = self._replies
        try:
            # One call for all keys, and no look at what was found.
            return ((held[keys[0]],) if len(keys) == 1 else itemgetter(*keys)(held)), 0
        except KeyError:
            found = list(map(held.get, keys, repeat(null)))
            return found, found.count(null)

    def scan(self, low: bytes, high: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return the first entries of a range."""
        held, found, before = self._replies, list[tuple[bytes, bytes]](), None
        for key in self._from(low):
            if len(found) >= most or (high is not None and key >= high):
                break
            reply = held.get(key)
            if reply is not None and key != before:
                found.append((key, bulk_value(reply)))
            before = key
        return found

    def _from(self, low: bytes) -> Iterator[bytes]:
        """Yield keys in order; some were deleted, and one that was set again may come twice."""
        runs = [
            map(run.__getitem__, range(bisect_left(run, low), len(run))) for run in self._ordered()
        ]
        return merge(*runs) if len(runs) > 1 else iter(runs[0])

    def _ordered(self) -> list[list[bytes]]:
        """Return the keys in order, and in a short run those that were added since."""
        if self._order is None or len(self._order) > 2 * len(self._replies) + CHUNK_ROWS:
            self._order, self._recent = sorted(self._replies), []
        elif self._added:
            # Two sorted runs, which the sort merges.
            recent = list(dict.fromkeys(sorted(self._recent + sorted(self._added))))
            if len(recent) > RECENT_KEYS + len(self._order) // RECENT_SHARE:
                self._order = list(dict.fromkeys(sorted(self._order + recent)))
                recent = []
            self._recent = recent
        self._added = []
        return [self._order, self._recent] if self._recent else [self._order]

    def count(self) -> int:
        """Return how many there are."""
        return len(self._replies)

    def close(self) -> None:
        """Forget them, which other threads do not wait for."""
        held, self._replies, self._order, self._recent = self._replies, {}, None, []
        while held and not self._is_over():
            # By parts: at once, all threads would wait, for 40 ms with a million entries.
            for _ in range(min(FREED_AT_ONCE, len(held))):
                held.popitem()


class DiskEntries(Entries):
    """Entries in a RocksDB of their own, of any size.

    It is filled as files are sorted that do not fit memory: in sorted runs, which are merged range
    by range into files that do not overlap. RocksDB takes those in as they are, compacts nothing,
    and a read looks at one of them. Sorting is done beside reading, and merging beside writing.

    Args:
        folder: on a local disk; made, and removed at the end.
        settings: memory, and how filters are read.
        chunk_rows: so many entries are sorted at once while it is filled.
        is_over: as for ``Entries``.
    """

    def __init__(
        self,
        folder: Path,
        settings: RocksDBSettings = SETTINGS,
        chunk_rows: int = CHUNK_ROWS,
        is_over: Callable[[], bool] = _never,
    ) -> None:
        super().__init__(is_over)
        self._folder, self._chunk_rows = folder, chunk_rows
        shutil.rmtree(folder, ignore_errors=True)
        self._backend = RocksDBBackend(folder, (_STORE,), settings=settings)
        self._waiting: list[Columns] = []
        self._runs: list[Future[_Run]] = []
        self._beside = ThreadPoolExecutor(1, "headrace-sorting")
        self._loaded_keys, self._has_changed = 0, False

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add entries, by sorted files."""
        self._check_over()
        if not keys:
            return
        self._waiting.append((pa.array(keys, _BYTES), pa.array(values, _BYTES)))
        if sum(len(found) for found, _ in self._waiting) >= self._chunk_rows:
            waiting, self._waiting = self._waiting, []
            if self._runs:
                self._runs[-1].result()  # one is sorted at a time: each takes memory
            path = self._folder / f"run-{len(self._runs)}.arrow"
            self._runs.append(self._beside.submit(_Run, path, waiting))

    def loaded(self) -> None:
        """Write what waits, in the order of keys."""
        runs, self._runs = [one.result() for one in self._runs], []
        waiting, self._waiting = self._waiting, []
        if runs:
            if waiting:
                runs.append(_Run(self._folder / f"run-{len(runs)}.arrow", waiting))
            self._backend.load(_STORE, self._steps(self._merged(runs)))
            for run in runs:
                run.remove()
        elif waiting:
            self._backend.load(_STORE, self._steps([_in_order(waiting)]))

    def _steps(self, parts: Iterable[pl.DataFrame]) -> Iterator[Columns]:
        for rows in parts:
            self._check_over()
            self._loaded_keys += rows.height
            yield from _columns(rows, -(-self._chunk_rows // STEPS))

    def _merged(self, runs: Sequence[_Run]) -> Iterator[pl.DataFrame]:
        """Yield the entries of all runs, range by range; each while the one before is written."""
        samples = sorted(key for run in runs for key in run.samples)
        rows = sum(run.rows for run in runs)
        step = max(1, len(samples) * self._chunk_rows // MERGED_AT_ONCE // rows)
        bounds = [None, *dict.fromkeys(samples[step::step]), None]
        coming: deque[Future[pl.DataFrame]] = deque()
        for low, high in pairwise(bounds):
            parts = [part for run in runs for part in run.between(low, high)]
            if parts:  # else all runs begin with the same key
                coming.append(self._beside.submit(_in_order, parts))
            if len(coming) > 1:
                yield coming.popleft().result()
        yield coming.popleft().result()

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete in one step."""
        full = [_HEAD + key for key in keys]
        self._has_changed = True
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
        """Return how many were loaded; once they change, about how many there are."""
        return self._backend.key_count(_STORE) if self._has_changed else self._loaded_keys

    def close(self) -> None:
        """Close the database and remove it."""
        self._beside.shutdown(cancel_futures=True)
        self._backend.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Run:
    """Entries in the order of their keys, in a file of which any part can be read.

    Args:
        path: of the file.
        parts: the entries; of a key that comes twice the last one counts.
    """

    def __init__(self, path: Path, parts: Sequence[Columns]) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        rows = _in_order(parts)
        self.rows, step = rows.height, -(-rows.height // SAMPLES)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _STORED) as writer:
            for part in rows.iter_slices(step):
                writer.write_table(part.to_arrow().cast(_STORED).combine_chunks())
        self.samples: list[bytes] = rows["key"].gather_every(step).to_list()
        # Not mapped: Linux may read megabytes around each page that a search touches.
        self._file = pa.OSFile(str(path))
        self._parts = pa.ipc.open_file(self._file)
        self._held: tuple[int, Columns] | None = None

    def between(self, low: bytes | None, high: bytes | None) -> Iterator[Columns]:
        """Yield the entries with ``low <= key < high``, a part each; ``None``: no bound."""
        first = 0 if low is None else max(0, bisect_right(self.samples, low) - 1)
        last = len(self.samples) if high is None else bisect_left(self.samples, high)
        for number in range(first, last):
            keys, values = self._part(number)
            begin = 0 if low is None else bisect_left(keys, low, key=_key)
            end = len(keys) if high is None else bisect_left(keys, high, key=_key)
            if begin < end:
                yield keys[begin:end], values[begin:end]

    def _part(self, number: int) -> Columns:
        """Return a part; the range that follows mostly begins in the last one."""
        if self._held is None or self._held[0] != number:
            keys, values = self._parts.get_batch(number).columns
            self._held = number, (keys, values)
        return self._held[1]

    def remove(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink()


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


def use_huge_pages(held: dict[bytes, bytes]) -> None:
    """Have Linux bring a large dict with its entries into pages of 2 MiB; elsewhere do nothing.

    The ``id`` of a value is its address. Keys are beside the values, and the table of the dict is
    in a gap between them. Other threads run meanwhile.
    """
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - only large tables need it

    some = islice(held.values(), 0, None, SAMPLED)
    pages = np.unique(np.fromiter(map(id, some), np.int64) // HUGE_BYTES)
    advise = ctypes.CDLL(None).madvise
    for part in np.split(pages, np.flatnonzero(np.diff(pages) > len(pages)) + 1):
        for page in range(int(part[0]), int(part[-1]) + 1):
            # Refused, without harm, where a page has other memory, or none.
            advise(ctypes.c_void_p(page * HUGE_BYTES), ctypes.c_size_t(HUGE_BYTES), COLLAPSE)
