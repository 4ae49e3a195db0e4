"""A store of bytes during an epoch: an overlay of changes over committed data.

Operators with a known shape (windows, aggregates) use it directly; ``objects`` puts
Python values on top for user code. Nothing is written to the backend here.
"""

from __future__ import annotations

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

    def begin(self, wall_ms: int) -> None:
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
        return merge(committed, [(key, self._overlay[key]) for key in keys])

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


def merge(
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
