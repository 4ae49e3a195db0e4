"""Exchange files of hosts whose job has its storage in an object storage: they stay where they are.

Slots of the host that wrote a file map it; others fetch the key groups of their tasks from a server
of that host (``exchange_server``). What is gone is lost with its epoch, which is planned again.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from headrace.clock import Deadline, SystemClock
from headrace.errors import CorruptDataError, InternalError, UnavailableError
from headrace.files import Files
from headrace.plan.stages import Exchange
from headrace.records.frame import read_frame, read_header
from headrace.runtime.chunk import Chunk, from_exchange
from headrace.runtime.exchange import ExchangeFiles, ExchangeWriter
from headrace.runtime.exchange_file import (
    PIECE_BYTES,
    RECORD,
    ServerRecord,
    Wanted,
    epoch_folder,
    is_running,
)
from headrace.runtime.orders import ON_HOST, SlotOrder

FOLDER = "_exchange"
"""Folder of a state directory with the files of jobs; no job can have this name."""
SILENCE_S = 10.0
"""So long a host that is asked for rows may send none."""
START_S, START_POLL_S = 30.0, 0.01
AHEAD = 4
"""So many pieces of a host are fetched before they are wanted."""
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
        self._clients: dict[str, Any] = {}
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
        far: dict[str, list[tuple[int, ExchangePlace]]] = {}
        for number, place in enumerate(places):
            if place.host != self._host:
                far.setdefault(place.address, []).append((number, place))
        with _Fetches(self._clients) as fetches:
            for address, wanted in far.items():
                files = [(place.name, exchange.file_schema(place.name)) for _, place in wanted]
                numbers = [number for number, _ in wanted]
                fetches.begin(address, numbers, _epoch(order), order.token, files, (first, last))
            for number, place in enumerate(places):
                if place.host != self._host:
                    yield from fetches.read(place.address, number)
                    continue
                file = self._folder / epoch_folder(_epoch(order), order.token) / place.name
                if not file.exists():
                    raise ExchangeLostError(f"exchange file {place.name} of this host is gone")
                yield from self.rows_of(file, exchange, first, last)

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
                    _servers[self._folder] = subprocess.Popen(
                        command,
                        start_new_session=True,  # or it ended with the daemon of one slot
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    )
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
    return record.port if is_running(record.process) else None


class _Fetches:
    """What one task fetches, from each host in a thread of its own, a few pieces ahead."""

    def __init__(self, clients: dict[str, Any]) -> None:
        self._clients = clients
        self._streams: dict[str, _Stream] = {}

    def begin(
        self,
        address: str,
        numbers: Sequence[int],
        epoch: str,
        token: str,
        files: Sequence[tuple[str, pa.Schema]],
        groups: tuple[int, int],
    ) -> None:
        """Begin to fetch files of a host, which have these numbers here."""
        flight: Any = import_module("pyarrow.flight")  # which the first to need it waits for
        if address not in self._clients:
            self._clients[address] = flight.connect(f"grpc://{address}")
        named = [(name, schema.serialize().to_pybytes()) for name, schema in files]
        wanted = Wanted(epoch, token, named, *groups)
        ticket = flight.Ticket(msgspec.msgpack.encode(wanted))
        schemas = {number: schema for number, (_, schema) in zip(numbers, files, strict=True)}
        self._streams[address] = _Stream(
            self._clients, address, ticket, list(numbers), schemas, groups[0]
        )

    def read(self, address: str, number: int) -> Iterator[Chunk]:
        """Yield the rows of one file; files of a host are read in the order of their numbers."""
        return self._streams[address].read(number)

    def __enter__(self) -> _Fetches:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            stream.close()


class _Piece(NamedTuple):
    number: int
    chunk: Chunk


class _Stream:
    """The pieces of one host, in the order of its files."""

    def __init__(
        self,
        clients: dict[str, Any],
        address: str,
        ticket: Any,
        numbers: list[int],
        schemas: dict[int, pa.Schema],
        first: int,
    ) -> None:
        self._clients, self._address, self._ticket = clients, address, ticket
        self._numbers, self._schemas, self._first = numbers, schemas, first
        self._pieces: queue.Queue[_Piece | Exception | None] = queue.Queue(AHEAD)
        self._held: _Piece | None = None
        self._is_over = False
        self._closed = threading.Event()
        self._source: Any = None
        thread = threading.Thread(target=self._fetch, name="headrace-exchange", daemon=True)
        thread.start()

    def _fetch(self) -> None:
        try:
            self._source = self._clients[self._address].do_get(self._ticket)
            for part in self._source:
                if not self._put(self._piece(part.data)):
                    return
            self._put(None)
        except Exception as error:  # noqa: BLE001 - the thread that reads raises it
            self._put(error)

    def _put(self, piece: _Piece | Exception | None) -> bool:
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._pieces.put(piece, timeout=0.5)
                return True
        return False

    def _piece(self, row: pa.RecordBatch) -> _Piece:
        """Return verified rows."""
        file, data, sizes, checksum = (column[0] for column in row.columns)
        number, groups = self._numbers[file.as_py()], sizes.as_py()
        origin = f"exchange file of {self._address}"
        if xxh3_64_intdigest(groups) != checksum.as_py():
            raise CorruptDataError(f"{origin} came damaged")
        frame = data.as_buffer()
        batch = read_frame(frame, read_header(frame, 0, origin), self._schemas[number], origin)
        counts = np.frombuffer(groups, "<u4").astype(np.uint32)
        own = np.arange(self._first, self._first + len(counts), dtype=np.uint16)
        return _Piece(number, from_exchange(batch, np.repeat(own, counts)))

    def _next(self) -> _Piece | None:
        if self._held is not None or self._is_over:
            held, self._held = self._held, None
            return held
        try:
            piece = self._pieces.get(timeout=SILENCE_S)
        except queue.Empty:
            self._clients.pop(self._address, None)
            raise ExchangeLostError(
                f"host {self._address} has sent no rows of the epoch for {SILENCE_S:g} s"
            ) from None
        if isinstance(piece, Exception):
            self._clients.pop(self._address, None)
            why = str(piece).partition("\n")[0][:300]
            raise ExchangeLostError(
                f"rows of the epoch cannot be fetched from host {self._address}: {why}"
            ) from piece
        self._is_over = piece is None
        return piece

    def read(self, number: int) -> Iterator[Chunk]:
        while (piece := self._next()) is not None:
            if piece.number != number:
                self._held = piece
                return
            yield piece.chunk

    def close(self) -> None:
        self._closed.set()
        if not self._is_over and self._source is not None:
            with suppress(Exception):
                self._source.cancel()
