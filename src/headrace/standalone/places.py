"""Files by which the processes of a job find each other, and a state directory for each."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config import Settings
from headrace.errors import UnavailableError

ADDRESS = "standalone.json"
_LOCK = "process.lock"
_MOST = 1000


class Address(msgspec.Struct, frozen=True):
    """Where the driver of a job can be joined, and what proves that one may."""

    host: str
    port: int
    token: str
    process: int


def read_address(storage: Path) -> Address | None:
    """Return where a job can be joined; ``None``: nowhere."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((storage / ADDRESS).read_bytes(), type=Address)
    return None


def write_private(path: Path, data: bytes, clock: Clock) -> None:
    """Put a file in place that only its owner can read."""
    temporary = path.with_name(f".{path.name}-{clock.new_id()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


class OwnStateDir:
    """A state directory that no other process of the job uses as long as this one lives.

    The first process of a home has the directory of the settings, the others one each below it,
    ``_process/2`` and so on. A process that is started again takes the first that is free, and so
    finds the stores of one that has gone.

    Args:
        settings: of the job.
        job: its name.
    """

    def __init__(self, settings: Settings, job: str) -> None:
        base = settings.state_dir
        for number in range(1, _MOST):
            path = base if number == 1 else base / "_process" / str(number)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path / f"{job}.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            state = settings.state.model_copy(update={"dir": path})
            self.settings = settings.model_copy(update={"state": state})
            return
        raise UnavailableError(f"{_MOST} processes of job {job!r} use {base}; expected fewer")

    def release(self) -> None:
        """Let another process have it; doing so twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
