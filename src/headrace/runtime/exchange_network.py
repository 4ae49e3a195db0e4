"""Exchange files of hosts whose job has its storage in an object storage: they stay where they are.

Slots of the host that wrote a file map it; others fetch the key groups of their tasks from a server
of that host (``exchange_server``). What is gone is lost with its epoch, which is planned again.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64

from headrace.clock import Deadline, SystemClock
from headrace.errors import CorruptDataError, InternalError, UnavailableError
from headrace.files import Files, is_alive
from headrace.plan.stages import Exchange
from headrace.records.frame import read_frame, read_header
from headrace.runtime.chunk import Chunk, from_exchange
from headrace.runtime.exchange import ExchangeFiles, ExchangeWriter, file_schema
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
    ServerRecord,
    Wanted,
    epoch_folder,
)
from headrace.runtime.orders import ON_HOST, SlotOrder

FOLDER = "_exchange"
"""Folder of a state directory with the files of jobs; no job can have this name."""
SILENCE_S = 10.0
"""So long a host that is asked for rows may send none."""
START_S, START_POLL_S = 30.0, 0.01
MOST_GROUPS = 1 << 16
_PLACE = re.compile(rf"{ON_HOST}([^/@]+)@([^/]+)/(.+)")


class ExchangeLostError(UnavailableError):
    """Rows of this epoch cannot be fetched from the host that has them. It is planned again."""

    code = "HR225"
    move = "see whether hosts of the job reach each other by their network"


class NetworkAddress(NamedTuple):
    """Where others reach the servers of a host, and the process that these end with."""

    host: str
    anchor: int


class ExchangePlace(NamedTuple):
    """The place of a file that is on one host: its identity, the address of its server, a name."""

    host: str
    address: str
    name: str

    @classmethod
    def read(cls, path: str) -> ExchangePlace:
        """Return what a path of a report says.

        Raises:
            InternalError: it is that of a file in the job's storage.
        """
        found = _PLACE.fullmatch(path)
        if found is None:
            raise InternalError(f"{path} is not on a host")
        return cls(found[1], found[2], found[3])

    def __str__(self) -> str:
        """Return it as a path."""
        return f"{ON_HOST}{self.host}@{self.address}/{self.name}"


class NetworkExchange(ExchangeFiles):
    """Exchange files that stay on the hosts that wrote them.

    Args:
        files: the file system.
        storage: of the job.
        state_dir: of this host.
        host: identity of that.
        network: where others reach this host.
    """

    def __init__(
        self, files: Files, storage: Path, state_dir: Path, host: str, network: NetworkAddress
    ) -> None:
        super().__init__(files, storage)
        self._host, self._network = host, network
        self._folder = state_dir / FOLDER / storage.name
        self._epoch = ""

    def begin(self, order: SlotOrder) -> None:
        """Turn to an order; files of epochs before are removed from this host."""
        super().begin(order)
        epoch = _epoch(order)
        if self._epoch == epoch:
            return
        self._epoch = epoch
        for name in self.files.names(self._folder):
            if _age(name) < _age(epoch):
                shutil.rmtree(self._folder / name, ignore_errors=True)

    def write(
        self, order: SlotOrder, name: str, writer: ExchangeWriter, tasks: int
    ) -> tuple[str, int, list[int]]:
        """Write a file to this host's disk, and see that it is served.

        Raises:
            UnavailableError: this host's server does not start.
        """
        path = self._folder / epoch_folder(_epoch(order), order.token) / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = writer.write(self.files, path, tasks, PIECE_BYTES)
        address = f"{self._network.host}:{self._port(self._network)}"
        return str(ExchangePlace(self._host, address, name)), *written

    def read(self, order: SlotOrder, exchange: Exchange, first: int, last: int) -> Iterator[Chunk]:
        """Yield rows as those of a folder are, fetched where they are on another host.

        Raises:
            ExchangeLostError: a file is on a host that does not answer, or is gone there.
        """
        places = list(map(ExchangePlace.read, order.exchange.get(exchange.operator, [])))
        far: dict[str, list[tuple[int, str, pa.Schema]]] = {}
        for number, place in enumerate(places):
            if place.host != self._host:
                file = (number, place.name, file_schema(exchange, place.name))
                far.setdefault(place.address, []).append(file)
        with ExitStack() as lines:
            streams = {}
            for address, files in far.items():
                streams[address] = _Stream(address, order, files, (first, last))
                lines.callback(streams[address].close)
            for number, place in enumerate(places):
                if place.host != self._host:
                    yield from streams[place.address].read(number)
                    continue
                own = self._folder / epoch_folder(_epoch(order), order.token) / place.name
                if not own.exists():
                    raise ExchangeLostError(f"exchange file {place.name} of this host is gone")
                yield from self.rows_of(own, exchange, first, last)

    def _port(self, network: NetworkAddress) -> int:
        """Return the port of this host's server, which is started unless it runs."""
        clock = SystemClock()  # of a process: not that of the job, which may be a test's
        deadline = Deadline(clock, START_S)
        while (port := _port_of(self._folder)) is None:
            started = _servers.get(self._folder)
            if started is None or started.poll() is not None:
                command = [sys.executable, "-m", "headrace.runtime.exchange_server"]
                command += [str(self._folder), network.host, str(network.anchor)]
                with (self._folder / ".server.log").open("wb") as log:
                    started = _servers[self._folder] = subprocess.Popen(
                        command,
                        start_new_session=True,  # or it ended with the daemon of one slot
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    )
                # Or it stayed a zombie after its end, as long as this process lives.
                threading.Thread(target=started.wait, name="headrace-reaper", daemon=True).start()
            if deadline.expired:
                said = (self._folder / ".server.log").read_text(errors="replace")[-500:]
                raise UnavailableError(
                    f"the server of exchange files at {network.host} does not start: {said}; see "
                    "whether this host may listen at that address"
                )
            clock.sleep(START_POLL_S)
        return port


_servers: dict[Path, subprocess.Popen[bytes]] = {}
"""Those that this process has started, by folder."""


def _epoch(order: SlotOrder) -> str:
    return f"{order.epoch:012d}-{order.generation:08d}"


def _age(name: str) -> tuple[str, str]:
    """Return what files of epochs are ordered by: the generation, and the epoch."""
    epoch, _, rest = name.partition("-")
    return rest[:8], epoch


def _port_of(folder: Path) -> int | None:
    """Return the port of the server of a folder, if one lives."""
    try:
        record = msgspec.json.decode((folder / RECORD).read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return record.port if is_alive(record.process) else None


class _Stream:
    """What a task fetches from one host: its files one after the other, frame by frame.

    What is sent ahead waits in the buffers of the network, so nothing here holds it.

    Args:
        address: of the host's server.
        files: number here, name and columns of each.
        groups: the first, and the one after the last.
    """

    def __init__(
        self,
        address: str,
        order: SlotOrder,
        files: Sequence[tuple[int, str, pa.Schema]],
        groups: tuple[int, int],
    ) -> None:
        self._address, self._first = address, groups[0]
        self._numbers = [number for number, _, _ in files]
        self._schemas = {number: schema for number, _, schema in files}
        self._held: tuple[int, Chunk] | None = None
        self._is_over = False
        host, _, port = address.rpartition(":")
        named = [(name, schema.serialize().to_pybytes()) for _, name, schema in files]
        first = msgspec.msgpack.encode(Admission(_epoch(order), order.token))
        second = msgspec.msgpack.encode(Wanted(named, *groups))
        with self._losing():
            self._line = socket.create_connection((host.strip("[]"), int(port)), SILENCE_S)
            self._line.sendall(WANTED.pack(WIRE, len(first), len(second)) + first + second)

    def read(self, number: int) -> Iterator[Chunk]:
        """Yield the rows of one file; files are read in the order of their numbers.

        Raises:
            ExchangeLostError: the host does not send them.
        """
        while (piece := self._next()) is not None:
            if piece[0] != number:
                self._held = piece
                return
            yield piece[1]

    def close(self) -> None:
        """Take no more."""
        self._line.close()

    def _next(self) -> tuple[int, Chunk] | None:
        if self._held is not None or self._is_over:
            held, self._held = self._held, None
            return held
        with self._losing():
            piece = self._piece()
        self._is_over = piece is None
        return piece

    def _piece(self) -> tuple[int, Chunk] | None:
        """Return verified rows with the number of their file; ``None``: these were all."""
        origin = f"exchange file of {self._address}"
        head = self._received(PIECE.size)
        file, groups, size = PIECE.unpack(head)
        if groups > MOST_GROUPS:
            raise CorruptDataError(f"{origin} came damaged")
        rest = self._received(4 * groups + SUM.size)
        sizes, (checksum,) = rest[: 4 * groups], SUM.unpack_from(rest, 4 * groups)
        summed = xxh3_64(head)
        summed.update(sizes)
        if summed.intdigest() != checksum:
            raise CorruptDataError(f"{origin} came damaged")
        if file == OVER:
            return None
        frame = self._received(size)
        if file == FAILED:
            raise UnavailableError(bytes(frame).decode(errors="replace"))
        number, data = self._numbers[file], pa.py_buffer(frame)
        batch = read_frame(data, read_header(data, 0, origin), self._schemas[number], origin)
        counts = np.frombuffer(sizes, "<u4").astype(np.uint32)
        own = np.arange(self._first, self._first + len(counts), dtype=np.uint16)
        return number, from_exchange(batch, np.repeat(own, counts))

    def _received(self, size: int) -> memoryview:
        """Return so many bytes, in memory of their own, which rows are read from."""
        whole = memoryview(pa.allocate_buffer(size)).cast("B")
        left = whole
        while left:
            taken = self._line.recv_into(left)
            if not taken:
                raise ConnectionAbortedError("it ended early")
            left = left[taken:]
        return whole

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Raise what says that the epoch is lost in place of other errors."""
        try:
            yield
        except TimeoutError:
            raise ExchangeLostError(
                f"host {self._address} has sent no rows of the epoch for {SILENCE_S:g} s"
            ) from None
        except (OSError, CorruptDataError, UnavailableError) as error:
            why = str(error).partition("\n")[0][:300]
            raise ExchangeLostError(
                f"rows of the epoch cannot be fetched from host {self._address}: {why}"
            ) from error
