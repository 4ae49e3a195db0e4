"""Chooses the rows that ``bus tail`` prints: where it starts, how many, in which order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.bus.bus import NEVER, Stream
from headrace.cli.running.starts import read_time
from headrace.cli.state.lookup import matching
from headrace.errors import InvalidInputError
from headrace.records.schema import event_times

DEFAULT_ROWS = 10
_WAIT_S = 0.5
_WIDER = 8
_CHUNK_ROWS = 1000
_OFFSET = "_offset"


class Tailed(NamedTuple):
    """A row, and where it is; ``time_ms`` is ``None`` in a stream without event time."""

    partition: int
    offset: int
    time_ms: int | None
    row: dict[str, Any]


class _Ends(NamedTuple):
    """Up to which offset each partition is read now, and whether none is ever read further."""

    offsets: dict[int, int]
    is_reached: bool

    @classmethod
    def of(cls, stops: Mapping[int, int], ends: Sequence[int]) -> _Ends:
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
    ) -> Iterator[list[Tailed]]:
        """Yield groups of rows, each in order of event time where there is one.

        Args:
            start: ``earliest``, ``latest``, an offset, a time; ``None``: the last rows.
            most: how many rows; ``None``: 10, or no bound when ``start`` is given with ``until`` or
                ``follow``.
            until: where it ends: ``latest``, an offset, or a time, at whose first row it ends.
            follow: wait for more, for ever or until there are ``most`` from ``start`` on.

        Raises:
            InvalidInputError: ``start`` or ``until`` cannot be read, or ``start`` is not in the
                stream.
        """
        if most is None and (start is None or not (follow or until is not None)):
            most = DEFAULT_ROWS
        stop = self._stop(until)
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

    def _last(self, most: int, ends: Mapping[int, int]) -> list[Tailed]:
        begins = self._stream.begins()
        found: list[Tailed] = []
        for p in self._partitions:
            span, last = most, deque[Tailed](maxlen=most)
            while most and len(last) < most:
                first = max(begins[p], ends[p] - span)
                last = deque(self._read(p, first, ends[p]), most)
                if first == begins[p]:
                    break
                span *= _WIDER  # rows are left out by a condition, or were compacted away
            found += last
        return _ordered(found)[max(0, len(found) - most) :]

    def _stop(self, until: str | None) -> Callable[[Sequence[int]], _Ends]:
        """Return what tells how far to read when partitions have some ends."""
        if until is None or until == "latest":
            here = self._stream.ends()
            fixed = {p: NEVER if until is None else here[p] for p in self._partitions}
            return lambda ends: _Ends.of(fixed, ends)
        if until.isdecimal():
            self._check_single(int(until), "--until")
            return lambda ends: _Ends.of(dict.fromkeys(self._partitions, int(until)), ends)
        time_ms = read_time(until, "--until", "latest, an offset, or a time")

        def at_time(ends: Sequence[int]) -> _Ends:
            found = {p: self._stream.offset_at(p, time_ms) for p in self._partitions}
            later = {p: at if at < ends[p] else NEVER for p, at in found.items()}
            return _Ends.of(later, ends)

        return at_time

    def _onward(
        self,
        at: dict[int, int],
        most: int | None,
        stop: Callable[[Sequence[int]], _Ends],
        *,
        follow: bool,
    ) -> Iterator[list[Tailed]]:
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

    def _read(self, partition: int, start: int, stop: int) -> Iterator[Tailed]:
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
                yield Tailed(partition, offsets[index], at, row)

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


def _ordered(rows: list[Tailed]) -> list[Tailed]:
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
