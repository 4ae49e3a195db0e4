"""The slots of this process: threads in it, or child processes of their own.

A slot is known by part and number. It keeps its stores from order to order, in one thread, as a
Python worker of Spark does. A ``Watchdog`` notices a child that is frozen: it says nothing, and no
part of it runs.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from headrace.config import Settings
from headrace.coordinator.job_storage import job_storages
from headrace.coordinator.worker_host import WorkerSettings, worker_settings
from headrace.errors import UnavailableError
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.standalone.child import CHILD, SlotExecutor, encode_settings
from headrace.standalone.wire import Alive, Connection, Do, Done

WATCHDOG_BEAT_S = 0.5


class ProcessActivity(NamedTuple):
    """What the kernel says of a process: a letter for its state, and ticks that it has run."""

    state: str
    ticks: int


def process_activity(process: int) -> ProcessActivity | None:
    """Return what a process is doing; ``None``: the system does not say, or it has ended."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return ProcessActivity(words[0], int(words[11]) + int(words[12]))
    except (OSError, ValueError, IndexError):
        return None


class Watchdog:
    """What is known of whether a process continues.

    One that does not answer may be busy in native code that lets no other thread run. So it
    counts as frozen only where it has not run either, waits for no processor, and nobody has
    stopped it to look at it with a debugger. Time is counted in beats: while the process that
    counts is itself frozen, none goes by.

    Args:
        process: its number.
        silence_s: after so long it is frozen.
    """

    def __init__(self, process: int, silence_s: float) -> None:
        self._process, self._silence_s = process, silence_s
        self._heard = True
        self._silent_s, self._ticks = 0.0, -1

    def heard(self) -> None:
        """Note a heartbeat; from any thread."""
        self._heard = True

    def beat(self, after_s: float = WATCHDOG_BEAT_S) -> bool:
        """Look once more, so long after the last time; return whether it is frozen."""
        if self._heard:
            self._heard, self._silent_s = False, 0.0
            return False
        seen = process_activity(self._process)
        if seen is None or seen.state in "RtZ" or seen.ticks != self._ticks:
            self._ticks = -1 if seen is None else seen.ticks
            self._silent_s = 0.0
            return False
        self._silent_s += after_s
        return self._silent_s >= self._silence_s


Kind = Literal["threads", "processes"]
END_S = 5.0


class SlotDiedError(Exception):
    """The process of a slot ended in the middle of an order. Give the order again."""


class _Slot(Protocol):
    def ask(self, order: SlotOrder | None) -> Future[SlotReport]: ...

    def close(self) -> None: ...


class LocalSlots:
    """Opens slots when they are first asked, and closes them all at the end.

    Args:
        settings: of this process; its state directory is that of all its slots.
        kind: ``threads`` in this process, or child ``processes``.
    """

    def __init__(self, settings: Settings, kind: Kind) -> None:
        self._settings, self._kind = settings, kind
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._lock = threading.Lock()

    def ask(self, job: str, slot: int, order: SlotOrder | None) -> Future[SlotReport]:
        """Give a slot of a part an order; without one it releases its stores.

        The future holds the report, or ``SlotDiedError`` where the slot's process has ended; the
        next order finds a new one.
        """
        with self._lock:
            key = (job, slot)
            if key not in self._slots:
                made = worker_settings(
                    job, job_storages(self._settings, job).storage, self._settings
                )
                wanted = replace(made, slot=slot)
                self._slots[key] = (
                    _ThreadSlot(wanted)
                    if self._kind == "threads"
                    else _ProcessSlot(wanted, self._settings.standalone.lease_s)
                )
            return self._slots[key].ask(order)

    def close(self) -> None:
        """Release all stores and end the slots; those at work are not waited for longer."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), {}
        closers = [threading.Thread(target=slot.close, daemon=True) for slot in slots]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


class _ThreadSlot:
    """A slot in a thread of this process. Its user code cannot be ended from outside."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._asked: queue.SimpleQueue[tuple[SlotOrder | None, Future[SlotReport]] | None] = (
            queue.SimpleQueue()
        )
        name = f"headrace-slot-{settings.slot}"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def ask(self, order: SlotOrder | None) -> Future[SlotReport]:
        future: Future[SlotReport] = Future()
        self._asked.put((order, future))
        return future

    def _serve(self) -> None:
        slot = SlotExecutor(self._settings)
        while (asked := self._asked.get()) is not None:
            order, future = asked
            try:
                future.set_result(slot.answer(order))
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
        slot.close()

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join(END_S)


class _ProcessSlot:
    """A slot in a child process, which ends with this one, however that ends.

    Args:
        settings: of the slot.
        silence_s: a child that is frozen for so long is killed, and its order given to a new one.
    """

    def __init__(self, settings: WorkerSettings, silence_s: float) -> None:
        self._settings, self._silence_s = settings, silence_s
        self._lock = threading.Lock()
        self._calls: dict[int, Future[SlotReport]] = {}
        self._number = 0
        self._wire: Connection | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, order: SlotOrder | None) -> Future[SlotReport]:
        future: Future[SlotReport] = Future()
        with self._lock:
            if self._wire is None:
                self._start()
            self._number += 1
            call, wire = self._number, self._wire
            self._calls[call] = future
        assert wire is not None
        with suppress(OSError):  # the reader finds its end
            wire.send(Do(call, self._settings.job, self._settings.slot, order))
        return future

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-m", CHILD, str(theirs.fileno()), encode_settings(self._settings)]
        paths = os.pathsep.join(self._settings.paths)
        self._child = subprocess.Popen(
            words,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # no Ctrl-C of the terminal reaches it before it ignores them
        )
        theirs.close()
        self._wire = Connection(ours)
        watchdog, over = Watchdog(self._child.pid, self._silence_s), threading.Event()
        name = f"headrace-slot-{self._settings.slot}"
        known = self._wire, self._child, watchdog, over
        for target in (self._read, self._watch):
            threading.Thread(target=target, args=known, name=name, daemon=True).start()

    def _watch(
        self,
        wire: Connection,
        child: subprocess.Popen[bytes],
        watchdog: Watchdog,
        over: threading.Event,
    ) -> None:
        """Kill a child that is frozen; the reader finds its end."""
        while not over.wait(WATCHDOG_BEAT_S):
            wire.mention(Alive())
            if watchdog.beat():
                child.kill()
                return

    def _read(
        self,
        wire: Connection,
        child: subprocess.Popen[bytes],
        watchdog: Watchdog,
        over: threading.Event,
    ) -> None:
        while (done := wire.receive()) is not None:
            watchdog.heard()
            if isinstance(done, Done):
                with self._lock:
                    future = self._calls.pop(done.call)
                settle(future, done, self._settings.slot)
        over.set()
        wire.close()
        code = _ended(child)
        with self._lock:
            if self._wire is wire:
                self._wire = None
            calls, self._calls = list(self._calls.values()), {}
        for future in calls:
            slot = self._settings.slot
            future.set_exception(
                SlotDiedError(f"process {child.pid} of slot {slot} ended with code {code}")
            )

    def close(self) -> None:
        with self._lock:
            wire, child = self._wire, self._child
        if wire is None or child is None:
            return
        if not self._calls:
            with suppress(Exception):  # what it does not release in time goes with it
                self.ask(None).result(END_S)
        wire.close()
        _ended(child)


def settle(future: Future[SlotReport], done: Done, slot: int) -> None:
    """Give a future what came of an order."""
    if done.report is not None:
        future.set_result(done.report)
    elif done.died:
        future.set_exception(SlotDiedError(done.problem))
    else:
        future.set_exception(UnavailableError(f"slot {slot}: {done.problem}", slot=slot))


def _ended(child: subprocess.Popen[bytes]) -> int:
    """Wait until a child that was released has ended; one that does not is killed."""
    try:
        return child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
