"""The storage of a job on its driver's disk holds the contract of an object storage, by TCP."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.homes import Files
from tests.support.processes import REAL_CLOCK

from headrace.errors import InternalError
from headrace.objects import ObjectStorage, StorageAwayError
from headrace.runtime.host_storage import HostStorage, ServedStorage, StorageServer
from headrace.testing.object_storage_contract import ObjectStorageContract


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServer]:
    folder = tmp_path / "contract"
    folder.mkdir()
    with StorageServer(folder, "a-host", "127.0.0.1", Files(sync=False)) as running:
        yield running


def asking(served: ServedStorage, retry_timeout_s: float = 10.0) -> HostStorage:
    return HostStorage(served, REAL_CLOCK, retry_timeout_s)


class TestHostStorage(ObjectStorageContract):
    """Names begin with the name of the job, which the contract's do."""

    @pytest.fixture(autouse=True)
    def found(self, server: StorageServer) -> None:
        self.server = server

    def open(self) -> ObjectStorage:
        return asking(self.server.served)


@pytest.mark.parametrize(
    "name", ["other/a", "contract/../a", "contract/.a", "contract//a", "contract/a/..", ""]
)
def test_names_outside_of_the_job_are_refused(server: StorageServer, name: str) -> None:
    storage = asking(server.served)
    with pytest.raises(InternalError, match="is not in the storage of the job"):
        storage.put_new(name, b"x")
    with pytest.raises(InternalError, match="is not in the storage of the job"):
        storage.get(name)


def test_a_token_of_another_run_is_refused(server: StorageServer, tmp_path: Path) -> None:
    """Before what follows it is read."""
    other = asking(replace(server.served, token="0" * 32))
    with pytest.raises(InternalError, match="a token of another run"):
        other.put("contract/a", bytes(40 << 20))
    with pytest.raises(InternalError, match="a token of another run"):
        other.entries("contract")
    assert list((tmp_path / "contract").iterdir()) == []


def test_a_server_that_is_gone_is_a_storage_that_is_away(server: StorageServer) -> None:
    server.close()
    with pytest.raises(StorageAwayError, match=r"driver's host, 127\.0\.0\.1:\d+, does not answer"):
        asking(server.served, 0.2).get("contract/a")


def test_a_server_outlives_a_moment_without_threads(server: StorageServer) -> None:
    storage = asking(server.served)
    storage.put("contract/a", b"x")
    size = threading.stack_size(1 << 47)  # more than a process can have
    try:
        with pytest.raises(StorageAwayError, match="does not answer"):
            asking(server.served, 0.1).get("contract/a")
    finally:
        threading.stack_size(size)
    assert storage.get("contract/a") == b"x"


class _Between:
    """Passes bytes on to a server, and breaks connections off or changes bytes on their way."""

    def __init__(self, served: ServedStorage, rng: random.Random) -> None:
        self._target, self._rng = (served.host, served.port), rng
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.served = replace(served, port=self._listener.getsockname()[1])
        self.left = 40
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                there = socket.create_connection(self._target)
                fails = self._rng.choice(["asked", "answered", ""]) if self.left > 0 else ""
                self.left -= bool(fails)
                at = self._rng.randrange(200)
                ways = [(line, there, fails == "asked"), (there, line, fails == "answered")]
                for one in ways:
                    threading.Thread(target=self._pass, args=(*one, at), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, fails: bool, at: int) -> None:
        damages, passed = at % 2 == 0, 0
        with suppress(OSError):
            while data := here.recv(1 << 16):
                if fails and passed + len(data) > at:
                    if not damages:
                        break
                    here_at = at - passed
                    data = data[:here_at] + bytes([data[here_at] ^ 1]) + data[here_at + 1 :]
                    fails = False
                passed += len(data)
                there.sendall(data)
        for one in (here, there):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def test_lost_answers_do_not_lose_or_double_what_was_created(
    server: StorageServer, tmp_path: Path
) -> None:
    """Each name is created by the one call that says so, however often it had to ask."""
    between = _Between(server.served, random.Random(3))
    try:
        storage, safe = asking(between.served), asking(server.served)
        for number in range(40):
            data = bytes([number]) * 100
            assert storage.put_new(f"contract/{number}", data)
            assert safe.get(f"contract/{number}") == data
            assert storage.get(f"contract/{number}") == data
            storage.get_file(f"contract/{number}", tmp_path / str(number))
            assert (tmp_path / str(number)).read_bytes() == data
            assert not storage.put_new(f"contract/{number}", b"other")
        assert between.left == 0
    finally:
        between.close()
