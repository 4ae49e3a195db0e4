"""``headrace sql serve``: the tables of an app by HTTP, from a process that does not run it.

Any number of processes answer, each by what is committed to files; so an answer needs no driver,
and no process has anything that the others lack. Each notes its address in a folder of
the home, as a driver does in the storage of its job.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import uvicorn

from headrace.bus import Bus
from headrace.config import Settings
from headrace.control.client import API_FILE, ApiAddress, Client
from headrace.control.http_api import new_app
from headrace.control.server import listening, place_at, token_of
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import write_private
from headrace.sql.app import SqlApp
from headrace.sql.query_tables import tables_of_files
from headrace.sql.routes import add_table_routes

ENDING_S = 2
"""How long clients that follow changes may take when the process ends."""

ANSWER_S = 30.0
TOKEN = "HEADRACE_TOKEN"
"""The variable with the token of servers that are named by their addresses."""


class TableServer:
    """Answers queries over the tables of an app until the process is to end.

    Args:
        app: the app.
        bus: of the home.
        settings: of the home; ``control`` has address, port and token.
    """

    def __init__(self, app: SqlApp, bus: Bus, settings: Settings) -> None:
        self._app, self._bus, self._settings = app, bus, settings
        control = settings.control
        self._token = token_of(control.token_file)
        self._listener: socket.socket = listening(control.host, control.port)
        self.place: ApiAddress = place_at(self._listener, self._token)

    def serve(self) -> None:
        """Answer until the process gets a signal to end."""
        job = self._app.job
        api = new_app(f"The tables of app {job.name}.", self._token)
        tables = tables_of_files(job, self._app.tables, self._bus, self._settings)
        add_table_routes(api, tables, lambda: None, lambda: 0)
        config = uvicorn.Config(
            api,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=ENDING_S,
        )
        with self._known():
            uvicorn.Server(config).run([self._listener])

    @contextmanager
    def _known(self) -> Iterator[None]:
        """Keep a file with the address of this process while it runs."""
        name = f"{self.place.host}-{self.place.process}"
        folder = servers_folder(self._settings, self._app.job.name) / name
        write_private(folder / API_FILE, msgspec.json.encode(self.place))
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._listener.close()


def servers_folder(settings: Settings, app: str) -> Path:
    """Return where servers of an app leave word."""
    return Path(settings.home) / "sql" / app / "servers"


def servers(settings: Settings, app: str, timeout_s: float = ANSWER_S) -> Iterator[Client]:
    """Yield the servers of an app that seem to be there; word of others is removed."""
    folder = servers_folder(settings, app)
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for name in names:
        with suppress(InvalidInputError, OSError, msgspec.DecodeError):
            client = Client(folder / name, app, timeout_s)
            if client.has_ended:
                shutil.rmtree(folder / name, ignore_errors=True)
            else:
                yield client


def read_any(addresses: Sequence[str], path: str) -> bytes:
    """Return what the first of some servers answers that is there.

    Args:
        addresses: of servers, such as ``http://host:8080``.
        path: of a GET.

    Raises:
        UnavailableError: none answers; says why of each.
        InvalidInputError: one refuses.
    """
    token, problems = os.environ.get(TOKEN, ""), []
    if not token:
        raise InvalidInputError(
            f"servers that are named by --url ask for a token; set {TOKEN} to that of "
            "control.token_file"
        )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise InvalidInputError(f"--url is {address!r}; expected http://host:port")
        request = urllib.request.Request(
            f"{address.rstrip('/')}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with opener.open(request, timeout=ANSWER_S) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            if error.code < 500:
                _refuse(address, error)
            problems.append(f"{address}: {error.reason}")
        except OSError as error:
            problems.append(f"{address}: {getattr(error, 'reason', error)}")
    raise UnavailableError(f"no server answers: {'; '.join(problems)}")


def _refuse(address: str, error: urllib.error.HTTPError) -> NoReturn:
    said = error.read()
    message = f"{address}: {error.reason}"
    with suppress(ValueError, AttributeError):
        message = str(json.loads(said).get("message", message))
    raise InvalidInputError(message) from error


def answered(settings: Settings, app: str, path: str) -> bytes | None:
    """Return what a server of an app answers; ``None``: none is there."""
    for client in servers(settings, app):
        with suppress(UnavailableError):  # it ends: another may be there
            return client.read(path)
    return None
