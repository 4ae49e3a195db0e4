"""The asynchronous calls of one operator of one task, and what each may do until it ends.

A call sees what is committed and what it wrote itself; what it does takes effect at its end, by
``async_rules``.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from headrace.errors import CallTimeoutError, FunctionResultError, HeadraceError, InvalidInputError
from headrace.graph.operators import CALLBACK, COROUTINE
from headrace.graph.operators import CallPolicy as Spec
from headrace.graph.side_outputs import To
from headrace.plan.stages import CallLimits
from headrace.records.keys import encode_any
from headrace.runtime.async_loop import CallLoop, Owner
from headrace.runtime.async_rules import ApplyCall, BeginCall, CallEnd, CallScheduler, OpenCall
from headrace.runtime.chunk import Chunk
from headrace.runtime.context import Context, ProcessorCall
from headrace.runtime.user_calls import (
    CallTimeout,
    name_operator,
    overdue_error,
    too_many_error,
    unsent_result_error,
    user_error,
    value_text,
)
from headrace.state.object_store import ObjectStore

_FIXED = frozenset((int, str, bytes, float, bool, type(None)))
_DELETED: Any = object()
T = TypeVar("T")


class CallOverError(InvalidInputError):
    """A call went on after it had ended: after its result, its time, or its epoch."""


class TimerChange(NamedTuple):
    """A timer that is set, or taken back, once the call has ended."""

    at: int
    name: str
    key: tuple[Any, ...]
    wall: bool
    is_set: bool


class CallEffects:
    """What a call has asked for so far."""

    __slots__ = ("messages", "timers", "writes")

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.writes: dict[str, dict[bytes, tuple[Any, Any]]] = {}
        self.timers: list[TimerChange] = []

    def set(
        self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool, passed: int = 0
    ) -> None:
        """Set a timer, once the call has ended well."""
        del group, passed  # known then
        self.timers.append(TimerChange(at, name, key, wall, True))

    def cancel(self, group: int, at: int, name: str, key: tuple[Any, ...], *, wall: bool) -> None:
        """Take a timer back, once the call has ended well."""
        del group
        self.timers.append(TimerChange(at, name, key, wall, False))

    def apply(self, current: ProcessorCall, passed: int) -> None:
        """Write to the stores, and set the timers, of the key group that was entered.

        Args:
            current: of the operator.
            passed: the event time that has passed for the key.
        """
        for name, writes in self.writes.items():
            store = current.stores[name]
            for key, value in writes.values():
                if value is _DELETED:
                    store.delete(key)
                else:
                    store.put(key, value)
        for act in self.timers:
            timers, group = current.timers, current.group
            assert timers is not None
            if act.is_set:
                timers.set(group, act.at, act.name, act.key, wall=act.wall, passed=passed)
            else:
                timers.cancel(group, act.at, act.name, act.key, wall=act.wall)


class LoopAccess:
    """Has things done in the thread of the loop, for a call that may be in another.

    Args:
        loop: of the process.
        call: that asks; once it is over, nothing is done for it any more.
    """

    __slots__ = ("_call", "_loop")

    def __init__(self, loop: CallLoop, call: OpenCall) -> None:
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
        ask: LoopAccess,
    ) -> None:
        self._name, self._store, self._group = name, store, group
        self._writes, self._ask = writes, ask

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; it is the call's own, as long as it does not put it."""
        return self._ask.here(lambda: self._get(key, default))

    def _get(self, key: Any, default: Any) -> Any:
        if self._writes:
            found = self._writes.get(encode_any(key))
            if found is not None:
                return default if found[1] is _DELETED else found[1]
        self._store.enter(self._group)
        value = self._store.get(key, default)
        return value if type(value) in _FIXED else copy.deepcopy(value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key, once the call has ended well."""
        code = encode_any(key)
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


class CallContext(Context):
    """What one call may do; usable from any thread until the call ends.

    What it sends, writes and sets takes effect when the call has ended well, all of it at once.
    """

    def __init__(
        self,
        current: ProcessorCall,
        ask: LoopAccess,
        group: int,
        key: Any,
        time: int | None,
        effects: CallEffects,
    ) -> None:
        # Not that of the class before: it would lay all stores out again for each call.
        self._current, self._stores = current, current.stores  # type: ignore[assignment]
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
        table = self._current.tables.get(name)
        if table is not None:
            return table
        found = self._current.stores.get(name)
        if not isinstance(found, ObjectStore):
            super().__init__(self._current)  # with all names that are declared
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
            FunctionResultError: no such side output; names those declared.
            CallOverError: the call has ended.
        """
        self._ask.check()
        current, messages = self._current, self._effects.messages
        if to is not None:
            if to not in current.router.sides:
                raise current.router.unknown(to)
            message = To(to, message)
        messages.append(message)
        if current.limits.rows is not None and len(messages) > current.limits.rows:
            raise too_many_error(current.operator, current.limits.rows)

    def _timers(self) -> Any:
        self._ask.check()
        super()._timers()  # refuses where there can be none
        return self._effects


COUNTS = {
    CallEnd.DOUBLE: "completed_again",
    CallEnd.LATE: "completed_late",
    CallEnd.STRAY: "completed_after_epoch",
}


@dataclass(eq=False, slots=True)
class CallRow:
    """A message, and what became of its call.

    ``chunk`` and ``at`` are the row that it was made of; ``place`` identifies it.
    """

    chunk: Chunk
    at: int
    message: Any
    key: Any
    group: int
    place: Any
    effects: CallEffects | None = None
    error: HeadraceError | None = None
    is_done: bool = False
    task: asyncio.Task[Any] | None = None


class UserCallback:
    """Ends a call of ``process_async``, from any thread; only the first end counts."""

    __slots__ = ("_end", "_loop")

    def __init__(self, loop: CallLoop, end: Callable[[BaseException | None], None]) -> None:
        self._loop, self._end = loop, end

    def complete(self) -> None:
        """Report that the message is processed: the call's emits, writes and timers take effect."""
        self._answer(None)

    def fail(self, error: BaseException) -> None:
        """Report a failure: nothing of the call takes effect, and ``on_error`` applies."""
        is_error = isinstance(error, BaseException)
        self._answer(error if is_error else RuntimeError(f"fail() was given {error!r:.300}"))

    def _answer(self, error: BaseException | None) -> None:
        if self._loop.is_here:
            self._end(error)
        else:
            self._loop.post(partial(self._end, error))


class AsyncCalls:
    """Makes the calls of one operator of one task.

    Args:
        spec: how.
        limits: of the job.
        current: of the task and operator.
        user: the user's object.
        loop: of the process.
        owner: whose calls they are, for what comes when nobody waits any more.
        apply: lets the call of a row take effect.
        refill: makes more messages, if there are any.
        settle: called when what has taken effect may be sent on.
    """

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        spec: Spec,
        limits: CallLimits,
        current: ProcessorCall,
        user: Any,
        *,
        loop: CallLoop,
        owner: Owner,
        apply: Callable[[CallRow], None],
        refill: Callable[[], bool],
        settle: Callable[[], None],
    ) -> None:
        most = spec.most or limits.concurrency
        timeout_s = limits.timeout_s if spec.timeout_ms is None else spec.timeout_ms / 1000
        self._timeout_s = timeout_s
        self.rules = CallScheduler(most, spec.order, timeout_s)
        self._spec, self._current, self._user = spec, current, user
        self._threads = spec.threads or limits.threads or 1
        self._loop, self._owner = loop, owner
        self._apply, self._refill, self._settle = apply, refill, settle
        self._is_ordered_by_key = spec.order == "key"
        self.rows: dict[int, CallRow] = {}
        self.counts: Counter[str] = Counter()
        self.progress = 0
        self._fatal: BaseException | None = None
        self._context_of = {COROUTINE: self._await, CALLBACK: self._call_back}.get(
            spec.style, self._in_thread
        )

    def add(self, row: CallRow) -> None:
        """Take a message; they come in order."""
        self.rows[self.rules.arrive(row.key if self._is_ordered_by_key else None)] = row

    @property
    def is_open(self) -> bool:
        """Say whether any call has begun that has not ended."""
        return not self.rules.is_quiet

    def pump(self, now_s: float, *, may_begin: bool) -> bool:
        """Do what is to be done now; says whether there is anything left to wait for."""
        rules = self.rules
        while True:
            for call in rules.expire(now_s):
                self._expired(call)
            while may_begin and rules.is_short and self._refill():
                pass
            actions = rules.step(now_s, may_begin=may_begin)
            if self._fatal is not None:
                raise self._fatal
            if not actions:
                break
            self.progress += len(actions)
            for action in actions:
                match action:
                    case ApplyCall(number):
                        self._apply(self.rows.pop(number))
                    case BeginCall(call):
                        self._begin(call)
        self._settle()
        return bool(rules.open)

    def deadline(self) -> float | None:
        """Return when the time of the next call is over."""
        return self.rules.deadline()

    def _begin(self, call: OpenCall) -> None:
        row, current = self.rows[call.number], self._current
        current.enter(row.group)
        row.effects = CallEffects()
        time = None if row.chunk.times is None else int(row.chunk.times[row.at])
        ask = LoopAccess(self._loop, call)
        context = CallContext(current, ask, row.group, row.key, time, row.effects)
        self.counts["calls"] += 1
        try:
            self._context_of(row, call, context)
        except CallTimeout as error:
            raise overdue_error(
                current.operator, current.limits.timeout_s, error, row.message
            ) from error
        except Exception as error:  # noqa: BLE001 - the user's, and reported with its operator
            self._end(row, call, error)

    def _await(self, row: CallRow, call: OpenCall, context: CallContext) -> None:
        row.task = self._loop.begin(self._user.process(row.message, context))
        row.task.add_done_callback(partial(self._task_ended, row, call))

    def _task_ended(self, row: CallRow, call: OpenCall, task: asyncio.Task[Any]) -> None:
        row.task = None
        if task.cancelled():
            if call.is_open:
                self._end(row, call, asyncio.CancelledError("the call was cancelled"))
            return
        self._end(row, call, task.exception() or self._unsent(row, task.result()))

    def _unsent(self, row: CallRow, made: object) -> FunctionResultError | None:
        if made is None:
            return None
        return unsent_result_error(self._current.operator, self._user, made, row.message)

    def _call_back(self, row: CallRow, call: OpenCall, context: CallContext) -> None:
        self._loop.outside(1)
        call_end = partial(self._outside_ended, row, call, [True])
        made = self._user.process_async(row.message, context, UserCallback(self._loop, call_end))
        self._fatal = self._fatal or self._unsent(row, made)  # the callback may have ended the call

    def _in_thread(self, row: CallRow, call: OpenCall, context: CallContext) -> None:
        self._loop.outside(1)
        end = partial(self._outside_ended, row, call, [True])

        def run() -> None:
            if not call.is_open:  # its time was over before a thread was free
                self._loop.post(partial(self._loop.outside, -1))
                return
            error: BaseException | None = None
            try:
                error = self._unsent(row, self._user.process(row.message, context))
            except BaseException as raised:  # noqa: BLE001 - raised in the thread of the loop
                error = raised
            self._loop.post(partial(end, error))

        self._loop.submit(self._current.operator, self._threads, run)

    def _outside_ended(
        self, row: CallRow, call: OpenCall, first: list[bool], error: BaseException | None
    ) -> None:
        if first:
            first.clear()
            self._loop.outside(-1)
        self._end(row, call, error)

    def _end(self, row: CallRow, call: OpenCall, error: BaseException | None) -> None:
        """Take an end of a call, in the thread of the loop."""
        found = self.rules.end(call)
        if found is not CallEnd.TAKEN:
            if found is CallEnd.STRAY:
                self._loop.stray(self._owner, COUNTS[found])
            else:
                self.counts[COUNTS[found]] += 1
            return
        if error is not None:
            row.error = self._described(error, row.message)
            self.counts["failed_calls"] += 1
        self._loop.wake()

    def _described(self, error: BaseException, message: Any) -> HeadraceError:
        operator = self._current.operator
        if isinstance(error, CallTimeout):
            return overdue_error(operator, self._current.limits.timeout_s, error, message)
        if isinstance(error, InvalidInputError):
            name_operator(error, operator)
            return error
        if not isinstance(error, Exception | asyncio.CancelledError):
            self._fatal = error
        if isinstance(error, HeadraceError):
            self._fatal = error  # a disk or a store: not the message's fault
        return user_error(operator, error, message)  # type: ignore[arg-type]

    def _expired(self, call: OpenCall) -> None:
        row = self.rows[call.number]
        if row.task is not None:
            row.task.cancel()
        row.error = CallTimeoutError(
            f"operator {self._current.operator!r} had not completed after {self._timeout_s:g} s "
            f"from {value_text(row.message, repr):.300}: give what it waits for a timeout, "
            "or raise timeout=",
            operator=self._current.operator,
        )
        self.counts["timed_out_calls"] += 1

    def take_counts(self) -> Counter[str]:
        """Take what was counted since the last time, strays of the operator's included."""
        taken, self.counts = self.counts, Counter()
        taken.update(self._loop.strays.pop(self._owner, {}))
        return taken

    def leave(self) -> None:
        """Give up all open calls."""
        for call in self.rules.leave():
            row = self.rows[call.number]
            if row.task is not None:
                row.task.cancel()
        self.rows.clear()
