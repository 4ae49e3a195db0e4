"""Calls of the user's functions: what goes in, what comes out, and what errors become.

``MessageMaker`` makes messages of a batch, as what the function takes; ``MessageCalls`` calls a
function for each; ``SideOutputRouter`` makes batches of what was sent, sorted by where it goes. A
call has a time limit, a limit of messages, and errors that name the operator and the user's line.
"""

from __future__ import annotations

import datetime
import gc
import re
import signal
import threading
import typing
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from itertools import repeat
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import (
    CallTimeoutError,
    FunctionResultError,
    HeadraceError,
    InvalidInputError,
    MessageTypeError,
    UserFunctionError,
)
from headrace.graph.expressions import one_line
from headrace.graph.introspection import (
    failure_site,
    function_site,
    record_fields,
    without_optional,
)
from headrace.graph.operators import Sides, Site
from headrace.graph.row_aggregates import MESSAGES
from headrace.graph.side_outputs import MAIN, To
from headrace.graph.window_transforms import WindowFunction
from headrace.plan.stages import CallLimits
from headrace.records.messages import columns_to_lists, from_messages, message_type, to_messages
from headrace.runtime.chunk import Chunk, Ints
from headrace.runtime.node import Guard, Refused, without

_TICKS = 4
_COLLECT_AFTER = 50_000


def user_error(
    operator: str, error: Exception, met: object = None, what: str = "message"
) -> UserFunctionError:
    """Describe an error of the user's with the operator and the message it met."""
    on = "" if met is None else f" on {what} {value_text(met, repr):.300}"
    site = failure_site(error, Site())
    at = f" at {site}" if site.file else ""
    said = one_line(error) if isinstance(error, pl.exceptions.PolarsError) else value_text(error)
    if isinstance(error, AttributeError) and said.startswith("immutable type"):
        said += "; a message cannot be changed: return a new one"
    raised = type(error).__name__
    text = f"operator {operator!r} raised {raised}: {said}{at}{on}"
    return UserFunctionError(text, operator=operator, raised=raised)


def runs_nothing(made: object) -> bool:
    """Say whether what a call returned is code that has not run, and is closed by this."""
    if isinstance(made, Generator | Coroutine):
        made.close()
        return True
    return isinstance(made, AsyncGenerator)


def unsent_result_error(
    operator: str, user: object, made: object, met: object
) -> FunctionResultError:
    """Return the error of a method without a contract that returned something of a message."""
    kind, site = type(user).__name__, function_site(getattr(type(user), "process", None))
    if runs_nothing(made):
        what = (
            f"is a {type(made).__name__}, so calling it runs nothing: make it a plain method, or "
            f"give the class {kind} itself where it is async"
        )
    else:
        what = (
            "is not sent: use context.emit(...), or derive the class from hr.StatelessProcessor, "
            "whose process returns what it sends"
        )
    text = f"operator {operator!r}: what {kind} returned, {value_text(made, repr):.200}, {what}"
    error = FunctionResultError(text, operator=operator)
    return error.met(str(site) if site.file else "", met)


def value_text(value: object, show: Callable[[object], str] = str) -> str:
    """Return the user's words for a value; where these cannot be had, what it is."""
    try:
        return show(value)
    except Exception as error:  # noqa: BLE001 - the error that is shown is another one
        return f"<{type(value).__name__} that raises {type(error).__name__} when shown>"


class CallTimeout(BaseException):  # not an Exception: the user's own handlers must not end it
    """Raised inside a call that takes too long."""


def overdue_error(
    operator: str, timeout_s: float | None, error: CallTimeout, met: object
) -> CallTimeoutError:
    """Return the error of a call that took too long, with the user's line where it was."""
    site = failure_site(error, Site())
    at = f"; it was at {site}" if site.file else ""
    shown = value_text(met, repr)
    return CallTimeoutError(
        f"operator {operator!r} had not returned after {timeout_s:g} s from {shown:.300}{at}: "
        "let it end, give what it waits for a timeout, or raise job.call_timeout_s",
        operator=operator,
    )


@contextmanager
def time_limit(timeout_s: float | None, progress: Callable[[], object]) -> Iterator[None]:
    """Raise ``CallTimeout`` in the main thread once ``progress`` has not changed for so long.

    A signal is looked at between two steps of Python, and ends what sleeps or waits; native code
    that does not return is not ended. In another thread than the main one there is no limit.

    Args:
        timeout_s: the limit; ``None``: none.
        progress: changes from call to call; asked four times within the limit.
    """
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen, ticks = progress(), 0

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal seen, ticks
        now = progress()
        ticks = ticks + 1 if now == seen else 0
        seen = now
        if ticks >= _TICKS:
            raise CallTimeout

    handler = signal.signal(signal.SIGALRM, tick)
    before = signal.setitimer(signal.ITIMER_REAL, timeout_s / _TICKS, timeout_s / _TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


@contextmanager
def with_rare_gc() -> Iterator[None]:
    """Let the collector of cycles look less often in a block, for most of what it makes is kept.

    So it is with calls, and with epochs of many tasks. Looking after every 700 objects, as is the
    default, doubled the cost of a call.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def name_operator(error: HeadraceError, operator: str) -> None:
    """Give an error that came up below a user's function the operator, if it has none."""
    error.fields.setdefault("operator", operator)


def guarded(operator: str, call: Callable[[], Any]) -> Any:
    """Run a user's function or expression; its errors name the operator."""
    try:
        return call()
    except HeadraceError as error:
        name_operator(error, operator)
        raise
    except Exception as error:
        raise user_error(operator, error) from error


_AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_ROW = re.compile(r"^\$\[(\d+)\]\.?")
_TIMES = (datetime.datetime, datetime.date, datetime.timedelta)
_PLAIN = frozenset((bool, int, float, str, bytes, Decimal, Any, object, *_TIMES))


class _Column(NamedTuple):
    """How a column becomes a field: ``kind``, a list type, where values are converted."""

    name: str
    kind: Any | None
    is_optional: bool


class MessageMaker:
    """Makes the messages of one operator.

    Args:
        operator: its name.
        schema: of the rows.
        uses: columns that messages have; ``None``: all.
        takes: ``dict``, a record class, or ``None`` for a message with attributes.
        site: of the function, for errors.
        nested: the column whose lists of structs are lists of messages, where ``takes`` is none.
    """

    def __init__(
        self,
        operator: str,
        schema: pa.Schema,
        uses: Sequence[str] | None,
        takes: Any = None,
        site: Site | None = None,
        nested: str | None = None,
    ) -> None:
        self._operator, self._takes, self._site = operator, takes, site or Site()
        self.columns = list(uses) if uses is not None else list(schema.names)
        self._fields: list[_Column] = []
        if takes is None:
            kept = pa.schema([schema.field(name) for name in self.columns])
            kind = message_type("Message", kept)
            self._make: Callable[[pa.RecordBatch], list[Any]] = partial(
                to_messages, kind=kind, nested=nested
            )
        elif takes is dict:
            self._make = _dicts(self.columns)
        else:
            self._make = self._records(takes)

    def make(self, batch: pa.RecordBatch) -> list[Any]:
        """Return one message for each row.

        Raises:
            MessageTypeError: a row that does not fit the class; names the first one.
            UserFunctionError: the class itself raised.
        """
        try:
            return self._make(batch.select(self.columns))
        except HeadraceError:
            raise
        except Exception as error:
            if batch.num_rows > 1:  # the class's own: find the record
                for row in range(batch.num_rows):
                    self.make(batch.slice(row, 1))
            met = batch.select(self.columns).to_pylist()[0]
            raise user_error(self._operator, error, met, "record") from error

    def of(self, chunk: Chunk, guard: Guard | None) -> tuple[Chunk, list[Any]]:
        """Return the rows of which messages can be made, and these; the guard takes the others."""
        try:
            return chunk, self.make(chunk.batch)
        except InvalidInputError:
            if guard is None:
                raise
        refused = list(self._refused(chunk.batch))
        guard.take(chunk, refused)
        chunk = without(chunk, refused)
        return chunk, self.make(chunk.batch)

    def _refused(self, batch: pa.RecordBatch) -> Iterator[Refused]:
        for row in range(batch.num_rows):
            try:
                self.make(batch.slice(row, 1))
            except InvalidInputError as error:
                yield Refused(row, error)

    def _records(self, takes: Any) -> Callable[[pa.RecordBatch], list[Any]]:
        known = {field.name: field for field in record_fields(takes)}
        self.columns = [name for name in known if name in self.columns]
        self._fields = [_column(name, known[name].hint) for name in self.columns]
        names = list(self.columns)
        if typing.is_typeddict(takes):
            whole: Callable[[list[list[Any]]], list[Any]] = _dicts_of(names)
        elif names == _positional(takes)[: len(names)] and names:
            whole = lambda lists: list(map(takes, *lists))  # noqa: E731
        else:
            whole = lambda lists: [takes(**row) for row in _dicts_of(names)(lists)]  # noqa: E731

        def make(batch: pa.RecordBatch) -> list[Any]:
            if not names:
                return [takes() for _ in range(batch.num_rows)]
            return whole(self._values(batch))

        return make

    def _values(self, batch: pa.RecordBatch) -> list[list[Any]]:
        lists = columns_to_lists(batch)
        for at, (column, field) in enumerate(zip(batch.columns, self._fields, strict=True)):
            if not field.is_optional and column.null_count:
                row = lists[at].index(None)
                raise self._unfit(batch, row, field.name, "is null; let it be optional: | None")
            if field.kind is not None:
                lists[at] = self._converted(batch, field, lists[at])
        return lists

    def _converted(self, batch: pa.RecordBatch, field: _Column, values: list[Any]) -> list[Any]:
        try:
            made: list[Any] = msgspec.convert(values, field.kind)
        except msgspec.ValidationError as error:
            found = _AT.fullmatch(str(error))
            path = (found and found["path"]) or "$[0]"
            row = _ROW.match(path)
            assert row is not None
            inner = path[row.end() :].replace("[...]", "[]")
            name = ".".join(part for part in (field.name, inner) if part)
            reason = found["reason"] if found else str(error)
            text = f"does not fit: {reason[:1].lower()}{reason[1:]}"
            raise self._unfit(batch, int(row[1]), name, text) from error
        return made

    def _unfit(self, batch: pa.RecordBatch, row: int, field: str, text: str) -> MessageTypeError:
        record = batch.slice(row, 1).to_pylist()[0]
        at = f" at {self._site}" if self._site.file else ""
        return MessageTypeError(
            f"operator {self._operator!r} takes {self._takes.__name__}{at}, but {field!r} {text}, "
            f"or set such records aside with on_error=; found {record!r:.300}",
            operator=self._operator,
        )


def _column(name: str, hint: Any) -> _Column:
    kind, is_optional = without_optional(hint)
    is_column_type = isinstance(kind, pa.DataType | pl.DataType) or (
        isinstance(kind, type) and issubclass(kind, pl.DataType)
    )
    if is_column_type or kind in _PLAIN:
        return _Column(name, None, is_optional)
    item: Any = typing.Optional[kind] if is_optional else kind  # noqa: UP045 - known at run time
    return _Column(name, list[item], True)


def _positional(takes: Any) -> list[str]:
    """The fields that a record class takes by position, in order."""
    if issubclass(takes, tuple):
        return list(takes._fields)
    return list(takes.__match_args__)


def _dicts(names: Sequence[str]) -> Callable[[pa.RecordBatch], list[Any]]:
    make = _dicts_of(names)
    if not names:
        return lambda batch: [{} for _ in range(batch.num_rows)]
    return lambda batch: make(columns_to_lists(batch))


def _dicts_of(names: Sequence[str]) -> Callable[[list[list[Any]]], list[Any]]:
    """Make dicts of columns: through structs, which is twice as quick, where names allow it."""
    if all(name.isidentifier() for name in names):
        kind = message_type("Message", pa.schema([(name, pa.null()) for name in names]))
        return lambda lists: list(map(msgspec.structs.asdict, map(kind, *lists)))
    return lambda lists: list(map(dict, map(zip, repeat(names), zip(*lists, strict=True))))


NO_LIMITS = CallLimits()


class MessageCalls:
    """Calls one function of an operator.

    Args:
        operator: its name.
        function: called once for each message, in order.
        source: schema of the messages.
        uses: columns that messages have; ``None``: all.
        limits: of each call.
        convert: made of each result within the call; what it raises is the function's mistake.
        takes: what messages are made as, see ``MessageMaker``.
    """

    def __init__(
        self,
        operator: str,
        function: Callable[[Any], Any],
        *,
        source: pa.Schema,
        uses: Sequence[str] | None = None,
        limits: CallLimits = NO_LIMITS,
        convert: Callable[[Any], Any] | None = None,
        takes: Any = None,
    ) -> None:
        self._operator, self._function, self._convert = operator, function, convert
        self._limits, self._row = limits, 0
        site = function_site(function)
        nested = MESSAGES if isinstance(function, WindowFunction) else None
        self._maker = MessageMaker(operator, source, uses, takes, site, nested)
        self._site = str(site)

    def results(self, chunk: Chunk, guard: Guard | None) -> tuple[Chunk, list[Any]]:
        """Return the rows that were not refused, and what the function made of each.

        Args:
            chunk: whose rows are the messages.
            guard: takes the rows on which the function fails; without one it fails the epoch.
        """
        chunk, messages = self._maker.of(chunk, guard)
        refused: list[Refused] = []
        with time_limit(self._limits.timeout_s, lambda: self._row):
            results = list(self._each(messages, refused, guard is not None))
        if refused:
            assert guard is not None
            guard.take(chunk, refused)
            chunk = without(chunk, refused)
        return chunk, results

    def _each(self, messages: list[Any], refused: list[Refused], may_refuse: bool) -> Iterator[Any]:
        """Yield what the function makes of each message; of the refused ones, nothing."""
        function, convert, name = self._function, self._convert, self._operator

        def refuse(row: int, error: HeadraceError, cause: BaseException | None = None) -> None:
            if not may_refuse or not isinstance(error, InvalidInputError):
                raise error from cause
            refused.append(Refused(row, error))

        for row, message in enumerate(messages):
            self._row = row
            try:
                result = function(message)
                if convert is not None:
                    result = convert(result)
            except CallTimeout as overdue:
                timeout = overdue_error(name, self._limits.timeout_s, overdue, message)
                refuse(row, timeout, overdue)
            except FunctionResultError as error:
                name_operator(error, name)
                refuse(row, error.met(self._site, message), error)
            except HeadraceError as error:
                name_operator(error, name)
                refuse(row, error)
            except Exception as error:  # noqa: BLE001 - any of the user's
                said = user_error(name, error, message)
                refuse(row, said, error)
            else:
                yield result


def condition_result(found: object) -> bool:
    """Return whether a condition holds; of what is true whatever the message, an error."""
    if isinstance(found, bool):
        return found
    if callable(found) or runs_nothing(found):
        raise FunctionResultError(
            f"a condition returned {value_text(found, repr):.200}, which is always true: "
            "call it, or "
            "return what it gives"
        )
    return bool(found)


def too_many_error(operator: str, limit: int) -> FunctionResultError:
    """Return the error for a message of which too many were made."""
    return FunctionResultError(
        f"operator {operator!r} made more than {limit} messages of one; let it make fewer, or "
        "raise job.rows_per_message",
        operator=operator,
    )


class SideOutputBatch(NamedTuple):
    """Messages that go one way: the side, their batch, their places among all (``None``: all)."""

    side: str
    batch: pa.RecordBatch
    places: list[int] | None

    def of(self, chunk: Chunk, rows: Sequence[int] | Ints | None) -> Chunk:
        """Return the messages as rows made of those of a chunk.

        Args:
            chunk: they were made of.
            rows: of which row each of all messages is; ``None``: one of each, in order.
        """
        if self.places is None:
            if rows is None:
                return chunk.with_batch(self.batch)
            return chunk.derive(self.batch, np.asarray(rows, np.int64))
        own = self.places if rows is None else [rows[at] for at in self.places]
        return chunk.derive(self.batch, np.asarray(own, np.int64))


class SideOutputRouter:
    """Sorts the messages of one operator.

    Args:
        operator: its name.
        schema: of what is sent on; ``None``: nothing may be.
        sides: columns of each side.
        site: of the function, for errors.
    """

    def __init__(
        self, operator: str, schema: pa.Schema | None, sides: Sides = (), site: Site | None = None
    ) -> None:
        self._operator, self._schema = operator, schema
        self._sides, self._site = dict(sides), site or Site()

    @property
    def sides(self) -> list[str]:
        """The sides that are declared."""
        return list(self._sides)

    def unknown(self, side: object) -> FunctionResultError:
        """Return the error for a message to a side that is not declared."""
        return FunctionResultError(
            f"operator {self._operator!r} sent a message to side {side!r}, but declares "
            f"{self.sides or 'none'}; add it to sides={{...}}",
            operator=self._operator,
        )

    def packed(self, messages: Sequence[Any]) -> list[SideOutputBatch]:
        """Return messages in batches, none of them empty; the main output comes first.

        Raises:
            FunctionResultError: a message does not fit the columns that it should have, or
                names a side that is not declared.
        """
        places: dict[str, list[int]] = {}
        if self._sides:
            for at, message in enumerate(messages):
                side = message.side if type(message) is To else MAIN
                places.setdefault(side, []).append(at)
        if not places or list(places) == [MAIN]:
            return [SideOutputBatch(MAIN, self._main(messages), None)] if messages else []
        batches = []
        if MAIN in places:
            own = places.pop(MAIN)
            batches.append(SideOutputBatch(MAIN, self._main([messages[at] for at in own]), own))
        for side, own in places.items():
            if side not in self._sides:
                raise self.unknown(side)
            name = f"{self._operator}.{side}"
            batch = from_messages([messages[at].message for at in own], self._sides[side], name)
            batches.append(SideOutputBatch(side, batch, own))
        return batches

    def refused(
        self,
        error: InvalidInputError,
        messages: Sequence[Any],
        rows: Sequence[int] | None,
        record: Callable[[int], dict[str, Any]],
    ) -> InvalidInputError:
        """Return the error of messages that do not fit with the user's line, and what it met.

        Args:
            error: of ``packed``.
            messages: that were given to it.
            rows: of which row each of them is made; ``None``: one of each, in order.
            record: returns a row.
        """
        for at, message in enumerate(messages):
            try:
                self.packed([message])
            except FunctionResultError as first:
                row = at if rows is None else rows[at]
                return first.met(str(self._site), record(row))
            except InvalidInputError:
                break
        return error

    def _main(self, messages: Sequence[Any]) -> pa.RecordBatch:
        if self._schema is None:
            self._refuse_sides(messages)
            raise InvalidInputError(
                f"operator {self._operator!r} emitted {messages[0]!r:.200} but declares no "
                "columns; give process(returns=...)",
                operator=self._operator,
            )
        try:
            return from_messages(messages, self._schema, self._operator)
        except FunctionResultError:
            self._refuse_sides(messages)
            raise

    def _refuse_sides(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if type(message) is To:
                raise self.unknown(message.side)
