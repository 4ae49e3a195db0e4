"""Timers of a task, kept in its state: they survive crashes and move with their key group.

An entry's key is (kind, due, name, key...), so the next one to fire is the first of its kind
in its group. Event timers fire when the watermark reaches them, wall timers when the
epoch's clock does; both in order of time at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
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


@dataclass
class _Firing:
    """The timers that are being fired: those still to come, first of all the next one."""

    kind: int
    upto: int
    takes_new: bool
    at: tuple[bytes, bytes] = (b"", b"")
    queue: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: set[bytes] = field(default_factory=set)

    def add(self, full: bytes) -> None:
        entry = _entry(full)
        if full not in self.waiting and entry > self.at:
            self.waiting.add(full)
            heappush(self.queue, entry)


class Timers:
    """The timers of one operator of one task.

    Args:
        store: where they are kept.
        groups: the task's key groups, first and after last.
    """

    def __init__(self, store: KeyValueStore, groups: tuple[int, int]) -> None:
        self._store, self._groups = store, groups
        self._next: list[int | None] | None = None
        self._firing: _Firing | None = None

    def set(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Set a timer; setting the same one twice is the same as once."""
        kind = WALL if wall else EVENT
        full = self._key(group, kind, at, name, key)
        following = self._due()
        self._store.put(full, b"")
        now = following[kind]
        following[kind] = at if now is None else min(now, at)
        firing = self._firing
        if firing is not None and firing.takes_new and firing.kind == kind and at <= firing.upto:
            firing.add(full)

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back; nothing happens when there is none."""
        full = self._key(group, WALL if wall else EVENT, at, name, key)
        self._store.delete(full)
        if self._firing is not None:
            self._firing.waiting.discard(full)

    @staticmethod
    def _key(group: int, kind: int, at: int, name: str, key: tuple[Any, ...]) -> bytes:
        return group.to_bytes(2, "big") + encode_key((kind, at, name, *key))

    def fire(self, upto: int, *, wall: bool, takes_new: bool = True) -> Iterator[Timer]:
        """Take the timers due at or before ``upto`` one by one, in order of time, then key.

        A timer that is cancelled before its turn does not fire. One that is set meanwhile takes
        its place in the order; if that has passed it waits for the next epoch, so that a timer
        which sets itself again cannot hold up this one.

        Args:
            upto: ms.
            wall: wall timers instead of event timers.
            takes_new: fire timers that are set meanwhile, too.
        """
        kind = WALL if wall else EVENT
        first = self._due()[kind]
        if first is None or first > upto:
            return
        firing = self._firing = _Firing(kind, upto, takes_new)
        try:
            for group in range(*self._groups):
                head = group.to_bytes(2, "big") + encode_value(kind)
                found = [full for full, _ in self._store.scan(head, head + encode_value(upto + 1))]
                firing.waiting.update(found)
                firing.queue += map(_entry, found)
            heapify(firing.queue)
            while firing.queue:
                rest, head = firing.at = heappop(firing.queue)
                full = head + rest
                if full in firing.waiting:
                    firing.waiting.remove(full)
                    self._store.delete(full)
                    yield _timer(full)
        finally:
            self._firing = self._next = None

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


def _entry(full: bytes) -> tuple[bytes, bytes]:
    """Sorts by time, name and key before the key group."""
    return full[2:], full[:2]


def _timer(full: bytes) -> Timer:
    kind, at, name, *key = decode_key(full[2:])
    shown = key[0] if len(key) == 1 else tuple(key)
    return Timer(at, name, shown, int.from_bytes(full[:2], "big"), kind == WALL)
