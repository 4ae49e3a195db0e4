"""Served tables by HTTP: rows as JSON or Arrow, with the version that they are of.

The same tables and versions as over Redis's protocol. Loaded only where HTTP is asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.control.http_api import Problem, new_app
from headrace.coordinator.inspection.row_filters import json_ready, typed_key
from headrace.errors import InvalidInputError
from headrace.records.keys import encode_key
from headrace.serving.resp import RequestLimits
from headrace.serving.table import ServedTable, Tables, TableVersion

ARROW = "application/vnd.apache.arrow.stream"
MAX_ROWS, MAX_KEYS, MAX_WAIT_S = 10_000, 10_000, 30.0
LOOK_S = 0.02
"""Between two looks at the version that a request waits for."""

LAST = 1 << 62
_BINARY = re.compile(r"[\x00-\x1f]")


class TableAnswer(BaseModel):
    """A table that is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    namespace: str
    loaded: bool
    version: int = Field(description="epoch, rows of the stream, or snapshot of the daily table")
    version_ms: int = Field(description="wall clock of the version")
    of: str
    staleness_ms: int = Field(description="since it was known to show all that was committed")
    keys: int
    groups: list[int]
    loads: int = Field(description="how often it was loaded whole")
    problem: str


class KeysAsk(BaseModel):
    """Keys to look up; each is a list of the values of its columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: Annotated[list[list[str | int | float | bool | None]], Field(max_length=MAX_KEYS)]
    at_least: Annotated[int, Field(ge=-1, le=LAST)] = -1
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 0.0


class RowsAsk(BaseModel):
    """Which rows: of a key, or of a range of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    key: Annotated[list[str] | None, Field(description="columns of one key")] = None
    prefix: Annotated[str | None, Field(description="begin of a first column of text")] = None
    low: Annotated[list[str] | None, Field(alias="from", description="lowest key")] = None
    high: Annotated[list[str] | None, Field(alias="before", description="key to stop before")] = (
        None
    )
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100
    at_least: Annotated[int, Field(ge=-1, le=LAST, description="lowest version to show")] = -1
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="how long to wait for it")] = (
        0.0
    )


_Accept = Annotated[str, Header(description=f"{ARROW}, or JSON")]


class _BodyLimit:
    """Lets no body through that has more bytes than a request may have."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if int(length) > self._most:  # the server has seen that it is a number
            problem = Problem(
                code="HR100",
                message=f"the request has {int(length):,} bytes, expected {self._most:,} at most",
                next="ask for fewer keys at once, or raise --max-request",
            )
            await JSONResponse(problem.model_dump(), 413)(scope, receive, send)
            return
        left = self._most

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:  # its length was not said
                raise InvalidInputError(f"the request has more than {self._most:,} bytes")
            return message

        await self._app(scope, counted, send)


def make_app(tables: Tables, token: str, place: str, limits: RequestLimits) -> FastAPI:
    """Return an API over tables.

    Args:
        tables: that are served.
        token: what requests have to bring.
        place: where who may read it finds the token.
        limits: of one request.
    """
    app = new_app("Tables that headrace serve serves.", token, place)
    app.add_middleware(_BodyLimit, most=limits.request_bytes)

    @app.get("/v1/tables")
    def described() -> list[TableAnswer]:
        """The tables, and what they show."""
        return [TableAnswer.model_validate(table.describe()) for table in tables]

    @app.get("/v1/tables/{name}/rows")
    async def rows(
        name: str, asked: Annotated[RowsAsk, Query()], accept: _Accept = "application/json"
    ) -> Response:
        """Rows of a key, of a range or of a prefix, in the order of keys."""
        table = tables.named(name)
        await _waited(table, asked.at_least, asked.wait_s)
        return await run_in_threadpool(_rows, table, asked, accept)

    @app.post("/v1/tables/{name}/lookup")
    async def lookup(name: str, asked: KeysAsk, accept: _Accept = "application/json") -> Response:
        """Rows of several keys, all of one version; keys that are not there have none."""
        table = tables.named(name)
        await _waited(table, asked.at_least, asked.wait_s)
        return await run_in_threadpool(_found, table, asked, accept)

    return app


async def _waited(table: ServedTable, at_least: int, wait_s: float) -> None:
    """Wait for a version in no thread: there are few of them, and others read meanwhile."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while table.number < at_least and loop.time() < end_s:
        await asyncio.sleep(LOOK_S)


def _rows(table: ServedTable, asked: RowsAsk, accept: str) -> Response:
    if asked.key:
        encoded = [_encoded(table, asked.key)]
        version, values = table.read(encoded, asked.at_least)
        return _answer(table, version, encoded, values, None, accept)
    first, behind = _range(table, asked)
    version, found, after = table.scan(first, behind, asked.limit, asked.at_least)
    keys, held = [one for one, _ in found], [one for _, one in found]
    return _answer(table, version, keys, held, after, accept)


def _found(table: ServedTable, asked: KeysAsk, accept: str) -> Response:
    encoded = [encode_key(_typed(table, key)) for key in asked.keys]
    version, values = table.read(encoded, asked.at_least)
    return _answer(table, version, encoded, values, None, accept)


def _encoded(table: ServedTable, words: Sequence[str]) -> bytes:
    """Return the key that words mean: of several that it could be, the one that is there."""
    if len(words) == 1 and not _BINARY.search(words[0]):
        return _there(table, table.shape.candidates(words[0].encode()), words)
    text = msgspec.json.encode(list(words))
    return _there(table, table.shape.candidates(text), words)


def _there(table: ServedTable, meant: list[bytes], words: Sequence[str]) -> bytes:
    if not meant:
        raise InvalidInputError(
            f"{list(words)} is no key of table {table.name!r}; its columns are "
            f"{', '.join(table.shape.key_schema.names)}"
        )
    if len(meant) > 1:
        found = table.get_many(meant)
        return next((key for key, one in zip(meant, found, strict=True) if one), meant[0])
    return meant[0]


def _typed(table: ServedTable, key: Sequence[Any]) -> tuple[Any, ...]:
    """Return a key as its columns have it; that of a processor's store as it is given."""
    if table.shape.are_keys_free:
        return tuple(key)
    words = [
        "null"
        if one is None
        else one
        if isinstance(one, str)
        else msgspec.json.encode(one).decode()
        for one in key
    ]
    return typed_key(words, table.shape.key_schema)


def _range(table: ServedTable, asked: RowsAsk) -> tuple[bytes, bytes | None]:
    if asked.prefix is not None:
        if asked.low or asked.high:
            raise InvalidInputError("give either prefix, or from and before")
        begin = table.shape.prefix(asked.prefix.encode())
        if begin is None:
            raise InvalidInputError(
                f"the first column of the key of table {table.name!r} is no text; use from and "
                "before"
            )
        return begin, begin + b"\xff" * 16
    first = _encoded(table, asked.low) if asked.low else b""
    return first, _encoded(table, asked.high) if asked.high else None


def _answer(
    table: ServedTable,
    version: TableVersion,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    after: bytes | None,
    accept: str,
) -> Response:
    pairs = [(k, v) for k, v in zip(keys, values, strict=True) if v is not None]
    batch = table.shape.batch([k for k, _ in pairs], [v for _, v in pairs])
    headers = {
        "X-Headrace-Version": str(version.number),
        "X-Headrace-Version-Ms": str(version.at_ms),
        "X-Headrace-Staleness-Ms": str(table.staleness_ms),
        "X-Headrace-More": "false" if after is None else "true",
    }
    if ARROW in accept:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return Response(sink.getvalue().to_pybytes(), media_type=ARROW, headers=headers)
    body = {
        "table": table.name,
        "version": version.number,
        "version_ms": version.at_ms,
        "staleness_ms": table.staleness_ms,
        "rows": [json_ready(row) for row in batch.to_pylist()],
        "more": after is not None,
    }
    # Rows can hold NaN, which JSON does not know: it is null.
    return Response(msgspec.json.encode(body), media_type="application/json", headers=headers)
