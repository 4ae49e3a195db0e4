"""A process of a host that serves its exchange files to slots of other hosts, by Arrow Flight.

Apart from the slots, whose functions may keep an interpreter to themselves for long, and whose
processes Spark ends when they rest for a minute. It ends with the executor that it is of.

A request names files of one epoch, and key groups. It has the token of the epoch, which the driver
gives to those that run it: files are in a folder whose name is made of that, so another token finds
nothing. Rows go out as frames with checksums of their own, a few MiB each, as fast as the other
side takes them.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight
from xxhash import xxh3_64_intdigest

from headrace.clock import SystemClock
from headrace.files import Files, write_private
from headrace.runtime.exchange_file import (
    PIECE_BYTES,
    RECORD,
    WIRE,
    ExchangeReader,
    ServerRecord,
    Wanted,
    epoch_folder,
    is_running,
)

ALIVE_LOOK_S = 1.0
LOCK = ".server.lock"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


class ExchangeServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the files below a folder.

    Args:
        folder: with a folder for each epoch.
        host: the address that it listens at, at a free port.
    """

    def __init__(self, folder: Path, host: str) -> None:
        super().__init__(f"grpc://{host}:0")
        self._folder, self._files = folder, Files(sync=False)
        self._lock = threading.Lock()
        self._epoch = ""
        self._open: dict[str, ExchangeReader] = {}

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer a request."""
        wanted = msgspec.msgpack.decode(ticket.ticket, type=Wanted)
        names = [wanted.epoch, *(name for name, _ in wanted.files)]
        if not all(map(_NAME.fullmatch, names)):
            raise flight.FlightServerError("no such files")
        folder = epoch_folder(wanted.epoch, wanted.token)
        if not (self._folder / folder).is_dir():
            raise flight.FlightUnauthorizedError("no files of an epoch with this token")
        return flight.GeneratorStream(WIRE, self._pieces(folder, wanted))

    def _pieces(self, folder: str, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        for number, (name, schema) in enumerate(wanted.files):
            reader = self._reader(folder, name, schema)
            for frame, counts in reader.pieces(wanted.first, wanted.last, PIECE_BYTES):
                sizes = counts.astype("<u4").tobytes()
                ends = pa.py_buffer(np.array([0, frame.size], np.int64))
                arrays = [
                    pa.array([number], pa.int32()),
                    pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, frame]),  # no copy
                    pa.array([sizes], pa.binary()),
                    pa.array([xxh3_64_intdigest(sizes)], pa.uint64()),
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=WIRE)

    def _reader(self, folder: str, name: str, schema: bytes) -> ExchangeReader:
        """Return a file of an epoch; those of the newest are kept open."""
        with self._lock:
            if folder != self._epoch:
                self._open.clear()
                self._epoch = folder
            if name not in self._open:
                columns = pa.ipc.read_schema(pa.py_buffer(schema))
                self._open[name] = ExchangeReader(
                    self._files, self._folder / folder / name, columns
                )
            return self._open[name]


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
    server = ExchangeServer(folder, host)
    clock = SystemClock()
    said = msgspec.json.encode(ServerRecord(os.getpid(), server.port))
    write_private(folder / RECORD, said)
    while is_running(anchor) and _text(folder / RECORD) == said:
        clock.sleep(ALIVE_LOOK_S)
    os._exit(0)  # what is still read is of an epoch that is lost


def _text(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
