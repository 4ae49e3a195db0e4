"""A proxy before a real S3 server that loses requests and answers, or answers in its place."""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal[
    "lose request",
    "lose answer",
    "late answer",
    "cut body",
    "unavailable",
    "no condition",
    "not implemented",
    "old answer",
]
"""Late: when nobody waits any more. Old: as the server answered the same question before. No
condition: a create of what is there is said to be done."""
Choose = Callable[[str, str], Fault | None]
"""What to do to a request, by its method and path; ``None``: pass it on."""

LATE_S = 10.0


class FaultyProxy:
    """Listens on a free port of the loopback address from its creation until ``close``.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        proxy = self

        class Handler(_Handler):
            upstream, chosen, answers = port, staticmethod(proxy._choose), {}

        self.choose: Choose = lambda method, path: None
        self.done: list[tuple[Fault, str, str]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _choose(self, method: str, path: str) -> Fault | None:
        with self._lock:
            fault = self.choose(method, path)
            if fault is not None:
                self.done.append((fault, method, path))
            return fault

    def once(self, fault: Fault, method: str, part: str, times: int = 1) -> None:
        """Do it to the next requests of a method whose path has a part."""
        left = [fault] * times

        def choose(asked: str, path: str) -> Fault | None:
            return left.pop() if left and asked == method and part in path else None

        self.choose = choose

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream: int
    chosen: Any
    answers: dict[str, tuple[int, list[tuple[str, str]], bytes]]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.chosen(self.command, self.path)
        if fault == "lose request":
            self._hang_up()
        elif fault == "unavailable":
            self._answer(503, [("Content-Type", "text/plain")], b"slow down")
        elif fault == "not implemented":
            self._answer(501, [], b"<Error><Code>NotImplemented</Code></Error>")
        elif fault == "cut body":
            self._send_half(body)
            self._hang_up()
        else:
            found = self._forwarded(body)
            if fault == "no condition" and found[0] == 412:
                found = 200, [("ETag", '"any"')], b""
            question = f"{self.command} {self.path}"
            before, self.answers[question] = self.answers.get(question, found), found
            if fault == "late answer":
                select.select([self.connection], [], [], LATE_S)
            if fault in {"lose answer", "late answer"}:
                self._hang_up()
            else:
                self._answer(*(before if fault == "old answer" else found))

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            self._begin(connection, body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except OSError:
            return 503, [], b""
        finally:
            connection.close()

    def _begin(self, connection: http.client.HTTPConnection, sent: bytes) -> None:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "connection":
                connection.putheader(name, value)
        connection.endheaders(sent or None)

    def _send_half(self, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        with suppress(OSError):
            self._begin(connection, body[: len(body) // 2])
        connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                self.send_header(name, value)
        length = {k.lower(): v for k, v in headers}.get("content-length")
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", length if is_head and length else str(len(data)))
        self.end_headers()
        if not is_head:
            self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on
