"""``process``: the user's class, called once for each message, with stores and timers.

``TimerService`` fires timers before rows that are past them, and at an epoch's end: what a timer
finds, and where its messages stand among those of rows, is the same however rows fall into epochs,
as far as the rows of its key come in one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import CallTimeoutError, HeadraceError, InvalidInputError
from headrace.graph.introspection import function_site
from headrace.records.keys import encode_columns
from headrace.records.messages import key_values
from headrace.runtime.chunk import UNKNOWN, Chunk, Groups, Ints, RowOrigins, split_groups
from headrace.runtime.context import NO_GROUP, Context, ProcessorCall, TimerOutput
from headrace.runtime.node import Node, Refused
from headrace.runtime.orders import END_WATERMARK, NO_WATERMARK, emit_time
from headrace.runtime.timers import Timer, Timers
from headrace.runtime.user_calls import (
    CallTimeout,
    MessageMaker,
    SideOutputBatch,
    name_operator,
    overdue_error,
    runs_nothing,
    time_limit,
    unsent_result_error,
    user_error,
)
from headrace.state.remote_store import RemoteStore

TIMER_BATCH = 4_096
"""About so many messages of timers are sent on at a time."""


_FAR = 1 << 62


class TimerService:
    """Fires timers of one operator.

    Args:
        current: of the task and operator.
        timers: of the operator.
        hear: calls the user's ``on_timer``, whatever becomes of it.
        answer: calls those who wait for values of remote stores.
    """

    def __init__(
        self,
        current: ProcessorCall,
        timers: Timers,
        hear: Callable[[Timer], None],
        answer: Callable[[], None],
    ) -> None:
        self._current, self.timers = current, timers
        self._hear, self._answer = hear, answer
        self._encode: Callable[[], Sequence[bytes]] = list
        self._owners: Sequence[bytes] | None = None

    def begin_rows(self, marks: Ints | None, encode: Callable[[], Sequence[bytes]]) -> None:
        """Turn to some rows.

        Args:
            marks: what has passed for each, see ``passed_times``; ``None``: that is not known.
            encode: returns the canonical encoding of their keys.
        """
        self._current.marks = None if marks is None else marks.tolist()
        self._encode, self._owners = encode, None

    def is_due(self, row: int) -> bool:
        """Say whether a timer of some key may be due before a row."""
        marks = self._current.marks
        return marks is not None and marks[row] >= self.timers.first

    def before(self, row: int) -> None:
        """Fire the timers of a row's key that are due before it."""
        current = self._current
        if self._owners is None:
            self._owners = self._encode()
        assert current.marks is not None
        group = current.group
        for timer in self.timers.before(group, self._owners[row], current.marks[row]):
            if current.later:
                self._answer()
            self._ring(timer)
            current.timer, current.first = None, len(current.rows)
            current.enter(group)

    def at_end(self, watermark: int, wall_ms: int) -> Iterator[None]:
        """Fire what is due at the end of an epoch; yields when there is something to send on.

        At the end of the inputs only the timers set before it fire: one that sets itself
        again would never end.
        """
        current, ended = self._current, watermark >= END_WATERMARK
        event = self.timers.fire(watermark, wall=False, takes_new=not ended)
        for timers in (event, self.timers.fire(wall_ms, wall=True)):
            try:
                for timer in timers:
                    current.enter(timer.group)
                    self._ring(timer)
                    if len(current.rows) >= TIMER_BATCH:
                        yield
            finally:
                current.timer = None
        if current.rows:
            yield

    def _ring(self, timer: Timer) -> None:
        current = self._current
        current.timer, current.first = timer, len(current.rows)
        self._hear(timer)
        current.stamp(current.first, timer)


def passed_times(chunks: Sequence[Chunk]) -> list[Ints] | None:
    """Return what has passed for each row, before which timers that were due by then fire.

    That is the watermark of its own partition, or its own time where it has none; but nothing
    beyond the time of a row that comes later in its key group and is not late: rows of a slower
    partition come before the timers that are after them. ``None`` where rows have no event time.

    Args:
        chunks: all rows of an epoch, in the order in which they are handled.
    """
    found: list[Ints] = []
    later = np.full(1 << 16, _FAR, np.int64)
    for chunk in reversed(chunks):
        if chunk.times is None or chunk.watermarks is None or chunk.groups is None:
            return None
        groups, marks = chunk.groups, chunk.watermarks
        is_known = marks > NO_WATERMARK // 2
        if not is_known.all():
            marks = np.where(is_known, marks, chunk.times)
        on_time = np.where(chunk.times >= marks, chunk.times, _FAR)
        firsts = np.flatnonzero(np.diff(groups.astype(np.int32), prepend=-1))
        bound, runs = later[groups], groups[firsts]
        np.minimum.at(later, runs, np.minimum.reduceat(on_time, firsts))
        falls = (np.diff(marks) < 0) & (groups[1:] == groups[:-1])
        # Rows of several partitions, or a key group in several places, as behind joins.
        if falls.any() or len(np.unique(runs)) < len(runs):
            bound = np.minimum(bound, _least_from(on_time, groups))
        found.append(np.minimum(marks, bound))
    return found[::-1]


def _least_from(times: Ints, groups: Groups) -> Ints:
    """Return for each row the least time from it on, of its key group."""
    frame = pl.DataFrame({"group": groups, "time": times})
    least: Ints = (
        frame.select(pl.col("time").cum_min(reverse=True).over("group")).to_series().to_numpy()
    )
    return least


def with_timer_rows(
    chunk: Chunk, places: Sequence[int], stamps: Sequence[TimerOutput], earliest: int
) -> Chunk:
    """Return messages with those of timers at the times of these.

    Args:
        chunk: the messages as if all were of rows.
        places: of each among all messages, rising.
        stamps: which of all messages are of timers.
        earliest: none is sent behind this.
    """
    at = np.full(max(stamps[-1].end, places[-1] + 1), NO_WATERMARK, np.int64)
    for stamp in stamps:
        at[stamp.begin : stamp.end] = emit_time(max(stamp.at, earliest))
    own = at[np.asarray(places, np.int64)]
    is_timer = own > NO_WATERMARK
    assert chunk.times is not None
    assert chunk.watermarks is not None
    origins = chunk.origins
    if origins is not None:
        origins = RowOrigins(
            np.where(is_timer, UNKNOWN, origins.sources).astype(np.int32),
            np.where(is_timer, UNKNOWN, origins.offsets),
        )
    return replace(
        chunk,
        times=np.where(is_timer, own, chunk.times),
        watermarks=np.where(is_timer, NO_WATERMARK, chunk.watermarks),
        origins=origins,
    )


def timer_rows(side_batch: SideOutputBatch, stamps: Sequence[TimerOutput], earliest: int) -> Chunk:
    """Return messages that are all of timers as rows.

    Args:
        side_batch: the messages.
        stamps: whose they are; together of all messages.
        earliest: none is sent behind this.
    """
    counts = [stamp.end - stamp.begin for stamp in stamps]
    times = np.repeat([emit_time(max(stamp.at, earliest)) for stamp in stamps], counts)
    groups = np.repeat(np.array([stamp.group for stamp in stamps], np.uint16), counts)
    if side_batch.places is not None:
        times, groups = times[side_batch.places], groups[side_batch.places]
    past = np.full(len(times), NO_WATERMARK, np.int64)
    return Chunk(side_batch.batch, times.astype(np.int64), past, groups)


LATER_LIMIT = 2_000
"""From so many ``get_later`` on they are waited for before the next messages."""


class ProcessNode(Node):
    """Runs one instance of the user's class.

    Args:
        name: of the operator.
        factory: makes the instance.
        current: of this task and operator.
        source: schema of the messages.
        uses: columns that messages have; ``None``: all.
        keys: the partition key's columns that are still there.
        takes: what messages are made as, see ``MessageMaker``.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        current: ProcessorCall,
        *,
        source: pa.Schema,
        uses: Sequence[str] | None,
        keys: Sequence[str],
        takes: Any = None,
    ) -> None:
        super().__init__(name)
        self._current, self._router = current, current.router
        self._context = Context(current)
        self._keys = list(keys)
        self._user = self._call(factory)
        self._process: Callable[..., Any] = getattr(self._user, "process", self._no_process)
        site = function_site(getattr(type(self._user), "process", None))
        self._maker = MessageMaker(name, source, uses, takes, site)
        self._on_timer = getattr(self._user, "on_timer", None)
        current.has_on_timer = self._on_timer is not None
        self._timer_service: TimerService | None = None
        self._waiting: list[Chunk] = []
        if current.timers is not None and current.has_on_timer:
            self._timer_service = TimerService(current, current.timers, self._heard, self._answer)
        current.operator = name
        if hasattr(self._user, "open"):
            self._open()

    def _no_process(self, message: Any, context: Context) -> None:
        raise InvalidInputError(
            f"operator {self.name!r} runs a {type(self._user).__name__}, which has no method "
            "process(self, message, context)",
            operator=self.name,
        )

    def _open(self) -> None:
        """Let the user take what it needs; nothing can be kept or sent before a message."""
        if self._current.timers is not None:
            self._current.enter(NO_GROUP)
        self._call(lambda: self._settled(self._user.open(self._context)))
        if self._current.undo is not None:
            self._current.undo.keep()
        if self._current.take()[0]:
            raise InvalidInputError(
                f"operator {self.name!r} emitted in open(), which would be sent again at each "
                "restart; emit in process or on_timer",
                operator=self.name,
            )

    def _settled(self, result: Any) -> Any:
        """Return what ``open`` or ``close`` comes to."""
        return result

    def begin(self, epoch: int, wall_ms: int, watermark: int) -> None:
        """Turn to an epoch: its wall clock, and the watermark at the end of the last one."""
        current = self._current
        current.epoch, current.wall_ms, current.watermark = epoch, wall_ms, watermark

    @property
    def has_timers(self) -> bool:
        """Say whether it may have timers."""
        return self._timer_service is not None

    def expect(self, watermark: int) -> None:
        """Let timers up to where the epoch will bring the watermark fire before rows."""
        if self._timer_service is not None:
            self._timer_service.timers.expect(watermark)

    def push(self, chunk: Chunk) -> None:
        """Handle rows; where timers may fire between them, once those of the epoch are there."""
        if self._timer_service is None or chunk.times is None:
            self._handle_rows(chunk, None)
            return
        if self.guard is not None:
            chunk, _ = self._maker.of(chunk, self.guard)
        if chunk.rows:
            self._waiting.append(chunk)

    def _handle_waiting(self) -> None:
        chunks, self._waiting = self._waiting, []
        marks = passed_times(chunks)
        for at, chunk in enumerate(chunks):
            self._handle_rows(chunk, None if marks is None else marks[at])

    def _handle_rows(self, chunk: Chunk, marks: Ints | None) -> None:
        """Call ``process`` for each row, grouped by key group where there are groups."""
        chunk, messages = self._maker.of(chunk, self.guard)
        columns = chunk.batch.select(self._keys)
        keys = key_values(columns)
        self._load_remote(chunk.batch)
        if chunk.groups is not None:
            self._prefetch(columns, chunk.groups, keys)
        encode = partial(_encoded, columns)
        self._take(chunk, messages, keys, encode, marks)

    def _take(
        self,
        chunk: Chunk,
        messages: list[Any],
        keys: Sequence[Any],
        encode: Callable[[], Sequence[bytes]],
        marks: Ints | None,
    ) -> None:
        """Handle rows whose messages and keys are at hand; ``encode`` returns these as bytes."""
        current = self._current
        current.keys = keys
        current.times = None if chunk.times is None else chunk.times.tolist()
        if self._timer_service is not None:
            self._timer_service.begin_rows(marks, encode)
        if chunk.groups is None:
            starts = range(0, len(messages), LATER_LIMIT)
            runs = [(0, at, min(at + LATER_LIMIT, len(messages))) for at in starts]
        else:
            runs = split_groups(chunk.groups)
        current.row = 0
        try:
            with time_limit(current.limits.timeout_s, lambda: (current.row, len(current.later))):
                if self.guard is None:
                    self._run(messages, runs)
                else:
                    self._refuse(chunk, self._run_each(messages, runs))
        except CallTimeout as error:
            met = messages[current.row]
            raise overdue_error(self.name, current.limits.timeout_s, error, met) from error
        self._flush(chunk)

    def _refuse(self, chunk: Chunk, refused: Sequence[Refused]) -> None:
        assert self.guard is not None
        self.guard.take(chunk, refused)

    def _record(self, chunk: Chunk, row: int) -> dict[str, Any]:
        return chunk.record(row)

    def _prefetch(self, columns: pa.RecordBatch, groups: Groups, keys: Sequence[Any]) -> None:
        current = self._current
        if not self._keys or not current.stores:
            return
        encoded = encode_columns(columns.columns).to_list()
        for store in current.stores.values():
            if not (isinstance(store, RemoteStore) and store.remote.load):
                store.prefetch(groups, keys, encoded)

    def _load_remote(self, batch: pa.RecordBatch) -> None:
        for store in self._current.stores.values():
            if isinstance(store, RemoteStore) and store.remote.load:
                encoded = encode_columns(batch.select(store.remote.load).columns).to_list()
                store.prefetch((), (), encoded)

    def _run(self, messages: list[Any], runs: list[tuple[int, int, int]]) -> None:
        current, context, process = self._current, self._context, self._process
        service = self._between_rows()
        try:
            for group, start, stop in runs:
                current.enter(group)
                if service is not None:
                    self._run_between(service, messages, start, stop)
                    continue
                for row in range(start, stop):
                    current.row = row
                    made = process(messages[row], context)
                    if made is not None:
                        raise unsent_result_error(self.name, self._user, made, messages[row])
                if len(current.later) >= LATER_LIMIT:
                    self._answer()
            self._answer()
        except HeadraceError as error:
            name_operator(error, self.name)
            raise
        except Exception as error:
            raise user_error(self.name, error, messages[current.row]) from error

    def _between_rows(self) -> TimerService | None:
        """Return what fires timers before rows, where that can be."""
        return None if self._current.marks is None else self._timer_service

    def _run_between(
        self, service: TimerService, messages: list[Any], start: int, stop: int
    ) -> None:
        """Call ``process`` for the rows of a key group, and fire timers that are due before one."""
        current, context, process = self._current, self._context, self._process
        timers, marks = service.timers, current.marks
        assert marks is not None
        for row in range(start, stop):
            current.row = row
            if marks[row] >= timers.first:
                service.before(row)
            made = process(messages[row], context)
            if made is not None:
                raise unsent_result_error(self.name, self._user, made, messages[row])

    def _run_each(self, messages: list[Any], runs: list[tuple[int, int, int]]) -> list[Refused]:
        """Call ``process`` for each row, and take back what it did where it raises."""
        current, refused, service = self._current, [], self._between_rows()
        for group, start, stop in runs:
            current.enter(group)
            for row in range(start, stop):
                current.row = row
                if service is not None and service.is_due(row):
                    service.before(row)
                call = partial(self._sending, self._process, messages[row])
                error = self._tried(call, messages[row], "message")
                if error is not None:
                    refused.append(Refused(row, error))
        return refused

    def _sending(self, call: Callable[[Any, Any], Any], met: object) -> None:
        """Call a method of the user's, which sends by its context."""
        made = call(met, self._context)
        if made is not None:
            raise unsent_result_error(self.name, self._user, made, met)

    def _tried(self, call: Callable[[], Any], met: object, what: str) -> InvalidInputError | None:
        """Make a call that counts completely or not at all; return the error of one that failed."""
        current = self._current
        emitted, undo = len(current.rows), current.undo
        assert undo is not None
        try:
            self._call(call, met, what)
            if len(current.rows) > emitted:
                self._router.packed(current.messages[emitted:])
        except CallTimeoutError:
            raise
        except InvalidInputError as error:
            current.drop_since(emitted)
            undo.take_back()
            return error
        undo.keep()
        return None

    def _answer(self) -> None:
        """Wait for what was asked for, and call those who asked, each as its message."""
        current = self._current
        while current.later:
            asked, current.later = current.later, []
            for store in {one.store: None for one in asked}:
                store.prefetch_async([one.key for one in asked if one.store is store])
            for one in asked:
                current.row = one.row
                if one.group != current.group:
                    current.enter(one.group)
                made = one.then(one.store.get(one.key, one.default))
                if runs_nothing(made):
                    raise unsent_result_error(self.name, self._user, made, one.key)

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Fire the timers that are due, and those that they set and that are due as well."""
        if self._timer_service is None:
            return
        self._handle_waiting()
        current = self._current
        for _ in self._timer_service.at_end(watermark, wall_ms):
            messages, _ = current.take()
            stamps = current.take_stamps()
            for side_batch in self._router.packed(messages):
                self.emit(timer_rows(side_batch, stamps, current.watermark), side_batch.side)

    def _heard(self, timer: Timer) -> None:
        """Call ``on_timer``, and those who asked for values in it."""
        assert self._on_timer is not None
        current = self._current
        call, guard = partial(self._sending, self._on_timer, timer), self.guard
        try:
            with time_limit(current.limits.timeout_s, lambda: len(current.later)):
                if guard is None:
                    self._call(call, timer)
                    self._call(self._answer, timer)
                    return
                error = self._tried(call, timer, "timer")
        except CallTimeout as overdue:
            raise overdue_error(self.name, current.limits.timeout_s, overdue, timer) from overdue
        if error is not None:
            guard.take_lost(error, timer.key)

    def _flush(self, chunk: Chunk) -> None:
        messages, rows = self._current.take()
        stamps = self._current.take_stamps()
        try:
            batches = self._router.packed(messages)
        except InvalidInputError as error:
            record = partial(self._record, chunk)
            raise self._router.refused(error, messages, rows, record) from error
        for side_batch in batches:
            made = side_batch.of(chunk, rows)
            if stamps:
                places = range(len(rows)) if side_batch.places is None else side_batch.places
                made = with_timer_rows(made, places, stamps, self._current.watermark)
            self.emit(made, side_batch.side)

    def _call(self, call: Callable[[], Any], met: object = None, what: str = "timer") -> Any:
        try:
            return call()
        except HeadraceError as error:
            name_operator(error, self.name)
            raise
        except Exception as error:
            raise user_error(self.name, error, met, what) from error

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next timers are due."""
        return (
            (None, None) if self._timer_service is None else self._timer_service.timers.deadlines()
        )

    def close(self) -> None:
        """Give the user's class its chance to release what ``open`` took."""
        if hasattr(self._user, "close"):
            self._call(lambda: self._settled(self._user.close()))


def _encoded(columns: pa.RecordBatch) -> list[bytes]:
    return encode_columns(columns.columns).to_list()
