"""Timers of a task, kept in its state: they survive crashes and move with their key group.

An entry's key is (kind, due, name, key...), so the next one to fire is the first of its kind
in its group. Event timers fire when the watermark reaches them, wall timers when the
epoch's clock does; both in order of time at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.records.keys import decode_key, encode_key, encode_value
from headrace.state.store import KeyValueStore

EVENT, WALL = 0, 1


@dataclass(frozen=True)
class Timer:
    """A timer that fires.

    ``at`` is when it was due, ms; ``key`` the key of the message that set it (a tuple when
    there are several columns); ``name`` what the user called it.
    """

    at: int
    name: str
    key: Any
    group: int
    wall: bool


class Timers:
    """The timers of one operator of one task.

    Args:
        store: where they are kept.
        groups: the task's key groups, first and after last.
    """

    def __init__(self, store: KeyValueStore, groups: tuple[int, int]) -> None:
        self._store, self._groups = store, groups
        self._next: list[int | None] | None = None

    def set(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Set a timer; setting the same one twice is the same as once."""
        kind = WALL if wall else EVENT
        following = self._due()
        self._store.put(self._key(group, kind, at, name, key), b"")
        now = following[kind]
        following[kind] = at if now is None else min(now, at)

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back; nothing happens when there is none."""
        self._store.delete(self._key(group, WALL if wall else EVENT, at, name, key))

    @staticmethod
    def _key(group: int, kind: int, at: int, name: str, key: tuple[Any, ...]) -> bytes:
        return group.to_bytes(2, "big") + encode_key((kind, at, name, *key))

    def due(self, upto: int, *, wall: bool) -> list[Timer]:
        """Take the timers due at or before ``upto``, in order of time, then key."""
        kind = WALL if wall else EVENT
        first = self._due()[kind]
        if first is None or first > upto:
            return []
        found: list[tuple[bytes, Timer]] = []
        for group in range(*self._groups):
            head = group.to_bytes(2, "big") + encode_value(kind)
            for key, _ in self._store.scan(head, head + encode_value(upto + 1)):
                _, at, name, *rest = decode_key(key[2:])
                shown = rest[0] if len(rest) == 1 else tuple(rest)
                found.append((key, Timer(at, name, shown, group, wall)))
        for key, _ in found:
            self._store.delete(key)
        self._next = None
        found.sort(key=lambda pair: pair[0][2:])
        return [timer for _, timer in found]

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return the earliest event timer and the earliest wall timer."""
        event, wall = self._due()
        return event, wall

    def _due(self) -> list[int | None]:
        if self._next is None:
            self._next = [min(self._firsts(kind), default=None) for kind in (EVENT, WALL)]
        return self._next

    def _firsts(self, kind: int) -> Iterator[int]:
        for group in range(*self._groups):
            head = group.to_bytes(2, "big") + encode_value(kind)
            for key, _ in self._store.scan(head, head + b"\xff"):
                yield decode_key(key[2:])[1]
                break
