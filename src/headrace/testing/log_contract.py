"""What every readable log must do, as tests: subclass ``ReadableLogContract`` for another one.

Offsets may have gaps, as those of a topic between transactions: the suite goes by the offsets that
it reads, and by the ends that the log gives.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.bus import OffsetGoneError, ReadableLog
from headrace.errors import InvalidInputError

LOG_SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
"""Columns that the log of a suite has; it may have more."""

NAMES = ["id", "at", "name"]
LONG_S = 60.0
LogRow = tuple[int, int, str]


def numbered(first: int, count: int) -> list[LogRow]:
    """Return rows with ids from ``first`` on, whose event times are 1000 + id."""
    return [(n, 1000 + n, f"n{n}") for n in range(first, first + count)]


def rows_with_offsets(
    log: ReadableLog, partition: int, start: int, stop: int | None = None, **how: Any
) -> list[tuple[int, LogRow]]:
    """Return offset and row of what a range has; checks that its batches cover it."""
    found: list[tuple[int, LogRow]] = []
    at = start
    for part in log.read(partition, start, stop, columns=NAMES, **how):
        assert part.first_offset == at, "a batch begins where the one before it ends"
        at = part.next_offset
        rows = [tuple(row.values()) for row in part.batch.to_pylist()]
        found += zip(part.offsets.tolist(), rows, strict=True)
    if not how:
        wanted = log.ends()[partition] if stop is None else stop
        assert at == max(wanted, start), "batches cover the range"
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    return found


class ReadableLogContract(ABC):
    """The contract of a readable log; that of a suite has two partitions, and times ``at``."""

    @abstractmethod
    def open_log(self, folder: Path) -> ReadableLog:
        """Return an empty log, made for this call."""

    @abstractmethod
    def append(self, log: ReadableLog, partition: int, rows: Sequence[LogRow]) -> None:
        """Append rows, by whatever writes to such logs."""

    @abstractmethod
    def drop_before(self, log: ReadableLog, partition: int, offset: int) -> None:
        """Let a partition begin at an offset, or as near before it as it can."""

    @abstractmethod
    def replaced(self, log: ReadableLog) -> ReadableLog:
        """Remove the log, create another of its name, and return it."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> ReadableLog:
        """Open an empty log."""
        return self.open_log(tmp_path)

    def test_an_empty_log_has_nothing(self, log: ReadableLog) -> None:
        """It ends where it begins."""
        assert log.begins() == log.ends()
        assert len(log.ends()) == log.spec.partitions == 2
        assert rows_with_offsets(log, 0, log.begins()[0]) == []

    def test_rows_come_in_order_each_in_its_partition(self, log: ReadableLog) -> None:
        """Appends follow one another, and partitions do not mix."""
        self.append(log, 0, numbered(0, 5))
        self.append(log, 1, numbered(100, 3))
        self.append(log, 0, numbered(5, 4))
        assert [row for _, row in rows_with_offsets(log, 0, 0)] == numbered(0, 9)
        assert [row for _, row in rows_with_offsets(log, 1, 0)] == numbered(100, 3)

    def test_any_range_has_its_rows_whenever_it_is_read(self, log: ReadableLog) -> None:
        """Backwards, in pieces, and after later appends."""
        for first in (0, 4, 9):
            self.append(log, 0, numbered(first, 5 if first == 4 else 4))
        whole, end = rows_with_offsets(log, 0, 0), log.ends()[0]
        assert len(whole) == 13
        self.append(log, 0, numbered(13, 3))
        for start, stop in ((end - 2, end), (3, 9), (0, 1), (0, end), (5, 5), (9, 12), (12, end)):
            wanted = [one for one in whole if start <= one[0] < stop]
            assert rows_with_offsets(log, 0, start, stop) == wanted

    def test_columns_are_those_asked_for(self, log: ReadableLog) -> None:
        """In that order; one that is not there is refused, and none are fine."""
        self.append(log, 0, numbered(7, 2))
        end = log.ends()[0]
        parts = list(log.read(0, 0, end, columns=["name", "id"]))
        rows = [row for part in parts for row in part.batch.to_pylist()]
        assert rows == [{"name": f"n{n}", "id": n} for n in (7, 8)]
        assert all(part.batch.schema.names == ["name", "id"] for part in parts)
        assert sum(part.batch.num_rows for part in log.read(0, 0, end, columns=[])) == 2
        with pytest.raises(InvalidInputError, match="nothing_such"):
            list(log.read(0, 0, end, columns=["nothing_such"]))

    def test_reading_ends_early_when_asked_to(self, log: ReadableLog) -> None:
        """After so many rows or bytes, and continues from there."""
        self.append(log, 0, numbered(0, 20))
        self.append(log, 0, numbered(20, 20))
        whole, end = rows_with_offsets(log, 0, 0), log.ends()[0]
        some = rows_with_offsets(log, 0, 0, end, max_rows=7)
        assert some == whole[:7]
        assert rows_with_offsets(log, 0, some[-1][0] + 1, end) == whole[7:]
        few = rows_with_offsets(log, 0, 0, end, max_bytes=1)
        assert 1 <= len(few) <= 40
        assert few == whole[: len(few)]
        parts = log.read(0, 0, end, columns=NAMES)
        first = next(parts)
        parts.close()  # type: ignore[attr-defined]
        assert rows_with_offsets(log, 0, first.next_offset, end) == [
            one for one in whole if one[0] >= first.next_offset
        ]

    def test_what_is_not_there_is_refused(self, log: ReadableLog) -> None:
        """Offsets behind the end, and partitions that the log does not have."""
        self.append(log, 0, numbered(0, 3))
        end = log.ends()[0]
        for start, stop in ((end + 5, end + 6), (0, end + 5)):
            with pytest.raises(InvalidInputError):
                list(log.read(0, start, stop))
        with pytest.raises(InvalidInputError):
            list(log.read(2, 0))

    def test_rows_that_are_gone_are_an_error_not_a_gap(self, log: ReadableLog) -> None:
        """What is left stays readable."""
        for first in range(0, 40, 10):
            self.append(log, 0, numbered(first, 10))
        whole, end = rows_with_offsets(log, 0, 0), log.ends()[0]
        self.drop_before(log, 0, whole[20][0])
        begin = log.begins()[0]
        assert 0 < begin <= whole[20][0]
        with pytest.raises(OffsetGoneError) as caught:
            list(log.read(0, 0, end))
        assert caught.value.fields["begin"] == begin
        assert rows_with_offsets(log, 0, begin) == [one for one in whole if one[0] >= begin]

    def test_who_waits_is_told_of_news(self, log: ReadableLog) -> None:
        """At once if there is some, else when it comes, or at the timeout."""
        known = log.ends()
        assert log.wait(known, 0.0) == known
        assert log.wait_unless(known, LONG_S, lambda: True) == known
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(log.wait, known, LONG_S)
            self.append(log, 1, numbered(0, 1))
            assert found.result(LONG_S)[1] > known[1]
        assert log.wait(known, LONG_S)[1] > known[1]

    def test_many_threads_read_at_once(self, log: ReadableLog) -> None:
        """Each has the rows that it would have alone."""
        self.append(log, 0, numbered(0, 200))
        self.append(log, 1, numbered(200, 200))
        ends = log.ends()
        ready = threading.Barrier(4)

        def read(number: int) -> list[LogRow]:
            ready.wait(LONG_S)
            place = number % 2
            return [row for _, row in rows_with_offsets(log, place, 0, ends[place])]

        with ThreadPoolExecutor(4) as pool:
            for number, found in enumerate(pool.map(read, range(4))):
                assert found == numbered(200 * (number % 2), 200)

    def test_a_time_leads_to_all_rows_from_then_on(self, log: ReadableLog) -> None:
        """From an offset that is not behind the first row of that time."""
        self.append(log, 0, numbered(0, 10))
        self.append(log, 0, numbered(10, 10))

        def rows_from(time_ms: int) -> list[LogRow]:
            offset = log.offset_at(0, time_ms)
            return [row for _, row in rows_with_offsets(log, 0, offset)]

        assert rows_from(1012)[-8:] == numbered(12, 8)
        assert rows_from(0) == numbered(0, 20)

    def test_another_log_of_the_name_has_another_identity(self, log: ReadableLog) -> None:
        """It stays the same while the log is there."""
        self.append(log, 0, numbered(0, 1))
        identity = log.identity
        assert identity
        assert log.identity == identity
        assert self.replaced(log).identity not in {"", identity}
