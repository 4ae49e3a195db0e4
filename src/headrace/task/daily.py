"""``send_to`` a table of the warehouse: sorts out rows that are late for their day."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import EventTimeError, HeadraceError, InvalidInputError
from headrace.graph.daily import ADD, DAY_MS, LATE_ROW, DailyTable
from headrace.plan.stages import SinkBinding
from headrace.records.schema import MAX_EVENT_TIME_MS, as_milliseconds
from headrace.task.chunk import Chunk, Ints
from headrace.task.dead_letters import Refused, without
from headrace.task.sinks import SinkNode


class LateForDayError(InvalidInputError):
    """A row came for a day that was complete by the watermark of its own partition."""


class DailyNode(SinkNode):
    """Keeps the rows of one task, but for those that are late where the table wants none.

    Args:
        name: of the operator.
        binding: with the table.
        table: the same table.
        delay_ms: how far the watermark of what reaches it is behind that of the stage.
    """

    def __init__(self, name: str, binding: SinkBinding, table: DailyTable, delay_ms: int) -> None:
        super().__init__(name, binding)
        self._table, self._delay_ms = table, delay_ms

    def push(self, chunk: Chunk) -> None:
        """Keep the rows that have a day, and are not too late for it."""
        assert self._table.time is not None
        column = as_milliseconds(chunk.batch.column(self._table.time))
        times = pc.fill_null(column, -1).to_numpy()
        refused: dict[int, HeadraceError] = {
            int(row): self._untimed(column[int(row)].as_py())
            for row in np.flatnonzero((times < 0) | (times >= MAX_EVENT_TIME_MS))
        }
        late = self._late(chunk, times)
        self.counts["late"] += len(late)
        if self._table.late != ADD:
            refused |= {int(row): self._too_late(int(times[row])) for row in late}
        if refused:
            rows = [Refused(row, refused[row]) for row in sorted(refused)]
            if self.guard is None:
                raise rows[0].error
            self.guard.take(chunk, rows)
            chunk = without(chunk, rows)
        if chunk.rows:
            super().push(chunk)
            if len(late) and self._table.late == ADD:
                self._tell(np.delete(np.isin(np.arange(len(times)), late), sorted(refused)))

    def _tell(self, is_late: npt.NDArray[np.bool_]) -> None:
        """Say beside the rows that were kept last which of them are late."""
        self._batches[-1] = self._batches[-1].append_column(LATE_ROW, pa.array(is_late))

    def _late(self, chunk: Chunk, times: Ints) -> Ints:
        """The rows whose own watermark was past their day when they came."""
        if chunk.watermarks is None:
            return np.empty(0, np.int64)
        past = self._table.ends_ms(0) - DAY_MS
        ends = (times // DAY_MS + 1) * DAY_MS + past
        return np.flatnonzero((times >= 0) & (ends <= chunk.watermarks - self._delay_ms))

    def _untimed(self, found: int | None) -> EventTimeError:
        said = "null" if found is None else f"{found} ms, outside 1970 to 9999"
        return EventTimeError(
            f"column {self._table.time!r} of a row for table {self._table.name!r} is {said}, so it "
            'has no day; put it right before send_to, or set such rows aside: late="dead_letter"',
            operator=self.name,
        )

    def _too_late(self, time: int) -> LateForDayError:
        day = np.datetime64(time // DAY_MS, "D")
        return LateForDayError(
            f"a row of {day} came for table {self._table.name!r} when that day was complete by the "
            f'watermark of its partition; allow more with lateness= or grace=, or use late="add"',
            operator=self.name,
        )


def node_of(name: str, binding: SinkBinding, delay_ms: int) -> SinkNode:
    """Return the node of a ``send_to`` a receiver outside."""
    sink = binding.sink
    if isinstance(sink, DailyTable):
        return DailyNode(name, binding, sink, delay_ms)
    return SinkNode(name, binding)
