"""Messages between processes of a job: frames of JSON on a socket, who may send them, and TLS.

Nothing that comes from a socket is unpickled. Each side shows that it knows the token of the
driver's address file, without sending it. Between processes that are not parent and child all of it
is encrypted, with one certificate for each driver: key and certificate are in the address file,
which only the owner of the job's storage can read, and each side takes no other. So who cannot read
that file can neither join, nor listen, nor stand in between.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
from contextlib import suppress
from ipaddress import ip_address

import msgspec

from headrace.errors import InvalidInputError, UnavailableError
from headrace.runtime.orders import SlotOrder, SlotReport

_NO_CHECK_TIME = 0x200000
"""The certificate is as old as its driver, and clocks of hosts differ."""
_TLS_READ = 1 << 16
_COMMAND = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-nodes", "-days", "36500", "-subj", "/CN=headrace"),
    *("-keyout", "/dev/stdout", "-out", "/dev/stdout"),
)
_MADE_S = 30.0


def make_certificate(host: str) -> str:
    """Return a new key with its certificate, as PEM; empty on loopback where none can be made.

    Args:
        host: the address that is listened on.

    Raises:
        InvalidInputError: others could read the messages at that address.
    """
    try:
        made = subprocess.run(
            _COMMAND, capture_output=True, text=True, check=True, timeout=_MADE_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        if ip_address(host.partition("%")[0]).is_loopback:
            return ""
        why = "is not installed" if isinstance(error, FileNotFoundError) else f"failed: {error}"
        raise InvalidInputError(
            f"standalone.host={host} is an address of a network, where messages are encrypted, and "
            f"openssl, which makes the certificate, {why}; install it, or leave standalone.host "
            "out where all processes are on this host"
        ) from error
    return made


class TlsConnection:
    """One side of an encrypted connection: what goes out as bytes, and what came in.

    Safe for one thread that receives and others that send; it does no reading or writing itself.

    Args:
        identity: key and certificate, of both sides.
        is_driver: the side that listens.
    """

    def __init__(self, identity: str, *, is_driver: bool) -> None:
        side = ssl.PROTOCOL_TLS_SERVER if is_driver else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it is the certificate that is known, not a name
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= _NO_CHECK_TIME
        if is_driver:
            context.num_tickets = 0
        context.load_verify_locations(cadata=identity)
        _load(context, identity)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=is_driver)
        self._lock = threading.Lock()

    def handshake(self, connection: socket.socket, until: float) -> bool:
        """Begin; return whether the other side has the key, too.

        Args:
            connection: to it; reading gives up after a while.
            until: when to give up, of the monotonic clock.

        Raises:
            OSError: it has gone, or does not answer in the time of the socket.
        """
        while time.monotonic() < until:
            is_done = False
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                connection.sendall(self._out.read())  # why it is refused
                return False
            connection.sendall(self._out.read())
            if is_done:
                return True
            data = connection.recv(_TLS_READ)
            if not data:
                return False
            self._in.write(data)
        return False

    def sealed(self, data: bytes) -> bytes:
        """Return what is to be sent for some bytes; it has to be sent whole, and in order."""
        with self._lock:
            self._tls.write(data)
            return self._out.read()

    def opened(self, data: bytes) -> bytes:
        """Return what came with some bytes that were received; empty while a record is not whole.

        Raises:
            OSError: it was changed on its way, or the other side ends the connection.
        """
        with self._lock:
            self._in.write(data)
            parts = []
            try:
                while part := self._tls.read(_TLS_READ):
                    parts.append(part)
            except ssl.SSLWantReadError:
                pass
            return b"".join(parts)


def _load(context: ssl.SSLContext, identity: str) -> None:
    """Give a context key and certificate, which it takes from files only, without leaving one."""
    descriptor = os.memfd_create("headrace")
    try:
        os.write(descriptor, identity.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


MOST_BYTES = 256 << 20
NONCE = 32
HANDSHAKE_S = 5.0
_LENGTH = struct.Struct(">I")
_READ = 1 << 20


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
    """An order for a slot; without one the slot releases its stores and says where it is."""

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


class Connection:
    """A connected socket that carries messages.

    One thread receives; any may send.

    Args:
        connection: connected; closed with this.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._sending = connection, threading.Lock()
        self._tls: TlsConnection | None = None
        self._held = bytearray()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> None:
        """Send a message whole.

        Raises:
            OSError: the other side has gone, or does not take it in time.
        """
        data = msgspec.json.encode(message)
        with self._sending:
            self._send(_LENGTH.pack(len(data)) + data)

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data if self._tls is None else self._tls.sealed(data))

    def mention(self, message: Message) -> None:
        """Send a short message if that can be done at once; else the other side is not there.

        Nobody waits here for a process that is frozen, or whose host is gone, to take what it was
        sent before.
        """
        body = msgspec.json.encode(message)
        data, sent = _LENGTH.pack(len(body)) + body, 0
        if not self._sending.acquire(blocking=False):
            return
        try:
            if not _takes_more(self._socket):
                return
            if self._tls is not None:
                data = self._tls.sealed(data)
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except (OSError, ValueError):  # gone, or closed on this side
            pass
        finally:
            self._sending.release()
        if sent < len(data):  # what came after it would be no message
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
            if self._held:
                part = bytes(self._held[: size - len(data)])
                del self._held[: len(part)]
                data += part
                continue
            part = self._socket.recv(min(size - len(data), _READ) if self._tls is None else _READ)
            if not part:
                return b""
            if self._tls is None:
                data += part
            else:
                self._held += self._tls.opened(part)
        return bytes(data)

    def wait_at_most(self, seconds: float | None) -> None:
        """Let receiving and sending give up after so long."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """End the connection; either side, if it waits, finds it gone."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def prove(self, token: str, *, is_driver: bool, identity: str = "") -> bool:
        """Show the other side that this one knows the token, and see that it does, too.

        Args:
            token: of the driver.
            is_driver: this is its side.
            identity: key and certificate that the messages are encrypted with; empty: they are
                not.
        """
        self._socket.settimeout(HANDSHAKE_S)
        until = time.monotonic() + HANDSHAKE_S
        own = secrets.token_bytes(NONCE)
        try:
            if identity:
                tls = TlsConnection(identity, is_driver=is_driver)
                if not tls.handshake(self._socket, until):
                    return False
                self._tls = tls
                self._held += tls.opened(b"")  # what came along with the end of the handshake
            self._send(own)
            other = self._exactly(NONCE, until)
            self._send(_proof(token, is_driver, other))
            found = self._exactly(NONCE, until)
        except OSError:
            return False
        self._socket.settimeout(None)
        return hmac.compare_digest(found, _proof(token, not is_driver, own))


def _takes_more(connection: socket.socket) -> bool:
    """Say whether a short message can be handed over without waiting."""
    asked = select.poll()
    asked.register(connection, select.POLLOUT)
    return any(found & select.POLLOUT for _, found in asked.poll(0))


def _proof(token: str, is_driver: bool, nonce: bytes) -> bytes:
    side = b"driver" if is_driver else b"member"
    return hmac.digest(token.encode(), side + nonce, "sha256")
