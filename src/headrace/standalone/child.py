"""A child process that is one slot: ``python -m headrace.standalone.child``.

When its parent has gone it ends at once, in the middle of an order too: nothing that it made then
is named by a manifest. ``SlotExecutor`` is a slot in whichever thread or process it runs.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import msgspec

from headrace.coordinator.worker_host import (
    WorkerSettings,
    collect_garbage_in_background,
    open_worker,
)
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.runtime.slot import run_slot
from headrace.runtime.slot_host import SlotHost, release_all
from headrace.standalone.wire import Alive, Connection, Do, Done


class SlotExecutor:
    """A slot, which gets ready when it is first asked; for one thread.

    Args:
        settings: of the slot.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._host: SlotHost | None = None

    def answer(self, order: SlotOrder | None) -> SlotReport:
        """Run an order; without one release everything, and say where the slot is."""
        if self._host is None:
            self._host = open_worker(self._settings, Path(self._settings.state_dir))
        host = self._host
        if order is None:
            release_all(host)
            collect_garbage_in_background(
                host.state_dir, host.files, host.clock, self._settings.keep_unused_s
            )
            return SlotReport(self._settings.slot, "", host.host, os.getpid())
        report = run_slot(order, host)
        if order.renew:
            self.close()
        return report

    def close(self) -> None:
        """Release everything; the next order finds a slot that is new."""
        host, self._host = self._host, None
        if host is not None:
            release_all(host)


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
    wire = Connection(socket.socket(fileno=descriptor))
    asked: queue.SimpleQueue[Do] = queue.SimpleQueue()

    def listen() -> None:
        while (message := wire.receive()) is not None:
            if isinstance(message, Do):
                asked.put(message)
            else:  # the parent looks whether this process continues
                wire.mention(Alive())
        os._exit(0)

    slot = SlotExecutor(settings)
    threading.Thread(target=listen, name="headrace-orders", daemon=True).start()
    while True:
        message = asked.get()
        try:
            done = Done(message.call, slot.answer(message.order))
        except Exception as error:  # noqa: BLE001 - the parent gets it
            done = Done(message.call, problem=f"{type(error).__name__}: {error}")
        wire.send(done)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
