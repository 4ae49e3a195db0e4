"""The Python data source ``headrace-wake`` behind the Structured Streaming query.

It moves no rows. Its offset counts wake-ups: it rises when the coordinator has something to
do: new input, a timer that is due (the tick), the end of a bounded run. It runs in a
process of its own beside the driver, and knows only what bus and manifests say on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace.bus.address import open_bus
from headrace.clock import SystemClock
from headrace.coordinator.commit_log import FileCommitLog
from headrace.coordinator.history import load_state
from headrace.coordinator.manifest import InputPosition, JobState
from headrace.coordinator.naming import expanded
from headrace.coordinator.planning import next_wall_deadline
from headrace.files import Files

NAME = "headrace-wake"
WAIT_S = 0.5


class WakeSource(DataSource):
    """Registers as ``headrace-wake``.

    Options: ``bus`` and ``storage`` (paths), ``inputs`` (JSON of operator to stream),
    ``patterns`` (JSON of operator to pattern).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name used with ``readStream.format``."""
        return NAME

    def schema(self) -> str:
        """Return the columns; there are never rows."""
        return "wake bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a query."""
        return WakeReader(self.options)


class WakeReader(DataSourceStreamReader):
    """Tells the query when to wake."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._named: dict[str, str] = msgspec.json.decode(options["inputs"])
        self._patterns: dict[str, str] = msgspec.json.decode(options["patterns"])
        self._open()

    def _open(self) -> None:
        self._clock = SystemClock()
        self._bus = open_bus(Path(self._options["bus"]))
        storage = Path(self._options["storage"])
        self._log = FileCommitLog(storage, Files(sync=False), self._clock)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open: Spark copies the reader with every batch."""
        return {
            "_options": self._options,
            "_named": self._named,
            "_patterns": self._patterns,
        }

    def initialOffset(self) -> dict[str, Any]:
        """Return the first count."""
        return {"wake": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the next count if there is work now or within a moment, else the same."""
        state = load_state(self._log)
        if state is None or state.ended:
            self._clock.sleep(WAIT_S)
            return start
        inputs = expanded(self._named, self._patterns, self._bus)
        ends = {stream: self._bus.stream(stream).ends() for stream in inputs.values()}
        if ends and not self._has_work(state, inputs, ends):
            first = next(iter(ends))
            due = next_wall_deadline(state)
            left = WAIT_S if due is None else max(0.0, (due - self._clock.now_ms()) / 1000)
            self._bus.stream(first).wait(ends[first], min(WAIT_S, left))
            ends = {stream: self._bus.stream(stream).ends() for stream in ends}
            if not self._has_work(state, inputs, ends):
                return start
        return {"wake": start["wake"] + 1}

    def _has_work(
        self, state: JobState, inputs: Mapping[str, str], ends: Mapping[str, Sequence[int]]
    ) -> bool:
        due = next_wall_deadline(state)
        if due is not None and due <= self._clock.now_ms():
            return True
        behind = False
        for operator, stream in inputs.items():
            behind = behind or operator not in state.inputs  # it came to a pattern
            until = (state.until or {}).get(stream)
            for partition, end in enumerate(ends[stream]):
                held = state.inputs.get(operator, {}).get(partition, InputPosition(0))
                limit = end if until is None else min(end, dict(enumerate(until)).get(partition, 0))
                behind = behind or held.next_offset < limit
        return behind or state.until is not None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return no partitions: the slots read the bus themselves."""
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return no rows."""
        return iter(())
