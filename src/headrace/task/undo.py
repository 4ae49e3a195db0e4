"""Takes back what one call of a user's processor changed, so that it counts whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from headrace.state.objects import Held, ObjectStore
from headrace.state.remote import RemoteStore
from headrace.task.timers import Timers


class UndoStore:
    """A local store whose changes since the last call can be taken back."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._held: list[Held] = []

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; one that can be changed in place is kept as it is."""
        value = self._store.get(key, default)
        self._held.append(self._store.hold(key))
        return value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._held.append(self._store.hold(key))
        self._store.put(key, value)

    def delete(self, key: Any) -> None:
        """Delete a key."""
        self._held.append(self._store.hold(key))
        self._store.delete(key)

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a value."""
        return key in self._store

    def scan(self, *bounds: Any, **named: Any) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values; those that can be changed in place are kept as they are."""
        for key, value in self._store.scan(*bounds, **named):
            self._held.append(self._store.hold(key))
            yield key, value

    def keep(self) -> None:
        """Let the changes be."""
        self._held.clear()

    def take_back(self) -> None:
        """Bring back what was there before, the latest change first."""
        while self._held:
            self._store.restore(self._held.pop())


class LaterTimers:
    """Timers that are set and cancelled once the call has ended well."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: list[Callable[[], None]] = []

    def set(
        self,
        group: int,
        at: int,
        name: str,
        key: tuple[Any, ...],
        *,
        wall: bool,
        passed: int,
    ) -> None:
        """Set a timer, later."""
        act = partial(self._timers.set, group, at, name, key, wall=wall, passed=passed)
        self._waiting.append(act)

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back, later."""
        self._waiting.append(partial(self._timers.cancel, group, at, name, key, wall=wall))

    def keep(self) -> None:
        """Do what was asked, in order."""
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def take_back(self) -> None:
        """Forget what was asked."""
        self._waiting.clear()


class Undo:
    """The stores and timers of a processor as it sees them while its calls can be taken back.

    Args:
        stores: local ones, by name; the graph admits no others here.
        timers: of the operator, if it has any.
    """

    def __init__(
        self, stores: Mapping[str, ObjectStore | RemoteStore], timers: Timers | None
    ) -> None:
        self.stores = {
            name: UndoStore(store)
            for name, store in stores.items()
            if isinstance(store, ObjectStore)
        }
        self.timers = None if timers is None else LaterTimers(timers)
        self._parts: list[UndoStore | LaterTimers] = list(self.stores.values())
        if self.timers is not None:
            self._parts.append(self.timers)

    def keep(self) -> None:
        """Let the call count."""
        for part in self._parts:
            part.keep()

    def take_back(self) -> None:
        """Let the call not have happened."""
        for part in self._parts:
            part.take_back()
