"""One client: a child process, the rows that it reads, its acknowledgements and its output.

One thread uses a client. While it writes to the client's stdin it also reads stdout and stderr, so
a client that prints much cannot block both. A full stdin blocks: this is the back-pressure. Formats
are classes below ``Encoder``.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bus import StreamSpec
from headrace.clock import Clock, Deadline, SystemClock
from headrace.errors import InvalidInputError
from headrace.redaction import redacted
from headrace.sources.row_decoder import LINE

HUNG = 124
"""Stands for the exit code of a client that was killed because it hung, as with timeout(1)."""

WAIT_S = 5.0
"""After so long without an acknowledgement, what is waited for is said."""

LOG_BYTES = 4 << 20
_MOST_LINE = 64 << 20
_PIPE_BYTES = 1 << 20
_WRITE_BYTES = 256 << 10
_READ_BYTES = 256 << 10
_LOOK_S = 0.1
_CHECKPOINT = '["checkpoint",'

_LAUNCHER = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\\n")
    os._exit(126)
"""
"""Lets the kernel kill the client when the thread that started it is gone, then becomes it."""


class ClientLog:
    """The log of a pipe: stderr of its clients, and what was done about them.

    It is ``logs/pipe-NAME.log`` of the home, and a former part of it has ``.1`` behind its name.
    Any thread may write.

    Args:
        home: of the settings.
        name: of the pipe, or of one process of it.
    """

    def __init__(self, home: Path, name: str) -> None:
        self._path = home / "logs" / f"pipe-{name}.log"
        self._lock = threading.Lock()

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, each with the time; secrets are redacted."""
        stamp = f"{datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC):%Y-%m-%d %H:%M:%S}"
        text = "".join(f"{stamp} {redacted(line)}\n" for line in lines)
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileNotFoundError):  # or another process of the consumer moves it
                if self._path.stat().st_size > LOG_BYTES:
                    self._path.replace(self._path.with_name(self._path.name + ".1"))
            target = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(target, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)


class Encoded(NamedTuple):
    """The first rows of a batch as bytes for a client, and how many they are."""

    data: bytes
    rows: int


class UnfitRowError(Exception):
    """A row that a format cannot express."""


class Encoder(ABC):
    """Makes the bytes of one client of its rows and requests.

    Attributes:
        prefix: how a request begins.
        columns: that are read; ``None``: all.
        end: what is behind the last row of a span, whether or not a request follows.
    """

    prefix: str
    columns: Sequence[str] | None = None
    end = b""

    def begin(self, offset: int) -> bytes:
        """Return what is before the first row of a span, which has this offset."""
        del offset
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch, room: int | None) -> Encoded:
        """Encode rows up to the one that reaches a number of bytes, at least one.

        Raises:
            UnfitRowError: of the first row; later ones are left for the next call.
        """

    @abstractmethod
    def request(self, offset: int) -> tuple[bytes, bytes]:
        """Return the request behind a span that ends before an offset, and its answer."""

    def is_answer(self, line: bytes, answer: bytes) -> bool:
        """Say whether a line of stdout is an acknowledgement."""
        return line == answer


def _cut(data: bytes, rows: int, room: int | None) -> Encoded:
    """Keep the lines up to the one that reaches a number of bytes."""
    if room is None or len(data) <= room:
        return Encoded(data, rows)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    kept = int(np.searchsorted(ends, room)) + 1
    return Encoded(data[: int(ends[kept - 1])], kept)


class JsonEncoder(Encoder):
    """An object a line, with times in ISO 8601 and bytes in base64, as ``bus append`` reads it."""

    prefix = _CHECKPOINT

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def rows(self, batch: pa.RecordBatch, room: int | None) -> Encoded:
        """Encode rows; see ``Encoder.rows``."""
        return _cut(self._encoder.encode_lines(batch.to_pylist()), batch.num_rows, room)

    def request(self, offset: int) -> tuple[bytes, bytes]:
        """Return a request; see ``Encoder.request``."""
        answer = f"{_CHECKPOINT}{offset}]".encode()
        return answer + b"\n", answer

    def is_answer(self, line: bytes, answer: bytes) -> bool:
        """Say whether a line is an acknowledgement, however a client has spaced it."""
        return line == answer or line.replace(b" ", b"") == answer


class RawEncoder(Encoder):
    """The value of one column of text or bytes a line; null is an empty line.

    Args:
        column: its name.
    """

    def __init__(self, column: str) -> None:
        self.columns = [column]
        self.prefix = f"checkpoint-{secrets.token_hex(8)}"

    def rows(self, batch: pa.RecordBatch, room: int | None) -> Encoded:
        """Encode rows; see ``Encoder.rows``."""
        values = batch.column(0).cast(pa.binary())
        broken = pc.fill_null(pc.match_substring(values, "\n"), False)
        if (first := pc.index(broken, True).as_py()) >= 0:
            if first == 0:
                raise UnfitRowError("its value has several lines, which --format json can express")
            values = values.slice(0, first)
        data = b"\n".join([*values.fill_null(b"").to_pylist(), b""])
        return _cut(data, len(values), room)

    def request(self, offset: int) -> tuple[bytes, bytes]:
        """Return a request; see ``Encoder.request``."""
        answer = f"{self.prefix} {offset}".encode()
        return answer + b"\n", answer


class ArrowEncoder(Encoder):
    """Each span is an Arrow IPC stream; its end is the request, its schema has the answer.

    Args:
        schema: of the rows.
    """

    prefix = _CHECKPOINT
    end = b"\xff\xff\xff\xff\x00\x00\x00\x00"

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._answer = b""

    def begin(self, offset: int) -> bytes:
        """Return the schema, which has the answer of the span."""
        self._answer = f"{_CHECKPOINT}{offset}]".encode()
        named = self._schema.with_metadata({"headrace.checkpoint": self._answer})
        return bytes(named.serialize())

    def rows(self, batch: pa.RecordBatch, room: int | None) -> Encoded:
        """Encode rows; see ``Encoder.rows``."""
        if room is not None and batch.nbytes > room:
            batch = batch.slice(0, max(1, -(-room * batch.num_rows // batch.nbytes)))
        return Encoded(batch.serialize().to_pybytes(), batch.num_rows)

    def request(self, offset: int) -> tuple[bytes, bytes]:
        """Return the end of the stream, and the answer that its schema has."""
        return self.end, self._answer

    def is_answer(self, line: bytes, answer: bytes) -> bool:
        """Say whether a line is an acknowledgement, however a client has spaced it."""
        return line == answer or line.replace(b" ", b"") == answer


FORMATS: dict[str, Callable[[pa.Schema, str], Encoder]] = {
    "json": lambda schema, column: JsonEncoder(),
    "raw": lambda schema, column: RawEncoder(column),
    "arrow": lambda schema, column: ArrowEncoder(schema),
}
"""What makes the encoder of a client, of the columns of the stream and the raw one."""


def raw_column(spec: StreamSpec, given: str | None) -> str:
    """Return the column that ``--format raw`` writes: as given, ``line``, or the only one of text.

    Raises:
        InvalidInputError: there is none, or it is none of text or bytes.
    """
    found = [
        field.name
        for field in spec.schema
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type)
    ]
    chosen = given or (LINE if LINE in found else found[0] if len(found) == 1 else None)
    if chosen in found:
        assert chosen is not None
        return chosen
    raise InvalidInputError(
        f"--format raw writes one column of text or bytes: found {given or 'no --column'}, "
        f"expected {' or '.join(found) or 'one, which the stream does not have'}; name it with "
        "--column, or use --format json",
        stream=spec.name,
    )


class ClientStopped(Exception):
    """A client does not run any more: it exited, or was killed because it failed.

    Attributes:
        code: its exit code; 128 + N for signal N.
        reason: in words.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Client:
    """A running client; ``close`` ends it with all that it started.

    Args:
        command: and its arguments; looked for on ``PATH``.
        environment: in addition to that of this process.
        encoder: of its rows.
        on_output: takes lines of stdout that are no acknowledgements.
        on_log: takes lines of stderr.
        on_wait: takes the line that is waited for, when an acknowledgement takes a while.
        timeout_s: how long it may read nothing, or not answer.
        clock: for deadlines.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        encoder: Encoder,
        on_output: Callable[[list[bytes]], None],
        on_log: Callable[[list[str]], None],
        on_wait: Callable[[str], None],
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._encoder, self._on_wait = encoder, on_wait
        self._on_output, self._on_log = on_output, on_log
        self._begin = encoder.prefix.encode()
        self._timeout_s, self._clock = timeout_s, clock
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environment, "HEADRACE_CHECKPOINT": encoder.prefix},
        )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._partial: dict[IO[bytes], bytearray] = {
            self._stdout: bytearray(),
            self._stderr: bytearray(),
        }
        self._selector = selectors.DefaultSelector()
        for end in (self._stdin, *self._partial):
            os.set_blocking(end.fileno(), False)
        for source in self._partial:
            self._selector.register(source, selectors.EVENT_READ)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._answer: bytes | None = None
        self._stopped: ClientStopped | None = None

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Write bytes to its stdin, as fast as it reads them.

        Raises:
            ClientStopped: it exited, closed its stdin, or read nothing for the timeout.
        """
        try:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
            try:
                self._write(memoryview(data))
            finally:
                self._selector.unregister(self._stdin)
        except BrokenPipeError:
            raise self._await_exit("closed its stdin, and did not exit") from None

    def _write(self, left: memoryview) -> None:
        deadline = Deadline(self._clock, self._timeout_s)
        while left:
            written = self._turn(left)
            left = left[written:]
            if written:
                deadline = Deadline(self._clock, self._timeout_s)
            elif deadline.expired:
                raise self._fail(HUNG, f"read nothing for {self._timeout_s:g} s")

    def ask(self, offset: int) -> None:
        """Request an acknowledgement of all rows before an offset, and wait for it.

        Raises:
            ClientStopped: it exited, or did not answer within the timeout.
        """
        request, self._answer = self._encoder.request(offset)
        try:
            self.send(request)
            deadline = Deadline(self._clock, self._timeout_s)
            notice: Deadline | None = Deadline(self._clock, WAIT_S)
            while self._answer is not None:
                if notice is not None and notice.expired:
                    self._on_wait(self._answer.decode())
                    notice = None
                if deadline.expired:
                    raise self._fail(
                        HUNG,
                        f"did not acknowledge within {self._timeout_s:g} s: expected the line "
                        f"{self._answer.decode()} on its stdout; a command that knows nothing of "
                        "checkpoints needs --ack exit",
                    )
                self._turn()
        except ClientStopped:
            if self._answer is not None:
                raise

    def poll(self) -> None:
        """Take what it has printed, without waiting.

        Raises:
            ClientStopped: it exited.
        """
        self._turn(wait_s=0)

    def finish(self) -> ClientStopped:
        """End its stdin, and return how it exits."""
        self._stdin.close()
        return self._await_exit("did not exit at the end of its stdin")

    def kill(self) -> None:
        """Kill it with all that it started; the thread that uses it then finds it so."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, and release what belongs to it; does nothing the second time."""
        self.kill()
        self._process.wait()
        self._selector.close()
        for end in (self._stdin, self._stdout, self._stderr):
            with suppress(OSError):
                end.close()

    def _fail(self, code: int, reason: str) -> ClientStopped:
        """Kill it, and return why."""
        self._stopped = ClientStopped(code, f"client {reason}")
        self.kill()
        return self._stopped

    def _await_exit(self, otherwise: str) -> ClientStopped:
        deadline = Deadline(self._clock, self._timeout_s)
        try:
            while not deadline.expired:
                self._turn()
        except ClientStopped as stopped:
            return stopped
        return self._fail(HUNG, f"{otherwise} within {self._timeout_s:g} s")

    def _turn(self, data: memoryview | None = None, wait_s: float = _LOOK_S) -> int:
        """Write some bytes and read what there is; return how many were written."""
        if self._stopped is not None:
            raise self._stopped
        written = 0
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._stdin:
                assert data is not None
                with suppress(BlockingIOError):
                    written = os.write(key.fd, data[:_WRITE_BYTES])
            else:
                self._read(self._stdout if key.fileobj is self._stdout else self._stderr)
        if not written:
            self._look()
        return written

    def _look(self) -> None:
        """Notice that it has exited; it may have answered before, so that is read first."""
        if os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        self.kill()  # what it started, before its number is free
        code = self._process.wait()
        for source, held in self._partial.items():
            while self._read(source):
                pass
            if held:
                self._take(source, [bytes(held)])
        if self._stopped is None:
            how = f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"
            self._stopped = ClientStopped(code if code >= 0 else 128 - code, f"client {how}")
        raise self._stopped

    def _read(self, source: IO[bytes]) -> bool:
        """Take what is there of stdout or stderr; false if there is nothing."""
        try:
            data = os.read(source.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            with suppress(KeyError):
                self._selector.unregister(source)
            return False
        held = self._partial[source]
        held += data
        if (end := held.rfind(b"\n")) >= 0:
            lines = bytes(held[:end]).split(b"\n")
            del held[: end + 1]
            self._take(source, lines)
        if len(held) > _MOST_LINE:
            raise self._fail(1, f"printed a line of more than {_MOST_LINE >> 20} MiB")
        return True

    def _take(self, source: IO[bytes], lines: list[bytes]) -> None:
        lines = [line.removesuffix(b"\r") for line in lines]
        if source is self._stderr:
            self._on_log([line.decode(errors="backslashreplace") for line in lines])
            return
        output = []
        for line in lines:
            if not line.startswith(self._begin):
                output.append(line)
            elif self._answer is not None and self._encoder.is_answer(line, self._answer):
                self._answer = None
            else:
                shown = line[:80].decode(errors="backslashreplace")
                raise self._fail(1, f"acknowledged what was not asked for: {shown}")
        if output:
            self._on_output(output)
