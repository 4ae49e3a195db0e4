"""One process that serves tables: what fills them, who answers, and where it leaves word.

Several processes may share a port, each with tables of its own; ``processes`` starts and watches
them.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace import redaction
from headrace.bus import Bus
from headrace.clock import Clock
from headrace.config import Settings
from headrace.control.client import API_FILE
from headrace.control.server import place_at, token_of
from headrace.coordinator.inspection.job_reader import JobReader, part_readers, reader_of
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import sole_user, write_private
from headrace.graph.sinks import installed_warehouse
from headrace.serving.entries import DiskEntries, Entries, MemoryEntries
from headrace.serving.job_source import StoreSource, shape_of
from headrace.serving.listener import ClientLimits, RedisListener, listen, room_for
from headrace.serving.redis_session import ServerFacts
from headrace.serving.resp import RequestLimits
from headrace.serving.sources import (
    TABLE_LOOK_S,
    DailySource,
    Follower,
    Source,
    StreamSource,
    column_rows,
)
from headrace.serving.table import KEY_GROUPS, ServedTable, Tables

if TYPE_CHECKING:
    from uvicorn import Server

FOLDER, LOCK = "serving", "lock"
LOOPBACKS = ("127.0.0.1", "::1", "localhost")
HTTP_END_S = 2
PARENT = "SERVING_PARENT"
"""The variable with the process that started others on a shared port."""

SWITCH_S = 0.0005
"""How long the thread that follows may hold the interpreter while clients wait."""


class Origin(NamedTuple):
    """What a table is filled from.

    Args:
        kind: ``job``, ``stream`` or ``table``.
        source: a stream, a table, or a job and its store with a colon between.
        name: of the table that is served.
    """

    kind: str
    source: str
    name: str

    @classmethod
    def of(cls, kind: str, word: str) -> Origin:
        """Return what ``SOURCE`` or ``SOURCE=NAME`` means.

        Raises:
            InvalidInputError: a job without its store, or a name that is none.
        """
        source, _, name = word.partition("=")
        if kind == "job" and not all(source.partition(":")):
            raise InvalidInputError(
                f"--job is {word!r}; expected JOB:STORE, such as --job orders:totals"
            )
        name = name or source.rpartition(":")[2]
        if not name or not name.isprintable() or " " in name:
            raise InvalidInputError(f"--{kind} is {word!r}; expected SOURCE or SOURCE=NAME")
        return cls(kind, source, name)


@dataclass(frozen=True)
class ServeOptions:
    """What a server serves, and to whom.

    Args:
        origins: of its tables.
        keys: columns of the key of streams and daily tables; none: the key of the stream.
        values: columns of their values; none: all others.
        is_bare: a value is that of its only column, not a map.
        days: of daily tables.
        namespace: before the keys of the only table; ``None``: its name and a colon.
        on_disk: entries are on disk, and need not fit memory.
        groups: the first key group that it serves, and the one after its last.
        host: address to bind to.
        port: of Redis's protocol; 0: one that is free.
        http_port: of HTTP; ``None``: no HTTP, 0: one that is free.
        password_file: has the password; ``None``: none, which only loopback may have.
        shared: other processes listen on the same port.
        clients: limits of clients.
        requests: limits of requests.
        look_s: between two looks for another snapshot of a daily table.
    """

    origins: tuple[Origin, ...]
    keys: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    is_bare: bool = False
    days: str = "latest"
    namespace: str | None = None
    on_disk: bool = False
    groups: tuple[int, int] = (0, KEY_GROUPS)
    host: str = "127.0.0.1"
    port: int = 0
    http_port: int | None = None
    password_file: Path | None = None
    shared: bool = False
    clients: ClientLimits = field(default_factory=ClientLimits)
    requests: RequestLimits = field(default_factory=RequestLimits)
    look_s: float = TABLE_LOOK_S

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidInputError: says what.
        """
        if not self.origins:
            raise InvalidInputError(
                "nothing is given to serve; give --job JOB:STORE, --stream STREAM or --table TABLE"
            )
        if self.namespace is not None and len(self.origins) > 1:
            raise InvalidInputError("--namespace is for one table; several have their names")
        first, behind = self.groups
        if not 0 <= first < behind <= KEY_GROUPS:
            raise InvalidInputError(
                f"--groups is {first}-{behind - 1}; expected a part of 0-{KEY_GROUPS - 1}"
            )
        if self.password_file is None and self.host not in LOOPBACKS:
            raise InvalidInputError(
                f"--host is {self.host}, which others reach, without a password; give "
                "--password-file, or bind to 127.0.0.1"
            )


class TableServer:
    """Serves tables from one process.

    Args:
        options: what, and to whom.
        settings: of the home.
        bus: of the home.
        clock: for all that needs time.
        on_change: called when a table is loaded, or can no longer be followed.

    Attributes:
        sources: of the tables.
        tables: that are served.
        port: of Redis's protocol.
        token_place: the file with the token of HTTP.
        clients: of either protocol at the same time; fewer than wanted where the process may not
            open so many files.
    """

    def __init__(
        self,
        options: ServeOptions,
        settings: Settings,
        bus: Bus,
        clock: Clock,
        on_change: Callable[[ServedTable], None] = lambda _: None,
    ) -> None:
        options.check()
        self._options, self._settings, self._bus, self._clock = options, settings, bus, clock
        name = f"{os.uname().nodename}-{os.getpid()}"
        self._folder = Path(settings.home) / FOLDER / name
        self._numbers = itertools.count(1)
        self.sources = [self._source(origin) for origin in options.origins]
        self.tables = Tables([source.table for source in self.sources])
        self._password = ""
        if options.password_file is not None:
            self._password = token_of(options.password_file, "--password-file")
        facts = ServerFacts(
            self.tables, clock, self._password, options.requests, began_s=clock.monotonic()
        )
        ways = 1 if options.http_port is None else 2
        self.clients = room_for(options.clients.clients * ways) // ways
        limits = replace(options.clients, clients=self.clients)
        facts.most_clients = self.clients
        self.socket = listen(options.host, options.port, shared=options.shared)
        facts.port = self.port = self.socket.getsockname()[1]
        self._http = None if options.http_port is None else listen(options.host, options.http_port)
        token = self._password or secrets.token_urlsafe(32)
        redaction.remember(token)
        self.place = None if self._http is None else place_at(self._http, token)
        file = options.password_file
        self.token_place = str(self._folder / API_FILE if file is None else file)
        self._follower = Follower(self.sources, clock, on_change)
        self._listener = RedisListener(self.socket, facts, limits, clock)

    @classmethod
    def check(cls, options: ServeOptions, settings: Settings, bus: Bus, clock: Clock) -> None:
        """Refuse what cannot be served; listens nowhere.

        Raises:
            InvalidInputError: says what.
        """
        port = replace(options, port=0, http_port=None)
        cls(port, settings, bus, clock).close()

    def close(self) -> None:
        """Release what was opened, without serving."""
        self._listener.close()
        if self._http is not None:
            self._http.close()

    def _entries(self) -> Entries:
        if not self._options.on_disk:
            return MemoryEntries(self._is_over)
        number = next(self._numbers)
        return DiskEntries(self._folder / f"entries-{number}", is_over=self._is_over)

    def _is_over(self) -> bool:
        return self._follower.is_over

    def _source(self, origin: Origin) -> Source:
        if origin.kind == "job":
            return self._job(origin)
        if origin.kind == "stream":
            return self._stream(origin)
        return self._daily(origin)

    def _job(self, origin: Origin) -> Source:
        job, _, store = origin.source.partition(":")

        def opened() -> JobReader:
            return reader_of(part_readers(self._settings, job), store)

        reader = opened()
        entry = reader.entry(reader.state(), store)
        table = ServedTable(
            origin.name,
            self._namespace(origin),
            shape_of(entry),
            self._clock,
            groups=self._options.groups,
            ttl_ms=entry.ttl_ms if entry.form == "values" else None,
        )
        return StoreSource(table, self._entries, opened, store, self._clock)

    def _stream(self, origin: Origin) -> Source:
        stream = self._bus.stream(origin.source)
        options, spec = self._options, stream.spec
        rows = column_rows(
            spec.schema,
            options.keys or spec.key,
            options.values,
            is_bare=options.is_bare,
            origin=f"stream {spec.name!r}",
        )
        table = self._table(origin, rows)
        opened = partial(self._bus.stream, origin.source)
        return StreamSource(table, self._entries, stream, rows, self._clock, opened)

    def _daily(self, origin: Origin) -> Source:
        folder = self._settings.warehouse_dir
        found = installed_warehouse().named_table(folder, origin.source)
        options = self._options
        rows = column_rows(
            found.schema,
            options.keys,
            options.values,
            is_bare=options.is_bare,
            origin=f"table {origin.source!r}",
        )
        table = self._table(origin, rows)
        return DailySource(
            table,
            self._entries,
            folder,
            origin.source,
            rows,
            options.days,
            self._clock,
            options.look_s,
        )

    def _table(self, origin: Origin, rows: object) -> ServedTable:
        return ServedTable(
            origin.name,
            self._namespace(origin),
            rows,  # type: ignore[arg-type]
            self._clock,
            groups=self._options.groups,
        )

    def _namespace(self, origin: Origin) -> bytes:
        given = self._options.namespace
        return (f"{origin.name}:" if given is None else given).encode()

    def serve(self) -> None:
        """Answer until the process gets SIGINT or SIGTERM, or ``stop`` is called."""
        with ExitStack() as stack:
            if self._options.on_disk or self.place is not None:
                stack.enter_context(_own_folder(self._folder))
            for source in self.sources:
                stack.callback(source.table.close)
            stack.enter_context(_quick_switches())
            if self.place is not None:
                write_private(self._folder / API_FILE, msgspec.json.encode(self.place))
                stack.enter_context(self._serving_http())
            gc.freeze()  # what was imported stays: a collection that looks at it stops all clients
            stack.callback(gc.unfreeze)
            self._follower.start()
            stack.callback(self._follower.stop)
            stack.enter_context(_stopped_by_signals(self.stop))
            self._listener.run()

    def stop(self) -> None:
        """End; from any thread."""
        self._listener.stop()

    @contextmanager
    def _serving_http(self) -> Iterator[None]:
        import uvicorn  # noqa: PLC0415 - half a second, which those without HTTP spare

        from headrace.serving.http_routes import make_app  # noqa: PLC0415

        assert self._http is not None
        assert self.place is not None
        app = make_app(self.tables, self.place.token, self.token_place, self._options.requests)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=HTTP_END_S,
            limit_concurrency=self.clients + 1,  # this one is not served
        )
        server = _HttpServer(uvicorn.Server(config), self._http)
        server.start()
        try:
            yield
        finally:
            server.stop()


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Have a folder that ends with the block; those of servers that were killed are removed."""
    for lock in folder.parent.glob(f"*/{LOCK}"):
        with sole_user(lock) as is_left:
            if is_left:
                shutil.rmtree(lock.parent, ignore_errors=True)
    own = folder / LOCK
    while True:
        with sole_user(own) as is_own:
            # Another server may have taken it for one that was left, between making and locking it.
            if is_own and own.exists():
                try:
                    yield
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


class _HttpServer(threading.Thread):
    """Serves an app from a thread."""

    def __init__(self, server: Server, listener: socket.socket) -> None:
        super().__init__(name="headrace-http", daemon=True)
        self._server, self._socket = server, listener

    def run(self) -> None:
        """Answer until it is stopped."""
        self._server.run([self._socket])

    def stop(self) -> None:
        """End, and wait for it."""
        self._server.should_exit = True
        self.join()
        self._socket.close()


@contextmanager
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Have the kernel end this process with its parent, where that one is ``processes``."""
    parent = os.environ.pop(PARENT, "")
    if not parent:
        return
    import ctypes  # noqa: PLC0415 - only the processes of a shared port need it

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        raise SystemExit(1)


def processes(count: int, words: Sequence[str], host: str, port: int) -> int:
    """Serve from several processes that share a port; return when they have ended.

    Args:
        count: how many.
        words: of the command of each, without address; HTTP is for the first alone.
        host: address to bind to.
        port: 0: one that is free.

    Raises:
        UnavailableError: one of them ended by itself; the others were stopped.
    """
    # Bound and not listening: it keeps the port, and gets no client.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            kept.bind((host, port))
        except OSError as failed:
            raise InvalidInputError(
                f"{host}, port {port}, cannot be listened on: {failed.strerror}; give another "
                "--port, or 0 for one that is free"
            ) from failed
        number: int = kept.getsockname()[1]
        command = [sys.executable, "-m", "headrace.cli.main", "serve", *words]
        command += ["--host", host, "--port", str(number), "--shared"]
        environment = {**os.environ, PARENT: str(os.getpid())}
        running = [subprocess.Popen(command, env=environment) for _ in range(count)]
        over = threading.Event()
        with _stopped_by_signals(over.set):
            while not over.wait(0.2) and all(one.poll() is None for one in running):
                pass
        failed_codes = [one.returncode for one in running if one.poll() is not None]
        for one in running:
            with suppress(ProcessLookupError):
                one.terminate()
        for one in running:
            one.wait()
        if failed_codes and not over.is_set():
            raise UnavailableError(
                f"a process that serves ended with {failed_codes[0]}; the others were stopped, "
                "start the command again"
            )
        return number
