"""PySpark's functions with state, run by a Headrace job: what they are given, and what it keeps.

``GroupStates`` runs the function of ``applyInPandasWithState``, with Spark's own ``GroupState``.
``StateVariables`` runs a ``StatefulProcessor`` of ``transformWithState``, whose handle has the
methods of Spark's. Each state variable is a store of the job, with values of Python types; so
nothing goes through a socket, and neither gRPC nor protobuf is needed. Runs in workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import DataType, Row, StructType

from headrace.errors import InvalidInputError
from headrace.graph.operators import StoreSpec
from headrace.graph.processors import KeyedBatchProcessor
from headrace.records.schema import as_milliseconds
from headrace.spark.state_columns import (
    Convert,
    StateColumns,
    StateTypeError,
    local_time,
    plain,
    value_type,
)
from headrace.spark.versions import frame_of_nested, nested_of_frame


@dataclass(frozen=True)
class GroupRows:
    """The rows of a key as Spark's functions see them, and the results that they return.

    Args:
        columns: of the DataFrame, in Spark's Arrow form.
        keys: names of the grouping columns.
        returns: columns of the result.
        time: the event-time column with a watermark, where there is one.
        drops_late: leave out rows behind the watermark, as Spark does with event-time timers.
        zone: the session's time zone, in which frames and rows have times.
        nested: columns of the DataFrame that are arrays or structs, as Spark's types.
        sent: the same, of the result.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    returns: pa.Schema
    time: str | None
    drops_late: bool
    zone: str
    nested: Mapping[str, DataType]
    sent: Mapping[str, DataType]

    def late(self, rows: pa.RecordBatch, watermark: int) -> Any:
        """Return which rows are late, as an array; ``None``: none is."""
        if not self.drops_late or self.time is None:
            return None
        times = as_milliseconds(rows.column(self.time))
        found = pc.fill_null(pc.less_equal(times, watermark), False)
        return found.to_numpy(zero_copy_only=False) if pc.any(found).as_py() else None

    def frame(self, rows: pa.RecordBatch) -> pd.DataFrame:
        """Return rows as Spark hands them to pandas: times without a zone, in the session's."""
        rows = rows.select(self.columns.names).cast(self.columns)
        found = rows.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)
        for name, kind in self.nested.items():
            found[name] = frame_of_nested(rows.column(name), kind, self.zone)
        for name in self._zoned(self.columns):
            found[name] = found[name].dt.tz_convert(self.zone).dt.tz_localize(None)
        return found

    def rows(self, rows: pa.RecordBatch) -> list[Row]:
        """Return rows as Spark's, with times in the session's zone."""
        made = rows.select(self.columns.names).cast(self.zoned).to_pylist()
        row = Row(*self.columns.names)
        return [row(*one.values()) for one in made]

    @cached_property
    def zoned(self) -> pa.Schema:
        """The columns, with times in the session's zone."""
        return pa.schema(
            [field.with_type(_in_zone(field.type, self.zone)) for field in self.columns]
        )

    def row_key(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a grouping key as rows have it."""
        return self._timed_key(values, lambda at: at.astimezone(ZoneInfo(self.zone)))

    def timer_key(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the grouping key of a timer, which Spark reads as it reads states."""
        return self._timed_key(values, local_time)

    def _timed_key(self, values: tuple[Any, ...], convert: Convert) -> tuple[Any, ...]:
        found = []
        for value, name in zip(values, self.keys, strict=True):
            kind = self.columns.field(name).type
            if value is None or not pa.types.is_timestamp(kind):
                found.append(value)
            else:
                found.append(convert(value) if kind.tz else value.replace(tzinfo=None))
        return tuple(found)

    def pandas_key(self, values: tuple[Any, ...], *, scalars: bool) -> tuple[Any, ...]:
        """Return a grouping key as a frame has it, numbers as NumPy's scalars or as Python's."""
        fields = [self.columns.field(name) for name in self.keys]
        found = []
        for value, field in zip(values, fields, strict=True):
            if value is not None and _is_number(field.type):
                found.append(field.type.to_pandas_dtype()(value) if scalars else value)
                continue
            if pa.types.is_string(field.type):
                found.append(value)
                continue
            series = pa.array([value], field.type).to_pandas(coerce_temporal_nanoseconds=True)
            if pa.types.is_timestamp(field.type) and field.type.tz is not None:
                series = series.dt.tz_convert(self.zone).dt.tz_localize(None)
            found.append(series[0])
        return tuple(found)

    def send_frame(self, frame: Any, context: Any) -> None:
        """Emit the rows of a frame that a function returned.

        Raises:
            InvalidInputError: it is none, or has other columns than were declared.
        """
        names = self.returns.names
        if not isinstance(frame, pd.DataFrame):
            raise InvalidInputError(
                f"the function yielded a {type(frame).__name__}; expected pandas DataFrames with "
                f"the columns {names}"
            )
        if frame.empty and not len(frame.columns):
            return
        if list(frame.columns) != names:
            frame = self._renamed(frame)
        rows = self._plain_rows(frame)
        for row in self._converted_rows(frame) if rows is None else rows:
            context.emit(row)

    def _renamed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the declared columns, by name, or by place where they have no names."""
        names = self.returns.names
        is_named = any(isinstance(name, str) for name in frame.columns)
        missing = [name for name in names if name not in frame.columns] if is_named else []
        if missing or len(frame.columns) != len(names):
            raise InvalidInputError(
                f"the function yielded a DataFrame with the columns {list(frame.columns)}; "
                f"outputStructType declares {names}"
            )
        return frame[names] if is_named else frame.set_axis(names, axis=1)

    def _plain_rows(self, frame: pd.DataFrame) -> Iterator[dict[str, Any]] | None:
        """Return rows whose columns need no conversion; ``None``: some do.

        Arrow's own conversion takes most of a millisecond for a frame, however small.
        """
        columns = []
        for field, (_, column) in zip(self.returns, frame.items(), strict=True):
            values, kind = column.tolist(), column.dtype.kind
            if kind == "O" and pa.types.is_string(field.type):
                if not all(isinstance(one, str) for one in values):
                    return None
            elif kind == "f" and pa.types.is_floating(field.type):
                if column.hasnans:
                    return None
            elif column.dtype != np.int64 or not pa.types.is_integer(field.type):
                return None
            columns.append(values)
        names = self.returns.names
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def _converted_rows(self, frame: pd.DataFrame) -> list[dict[str, Any]]:
        for name in self._zoned(self.returns):
            if getattr(frame[name].dtype, "tz", None) is None:
                zoned = pd.to_datetime(frame[name]).dt.tz_localize(self.zone)
                frame = frame.assign(**{name: zoned})
        for name, kind in self.sent.items():
            frame = frame.assign(**{name: nested_of_frame(frame[name], kind, self.zone)})
        batch = pa.RecordBatch.from_pandas(frame, schema=self.returns, preserve_index=False)
        found: list[dict[str, Any]] = batch.to_pylist()
        return found

    def send_row(self, row: Any, context: Any) -> None:
        """Emit a row that a processor returned: by its names where it has some, else by place."""
        names = self.returns.names
        values = row.asDict() if isinstance(row, Row) and hasattr(row, "__fields__") else None
        if values is None:
            if len(row) != len(names):
                raise InvalidInputError(f"the processor yielded {row!r:.200}; expected {names}")
            values = dict(zip(names, row, strict=True))
        missing = [name for name in names if name not in values]
        if missing:
            raise InvalidInputError(
                f"the processor yielded {row!r:.200}; outputStructType declares {names}"
            )
        context.emit({name: plain(values[name]) for name in names})

    @staticmethod
    def _zoned(schema: pa.Schema) -> list[str]:
        return [f.name for f in schema if pa.types.is_timestamp(f.type) and f.type.tz is not None]


def _in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """Return a type whose times with a zone have this one."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([one.with_type(_in_zone(one.type, zone)) for one in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_zone(kind.value_type, zone)))
    return kind


def _is_number(kind: pa.DataType) -> bool:
    found: bool = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return found or bool(pa.types.is_boolean(kind))


@dataclass(frozen=True)
class EpochRows:
    """All rows of an epoch: a frame, or a list of ``Row``; and which of them are late."""

    rows: Any
    late: Any

    def of(self, own: slice) -> Any:
        """Return those of a key, without late ones; ``None``: all are late."""
        found = self.rows[own]
        if self.late is not None and self.late[own].any():
            kept = ~self.late[own]
            if not kept.any():
                return None
            found = found[kept] if isinstance(found, pd.DataFrame) else [*compress(found, kept)]
        return found.reset_index(drop=True) if isinstance(found, pd.DataFrame) else found


def _values(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


STATE, TIMEOUT, TIMERS = "state", "timeout", "timers"


class GroupStates(KeyedBatchProcessor):
    """Runs the function of ``applyInPandasWithState``.

    Args:
        function: the user's, as cloudpickle has it: each task has its own.
        rows: what it sees.
        state: columns of the state.
        timeout: the timeout conf.
    """

    def __init__(self, function: bytes, rows: GroupRows, state: StructType, timeout: str) -> None:
        self._function: Callable[..., Any] = cloudpickle.loads(function)
        self._rows, self._schema, self._timeout = rows, state, timeout
        self._columns = StateColumns.of(state)
        if timeout != "NoTimeout":
            self.on_timer = self._on_timer

    @staticmethod
    def stores(state: StructType, timeout: str) -> list[StoreSpec]:
        """Return the stores that it needs."""
        timed = [StoreSpec(TIMEOUT, value=int)] if timeout != "NoTimeout" else []
        return [StoreSpec(STATE, value=value_type(state)), *timed]

    def prepare(self, rows: pa.RecordBatch, context: Any) -> EpochRows:
        """Return a frame: to make one for each key takes longer than most functions."""
        return EpochRows(self._rows.frame(rows), self._rows.late(rows, context.watermark))

    def process_rows(self, prepared: EpochRows, rows: slice, context: Any) -> None:
        """Call the function with the rows of a key."""
        frame = prepared.of(rows)
        if frame is not None:
            self._call(frame, context, has_timed_out=False)

    def _on_timer(self, timer: Any, context: Any) -> None:
        del timer
        empty = self._rows.columns.empty_table().to_batches(max_chunksize=1)
        batch = empty[0] if empty else pa.RecordBatch.from_pylist([], self._rows.columns)
        self._call(self._rows.frame(batch), context, has_timed_out=True)

    def _call(self, frame: pd.DataFrame, context: Any, *, has_timed_out: bool) -> None:
        store, key = context.store(STATE), context.key
        held = store.get(key)
        is_wall = self._timeout == "ProcessingTimeTimeout"
        if self._timeout != "NoTimeout":
            self._cancel(context, is_wall=is_wall)
        state = GroupState(
            optionalValue=None if held is None else Row(*self._columns.seen(held)),  # type: ignore[arg-type]
            batchProcessingTimeMs=context.wall_ms,
            eventTimeWatermarkMs=max(0, context.watermark),
            timeoutConf=self._timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._rows.time is not None or self._timeout == "EventTimeTimeout",
            defined=held is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        frames = self._function(
            self._rows.pandas_key(_values(key), scalars=True), iter([frame]), state
        )
        for made in frames:
            self._rows.send_frame(made, context)
        found = msgspec.json.decode(state.json(), type=dict[str, Any])
        if found["updated"]:
            store.put(key, self._columns.stored(STATE, state.get))
        elif found["removed"] and held is not None:
            store.delete(key)
        at = found["timeoutTimestamp"]
        if at != GroupState.NO_TIMESTAMP:
            context.store(TIMEOUT).put(key, at)
            context.set_timer(at + 1, wall=is_wall)  # Spark's is due once it has passed

    def _cancel(self, context: Any, *, is_wall: bool) -> None:
        """Forget the timeout: each call begins without one."""
        held = context.store(TIMEOUT).get(context.key)
        if held is not None:
            context.cancel_timer(held + 1, wall=is_wall)
            context.store(TIMEOUT).delete(context.key)


@dataclass(frozen=True)
class Variable:
    """A state variable, as ``init`` of a processor declares it.

    Args:
        shape: ``value``, ``list`` or ``map``.
        kind: the type of its values.
        key: that of its keys, of a map.
        ttl_ms: how long a value lives after it was written.
    """

    shape: str
    kind: Any
    key: Any = None
    ttl_ms: int | None = None

    def spec(self, name: str) -> StoreSpec:
        """Return its store; elements of a list have a time to live each, beside that of all."""
        kind = list[tuple[int, self.kind]] if self.shape == "list" else self.kind  # type: ignore[name-defined]
        return StoreSpec(name, value=kind, ttl_ms=self.ttl_ms)


class Handle:
    """Stands for Spark's ``StatefulProcessorHandle``; notes the variables that ``init`` declares.

    ``context`` is that of the job while the processor is called.
    """

    def __init__(self, parse: Callable[[str], Any], time_mode: str) -> None:
        self._parse, self._mode = parse, time_mode.lower()
        self.variables: dict[str, Variable] = {}
        self.context: Any = None

    @property
    def is_wall(self) -> bool:
        """Whether timers are by the wall clock."""
        return self._mode == "processingtime"

    def _columns(self, schema: StructType | str) -> StateColumns:
        return StateColumns.of(self._parse(schema) if isinstance(schema, str) else schema)

    def _check_timed(self) -> None:
        if self._mode == "none":
            raise InvalidInputError("timers need timeMode ProcessingTime or EventTime; found None")

    def _declare(self, name: str, variable: Variable) -> None:
        if name in {TIMERS, *self.variables}:
            raise StateTypeError(
                f"state {name!r} is declared twice, or has the name of the timers; choose another"
            )
        self.variables[name] = variable

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> _Value:
        """Declare a state of one value."""
        columns = self._columns(schema)
        self._declare(stateName, Variable("value", columns.kind, ttl_ms=ttlDurationMs))
        return _Value(self, stateName, columns)

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> _List:
        """Declare a state of many values."""
        columns = self._columns(schema)
        self._declare(stateName, Variable("list", columns.kind, ttl_ms=ttlDurationMs))
        return _List(self, stateName, columns, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> _Map:
        """Declare a state of values by a key of the user's."""
        key, columns = self._columns(userKeySchema), self._columns(valueSchema)
        self._declare(stateName, Variable("map", columns.kind, key.kind, ttlDurationMs))
        return _Map(self, stateName, columns, key)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the grouping key."""
        self._check_timed()
        at = int(expiryTimestampMs)
        self.context.set_timer(at + 1, wall=self.is_wall)  # Spark's is due once it has passed
        held = self._timers()
        if at not in held:
            self.context.store(TIMERS).put(self.context.key, sorted([*held, at]))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Take a timer of the grouping key back."""
        self._check_timed()
        at = int(expiryTimestampMs)
        self.context.cancel_timer(at + 1, wall=self.is_wall)
        left = [one for one in self._timers() if one != at]
        if left:
            self.context.store(TIMERS).put(self.context.key, left)
        else:
            self.context.store(TIMERS).delete(self.context.key)

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the grouping key."""
        self._check_timed()
        return iter(self._timers())

    def deleteIfExists(self, stateName: str) -> None:
        """Refuse: the store of a variable goes with its declaration.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError(
            f"deleteIfExists({stateName!r}) does not exist here: leave the declaration out of "
            "init, and start the job over with headrace jobs reset"
        )

    def _timers(self) -> list[int]:
        found: list[int] = self.context.store(TIMERS).get(self.context.key, [])
        return found


class _State:
    """A state variable of Spark's over a store, which has one entry for each key."""

    def __init__(self, handle: Handle, name: str, columns: StateColumns) -> None:
        self._handle, self._name, self._columns = handle, name, columns

    @property
    def _store(self) -> Any:
        return self._handle.context.store(self._name)

    def clear(self) -> None:
        key = self._handle.context.key
        if key in self._store:
            self._store.delete(key)


class _Value(_State):
    """Spark's ``ValueState``."""

    def exists(self) -> bool:
        return self._handle.context.key in self._store

    def get(self) -> tuple[Any, ...] | None:
        found = self._store.get(self._handle.context.key)
        return None if found is None else self._columns.seen(found)

    def update(self, newValue: tuple[Any, ...]) -> None:
        value = self._columns.stored(self._name, newValue)
        self._store.put(self._handle.context.key, value)


class _List(_State):
    """Spark's ``ListState``: the list of a key is one entry."""

    def __init__(
        self, handle: Handle, name: str, columns: StateColumns, ttl_ms: int | None
    ) -> None:
        super().__init__(handle, name, columns)
        self._ttl_ms = ttl_ms

    def _held(self) -> list[tuple[int, Any]]:
        context = self._handle.context
        found: list[tuple[int, Any]] = self._store.get(context.key, [])
        if self._ttl_ms is None:
            return found
        return [one for one in found if one[0] + self._ttl_ms > context.wall_ms]

    def _put(self, held: list[tuple[int, Any]], added: Sequence[Any]) -> None:
        context = self._handle.context
        new = [(context.wall_ms, self._columns.stored(self._name, one)) for one in added]
        self._store.put(context.key, [*held, *new])

    def exists(self) -> bool:
        return bool(self._held())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([self._columns.seen(value) for _, value in self._held()])

    def put(self, newState: Sequence[tuple[Any, ...]]) -> None:
        self._put([], newState)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._put(self._held(), [newState])

    def appendList(self, newState: Sequence[tuple[Any, ...]]) -> None:
        self._put(self._held(), newState)


class _Map(_State):
    """Spark's ``MapState``: each key of the user's is an entry."""

    def __init__(self, handle: Handle, name: str, columns: StateColumns, key: StateColumns) -> None:
        super().__init__(handle, name, columns)
        self._key = key

    def _full(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*_values(self._handle.context.key), *self._key.stored(self._name, key))

    def exists(self) -> bool:
        return next(self.iterator(), None) is not None

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        found = self._store.get(self._full(key))
        return None if found is None else self._columns.seen(found)

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._full(key) in self._store

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        self._store.put(self._full(key), self._columns.stored(self._name, value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        own = _values(self._handle.context.key)
        for key, value in self._store.scan(prefix=own):
            yield self._key.seen(key[len(own) :]), self._columns.seen(value)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        return (value for _, value in self.iterator())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        full = self._full(key)
        if full in self._store:
            self._store.delete(full)

    def clear(self) -> None:
        own = _values(self._handle.context.key)
        for key in [key for key, _ in self._store.scan(prefix=own)]:
            self._store.delete(key)


class StateVariables(KeyedBatchProcessor):
    """Runs a processor of ``transformWithState``.

    Args:
        processor: the user's, as cloudpickle has it: each task has its own.
        rows: what it sees.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
        schemas: what texts in its ``init`` stand for; a worker has no session to read them.
        in_pandas: it takes and returns pandas frames, else rows.
    """

    def __init__(
        self,
        processor: bytes,
        rows: GroupRows,
        time_mode: str,
        schemas: Mapping[str, StructType],
        *,
        in_pandas: bool,
    ) -> None:
        self._processor: Any = cloudpickle.loads(processor)
        self._rows, self._mode, self._in_pandas = rows, time_mode.lower(), in_pandas
        self._handle = Handle(lambda text: schemas[text], time_mode)
        self._processor.init(self._handle)
        if self._mode != "none":
            self.on_timer = self._on_timer

    @staticmethod
    def stores(
        processor: bytes, time_mode: str, parse: Callable[[str], StructType]
    ) -> list[StoreSpec]:
        """Return the stores that it needs: its ``init`` says it, as to Spark's own driver."""
        handle, made = Handle(parse, time_mode), cloudpickle.loads(processor)
        made.init(handle)
        made.close()
        timed = [StoreSpec(TIMERS, value=list[int])] if time_mode.lower() != "none" else []
        return [*(one.spec(name) for name, one in handle.variables.items()), *timed]

    def prepare(self, rows: pa.RecordBatch, context: Any) -> EpochRows:
        """Return a frame, or rows."""
        made: Any = self._rows.frame(rows) if self._in_pandas else self._rows.rows(rows)
        return EpochRows(made, self._rows.late(rows, context.watermark))

    def process_rows(self, prepared: EpochRows, rows: slice, context: Any) -> None:
        """Hand the rows of a key over."""
        found = prepared.of(rows)
        if found is None:
            return
        self._handle.context = context
        given = iter([found] if self._in_pandas else found)
        values = _values(context.key)
        key = (
            self._rows.pandas_key(values, scalars=False)
            if self._in_pandas
            else self._rows.row_key(values)
        )
        self._send(self._processor.handleInputRows(key, given, self._times(context)), context)

    def _on_timer(self, timer: Any, context: Any) -> None:
        self._handle.context = context
        key, expired = self._rows.timer_key(_values(context.key)), timer.at - 1
        times, info = self._times(context), ExpiredTimerInfo(expired)
        self._send(self._processor.handleExpiredTimer(key, times, info), context)
        self._handle.deleteTimer(expired)

    def _times(self, context: Any) -> Any:
        if self._mode == "none":
            return TimerValues(-1, -1)
        return TimerValues(context.wall_ms, max(0, context.watermark))

    def _send(self, made: Iterable[Any], context: Any) -> None:
        send = self._rows.send_frame if self._in_pandas else self._rows.send_row
        for one in made:
            send(one, context)

    def close(self) -> None:
        """Let the processor release what it took."""
        self._processor.close()
