"""The storage of a job on the disk of its driver's host, for slots of other hosts, by TCP.

With ``state.durability = backup(...)`` epochs commit to that disk alone. Slots of other hosts see
it as an object storage: their paths stand for it (``headrace.remote``), and each call is a request.
What was answered is durable there. The server is a part of the driver's process and ends with it.

A request has the token of the run, and what follows it is only read where that is right. Content
goes with a checksum, and is not encrypted.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from headrace import objects
from headrace.clock import Clock, Deadline, SystemClock
from headrace.closeable import Closeable
from headrace.errors import CorruptDataError, InternalError
from headrace.files import Files, temporary_path
from headrace.objects import ObjectInfo, ObjectStorage, StorageAwayError
from headrace.remote import FOLDER
from headrace.runtime.connections import answer_each, stop_listening

SCHEME = "host"
WIRE = b"hrstore1"
_HEAD = struct.Struct("<8sIQ")
_ANSWER = struct.Struct("<BIQ")
_SUM = struct.Struct("<Q")
CHUNK = 1 << 20
SILENCE_S = 10.0
"""So long the other side may neither send nor take anything."""
RETRY_TIMEOUT_S, PAUSE_S = 10.0, 0.05
MOST_REQUESTS, MOST_META, MOST_ANSWER, MOST_ATTEMPTS = 1024, 64 << 10, 64 << 20, 10_000
_PART = re.compile(r"[^/\0.][^/\0]*")

_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_OK, _MISSING, _FAILED, _REFUSED, _DAMAGED = range(5)
_Call: TypeAlias = Literal["new", "put", "get", "objects", "entries", "info", "delete"]


class _Request(msgspec.Struct, frozen=True, array_like=True):
    token: str
    call: _Call
    name: str
    begin: int = 0
    end: int = -1
    attempt: str = ""


class _Refusal(msgspec.Struct, frozen=True, array_like=True):
    number: int
    reason: str


class _DamagedError(Exception):
    """Something arrived with another checksum than it was sent with."""


@dataclass(frozen=True)
class ServedStorage:
    """How slots of other hosts reach the storage of a job.

    Args:
        identity: of the host that it is on.
        host, port: where its server listens.
        token: of the run.
    """

    identity: str
    host: str
    port: int
    token: str = field(repr=False)

    def path(self, state_dir: Path, job: str) -> Path:
        """Return what stands for the storage of a job on a host."""
        return state_dir / FOLDER / SCHEME / self.identity / job

    def connect(self, clock: Clock | None = None) -> None:
        """Have paths of this process that stand for the storage reach it."""
        objects.provide(SCHEME, self.identity, HostStorage(self, clock or SystemClock()))


class StorageServer(Closeable):
    """Serves the storage of a job to slots of other hosts until it is closed.

    Args:
        storage: its folder.
        identity: of this host.
        host: the address that it listens at, at a free port, and that others know it by.
        files: the file system.
        listens: the address that it listens at, where that is another.
    """

    def __init__(
        self, storage: Path, identity: str, host: str, files: Files, listens: str = ""
    ) -> None:
        family = socket.getaddrinfo(listens or host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((listens or host, 0), family=family, backlog=1024)
        port: int = self._listener.getsockname()[1]
        self.served = ServedStorage(identity, host, port, secrets.token_hex(16))
        self._storage, self._files = storage, files
        self._room, self._lock = threading.Semaphore(MOST_REQUESTS), threading.Lock()
        self._created: dict[str, None] = {}
        self._over = threading.Event()
        threading.Thread(target=self._run, name="headrace-storage", daemon=True).start()

    def close(self) -> None:
        """Take no more requests; slots that still ask are of an epoch that is over."""
        stop_listening(self._listener, self._over)

    def _run(self) -> None:
        answer_each(self._listener, self._answer, self._room, self._over, name="headrace-objects")

    def _answer(self, line: socket.socket) -> None:
        try:
            with line, suppress(OSError, _DamagedError, CorruptDataError):
                line.settimeout(SILENCE_S)
                head = _received(line, _HEAD.size)
                wire, size, body = _HEAD.unpack(head)
                if wire != WIRE or size > MOST_META:
                    return
                meta = _verified(line, head, size)
                try:
                    asked = msgspec.msgpack.decode(meta, type=_Request)
                    if not hmac.compare_digest(asked.token.encode(), self.served.token.encode()):
                        raise PermissionError(errno.EACCES, "this is a token of another run")
                    self._do(line, asked, body)
                except msgspec.DecodeError as error:
                    _send(line, _REFUSED, _Refusal(errno.EINVAL, str(error)))
                except _DamagedError:
                    _send(line, _DAMAGED, None)
                except FileNotFoundError:
                    _send(line, _MISSING, None)
                except PermissionError as error:
                    _send(line, _REFUSED, _Refusal(error.errno or errno.EACCES, str(error)))
                except TimeoutError:
                    raise
                except OSError as error:
                    said = error.strerror or str(error)
                    _send(line, _FAILED, _Refusal(error.errno or errno.EIO, said))
        finally:
            self._room.release()

    def _do(self, line: socket.socket, asked: _Request, body: int) -> None:
        path = self._path(asked.name)
        match asked.call:
            case "new" | "put":
                _send(line, _OK, self._put(path, asked, _checked(line, body)))
            case "get":
                with open(path, "rb", buffering=0) as file:
                    end = os.fstat(file.fileno()).st_size
                    begin = min(asked.begin, end)
                    end = end if asked.end < 0 else max(begin, min(asked.end, end))
                    _send(line, _OK, None, end - begin, _chunks(file.fileno(), begin, end))
            case "objects":
                _send(line, _OK, list(self._objects(path)))
            case "entries":
                _send(line, _OK, self._entries(path))
            case "info":
                _send(line, _OK, self._info(path))
            case "delete":
                self._files.remove(path)
                _send(line, _OK, None)

    def _path(self, name: str) -> Path:
        job, *parts = name.split("/")
        if job != self._storage.name or not all(map(_PART.fullmatch, parts)):
            raise PermissionError(errno.EACCES, f"{name} is not in the storage of the job")
        return self._storage.joinpath(*parts)

    def _put(self, path: Path, asked: _Request, content: Iterator[bytes]) -> bool:
        if asked.call == "new" and path.exists() and asked.attempt not in self._created:
            for _ in content:  # the other side sends it all before it looks
                pass
            self._files.sync_folder(path.parent)
            return False
        self._files.make_missing(path.parent)
        temporary = temporary_path(path)
        try:
            self._files.write_new(temporary, content)
            if asked.call == "put":
                os.replace(temporary, path)
            elif not self._create(temporary, path, asked.attempt):
                return False
        finally:
            temporary.unlink(missing_ok=True)
            self._files.sync_folder(path.parent)
        return True

    def _create(self, temporary: Path, path: Path, attempt: str) -> bool:
        """Give the name, and know again who asks once more because the answer was lost."""
        with self._lock:
            if attempt in self._created:
                return True
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            self._created[attempt] = None
            if len(self._created) > MOST_ATTEMPTS:
                del self._created[next(iter(self._created))]
            return True

    def _objects(self, folder: Path) -> Iterator[ObjectInfo]:
        for found, folders, names in os.walk(folder, onerror=_unless_gone):
            folders[:] = [name for name in folders if _PART.fullmatch(name)]
            for name in filter(_PART.fullmatch, names):
                if (info := self._info(Path(found, name))) is not None:
                    yield info

    def _entries(self, folder: Path) -> list[str]:
        try:
            found = sorted(filter(_PART.fullmatch, os.listdir(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            name
            for name in found
            if not (folder / name).is_dir() or next(self._objects(folder / name), None)
        ]

    def _info(self, path: Path) -> ObjectInfo | None:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if path.is_dir():
            return None
        name = path.relative_to(self._storage.parent).as_posix()
        return ObjectInfo(name, found.st_size, found.st_mtime)


def _unless_gone(error: OSError) -> None:
    """Let no folder pass for an empty one because the disk refuses to list it."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


class HostStorage(ObjectStorage):
    """The storage of a job, asked of the server on its driver's host.

    Args:
        served: how to reach it.
        clock: for waiting between tries.
        retry_timeout_s: how long a call is tried.
    """

    def __init__(
        self, served: ServedStorage, clock: Clock, retry_timeout_s: float = RETRY_TIMEOUT_S
    ) -> None:
        self._served, self._clock, self._retry_timeout_s = served, clock, retry_timeout_s

    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object; False when another's is there."""
        made = self._ask("new", name, data, attempt=secrets.token_hex(8))
        return msgspec.msgpack.decode(made, type=bool)

    def put(self, name: str, data: bytes) -> None:
        """Set the content of an object."""
        self._ask("put", name, data)

    def put_file(self, name: str, path: Path) -> None:
        """Set the content of an object to that of a file."""
        self._ask("put", name, path)

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        return self.get_range(name, 0, -1)

    def get_range(self, name: str, begin: int, end: int) -> bytes:
        """Return a part of an object."""
        parts: list[bytes] = []

        def take(chunks: Iterable[bytes]) -> None:
            parts[:] = chunks

        self._ask("get", name, begin=begin, end=end, take=take)
        return b"".join(parts)

    def get_file(self, name: str, path: Path) -> None:
        """Write an object to a new file."""

        def take(chunks: Iterable[bytes]) -> None:
            path.unlink(missing_ok=True)  # of a try before this one, which came damaged
            Files(sync=False).write_new(path, chunks, durable=False)

        try:
            self._ask("get", name, take=take)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def objects(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield all objects below a folder."""
        yield from msgspec.msgpack.decode(self._ask("objects", folder), type=list[ObjectInfo])

    def entries(self, folder: str) -> list[str]:
        """Return the names right below a folder."""
        return msgspec.msgpack.decode(self._ask("entries", folder), type=list[str])

    def info(self, name: str) -> ObjectInfo | None:
        """Return what is known of an object."""
        return msgspec.msgpack.decode(self._ask("info", name), type=ObjectInfo | None)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._ask("delete", name)

    def _ask(
        self,
        call: _Call,
        name: str,
        content: bytes | Path = b"",
        *,
        begin: int = 0,
        end: int = -1,
        attempt: str = "",
        take: Callable[[Iterable[bytes]], None] | None = None,
    ) -> bytes:
        """Make a request until it is answered; returns what the answer says beside content."""
        served, deadline = self._served, Deadline(self._clock, self._retry_timeout_s)
        asked = _Request(served.token, call, name, begin, end, attempt)
        while True:
            try:
                return self._once(asked, content, take)
            except (_DamagedError, ConnectionError, TimeoutError, socket.gaierror) as error:
                why: Exception = error
            except OSError as error:
                if error.errno not in _UNREACHABLE:
                    raise
                why = error
            if deadline.expired:
                raise StorageAwayError(
                    f"the storage of the job on its driver's host, {served.host}:{served.port}, "
                    f"does not answer: {why}; expected an answer in {self._retry_timeout_s:.0f} s: "
                    "see whether this host reaches that address, which is spark.driver.host",
                    file=name,
                ) from why
            self._clock.sleep(PAUSE_S)

    def _once(
        self,
        asked: _Request,
        content: bytes | Path,
        take: Callable[[Iterable[bytes]], None] | None,
    ) -> bytes:
        meta = msgspec.msgpack.encode(asked)
        with (
            socket.create_connection((self._served.host, self._served.port), SILENCE_S) as line,
            _opened(content) as (size, chunks),
        ):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                line.sendall(_signed(_HEAD.pack(WIRE, len(meta), size) + meta))
                if asked.call in {"new", "put"}:
                    _push_content(line, chunks)
            except (BrokenPipeError, ConnectionResetError):
                if _nothing_came(line):
                    raise
            head = _received(line, _ANSWER.size)
            status, length, body = _ANSWER.unpack(head)
            if length > MOST_ANSWER:
                raise _DamagedError("an answer arrived damaged, or is too long")
            said = _verified(line, head, length)
            if status == _OK:
                if take is not None:
                    take(_checked(line, body))
                return said
        if status == _MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such object", asked.name)
        if status == _DAMAGED:
            raise _DamagedError("what was sent arrived damaged")
        refusal = msgspec.msgpack.decode(said, type=_Refusal)
        if status == _REFUSED:
            raise InternalError(
                f"the driver's host refuses {asked.call} of {asked.name}: {refusal.reason}"
            )
        raise OSError(refusal.number, refusal.reason, asked.name)


def _nothing_came(line: socket.socket) -> bool:
    """Say whether the server ended without a word; it may have refused what was still sent."""
    try:
        return not line.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


@contextmanager
def _opened(content: bytes | Path) -> Iterator[tuple[int, Iterable[bytes]]]:
    if isinstance(content, bytes):
        yield len(content), [content] if content else []
        return
    with open(content, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        yield size, _chunks(file.fileno(), 0, size)


def _chunks(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        chunk = os.pread(descriptor, min(CHUNK, end - begin), begin)
        if not chunk:
            raise CorruptDataError("a file became shorter while it was sent")
        begin += len(chunk)
        yield chunk


def _signed(data: bytes) -> bytes:
    return data + _SUM.pack(xxh3_64_intdigest(data))


def _verified(line: socket.socket, head: bytes, size: int) -> bytes:
    """Receive what follows a head, with a checksum of both."""
    data = _received(line, size + _SUM.size)
    if _signed(head + data[:size]) != head + data:
        raise _DamagedError("the head of a message arrived damaged")
    return data[:size]


def _push_content(line: socket.socket, chunks: Iterable[bytes]) -> None:
    digest = xxh3_64()
    for chunk in chunks:
        digest.update(chunk)
        line.sendall(chunk)
    line.sendall(_SUM.pack(digest.intdigest()))


def _send(
    line: socket.socket, status: int, meta: Any, size: int = 0, chunks: Iterable[bytes] = ()
) -> None:
    said = msgspec.msgpack.encode(meta)
    line.sendall(_signed(_ANSWER.pack(status, len(said), size) + said))
    if status == _OK:
        _push_content(line, chunks)


def _checked(line: socket.socket, size: int) -> Iterator[bytes]:
    """Yield content as it arrives; what was damaged on its way is an error at the end.

    The first chunk is only asked for when it is needed: then all has to be read.
    """
    digest = xxh3_64()
    while size:
        chunk = line.recv(min(size, CHUNK))
        if not chunk:
            raise ConnectionAbortedError("the other side ended early")
        size -= len(chunk)
        digest.update(chunk)
        yield chunk
    if _SUM.unpack(_received(line, _SUM.size))[0] != digest.intdigest():
        raise _DamagedError("content arrived damaged, or could not be read to its end")


def _received(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = line.recv(min(size - len(data), CHUNK))
        if not part:
            raise ConnectionAbortedError("the other side ended early")
        data += part
    return bytes(data)
