"""Connections that others open to a process of a job: each is answered in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

FULL_S = 0.2
"""So long after one that could not be taken the next connection is looked for."""


def answer_each(
    listener: socket.socket,
    answer: Callable[[socket.socket], None],
    room: threading.Semaphore,
    over: threading.Event,
    *,
    name: str,
    full: bytes = b"",
) -> None:
    """Answer connections until it is over.

    Args:
        listener: that they come to.
        answer: closes the connection, and releases its place in ``room``.
        room: for so many at a time.
        over: set before the listener is closed.
        name: of the threads.
        full: sent to one for which there is no room, or no thread; it may come again.
    """
    while not over.is_set():
        try:
            line, _ = listener.accept()
        except OSError:  # it is over, or descriptors or memory are short, which passes
            over.wait(FULL_S)
            continue
        if room.acquire(blocking=False):
            try:
                threading.Thread(target=answer, args=(line,), name=name, daemon=True).start()
                continue
            except RuntimeError:  # the system gives no more threads now
                room.release()
        with line, suppress(OSError):
            line.sendall(full)


def stop_listening(listener: socket.socket, over: threading.Event) -> None:
    """Take no more connections."""
    over.set()
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # or who waits for one would wait on
    listener.close()
