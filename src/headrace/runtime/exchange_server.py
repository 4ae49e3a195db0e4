"""A process of a host that serves its exchange files to slots of other hosts, by TCP.

Apart from the slots, whose functions may keep an interpreter to themselves for long, and whose
processes Spark ends when they rest for a minute. It ends with the executor that it is of.

A request names files of one epoch, and key groups. It has the token of the epoch, which the driver
gives to those that run it: files are in a folder whose name is made of that, so another token finds
nothing. Rows go out as frames with checksums of their own, a few MiB each, as fast as the other
side takes them, and from the file to the network by the kernel alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import sys
import threading
from contextlib import suppress
from io import FileIO
from pathlib import Path

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.clock import Deadline, SystemClock
from headrace.errors import HeadraceError
from headrace.files import Files, is_alive, write_private
from headrace.runtime.connections import answer_each, stop_listening
from headrace.runtime.exchange_file import (
    FAILED,
    OVER,
    PIECE,
    PIECE_BYTES,
    RECORD,
    SUM,
    WANTED,
    WIRE,
    Admission,
    ExchangeReader,
    ServerRecord,
    Span,
    Wanted,
    epoch_folder,
)

ALIVE_LOOK_S = 1.0
REQUEST_S = 10.0
"""So long a request may take to come."""
MOST_REQUESTS, MOST_ADMISSION_BYTES, MOST_REQUEST_BYTES = 4096, 4 << 10, 64 << 20
LOCK = ".server.lock"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


class _RefusedError(Exception):
    """Sent to the other side instead of rows."""


class _Open:
    """A file of an epoch, closed when the last request that reads it is over."""

    def __init__(self, reader: ExchangeReader, path: Path) -> None:
        self.reader, self.file = reader, FileIO(path)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


class ExchangeServer:
    """Serves the files below a folder, each request in a thread of its own.

    Args:
        folder: with a folder for each epoch.
        host: the address that it listens at, at a free port.
    """

    def __init__(self, folder: Path, host: str) -> None:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.record = msgspec.json.encode(ServerRecord(os.getpid(), self.port))
        self._folder, self._files = folder, Files(sync=False)
        self._lock, self._room = threading.Lock(), threading.Semaphore(MOST_REQUESTS)
        self._over = threading.Event()
        self._epoch = ""
        self._open: dict[str, _Open] = {}

    def run(self) -> None:
        """Answer requests until it is closed, or as long as the process lives."""
        full = _failed(f"it has no room for another request: {MOST_REQUESTS} at most")
        answer_each(
            self._listener, self._answer, self._room, self._over, name="headrace-rows", full=full
        )

    def close(self) -> None:
        """Take no more requests."""
        stop_listening(self._listener, self._over)
        with self._lock:
            self._open.clear()

    def _answer(self, line: socket.socket) -> None:
        try:
            with line, suppress(OSError):
                try:
                    folder, wanted = self._request(line)
                    self._send(line, folder, wanted)
                    said = _head(OVER, b"", 0)
                except (HeadraceError, _RefusedError, FileNotFoundError) as error:
                    said = _failed(str(error))
                line.sendall(said)
                line.shutdown(socket.SHUT_WR)
        finally:
            self._room.release()

    def _request(self, line: socket.socket) -> tuple[Path, Wanted]:
        """Read a request; what follows its admission is only read where that is good."""
        deadline = Deadline(SystemClock(), REQUEST_S)
        wire, first, second = WANTED.unpack(_received(line, WANTED.size, deadline))
        if wire != WIRE or first > MOST_ADMISSION_BYTES or second > MOST_REQUEST_BYTES:
            raise _RefusedError("this is no request for exchange files, or too large a one")
        try:
            asked = msgspec.msgpack.decode(_received(line, first, deadline), type=Admission)
            folder = self._folder / epoch_folder(asked.epoch, asked.token)
            if not _NAME.fullmatch(asked.epoch) or not folder.is_dir():
                raise _RefusedError("no files of an epoch with this token")
            wanted = msgspec.msgpack.decode(_received(line, second, deadline), type=Wanted)
        except msgspec.DecodeError as error:
            raise _RefusedError(f"this is no request for exchange files: {error}") from error
        if not all(_NAME.fullmatch(name) for name, _ in wanted.files):
            raise _RefusedError("no such files")
        return folder, wanted

    def _send(self, line: socket.socket, folder: Path, wanted: Wanted) -> None:
        """Send the rows; who takes none is given up when the epoch's files go."""
        line.settimeout(ALIVE_LOOK_S)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for number, (name, schema) in enumerate(wanted.files):
            found = self._reader(folder, name, schema)
            for frame, counts in found.reader.pieces(wanted.first, wanted.last, PIECE_BYTES):
                size = frame.size if isinstance(frame, Span) else len(frame)
                head = _head(number, counts.astype("<u4").tobytes(), size)
                if isinstance(frame, Span):
                    self._push(line, folder, memoryview(head), socket.MSG_MORE)
                    self._push_file(line, folder, found.file, frame)
                else:
                    self._push(line, folder, memoryview(head + frame))

    def _push(self, line: socket.socket, folder: Path, data: memoryview, flags: int = 0) -> None:
        while data:
            try:
                data = data[line.send(data, flags) :]
            except TimeoutError:
                _still_there(folder)

    def _push_file(self, line: socket.socket, folder: Path, file: FileIO, span: Span) -> None:
        at, end = span.position, span.position + span.size
        while at < end:
            try:
                sent = os.sendfile(line.fileno(), file.fileno(), at, end - at)
            except BlockingIOError:
                self._wait(line, folder)
                continue
            if not sent:
                raise _RefusedError("an exchange file was cut short")
            at += sent

    def _wait(self, line: socket.socket, folder: Path) -> None:
        poll = select.poll()
        poll.register(line, select.POLLOUT)
        while not poll.poll(ALIVE_LOOK_S * 1000):
            _still_there(folder)

    def _reader(self, folder: Path, name: str, schema: bytes) -> _Open:
        """Return a file of an epoch; those of the newest are kept open."""
        with self._lock:
            if folder.name != self._epoch:
                self._open.clear()
                self._epoch = folder.name
            if name not in self._open:
                columns = pa.ipc.read_schema(pa.py_buffer(schema))
                path = folder / name
                self._open[name] = _Open(ExchangeReader(self._files, path, columns), path)
            return self._open[name]


def _head(number: int, sizes: bytes, size: int) -> bytes:
    head = PIECE.pack(number, len(sizes) // 4, size) + sizes
    return head + SUM.pack(xxh3_64_intdigest(head))


def _failed(reason: str) -> bytes:
    said = reason.encode()
    return _head(FAILED, b"", len(said)) + said


def _still_there(folder: Path) -> None:
    if not folder.is_dir():
        raise ConnectionAbortedError(f"{folder} is gone")


def _received(line: socket.socket, size: int, deadline: Deadline) -> bytes:
    data = bytearray()
    while len(data) < size:
        line.settimeout(max(deadline.remaining(), 0.001))
        part = line.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionAbortedError("the request ended early")
        data += part
    return bytes(data)


def begin(folder: Path, host: str) -> ExchangeServer:
    """Serve a folder in threads of this process, where slots of its host find it."""
    server = ExchangeServer(folder, host)
    write_private(folder / RECORD, server.record)
    threading.Thread(target=server.run, name="headrace-exchange", daemon=True).start()
    return server


def serve(folder: Path, host: str, anchor: int) -> None:
    """Serve as long as a process lives and the folder is there.

    Nothing is done where another one serves the folder.

    Args:
        folder: as of ``ExchangeServer``.
        host: the same.
        anchor: that process, of this machine.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    record, clock = begin(folder, host).record, SystemClock()
    while is_alive(anchor) and _text(folder / RECORD) == record:
        clock.sleep(ALIVE_LOOK_S)
    os._exit(0)  # what is still read is of an epoch that is lost


def _text(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
