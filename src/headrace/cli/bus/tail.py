"""``headrace bus tail``: chooses the rows to print, and prints them as a table, lines or JSON."""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.bus import Stream, StreamSpec
from headrace.bus.readable import NEVER
from headrace.cli.arguments import read_time
from headrace.cli.output import Output, time_text
from headrace.coordinator.inspection.row_filters import matching
from headrace.errors import InvalidInputError
from headrace.records.schema import event_times

DEFAULT_ROWS = 10
_WAIT_S = 0.5
_WIDER = 8
_CHUNK_ROWS = 1000
_OFFSET = "_offset"


class TailedRow(NamedTuple):
    """A row, and where it is; ``time_ms`` is ``None`` in a stream without event time."""

    partition: int
    offset: int
    time_ms: int | None
    row: dict[str, Any]


class ReadEnds(NamedTuple):
    """Up to which offset each partition is read now, and whether none is ever read further."""

    offsets: dict[int, int]
    is_reached: bool

    @classmethod
    def of(cls, stops: Mapping[int, int], ends: Sequence[int]) -> ReadEnds:
        """Return them where partitions have some ends."""
        reached = all(stop <= ends[p] for p, stop in stops.items())
        return cls({p: min(stop, ends[p]) for p, stop in stops.items()}, reached)


class Tail:
    """Reads a stream, or one partition of it, from some place on.

    Args:
        stream: to read.
        partition: the only one to read; ``None``: all.
        where: a condition in SQL on the columns, which rows have to meet.

    Raises:
        InvalidInputError: there is no such partition.
    """

    def __init__(self, stream: Stream, partition: int | None, where: str | None = None) -> None:
        self._stream, self._where = stream, where
        count = stream.spec.partitions
        if partition is not None and partition >= count:
            raise InvalidInputError(
                f"stream {stream.spec.name!r} has no partition {partition}; expected 0 to "
                f"{count - 1}",
                stream=stream.spec.name,
            )
        self._partitions = list(range(count)) if partition is None else [partition]

    def rows(
        self,
        start: str | None,
        most: int | None,
        *,
        until: str | None = None,
        follow: bool = False,
    ) -> Iterator[list[TailedRow]]:
        """Yield groups of rows, each in order of event time where there is one.

        Args:
            start: ``earliest``, ``latest``, an offset, a time; ``None``: the last rows.
            most: how many rows; ``None``: 10, or no bound when ``start`` is given, as with the
                readers of Kafka's consoles. Without ``follow`` it ends at the ends of now.
            until: where it ends: ``latest``, an offset, or a time, at whose first row it ends.
            follow: wait for more, forever or until there are ``most`` from ``start`` on.

        Raises:
            InvalidInputError: ``start`` or ``until`` cannot be read, or ``start`` is not in the
                stream.
        """
        if start is None:
            most = DEFAULT_ROWS if most is None else most
        elif until is None and not follow:
            until = "latest"  # a stream that grows while it is printed has no end of its own
        stop = self.stop(until)
        ends = stop(self._stream.ends())
        if start is None:
            assert most is not None
            yield self._last(most, ends.offsets)
            most = None
            at = dict(ends.offsets)
        else:
            at = self.places(start, "--from")
        if start is not None or (follow and not ends.is_reached):
            yield from self._onward(at, most, stop, follow=follow)

    def _last(self, most: int, ends: Mapping[int, int]) -> list[TailedRow]:
        begins = self._stream.begins()
        found: list[TailedRow] = []
        for p in self._partitions:
            span, last = most, deque[TailedRow](maxlen=most)
            while most and len(last) < most:
                first = max(begins[p], ends[p] - span)
                last = deque(self._read(p, first, ends[p]), most)
                if first == begins[p]:
                    break
                span *= _WIDER  # rows are left out by a condition, or were compacted away
            found += last
        return _ordered(found)[max(0, len(found) - most) :]

    def stop(self, until: str | None) -> Callable[[Sequence[int]], ReadEnds]:
        """Return what says how far to read when partitions have some ends.

        Args:
            until: ``latest``, an offset, a time; ``None``: forever.

        Raises:
            InvalidInputError: it cannot be read, or is an offset of several partitions.
        """
        if until is None or until == "latest":
            here = self._stream.ends()
            fixed = {p: NEVER if until is None else here[p] for p in self._partitions}
            return lambda ends: ReadEnds.of(fixed, ends)
        if until.isdecimal():
            self._check_single(int(until), "--until")
            return lambda ends: ReadEnds.of(dict.fromkeys(self._partitions, int(until)), ends)
        time_ms = read_time(until, "--until", "latest, an offset, or a time")

        def at_time(ends: Sequence[int]) -> ReadEnds:
            found = {p: self._stream.offset_at(p, time_ms) for p in self._partitions}
            later = {p: at if at < ends[p] else NEVER for p, at in found.items()}
            return ReadEnds.of(later, ends)

        return at_time

    def _onward(
        self,
        at: dict[int, int],
        most: int | None,
        stop: Callable[[Sequence[int]], ReadEnds],
        *,
        follow: bool,
    ) -> Iterator[list[TailedRow]]:
        while most is None or most > 0:
            known = self._stream.ends()
            ends, is_reached = stop(known)
            limit = _CHUNK_ROWS if most is None else min(most, _CHUNK_ROWS)
            stops = {p: min(ends[p], at[p] + limit) for p in self._partitions}
            read = {p: list(self._read(p, at[p], stops[p])) for p in self._partitions}
            found = _ordered([row for rows in read.values() for row in rows])[:limit]
            shown = Counter(row.partition for row in found)
            for p, rows in read.items():
                at[p] = rows[shown[p]].offset if shown[p] < len(rows) else max(at[p], stops[p])
            if found:
                most = None if most is None else most - len(found)
                yield found
            elif any(at[p] < ends[p] for p in self._partitions):
                continue
            elif follow and not is_reached:
                self._stream.wait(known, _WAIT_S)
            else:
                return

    def _read(self, partition: int, start: int, stop: int) -> Iterator[TailedRow]:
        time = self._stream.spec.time
        if start >= stop:
            return
        for found in self._stream.read(partition, start, stop):
            batch = whole = found.batch
            offsets = found.offsets.tolist()
            if self._where is not None:
                numbered = whole.append_column(_OFFSET, pa.array(offsets, pa.int64()))
                kept = next(matching([numbered], self._where), None)
                if kept is None:
                    continue
                batch = kept
                offsets = batch.column(_OFFSET).to_pylist()
                batch = batch.select(whole.schema.names)
            times = None if time is None else event_times(batch.column(time), "the stream")
            for index, row in enumerate(batch.to_pylist()):
                at = None if times is None else int(times[index])
                yield TailedRow(partition, offsets[index], at, row)

    def places(self, start: str, option: str) -> dict[int, int]:
        """Return the offset that a word means in each partition.

        Args:
            start: ``earliest``, ``latest``, an offset, a time.
            option: that it was given to.

        Raises:
            InvalidInputError: it cannot be read, or is not in the stream.
        """
        return {p: self._place(p, start, option) for p in self._partitions}

    def _place(self, partition: int, start: str, option: str) -> int:
        begin, end = self._stream.begins()[partition], self._stream.ends()[partition]
        if start in ("earliest", "latest"):
            return begin if start == "earliest" else end
        if start.isdecimal():
            return self._offset(partition, int(start), begin, end, option)
        at = read_time(start, option, "earliest, latest, an offset, or a time")
        return self._stream.offset_at(partition, at)

    def _check_single(self, offset: int, option: str) -> None:
        if len(self._partitions) > 1:
            raise InvalidInputError(
                f"{option} {offset} is an offset, which is of one partition; add --partition, from "
                f"0 to {len(self._partitions) - 1}"
            )

    def _offset(self, partition: int, offset: int, begin: int, end: int, option: str) -> int:
        self._check_single(offset, option)
        if not begin <= offset <= end:
            raise InvalidInputError(
                f"partition {partition} has no offset {offset}; expected {begin} to {end}",
                stream=self._stream.spec.name,
            )
        return offset


def _ordered(rows: list[TailedRow]) -> list[TailedRow]:
    """By event time over partitions; within a partition offsets never go back."""
    if any(row.time_ms is None for row in rows):
        return sorted(rows, key=lambda row: (row.partition, row.offset))
    latest: dict[int, int] = {}
    keys = []
    for row in rows:
        assert row.time_ms is not None
        latest[row.partition] = max(row.time_ms, latest.get(row.partition, row.time_ms))
        keys.append((latest[row.partition], row.partition, row.offset))
    return [row for _, row in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])]


class Rows(Protocol):
    """What prints groups of rows."""

    def show(self, rows: Sequence[TailedRow]) -> None:
        """Print the next rows."""
        ...


class JsonRows:
    """One object a line: partition, offset, row; times in ISO 8601, bytes in base64."""

    def show(self, rows: Sequence[TailedRow]) -> None:
        """Print the next rows."""
        for row in rows:
            line = {"partition": row.partition, "offset": row.offset, "row": row.row}
            typer.echo(msgspec.json.encode(line).decode())


class LineRows:
    """One line a row, for pipes, for following, and for more columns than fit."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec

    def show(self, rows: Sequence[TailedRow]) -> None:
        """Print the next rows."""
        for row in rows:
            typer.echo(row_line(row, self._spec))


def row_line(row: TailedRow, spec: StreamSpec) -> str:
    """Return ``partition/offset`` and ``column=value`` for each column."""
    values = (f"{name}={cell(value, name, spec)}" for name, value in row.row.items())
    return f"{row.partition}/{row.offset}  " + "  ".join(values)


class TableRows:
    """A table, or lines where a table would have to cut values."""

    def __init__(self, spec: StreamSpec, console: Console | None = None) -> None:
        self._spec = spec
        self._console = console or Output()

    def show(self, rows: Sequence[TailedRow]) -> None:
        """Print the next rows."""
        if not rows:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("at", style="dim", no_wrap=True)
        for field in self._spec.schema:
            is_number = isinstance(rows[0].row[field.name], int | float | Decimal)
            table.add_column(field.name, justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            cells = (Text(cell(row.row[f.name], f.name, self._spec)) for f in self._spec.schema)
            table.add_row(f"{row.partition}/{row.offset}", *cells)
        options = self._console.options.update(max_width=10_000)
        if Measurement.get(self._console, options, table).maximum <= self._console.width:
            self._console.print(table)
        else:
            for row in rows:
                self._console.print(Text(row_line(row, self._spec)))


def cell(value: Any, name: str, spec: StreamSpec) -> str:
    """Return a value as text; integer event times as times."""
    if name == spec.time and isinstance(value, int):
        return time_text(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S") + (
            f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
        )
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str | int | Decimal | date | timedelta):
        return str(value)
    return msgspec.json.encode(value).decode()
