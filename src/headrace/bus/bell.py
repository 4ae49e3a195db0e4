"""Waiting for appends: a bell for each stream, rung by appends of any process.

Within a process the one who appends rings. For other processes the kernel tells (inotify)
that an index file has grown: 0.04 ms after the write, where ``watchfiles`` takes 1.8 ms.
Where the kernel cannot tell, waiters look again from time to time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
from pathlib import Path

_MODIFY, _CREATE, _MOVED_TO, _OVERFLOW = 0x2, 0x100, 0x80, 0x4000
_EVENT = struct.Struct("iIII")


class Bell:
    """Counts rings; whoever has seen an older count need not wait."""

    def __init__(self) -> None:
        self._rung = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Rings until now."""
        return self._count

    def ring(self) -> None:
        """Wake all who wait."""
        with self._rung:
            self._count += 1
            self._rung.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Return when there was a ring after the count ``seen``, or after the seconds."""
        with self._rung:
            self._rung.wait_for(lambda: self._count != seen, seconds)


class FolderWatch:
    """Rings bells when index files in their folders grow; one thread for a bus."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = -1
        with contextlib.suppress(AttributeError):
            self._events = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._bells: dict[int, Bell] = {}
        self._stop = os.eventfd(0) if self._events >= 0 else -1
        self._thread = threading.Thread(target=self._run, name="headrace-bus-watch", daemon=True)
        if self._events >= 0:
            self._thread.start()

    def add(self, folder: Path, bell: Bell) -> bool:
        """Ring ``bell`` from now on when an index file of the folder grows or begins.

        Returns:
            False when the kernel cannot do so.
        """
        if self._events < 0:
            return False
        mask = _MODIFY | _CREATE | _MOVED_TO
        with self._lock:
            number = self._libc.inotify_add_watch(self._events, os.fsencode(folder), mask)
            if number >= 0:
                self._bells[number] = bell
        return bool(number >= 0)

    def close(self) -> None:
        """End the thread and wake all who wait."""
        if self._events >= 0:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            os.close(self._events)
            os.close(self._stop)
            self._events = -1
        for bell in set(self._bells.values()):
            bell.ring()

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._events, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        while all(descriptor != self._stop for descriptor, _ in ready.poll()):
            for bell in self._due(os.read(self._events, 1 << 16)):
                bell.ring()

    def _due(self, data: bytes) -> set[Bell]:
        due: set[Bell] = set()
        at = 0
        while at < len(data):
            number, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size + size
            with self._lock:
                if mask & _OVERFLOW:
                    return set(self._bells.values())
                if data.startswith(b"index-", at - size) and number in self._bells:
                    due.add(self._bells[number])
        return due
