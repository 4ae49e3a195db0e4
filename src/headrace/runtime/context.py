"""``Context``: what a processor may do while it handles a message or a timer, and what is behind.

``ProcessorCall`` holds what is at hand while a processor runs, shared by its node and its context.
``CallRollback`` takes back what one call has changed, so that it counts whole or not at all.
``RemoteStores`` opens the remote stores of a task.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.clock import Clock
from headrace.durations import moment_ms
from headrace.errors import InvalidInputError
from headrace.graph.operators import StoreSpec
from headrace.graph.side_outputs import To
from headrace.plan.stages import CallLimits
from headrace.runtime.orders import NO_WATERMARK
from headrace.runtime.timers import Timer, Timers
from headrace.runtime.user_calls import NO_LIMITS, SideOutputRouter, too_many_error
from headrace.state.broadcast import BroadcastStore
from headrace.state.object_store import KeySnapshot, ObjectStore
from headrace.state.remote_store import RemoteStore, Stamp


class RollbackStore:
    """A local store whose changes since the last call can be taken back."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._held: list[KeySnapshot] = []

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


class BufferedTimers:
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


class CallRollback:
    """The stores and timers of a processor as it sees them while its calls can be taken back.

    Args:
        stores: local ones, by name; the graph admits no others here.
        timers: of the operator, if it has any.
    """

    def __init__(
        self, stores: Mapping[str, ObjectStore | RemoteStore], timers: Timers | None
    ) -> None:
        self.stores = {
            name: RollbackStore(store)
            for name, store in stores.items()
            if isinstance(store, ObjectStore)
        }
        self.timers = None if timers is None else BufferedTimers(timers)
        self._parts: list[RollbackStore | BufferedTimers] = list(self.stores.values())
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


REMOTE = "remote"


class RemoteStores:
    """Opened when an operator is built, kept with it between epochs, for one thread.

    They are no part of the task's state: nothing of them is logged, caught up or moved.

    Args:
        job: its name, which their keys begin with.
        clock: for pauses, deadlines and ages.
    """

    def __init__(self, job: str, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self.opened: list[RemoteStore] = []

    def open(self, spec: StoreSpec) -> RemoteStore:
        """Return a new store; it connects when it is first asked."""
        store = RemoteStore(self._job, spec, self._clock)
        self.opened.append(store)
        return store

    def begin(self, stamp: Stamp | None) -> None:
        """Turn to an epoch; what an attempt before it left unsent is forgotten."""
        for store in self.opened:
            store.begin(stamp)

    def send(self) -> int:
        """Send the changes of the epoch: the last thing before the slot answers.

        Returns:
            The number of keys sent.

        Raises:
            UnavailableError: a server did not take all of them in time.
            InvalidInputError: a value cannot be kept; then nothing was sent.
        """
        for store in self.opened:
            store.seal()
        return sum(map(RemoteStore.send, self.opened))

    def counts(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        total: Counter[str] = Counter()
        for store in self.opened:
            total.update(store.take_counts())
        return dict(total)

    @property
    def overlay_bytes(self) -> int:
        """About how much memory the changes take."""
        return sum([store.overlay_bytes for store in self.opened])

    def close(self) -> None:
        """Let the connections go."""
        for store in self.opened:
            store.close()


NO_ROW_LIMIT = 1 << 62
NO_OUTPUTS = SideOutputRouter("", None)


class RemoteRequest(NamedTuple):
    """A value that was asked for, and what is to be called with it."""

    store: RemoteStore
    key: Any
    then: Callable[[Any], object]
    default: Any
    row: int
    group: int


class TimerOutput(NamedTuple):
    """Which of the emitted messages are of a timer: from ``begin`` to before ``end``."""

    begin: int
    end: int
    at: int
    group: int


class ProcessorCall:
    """What is at hand while a processor runs: set by its node, shown by its ``Context``.

    Args:
        task: number of the task.
        stores: by the name that the user declared, remote ones included.
        timers: of the operator; ``None`` where there is no key.
        tables: broadcast stores, by name.
        limits: of each call.
        undo: takes back what a call changed that fails, where only its message is lost.
        router: where messages go.
    """

    def __init__(
        self,
        task: int,
        stores: Mapping[str, ObjectStore | RemoteStore],
        timers: Timers | None,
        tables: Mapping[str, BroadcastStore] | None = None,
        limits: CallLimits = NO_LIMITS,
        undo: CallRollback | None = None,
        router: SideOutputRouter = NO_OUTPUTS,
    ) -> None:
        self.task, self.stores, self.timers = task, dict(stores), timers
        self.limits, self.undo, self.router = limits, undo, router
        self.ceiling = NO_ROW_LIMIT if limits.rows is None else limits.rows
        self.tables = dict(tables or {})
        self.later: list[RemoteRequest] = []
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
        self.stamps: list[TimerOutput] = []
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
            self.stamps.append(TimerOutput(begin, end, max(timer.at, timer.passed), timer.group))

    def count(self, operator: str) -> None:
        """See whether one message or timer has made too many; ``ceiling`` says when to look."""
        limit = self.limits.rows
        assert limit is not None
        own = len(self.rows) - max(self.first, bisect_left(self.rows, self.row))
        if own > limit:
            raise too_many_error(operator, limit)
        self.ceiling = len(self.rows) + limit - own

    def drop_since(self, emitted: int) -> None:
        """Forget what was emitted since there were so many."""
        del self.messages[emitted:], self.rows[emitted:]

    def take(self) -> tuple[list[Any], list[int]]:
        """Take what was emitted, and the row each message came from."""
        taken = self.messages, self.rows
        self.messages, self.rows, self.first = [], [], 0
        self.ceiling = NO_ROW_LIMIT if self.limits.rows is None else self.limits.rows
        return taken

    def take_stamps(self) -> list[TimerOutput]:
        """Take which of what was emitted is of timers."""
        stamps, self.stamps = self.stamps, []
        return stamps


NO_GROUP = -1


class Context:
    """The interface of a processor while it handles a message or a timer.

    One instance for each task, valid only during the call. Store entries and timers belong to the
    key group of the current message: the same store key under two partition keys of different
    groups names two entries.
    """

    def __init__(self, current: ProcessorCall) -> None:
        stores = current.stores if current.undo is None else current.undo.stores
        self._current, self._stores = current, {**stores, **current.tables}

    @property
    def task(self) -> int:
        """Number of the task."""
        return self._current.task

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._current.epoch

    @property
    def wall_ms(self) -> int:
        """The epoch's wall clock, ms; the same when Spark runs a slot again."""
        return self._current.wall_ms

    @property
    def watermark(self) -> int:
        """The watermark of the operator's input at the end of the last epoch, ms."""
        return self._current.watermark

    @property
    def key(self) -> Any:
        """The partition key of the message or timer: a value, or a tuple of several."""
        current = self._current
        if current.timer is not None:
            return current.timer.key
        return current.keys[current.row] if len(current.keys) else None

    @property
    def input(self) -> str | None:
        """The name of the message's stream, if there are several."""
        current = self._current
        return current.inputs[current.row] if current.timer is None and current.inputs else None

    @property
    def time(self) -> int | None:
        """The event time of the message, ms, or the due time of the timer."""
        current = self._current
        if current.timer is not None:
            return current.timer.at
        return current.times[current.row] if current.times is not None else None

    def store(self, name: str) -> ObjectStore:
        """Return a store that the operator declared.

        A store of kind ``remote`` has the same ``get``, ``put``, ``delete`` and ``in``, with other
        guarantees: see the guide to remote stores. A broadcast store has ``get``, ``in`` and
        ``scan``, over the whole table, whatever the message's key.

        Raises:
            InvalidInputError: no such store; names those declared.
        """
        try:  # not through _found: asked for by every message
            return self._stores[name]  # type: ignore[return-value]
        except KeyError:
            raise self._unknown(name) from None

    def get_later(
        self, name: str, key: Any, then: Callable[[Any], object], default: Any = None
    ) -> None:
        """Request a value from a remote store, and call ``then(value)`` when it is there.

        Many requests of many messages can be open at the same time. The calls come in the order of
        the requests, before the epoch ends, but after ``process`` has seen later messages. Each is
        made as if its message were the current one: ``emit``, ``key`` and timers are those of its
        message.

        Args:
            name: of a store of kind ``remote``.
            key: of the value.
            then: called with the value; can make another request.
            default: used if there is no value.

        Raises:
            InvalidInputError: no such store, or one that is local.
        """
        current, store = self._current, self._found(name)
        if not isinstance(store, RemoteStore):
            raise InvalidInputError(f"store {name!r} is local: use get, which does not wait")
        current.later.append(RemoteRequest(store, key, then, default, current.row, current.group))

    def _found(self, name: str) -> ObjectStore | RollbackStore | RemoteStore | BroadcastStore:
        try:
            return self._stores[name]
        except KeyError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> InvalidInputError:
        return InvalidInputError(
            f"no store {name!r}; declared: {sorted(self._stores)}; add it to process(stores=...)"
        )

    def emit(self, message: Any, *, to: str | None = None) -> None:
        """Emit a message; its event time is that of the current message or timer.

        If a timer's time is behind the watermark, the message has the time of the watermark, so
        that no closed window opens again.

        Args:
            message: with the columns of ``returns=``, or of the side output.
            to: a side output that the operator declares with ``sides=``.

        Raises:
            FunctionResultError: no such side output; names those declared.
        """
        current = self._current
        if to is not None:
            if to not in current.router.sides:
                raise current.router.unknown(to)
            message = To(to, message)
        current.messages.append(message)
        current.rows.append(current.row)
        if len(current.rows) > current.ceiling:
            current.count(current.operator)

    def set_timer(self, at: int | datetime.datetime, name: str = "", *, wall: bool = False) -> None:
        """Set a timer: call ``on_timer`` when the watermark (or the wall clock) reaches ``at``.

        Args:
            at: milliseconds since the epoch, or an aware time.
            name: distinguishes timers of the same key.
            wall: use the wall clock instead of event time.
        """
        current, moment, key = self._current, _moment(at), self._key_values()
        self._timers().set(current.group, moment, name, key, wall=wall, passed=current.now)

    def cancel_timer(
        self, at: int | datetime.datetime, name: str = "", *, wall: bool = False
    ) -> None:
        """Cancel the timer with the same key, time and name."""
        moment, key = _moment(at), self._key_values()
        self._timers().cancel(self._current.group, moment, name, key, wall=wall)

    def _timers(self) -> Timers | BufferedTimers:
        current = self._current
        timers = current.timers if current.undo is None else current.undo.timers
        if timers is None:
            raise InvalidInputError(
                "timers need a key: put partition_by before process, and keep its columns"
            )
        if not self._current.has_on_timer:
            raise InvalidInputError("timers need a method on_timer(timer, context) to fire in")
        if self._current.group == NO_GROUP:
            raise InvalidInputError("timers belong to a message: open() has none to set them for")
        return timers

    def _key_values(self) -> tuple[Any, ...]:
        key = self.key
        return key if isinstance(key, tuple) else (key,)


def _moment(at: int | datetime.datetime) -> int:
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise InvalidInputError(f"timer at {at} has no time zone; use an aware time or ms")
        return moment_ms(at)
    return int(at)
