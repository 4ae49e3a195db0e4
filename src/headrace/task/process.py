"""``process``: the user's class, called once for each message, with stores and timers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, InvalidInputError
from headrace.records.keys import encode_columns
from headrace.records.messages import columns_to_lists, from_messages, message_type, to_messages
from headrace.state.objects import ObjectStore
from headrace.task.chunk import Chunk, Groups, split_groups
from headrace.task.node import Node
from headrace.task.orders import END_WATERMARK, NO_WATERMARK
from headrace.task.stateless import UserFunctionError
from headrace.task.timers import Timer, Timers


class Context:
    """What a processor may do while it handles a message or a timer.

    One instance for each task; valid only during the call it is given to. ``store``
    entries and timers belong to the key group of the message at hand: the same store key
    used under two partition keys of different groups names two entries.

    Attributes:
        task: number of the task.
        epoch: the epoch that is running.
        wall_ms: the epoch's wall clock, ms; the same when the epoch is run again.
        watermark: the stage's watermark before this epoch, ms.
    """

    def __init__(self, task: int, stores: Mapping[str, ObjectStore], timers: Timers | None) -> None:
        self.task = task
        self.epoch = 0
        self.wall_ms = 0
        self.watermark = NO_WATERMARK
        self._stores = dict(stores)
        self._timers = timers
        self._messages: list[Any] = []
        self._rows: list[int] = []
        self._row = 0
        self._group = 0
        self._keys: Sequence[Any] = ()
        self._times: Sequence[int] | None = None
        self._timer: Timer | None = None

    @property
    def key(self) -> Any:
        """The partition key of the message or timer: a value, or a tuple of several."""
        if self._timer is not None:
            return self._timer.key
        return self._keys[self._row] if len(self._keys) else None

    @property
    def time(self) -> int | None:
        """The event time of the message, ms, or the due time of the timer."""
        if self._timer is not None:
            return self._timer.at
        return self._times[self._row] if self._times is not None else None

    def store(self, name: str) -> ObjectStore:
        """Return a store that the operator declared.

        Raises:
            InvalidInputError: no such store; names those declared.
        """
        try:
            return self._stores[name]
        except KeyError:
            declared = sorted(self._stores)
            raise InvalidInputError(
                f"no store {name!r}; declared: {declared}; add it to process(stores=...)"
            ) from None

    def emit(self, message: Any) -> None:
        """Send a message on; its event time is that of the message or timer at hand."""
        self._messages.append(message)
        self._rows.append(self._row)

    def set_timer(
        self, at: int | datetime.datetime, name: str = "", *, wall: bool = False
    ) -> None:
        """Have ``on_timer`` called once the watermark (or the wall clock) reaches ``at``.

        Args:
            at: milliseconds since the epoch, or an aware time.
            name: tells timers of one key apart.
            wall: by the wall clock instead of event time.
        """
        self._need_timers().set(self._group, _moment(at), name, self._key_values(), wall=wall)

    def cancel_timer(
        self, at: int | datetime.datetime, name: str = "", *, wall: bool = False
    ) -> None:
        """Take back a timer set for the same key, time and name."""
        self._need_timers().cancel(self._group, _moment(at), name, self._key_values(), wall=wall)

    def _need_timers(self) -> Timers:
        if self._timers is None:
            raise InvalidInputError("timers need a key: put partition_by before process")
        return self._timers

    def _key_values(self) -> tuple[Any, ...]:
        key = self.key
        return key if isinstance(key, tuple) else (key,)

    def enter(self, group: int) -> None:
        """Make a key group the current one, for stores and timers."""
        self._group = group
        for store in self._stores.values():
            store.enter(group)

    def take(self) -> tuple[list[Any], list[int]]:
        """Take what was emitted, and the row each message came from."""
        taken = self._messages, self._rows
        self._messages, self._rows = [], []
        return taken


class ProcessNode(Node):
    """Runs one instance of the user's class.

    Args:
        name: of the operator.
        factory: makes the instance.
        context: of this task.
        timers: the operator's, where the stage is keyed.
        source: schema of the messages.
        schema: of what is emitted; ``None``: nothing may be.
        uses: columns that messages have; ``None``: all.
        keys: the partition key's columns that are still there.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        context: Context,
        timers: Timers | None,
        *,
        source: pa.Schema,
        schema: pa.Schema | None,
        uses: Sequence[str] | None,
        keys: Sequence[str],
    ) -> None:
        super().__init__(name)
        self._context, self._timers, self._schema = context, timers, schema
        self._columns = list(uses) if uses is not None else list(source.names)
        self._message = message_type("Message", pa.schema([source.field(c) for c in self._columns]))
        self._keys = list(keys)
        self._user = self._call(factory)
        if hasattr(self._user, "open"):
            self._call(lambda: self._user.open(context))
        self._on_timer = getattr(self._user, "on_timer", None)

    def push(self, chunk: Chunk) -> None:
        """Call ``process`` for each row, grouped by key group where there are groups."""
        context = self._context
        key_columns = chunk.batch.select(self._keys)
        keys = columns_to_lists(key_columns)
        context._keys = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
        context._times = None if chunk.times is None else chunk.times.tolist()
        context._timer = None
        messages = to_messages(chunk.batch.select(self._columns), self._message)
        if chunk.groups is None:
            self._run(messages, [(0, 0, len(messages))])
        else:
            self._prefetch(key_columns, chunk.groups)
            self._run(messages, split_groups(chunk.groups))
        self._flush(chunk)

    def _prefetch(self, columns: pa.RecordBatch, groups: Groups) -> None:
        if not self._keys or not self._context._stores:
            return
        encoded, keys = encode_columns(columns.columns).to_list(), self._context._keys
        for store in self._context._stores.values():
            store.prefetch(groups, keys, encoded)

    def _run(self, messages: list[Any], runs: list[tuple[int, int, int]]) -> None:
        context, process = self._context, self._user.process
        row = 0
        try:
            for group, start, stop in runs:
                context.enter(group)
                for row in range(start, stop):
                    context._row = row
                    process(messages[row], context)
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to the user's code
            raise UserFunctionError.of(self.name, error, messages[row]) from error

    def advance(self, watermark: int, wall_ms: int) -> None:
        """Fire the timers that are due, and those that they set and that are due as well.

        At the end of the inputs only the timers set before it fire: one that sets itself
        again would never end.
        """
        if self._timers is not None and self._on_timer is not None:
            while self._fire(self._timers.due(watermark, wall=False)):
                if watermark >= END_WATERMARK:
                    break
            self._fire(self._timers.due(wall_ms, wall=True))
        self._context.watermark = watermark

    def _fire(self, timers: list[Timer]) -> bool:
        context = self._context
        assert self._on_timer is not None
        for timer in timers:
            context._timer = timer
            context.enter(timer.group)
            self._call(partial(self._on_timer, timer, context))
            messages, _ = context.take()
            if messages:
                times = np.full(len(messages), timer.at, np.int64)
                groups = np.full(len(messages), timer.group, np.uint16)
                past = np.full(len(messages), NO_WATERMARK, np.int64)
                self.emit(Chunk(self._to_batch(messages), times, past, groups))
        context._timer = None
        return bool(timers)

    def _flush(self, chunk: Chunk) -> None:
        messages, rows = self._context.take()
        if messages:
            self.emit(chunk.derive(self._to_batch(messages), np.asarray(rows, np.int64)))

    def _to_batch(self, messages: list[Any]) -> pa.RecordBatch:
        if self._schema is None:
            raise InvalidInputError(
                f"operator {self.name!r} emitted {messages[0]!r:.200} but declares no columns; "
                "give process(returns=...)",
                operator=self.name,
            )
        return from_messages(messages, self._schema, self.name)

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to the user's code
            raise UserFunctionError.of(self.name, error) from error

    def deadlines(self) -> tuple[int | None, int | None]:
        """Return when the next timers are due."""
        if self._timers is None or self._on_timer is None:
            return None, None
        return self._timers.deadlines()

    def close(self) -> None:
        """Give the user's class its chance to release what ``open`` took."""
        if hasattr(self._user, "close"):
            self._call(self._user.close)


def _moment(at: int | datetime.datetime) -> int:
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise InvalidInputError(f"timer at {at} has no time zone; use an aware time or ms")
        return int(at.timestamp() * 1000)
    return int(at)
