"""SIGINT and SIGTERM as a wish to stop, heard whatever the main thread is doing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from headrace.coordinator.loop import Control

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts(control: Control) -> Iterator[None]:
    """Let the first signal set ``control.stop``; the next one ends the process at once.

    Python runs handlers between two steps of the main thread. That may have entered a call
    into Spark just before, and wait there for minutes; or hold the very lock that a handler
    needs. So the handlers do nothing, and a thread reads which signals came.

    In another thread than the main one signals are left to whoever handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, _heard) for number in NUMBERS}
    listener = threading.Thread(
        target=_listen, args=(reader, control), name="headrace-signals", daemon=True
    )
    listener.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        writer.close()
        listener.join()
        reader.close()


def _heard(number: int, frame: FrameType | None) -> None:
    """Replace the default action; the listener does the rest."""


def _listen(reader: socket.socket, control: Control) -> None:
    while came := reader.recv(64):
        for number in came:
            if number not in NUMBERS:
                continue
            if control.stop.is_set():
                os._exit(128 + number)
            control.stop.set()
