"""A child process that is one slot: ``python -m headrace.standalone.child``.

When its parent has gone it ends at once, in the middle of an order too: nothing that it made then
is named by a manifest.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import asdict

import msgspec

from headrace.coordinator.running.workers import WorkerSettings
from headrace.standalone.answering import Answering
from headrace.standalone.frames import Alive, Do, Done, Wire

CHILD = "headrace.standalone.child"


def encode_settings(settings: WorkerSettings) -> str:
    """Return settings as a word of a command line."""
    return msgspec.json.encode(asdict(settings)).decode()


def main(descriptor: int, said: str) -> None:
    """Serve orders until the parent closes the socket."""
    # Signals may reach all processes of a group; the parent acts on them, and ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = msgspec.json.decode(said, type=WorkerSettings)
    wire = Wire(socket.socket(fileno=descriptor))
    asked: queue.SimpleQueue[Do] = queue.SimpleQueue()

    def listen() -> None:
        while (message := wire.receive()) is not None:
            if isinstance(message, Do):
                asked.put(message)
            else:  # the parent looks whether this process goes on
                wire.mention(Alive())
        os._exit(0)

    slot = Answering(settings)
    threading.Thread(target=listen, name="headrace-orders", daemon=True).start()
    while True:
        message = asked.get()
        try:
            done = Done(message.call, slot.answer(message.order))
        except Exception as error:  # noqa: BLE001 - the parent is told
            done = Done(message.call, problem=f"{type(error).__name__}: {error}")
        wire.send(done)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
