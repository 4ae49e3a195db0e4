"""A backend in a dict: for small hot state. It dies with its process, and is filled again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import ClosedError, InvalidInputError
from headrace.state.backend import Backend, Changes, Columns
from headrace.state.bulk import content_bytes
from headrace.state.position import Position


class MemoryBackend(Backend):
    """Entries in one dict a store; sorted keys are made when a scan asks for them.

    Args:
        directory: of the task; not used, taken so that all backends open alike.
        stores: names of the stores.
        scope: what the data belongs to; not used, for nothing outlives the process.
    """

    def __init__(self, directory: Path | None, stores: Sequence[str], scope: str = "") -> None:
        self._entries: dict[str, dict[bytes, bytes]] = {name: {} for name in stores}
        self._sorted: dict[str, list[bytes]] = {}
        self._position: Position | None = None
        self._bytes = 0
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
            self._apply_store(store, keys, values)
        self._position = position

    def _apply_store(
        self, store: str, keys: Sequence[bytes], values: Sequence[bytes | None]
    ) -> None:
        entries = self._of(store)
        count = len(entries)
        for key, old in zip(keys, map(entries.get, keys), strict=True):
            self._bytes -= len(key) + len(old) if old is not None else 0
        if None in values:
            self._apply_one_by_one(entries, keys, values)
        else:
            entries.update(zip(keys, values, strict=True))  # type: ignore[arg-type]
            self._bytes += sum(map(len, keys)) + sum(map(len, values))  # type: ignore[arg-type]
        if len(entries) != count or None in values:
            self._sorted.pop(store, None)

    def _apply_one_by_one(
        self,
        entries: dict[bytes, bytes],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
    ) -> None:
        for key, value in zip(keys, values, strict=True):
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
                self._bytes += len(key) + len(value)

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Fill a dict that is empty."""
        entries = self._of(store)
        for keys, values in batches:
            entries.update(zip(keys.to_pylist(), values.to_pylist(), strict=True))
            self._bytes += content_bytes(keys) + content_bytes(values)
        self._sorted.pop(store, None)
        self._position = None

    def get_many(self, store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        return list(map(self._of(store).get, keys))

    def scan(
        self, store: str, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries in key order, as they were at the call."""
        entries = self._of(store)
        keys = self._sorted.get(store)
        if keys is None:
            keys = self._sorted[store] = sorted(entries)
        end = len(keys) if high is None else bisect_left(keys, high)
        wanted = keys[bisect_left(keys, low) : end]
        return iter(list(zip(wanted, map(entries.__getitem__, wanted), strict=True)))

    def clear(self) -> None:
        """Forget everything."""
        self._check_open()
        self._forget()

    def _forget(self) -> None:
        for entries in self._entries.values():
            entries.clear()
        self._sorted.clear()
        self._position = None
        self._bytes = 0

    def live_bytes(self) -> int:
        """Return the bytes of all keys and values."""
        return self._bytes

    def flush(self, *, wait: bool = True) -> None:
        """Do nothing: memory survives no crash."""

    def close(self) -> None:
        """Forget everything, for good."""
        self._forget()
        self._closed = True

    def _of(self, store: str) -> dict[bytes, bytes]:
        self._check_open()
        try:
            return self._entries[store]
        except KeyError:
            raise InvalidInputError(f"no store {store!r}; known: {sorted(self._entries)}") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the store was closed; open the task's state again")
