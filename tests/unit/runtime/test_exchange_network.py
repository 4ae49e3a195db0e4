"""What hosts that share no folder exchange: all rows, or an error by which it is made again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.support.limits import limit
from tests.support.processes import is_alive, kill, until

from headrace.files import Files
from headrace.plan.stages import TIME, WATERMARK, Exchange
from headrace.runtime.chunk import Chunk
from headrace.runtime.exchange import ExchangeWriter
from headrace.runtime.exchange_file import RECORD, WANTED, WIRE, Admission, ServerRecord
from headrace.runtime.exchange_network import ExchangeLostError, NetworkAddress, NetworkExchange
from headrace.runtime.orders import SlotOrder

SCHEMA = pa.schema([("k", pa.int64()), (TIME, pa.int64()), (WATERMARK, pa.int64())])
EXCHANGE = Exchange("by-k", 0, 1, ("k",), SCHEMA)
GROUPS, HOSTS = 8, 2


class Hosts:
    """Two hosts, each with a disk of its own, and a storage that nobody asks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.epoch, self.token = folder, 1, "token"
        network = NetworkAddress("127.0.0.1", os.getpid())
        self.files = [
            NetworkExchange(
                Files(sync=False), self.disk(n) / "_remote/s3/b/job", self.disk(n), f"h{n}", network
            )
            for n in range(HOSTS)
        ]

    def disk(self, host: int) -> Path:
        return self.folder / f"host-{host}"

    def server(self, host: int) -> int:
        record = self.disk(host) / "_exchange" / "job" / RECORD
        return msgspec.json.decode(record.read_bytes(), type=ServerRecord).process

    def asked(self, host: int, data: bytes) -> bytes:
        """Send bytes to a server, and return all that it answers."""
        record = self.disk(host) / "_exchange" / "job" / RECORD
        port = msgspec.json.decode(record.read_bytes(), type=ServerRecord).port
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            line.sendall(data)
            with suppress(OSError):  # it may have answered and closed
                line.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: line.recv(1 << 16), b""))

    def order(self, paths: list[str], **changes: Any) -> SlotOrder:
        order = SlotOrder("job", "line", 3, self.epoch, 1, 0, 0, "plan", token=self.token)
        return msgspec.structs.replace(order, exchange={"by-k": paths}, **changes)

    def write(self, host: int, name: str, rows: range) -> str:
        writer = ExchangeWriter(SCHEMA, EXCHANGE.keys, GROUPS)
        times = np.array(rows)
        batch = pa.record_batch([pa.array(rows, pa.int64())], names=["k"])
        writer.add(Chunk(batch, times, times - 5))
        self.files[host].begin(self.order([]))
        return self.files[host].write(self.order([]), name, writer, 1)[0]

    def read(self, host: int, paths: list[str], first: int = 0, last: int = GROUPS) -> list[int]:
        order = self.order(paths)
        self.files[host].begin(order)
        found: list[int] = []
        for chunk in self.files[host].read(order, EXCHANGE, first, last):
            assert chunk.times is not None
            assert chunk.groups is not None
            assert chunk.times.tolist() == chunk.batch.column(0).to_pylist()
            assert {*chunk.groups.tolist()} <= {*range(first, last)}
            found += chunk.times.tolist()
        return found


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    made = Hosts(folder)
    yield made
    for number in range(HOSTS):
        if (made.disk(number) / "_exchange").exists() and is_alive(made.server(number)):
            kill(made.server(number))


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts of one test, which ends their servers."""
    with two_hosts(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def hosts(lasting: Hosts) -> Hosts:
    """Hosts whose servers other tests use as well, and an epoch that none of these had."""
    lasting.epoch, lasting.token = lasting.epoch + 2, "token"
    return lasting


def test_servers_end_with_their_disks(mortal: Hosts) -> None:
    for number in range(HOSTS):
        mortal.write(number, "file.arrow", range(10))
    servers = [mortal.server(number) for number in range(HOSTS)]
    for number in range(HOSTS):
        shutil.rmtree(mortal.disk(number), ignore_errors=True)
    until(lambda: not any(map(is_alive, servers)), "servers to end")
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in servers), "no zombies")


def test_a_server_ends_whose_disk_goes_as_soon_as_it_is_known(tmp_path: Path) -> None:
    """It looks at what it has written, and not at what it finds there."""
    program = (
        "import shutil, sys; from pathlib import Path\n"
        "from headrace.runtime import exchange_server\n"
        "def write(path, data): shutil.rmtree(path.parent)\n"
        "exchange_server.write_private = write\n"
        "exchange_server.serve(Path(sys.argv[1]), '127.0.0.1', int(sys.argv[2]))\n"
    )
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", program, folder, str(os.getpid())], check=True, timeout=60
    )


def test_each_host_reads_the_rows_of_its_groups_in_the_order_of_files(hosts: Hosts) -> None:
    paths = [hosts.write(n % 2, f"file-{n}.arrow", range(n * 100, n * 100 + 50)) for n in range(4)]
    found = [hosts.read(host, paths) for host in range(HOSTS)]
    assert found[0] == found[1]
    assert sorted(found[0]) == [row for n in range(4) for row in range(n * 100, n * 100 + 50)]
    assert [row // 100 for row in found[0]] == sorted(row // 100 for row in found[0])
    halves = hosts.read(0, paths, 0, 3) + hosts.read(1, paths, 3, GROUPS)
    assert sorted(halves) == sorted(found[0])


def test_another_token_finds_nothing(hosts: Hosts) -> None:
    path = hosts.write(0, "file.arrow", range(10))
    hosts.token = "another"
    with pytest.raises(ExchangeLostError, match="no files of an epoch with this token"):
        hosts.read(1, [path])


def test_names_lead_nowhere_else(hosts: Hosts) -> None:
    path = hosts.write(0, "file.arrow", range(10))
    with pytest.raises(ExchangeLostError, match="no such files"):
        hosts.read(1, [path.replace("file.arrow", "../file.arrow")])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"this is no request"),
        (WANTED.pack(WIRE, 1 << 20, 0), b"too large a one"),
        (WANTED.pack(WIRE, 10, 1 << 30), b"too large a one"),
        (WANTED.pack(WIRE, 4, 4) + b"\xc1\xc1\xc1\xc1", b"this is no request"),
        (WANTED.pack(WIRE, 100, 4) + b"early", b""),
        (b"", b""),
    ],
)
def test_what_is_no_request_is_refused_and_does_no_harm(
    hosts: Hosts, data: bytes, said: bytes
) -> None:
    path = hosts.write(0, "file.arrow", range(10))
    answer = hosts.asked(0, data)
    assert said in answer
    assert bool(said) == bool(answer)
    assert sorted(hosts.read(1, [path])) == [*range(10)]


def test_no_more_of_a_request_is_read_without_the_token_of_its_epoch(hosts: Hosts) -> None:
    hosts.write(0, "file.arrow", range(10))
    admission = msgspec.msgpack.encode(Admission(f"{hosts.epoch:012d}-00000003", "another"))
    answer = hosts.asked(0, WANTED.pack(WIRE, len(admission), 1 << 20) + admission)
    assert b"no files of an epoch with this token" in answer


def test_one_who_takes_no_more_rows_leaves_the_server_to_others(hosts: Hosts) -> None:
    rows = 600_000  # more than buffers hold
    order = hosts.order([hosts.write(0, "file.arrow", range(rows))])
    hosts.files[1].begin(order)
    with ExitStack() as broken_off:
        for _ in range(3):
            found = hosts.files[1].read(order, EXCHANGE, 0, GROUPS)
            assert isinstance(found, Generator)
            broken_off.callback(found.close)
            assert next(found).rows < rows
        all_rows = hosts.files[1].read(order, EXCHANGE, 0, GROUPS)
        assert sum(chunk.rows for chunk in all_rows) == rows
    all_rows = hosts.files[1].read(order, EXCHANGE, 0, GROUPS)
    assert sum(chunk.rows for chunk in all_rows) == rows


def test_a_server_that_is_killed_takes_its_epoch_along_and_no_other(mortal: Hosts) -> None:
    path = mortal.write(0, "file.arrow", range(10))
    assert mortal.read(1, [path])
    kill(mortal.server(0))
    with pytest.raises(ExchangeLostError, match="cannot be fetched from host"):
        mortal.read(1, [path])
    mortal.epoch += 1
    assert sorted(mortal.read(1, [mortal.write(0, "file.arrow", range(20))])) == [*range(20)]


def test_one_that_says_nothing_is_not_waited_for(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, exchange_silence_s=0.3)
    path = hosts.write(0, "file.arrow", range(10))
    os.kill(hosts.server(0), signal.SIGSTOP)
    try:
        with pytest.raises(ExchangeLostError, match="has sent no rows"):
            hosts.read(1, [path])
    finally:
        os.kill(hosts.server(0), signal.SIGCONT)


def test_damage_is_found_by_whichever_host_reads(hosts: Hosts) -> None:
    path = hosts.write(0, "file.arrow", range(1000))
    (file,) = hosts.disk(0).glob("_exchange/job/*/file.arrow")
    data = bytearray(file.read_bytes())
    data[2000] ^= 1
    file.write_bytes(data)
    with pytest.raises(ExchangeLostError, match="is damaged at byte"):
        hosts.read(1, [path])


def test_files_of_epochs_before_go(hosts: Hosts) -> None:
    first = hosts.write(0, "file.arrow", range(10))
    hosts.epoch += 1
    hosts.write(0, "file.arrow", range(10))
    assert len([*hosts.disk(0).glob("_exchange/job/*/file.arrow")]) == 1
    hosts.epoch -= 1
    with pytest.raises(ExchangeLostError):
        hosts.read(1, [first])
