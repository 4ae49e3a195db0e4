"""Processes and servers for tests and measurements: PostgreSQL and Redis, each in its own folder.

PostgreSQL listens on a socket, Redis on a free port. Nothing is left behind. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from headrace.clock import Clock, Deadline, SystemClock
from headrace.closeable import Closeable
from headrace.errors import InvalidInputError, UnavailableError
from headrace.files import is_alive

PROCESS_POLL_S, LONGEST_POLL_S = 0.02, 0.25
PAUSES = 8
"""A pause is so many times what the look before it took, of this process or of who was asked."""
END_S = 10.0


def wait_until(
    condition: Callable[[], object],
    deadline: Deadline,
    what: str,
    clock: Clock | None = None,
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: asked again and again; one that takes long less often.
        deadline: when to give up.
        what: is waited for, for the error.
        clock: for the pauses.

    Raises:
        TimeoutError: it did not hold in time.
    """
    clock = clock or SystemClock()
    began = time.perf_counter()
    while not condition():
        if deadline.expired:
            raise TimeoutError(f"waited in vain for {what}")
        look_s = time.perf_counter() - began
        clock.sleep(min(max(PROCESS_POLL_S, PAUSES * look_s), LONGEST_POLL_S))
        began = time.perf_counter()


def parents(pid: int) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


def command(pid: int) -> str:
    """Return a process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def with_variable(name: str, value: str) -> list[int]:
    """Return the processes that were started with a variable: a family, however scattered."""
    wanted = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted(pid for pid in found if is_alive(pid))


def kill(pid: int) -> None:
    """Kill a process, if it is there, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not is_alive(pid), Deadline(SystemClock(), END_S), f"the end of process {pid}"
    )


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of a process that was started in a session of its own, and bury it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Server(Closeable):
    """A server, whose log is in a folder."""

    _what: ClassVar[str]
    """The server, in words."""
    _folder: Path
    _clock: Clock

    def _await_all(
        self,
        processes: Collection[subprocess.Popen[bytes]],
        answers: Callable[[], bool],
        wait_s: float,
    ) -> None:
        """Wait until it answers, which its processes do not end before.

        Raises:
            UnavailableError: it does not start; has the end of its log.
        """
        deadline = Deadline(self._clock, wait_s)
        while not answers():
            if deadline.expired or any(one.poll() is not None for one in processes):
                raise self._failure("does not start")
            self._clock.sleep(PROCESS_POLL_S)

    def _failure(self, what: str) -> UnavailableError:
        log = (self._folder / "log").read_text(errors="replace")[-2000:]
        return UnavailableError(f"{self._what} in {self._folder} {what}: {log}")


class ServerProcess(Server):
    """A server in one process."""

    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _answers(self) -> bool:
        """Say whether it is ready."""

    def _await(self, wait_s: float) -> None:
        """Wait until it answers; errors as of ``_await_all``."""
        assert self._process is not None
        self._await_all([self._process], self._answers, wait_s)

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """Let it stand still, as one that is too slow to answer."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it without warning."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End it; closing twice is fine."""
        self.kill()


POSTGRES_START_S, READY = 60.0, 0
_USERS = ("postgres", "nobody")  # it refuses to run as root


class PostgresServer(ServerProcess):
    """Started when it is made; ``close`` ends it and removes its folder.

    It listens on a socket in its folder only, and lets everybody in who reaches that as user
    ``tester``. Where the test runs as root, the server runs as another user that exists.

    Args:
        clock: for waiting.

    Raises:
        InvalidInputError: no server is installed.
        UnavailableError: it does not start; has the end of its log.
    """

    _what = "PostgreSQL"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._programs = postgres_programs()
        self._user = _unprivileged()
        self.folder = self._folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
        self.folder.chmod(0o755)
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where to reach it."""
        return f"postgresql://tester@/postgres?host={self.folder}"

    def _begin(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        user = self._user
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._programs / program), *arguments],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )

    def _initialise(self) -> None:
        arguments = ("--username=tester", "--auth=trust", "--encoding=UTF8", "--no-sync")
        made = self._begin("initdb", "--pgdata=data", *arguments)
        if made.wait(POSTGRES_START_S):
            raise self._failure("is not made")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}")
        # What a killed server has written is in the system's memory, which outlives it.
        self._process = self._begin("postgres", "-D", "data", *options, "-c", "fsync=off")
        self._await(POSTGRES_START_S)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(command, check=False).returncode == READY

    def kill(self) -> None:
        """End all of its processes without warning."""
        children = [] if self._process is None else _children(self.pid)
        super().kill()
        for child in children:
            kill(child)

    def close(self) -> None:
        """End it, and remove its folder; closing twice is fine."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def _unprivileged() -> pwd.struct_passwd | None:
    """Return the user that the server runs as; ``None``: the one that asks."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise InvalidInputError(f"PostgreSQL does not run as root; expected a user of {_USERS}")


def postgres_programs() -> Path:
    """Return the folder of the server's programs.

    Raises:
        InvalidInputError: none is installed; says how to.
    """
    found = shutil.which("initdb")
    # Debian keeps programs of each version apart, and off the path.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    if found is not None:
        folders.append(Path(found).resolve().parent)
    for folder in reversed(folders):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise InvalidInputError(
        "no PostgreSQL server is installed; on Debian and Ubuntu: sudo apt-get install postgresql"
        ", on Fedora: sudo dnf install postgresql-server, on macOS: brew install postgresql"
    )


REDIS_START_S, TRIES = 20.0, 5


class RedisServer(ServerProcess):
    """Started when it is made; ``close`` ends it. Nothing of it is left outside ``folder``.

    Args:
        folder: for its log and, if durable, its data; made when missing.
        is_durable: every write is on disk before it is answered, and back after ``restart``.
        clock: for waiting.

    Raises:
        InvalidInputError: no ``redis-server`` is installed.
        UnavailableError: it does not start; names its log.
    """

    _what = "redis-server"

    def __init__(
        self, folder: Path, *, is_durable: bool = False, clock: Clock | None = None
    ) -> None:
        self._folder, self._durable, self._clock = folder, is_durable, clock or SystemClock()
        self.port = 0
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES):  # another process may take the port before the server does
            self.port = free_port()
            if self.start():
                return
        raise UnavailableError(f"redis-server did not start; see {folder / 'log'}")

    @property
    def url(self) -> str:
        """Where to reach it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> bool:
        """Start it on its port, and wait until it answers; says whether it does."""
        command = [redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self._folder), "--save", "", "--daemonize", "no"]
        command += ["--appendonly", "yes" if self._durable else "no", "--appendfsync", "always"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        with suppress(UnavailableError):
            self._await(REDIS_START_S)
            return True
        self.kill()
        return False

    def _answers(self) -> bool:
        address = ("127.0.0.1", self.port)
        with suppress(OSError), socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


def redis_binary() -> str:
    """Return the path of ``redis-server``.

    Raises:
        InvalidInputError: none is installed; says how to.
    """
    found = shutil.which("redis-server")
    if found is None:
        raise InvalidInputError(
            "no redis-server is installed; on Debian and Ubuntu: sudo apt-get install redis-server"
            ", on Fedora: sudo dnf install redis, on macOS: brew install redis"
        )
    return found


_LEAST_PORT, _EPHEMERAL = 10_000, 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on.

    It is not one that the system gives to connections, which could take it before a server does.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _EPHEMERAL
    while True:
        port = _LEAST_PORT + secrets.randbelow(max(first, _EPHEMERAL // 2) - _LEAST_PORT)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
