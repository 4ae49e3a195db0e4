"""Who may do what: sessions, and what keeps other pages of a browser out.

A browser signs in once with a token, and gets a cookie that this server has signed: it survives a
restart as long as the token is the same, and ends with it. No other page can read it, nor send it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.clock import Clock
from headrace.config import UiSettings
from headrace.config.explore import matches
from headrace.control.server import token_of
from headrace.durations import duration_ms
from headrace.errors import InvalidInputError

COOKIE = "headrace_session"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # no-referrer has browsers send Origin: null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
READS = {"/api/query", "/api/sql"}
"""POST that changes nothing."""

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
MOST_BODY = 1 << 20
SIGN_IN = "sign in first: open the address that headrace ui prints"


class Seer(msgspec.Struct, frozen=True):
    """Somebody who is signed in: a name, and the streams that they may see."""

    name: str
    streams: str
    may_save: bool

    def sees(self, stream: str) -> bool:
        """Say whether they may see a stream."""
        return matches(self.streams, stream)

    @property
    def sees_all(self) -> bool:
        """Whether no stream is hidden from them, whatever its name."""
        return "*" in self.streams.split(",")


class _Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    ends_ms: int
    nonce: str


class Access:
    """Tokens, and the sessions that they begin.

    Args:
        settings: who there is.
        clock: for the end of sessions.
        host: name that the server is reached by, beside loopback.
    """

    def __init__(self, settings: UiSettings, clock: Clock, host: str = "") -> None:
        self._clock = clock
        self._session_ms = duration_ms(settings.session, "ui.session")
        self.token = token_of(settings.token_file, "ui.token_file")
        self._seers = {"": (self.token, Seer("", "*", may_save=True))}
        for one in settings.viewers:
            held = Seer(one.name, one.streams, one.may_save)
            self._seers[one.name] = (token_of(one.token_file, "ui.viewers"), held)
        tokens = [token for token, _ in self._seers.values()]
        if len(set(tokens)) < len(tokens):
            raise InvalidInputError(
                "two viewers have one token, so nobody could say who is signed in; write another "
                "into one of the files of ui.token_file and ui.viewers"
            )
        given = [host, *(settings.names or "").split(",")]
        self._names = {*LOOPBACK, *(name.lower().strip("[]") for name in given if name)}

    @property
    def max_age_s(self) -> int:
        """How long a session lasts."""
        return self._session_ms // 1000

    def is_own_name(self, host: str) -> bool:
        """Say whether a Host header names this server; that is what ends DNS rebinding."""
        name = host.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        return name in self._names

    def seer_of_token(self, token: str) -> Seer | None:
        """Return whose token it is."""
        found = None
        for known, seer in self._seers.values():  # all are compared, whichever it is
            if hmac.compare_digest(known.encode(), token.encode()):
                found = seer
        return found

    def ticket(self, seer: Seer) -> str:
        """Return the cookie of a new session."""
        ends = self._clock.now_ms() + self._session_ms
        body = msgspec.json.encode(_Ticket(seer.name, ends, secrets.token_urlsafe(12)))
        text = base64.urlsafe_b64encode(body).decode().rstrip("=")
        return f"{text}.{self._signature(seer.name, text)}"

    def seer_of_ticket(self, cookie: str) -> Seer | None:
        """Return whose session it is; ``None``: it is none, or has ended."""
        text, _, signature = cookie.partition(".")
        try:
            body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            ticket = msgspec.json.decode(body, type=_Ticket)
        except (ValueError, msgspec.DecodeError):
            return None
        if ticket.name not in self._seers or ticket.ends_ms <= self._clock.now_ms():
            return None
        wanted = self._signature(ticket.name, text)
        is_own = hmac.compare_digest(wanted.encode(), signature.encode())
        return self._seers[ticket.name][1] if is_own else None

    def _signature(self, name: str, text: str) -> str:
        token = self._seers[name][0]
        key = hashlib.sha256(f"headrace session\0{token}".encode()).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def seer_of_headers(self, headers: Mapping[str, str]) -> Seer | None:
        """Return who sends a request: by a session, or by a token where there is no browser."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            return self.seer_of_token(token.strip())
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies.get(COOKIE)
        return None if found is None else self.seer_of_ticket(found.value)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return why a request is refused before anything else looks at it; ``None``: it is not."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.is_own_name(host):
            return 403, (
                f"this server is not called {host[:100]!r}; open it by the address that headrace "
                "ui prints, or add the name to ui.names"
            )
        origin = headers.get("origin")
        is_same = origin is not None and origin.partition("://")[2].lower() == host.lower()
        if origin is not None and not is_same:
            return 403, "another site has sent this; open the page of this server"
        method, path = scope["method"], scope["path"]
        if method in SAFE_METHODS or path in READS:
            return None
        if headers.get("authorization"):  # a browser adds none by itself
            return None
        if not is_same:
            return 403, "what changes something needs the Origin of this server; use its page"
        if path != "/session" and headers.get("x-headrace") != "1":
            return 403, "what changes something needs the header X-Headrace: 1; send it"
        return None


class Door:
    """What every request passes: the checks of ``Access.refusal``, limits, and headers.

    Args:
        app: behind it.
        access: the checks.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                added = [
                    (name.encode(), value.encode())
                    for name, value in HEADERS.items()
                    if name.encode() not in there
                ]
                if b"cache-control" not in there:
                    added.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        refused = self._access.refusal(scope)
        length = Headers(scope=scope).get("content-length", "0")
        if refused is None and (not length.isdigit() or int(length) > MOST_BODY):
            refused = 413, f"a request has at most {MOST_BODY:,} bytes; send less"
        is_api = scope["path"].startswith("/api/")
        if (
            refused is None
            and is_api
            and self._access.seer_of_headers(Headers(scope=scope)) is None
        ):
            refused = 401, SIGN_IN
        if refused is not None:
            await problem(*refused)(scope, receive, with_headers)
            return
        await self._app(scope, _limited(receive), with_headers)


class TooLargeError(InvalidInputError):
    """A body without a length that has more bytes than are read."""


def _limited(receive: Receive) -> Receive:
    """Return what reads no more of a body than is allowed, whatever its length was said to be."""
    size = 0

    async def read() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BODY:
            raise TooLargeError(f"a request has at most {MOST_BODY:,} bytes; send less")
        return message

    return read


def problem(status: int, message: str, code: str = "HR100", **more: Any) -> Response:
    """Return a refusal as the API words it."""
    found = {"code": code, "message": message, **{n: v for n, v in more.items() if v is not None}}
    return JSONResponse({"error": found}, status)
