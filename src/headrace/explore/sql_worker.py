"""The process in which DuckDB runs what was typed, and the pool of such processes.

A worker can open the files of the query and no others, writes no file, has a limit of memory, and
is ended when a query takes too long, also within one call of a function. It is asked by a pipe: a
frame is 8 bytes of length, then MessagePack. ``python -m headrace.explore.sql_worker`` is its
program.
"""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec
import pyarrow as pa

from headrace.errors import InvalidInputError, UnavailableError
from headrace.explore.cancel import Cancel, CancelledError
from headrace.queries.duck import watchdog

GRACE_S = 1.0
"""How much longer than its limit a query may take, before the process is ended."""

START_S = 60.0
SPARE_BYTES = 1 << 30
"""What a worker may take beside the memory of DuckDB: its program, Arrow and values."""

MOST_WORKERS = 2


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A query as a worker gets it; ``tables`` has name, view, and rows in Arrow's stream format."""

    sql: str
    tables: list[tuple[str, str, bytes]]
    paths: list[str]
    rows: int
    seconds: float
    memory: str
    threads: int


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says: the rows, or why there are none."""

    rows: bytes = b""
    problem: str = ""
    is_over: bool = False


def _send(pipe: IO[bytes], message: Any) -> None:
    data = msgspec.msgpack.encode(message)
    pipe.write(struct.pack("<Q", len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", head)
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def ipc_bytes(table: pa.Table) -> bytes:
    """Return a table in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(memoryview(sink.getvalue()))


class SqlWorkers:
    """Processes that answer queries; one is kept for the next query.

    Args:
        memory: of DuckDB, such as ``1GB``.
        threads: of DuckDB.
    """

    def __init__(self, memory: str, threads: int) -> None:
        self._memory, self._threads = memory, threads
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(MOST_WORKERS)
        self._is_over = False
        self._is_warming = False
        self.running = 0
        """How many queries run at this moment."""

    def run(
        self,
        sql: str,
        tables: Sequence[tuple[str, str, pa.Table]],
        paths: Sequence[str],
        *,
        rows: int,
        seconds: float,
        cancel: Cancel | None = None,
    ) -> Answered:
        """Return what a worker answers.

        Args:
            sql: one checked ``SELECT``.
            tables: name, SQL of the view, and rows in memory, which the view reads.
            paths: files that it can read.
            rows: of the answer, at most; one more is read.
            seconds: that it may take.
            cancel: ends it, with its process.

        Raises:
            CancelledError: by ``cancel``.
            InvalidInputError: it took too long, or too much memory.
            UnavailableError: other queries run all the time, or no process can be begun.
        """
        if not self._turns.acquire(timeout=seconds + GRACE_S):
            raise UnavailableError(f"{MOST_WORKERS} other queries run; ask again")
        try:
            given = [(name, view, ipc_bytes(table)) for name, view, table in tables]
            asked = Asked(sql, given, list(paths), rows, seconds, self._memory, self._threads)
            with self._lock:
                self.running += 1
            try:
                return self._ask(asked, cancel or Cancel())
            finally:
                with self._lock:
                    self.running -= 1
        finally:
            self._turns.release()

    def warm(self) -> None:
        """Have a process ready for the next query, from a thread: to begin one takes a while."""
        with self._lock:
            if self._idle or self.running or self._is_warming or self._is_over:
                return
            self._is_warming = True
        threading.Thread(target=self._warm, name="headrace sql worker", daemon=True).start()

    def _warm(self) -> None:
        with suppress(UnavailableError):  # the next query gives the reason
            self._leave(self._begin())
        with self._lock:
            self._is_warming = False

    def _ask(self, asked: Asked, cancel: Cancel) -> Answered:
        worker = self._take()
        assert worker.stdin is not None
        assert worker.stdout is not None
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            worker.kill()

        try:
            cancel.begin(worker.kill)
            try:
                with watchdog().limit(asked.seconds + GRACE_S, end):
                    _send(worker.stdin, asked)
                    found = msgspec.msgpack.decode(_receive(worker.stdout), type=Answered)
            finally:
                cancel.end(worker.kill)
            if cancel.is_done:  # the process is perhaps killed at this moment
                raise CancelledError
        except (EOFError, OSError, msgspec.DecodeError) as error:
            _end(worker)
            if cancel.is_done:
                raise CancelledError from error
            if is_late.is_set():
                raise _too_long(asked.seconds) from error
            raise InvalidInputError(
                f"the query needed more memory than there is for it (explore.memory, "
                f"{asked.memory}), and its process was ended; ask for less"
            ) from error
        except BaseException:
            _end(worker)
            raise
        self._leave(worker)
        if found.is_over:
            raise _too_long(asked.seconds)
        return found

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
                _end(worker)
        return self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(one for one in sys.path if one)
        worker = subprocess.Popen(
            [sys.executable, "-m", "headrace.explore.sql_worker", self._memory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},  # no secret of this process
            cwd="/",
        )
        assert worker.stdout is not None
        try:
            with watchdog().limit(START_S, worker.kill):
                _receive(worker.stdout)
        except (EOFError, OSError) as error:
            _end(worker)
            raise UnavailableError("the process that answers SQL did not begin") from error
        return worker

    def _leave(self, worker: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if not self._is_over:
                self._idle.append(worker)
                return
        _end(worker)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._is_over = True
            idle, self._idle = self._idle, []
        for worker in idle:
            _end(worker)


def _too_long(seconds: float) -> InvalidInputError:
    return InvalidInputError(
        f"the query took more than {seconds:g} s (explore.query_s); add conditions to it"
    )


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


# In the worker.

_UNITS = {"MB": 1_000_000, "GB": 1_000_000_000}


def _limit_process(memory: str) -> None:
    """Give up what no query needs: files to write, memory without end, processes, core dumps."""
    size = int(memory[:-2]) * _UNITS[memory[-2:]] + SPARE_BYTES
    base = _mapped_bytes()
    for what, most in (
        (resource.RLIMIT_AS, base + size),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _mapped_bytes() -> int:
    """Return the address space that the program has by now, which counts as well."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def answer(asked: Asked) -> Answered:
    """Run a query in a DuckDB of its own."""
    import duckdb  # noqa: PLC0415 - in the worker alone

    from headrace.queries.duck import locked_duckdb  # noqa: PLC0415

    try:
        if not _is_one_select(asked.sql):
            return Answered(problem="expected one SELECT")
        with locked_duckdb(
            "headrace explore", memory=asked.memory, threads=asked.threads,
            paths=asked.paths, prepare=lambda db: _prepare(db, asked),
        ) as connection:  # fmt: skip
            with watchdog().limit(asked.seconds, connection.interrupt):
                reader = connection.sql(asked.sql).to_arrow_reader(asked.rows + 1)
                batches, size = [], 0
                for batch in reader:
                    batches.append(batch)
                    size += batch.num_rows
                    if size > asked.rows:
                        break
            table = pa.Table.from_batches(batches, reader.schema).slice(0, asked.rows + 1)
            return Answered(ipc_bytes(table))
    except duckdb.InterruptException:
        return Answered(is_over=True)
    except (duckdb.Error, pa.ArrowException, MemoryError) as error:
        return Answered(problem=str(error).partition("\n")[0] or type(error).__name__)


def _is_one_select(sql: str) -> bool:
    import duckdb  # noqa: PLC0415 - in the worker alone

    found = duckdb.extract_statements(sql)
    try:
        return len(found) == 1 and bool(found[0].type == duckdb.StatementType.SELECT)
    except ValueError:  # a kind that DuckDB's Python has no name for, such as UPDATE EXTENSIONS
        return False


def _prepare(connection: Any, asked: Asked) -> None:
    for name, view, rows in asked.tables:
        connection.register(f"{name}_rows", pa.ipc.open_stream(rows).read_all())
        connection.execute(f'CREATE VIEW "{name}" AS {view}')


def main() -> None:
    """Answer until the pipe ends."""
    import duckdb  # noqa: PLC0415 - before the limits, and in the worker alone

    duckdb.connect().close()
    pa.set_cpu_count(1)
    _limit_process(sys.argv[1])
    pipe_in, pipe_out = sys.stdin.buffer, sys.stdout.buffer
    _send(pipe_out, Answered())
    while True:
        try:
            asked = msgspec.msgpack.decode(_receive(pipe_in), type=Asked)
        except EOFError:
            return
        _send(pipe_out, answer(asked))


if __name__ == "__main__":
    main()
