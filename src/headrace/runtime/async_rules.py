"""When asynchronous calls of one operator of one task begin, end and take effect: pure rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple

from headrace.graph.operators import IN, KEY

MOST_AHEAD = 100_000
"""How far the call that begins may be ahead of the first that has not taken effect."""

LOW_WATER = 1024
"""With fewer messages that could begin, more are made."""


class CallEnd(Enum):
    """What the end of a call is: it counts, or it comes too late."""

    TAKEN = "taken"
    DOUBLE = "double"
    LATE = "late"
    STRAY = "stray"


class _CallState(Enum):
    OPEN = 1
    ENDED = 2
    OVERDUE = 3
    LEFT = 4


@dataclass
class OpenCall:
    """One call that has begun; outlives what began it.

    ``number`` is that of its message in the task.
    """

    number: int
    _at: _CallState = _CallState.OPEN

    def end(self) -> CallEnd:
        """Take an end, and say what it is: the first of an open call is taken."""
        match self._at:
            case _CallState.OPEN:
                self._at = _CallState.ENDED
                return CallEnd.TAKEN
            case _CallState.ENDED:
                return CallEnd.DOUBLE
            case _CallState.OVERDUE:
                return CallEnd.LATE
        return CallEnd.STRAY

    def expire(self) -> bool:
        """End an open call since its time is over; says whether it was open."""
        is_open = self._at is _CallState.OPEN
        if is_open:
            self._at = _CallState.OVERDUE
        return is_open

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self._at = _CallState.LEFT

    @property
    def is_open(self) -> bool:
        """Say whether it has not ended."""
        return self._at is _CallState.OPEN


class BeginCall(NamedTuple):
    """Begin this call."""

    call: OpenCall


class ApplyCall(NamedTuple):
    """Let the call of this message take effect."""

    number: int


class CallScheduler:
    """Of one operator of one task.

    Args:
        most: calls that may be open at a time.
        order: one of ``ORDERS``.
        timeout_s: how long a call may be open; ``None``: forever.
        most_ahead: see ``MOST_AHEAD``.
    """

    def __init__(
        self,
        most: int,
        order: str = IN,
        timeout_s: float | None = None,
        most_ahead: int = MOST_AHEAD,
    ) -> None:
        self._most, self._order, self._timeout_s = most, order, timeout_s
        self._ahead = most_ahead
        self._next = self._low = 0
        self._ready: list[int] = []
        self._keys: dict[Hashable, deque[int]] = {}  # what waits behind a call
        self._key_of: dict[int, Hashable] = {}
        self._ended: set[int] = set()
        self._to_apply: deque[int] = deque()
        self._applied: set[int] = set()
        self._deadlines: deque[tuple[float, OpenCall]] = deque()
        self.open: dict[int, OpenCall] = {}
        self._wants_quiet = False
        self._behind = 0

    def arrive(self, key: Hashable = None) -> int:
        """Take a message; returns its number. Keys count with ``order="key"`` only."""
        number = self._next
        self._next += 1
        if self._order == KEY:
            self._key_of[number] = key
            held = self._keys.get(key)
            if held is not None:
                held.append(number)
                self._behind += 1
                return number
            self._keys[key] = deque()
        heappush(self._ready, number)
        return number

    def end(self, call: OpenCall) -> CallEnd:
        """Take the end of a call, good or bad, and say what it is."""
        found = call.end()
        if found is CallEnd.TAKEN:
            self._close(call)
        return found

    def expire(self, now_s: float) -> list[OpenCall]:
        """End the calls whose time is over, and return them."""
        found = []
        while self._deadlines and (self._deadlines[0][0] <= now_s or self._is_first_ended):
            _, call = self._deadlines.popleft()
            if call.expire():
                self._close(call)
                found.append(call)
        return found

    @property
    def _is_first_ended(self) -> bool:
        return not self._deadlines[0][1].is_open

    def _close(self, call: OpenCall) -> None:
        del self.open[call.number]
        if self._order == IN:
            self._ended.add(call.number)
        else:
            self._to_apply.append(call.number)

    def step(self, now_s: float, *, may_begin: bool = True) -> list[BeginCall | ApplyCall]:
        """Return what is to be done now, in this order; to be called until there is nothing.

        What is returned counts as done.
        """
        actions: list[BeginCall | ApplyCall] = [ApplyCall(number) for number in self._effects()]
        if may_begin and not self._wants_quiet:
            actions += self._begins(now_s)
        return actions

    def _effects(self) -> list[int]:
        found = list(self._to_apply)
        self._to_apply.clear()
        if self._order == IN:
            first = self._low
            while first in self._ended:
                self._ended.remove(first)
                found.append(first)
                first += 1
        for number in found:
            self._has_applied(number)
        return found

    def _has_applied(self, number: int) -> None:
        self._applied.add(number)
        while self._low in self._applied:
            self._applied.remove(self._low)
            self._low += 1
        if self._order != KEY:
            return
        key = self._key_of.pop(number)
        waiting = self._keys[key]
        if waiting:
            heappush(self._ready, waiting.popleft())
            self._behind -= 1
        else:
            del self._keys[key]

    def _begins(self, now_s: float) -> list[BeginCall]:
        found = []
        while self._ready and len(self.open) < self._most:
            if self._ready[0] - self._low >= self._ahead:
                break
            call = OpenCall(heappop(self._ready))
            self.open[call.number] = call
            if self._timeout_s is not None:
                self._deadlines.append((now_s + self._timeout_s, call))
            found.append(BeginCall(call))
        return found

    def want_quiet(self) -> None:
        """Let no call begin until ``resume``."""
        self._wants_quiet = True

    def resume(self) -> None:
        """Let calls begin again."""
        self._wants_quiet = False

    @property
    def is_quiet(self) -> bool:
        """Say whether no call is open."""
        return not self.open

    @property
    def low(self) -> int:
        """The low watermark: the first message whose call has not taken effect."""
        return self._low

    @property
    def waiting(self) -> int:
        """Messages whose calls have not begun."""
        return len(self._ready) + self._behind

    @property
    def is_short(self) -> bool:
        """Say whether more messages are wanted: those behind others of their key may be many."""
        return len(self._ready) < LOW_WATER and self._behind < self._ahead

    @property
    def is_done(self) -> bool:
        """Say whether the calls of all messages have taken effect."""
        return self._low == self._next

    def deadline(self) -> float | None:
        """Return when the time of the next call is over."""
        while self._deadlines and self._is_first_ended:
            self._deadlines.popleft()
        return self._deadlines[0][0] if self._deadlines else None

    def leave(self) -> list[OpenCall]:
        """Give up all open calls, and return them: their ends are strays from now on."""
        left = list(self.open.values())
        for call in left:
            call.leave()
        self.open.clear()
        return left
