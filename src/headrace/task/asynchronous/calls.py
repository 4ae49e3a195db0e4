"""The calls of one operator of one task: begins them, and has them take effect by the rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.errors import CallTimeoutError, HeadraceError, InvalidInputError
from headrace.graph.calls import CALLBACK, COROUTINE
from headrace.graph.calls import Calls as Spec
from headrace.plan.stages import CallLimits
from headrace.task.asynchronous.context import Ask, CallContext, Effects
from headrace.task.asynchronous.loop import CallLoop, Owner
from headrace.task.asynchronous.rules import Apply, Begin, Call, End, Rules
from headrace.task.chunk import Chunk
from headrace.task.messages.calls import (
    Overdue,
    UserFunctionError,
    name_operator,
    overdue_error,
    told,
)
from headrace.task.turn import Turn

COUNTS = {
    End.DOUBLE: "completed_again",
    End.LATE: "completed_late",
    End.STRAY: "completed_after_epoch",
}


@dataclass(eq=False, slots=True)
class Row:
    """A message, and what became of its call.

    ``chunk`` and ``at`` are the row that it was made of; ``place`` tells it from all others.
    """

    chunk: Chunk
    at: int
    message: Any
    key: Any
    group: int
    place: Any
    effects: Effects | None = None
    error: HeadraceError | None = None
    is_done: bool = False
    task: asyncio.Task[Any] | None = None


class UserCallback:
    """Ends a call of ``process_async``; from any thread, the first time counts."""

    __slots__ = ("_end", "_loop")

    def __init__(self, loop: CallLoop, end: Callable[[BaseException | None], None]) -> None:
        self._loop, self._end = loop, end

    def complete(self) -> None:
        """The message is processed: what the call sent, wrote and set takes effect."""
        self._tell(None)

    def fail(self, error: BaseException) -> None:
        """It cannot be: nothing of the call takes effect, and ``on_error`` decides."""
        is_error = isinstance(error, BaseException)
        self._tell(error if is_error else RuntimeError(f"fail() was given {error!r:.300}"))

    def _tell(self, error: BaseException | None) -> None:
        if self._loop.is_here:
            self._end(error)
        else:
            self._loop.post(partial(self._end, error))


class Calls:
    """Makes the calls of one operator of one task.

    Args:
        spec: how.
        limits: of the job.
        turn: of the task and operator.
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
        turn: Turn,
        user: Any,
        *,
        loop: CallLoop,
        owner: Owner,
        apply: Callable[[Row], None],
        refill: Callable[[], bool],
        settle: Callable[[], None],
    ) -> None:
        most = spec.most or limits.concurrency
        timeout_s = limits.timeout_s if spec.timeout_ms is None else spec.timeout_ms / 1000
        self._timeout_s = timeout_s
        self.rules = Rules(most, spec.order, timeout_s)
        self._spec, self._turn, self._user = spec, turn, user
        self._threads = spec.threads or limits.threads or 1
        self._loop, self._owner = loop, owner
        self._apply, self._refill, self._settle = apply, refill, settle
        self._is_ordered_by_key = spec.order == "key"
        self.rows: dict[int, Row] = {}
        self.counts: Counter[str] = Counter()
        self.progress = 0
        self._fatal: BaseException | None = None
        self._context_of = {COROUTINE: self._await, CALLBACK: self._call_back}.get(
            spec.style, self._in_thread
        )

    def add(self, row: Row) -> None:
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
                    case Apply(number):
                        self._apply(self.rows.pop(number))
                    case Begin(call):
                        self._begin(call)
        self._settle()
        return bool(rules.open)

    def deadline(self) -> float | None:
        """Return when the time of the next call is over."""
        return self.rules.deadline()

    def _begin(self, call: Call) -> None:
        row, turn = self.rows[call.number], self._turn
        turn.enter(row.group)
        row.effects = Effects()
        time = None if row.chunk.times is None else int(row.chunk.times[row.at])
        ask = Ask(self._loop, call)
        context = CallContext(turn, ask, row.group, row.key, time, row.effects)
        self.counts["calls"] += 1
        try:
            self._context_of(row, call, context)
        except Overdue as error:
            raise overdue_error(turn.operator, turn.limits.timeout_s, error, row.message) from error
        except Exception as error:  # noqa: BLE001 - the user's, and told with its operator
            self._end(row, call, error)

    def _await(self, row: Row, call: Call, context: CallContext) -> None:
        row.task = self._loop.begin(self._user.process(row.message, context))
        row.task.add_done_callback(partial(self._task_ended, row, call))

    def _task_ended(self, row: Row, call: Call, task: asyncio.Task[Any]) -> None:
        row.task = None
        if task.cancelled():
            if call.is_open:
                self._end(row, call, asyncio.CancelledError("the call was cancelled"))
            return
        self._end(row, call, task.exception())

    def _call_back(self, row: Row, call: Call, context: CallContext) -> None:
        self._loop.outside(1)
        call_end = partial(self._outside_ended, row, call, [True])
        self._user.process_async(row.message, context, UserCallback(self._loop, call_end))

    def _in_thread(self, row: Row, call: Call, context: CallContext) -> None:
        self._loop.outside(1)
        end = partial(self._outside_ended, row, call, [True])

        def run() -> None:
            if not call.is_open:  # its time was over before a thread was free
                self._loop.post(partial(self._loop.outside, -1))
                return
            error: BaseException | None = None
            try:
                self._user.process(row.message, context)
            except BaseException as raised:  # noqa: BLE001 - told in the thread of the loop
                error = raised
            self._loop.post(partial(end, error))

        self._loop.submit(self._turn.operator, self._threads, run)

    def _outside_ended(
        self, row: Row, call: Call, first: list[bool], error: BaseException | None
    ) -> None:
        if first:
            first.clear()
            self._loop.outside(-1)
        self._end(row, call, error)

    def _end(self, row: Row, call: Call, error: BaseException | None) -> None:
        """Take an end of a call, in the thread of the loop."""
        found = self.rules.end(call)
        if found is not End.TAKEN:
            if found is End.STRAY:
                self._loop.stray(self._owner, COUNTS[found])
            else:
                self.counts[COUNTS[found]] += 1
            return
        if error is not None:
            row.error = self._described(error, row.message)
            self.counts["failed_calls"] += 1
        self._loop.wake()

    def _described(self, error: BaseException, message: Any) -> HeadraceError:
        operator = self._turn.operator
        if isinstance(error, Overdue):
            return overdue_error(operator, self._turn.limits.timeout_s, error, message)
        if isinstance(error, InvalidInputError):
            name_operator(error, operator)
            return error
        if not isinstance(error, Exception | asyncio.CancelledError):
            self._fatal = error
        if isinstance(error, HeadraceError):
            self._fatal = error  # a disk or a store: not the message's fault
        return UserFunctionError.of(operator, error, message)  # type: ignore[arg-type]

    def _expired(self, call: Call) -> None:
        row = self.rows[call.number]
        if row.task is not None:
            row.task.cancel()
        row.error = CallTimeoutError(
            f"operator {self._turn.operator!r} had not completed after {self._timeout_s:g} s from "
            f"{told(row.message, repr):.300}: give what it waits for a timeout, or raise timeout=",
            operator=self._turn.operator,
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
