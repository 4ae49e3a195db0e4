"""Timers of a task, kept in its state: they survive crashes and move with their key group.

An entry's key is (kind, due, name, key...), so the next one to fire is the first of its kind
in its group; its value is the event time that had passed when it was set, where it was due by
then. Wall timers fire at the end of an epoch whose clock has reached them. Event timers fire
when the watermark has: those of a key before the first row of it that is past them, the others
at the end of the epoch; all in order of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from headrace.records.keys import decode_key, encode_key, encode_value
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK
from headrace.state.store import KeyValueStore

EVENT, WALL = 0, 1
NEVER = END_WATERMARK + 1


@dataclass(frozen=True)
class Timer:
    """A timer that has fired.

    ``at`` is its due time, ms; ``key`` the key of the message that set it (a tuple for several
    columns); ``name`` its name. ``passed`` is the event time that had been reached when it was
    set.
    """

    at: int
    name: str
    key: Any
    group: int
    wall: bool
    passed: int = field(default=NO_WATERMARK, compare=False, repr=False)

    @property
    def now(self) -> int:
        """The event time at which it acts: its due time, or when it was set if later."""
        return NO_WATERMARK if self.wall else max(self.at, self.passed)


@dataclass
class _Firing:
    """The timers that are being fired: those still to come, first of all the next one."""

    kind: int
    upto: int
    takes_new: bool
    at: tuple[bytes, bytes] = (b"", b"")
    queue: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, full: bytes, value: bytes) -> None:
        entry = _entry(full)
        if full in self.waiting:
            self.waiting[full] = value
        elif entry > self.at:
            self.waiting[full] = value
            heappush(self.queue, entry)


@dataclass
class _Soon:
    """The event timers that are due by the end of the epoch, by group and key."""

    upto: int
    queues: dict[bytes, list[tuple[int, bytes]]] = field(default_factory=dict)
    waiting: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, full: bytes, value: bytes, at: int, owner: bytes) -> None:
        if full not in self.waiting:
            heappush(self.queues.setdefault(owner, []), (at, full))
        self.waiting[full] = value


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
        self._soon: _Soon | None = None
        self._expected = NO_WATERMARK
        self.first = NEVER

    def expect(self, watermark: int) -> None:
        """Begin an epoch at whose end the watermark will be here: timers up to it may fire."""
        self._expected, self._soon = watermark, None
        first = self._due()[EVENT]
        self.first = NEVER if first is None else first

    def set(
        self,
        group: int,
        at: int,
        name: str,
        key: tuple[Any, ...],
        *,
        wall: bool,
        passed: int = NO_WATERMARK,
    ) -> None:
        """Set a timer; setting the same one twice is the same as once.

        Args:
            group: key group of the key.
            at: when it is due, ms.
            name: distinguishes timers of the same key.
            key: its values.
            wall: by the wall clock.
            passed: the event time that has passed for the key.
        """
        kind = WALL if wall else EVENT
        full = self._key(group, kind, at, name, key)
        following = self._due()
        value = b"" if wall or passed <= at else encode_value(passed)
        self._store.put(full, value)
        now = following[kind]
        following[kind] = at if now is None else min(now, at)
        firing, soon = self._firing, self._soon
        if firing is not None and firing.takes_new and firing.kind == kind and at <= firing.upto:
            firing.add(full, value)
        if wall:
            return
        self.first = min(self.first, at)
        if soon is not None and at <= soon.upto:
            soon.add(full, value, at, full[:2] + encode_key(key))

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back; nothing happens when there is none."""
        full = self._key(group, WALL if wall else EVENT, at, name, key)
        self._store.delete(full)
        for held in (self._firing, self._soon):
            if held is not None:
                held.waiting.pop(full, None)

    @staticmethod
    def _key(group: int, kind: int, at: int, name: str, key: tuple[Any, ...]) -> bytes:
        return group.to_bytes(2, "big") + encode_key((kind, at, name, *key))

    def before(self, group: int, key: bytes, upto: int) -> Iterator[Timer]:
        """Take the event timers of one key due at or before ``upto``, in order, before a row.

        None of them is past the watermark that the epoch ends with. One that is cancelled before
        its turn does not fire; one that is set meanwhile takes its place in the order, or waits
        for the next row where that has passed.

        Args:
            group: the key's group.
            key: its canonical encoding.
            upto: what has passed in the row's own partition, ms.
        """
        soon = self._soon
        if soon is None:
            soon = self._soon = self._found_soon()
        owner = group.to_bytes(2, "big") + key
        queue = soon.queues.get(owner)
        if queue is None:
            return
        at, passed_over = (NO_WATERMARK, b""), []
        while queue and queue[0][0] <= upto:
            entry = heappop(queue)
            full = entry[1]
            if full not in soon.waiting:
                continue
            if entry <= at:
                passed_over.append(entry)
                continue
            at = entry
            value = soon.waiting.pop(full)
            self._store.delete(full)
            yield _timer(full, value)
        for entry in passed_over:
            heappush(queue, entry)
        if not queue:
            del soon.queues[owner]
            if not soon.queues:
                self.first = soon.upto + 1

    def _found_soon(self) -> _Soon:
        upto = self._expected
        soon = _Soon(upto)
        if self.first <= upto:
            for group in range(*self._groups):
                for full, value in self._scan(group, EVENT, upto):
                    _, at, name, *_ = decode_key(full[2:])
                    head = len(self._key(group, EVENT, at, name, ()))
                    soon.add(full, value, at, full[:2] + full[head:])
        return soon

    def _scan(self, group: int, kind: int, upto: int) -> Iterator[tuple[bytes, bytes]]:
        head = group.to_bytes(2, "big") + encode_value(kind)
        return self._store.scan(head, head + encode_value(upto + 1))

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
                firing.waiting.update(self._scan(group, kind, upto))
            firing.queue = [_entry(full) for full in firing.waiting]
            heapify(firing.queue)
            while firing.queue:
                rest, head = firing.at = heappop(firing.queue)
                full = head + rest
                value = firing.waiting.pop(full, None)
                if value is not None:
                    self._store.delete(full)
                    yield _timer(full, value)
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


def _timer(full: bytes, value: bytes) -> Timer:
    kind, at, name, *key = decode_key(full[2:])
    shown = key[0] if len(key) == 1 else tuple(key)
    passed = decode_key(value)[0] if value else NO_WATERMARK
    return Timer(at, name, shown, int.from_bytes(full[:2], "big"), kind == WALL, passed)
