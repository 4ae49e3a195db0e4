"""Encoded values of a remote store that were read or sent lately, bounded in bytes and in age."""

from __future__ import annotations

from collections import OrderedDict

from headrace.clock import Clock

ENTRY_BYTES = 250
"""What an entry costs beside its key and value: a slot, a tuple and three small objects."""


class ReadCache:
    """Least recently used entries go first when the bytes do not fit.

    That a key has no value is kept as well. An entry is as old as the answer it came with,
    however often it is used.

    Args:
        limit_bytes: of keys and values, with what holding them costs; 0 keeps nothing.
        max_age_ms: from then on an entry is not used; 0 keeps nothing.
        clock: for the age.
    """

    def __init__(self, limit_bytes: int, max_age_ms: int, clock: Clock) -> None:
        self._limit = limit_bytes if max_age_ms else 0
        self._max_age_s, self._clock = max_age_ms / 1000, clock
        self._entries: OrderedDict[bytes, tuple[float, bytes | None]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        """Return the number of entries, too old ones included."""
        return len(self._entries)

    def find(self, keys: list[bytes]) -> dict[bytes, bytes | None]:
        """Return what is known of keys; one that is known to have no value stands for ``None``."""
        if not self._entries:
            return {}
        oldest = self._clock.monotonic() - self._max_age_s
        found = {}
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                continue
            if entry[0] <= oldest:
                self._drop(key)
                continue
            self._entries.move_to_end(key)
            found[key] = entry[1]
        return found

    def keep(self, keys: list[bytes], values: list[bytes | None]) -> None:
        """Remember what the server holds as of now."""
        if not self._limit:
            return
        now = self._clock.monotonic()
        for key, value in zip(keys, values, strict=True):
            self._drop(key)
            self._entries[key] = (now, value)
            self.held_bytes += _size(key, value)
        while self.held_bytes > self._limit:
            self._drop(next(iter(self._entries)))

    def forget(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.held_bytes = 0

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.held_bytes -= _size(key, entry[1])


def _size(key: bytes, value: bytes | None) -> int:
    return ENTRY_BYTES + len(key) + (0 if value is None else len(value))
