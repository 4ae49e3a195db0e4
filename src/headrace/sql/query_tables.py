"""Tables of an app as queries see them, as of one committed epoch: past and current windows.

Past windows are the rows of a table's stream, up to what the epoch has sent (``past_rows``).
Current ones are made of committed state (``current_rows``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.bus import Bus, Stream
from headrace.bus.log_stream import LogStream
from headrace.config import Settings
from headrace.coordinator.commit_log import load_state
from headrace.coordinator.deployment import make_plan
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.manifest import JobState
from headrace.coordinator.outputs import (
    bus_appends,
    last_sequence_of,
    producer_of,
    sequence_of,
)
from headrace.errors import InvalidInputError
from headrace.files import Files
from headrace.graph.builder import Job
from headrace.graph.windows import BOUNDS
from headrace.plan.stages import JobPlan
from headrace.records.evolution import cast_to_schema
from headrace.records.frame import iterate_frames
from headrace.runtime.orders import NO_WATERMARK
from headrace.sources.bounded_bus import preview_inputs
from headrace.sql.current_rows import CurrentRows, Root
from headrace.sql.past_rows import PastRows, Wanted
from headrace.sql.server_tables import ServerRows, server_rows

IS_OPEN = "window_is_open"
"""The column that says of a row whether its window is open, where current windows are asked for."""

OFFSET = "__offset"
"""The column of the offset of a row, where it is followed."""

Windows = Literal["past", "current", "all"]
"""Which windows of a table a query sees: those that were sent, those that are open, or both."""


@dataclass(frozen=True)
class Snapshot:
    """As of which epoch a query is answered: the state of each part, with its storage."""

    job: str
    roots: tuple[Root, ...]

    @property
    def epoch(self) -> int:
        """Of the first part; -1 where the job has none."""
        return self.roots[0][1].epoch if self.roots else -1

    @property
    def version(self) -> tuple[str, ...]:
        """Changes with every epoch of a part."""
        return tuple(state.digest for _, state in self.roots)


class NextRows(NamedTuple):
    """Rows of a partition with their offsets, the offset behind them, and how many were lost."""

    rows: pa.Table
    behind: int
    lost: int


class AppTables:
    """The tables of an app, for queries of any thread.

    Args:
        job: its name.
        bus: returns what has the streams.
        streams: that tables are sent to, by table.
        plans: of the parts of the job; called when current windows are asked for.
        states: returns storage and committed state of each part; called for each snapshot.
        served: tables whose state is on a server.
    """

    def __init__(
        self,
        job: str,
        bus: Callable[[], Bus],
        streams: Callable[[], Mapping[str, str]],
        plans: Callable[[], Sequence[JobPlan]],
        states: Callable[[], Sequence[Root]],
        served: Callable[[], Mapping[str, ServerRows]] = dict,
    ) -> None:
        self.job, self._bus, self._served = job, bus, served
        self._streams, self._plans, self._states = streams, plans, states
        self._files = Files(sync=False)
        self._past: dict[str, PastRows] = {}
        self._current: dict[Path, CurrentRows] = {}
        self._lock = threading.Lock()

    @property
    def streams(self) -> Mapping[str, str]:
        """The stream of each table that is sent to one."""
        return self._streams()

    @property
    def names(self) -> list[str]:
        """The tables."""
        return [*self._streams(), *self._served()]

    def snapshot(self) -> Snapshot:
        """Return what is committed now."""
        return Snapshot(self.job, tuple(self._states()))

    def schema(self, table: str) -> pa.Schema:
        """Return the columns of a table.

        Raises:
            InvalidInputError: its stream is not there yet.
        """
        if (found := self._served().get(table)) is not None:
            return found.table.schema
        return self._rows_of(table).stream.spec.schema

    def ends(self, table: str, snapshot: Snapshot) -> list[int]:
        """Return up to which offset of each partition the rows of a table are of a snapshot."""
        return self._sent(self._rows_of(table).stream, snapshot)[0]

    def bounds(self, table: str) -> list[tuple[int, int]]:
        """Return the first and the next offset of each partition of a table's stream."""
        stream = self._rows_of(table).stream
        return list(zip(stream.begins(), stream.ends(), strict=True))

    def after(self, table: str, partition: int, begin: int, end: int, most: int) -> NextRows:
        """Return the next rows of a partition, with their offsets.

        Args:
            table: its name.
            partition: of its stream.
            begin: the first offset.
            end: the offset to stop before.
            most: how many rows.

        Raises:
            OffsetGoneError: they were removed meanwhile; ask again.
        """
        stream = self._rows_of(table).stream
        low = max(begin, min(end, stream.begins()[partition]))
        stop = min(end, low + most)
        found = list(stream.read(partition, low, stop)) if low < stop else []
        rows = pa.Table.from_batches([one.batch for one in found], stream.spec.schema)
        offsets = np.concatenate([one.offsets for one in found]) if found else np.empty(0, np.int64)
        rows = rows.append_column(OFFSET, pa.array(offsets, pa.int64()))
        return NextRows(rows, found[-1].next_offset if found else end, low - begin)

    def past(self, table: str, snapshot: Snapshot, wanted: Wanted, most: int) -> pa.Table:
        """Return rows of past windows as of a snapshot, all that are wanted among them.

        Raises:
            InvalidInputError: more rows than ``most`` would be read, or there is no stream.
            UnavailableError: the server of the table does not answer.
        """
        if table in self._served():
            return self._on_server(table, snapshot, wanted, is_open=False)
        held = self._rows_of(table)
        ends, last = self._sent(held.stream, snapshot)
        found = held.read(ends, wanted, most)
        unsent = list(self._unsent(held.stream, snapshot, last))
        return pa.concat_tables([found, *unsent]) if unsent else found

    def current(self, table: str, snapshot: Snapshot, wanted: Wanted) -> pa.Table | None:
        """Return rows of windows that are open as of a snapshot, all that are wanted among them.

        Returns:
            ``None``: the table has no windows and no totals, but rows that are sent as they come.

        Raises:
            InvalidInputError: they cannot be made from the state.
            CorruptDataError: files of the snapshot were swept: take another, or it is damaged.
        """
        if table in self._served():
            return self._on_server(table, snapshot, wanted, is_open=True)
        if not snapshot.roots:
            return self.schema(table).empty_table()
        schema, found, is_held = self.schema(table), list[pa.RecordBatch](), False
        for plan in self._plans():
            stages = {stage.name for stage in plan.stages}
            bindings = [one for one in plan.outputs if one.stream == self.streams[table]]
            # A plan of the whole job has the stages of each part.
            roots = [one for one in snapshot.roots if not stages.isdisjoint(one[1].task_counts)]
            for binding, root in product(bindings, roots):
                with self._lock:
                    held = self._current.setdefault(root[0], CurrentRows(self._files))
                try:
                    rows = held.read(plan, root, binding.operator, wanted.values)
                except InvalidInputError as error:
                    raise InvalidInputError(
                        f"current windows of table {table!r} cannot be shown: {error.message}; "
                        "ask for windows=past"
                    ) from error
                if rows is not None:
                    found += [cast_to_schema(one, schema) for one in rows.to_batches()]
                    is_held = True
        return pa.Table.from_batches(found, schema) if is_held else None

    def _on_server(
        self, table: str, snapshot: Snapshot, wanted: Wanted, *, is_open: bool
    ) -> pa.Table:
        """Return rows of a table whose state is on a server; totals are always open."""
        found = self._served()[table]
        rows = found.read(wanted.values)
        if found.table.window is None:
            return rows if is_open else rows.slice(0, 0)
        marks = [at for _, state in snapshot.roots for at in state.watermarks.values()]
        mark = min(marks, default=NO_WATERMARK)
        ends_ms = rows.column(BOUNDS[1]).cast(pa.int64()).to_numpy() // 1000
        return rows.filter(pa.array(ends_ms > mark if is_open else ends_ms <= mark))

    def _rows_of(self, table: str) -> PastRows:
        if table in self._served():
            raise InvalidInputError(
                f"table {table!r} has its state on a server, and no stream that can be followed"
            )
        name = self.streams[table]
        try:
            stream = self._bus().stream(name)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"table {table!r} is empty: stream {name!r} does not exist yet; run the app first"
            ) from error
        with self._lock:
            held = self._past.get(name)
            if held is None or held.stream is not stream:
                held = self._past[name] = PastRows(stream)
        return held

    def _sent(self, stream: Stream, snapshot: Snapshot) -> tuple[list[int], list[list[int]]]:
        """Return the ends as of a snapshot, and the last sequences before these of each part."""
        ends, last = stream.ends(), []
        for _, state in snapshot.roots:
            own = stream.as_of(producer_of(state), last_sequence_of(state))
            ends = [min(end, one.next_offset) for end, one in zip(ends, own, strict=False)]
            last.append([one.sequence for one in own])
        return ends, last

    def is_sent(self, table: str, snapshot: Snapshot) -> bool:
        """Say whether all that a snapshot has sent to a table is in its stream."""
        stream = self._rows_of(table).stream
        rest = self._unsent(stream, snapshot, self._sent(stream, snapshot)[1])
        return next(rest, None) is None

    def _unsent(
        self, stream: Stream, snapshot: Snapshot, last: Sequence[Sequence[int]]
    ) -> Iterator[pa.Table]:
        """Yield rows that the manifests of a snapshot name, and that are not in the stream yet."""
        for (path, state), known in zip(snapshot.roots, last, strict=True):
            for one in bus_appends(state.outputs):
                if one.stream != stream.spec.name:
                    continue
                if sequence_of(state, one.number) <= known[one.partition]:
                    continue
                assert isinstance(stream, LogStream)
                data, newest = self._files.map(path / one.path), stream.schemas.newest
                for begin, end in one.ranges:
                    for frame in iterate_frames(data, begin, end, one.path):
                        batch = stream.schemas.read(data, frame, one.path, None, newest)
                        yield pa.Table.from_batches([batch])


def tables_of_files(
    job: Job, streams: Mapping[str, str], bus: Bus, settings: Settings
) -> AppTables:
    """Return the tables of an app by what is committed to files, whether it runs or not.

    Args:
        job: of the app.
        streams: that its tables are sent to.
        bus: of the home.
        settings: of the home.
    """
    known: dict[Path, JobState] = {}

    def plans() -> list[JobPlan]:
        graph = job.build()
        return [make_plan(graph, preview_inputs(graph, bus, settings), settings, absent_ok=True)]

    def states() -> list[Root]:
        try:
            readers = part_readers(settings, job.name)
        except InvalidInputError:  # it has committed no epoch
            return []
        found = []
        for reader in readers:
            state = load_state(reader.log, known=known.get(reader.root)) or reader.state()
            known[reader.root] = state
            found.append((reader.root, state))
        return found

    served = cache(lambda: server_rows([job.build()]))
    return AppTables(job.name, lambda: bus, lambda: streams, cache(plans), states, served)
