"""A Redis server of one's own: for measurements and for tests, on a free port, in one folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from headrace.clock import Clock, Deadline, SystemClock
from headrace.closing import Closing
from headrace.errors import InvalidInputError, UnavailableError

START_S, POLL_S, TRIES = 20.0, 0.01, 5


class RedisServer(Closing):
    """Started when it is made; ``close`` ends it. Nothing of it is left outside ``folder``.

    Args:
        folder: for its log and, if durable, its data; made when missing.
        is_durable: every write is on disk before it is answered, and back after ``restart``.
        clock: for waiting.

    Raises:
        InvalidInputError: no ``redis-server`` is installed.
        UnavailableError: it does not start; names its log.
    """

    def __init__(
        self, folder: Path, *, is_durable: bool = False, clock: Clock | None = None
    ) -> None:
        self._folder, self._durable, self._clock = folder, is_durable, clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(TRIES):  # another process may take the port before the server does
            self.port = free_port()
            if self.start():
                return
        raise UnavailableError(f"redis-server did not start; see {folder / 'redis.log'}")

    @property
    def url(self) -> str:
        """Where to reach it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> bool:
        """Start it on its port, and wait until it answers; says whether it does."""
        command = [redis_binary(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self._folder), "--save", "", "--daemonize", "no"]
        command += ["--appendonly", "yes" if self._durable else "no", "--appendfsync", "always"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = Deadline(self._clock, START_S)
        while self._process.poll() is None and not deadline.expired:
            if self._answers():
                return True
            self._clock.sleep(POLL_S)
        self.kill()
        return False

    def _answers(self) -> bool:
        address = ("127.0.0.1", self.port)
        with suppress(OSError), socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        """End it without warning."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End it; closing twice is fine."""
        self.kill()


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


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
