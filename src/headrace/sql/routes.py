"""``/v1/sql`` of the API of a driver: queries over the tables of the job, and what comes to them.

``GET /v1/sql`` answers a query; ``/v1/sql/changes`` sends rows by server-sent events as epochs
commit them, and resumes after ``Last-Event-ID``; ``/v1/sql/tables`` says what there is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pyarrow as pa
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from headrace import extras
from headrace.control.http_api import Model
from headrace.control.live_job import LiveJob
from headrace.coordinator.inspection.job_reader import part_readers
from headrace.coordinator.inspection.row_filters import json_ready
from headrace.errors import CorruptDataError, HeadraceError, InvalidInputError, UnavailableError
from headrace.plan.stages import JobPlan
from headrace.records.schema import type_text
from headrace.sql.current_rows import Root
from headrace.sql.query_tables import AppTables, Windows
from headrace.sql.server_tables import server_rows

if TYPE_CHECKING:
    from headrace.sql.query_engine import Query as SqlQuery
    from headrace.sql.query_engine import QueryEngine

MAX_ROWS = 100_000
MAX_QUERY = 20_000
MAX_WATCHERS = 64
CHUNK = 5_000
LOOK_S, SILENCE_S = 0.05, 15.0
"""How often an epoch is looked for, and after how long without a row a client gets a comment."""

EVENT_STREAM = "text/event-stream"
ARROW_STREAM = "application/vnd.apache.arrow.stream"


class SqlColumn(Model):
    """A column of a table, or of an answer."""

    name: str
    type: str


class SqlRows(Model):
    """The answer to a query, as of one committed epoch."""

    job: str
    epoch: int
    columns: list[SqlColumn]
    rows: list[dict[str, Any]]


class SqlTable(Model):
    """A table that can be asked: what the job sends to a stream."""

    name: str
    stream: str = Field(description="that it is sent to; empty: its state is on a server")
    columns: list[SqlColumn] = Field(description="none before the job has sent a row")


_Text = Annotated[
    str, Query(min_length=1, max_length=MAX_QUERY, description="one SELECT, in DuckDB's SQL")
]
_Which = Annotated[
    Windows,
    Query(description="past: windows that were sent; with current or all, window_is_open says it"),
]


def table_streams(plans: Sequence[JobPlan]) -> dict[str, str]:
    """Return the streams that a job sends to, by the names of tables: without that of the job."""
    found = {}
    for plan in plans:
        for one in plan.outputs:
            found[one.stream.removeprefix(f"{plan.graph.name}.")] = one.stream
    return found


def live_tables(live: LiveJob) -> AppTables:
    """Return the tables of the job of a driver."""
    roots: dict[str, Any] = {}

    def states() -> list[Root]:
        held = live.states
        if not all(state.job in roots for state in held):
            roots.update({one.job: one.root for one in part_readers(live.settings, live.job)})
        return [(roots[state.job], state) for state in held if state.job in roots]

    return AppTables(
        live.job,
        lambda: live.bus,
        lambda: table_streams(live.plans),
        lambda: live.plans,
        states,
        lambda: server_rows(plan.graph for plan in live.plans),
    )


def add_routes(app: FastAPI, live: LiveJob) -> None:
    """Add the routes to the API of a driver."""

    def begun() -> None:
        _ = live.state  # a job that is about to start says so

    add_table_routes(app, live_tables(live), begun, lambda: live.count)


def add_table_routes(
    app: FastAPI, tables: AppTables, begun: Callable[[], None], count: Callable[[], int]
) -> None:
    """Add the routes to an API.

    Args:
        app: the API.
        tables: that can be asked.
        begun: raises while there is nothing to ask.
        count: changes with each epoch, also where the state does not.
    """
    service = _Service(tables, begun, count)
    kinds: dict[int | str, dict[str, Any]] = {
        200: {"model": SqlRows, "content": {ARROW_STREAM: {}}},
    }

    @app.get("/v1/sql", responses=kinds)
    def sql(
        query: _Text,
        windows: _Which = "past",
        limit: Annotated[
            int, Query(ge=1, le=MAX_ROWS, description="an answer with more rows is refused")
        ] = 10_000,
        form: Annotated[
            Literal["json", "arrow"], Query(alias="format", description="arrow: an IPC stream")
        ] = "json",
    ) -> Response:
        """Answer a query over the tables of the job, as of its last committed epoch."""
        asked = service.checked(query, windows)
        answer = service.engine.answer(service.tables, asked, windows, limit)
        if form == "arrow":
            epoch = {"X-Headrace-Epoch": str(answer.epoch)}
            return Response(_ipc(answer.rows), media_type=ARROW_STREAM, headers=epoch)
        shown = {
            "job": answer.job,
            "epoch": answer.epoch,
            "columns": [one.model_dump() for one in _columns(answer.rows.schema)],
            "rows": [json_ready(row) for row in answer.rows.to_pylist()],
        }
        return Response(msgspec.json.encode(shown), media_type="application/json")

    @app.get("/v1/sql/tables")
    def listed() -> list[SqlTable]:
        """The tables that a query can read."""
        return service.described()

    @app.get("/v1/sql/changes", responses={200: {"content": {EVENT_STREAM: {}}}})
    def changes(
        request: Request,
        query: _Text,
        windows: _Which = "past",
        begin: Annotated[
            Literal["now", "earliest"], Query(description="without Last-Event-ID")
        ] = "now",
        last_event_id: Annotated[str | None, Header(max_length=MAX_QUERY)] = None,
    ) -> StreamingResponse:
        """Send the rows of a query on one table as epochs commit them, as server-sent events."""
        over: threading.Event = getattr(request.app.state, "over", threading.Event())
        watcher = _Watcher(service, query, windows, begin, last_event_id)
        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(watcher.events(over), media_type=EVENT_STREAM, headers=headers)


def _ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _columns(schema: pa.Schema) -> list[SqlColumn]:
    return [SqlColumn(name=one.name, type=type_text(one.type)) for one in schema]


class _Service:
    """Answers queries about one job; what it needs is loaded when the first one comes."""

    def __init__(
        self, tables: AppTables, begun: Callable[[], None], count: Callable[[], int]
    ) -> None:
        self.tables, self.begun, self.count = tables, begun, count
        self.watchers = 0

    @cached_property
    def engine(self) -> QueryEngine:
        """DuckDB."""
        from headrace.sql.query_engine import QueryEngine  # noqa: PLC0415 - half a second

        return QueryEngine()

    def checked(self, text: str, windows: Windows) -> SqlQuery:
        """Return a query that was checked against the tables."""
        extras.load("sqlglot", "a query")
        from headrace.sql.query_engine import parse  # noqa: PLC0415 - needs the extra

        self.begun()
        return parse(text, self.tables, windows)

    def described(self) -> list[SqlTable]:
        """Return the tables, with the columns of those that are there."""
        found = []
        streams = self.tables.streams
        for name in self.tables.names:
            columns: list[SqlColumn] = []
            with suppress(InvalidInputError):
                columns = _columns(self.tables.schema(name))
            found.append(SqlTable(name=name, stream=streams.get(name, ""), columns=columns))
        return found


class _Watcher:
    """What one client follows, and how far it has got.

    An event is a row; its id says where to continue, as the next offset of each partition. Rows of
    open windows follow those that the same epoch has sent, where they differ from the epoch before.
    """

    def __init__(
        self, service: _Service, text: str, windows: Windows, begin: str, after: str | None
    ) -> None:
        self._service, self._windows = service, windows
        self._query = service.checked(text, windows).by_offset()
        self._table = self._query.readings[0].table
        tables = service.tables
        now = tables.snapshot()
        none = tables.after(self._table, 0, 0, 0, 0).rows
        list(service.engine.by_row(self._query, none, windows))  # DuckDB says if it has a mistake
        if windows != "past":
            service.engine.open_rows(tables, self._query, windows, now)
        if after is not None:
            self._at = _offsets(after, tables.bounds(self._table))
        elif begin == "earliest":
            self._at = [low for low, _ in tables.bounds(self._table)]
        else:
            self._at = tables.ends(self._table, now)
        self._open: set[bytes] = set()
        if service.watchers >= MAX_WATCHERS:
            raise UnavailableError(
                f"{MAX_WATCHERS} clients follow job {tables.job!r} already; close one"
            )

    async def events(self, over: threading.Event) -> AsyncIterator[bytes]:
        """Yield events until the client goes, or the server is to stop."""
        service, seen, quiet_s = self._service, None, SILENCE_S
        service.watchers += 1
        try:
            while not over.is_set():
                version = service.tables.snapshot().version, service.count()
                more = version != seen
                while more and not over.is_set():
                    found, more = await asyncio.to_thread(self._next)
                    for event in found:
                        yield event
                        quiet_s = 0.0
                seen = version
                if quiet_s >= SILENCE_S:  # no event, but the client resumes there
                    quiet_s = 0.0
                    yield b": " + service.tables.job.encode() + b"\nid: " + self._id() + b"\n\n"
                await asyncio.sleep(LOOK_S)
                quiet_s += LOOK_S
        except HeadraceError as error:
            problem = {"code": error.code, "message": error.message, "next": error.move}
            yield b"event: problem\ndata: " + msgspec.json.encode(problem) + b"\n\n"
        finally:
            service.watchers -= 1

    def _id(self) -> bytes:
        return ",".join(map(str, self._at)).encode()

    def _next(self) -> tuple[list[bytes], bool]:
        """Return the next events, and whether there are more."""
        engine, tables = self._service.engine, self._service.tables
        snapshot = tables.snapshot()
        ends = tables.ends(self._table, snapshot)
        self._at += [0] * (len(ends) - len(self._at))
        events: list[bytes] = []
        for partition, end in enumerate(ends):
            if (at := self._at[partition]) >= end:
                continue
            rows, behind, lost = tables.after(self._table, partition, at, end, CHUNK)
            if lost:
                events.append(b"event: gap\ndata: " + msgspec.json.encode({"rows": lost}) + b"\n\n")
            if self._windows != "current":
                for offset, row in engine.by_row(self._query, rows, self._windows):
                    self._at[partition] = offset + 1
                    events.append(self._event(_encoded(row)))
            self._at[partition] = behind
            return events, True
        if self._windows != "past" and tables.is_sent(self._table, snapshot):
            try:
                rows = engine.open_rows(tables, self._query, self._windows, snapshot)
            except CorruptDataError:
                if tables.snapshot().version == snapshot.version:
                    raise
                return events, True  # its files were swept: there is a newer one
            before, self._open = self._open, set(map(_encoded, rows))
            events += map(self._event, sorted(self._open - before))
        return events, False

    def _event(self, row: bytes) -> bytes:
        return b"id: " + self._id() + b"\ndata: " + row + b"\n\n"


def _encoded(row: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(json_ready(row))


def _offsets(text: str, bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Return the offsets of an event's id.

    Raises:
        InvalidInputError: it is none, or not of this stream.
    """
    words = text.strip().split(",")
    if not all(word.isdigit() for word in words) or len(words) > len(bounds):
        raise InvalidInputError(
            f"Last-Event-ID {text!r} is not that of an event of this table; leave it out"
        )
    found = list(map(int, words))
    if any(at > end for at, (_, end) in zip(found, bounds, strict=False)):
        raise InvalidInputError(
            f"Last-Event-ID {text!r} is beyond the rows that there are, as where the stream was "
            "made again; leave it out"
        )
    return found + [low for low, _ in bounds[len(found) :]]
