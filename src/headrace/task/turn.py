"""What is at hand while a processor of the user's runs, shared by its node and its context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.plan.stages import CallLimits
from headrace.state.broadcast.lookup import BroadcastStore
from headrace.state.objects import ObjectStore
from headrace.state.remote import RemoteStore
from headrace.task.messages.mapped import NO_LIMITS, too_many
from headrace.task.orders import NO_WATERMARK
from headrace.task.parcels import Parcels
from headrace.task.timers import Timer, Timers
from headrace.task.undo import Undo

NO_CEILING = 1 << 62
NOTHING = Parcels("", None)


class Later(NamedTuple):
    """A value that was asked for, and what is to be called with it."""

    store: RemoteStore
    key: Any
    then: Callable[[Any], object]
    default: Any
    row: int
    group: int


class Stamp(NamedTuple):
    """Which of the emitted messages are of a timer: from ``begin`` to before ``end``."""

    begin: int
    end: int
    at: int
    group: int


class Turn:
    """What is at hand while a processor runs: set by its node, shown by its ``Context``.

    Args:
        task: number of the task.
        stores: by the name that the user declared, remote ones included.
        timers: of the operator; ``None`` where there is no key.
        tables: broadcast stores, by name.
        limits: of each call.
        undo: takes back what a call changed that fails, where only its message is lost.
        parcels: where messages go.
    """

    def __init__(
        self,
        task: int,
        stores: Mapping[str, ObjectStore | RemoteStore],
        timers: Timers | None,
        tables: Mapping[str, BroadcastStore] | None = None,
        limits: CallLimits = NO_LIMITS,
        undo: Undo | None = None,
        parcels: Parcels = NOTHING,
    ) -> None:
        self.task, self.stores, self.timers = task, dict(stores), timers
        self.limits, self.undo, self.parcels = limits, undo, parcels
        self.ceiling = NO_CEILING if limits.rows is None else limits.rows
        self.tables = dict(tables or {})
        self.later: list[Later] = []
        self.epoch = 0
        self.wall_ms = 0
        self.watermark = NO_WATERMARK
        self.messages: list[Any] = []
        self.rows: list[int] = []
        self.row = 0
        self.group = 0
        self.keys: Sequence[Any] = ()
        self.times: Sequence[int] | None = None
        self.inputs: Sequence[str] = ()
        self.marks: Sequence[int] | None = None
        self.timer: Timer | None = None
        self.stamps: list[Stamp] = []
        self.first = 0
        self.has_on_timer = False
        self.operator = ""

    def enter(self, group: int) -> None:
        """Make a key group the current one, for stores and timers."""
        self.group = group
        for store in self.stores.values():
            store.enter(group)

    @property
    def now(self) -> int:
        """The event time that has passed for the key at hand: by its row, or by its timer."""
        if self.timer is not None:
            return self.timer.now
        return NO_WATERMARK if self.marks is None else self.marks[self.row]

    def stamp(self, begin: int, timer: Timer) -> None:
        """Note that what was emitted since there was so much is of a timer that has fired."""
        end = len(self.rows)
        if end > begin:
            self.stamps.append(Stamp(begin, end, max(timer.at, timer.passed), timer.group))

    def count(self, operator: str) -> None:
        """See whether one message or timer has made too many; ``ceiling`` says when to look."""
        limit = self.limits.rows
        assert limit is not None
        own = len(self.rows) - max(self.first, bisect_left(self.rows, self.row))
        if own > limit:
            raise too_many(operator, limit)
        self.ceiling = len(self.rows) + limit - own

    def drop_since(self, emitted: int) -> None:
        """Forget what was emitted since there were so many."""
        del self.messages[emitted:], self.rows[emitted:]

    def take(self) -> tuple[list[Any], list[int]]:
        """Take what was emitted, and the row each message came from."""
        taken = self.messages, self.rows
        self.messages, self.rows, self.first = [], [], 0
        self.ceiling = NO_CEILING if self.limits.rows is None else self.limits.rows
        return taken

    def take_stamps(self) -> list[Stamp]:
        """Take which of what was emitted is of timers."""
        stamps, self.stamps = self.stamps, []
        return stamps
