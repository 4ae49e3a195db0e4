"""A backend in a dict: for small hot state. It dies with its process, and is filled again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from headrace.errors import ClosedError, InvalidInputError
from headrace.state.backend import Backend, Changes, Columns
from headrace.state.grouped import GroupedEntries
from headrace.state.position import Position


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

    def load(self, store: str, batches: Iterable[Columns]) -> None:
        """Fill a dict that is empty."""
        entries = self._of(store)
        for keys, values in batches:
            entries.apply(keys.to_pylist(), values.to_pylist())
        self._position = None

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
        """Forget everything, for good."""
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
