"""Serves the API of a driver in a thread of its own, and writes its address to a file.

``control.json`` in the job's storage has address and token, for its owner alone; it is there as
long as the server is. What changes a job is asked of each of its parts.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace import redaction
from headrace.closeable import running_beside
from headrace.config import ControlSettings
from headrace.control.client import API_FILE, EVERY_ADDRESS, ApiAddress
from headrace.control.job_handle import DriverHandle
from headrace.control.live_job import LiveJob
from headrace.errors import InvalidInputError
from headrace.files import Files, write_private

if TYPE_CHECKING:
    from uvicorn import Server


STOP_S = 5.0
LOAD_AFTER_S, CHECKS_A_SECOND = 10, 10
BACKLOG = 64
LEAST_TOKEN = 16


class ControlServer:
    """The API of one driver; ``start`` returns at once, what it needs is loaded in its thread.

    Args:
        live: the job of the driver.
        storage: of the job.
        wanted: address, port and token.
        files: the file system.
    """

    def __init__(self, live: LiveJob, storage: Path, wanted: ControlSettings, files: Files) -> None:
        self._live, self._storage, self._wanted, self._files = live, storage, wanted, files
        self._held = ExitStack()
        self.place: ApiAddress | None = None

    def start(self) -> None:
        """Listen, leave word of where, and serve from another thread.

        Raises:
            InvalidInputError: the address cannot be listened on, or the token not be read.
        """
        token = token_of(self._wanted.token_file)
        listener = self._held.enter_context(listening(self._wanted.host, self._wanted.port))
        self.place = place_at(listener, token)
        serve = partial(self._serve, listener, token)
        self._held.enter_context(running_beside("headrace-control", serve, STOP_S))
        self._held.callback(self._take_word_back)
        write_private(self._storage / API_FILE, msgspec.json.encode(self.place))

    def _serve(self, listener: socket.socket, token: str, over: threading.Event) -> None:
        # Half a second to load, which a short run spares, and the first epoch does not wait for.
        if not _is_asked(listener, over):
            return
        import uvicorn  # noqa: PLC0415

        from headrace.control.http_api import make_app  # noqa: PLC0415

        job = DriverHandle(self._storage, self._live, self._files)
        app = make_app(self._live, token, job)
        app.state.over = over  # for answers without an end
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        threading.Thread(target=_end, args=(server, over), daemon=True).start()
        try:
            server.run([listener])
        except (OSError, ValueError):  # it was to stop before it had started: nothing to listen on
            if not over.is_set():
                raise

    def stop(self) -> None:
        """Serve no more, and take the word back; without a start nothing happens."""
        self._held.close()

    def _take_word_back(self) -> None:
        """Remove the word, unless a driver that took over has left its own there."""
        path = self._storage / API_FILE
        with suppress(OSError, msgspec.DecodeError):
            if msgspec.json.decode(self._files.read(path), type=ApiAddress) == self.place:
                Files(sync=False).remove(path)


def _is_asked(listener: socket.socket, over: threading.Event) -> bool:
    """Wait for the first request, or until the job has begun; false: it is over before."""
    # Not select, which knows no descriptor from 1,024 on: a process may have many files open.
    with selectors.PollSelector() as asked:
        asked.register(listener, selectors.EVENT_READ)
        for _ in range(LOAD_AFTER_S * CHECKS_A_SECOND):
            if over.is_set() or asked.select(1 / CHECKS_A_SECOND):
                break
    return not over.is_set()


def _end(server: Server, over: threading.Event) -> None:
    over.wait()
    server.should_exit = True


def place_at(listener: socket.socket, token: str) -> ApiAddress:
    """Return where this process is asked that listens."""
    host = os.uname().nodename
    shown, taken = listener.getsockname()[:2]
    if shown in EVERY_ADDRESS:  # which from another host would be that one itself
        shown = host
    shown = f"[{shown}]" if ":" in shown else shown
    return ApiAddress(f"http://{shown}:{taken}", token, os.getpid(), host)


def token_of(file: Path | None, setting: str = "control.token_file") -> str:
    """Return the token that requests must bring: that of a file, or a new one.

    Args:
        file: the file.
        setting: that names it, for the error.

    Raises:
        InvalidInputError: the file cannot be read, or has none.
    """
    if file is None:
        return secrets.token_urlsafe(32)
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise InvalidInputError(
            f"file {file} of {setting} cannot be read: {reason}; write a token into it, "
            f"such as by: openssl rand -hex 32 > {file}"
        ) from error
    if len(token) < LEAST_TOKEN or not token.isprintable() or " " in token:
        raise InvalidInputError(
            f"file {file} of {setting} has no token: found {len(token)} characters, "
            f"expected one word of at least {LEAST_TOKEN}; write one by: "
            f"openssl rand -hex 32 > {file}"
        )
    redaction.remember(token)
    return token


def listening(host: str, port: int, section: str = "control") -> socket.socket:
    """Return a socket that listens.

    Args:
        host: address.
        port: 0: any free one.
        section: of the settings that have both, for the error.

    Raises:
        InvalidInputError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio sends at once; else a kept connection waits 40 ms each time.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        instead = "leave control.port out for one that is free, or set control.enabled=false"
        if section != "control":
            instead = f"choose another, or {section}.port=0 for one that is free"
        raise InvalidInputError(
            f"{section}.host={host}, {section}.port={port} cannot be listened on: "
            f"{error.strerror}; {instead}"
        ) from error
    return listener
