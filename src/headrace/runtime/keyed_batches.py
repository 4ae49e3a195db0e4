"""Runs a ``KeyedBatchProcessor``: one call for all rows that an epoch has of a key, then timers."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.graph.processors import KeyedBatchProcessor
from headrace.records.keys import encode_columns
from headrace.records.messages import key_values
from headrace.runtime.chunk import Chunk, concat_chunks
from headrace.runtime.process import ProcessNode
from headrace.runtime.user_calls import CallTimeout, name_operator, overdue_error, time_limit


class KeyedBatchNode(ProcessNode):
    """Holds the rows of an epoch, and hands them over by key when all are there."""

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch; forget what an attempt before left."""
        super().begin(epoch, wall_ms, watermark)
        self._waiting = []

    def push(self, chunk: Chunk) -> None:
        """Hold rows."""
        self._waiting.append(chunk)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Call the processor once for each key, then for the timers that are due."""
        chunks, self._waiting = self._waiting, []
        if chunks:
            self._handle(concat_chunks(chunks))
        super().advance(watermark, wall_ms)

    def _handle(self, chunk: Chunk) -> None:
        assert chunk.groups is not None
        current, user = self._current, self._user
        assert isinstance(user, KeyedBatchProcessor)
        columns = chunk.batch.select(self._keys)
        current.keys = key_values(columns)
        current.times = None if chunk.times is None else chunk.times.tolist()
        current.marks = None
        self._prefetch(columns, chunk.groups, current.keys)
        found: dict[tuple[int, bytes], list[int]] = {}
        owners = encode_columns(columns.columns).to_list()
        for row, owner in enumerate(zip(chunk.groups.tolist(), owners, strict=True)):
            found.setdefault(owner, []).append(row)
        if self._timer_service is not None:
            self._timer_service.begin_rows(None, list)
        calls = sorted(found.items(), key=lambda one: one[0][0])  # of a group in order of arrival
        order = [row for _, rows in calls for row in rows]
        prepared = user.prepare(chunk.batch.take(pa.array(order)), self._context)
        start = 0
        met: object = None
        try:
            with time_limit(current.limits.timeout_s, lambda: current.row):
                for (group, _), rows in calls:
                    current.enter(group)
                    current.row = rows[-1]
                    met = current.keys[current.row]
                    own = slice(start, start := start + len(rows))
                    self._call(partial(user.process_rows, prepared, own, self._context), met)
        except CallTimeout as error:
            raise overdue_error(self.name, current.limits.timeout_s, error, met) from error
        except HeadraceError as error:
            name_operator(error, self.name)
            raise
        self._flush(chunk)
