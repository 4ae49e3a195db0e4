"""Time to live: how a value says when it was written, and which keys are due to be looked at.

A value of a store with a time to live begins with a mark that no MessagePack begins with,
and the epoch's wall clock when it was written. So any reader can tell a stamped value from a
bare one, and what is visible depends on the manifest's clock alone: a retry, a rebuilt store
and a replica agree. Nothing is visible from ``written + ttl`` on; what is removed later, by
``ExpiringStore``, nobody could see any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from headrace.state.backend import Backend
from headrace.state.store import KeyValueStore

SWEEP_ENTRIES = 100_000
"""Once so many expired entries were found in an epoch, the other key groups wait."""

_FIRST_LOOK = 16  # the part of the groups that a new process looks at in its first epoch
MARK = b"\xc1"  # the one byte that MessagePack never uses
_STAMP = struct.Struct(">cQ")
STAMP_BYTES = _STAMP.size


def stamp(wall_ms: int) -> bytes:
    """Return what stands before each value that is written in an epoch."""
    return _STAMP.pack(MARK, max(wall_ms, 0))


def bare(raw: bytes) -> bytes:
    """Return a value without its stamp, if it has one."""
    return raw[STAMP_BYTES:] if raw[:1] == MARK else raw


def written_ms(raw: bytes) -> int | None:
    """Return when a value was written; ``None`` when it has no stamp."""
    return int(_STAMP.unpack_from(raw)[1]) if raw[:1] == MARK else None


def least_stamp(wall_ms: int, ttl_ms: int) -> bytes:
    """Return the stamp of the oldest values that are still visible.

    Stamps sort by time as bytes, so one comparison tells whether a value has expired.
    """
    return stamp(wall_ms - ttl_ms + 1)


def sweep_turns(count: int, ttl_ms: int, since_ms: int, wall_ms: int) -> range:
    """Return which key groups are looked at for expired entries, as numbers of turns.

    Each group has its turn once in a time to live, so an entry stays at most about two of
    them after it was written, and looking costs one read of the state in that time.

    Args:
        count: key groups of the task; ``turn % count`` is the place among them.
        ttl_ms: time to live.
        since_ms: the wall clock up to which turns were taken.
        wall_ms: the epoch's.
    """
    first, last = since_ms * count // ttl_ms, wall_ms * count // ttl_ms
    return range(max(first, last - count) + 1, last + 1)


class ExpiringStore(KeyValueStore):
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
        self._wall_ms, self._looked_ms = 0, -1
        self._least = stamp(0)

    def begin(self, wall_ms: int) -> None:
        """Turn to an epoch: what had expired by its wall clock is not seen in it."""
        self._wall_ms = wall_ms
        self._least = least_stamp(wall_ms, self._ttl_ms)
        if self._looked_ms < 0:
            self._looked_ms = max(0, wall_ms - self._ttl_ms // _FIRST_LOOK)

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
        now = stamp(self._wall_ms)
        return keys, [None if value is None else now + value for value in values]

    def _expired(self) -> list[bytes]:
        """The expired entries of the key groups whose turn it is."""
        low, high = self._groups
        count, least = high - low, self._least
        found: list[bytes] = []
        for turn in sweep_turns(count, self._ttl_ms, self._looked_ms, self._wall_ms):
            if len(found) >= SWEEP_ENTRIES:
                self._looked_ms = -(-turn * self._ttl_ms // count) - 1  # just before its turn
                return found
            group = low + turn % count
            begin, end = (at.to_bytes(3, "big") for at in (group, group + 1))
            entries = super()._committed_scan(begin[1:], None if end[0] else end[1:])
            found += [key for key, raw in entries if raw[:STAMP_BYTES] < least]
        self._looked_ms = max(self._looked_ms, self._wall_ms)
        return found
