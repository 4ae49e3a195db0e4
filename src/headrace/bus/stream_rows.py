"""``read``: the rows of a stream as frames, for notebooks and scripts, without Spark.

``StreamRows.live`` shows rows while they come: what is committed, for only that is in a stream. A
notebook of Jupyter refreshes by a thread of its own; elsewhere, ``refresh`` does.
"""

from __future__ import annotations

import html
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import polars as pl
import pyarrow as pa

from headrace import extras
from headrace.bus.address import open_bus
from headrace.bus.bus import Stream
from headrace.bus.options import BusOptions
from headrace.bus.spec import OffsetBatch
from headrace.config import Settings, load_settings, project_file
from headrace.config.sections import EARLIEST, LATEST, StartPosition, read_start
from headrace.durations import Duration, duration_ms
from headrace.errors import HeadraceError, InvalidInputError
from headrace.records.schema import event_times

if TYPE_CHECKING:
    import pandas as pd

HEAD_ROWS = 10
OFFSET, PARTITION = "_offset", "_partition"
Place = int | str | datetime


def read(
    stream: str,
    *,
    start: Place | None = None,
    stop: Place | None = None,
    partition: int | Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    offsets: bool = False,
    home: str | os.PathLike[str] | None = None,
) -> StreamRows:
    """Read the rows of a stream, such as the results of a job, without Spark.

    Nothing is read until a method of the result is called; each call reads the rows that are there
    by then. The order is that of partitions and offsets.

    Args:
        stream: its name, or an alias.
        start: ``earliest``, an offset of the partition, or an event time in UTC, as a datetime or
            in ISO 8601: only rows at or after it. Default: ``earliest``.
        stop: where to end: ``latest``, an offset, or an event time, of which only rows before are
            read. Default: the ends of the partitions.
        partition: the only one to read, or several. Default: all.
        columns: the only ones to read. Default: all.
        offsets: add the columns ``_partition`` and ``_offset``.
        home: folder of bus, jobs and state. Default: as for the command line, ``HEADRACE_HOME``, or
            the nearest ``headrace.toml``.

    Raises:
        InvalidInputError: no such stream, partition, column or offset; a time for a stream without
            event time.
    """
    overrides = [] if home is None else [f"home={os.fspath(home)}"]
    settings = load_settings(None, overrides, project=project_file())
    wanted = None if partition is None else _several(partition)
    begin, end = _place(start, "start"), _place(stop, "stop")
    if any(isinstance(place, _Offset) for place in (begin, end)) and len(wanted or ()) != 1:
        raise InvalidInputError(
            "an offset belongs to one partition: say which, as in hr.read(stream, start=100, "
            "partition=0)"
        )
    chosen = None if columns is None else tuple(columns)
    rows = StreamRows(stream, settings, begin, end, wanted, chosen, offsets)
    with rows._opened():  # noqa: SLF001 - mistakes are reported at once
        return rows


@dataclass(frozen=True)
class _Offset:
    offset: int


@dataclass(frozen=True)
class StreamRows:
    """Rows of a stream that are read when a method is called; made by ``read``."""

    name: str
    _settings: Settings
    _start: _Offset | StartPosition | None
    _stop: _Offset | StartPosition | None
    _partitions: tuple[int, ...] | None
    _columns: tuple[str, ...] | None
    _with_offsets: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        with self._opened() as stream:
            return self._schema(stream)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches as they were appended; for more rows than fit into memory."""
        with self._opened() as stream:
            for partition in self._wanted(stream):
                yield from self._batches_of(stream, partition, *self._span(stream, partition))

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        schema = self.schema
        return pa.Table.from_batches(list(self.batches()), schema)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars frame."""
        return _polars(self.to_arrow())

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas frame.

        Raises:
            InvalidInputError: pandas is not installed.
        """
        if (text := extras.lacking("pandas", "to_pandas", "use to_polars or to_arrow")) is not None:
            raise InvalidInputError(text)
        return self.to_arrow().to_pandas()

    def head(self, rows: int = HEAD_ROWS) -> pl.DataFrame:
        """Return the first rows as a Polars frame; reads no more than them.

        Args:
            rows: how many at most.
        """
        found: list[pa.RecordBatch] = []
        left = rows
        for batch in self.batches():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                break
        return _polars(pa.Table.from_batches(found, self.schema).slice(0, rows))

    def live(
        self, *, key: str | Sequence[str] = (), rows: int = HEAD_ROWS, every: Duration = "1s"
    ) -> LiveRows:
        """Return the newest rows as a table that a notebook refreshes while rows are committed.

        Args:
            key: columns; of each key, only the newest row is kept, such as its current value in
                what an aggregate sends. Default: all rows, of which the newest are shown.
            rows: how many are shown.
            every: the time between two looks at the stream.

        Raises:
            InvalidInputError: no such column, or the rows end by ``stop``.
        """
        columns = [key] if isinstance(key, str) else list(key)
        every_ms = duration_ms(every, "every")
        if rows < 1:
            raise InvalidInputError(f"rows: expected at least 1, found {rows}")
        if self._stop is not None:
            raise InvalidInputError(
                "live rows have no end: leave stop= out, or use to_polars() for a range",
                stream=self.name,
            )
        schema = self.schema
        for column in columns:
            if column not in schema.names:
                raise InvalidInputError(
                    f"stream {self.name!r} has no column {column!r}; found {schema.names}",
                    stream=self.name,
                )
        what = (str(self._settings.bus_dir), self.name, tuple(schema.names), tuple(columns))
        made = LiveRows(
            self.name,
            self._tail,
            schema,
            key=columns,
            rows=rows,
            every_s=every_ms / 1000,
            what=what,
        )
        made.refresh()
        return made

    def _tail(self, offsets: dict[int, int], last: int | None) -> Iterator[pa.RecordBatch]:
        with self._opened() as stream:
            for partition in self._wanted(stream):
                if partition in offsets:
                    begin, stop = stream.begins()[partition], stream.ends()[partition]
                    start = max(offsets[partition], begin)
                else:
                    start, stop = self._span(stream, partition)
                if last is not None and not isinstance(self._start, int):
                    start = max(start, stop - last)
                yield from self._batches_of(stream, partition, start, stop)
                offsets[partition] = stop

    def __repr__(self) -> str:
        """Return the name, partitions and columns, with how many rows there are."""
        return f"<rows of stream {self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the first rows as a table, for notebooks."""
        shown = f"rows of stream {self._summary()}; the first {HEAD_ROWS}:"
        return f"<div>{html.escape(shown)}</div>{self.head()._repr_html_()}"

    def _summary(self) -> str:
        with self._opened() as stream:
            spans = [self._span(stream, partition) for partition in self._wanted(stream)]
            rows = sum(max(0, end - begin) for begin, end in spans)
            is_bound = isinstance(self._start, int) or isinstance(self._stop, int)
            about = "at most " if is_bound or stream.spec.compact else ""
            columns = ", ".join(f"{f.name} {f.type}" for f in self._schema(stream))
            partitions = "1 partition" if len(spans) == 1 else f"{len(spans)} partitions"
            return f"{self.name!r}: {about}{rows:,} in {partitions}, columns {columns}"

    @contextmanager
    def _opened(self) -> Iterator[Stream]:
        with open_bus(self._settings.bus_dir, BusOptions.of(self._settings.bus)) as bus:
            stream = bus.stream(self.name)
            self._check(stream)
            yield stream

    def _check(self, stream: Stream) -> None:
        spec = stream.spec
        for partition in self._partitions or ():
            if not 0 <= partition < spec.partitions:
                raise InvalidInputError(
                    f"stream {self.name!r} has no partition {partition}; expected 0 to "
                    f"{spec.partitions - 1}",
                    stream=self.name,
                )
        for column in self._columns or ():
            if column not in spec.schema.names:
                raise InvalidInputError(
                    f"stream {self.name!r} has no column {column!r}; found {spec.schema.names}",
                    stream=self.name,
                )
        if spec.time is None and any(isinstance(p, int) for p in (self._start, self._stop)):
            raise InvalidInputError(
                f"stream {self.name!r} has no event time: give offsets of a partition instead",
                stream=self.name,
            )

    def _wanted(self, stream: Stream) -> Sequence[int]:
        every = range(stream.spec.partitions)
        return every if self._partitions is None else self._partitions

    def _schema(self, stream: Stream) -> pa.Schema:
        schema = stream.spec.schema
        if self._columns is not None:
            schema = pa.schema([schema.field(name) for name in self._columns])
        if self._with_offsets:
            schema = schema.append(pa.field(PARTITION, pa.int32()))
            schema = schema.append(pa.field(OFFSET, pa.int64()))
        return schema

    def _span(self, stream: Stream, partition: int) -> tuple[int, int]:
        """Return the offsets to read; those of a time can hold other rows, too."""
        begin, end = stream.begins()[partition], stream.ends()[partition]
        start = begin
        if isinstance(self._start, _Offset):
            start = self._start.offset
        elif self._start == LATEST:
            start = end
        elif isinstance(self._start, int):
            start = stream.offset_at(partition, self._start)
        stop = end
        if isinstance(self._stop, _Offset):
            stop = self._stop.offset
        elif self._stop == EARLIEST:
            stop = begin
        for offset in (start, stop):
            if not begin <= offset <= end:
                raise InvalidInputError(
                    f"partition {partition} of stream {self.name!r} has no offset {offset}; "
                    f"expected {begin} to {end}",
                    stream=self.name,
                )
        return start, stop

    def _batches_of(
        self, stream: Stream, partition: int, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        if start >= stop:
            return
        bounds = [place if isinstance(place, int) else None for place in (self._start, self._stop)]
        time = stream.spec.time if any(bound is not None for bound in bounds) else None
        columns = self._columns
        if columns is not None and time is not None:
            columns = tuple(dict.fromkeys([*columns, time]))
        schema = self._schema(stream)
        for found in stream.read(partition, start, stop, columns=columns):
            batch = self._rows(found, partition, time, bounds, schema)
            if batch.num_rows:
                yield batch

    def _rows(
        self,
        found: OffsetBatch,
        partition: int,
        time: str | None,
        bounds: Sequence[int | None],
        schema: pa.Schema,
    ) -> pa.RecordBatch:
        batch = found.batch
        if self._with_offsets:
            place = pa.array(np.full(batch.num_rows, partition, np.int32))
            batch = batch.append_column(PARTITION, place)
            batch = batch.append_column(OFFSET, pa.array(found.offsets, pa.int64()))
        if time is not None and batch.num_rows:
            times = event_times(batch.column(time), f"stream {self.name!r}")
            low, high = bounds
            is_wanted = np.ones(len(times), bool)
            is_wanted &= True if low is None else times >= low
            is_wanted &= True if high is None else times < high
            batch = batch.filter(pa.array(is_wanted))
        return batch.select(schema.names).cast(schema)


def _several(partition: int | Sequence[int]) -> tuple[int, ...]:
    return (partition,) if isinstance(partition, int) else tuple(partition)


def _place(given: Any, option: str) -> _Offset | StartPosition | None:
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        return _Offset(given)
    try:
        return read_start(given)
    except InvalidInputError as error:
        raise InvalidInputError(f"{option}: {error.message}") from None


def _polars(table: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found


MERGED_ROWS = 200_000
"""So many new rows are held before only the newest of each key is kept."""

Tail = Callable[[dict[int, int], int | None], Iterable[pa.RecordBatch]]
"""Reads what is behind the offsets, and moves them; of each partition the last so many rows."""


class LiveRows:
    """The newest rows of a stream, or the newest row of each key; made by ``StreamRows.live``.

    As the last line of a cell in Jupyter, it is a table that is refreshed until ``stop``. If the
    same rows are shown again, as when the cell is run again, the former table stops. In marimo, and
    in scripts, call ``refresh`` for each look.

    Args:
        name: of the stream.
        tail: reads what is new.
        schema: of the rows.
        key: columns of the key; empty: all rows are shown.
        rows: how many are shown.
        every_s: seconds between two looks.
        what: names what is shown, so that it is not refreshed twice.
    """

    _shown: ClassVar[WeakValueDictionary[tuple[object, ...], LiveRows]] = WeakValueDictionary()

    def __init__(
        self,
        name: str,
        tail: Tail,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        rows: int,
        every_s: float,
        what: tuple[object, ...],
    ) -> None:
        self.name = name
        self._tail, self._key, self._rows, self._every_s = tail, list(key), rows, every_s
        self._what = what
        self._frame = _combined([], schema)
        self._schema = schema
        self._offsets: dict[int, int] = {}
        self._problem: str | None = None
        self._refreshing, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._handles: list[Any] = []

    @property
    def frame(self) -> pl.DataFrame:
        """The rows as of the last refresh, the newest last: all keys, or the last ``rows`` rows."""
        return self._frame

    @property
    def is_live(self) -> bool:
        """Whether a thread refreshes it."""
        return self._thread is not None and self._thread.is_alive()

    def refresh(self) -> bool:
        """Read what has been committed since the last refresh; return whether there was anything.

        You can call it from any thread.

        Raises:
            HeadraceError: the stream is gone, or does not answer; the rows stay as they are.
        """
        with self._refreshing:
            offsets = dict(self._offsets)
            frame, held, new = self._frame, [], 0
            for batch in self._tail(offsets, None if self._key else self._rows):
                held.append(batch)
                new += batch.num_rows
                if sum(one.num_rows for one in held) >= MERGED_ROWS:
                    frame, held = self._merged(frame, held), []
            self._frame, self._offsets = self._merged(frame, held), offsets
            self._problem = None
            return new > 0

    def stop(self) -> None:
        """Refresh a last time, and no more; you can call it twice."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self._look()

    def _merged(self, frame: pl.DataFrame, batches: list[pa.RecordBatch]) -> pl.DataFrame:
        if not batches:
            return frame
        every = pl.concat([frame, _combined(batches, self._schema)])
        if not self._key:
            return every.tail(self._rows)
        return every.unique(subset=self._key, keep="last", maintain_order=True)

    def _follow(self) -> None:
        while not self._over.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        """Refresh, and show it if anything is new; what goes wrong is shown, and tried again."""
        before = self._problem
        try:
            is_new = self.refresh()
        except (HeadraceError, OSError) as error:
            is_new, self._problem = False, str(error)
        if is_new or self._problem != before or self._over.is_set():
            for handle in self._handles:
                handle.update(self._repr_mimebundle_(), raw=True)

    def __repr__(self) -> str:
        """Return the name of the stream, and how many rows there are."""
        return f"<{self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the newest rows as a table, the newest first."""
        shown = self._frame.tail(self._rows).reverse()
        with pl.Config(tbl_rows=self._rows, tbl_hide_dataframe_shape=True):
            table = shown._repr_html_()
        return f"<div>{html.escape(self._summary())}</div>{table}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _ipython_display_(self) -> None:
        """Show the table, and refresh it from now on if this is a notebook."""
        shell = importlib.import_module("IPython").get_ipython()
        if getattr(shell, "kernel", None) is None:  # a terminal cannot change what it has shown
            print(repr(self))
            return
        former = self._shown.get(self._what)
        if former is not None and former is not self:
            former.stop()
        self._shown[self._what] = self
        display = importlib.import_module("IPython.display").display
        self._handles.append(display(self._repr_mimebundle_(), raw=True, display_id=True))
        if not self.is_live:
            self._over.clear()
            name = f"headrace live {self.name}"
            self._thread = threading.Thread(target=self._follow, name=name, daemon=True)
            self._thread.start()

    def _summary(self) -> str:
        count = self._frame.height
        found = f"{count:,} keys" if self._key else f"the newest {count:,} rows"
        state = ", live" if self.is_live else ""
        problem = "" if self._problem is None else f"; {self._problem}"
        return f"{found} of stream {self.name!r}{state}{problem}"


def _combined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pl.DataFrame:
    found = pl.from_arrow(pa.Table.from_batches(batches, schema))
    assert isinstance(found, pl.DataFrame)
    return found
