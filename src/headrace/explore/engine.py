"""Answers queries about streams that are kept: by DuckDB, over files and the rows in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headrace import extras
from headrace.clock import Clock, SystemClock
from headrace.config import ExploreSettings
from headrace.errors import InvalidInputError, UnavailableError
from headrace.explore import views
from headrace.explore.cancel import Cancel, CancelledError
from headrace.explore.query import Query, Span, compare_ms, span_of
from headrace.explore.results import Compared, Result, plain_rows, value_columns
from headrace.explore.segments import Segment
from headrace.explore.statements import TAIL, Rows
from headrace.explore.stream_tail import Kept, StreamTail, table_of
from headrace.queries.duck import locked_duckdb, watchdog

USE = "headrace explore"
TRIES = 5
AT_ONCE = 4
"""Queries that run at the same time; others wait for a moment."""

WAIT_S = 30.0


class Snapshot(NamedTuple):
    """What one query reads of a stream."""

    kept: Kept
    rows: Rows
    tail: pa.Table
    scanned: int


class ExploreEngine:
    """DuckDB for queries of any thread.

    Args:
        folder: with the files of all streams; DuckDB can read no other.
        settings: limits.
        clock: for what is relative to now.
    """

    def __init__(self, folder: Path, settings: ExploreSettings, clock: Clock) -> None:
        self._folder, self._settings, self._clock = folder, settings, clock
        self._timer = SystemClock()
        self._duckdb = extras.load("duckdb", USE)
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._connection = locked_duckdb(
            USE,
            memory=settings.memory,
            threads=settings.threads or os.cpu_count() or 1,
            folders=[folder],
        )

    def answer(self, tail: StreamTail, query: Query, cancel: Cancel | None = None) -> Result:
        """Answer a query as of now.

        Args:
            tail: the stream that it is about.
            query: checked by itself.
            cancel: ends it.

        Raises:
            InvalidInputError: a column that is not there or does not fit, or a limit is exceeded.
            UnavailableError: others take too long, or files went while they were read.
            CancelledError: by ``cancel``.
        """
        begun = self._timer.monotonic()
        now = self._clock.now_ms()
        span = span_of(query, now)
        for attempt in range(TRIES):
            kept = tail.kept()
            try:
                return self._answer(tail, kept, query, span, cancel, begun, now)
            except self._duckdb.IOException as error:
                if attempt + 1 == TRIES:
                    raise UnavailableError(
                        f"files of stream {query.stream!r} went while they were read: {error}; "
                        "ask again"
                    ) from error
        raise AssertionError

    def _answer(
        self,
        tail: StreamTail,
        kept: Kept,
        query: Query,
        span: Span,
        cancel: Cancel | None,
        begun: float,
        now: int,
    ) -> Result:
        snapshot = snapshot_of(tail, kept, span)
        view = views.view_of(query, span, snapshot.rows)
        with self.session(cancel, {TAIL: snapshot.tail}) as run:
            shown = view.show(run)
            compare = None
            if (ms := compare_ms(query)) is not None:
                before = span.before(ms)
                other = snapshot_of(tail, kept, before)
                with self.session(cancel, {TAIL: other.tail}) as run_other:
                    again = views.view_of(query, before, other.rows, like=view)
                    compare = Compared(before.from_ms, before.to_ms, again.show(run_other).rows)
        status = tail.status()
        return Result(
            query.view,
            shown.columns,
            shown.rows,
            span.from_ms,
            span.to_ms,
            snapshot.rows.rate != 1,
            snapshot.scanned,
            kept.rows,
            round((self._timer.monotonic() - begun) * 1000),
            now,
            status.lag_rows == 0 and status.problem is None,
            shown.bucket_ms,
            compare,
            shown.other_groups,
            shown.other_label,
            _warning(query, snapshot, status.problem),
        )

    def session(self, cancel: Cancel | None, tables: Mapping[str, pa.Table]) -> Session:
        """Return what runs statements over tables in memory and the files."""
        return Session(self, self._connection, cancel, tables)

    @property
    def limits(self) -> ExploreSettings:
        """Of queries."""
        return self._settings

    def wait_for_turn(self) -> None:
        """Take one of the turns.

        Raises:
            UnavailableError: others take too long.
        """
        if not self._turns.acquire(timeout=WAIT_S):
            raise UnavailableError(
                f"{AT_ONCE} other queries run since {WAIT_S:g} s; ask again, or ask for less"
            )

    def give_turn(self) -> None:
        """Let another one begin."""
        self._turns.release()


class Session:
    """Statements of one query; a context in which it has one of the turns."""

    def __init__(
        self,
        engine: ExploreEngine,
        connection: Any,
        cancel: Cancel | None,
        tables: Mapping[str, pa.Table],
    ) -> None:
        self._engine, self._cancel, self._tables = engine, cancel, tables
        self._connection = connection
        self._duckdb = extras.load("duckdb", USE)

    def __enter__(self) -> Session:
        self._engine.wait_for_turn()
        try:
            self._cursor = self._connection.cursor()
            for name, table in self._tables.items():
                self._cursor.register(name, table)
        except BaseException:
            self._engine.give_turn()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.give_turn()
        self._cursor.close()

    def give(self, name: str, table: pa.Table) -> None:
        """Have one more table in memory."""
        self._cursor.register(name, table)

    def __call__(self, sql: str, most: int) -> pa.Table:
        """Return the rows of a statement.

        Args:
            sql: one ``SELECT``.
            most: rows, at most.

        Raises:
            InvalidInputError: it takes more than the limits, or DuckDB refuses it.
            CancelledError: by ``cancel``.
        """
        seconds = self._engine.limits.query_s
        interrupt = self._cursor.interrupt
        if self._cancel is not None:
            self._cancel.begin(interrupt)
        try:
            with watchdog().limit(seconds, interrupt):
                found = self._cursor.sql(sql).to_arrow_reader(most + 1)
                batches, size = [], 0
                for batch in found:
                    batches.append(batch)
                    size += batch.num_rows
                    if size > most:
                        break
        except self._duckdb.InterruptException as error:
            if self._cancel is not None and self._cancel.is_done:
                raise CancelledError from error
            raise InvalidInputError(
                f"the query took more than {seconds:g} s (explore.query_s); ask for less time, or "
                "add filters"
            ) from error
        except self._duckdb.OutOfMemoryException as error:
            raise InvalidInputError(
                f"the query needs more memory than explore.memory, {self._engine.limits.memory}; "
                "ask for less time or fewer groups, or add filters"
            ) from error
        except self._duckdb.IOException:
            raise
        except self._duckdb.Error as error:
            said = str(error).splitlines()[0]
            raise InvalidInputError(f"the query cannot be answered: {said}; change it") from error
        finally:
            if self._cancel is not None:
                self._cancel.end(interrupt)
        if size > most:
            raise InvalidInputError(
                f"the answer has more than {most:,} rows; add filters, or ask for fewer groups or "
                "longer buckets"
            )
        return pa.Table.from_batches(batches, found.schema)


def snapshot_of(tail: StreamTail, kept: Kept, span: Span) -> Snapshot:
    """Return what a query reads: files and rows whose time can be in its span."""

    def is_near(first: int | None, last: int | None) -> bool:
        return (
            first is not None and last is not None and first < span.to_ms and last >= span.from_ms
        )

    segments = tuple(one for one in kept.segments if is_near(one.facts.first_ms, one.facts.last_ms))
    memory = table_of(kept)
    rates = {rate for one in segments for rate in _rates(one)}
    rates |= {kept.rate} if kept.chunks or not rates else set()
    rows = Rows(segments, kept.schema, tail.time_column, rates.pop() if len(rates) == 1 else None)
    scanned = sum(one.facts.rows for one in segments) + memory.num_rows
    return Snapshot(kept, rows, memory, scanned)


def _rates(segment: Segment) -> set[int]:
    return {segment.facts.least_rate, segment.facts.greatest_rate}


def _warning(query: Query, snapshot: Snapshot, problem: str | None) -> str | None:
    said = []
    fns = {one.fn for one in query.metrics}
    if snapshot.rows.rate != 1 and query.view != "samples":
        if "distinct" in fns:
            said.append("distinct counts the values of sampled rows alone")
        if fns & {"min", "max"}:
            said.append("min and max are those of sampled rows")
    if problem is not None:
        said.append(f"the stream is not read at the moment: {problem}")
    return "; ".join(said) or None


def newest_texts(kept: Kept, most: int) -> list[dict[str, Any]]:
    """Return what some of the newest rows have in text columns, to see what is in these."""
    names = [one.name for one in kept.schema if pa.types.is_string(one.type)]
    rows: list[dict[str, Any]] = []
    if kept.chunks:
        newest = table_of(kept._replace(chunks=kept.chunks[-1:])).select(names)
        rows = newest.slice(max(0, newest.num_rows - most)).to_pylist()
    held = [one for one in kept.segments if one.facts.rows]
    if held and not rows:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only where nothing is in memory

        there = [name for name in names if name in held[-1].schema.names]
        with suppress(FileNotFoundError):  # merged at this moment
            file = pq.ParquetFile(held[-1].path)
            batch = next(file.iter_batches(batch_size=most, columns=there), None)
            rows = [] if batch is None else batch.to_pylist()
    return rows


__all__ = [
    "ExploreEngine",
    "newest_texts",
    "plain_rows",
    "value_columns",
]
