"""Stands between clients and a broker: answers some requests with an error, or all of them late."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.processes import SystemClock

OFFSET_FETCH, INIT_PRODUCER_ID, ADD_OFFSETS_TO_TXN, DESCRIBE_CONFIGS = 9, 22, 25, 32
UNKNOWN_TOPIC, LOADING, NOT_COORDINATOR = 3, 14, 16
_FLEXIBLE = {INIT_PRODUCER_ID: 2, ADD_OFFSETS_TO_TXN: 3}
"""From this version on there is a byte between the head and what is answered."""


class KafkaProxy:
    """Listens when it is made; a broker says ``address`` is its own, and ``leads_to`` its port."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.leads_to = 0
        self._clock, self._late_s = SystemClock(), 0.0
        self._lock = threading.Lock()
        self._errors: dict[int, list[int]] = {}
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, request: int, errors: list[int]) -> None:
        """Put these errors into the next answers to a kind of request, one into each."""
        with self._lock:
            self._errors[request] = list(errors)

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Let each answer be so late, one after the other on a connection."""
        self._late_s = seconds
        try:
            yield
        finally:
            self._late_s = 0.0

    def left(self) -> int:
        """How many errors nobody has got yet."""
        with self._lock:
            return sum(map(len, self._errors.values()))

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self.leads_to))
            except OSError:
                return
            self._sockets += [client, broker]
            asked: dict[bytes, tuple[int, int]] = {}
            for source, target, is_answer in ((client, broker, False), (broker, client, True)):
                given = (source, target, asked, is_answer)
                threading.Thread(target=self._pass_on, args=given, daemon=True).start()

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        asked: dict[bytes, tuple[int, int]],
        is_answer: bool,
    ) -> None:
        with suppress(OSError), source.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = bytearray(stream.read(*struct.unpack(">i", size)))
                if is_answer:
                    self._clock.sleep(self._late_s)
                    self._change(frame, *asked.pop(bytes(frame[:4]), (-1, 0)))
                else:
                    asked[bytes(frame[4:8])] = struct.unpack(">hh", frame[:4])
                target.sendall(size + frame)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _change(self, frame: bytearray, request: int, version: int) -> None:
        with self._lock:
            errors = self._errors.get(request)
            if not errors:
                return
            error = errors.pop(0)
        if request == OFFSET_FETCH:  # the last of a group's, with empty tags behind it
            at = len(frame) - (4 if version >= 8 else 3)
        elif request == DESCRIBE_CONFIGS:  # the first of a list
            at = 12 if version < 4 else 10
        else:  # behind the number of the request, and the time to wait
            at = 8 + (version >= _FLEXIBLE[request])
        frame[at : at + 2] = struct.pack(">h", error)
