"""What a call that ends later may do: it sees what is there, and what it does waits for its end."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from headrace.errors import InvalidInputError
from headrace.graph.sides import To
from headrace.records.keys import encode_key
from headrace.state.objects import ObjectStore
from headrace.task.asynchronous.loop import CallLoop
from headrace.task.asynchronous.rules import Call
from headrace.task.context import Context
from headrace.task.messages.mapped import too_many
from headrace.task.turn import Turn

_FIXED = frozenset((int, str, bytes, float, bool, type(None)))
_DELETED: Any = object()
T = TypeVar("T")


class CallOverError(InvalidInputError):
    """A call went on after it had ended: after its result, its time, or its epoch."""


class TimerAct(NamedTuple):
    """A timer that is set, or taken back, once the call has ended."""

    at: int
    name: str
    key: tuple[Any, ...]
    wall: bool
    is_set: bool


class Effects:
    """What a call has asked for so far."""

    __slots__ = ("messages", "timers", "writes")

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.writes: dict[str, dict[bytes, tuple[Any, Any]]] = {}
        self.timers: list[TimerAct] = []

    def set(
        self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool, passed: int = 0
    ) -> None:
        """Set a timer, once the call has ended well."""
        del group, passed  # known then
        self.timers.append(TimerAct(at, name, key, wall, True))

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back, once the call has ended well."""
        del group
        self.timers.append(TimerAct(at, name, key, wall, False))

    def apply(self, turn: Turn, passed: int) -> None:
        """Write to the stores, and set the timers, of the key group that was entered.

        Args:
            turn: of the operator.
            passed: the event time that has passed for the key.
        """
        for name, writes in self.writes.items():
            store = turn.stores[name]
            for key, value in writes.values():
                if value is _DELETED:
                    store.delete(key)
                else:
                    store.put(key, value)
        for act in self.timers:
            timers, group = turn.timers, turn.group
            assert timers is not None
            if act.is_set:
                timers.set(group, act.at, act.name, act.key, wall=act.wall, passed=passed)
            else:
                timers.cancel(group, act.at, act.name, act.key, wall=act.wall)


class Ask:
    """Has things done in the thread of the loop, for a call that may be in another.

    Args:
        loop: of the process.
        call: that asks; once it is over, nothing is done for it any more.
    """

    __slots__ = ("_call", "_loop")

    def __init__(self, loop: CallLoop, call: Call) -> None:
        self._loop, self._call = loop, call

    def here(self, act: Callable[[], T]) -> T:
        """Do it, and return what it gives.

        Raises:
            CallOverError: the call has ended.
        """
        if self._loop.is_here:
            return self._done(act)
        answer: list[Any] = []
        ready = threading.Event()

        def serve() -> None:
            try:
                answer.append((self._done(act), None))
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                answer.append((None, error))
            ready.set()

        self._loop.post(serve)
        while not ready.wait(1.0):
            if not self._call.is_open:
                raise _over()
        found, error = answer[0]
        if error is not None:
            raise error
        return found  # type: ignore[no-any-return]

    def check(self) -> None:
        """Make sure that the call has not ended.

        Raises:
            CallOverError: it has.
        """
        if not self._call.is_open:
            raise _over()

    def _done(self, act: Callable[[], T]) -> T:
        self.check()
        return act()


def _over() -> CallOverError:
    return CallOverError(
        "this call is over, and its context no longer valid: end what it begins before it ends"
    )


class CallStore:
    """A local store as one call sees it: what is committed, and what the call itself wrote."""

    __slots__ = ("_ask", "_group", "_name", "_store", "_writes")

    def __init__(
        self,
        name: str,
        store: ObjectStore,
        group: int,
        writes: dict[bytes, tuple[Any, Any]],
        ask: Ask,
    ) -> None:
        self._name, self._store, self._group = name, store, group
        self._writes, self._ask = writes, ask

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; it is the call's own, as long as it does not put it."""
        return self._ask.here(lambda: self._get(key, default))

    def _get(self, key: Any, default: Any) -> Any:
        if self._writes:
            found = self._writes.get(_code(key))
            if found is not None:
                return default if found[1] is _DELETED else found[1]
        self._store.enter(self._group)
        value = self._store.get(key, default)
        return value if type(value) in _FIXED else copy.deepcopy(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key, once the call has ended well."""
        code = _code(key)
        self._ask.here(lambda: self._writes.__setitem__(code, (key, value)))

    def delete(self, key: Any) -> None:
        """Delete a key, once the call has ended well."""
        self.put(key, _DELETED)

    def __contains__(self, key: object) -> bool:
        """Say whether a key has a value."""
        return self.get(key, _DELETED) is not _DELETED

    def scan(self, *bounds: Any, **named: Any) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values as they are at the call, in the order of the keys."""
        return iter(self._ask.here(lambda: self._scan(*bounds, **named)))

    def _scan(self, *bounds: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Lay the call's own writes over the store for as long as it takes."""
        store = self._store
        store.enter(self._group)
        held = []
        try:
            for key, value in self._writes.values():
                held.append(store.hold(key))
                if value is _DELETED:
                    store.delete(key)
                else:
                    store.put(key, value)
            return copy.deepcopy(list(store.scan(*bounds, **named)))
        finally:
            while held:
                store.restore(held.pop())


def _code(key: Any) -> bytes:
    return encode_key(key if isinstance(key, tuple) else (key,))


class CallContext(Context):
    """What one call may do; usable from any thread until the call ends.

    What it sends, writes and sets takes effect when the call has ended well, all of it at once.
    """

    def __init__(
        self, turn: Turn, ask: Ask, group: int, key: Any, time: int | None, effects: Effects
    ) -> None:
        # Not that of the class before: it would lay all stores out anew for each call.
        self._turn, self._stores = turn, turn.stores  # type: ignore[assignment]
        self._ask, self._group, self._key, self._time = ask, group, key, time
        self._effects = effects

    @property
    def key(self) -> Any:
        """The partition key of the message: a value, or a tuple of several."""
        return self._key

    @property
    def time(self) -> int | None:
        """The event time of the message, ms."""
        return self._time

    def store(self, name: str) -> Any:
        """Return a store that the operator declared, as this call sees it.

        Raises:
            InvalidInputError: no such store; names those declared.
        """
        table = self._turn.tables.get(name)
        if table is not None:
            return table
        found = self._turn.stores.get(name)
        if not isinstance(found, ObjectStore):
            super().__init__(self._turn)  # with all names that are declared
            raise self._unknown(name)
        writes = self._effects.writes.setdefault(name, {})
        return CallStore(name, found, self._group, writes, self._ask)

    def get_later(
        self, name: str, key: Any, then: Callable[[Any], object], default: Any = None
    ) -> None:
        """Not here: a call waits for what it asks.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError("get_later is for synchronous processors: await what you ask for")

    def emit(self, message: Any, *, to: str | None = None) -> None:
        """Send a message on, once the call has ended well.

        Raises:
            FunctionResultError: no such side; names those declared.
            CallOverError: the call has ended.
        """
        self._ask.check()
        turn, messages = self._turn, self._effects.messages
        if to is not None:
            if to not in turn.parcels.sides:
                raise turn.parcels.unknown(to)
            message = To(to, message)
        messages.append(message)
        if turn.limits.rows is not None and len(messages) > turn.limits.rows:
            raise too_many(turn.operator, turn.limits.rows)

    def _timers(self) -> Any:
        self._ask.check()
        super()._timers()  # refuses where there can be none
        return self._effects
