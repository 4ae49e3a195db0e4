"""Chooses the rows that ``bus tail`` prints: where it starts, how many, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace.bus.bus import Stream
from headrace.errors import InvalidInputError
from headrace.records.schema import event_times

DEFAULT_ROWS = 10
_WAIT_S = 0.5
_CHUNK_ROWS = 1000


class Tailed(NamedTuple):
    """A row, and where it is; ``time_ms`` is ``None`` in a stream without event time."""

    partition: int
    offset: int
    time_ms: int | None
    row: dict[str, Any]


class Tail:
    """Reads a stream, or one partition of it, from some place on.

    Args:
        stream: to read.
        partition: the only one to read; ``None``: all.

    Raises:
        InvalidInputError: there is no such partition.
    """

    def __init__(self, stream: Stream, partition: int | None) -> None:
        self._stream = stream
        count = stream.spec.partitions
        if partition is not None and partition >= count:
            raise InvalidInputError(
                f"stream {stream.spec.name!r} has no partition {partition}; expected 0 to "
                f"{count - 1}",
                stream=stream.spec.name,
            )
        self._partitions = list(range(count)) if partition is None else [partition]

    def rows(
        self, start: str | None, most: int | None, *, follow: bool = False
    ) -> Iterator[list[Tailed]]:
        """Yield groups of rows, each in order of event time where there is one.

        Args:
            start: ``earliest``, ``latest``, an offset, a time; ``None``: the last rows.
            most: how many rows; ``None``: 10, or no end when ``start`` and ``follow`` are given.
            follow: wait for more, for ever or until there are ``most`` from ``start`` on.

        Raises:
            InvalidInputError: ``start`` cannot be read, or is not in the stream.
        """
        if most is None and not (follow and start is not None):
            most = DEFAULT_ROWS
        ends = self._stream.ends()
        if start is None:
            assert most is not None
            yield self._last(most, ends)
            most = None
            at = {p: ends[p] for p in self._partitions}
        else:
            at = {p: self._place(p, start) for p in self._partitions}
        if start is not None or follow:
            yield from self._onward(at, most, follow)

    def _last(self, most: int, ends: list[int]) -> list[Tailed]:
        begins = self._stream.begins()
        found = [
            row
            for p in self._partitions
            for row in self._read(p, max(begins[p], ends[p] - most), ends[p])
        ]
        return _ordered(found)[max(0, len(found) - most) :]

    def _onward(self, at: dict[int, int], most: int | None, follow: bool) -> Iterator[list[Tailed]]:
        while most is None or most > 0:
            ends = self._stream.ends()
            limit = _CHUNK_ROWS if most is None else min(most, _CHUNK_ROWS)
            found = _ordered(
                [row for p in self._partitions for row in self._read(p, at[p], ends[p], limit)]
            )[:limit]
            for row in found:
                at[row.partition] = row.offset + 1
            if found:
                most = None if most is None else most - len(found)
                yield found
            elif follow:
                self._stream.wait(ends, _WAIT_S)
            else:
                return

    def _read(
        self, partition: int, start: int, stop: int, most: int | None = None
    ) -> Iterator[Tailed]:
        time = self._stream.spec.time
        if start >= stop:
            return
        for first, batch in self._stream.read(partition, start, stop, max_rows=most):
            times = None if time is None else event_times(batch.column(time), "the stream")
            for index, row in enumerate(batch.to_pylist()):
                at = None if times is None else int(times[index])
                yield Tailed(partition, first + index, at, row)

    def _place(self, partition: int, start: str) -> int:
        begin, end = self._stream.begins()[partition], self._stream.ends()[partition]
        if start in ("earliest", "latest"):
            return begin if start == "earliest" else end
        if start.isdecimal():
            return self._offset(partition, int(start), begin, end)
        try:
            at = datetime.fromisoformat(start)
        except ValueError:
            raise InvalidInputError(
                f"--from {start!r} cannot be read; expected earliest, latest, an offset, or a "
                "time such as 2013-01-31T05:15"
            ) from None
        zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return self._stream.offset_at(partition, int(zoned.timestamp() * 1000))

    def _offset(self, partition: int, offset: int, begin: int, end: int) -> int:
        if len(self._partitions) > 1:
            raise InvalidInputError(
                f"--from {offset} is an offset, which is of one partition; add --partition, from 0 "
                f"to {len(self._partitions) - 1}"
            )
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
