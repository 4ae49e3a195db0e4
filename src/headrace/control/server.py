"""Serves the API of a driver in a thread of its own, and leaves word of where.

``control.json`` in the job's storage has address and token, for its owner alone; it is there as
long as the server is.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.clock import Clock
from headrace.control.asking import PartsRequests
from headrace.control.board import Board
from headrace.control.place import EVERY_ADDRESS, PLACE, Place
from headrace.errors import InvalidInputError
from headrace.files import Files

if TYPE_CHECKING:
    from uvicorn import Server

STOP_S = 5.0
BACKLOG = 64


class ControlServer:
    """The API of one driver; ``start`` returns at once, what it needs is loaded in its thread.

    Args:
        board: of the driver.
        storage: of the job.
        host: address to bind to.
        port: to listen on; 0: any that is free.
        files: the file system.
        clock: for names.
    """

    def __init__(
        self, board: Board, storage: Path, host: str, port: int, files: Files, clock: Clock
    ) -> None:
        self._board, self._storage = board, storage
        self._host, self._port = host, port
        self._files, self._clock = files, clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self.place: Place | None = None

    def start(self) -> None:
        """Listen, leave word of where, and serve from another thread.

        Raises:
            InvalidInputError: the address cannot be listened on.
        """
        self._listener = _listening(self._host, self._port)
        shown, taken = self._listener.getsockname()[:2]
        token, host = secrets.token_urlsafe(32), os.uname().nodename
        if shown in EVERY_ADDRESS:  # which from another host would be that one itself
            shown = host
        shown = f"[{shown}]" if ":" in shown else shown
        self.place = Place(f"http://{shown}:{taken}", token, os.getpid(), host)
        _leave_word(self._storage / PLACE, self.place, self._clock)
        self._thread = threading.Thread(target=self._serve, name="headrace-control", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Half a second to load, which no epoch waits for.
        import uvicorn  # noqa: PLC0415

        from headrace.control.app import make_app  # noqa: PLC0415

        assert self.place is not None
        assert self._listener is not None
        requests = PartsRequests(self._storage, self._board, self._files, self._clock)
        app = make_app(self._board, self.place.token, requests.ask, requests.save, requests)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        watcher = threading.Thread(target=self._end, args=(server,), daemon=True)
        watcher.start()
        try:
            server.run([self._listener])
        except (OSError, ValueError):  # it was to stop before it had started: nothing to listen on
            if not self._over.is_set():
                raise

    def _end(self, server: Server) -> None:
        self._over.wait()
        server.should_exit = True

    def stop(self) -> None:
        """Serve no more, and take the word back; without a start nothing happens."""
        if self._thread is None or self._listener is None:
            return
        self._take_word_back()
        self._over.set()
        self._thread.join(STOP_S)
        self._listener.close()

    def _take_word_back(self) -> None:
        """Remove the word, unless a driver that took over has left its own there."""
        path = self._storage / PLACE
        with suppress(OSError, msgspec.DecodeError):
            if msgspec.json.decode(path.read_bytes(), type=Place) == self.place:
                path.unlink()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"control.host={host}, control.port={port} cannot be listened on: {error.strerror}; "
            "leave control.port out for one that is free, or set control.enabled=false"
        ) from error
    return listener


def _leave_word(path: Path, place: Place, clock: Clock) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{clock.new_id()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(place))
    os.replace(temporary, path)
