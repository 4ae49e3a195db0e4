"""Calls of a user's function for each message of a batch, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import FunctionResultError, HeadraceError, InvalidInputError
from headrace.graph.sites import function_site
from headrace.graph.window_functions import MESSAGES, WindowFunction
from headrace.plan.stages import CallLimits
from headrace.task.chunk import Chunk
from headrace.task.dead_letters import Guard, Refused, without
from headrace.task.messages.calls import (
    Overdue,
    UserFunctionError,
    name_operator,
    overdue_error,
    time_limit,
)
from headrace.task.messages.maker import MessageMaker

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
            except Overdue as overdue:
                timeout = overdue_error(name, self._limits.timeout_s, overdue, message)
                refuse(row, timeout, overdue)
            except FunctionResultError as error:
                refuse(row, error.met(self._site, message), error)
            except HeadraceError as error:
                name_operator(error, name)
                refuse(row, error)
            except Exception as error:  # noqa: BLE001 - any of the user's
                said = UserFunctionError.of(name, error, message)
                refuse(row, said, error)
            else:
                yield result


def too_many(operator: str, limit: int) -> FunctionResultError:
    """Return the error for a message of which too many were made."""
    return FunctionResultError(
        f"operator {operator!r} made more than {limit} messages of one; let it make fewer, or "
        "raise job.rows_per_message",
        operator=operator,
    )
