"""The routes of the web application: the page, and the API that it asks."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse
from starlette.exceptions import HTTPException

from headrace.clock import Clock
from headrace.errors import HeadraceError, InvalidInputError, NotOwnerError, UnavailableError
from headrace.explore.cancel import Cancel
from headrace.explore.export import check_form, export_table
from headrace.explore.query import read_query
from headrace.explore.service import ExploreService
from headrace.files import Files
from headrace.ui.access import COOKIE, SIGN_IN, Access, Door, Seer, TooLargeError, problem
from headrace.ui.assets import Assets
from headrace.ui.live import LiveHub, unseen
from headrace.ui.saved import Dashboard, SavedItems, SavedView

STATIC = Path(__file__).parent / "static"
PAGES = ("/", "/explore", "/dashboards", "/dashboards/{name}", "/sql", "/jobs", "/streams",
         "/state", "/dead-letters")  # fmt: skip
_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (TooLargeError, 413),
    (InvalidInputError, 400),
    (NotOwnerError, 409),
    (UnavailableError, 503),
)
_PLACE = re.compile(r"^query:(\d+):(\d+): ")
MOST_LIVE = 60
"""As many live charts has one page, as a dashboard may have."""

IMMUTABLE = "public, max-age=31536000, immutable"


class Unseen(HTTPException):
    """A stream that is not there, or that one may not see: which of them is not said."""

    def __init__(self, stream: str) -> None:
        super().__init__(404, unseen(stream))


def make_app(service: ExploreService, access: Access, clock: Clock) -> FastAPI:
    """Return the application.

    Args:
        service: answers.
        access: who may ask.
        clock: for the pauses of live charts.
    """
    app = FastAPI(
        title="Headrace", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.add_middleware(Door, access=access)
    app.exception_handler(HeadraceError)(_error_answer)
    app.exception_handler(HTTPException)(_http_answer)
    add_page_routes(app, access)
    app.state.hub = LiveHub(service, clock)
    add_sql_routes(app, service, access)
    add_saved_routes(app, service, access, clock)
    add_query_routes(app, service, access)
    return app


def seer_of(request: Request, access: Access) -> Seer:
    """Return who asks.

    Raises:
        HTTPException: nobody is signed in.
    """
    found = access.seer_of_headers(request.headers)
    if found is None:
        raise HTTPException(401, SIGN_IN)
    return found


def add_page_routes(app: FastAPI, access: Access) -> None:
    """Add the page, its files and the sign-in form."""
    assets = Assets(STATIC)

    async def page(request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None:
            after = request.query_params.get("next")
            return _signed_in(request, access, assets.place, token, after)
        if access.seer_of_headers(request.headers) is None:
            path, query = request.url.path, request.url.query
            return _sign_in_form(assets.place, f"{path}?{query}" if query else path)
        return HTMLResponse(assets.index, headers={"cache-control": "no-cache"})

    for path in PAGES:
        app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)

    @app.post("/session")
    async def sign_in(request: Request) -> Response:
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        token, after = form.get("token", [""])[0], form.get("next", ["/"])[0]
        return _signed_in(request, access, assets.place, token, after)

    @app.delete("/session")
    async def sign_out() -> Response:
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    @app.get("/static/{digest}/{path:path}")
    async def static(digest: str, path: str, request: Request) -> Response:
        found = assets.find(digest, path)
        if found is None:
            raise HTTPException(404, f"there is no file {path[:100]!r}")
        headers = {"cache-control": IMMUTABLE, "vary": "accept-encoding"}
        accepted = {one.partition(";")[0].strip() for one in
                    request.headers.get("accept-encoding", "").split(",")}  # fmt: skip
        if found.packed is not None and "gzip" in accepted:
            return Response(
                found.packed, media_type=found.type, headers={**headers, "content-encoding": "gzip"}
            )
        return Response(found.data, media_type=found.type, headers=headers)


_SIGN_IN = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sign in · Headrace</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    '<link rel="icon" href="{files}/style/mark.svg" type="image/svg+xml">'
    '<link rel="stylesheet" href="{files}/page.css">'
    '<script type="module" src="{files}/theme.js"></script></head>'
    '<body class="sign-in"><main class="panel"><div class="brand">'
    '<img src="{files}/style/mark.svg" alt="">Headrace</div>'
    '<h1>Sign in</h1><p class="{kind}" role="status">{said}</p>'
    '<form class="stack" method="post" action="/session"><label class="labelled"><span>Token</span>'
    '<input class="field" name="token" type="password" autocomplete="current-password" required '
    'autofocus></label><input type="hidden" name="next" value="{next}">'
    '<button class="button primary">Sign in</button></form></main></body></html>'
)
_HOW = "Use the token that headrace ui prints, or that you were given."


def _sign_in_form(files: str, after: str, said: str = "", status: int = 401) -> Response:
    body = _SIGN_IN.format(
        files=files,
        kind="banner bad" if said else "note",
        said=html.escape(said or _HOW),
        next=html.escape(after, quote=True),
    )
    return HTMLResponse(body, status)


def _signed_in(
    request: Request, access: Access, files: str, token: str, after: str | None
) -> Response:
    """Begin a session, and show the page without the token in its address."""
    seer = access.seer_of_token(token)
    place = own_path(after or request.url.path)
    if place == "/session":
        place = "/"
    if seer is None:
        return _sign_in_form(files, place, "That is not a token of this server.", 403)
    answer = RedirectResponse(place, 303)
    answer.set_cookie(
        COOKIE, access.ticket(seer), max_age=access.max_age_s, path="/", httponly=True,
        samesite="strict", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


def own_path(after: str) -> str:
    """Return a path of this server; ``/`` for what would lead elsewhere."""
    is_own = after.startswith("/") and not after.startswith(("//", "/\\"))
    return after if is_own and after.isprintable() and "\\" not in after else "/"


def add_query_routes(app: FastAPI, service: ExploreService, access: Access) -> None:
    """Add the routes of streams and queries."""

    def visible(request: Request, stream: str) -> Seer:
        seer = seer_of(request, access)
        if not seer.sees(stream) or stream not in service.tailer.names():
            raise Unseen(stream)
        return seer

    @app.get("/api/status")
    def status(request: Request) -> Response:
        seer = seer_of(request, access)
        found = service.status(seer.sees, sees_all=seer.sees_all)
        return _json({**found, "viewer": seer.name, "may_save": seer.may_save})

    @app.get("/api/streams")
    def streams(request: Request) -> Response:
        seer = seer_of(request, access)
        return _json({"streams": service.streams(seer.sees)})

    @app.get("/api/streams/{stream}/columns")
    def columns(request: Request, stream: str) -> Response:
        visible(request, stream)
        return _json({"columns": service.columns(stream)})

    @app.get("/api/streams/{stream}/values")
    def values(request: Request, stream: str) -> Response:
        visible(request, stream)
        return _json({"values": service.values(stream, dict(request.query_params))})

    @app.post("/api/query")
    async def query(request: Request) -> Response:
        wanted = read_query(await request.body())
        visible(request, wanted.stream)
        return await _answered(request, lambda cancel: service.answer(wanted, cancel).encoded())

    @app.get("/api/live")
    async def live(request: Request) -> Response:
        given = request.query_params.getlist("q")
        if not 1 <= len(given) <= MOST_LIVE:
            raise InvalidInputError(f"q is a query; give 1 to {MOST_LIVE} of them")
        wanted = [read_query(one) for one in given]
        seer = seer_of(request, access)
        hub: LiveHub = app.state.hub
        hub.check_room()
        events = hub.watch(wanted, seer.sees, request.is_disconnected)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def add_sql_routes(app: FastAPI, service: ExploreService, access: Access) -> None:
    """Add the routes of the SQL box, and of files with answers."""

    @app.post("/api/sql")
    async def sql(request: Request) -> Response:
        seer = seer_of(request, access)
        asked = _sql_asked(await request.body())
        return await _answered(
            request,
            lambda cancel: service.sql(asked.sql, seer.sees, asked.limit, cancel).encoded(),
        )

    @app.get("/api/sql/schema")
    def schema(request: Request) -> Response:
        return _json({"tables": service.sql_schema(seer_of(request, access).sees)})

    @app.get("/api/export")
    async def export(request: Request) -> Response:
        seer, asked = seer_of(request, access), request.query_params
        form = asked.get("format", "csv")
        kind, name = check_form(form), "query"
        if asked.get("sql"):
            text = _sql_text(asked["sql"])

            def made(cancel: Cancel) -> bytes:
                rows = service.sql_table(text, seer.sees, cancel=cancel)
                return export_table(rows.shown, form)

        else:
            wanted = read_query(asked.get("q", ""))
            name = wanted.stream
            if not seer.sees(name) or name not in service.tailer.names():
                raise Unseen(name)

            def made(cancel: Cancel) -> bytes:
                return service.export(wanted, form, cancel)

        answer = await _answered(request, made, kind)
        answer.headers["content-disposition"] = f'attachment; filename="{name}.{form}"'
        return answer


class SqlAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request for SQL."""

    sql: str
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _sql_asked(body: bytes) -> SqlAsked:
    try:
        asked = msgspec.json.decode(body, type=SqlAsked)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInputError(f'{error}; send {{"sql": "SELECT ..."}}') from error
    return SqlAsked(_sql_text(asked.sql), asked.limit)


def _sql_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError("the query is no text of Unicode; send it as UTF-8") from error
    return text


def add_saved_routes(app: FastAPI, service: ExploreService, access: Access, clock: Clock) -> None:
    """Add the routes of saved views and dashboards."""
    root, files = service.settings.home / "ui", Files()
    _add_items(app, access, "views", SavedItems(root / "views", SavedView, files, clock))
    _add_items(app, access, "dashboards", SavedItems(root / "dashboards", Dashboard, files, clock))


def _add_items(app: FastAPI, access: Access, kind: str, items: SavedItems[Any]) -> None:
    def saver(request: Request) -> Seer:
        seer = seer_of(request, access)
        if not seer.may_save:
            raise HTTPException(403, "you may look, but not save; ui.viewers says who may")
        return seer

    def unknown(name: str) -> HTTPException:
        return HTTPException(404, f"there is no {kind.removesuffix('s')} {name[:100]!r}")

    @app.get(f"/api/{kind}")
    def every(request: Request) -> Response:
        return _json({kind: items.all(seer_of(request, access).sees)})

    @app.get(f"/api/{kind}/{{name}}")
    def get(request: Request, name: str) -> Response:
        found = items.get(name, seer_of(request, access).sees)
        if found is None:
            raise unknown(name)
        return _json(found)

    @app.put(f"/api/{kind}/{{name}}")
    async def put(request: Request, name: str) -> Response:
        seer, body = saver(request), await request.body()
        return _json(await asyncio.to_thread(items.put, name, body, seer.name, seer.sees))

    @app.delete(f"/api/{kind}/{{name}}")
    def delete(request: Request, name: str) -> Response:
        if not items.remove(name, saver(request).sees):
            raise unknown(name)
        return Response(status_code=204)


async def _answered(
    request: Request, answer: Callable[[Cancel], bytes], kind: str = "application/json"
) -> Response:
    """Answer from a thread, and cancel that when the client goes away."""
    cancel = Cancel()
    task = asyncio.create_task(asyncio.to_thread(answer, cancel))
    while not (await asyncio.wait([task], timeout=0.1))[0]:
        if not cancel.is_done and await request.is_disconnected():
            cancel()
    return Response(await task, media_type=kind)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _error_answer(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HeadraceError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    place = _PLACE.match(error.message)
    line, column = (int(place[1]), int(place[2])) if place else (None, None)
    message = error.message[place.end() :].partition("\n")[0] if place else error.message
    return problem(status, message, error.code, line=line, column=column)


def _http_answer(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail))
