"""A backend in memory, for small hot state: it is gone with its process, and is filled again.

There is a dict for each key group. Batches come in key group order, and a group's dict stays in
the processor's cache while its keys are handled; a scan sorts the keys of the groups it visits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from operator import is_not, le
from pathlib import Path

from headrace.errors import ClosedError, InvalidInputError
from headrace.state.backend import Backend, Changes, Position

_GROUP_BYTES = 2


class GroupedEntries:
    """Keys and values, found by full key."""

    def __init__(self) -> None:
        self.bytes = 0
        self._groups: dict[bytes, dict[bytes, bytes]] = {}
        self._sorted: dict[bytes, list[bytes]] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, in order; sorted keys are found quicker."""
        groups = self._groups
        if not _is_sorted(keys):
            return [groups.get(key[:_GROUP_BYTES], {}).get(key) for key in keys]
        found: list[bytes | None] = []
        for group, begin, end in _runs(keys):
            entries = groups.get(group)
            if entries is None:
                found += repeat(None, end - begin)
            else:
                found += map(entries.get, keys[begin:end])
        return found

    def apply(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set and delete; no key is there twice."""
        if not _is_sorted(keys):
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys, values = [keys[at] for at in order], [values[at] for at in order]
        for group, begin, end in _runs(keys):
            self._apply_group(group, keys[begin:end], values[begin:end])

    def _apply_group(
        self, group: bytes, keys: Sequence[bytes], values: Sequence[bytes | None]
    ) -> None:
        entries = self._groups.setdefault(group, {})
        before = list(map(entries.get, keys))
        known = compress(keys, map(is_not, before, repeat(None)))
        self.bytes -= sum(map(len, known)) + sum(map(len, filter(None, before)))
        count = len(entries)
        if None in values:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
                    self.bytes += len(key) + len(value)
            self._sorted.pop(group, None)
            return
        entries.update(zip(keys, values, strict=True))  # type: ignore[arg-type]
        self.bytes += sum(map(len, keys)) + sum(map(len, values))  # type: ignore[arg-type]
        if len(entries) != count:
            self._sorted.pop(group, None)

    def scan(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``low <= key < high`` in key order, as they are at the call."""
        found: list[tuple[bytes, bytes]] = []
        for group in sorted(self._groups):
            if group < low[:_GROUP_BYTES] or (high is not None and group >= high):
                continue
            entries = self._groups[group]
            keys = self._sorted.get(group)
            if keys is None:
                keys = self._sorted[group] = sorted(entries)
            end = len(keys) if high is None else bisect_left(keys, high)
            wanted = keys[bisect_left(keys, low) : end]
            found += zip(wanted, map(entries.__getitem__, wanted), strict=True)
        return iter(found)

    def clear(self) -> None:
        """Forget everything."""
        self._groups.clear()
        self._sorted.clear()
        self.bytes = 0


def _is_sorted(keys: Sequence[bytes]) -> bool:
    return all(map(le, keys, islice(keys, 1, None)))


def _runs(keys: Sequence[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Yield each group of sorted keys with its first place and the one after its last."""
    begin = 0
    while begin < len(keys):
        group = keys[begin][:_GROUP_BYTES]
        end = begin + 1
        if len(group) == _GROUP_BYTES:
            following = int.from_bytes(group, "big") + 1
            is_last = following == 1 << 8 * _GROUP_BYTES
            bound = following.to_bytes(3, "big")[1:]
            end = len(keys) if is_last else bisect_left(keys, bound, end)
        yield group, begin, end
        begin = end


class MemoryBackend(Backend):
    """Entries in dicts, by store and key group.

    Args:
        directory: of the task; not used, taken so that all backends open alike.
        stores: names of the stores.
        scope: what the data belongs to; not used, for nothing outlives the process.
        by_prefix: stores that are scanned by prefix; the same here as any other.
    """

    def __init__(
        self,
        directory: Path | None,
        stores: Sequence[str],
        scope: str = "",
        *,
        by_prefix: Collection[str] = (),
    ) -> None:
        self._entries = {name: GroupedEntries() for name in stores}
        self._position: Position | None = None
        self._closed = False

    @property
    def position(self) -> Position | None:
        """The committed state held."""
        return self._position

    def apply(self, changes: Mapping[str, Changes], position: Position | None) -> None:
        """Update the dicts; nothing here can fail half-way on valid input."""
        self._check_open()
        unknown = changes.keys() - self._entries.keys()
        if unknown:
            raise InvalidInputError(f"no stores {sorted(unknown)}; known: {sorted(self._entries)}")
        for store, (keys, values) in changes.items():
            self._entries[store].apply(keys, values)
        self._position = position

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        return self._of(store).get_many(keys)

    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries in key order, as they were at the call."""
        return self._of(store).scan(low, high)

    def clear(self) -> None:
        """Forget everything."""
        self._check_open()
        self._forget()

    def _forget(self) -> None:
        for entries in self._entries.values():
            entries.clear()
        self._position = None

    def store_bytes(self) -> dict[str, int]:
        """Return the bytes of all keys and values of each store."""
        return {store: entries.bytes for store, entries in self._entries.items()}

    def flush(self, *, wait: bool = True) -> None:
        """Do nothing: memory survives no crash."""

    def close(self) -> None:
        """Forget everything."""
        self._forget()
        self._closed = True

    def _of(self, store: str) -> GroupedEntries:
        self._check_open()
        try:
            return self._entries[store]
        except KeyError:
            raise InvalidInputError(f"no store {store!r}; known: {sorted(self._entries)}") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store was closed; open the task's state again")
