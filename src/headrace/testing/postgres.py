"""A PostgreSQL server of one's own, for tests: on a socket, in a folder of its own. Linux only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from headrace.clock import Clock, Deadline, SystemClock
from headrace.closing import Closing
from headrace.errors import InvalidInputError, UnavailableError
from headrace.testing.processes import kill

START_S, POLL_S, READY = 60.0, 0.02, 0
_USERS = ("postgres", "nobody")  # it refuses to run as root


class PostgresServer(Closing):
    """Started when it is made; ``close`` ends it and removes its folder.

    It listens on a socket in its folder only, and lets everybody in who reaches that as user
    ``tester``. Where the test runs as root, the server runs as another user that exists.

    Args:
        clock: for waiting.

    Raises:
        InvalidInputError: no server is installed.
        UnavailableError: it does not start; has the end of its log.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._programs = postgres_programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._user = _unprivileged()
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
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

    @property
    def pid(self) -> int:
        """Of its first process."""
        assert self._process is not None
        return self._process.pid

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
        if made.wait(START_S):
            raise self._failure("initdb")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ("-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}")
        # What a killed server has written is in the system's memory, which outlives it.
        self._process = self._begin("postgres", "-D", "data", *options, "-c", "fsync=off")
        deadline = Deadline(self._clock, START_S)
        while self._process.poll() is None and not deadline.expired:
            if self._is_ready():
                return
            self._clock.sleep(POLL_S)
        raise self._failure("postgres")

    def _is_ready(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(command, check=False).returncode == READY

    def _failure(self, program: str) -> UnavailableError:
        said = (self.folder / "log").read_text(errors="replace")[-500:]
        return UnavailableError(f"{program} did not start: {said}")

    def kill(self) -> None:
        """End all of its processes without warning."""
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid)
        process.kill()
        process.wait()
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
