"""Event times that no column has: made of the records by the user's expression or function."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from headrace.errors import FunctionResultError, HeadraceError, InvalidInputError
from headrace.graph.operators import EventTime
from headrace.plan.stages import CallLimits, InputBinding
from headrace.records.schema import as_milliseconds, normalise
from headrace.task.messages.calls import (
    Overdue,
    UserFunctionError,
    guarded,
    name_operator,
    overdue_error,
    time_limit,
)
from headrace.task.messages.maker import MessageMaker

Errors = dict[int, HeadraceError]


class EventTimes:
    """Makes the event times of batches of one input.

    Args:
        binding: of the input, with an expression or a function.
        limits: of calls of the function.
    """

    def __init__(self, binding: InputBinding, limits: CallLimits) -> None:
        assert binding.event is not None
        self._event: EventTime = binding.event
        self._operator, self._limits = binding.operator, limits
        self._columns = list(self._event.uses or ())
        takes = self._event.takes
        self._messages = MessageMaker(self._operator, binding.schema, self._columns, takes)

    def of(self, batch: pa.RecordBatch) -> tuple[pa.Array, Errors]:
        """Return milliseconds, null where there is none, and by row what it failed with."""
        part = batch.select(self._columns)
        try:
            if self._event.function is not None:
                return self._called(self._messages.make(part))
            return self._expressed(part), {}
        except InvalidInputError as error:
            if batch.num_rows == 1:
                return pa.nulls(1, pa.int64()), {0: error}
        middle = batch.num_rows // 2
        first, errors = self.of(batch.slice(0, middle))
        second, more = self.of(batch.slice(middle))
        later = {row + middle: error for row, error in more.items()}
        return pa.concat_arrays([first, second]), errors | later

    def _expressed(self, batch: pa.RecordBatch) -> pa.Array:
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        made = guarded(self._operator, lambda: frame.select(self._event.expression))
        if made.height != batch.num_rows:
            raise FunctionResultError(
                f"operator {self._operator!r} made {made.height} event times of {batch.num_rows} "
                "records; time= takes an expression of columns",
                operator=self._operator,
            )
        return as_milliseconds(normalise(made.to_arrow()).column(0))

    def _called(self, messages: list[Any]) -> tuple[pa.Array, Errors]:
        times: list[int | None] = []
        errors: Errors = {}
        with time_limit(self._limits.timeout_s, lambda: len(times)):
            for row, message in enumerate(messages):
                try:
                    times.append(self._time(message))
                except HeadraceError as error:
                    name_operator(error, self._operator)
                    errors[row] = error
                    times.append(None)
        return pa.array(times, pa.int64()), errors

    def _time(self, message: Any) -> int | None:
        assert self._event.function is not None
        try:
            found = self._event.function(message)
        except HeadraceError:
            raise
        except Overdue as overdue:
            raise overdue_error(self._operator, self._limits.timeout_s, overdue, message) from None
        except Exception as error:
            raise UserFunctionError.of(self._operator, error, message) from error
        if isinstance(found, datetime):
            zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
            return round(zoned.timestamp() * 1_000_000) // 1000
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        raise FunctionResultError(
            f"operator {self._operator!r} returned {found!r:.200} as event time; expected "
            "milliseconds as an integer, or a datetime",
            operator=self._operator,
        )
