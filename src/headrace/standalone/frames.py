"""Messages between processes of a job: frames of JSON on a socket, and who may send them.

Nothing that comes from a socket is unpickled. Each side shows that it knows the token of the
driver's address file, without sending it.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress

import msgspec

from headrace.errors import UnavailableError
from headrace.task.orders import SlotOrder, SlotReport

MOST_BYTES = 256 << 20
NONCE = 32
HANDSHAKE_S = 5.0
_LENGTH = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A process would like to join: the identity of its state directory, and its slots."""

    job: str
    host: str
    machine: str
    process: int
    slots: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The driver has taken a process in."""

    process: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The driver does not take a process in."""

    reason: str


class Do(msgspec.Struct, frozen=True, tag=True):
    """An order for a slot; without one the slot lets go of its stores and says where it is."""

    call: int
    job: str
    slot: int
    order: SlotOrder | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """What came of ``Do``: a report, or why there is none; ``died``: a new slot may be asked."""

    call: int
    report: SlotReport | None = None
    problem: str = ""
    died: bool = False


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The sender lives."""


class Leave(msgspec.Struct, frozen=True, tag=True):
    """A process would like to leave, once its slots are not needed."""


class Over(msgspec.Struct, frozen=True, tag=True):
    """The driver lets a process go: it asked to leave, or the driver stops; or the job ended."""

    ended: bool = False


Message = Hello | Welcome | Refused | Do | Done | Alive | Leave | Over
_DECODER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Wire:
    """A connected socket that carries messages.

    One thread receives; any may send.

    Args:
        connection: connected; closed with this.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message whole.

        Raises:
            OSError: the other side has gone, or does not take it in time.
        """
        data = msgspec.json.encode(message)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def mention(self, message: Message) -> None:
        """Send a short message if that can be done at once; else whoever listens is not there.

        Nobody waits here for a process that is frozen, or whose host is gone, to take what it was
        sent before.
        """
        data = msgspec.json.encode(message)
        if not self._sending.acquire(blocking=False):
            return
        try:
            sent = self._socket.send(_LENGTH.pack(len(data)) + data, socket.MSG_DONTWAIT)
        except OSError:
            return
        finally:
            self._sending.release()
        if sent < _LENGTH.size + len(data):  # what came after it would be no message
            self.close()

    def receive(self) -> Message | None:
        """Return the next message; ``None``: the other side has gone.

        Raises:
            UnavailableError: what came is no message.
        """
        try:
            head = self._exactly(_LENGTH.size)
            if not head:
                return None
            (size,) = _LENGTH.unpack(head)
            if size > MOST_BYTES:
                raise UnavailableError(f"a message of {size} bytes came; {MOST_BYTES} at most")
            body = self._exactly(size)
            return _DECODER.decode(body) if len(body) == size else None
        except OSError:
            return None
        except msgspec.DecodeError as error:
            raise UnavailableError(f"what came is no message: {error}") from error

    def _exactly(self, size: int, until: float | None = None) -> bytes:
        data = bytearray()
        while len(data) < size:
            if until is not None and time.monotonic() >= until:
                return b""
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                return b""
            data += part
        return bytes(data)

    def wait_at_most(self, seconds: float | None) -> None:
        """Let receiving and sending give up after so long."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """End the connection; whoever waits on either side finds it gone."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def prove(self, token: str, *, is_driver: bool) -> bool:
        """Show the other side that this one knows the token, and see that it does, too.

        Args:
            token: of the driver.
            is_driver: this is its side.
        """
        self._socket.settimeout(HANDSHAKE_S)
        until = time.monotonic() + HANDSHAKE_S
        own = secrets.token_bytes(NONCE)
        try:
            self._socket.sendall(own)
            other = self._exactly(NONCE, until)
            self._socket.sendall(_proof(token, is_driver, other))
            found = self._exactly(NONCE, until)
        except OSError:
            return False
        self._socket.settimeout(None)
        return hmac.compare_digest(found, _proof(token, not is_driver, own))


def _proof(token: str, is_driver: bool, nonce: bytes) -> bytes:
    side = b"driver" if is_driver else b"member"
    return hmac.digest(token.encode(), side + nonce, "sha256")
