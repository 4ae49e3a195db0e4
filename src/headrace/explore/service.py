"""All that is asked about the streams of a home: the tailer and the engine behind one door.

The web application and the command are two users of it. Who may see what is theirs to check.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.bus.bus import Bus
from headrace.clock import Clock, SystemClock
from headrace.config import Settings
from headrace.control.job_status import job_status
from headrace.coordinator.job_parts import job_names
from headrace.errors import HeadraceError, InvalidInputError
from headrace.explore.cancel import Cancel
from headrace.explore.columns import Column, find_column, listed
from headrace.explore.engine import ExploreEngine, newest_texts
from headrace.explore.export import export_rows
from headrace.explore.query import Filter, Metric, Query
from headrace.explore.results import Result, SqlRows, sql_result
from headrace.explore.sql_box import box_table, read_select, schema_of
from headrace.explore.sql_worker import SqlWorkers
from headrace.explore.stream_tail import Kept, StreamTail, TailStatus
from headrace.explore.tailer import Tailer
from headrace.files import Files
from headrace.queries.duck import refusal

TRIES = 5
VALUES = 20
MOST_VALUES = 200


class ExploreService:
    """The streams of a home, kept and queried.

    Args:
        bus: with the streams.
        settings: of the home.
        clock: for what is relative to now.
        only: streams of those that are kept, if not all are wanted.
        files: the file system.
    """

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        clock: Clock,
        *,
        only: frozenset[str] | None = None,
        files: Files | None = None,
    ) -> None:
        self.settings, self.bus, self._clock = settings, bus, clock
        self._timer = SystemClock()
        self._jobs_lock = threading.Lock()
        self._jobs_seen: list[_Job] = []
        self._jobs_s = float("-inf")
        self.tailer = Tailer(bus, settings, clock, only=only, files=files)
        self.engine = ExploreEngine(settings.explore_dir, settings.explore, clock)
        limits = settings.explore
        self._workers = SqlWorkers(limits.memory, limits.threads or os.cpu_count() or 1)

    def close(self) -> None:
        """Stop keeping streams, and end the processes that answer SQL."""
        self.tailer.stop()
        self._workers.close()

    def answer(self, query: Query, cancel: Cancel | None = None) -> Result:
        """Answer a query; see ``ExploreEngine.answer``."""
        return self.engine.answer(self.tailer.tail(query.stream), query, cancel)

    def sql_table(
        self,
        text: str,
        sees: Callable[[str], bool],
        limit: int | None = None,
        cancel: Cancel | None = None,
    ) -> SqlRows:
        """Answer one ``SELECT`` over streams.

        Args:
            text: the query.
            sees: says which streams may be read.
            limit: rows of the answer, at most; ``None``: as the settings say.
            cancel: ends it.

        Raises:
            CancelledError: by ``cancel``.
            InvalidInputError: it is refused, shows where, or takes more than the limits.
            UnavailableError: others run all the time.
        """
        begun = self._timer.monotonic()
        limits = self.settings.explore
        most = min(limit or limits.query_rows, limits.query_rows)
        query = read_select(text, [name for name in self.tailer.names() if sees(name)])
        for attempt in range(TRIES):
            kept = {name: self.tailer.tail(held).kept() for name, held in query.tables.items()}
            tables = [box_table(name, one, query.columns) for name, one in kept.items()]
            found = self._workers.run(
                query.sql,
                [(one.name, one.view, one.rows) for one in tables],
                [path for one in tables for path in one.paths],
                rows=most,
                seconds=limits.query_s,
                cancel=cancel,
            )
            if not _is_gone(found.problem) or attempt + 1 == TRIES:
                break
        if found.problem:
            raise refusal(query.source, _names(kept), found.problem)
        rows = pa.ipc.open_stream(found.rows).read_all()
        took = round((self._timer.monotonic() - begun) * 1000)
        total = sum(one.rows for one in kept.values())
        return SqlRows(rows, most, total, any(one.rate > 1 for one in kept.values()), took)

    def sql(
        self,
        text: str,
        sees: Callable[[str], bool],
        limit: int | None = None,
        cancel: Cancel | None = None,
    ) -> Result:
        """Answer one ``SELECT`` as a table; see ``sql_table``."""
        return sql_result(self.sql_table(text, sees, limit, cancel), self._clock.now_ms())

    @property
    def sql_running(self) -> int:
        """How many statements of SQL run at this moment."""
        return self._workers.running

    def sql_schema(self, sees: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the tables of SQL and their columns, and prepare for a statement."""
        self._workers.warm()
        names = [name for name in self.tailer.names() if sees(name)]
        return schema_of({name: self.tailer.tail(name).kept().schema for name in names})

    def export(self, query: Query, form: str, cancel: Cancel | None = None) -> bytes:
        """Return the answer to a query as CSV or Parquet; see ``answer``."""
        return export_rows(self.answer(query, cancel), form)

    def columns(self, stream: str) -> list[Column]:
        """Return the columns of a stream, those inside JSON among them."""
        tail = self.tailer.tail(stream)
        kept = tail.kept()
        return listed(kept.schema, tail.time_column, newest_texts(kept, 200))

    def values(self, stream: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return frequent values of a column, to complete what is typed.

        Args:
            stream: that has it.
            asked: ``column``, ``prefix``, ``from``, ``to`` and ``limit``.
        """
        tail, column = self.tailer.tail(stream), asked.get("column", "")
        find_column(column, tail.kept().schema, tail.time_column)
        prefix = asked.get("prefix", "")
        limit = asked.get("limit", str(VALUES))
        if not limit.isdigit() or not 1 <= int(limit) <= MOST_VALUES:
            raise InvalidInputError(f"limit is {limit!r}; expected 1 to {MOST_VALUES}")
        filters = (Filter(column, "starts with", prefix),) if prefix else ()
        query = Query(
            stream,
            asked.get("from", "-1h"),
            asked.get("to", "now"),
            filters=filters,
            group_by=(column,),
            metrics=(Metric("count"),),
            limit=int(limit),
        )
        found = self.answer(query)
        return [{"value": value, "count": count} for value, count in found.rows]

    def streams(self, sees: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the streams of the home that somebody may see, kept or not."""
        kept = set(self.tailer.names())
        found = []
        for name in sorted({*self.bus.names(), *kept}):
            if sees(name):
                if name in kept:
                    found.append(self._stream(self.tailer.tail(name)))
                else:
                    found.append({"name": name, "kept": False, "columns": []})
        return found

    def _stream(self, tail: StreamTail) -> dict[str, Any]:
        kept = tail.kept()
        first, last = tail.time_span(kept)
        return {
            "name": tail.name,
            "kept": True,
            "rows": kept.rows,
            "bytes": kept.bytes,
            "first_ms": first,
            "last_ms": last,
            "sample_rate": kept.rate,
            "time_column": tail.time_column,
            "columns": self.columns(tail.name),
        }

    def _jobs(self) -> list[_Job]:
        with self._jobs_lock:
            now = self._timer.monotonic()
            if now - self._jobs_s >= JOBS_S:
                names = job_names(self.settings)
                self._jobs_seen = [
                    _job(self.settings, name, self.bus, self._clock) for name in names
                ]
                self._jobs_s = now
            return self._jobs_seen

    def status(self, sees: Callable[[str], bool], *, sees_all: bool) -> dict[str, Any]:
        """Return how the home is doing, for the frame of every page.

        Args:
            sees: says which streams somebody may see.
            sees_all: whether these are all. If not, there are only the jobs of which each input is
                a stream that they see, and nothing about the home itself.
        """
        tails = self.tailer.statuses()
        seen = [one for one in tails if sees(one.stream)]
        jobs = [
            one for one in self._jobs() if sees_all or (one.streams and all(map(sees, one.streams)))
        ]
        status: dict[str, Any] = {
            "version": version("headrace"),
            "now_ms": self._clock.now_ms(),
            "is_writer": self.tailer.is_writer,
            "tailers": [_tailer(one) for one in seen],
            "jobs": [one.shown for one in jobs],
        }
        if sees_all:
            status |= {"home": str(self.settings.home), "problem": self.tailer.problem}
        return status


JOBS_S = 2.0
"""How old the status of jobs may be, which is read from their files."""


class _Job(NamedTuple):
    """A job as status shows it, and the streams that it reads."""

    shown: dict[str, Any]
    streams: frozenset[str]


def _job(settings: Settings, name: str, bus: Bus, clock: Clock) -> _Job:
    try:
        found = job_status(settings, name, bus, clock)
    except (HeadraceError, OSError) as error:
        return _Job({"name": name, "state": "unknown", "problem": str(error)}, frozenset())
    shown = {"name": name, "state": found.status, "epoch": found.epoch, "problem": found.problem}
    known = {key: value for key, value in shown.items() if value is not None}
    return _Job(known, frozenset(one.stream for one in found.inputs))


def _is_gone(problem: str) -> bool:
    """Say whether a file went before it was read, for a merged one took its place."""
    return problem.startswith("IO Error") and "No such file" in problem


def _names(kept: Mapping[str, Kept]) -> set[str]:
    return {name for one in kept.values() for name in one.schema.names}


def _tailer(status: TailStatus) -> dict[str, Any]:
    found = status._asdict()
    return {name: value for name, value in found.items() if value is not None}
