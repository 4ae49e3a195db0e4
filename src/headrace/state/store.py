"""A store of bytes during an epoch: an overlay of changes over committed data; time to live.

Operators with a known shape (windows, aggregates) use it directly; ``object_store`` puts Python
values on top for user code. Nothing is written to the backend here.

A value of a store with a time to live begins with a mark that no MessagePack begins with, and the
epoch's wall clock when it was written. What is visible depends on the manifest's clock alone, so a
retry, a rebuilt store and a replica agree.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeVar

from headrace.state.backend import Backend

ENTRY_OVERHEAD_BYTES = 160  # a dict slot and two bytes objects, beside their content

_UNKNOWN = object()
_V = TypeVar("_V")


class KeyValueStore:
    """One named store of a task: reads see the overlay, then the committed data.

    Args:
        backend: the committed data.
        name: of the store within the backend.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self.name = name
        self._backend = backend
        self._overlay: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] = []
        self._content_bytes = 0

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each full key in order, ``None`` where there is none."""
        overlay = self._overlay
        if not overlay:
            return self._committed(keys)
        found = [overlay.get(key, _UNKNOWN) for key in keys]
        missing = [at for at, value in enumerate(found) if value is _UNKNOWN]
        if missing:
            loaded = self._committed([keys[at] for at in missing])
            for at, value in zip(missing, loaded, strict=True):
                found[at] = value
        return found  # type: ignore[return-value]

    def begin(self, wall_ms: int, swept_ms: int = -1) -> None:
        """Turn to an epoch with its wall clock, which only a time to live looks at."""

    def _committed(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._backend.get_many(self.name, keys)

    def _committed_scan(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._backend.scan(self.name, low, high)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a full key."""
        self._set(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a full key; deleting what is not there is fine."""
        self._set(key, None)

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set many full keys; a value of ``None`` deletes, the last of a repeated key wins."""
        overlay = self._overlay
        new = dict(zip(keys, values, strict=True))
        if overlay.keys().isdisjoint(new):
            sizes = map(len, filter(None, new.values()))
            self._content_bytes += sum(map(len, new)) + sum(sizes)
            overlay.update(new)
        else:
            for key, value in new.items():
                self._set(key, value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        overlay = self._overlay
        size = len(value) if value is not None else 0
        if key in overlay:
            before = overlay[key]
            self._content_bytes += size - (len(before) if before is not None else 0)
        else:
            self._content_bytes += size + len(key)
        overlay[key] = value

    def scan(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``low <= key < high`` in key order, as they are at the call."""
        committed = self._committed_scan(low, high)
        if not self._overlay:
            return committed
        keys = self._overlay_keys(low, high)
        return overlaid(committed, [(key, self._overlay[key]) for key in keys])

    def _overlay_keys(self, low: bytes, high: bytes | None) -> list[bytes]:
        if len(self._sorted) != len(self._overlay):
            self._sorted = sorted(self._overlay)
        keys = self._sorted
        end = len(keys) if high is None else bisect_left(keys, high)
        return keys[bisect_left(keys, low) : end]

    @property
    def overlay_bytes(self) -> int:
        """Memory that the changes take, with the cost of holding them."""
        return self._content_bytes + ENTRY_OVERHEAD_BYTES * len(self._overlay)

    def take_changes(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return the changes sorted by key, which is key group order, and forget them."""
        overlay = self._overlay
        keys = sorted(overlay)
        values = list(map(overlay.__getitem__, keys))
        self.discard()
        return keys, values

    def discard(self) -> None:
        """Forget the changes."""
        self._overlay = {}
        self._sorted = []
        self._content_bytes = 0


def overlaid(
    committed: Iterator[tuple[bytes, bytes]], changes: Sequence[tuple[bytes, _V | None]]
) -> Iterator[tuple[bytes, bytes | _V]]:
    """Yield committed entries with sorted changes laid over them, in key order.

    A change of ``None`` deletes; changes may hold values of another kind than bytes.
    """
    entry = next(committed, None)
    for key, value in changes:
        while entry is not None and entry[0] < key:
            yield entry
            entry = next(committed, None)
        if entry is not None and entry[0] == key:
            entry = next(committed, None)
        if value is not None:
            yield key, value
    while entry is not None:
        yield entry
        entry = next(committed, None)


SWEEP_ENTRIES = 100_000
SWEEPS_A_CHANGE = 4
"""Once an epoch has looked at so many entries, or at so many for each that it changes, whichever is
more, the other key groups wait for the next. So a store whose entries all expire cannot outgrow
the looking, and an epoch after a long rest does not read the whole state."""

NEVER_EXPIRED = -1
TTL_MARK = b"\xc1"  # the one byte that MessagePack never uses
_STAMP = struct.Struct(">cQ")
STAMP_BYTES = _STAMP.size


def ttl_stamp(wall_ms: int) -> bytes:
    """Return what stands before each value that is written in an epoch."""
    return _STAMP.pack(TTL_MARK, max(wall_ms, 0))


def without_stamp(raw: bytes) -> bytes:
    """Return a value without its stamp, if it has one."""
    return raw[STAMP_BYTES:] if raw[:1] == TTL_MARK else raw


def least_stamp(wall_ms: int, ttl_ms: int) -> bytes:
    """Return the stamp of the oldest values that are still visible.

    Stamps sort by time as bytes, so one comparison says whether a value has expired.
    """
    return ttl_stamp(wall_ms - ttl_ms + 1)


def sweep_turns(count: int, ttl_ms: int, since_ms: int, wall_ms: int) -> range:
    """Return which key groups are looked at for expired entries, as numbers of turns.

    Each group has its turn once in a time to live, so an entry stays at most about two of
    them after it was written, and looking costs one read of the state in that time. Turns that
    were missed are taken first, however long ago they were, each group once.

    Args:
        count: key groups of the task; ``turn % count`` is the place among them.
        ttl_ms: time to live.
        since_ms: the wall clock up to which turns were taken.
        wall_ms: the epoch's.
    """
    first, last = since_ms * count // ttl_ms, wall_ms * count // ttl_ms
    return range(first + 1, min(last, first + count) + 1)


class TtlStore(KeyValueStore):
    """A store whose entries are visible for ``ttl_ms`` after the epoch that wrote them.

    Args:
        backend: the committed data, with stamped values.
        name: of the store within the backend.
        ttl_ms: time to live.
        groups: the task's key groups, first and after last.
    """

    def __init__(self, backend: Backend, name: str, ttl_ms: int, groups: tuple[int, int]) -> None:
        super().__init__(backend, name)
        self._ttl_ms, self._groups = ttl_ms, groups
        self._wall_ms, self.swept_ms = 0, NEVER_EXPIRED
        self._least = ttl_stamp(0)

    def begin(self, wall_ms: int, swept_ms: int = NEVER_EXPIRED) -> None:
        """Turn to an epoch: what had expired by its wall clock is not seen in it.

        Args:
            wall_ms: of the epoch.
            swept_ms: up to which turns were taken by the last committed epoch of the task; by the
                end of this one ``swept_ms`` is what to commit.
        """
        self._wall_ms = wall_ms
        self._least = least_stamp(wall_ms, self._ttl_ms)
        self.swept_ms = max(0, wall_ms - self._ttl_ms) if swept_ms < 0 else swept_ms

    def _committed(self, keys: Sequence[bytes]) -> list[bytes | None]:
        least = self._least
        return [
            None if raw is None or raw[:STAMP_BYTES] < least else raw[STAMP_BYTES:]
            for raw in super()._committed(keys)
        ]

    def _committed_scan(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        least = self._least
        return (
            (key, raw[STAMP_BYTES:])
            for key, raw in super()._committed_scan(low, high)
            if raw[:STAMP_BYTES] >= least
        )

    def take_changes(self) -> tuple[list[bytes], list[bytes | None]]:
        """Return the changes, stamped, and deletions of what is found to have expired."""
        for key in self._expired():
            self._overlay.setdefault(key, None)
        keys, values = super().take_changes()
        now = ttl_stamp(self._wall_ms)
        return keys, [None if value is None else now + value for value in values]

    def _expired(self) -> list[bytes]:
        """The expired entries of the key groups whose turn it is."""
        low, high = self._groups
        count, least = high - low, self._least
        looked, most = 0, max(SWEEP_ENTRIES, SWEEPS_A_CHANGE * len(self._overlay))
        found: list[bytes] = []
        for turn in sweep_turns(count, self._ttl_ms, self.swept_ms, self._wall_ms):
            if looked >= most:
                self.swept_ms = -(-turn * self._ttl_ms // count) - 1  # just before its turn
                return found
            group = low + turn % count
            begin, end = (at.to_bytes(3, "big") for at in (group, group + 1))
            entries = super()._committed_scan(begin[1:], None if end[0] else end[1:])
            for key, raw in entries:
                looked += 1
                if raw[:STAMP_BYTES] < least:
                    found.append(key)
        self.swept_ms = max(self.swept_ms, self._wall_ms)
        return found
