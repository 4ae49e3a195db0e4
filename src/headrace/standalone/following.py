"""A process that runs slots for another one, which drives the job."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from enum import StrEnum
from functools import partial

from headrace.errors import InvalidInputError, UnavailableError
from headrace.standalone.frames import (
    Alive,
    Do,
    Done,
    Hello,
    Leave,
    Message,
    Over,
    Refused,
    Welcome,
    Wire,
)
from headrace.standalone.group import BEAT_S
from headrace.standalone.places import Address
from headrace.standalone.slots import LocalSlots, SlotDiedError
from headrace.task.orders import SlotReport

LEAVE_S = 8.0


class Parted(StrEnum):
    """How a process and its driver have parted."""

    LOST = "lost"
    """The driver says nothing any more, or could not be reached."""
    LET_GO = "let go"
    """This process had asked to leave, or the driver stops."""
    ENDED = "ended"
    """The job has ended."""


class Following:
    """Joins a driver and does what it orders, until they part.

    Args:
        hello: who this is.
        local: the slots of this process.
        silence_s: after so long without a sign of life the driver is lost.
        stop: set when this process is to leave.
    """

    def __init__(
        self, hello: Hello, local: LocalSlots, silence_s: float, stop: threading.Event
    ) -> None:
        self._hello, self._local = hello, local
        self._silence_s, self._stop = silence_s, stop

    def follow(self, address: Address, on_joined: Callable[[Welcome], None]) -> Parted:
        """Join and serve; in the caller's thread.

        Raises:
            InvalidInputError: the driver has a reason not to take this process in.
        """
        wire = self._joined(address)
        if wire is None:
            return Parted.LOST
        over = threading.Event()
        with closing(wire):
            threading.Thread(
                target=self._beat, args=(wire, over), name="headrace-alive", daemon=True
            ).start()
            try:
                return self._serve(wire, on_joined)
            finally:
                over.set()

    def _joined(self, address: Address) -> Wire | None:
        try:
            connection = socket.create_connection((address.host, address.port), self._silence_s)
        except OSError:
            return None
        wire = Wire(connection)
        if not wire.prove(address.token, is_driver=False):
            wire.close()
            return None
        wire.wait_at_most(self._silence_s)
        with suppress(OSError):
            wire.send(self._hello)
        return wire

    def _serve(self, wire: Wire, on_joined: Callable[[Welcome], None]) -> Parted:
        while (message := _next(wire)) is not None:
            if isinstance(message, Welcome):
                on_joined(message)
            elif isinstance(message, Refused):
                raise InvalidInputError(message.reason)
            elif isinstance(message, Do):
                future = self._local.ask(message.job, message.slot, message.order)
                future.add_done_callback(partial(_tell, wire, message.call))
            elif isinstance(message, Over):
                return Parted.ENDED if message.ended else Parted.LET_GO
        return Parted.LET_GO if self._stop.is_set() else Parted.LOST

    def _beat(self, wire: Wire, over: threading.Event) -> None:
        """Give signs of life, and ask to leave once this process is to stop."""
        waited = 0.0
        while not over.wait(BEAT_S if waited or not self._stop.is_set() else 0):
            with suppress(OSError):
                if not self._stop.is_set():
                    wire.send(Alive())
                    continue
                if not waited:
                    wire.send(Leave())
            waited += BEAT_S
            if waited > LEAVE_S:
                wire.close()
                return


def _next(wire: Wire) -> Message | None:
    with suppress(UnavailableError):  # who says what is no message is as good as gone
        return wire.receive()
    return None


def _tell(wire: Wire, call: int, future: Future[SlotReport]) -> None:
    error = future.exception()
    if error is None:
        done = Done(call, future.result())
    elif isinstance(error, SlotDiedError):
        done = Done(call, problem=str(error), died=True)
    else:
        done = Done(call, problem=f"{type(error).__name__}: {error}")
    with suppress(OSError):  # the driver finds that this process has gone
        wire.send(done)


def hello_of(job: str, host: str, slots: int) -> Hello:
    """Return what this process says of itself."""
    return Hello(job, host, os.uname().nodename, os.getpid(), slots)
