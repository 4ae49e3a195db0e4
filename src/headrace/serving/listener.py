"""Answers clients of Redis's protocol: sockets, and nothing of what is asked.

One thread and one ``epoll``, without an event loop between: what a client sent is read, answered
and sent in three calls. A client that does not take its replies is not read any further, and is cut
off when that takes too long.
"""

from __future__ import annotations

import resource
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from headrace.clock import Clock
from headrace.errors import InvalidInputError
from headrace.serving.redis_session import RedisSession, ServerFacts
from headrace.serving.resp import error

BACKLOG = 512
READ_BYTES = 65_536
TICK_S = 0.25
OTHER_FILES = 256
"""That a process opens besides those of clients: of a bus, a database, modules."""
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


@dataclass(frozen=True)
class ClientLimits:
    """What clients may take.

    Args:
        clients: at the same time.
        slow_s: a client that takes no reply for so long is cut off, and one that does not give the
            password.
        waiting_bytes: of replies that a client has not taken, from which on it is cut off.
    """

    clients: int = 1000
    slow_s: float = 10.0
    waiting_bytes: int = 64 << 20


class _Client:
    __slots__ = ("begun_s", "recv", "rest", "send", "session", "socket", "taken_s")

    def __init__(self, opened: socket.socket, session: RedisSession, now_s: float) -> None:
        self.socket, self.session = opened, session
        self.recv, self.send = opened.recv, opened.send
        self.rest = b""
        self.begun_s = self.taken_s = now_s


class RedisListener:
    """Serves clients until it is stopped.

    Args:
        listener: a socket that listens.
        facts: of the server.
        limits: of clients.
        clock: for those that are slow.
    """

    def __init__(
        self, listener: socket.socket, facts: ServerFacts, limits: ClientLimits, clock: Clock
    ) -> None:
        self._listener, self._facts, self._limits, self._clock = listener, facts, limits, clock
        self._clients: dict[int, _Client] = {}
        self._epoll = select.epoll()
        self._waker, self._woken = socket.socketpair()
        self._now_s = clock.monotonic()
        self._number = 0

    def run(self, each_tick: Callable[[], None] = lambda: None) -> None:
        """Answer until ``stop``.

        Args:
            each_tick: called some times a second.
        """
        self._listener.setblocking(False)
        self._epoll.register(self._listener.fileno(), _IN)
        self._epoll.register(self._woken.fileno(), _IN)
        accepts, wakes = self._listener.fileno(), self._woken.fileno()
        clients, poll = self._clients, self._epoll.poll
        looked_s = self._now_s = self._clock.monotonic()
        is_over = False
        try:
            while not is_over:
                events = poll(TICK_S)
                self._now_s = self._clock.monotonic()
                for number, event in events:
                    client = clients.get(number)
                    if client is not None:
                        if event & _IN:
                            self._read(number, client)
                        else:
                            self._write(number, client)
                    elif number == accepts:
                        self._accept()
                    elif number == wakes:
                        is_over = True
                if self._now_s - looked_s >= TICK_S:
                    looked_s = self._now_s
                    self._cut_slow()
                    each_tick()
        finally:
            self.close()

    def stop(self) -> None:
        """End; from any thread, or a handler of signals."""
        with suppress(OSError):
            self._waker.send(b"\0")

    def _read(self, number: int, client: _Client) -> None:
        try:
            data = client.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(number, client)
            return
        replies = client.session.feed(data)
        try:
            sent = client.send(replies) if replies else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(number, client)
            return
        if sent < len(replies):
            client.rest, client.taken_s = replies[sent:], self._now_s
            if len(client.rest) > self._limits.waiting_bytes:
                self._facts.cut += 1
                self._drop(number, client)
            else:  # no further request is read until these replies are taken
                self._epoll.modify(number, _OUT)
        elif client.session.is_over:
            self._drop(number, client)

    def _write(self, number: int, client: _Client) -> None:
        try:
            sent = client.send(client.rest)
        except BlockingIOError:
            return
        except OSError:
            self._drop(number, client)
            return
        client.rest, client.taken_s = client.rest[sent:], self._now_s
        if client.rest:
            return
        if client.session.is_over:
            self._drop(number, client)
        else:
            self._epoll.modify(number, _IN)

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:  # none is left, or it went before it was accepted
                return
            opened.setblocking(False)
            with suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._clients) >= self._limits.clients:
                self._facts.cut += 1
                with suppress(OSError):
                    opened.send(error("ERR max number of clients reached"))
                opened.close()
                continue
            self._number += 1
            self._facts.connections += 1
            session = RedisSession(self._facts, self._number)
            self._clients[opened.fileno()] = _Client(opened, session, self._now_s)
            self._facts.clients = len(self._clients)
            self._epoll.register(opened.fileno(), _IN)

    def _cut_slow(self) -> None:
        for number, client in list(self._clients.items()):
            since_s = client.taken_s if client.rest else client.begun_s
            is_due = bool(client.rest) or not client.session.is_known
            if is_due and self._now_s - since_s > self._limits.slow_s:
                self._facts.cut += 1
                self._drop(number, client)

    def _drop(self, number: int, client: _Client) -> None:
        del self._clients[number]
        self._facts.clients = len(self._clients)
        with suppress(OSError):
            self._epoll.unregister(number)
        client.socket.close()

    def close(self) -> None:
        """Close the sockets, of clients too."""
        for number, client in list(self._clients.items()):
            self._drop(number, client)
        self._epoll.close()
        self._listener.close()
        self._waker.close()
        self._woken.close()


def room_for(clients: int) -> int:
    """Let this process open files for clients; return for how many of them there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, endless = clients + OTHER_FILES, resource.RLIM_INFINITY
    if soft != endless and soft < wanted:
        soft = wanted if hard == endless else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return clients if soft == endless else max(1, min(clients, soft - OTHER_FILES))


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: address to bind to.
        port: 0: one that is free.
        shared: other processes of this user may listen on the same port; the kernel divides
            clients among them.

    Raises:
        InvalidInputError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as failed:
        listener.close()
        raise InvalidInputError(
            f"{host}, port {port}, cannot be listened on: {failed.strerror}; give another --port, "
            "or 0 for one that is free"
        ) from failed
    return listener
