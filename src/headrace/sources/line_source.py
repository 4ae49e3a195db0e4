"""The lines of a file, a pipe or stdin, in chunks, each as it comes."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from typing import IO

LINGER_S = 0.2
_READ_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 20


class LineSource:
    """Reads lines, and can be looked into before.

    Args:
        stream: of bytes; a pipe is read as things come, so that what a program writes line by
            line can be appended before it ends.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._rest = b""
        self._is_over = False
        self._descriptor: int | None = None
        try:
            descriptor = stream.fileno()
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._descriptor = descriptor
        except (OSError, ValueError):
            pass

    def sample(self) -> bytes:
        """Return whole lines from the beginning, about a MiB at most; they are read again."""
        while not self._is_over and len(self._rest) < _SAMPLE_BYTES:
            if b"\n" in self._rest and not self._has_more():
                break
            self._read()
        if self._is_over:
            return self._rest
        return self._rest[: self._rest.rfind(b"\n") + 1]

    def chunks(self, most: int) -> Iterator[list[bytes]]:
        """Yield lists of lines without their ends, of ``most`` lines unless the input pauses."""
        lines: list[bytes] = []
        while True:
            *whole, self._rest = self._rest.split(b"\n")
            lines += whole
            while len(lines) >= most:
                yield lines[:most]
                lines = lines[most:]
            if self._is_over:
                break
            if lines and not self._has_more():
                yield lines
                lines = []
            self._read()
        if self._rest:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            yield lines

    def _has_more(self) -> bool:
        """Say whether more is there, or comes in a moment."""
        if self._descriptor is None:
            return True
        return bool(select.select([self._descriptor], [], [], LINGER_S)[0])

    def _read(self) -> None:
        if self._descriptor is None:
            data = self._stream.read(_READ_BYTES)
        else:
            data = os.read(self._descriptor, _READ_BYTES)
        self._rest += data
        self._is_over = not data
