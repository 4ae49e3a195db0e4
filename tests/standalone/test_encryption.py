"""Messages between processes: only who can read the driver's address file reads or sends any."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.standalone.test_driver_side import World
from tests.support.processes import until

from headrace.config import load_settings
from headrace.errors import InvalidInputError
from headrace.standalone import wire
from headrace.standalone.group import DriverAddress, read_address
from headrace.standalone.shared_job import Disconnect, GroupMember, hello_message
from headrace.standalone.slots import LocalSlots
from headrace.standalone.wire import Connection, Hello, Welcome, make_certificate

SILENCE_S = 2.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.group.close(ended=False)


def address_of(world: World) -> DriverAddress:
    found = read_address(world.storage)
    assert found is not None
    return found


class Between:
    """Listens where the driver could be, and passes on what comes, changed as it is told.

    ``seen`` has all that went through.
    """

    def __init__(self, driver: DriverAddress, change: Callable[[bytes, int], bytes] | None = None):
        self._driver, self._change = driver, change or (lambda data, at: data)
        self.seen, self._at = bytearray(), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = structs.replace(driver, port=self._listener.getsockname()[1])
        self._held = ExitStack()
        self._held.callback(self._listener.close)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            onward = socket.create_connection((self._driver.host, self._driver.port), 5)
            for one in (connection, onward):
                self._held.callback(one.close)
            for source, target in ((connection, onward), (onward, connection)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(self._change(data, len(self.seen) - len(data)))
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._held.close()


def follow(address: DriverAddress, storage: Path, joined: Callable[[Welcome], None]) -> Disconnect:
    """Join as a process of another host would."""
    local = LocalSlots(load_settings(None, [f"home={storage}"], {}), "threads")
    hello = hello_message("j", "other", 1)
    return GroupMember(hello, local, SILENCE_S, threading.Event()).follow(address, joined)


def test_what_goes_over_the_network_cannot_be_read(world: World, tmp_path: Path) -> None:
    with closing(Between(address_of(world))) as between:
        came = threading.Event()
        thread = threading.Thread(
            target=lambda: follow(between.address, tmp_path / "own", lambda welcome: came.set())
        )
        thread.start()
        assert came.wait(10)
        until(lambda: len(world.group.members) == 2, "the process that joins")
        world.group.close(ended=True)
        thread.join(10)
        assert not thread.is_alive()
        address = address_of(world) if read_address(world.storage) else between.address
        for word in (b"Hello", b'"job"', b"other", b"Welcome", address.token.encode()):
            assert word not in between.seen
        assert len(between.seen) > 1000


@pytest.mark.parametrize("after", [400, 1800])
def test_what_is_changed_on_its_way_ends_the_connection(
    world: World, tmp_path: Path, after: int
) -> None:
    """In the handshake, and in the messages behind it."""
    changed = threading.Event()

    def flip(data: bytes, at: int) -> bytes:
        if changed.is_set() or at + len(data) <= after:
            return data
        changed.set()
        place = max(0, after - at)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    with closing(Between(address_of(world), flip)) as between:
        parted = follow(between.address, tmp_path / "own", lambda welcome: None)
    assert changed.is_set()
    assert parted is Disconnect.LOST
    until(lambda: len(world.group.members) == 1, "the driver to be alone")


class Pretender:
    """Takes connections in the driver's place, with a certificate of its own."""

    def __init__(self, driver: DriverAddress, identity: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = structs.replace(driver, port=self._listener.getsockname()[1])
        self._identity, self._token = identity, driver.token
        self.proven: list[bool] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            with closing(Connection(connection)) as wire:
                token, identity = self._token, self._identity
                self.proven.append(wire.prove(token, is_driver=True, identity=identity))

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("identity", ["its own", ""])
def test_who_stands_in_the_drivers_place_is_left(
    world: World, tmp_path: Path, identity: str
) -> None:
    """Even one that knows the token, but not the key: a process says nothing to it."""
    made = make_certificate("127.0.0.1") if identity else ""
    with closing(Pretender(address_of(world), made)) as pretender:
        joined = list[Any]()
        assert follow(pretender.address, tmp_path / "own", joined.append) is Disconnect.LOST
        assert joined == []
        until(lambda: pretender.proven == [False], "what the pretender comes to")


@pytest.mark.parametrize("identity", ["its own", ""])
def test_a_process_without_the_key_is_not_taken_in(world: World, identity: str) -> None:
    """Even one that knows the token: in plain text, or with another certificate."""
    address = address_of(world)
    made = make_certificate("127.0.0.1") if identity else ""
    with closing(Connection(world.connected())) as wire:
        assert not wire.prove(address.token, is_driver=False, identity=made)
    plain = struct.pack(">I", 10) + b'{"type":1}'
    with closing(world.connected()) as connection:
        connection.settimeout(10)
        with suppress(ConnectionError):
            connection.sendall(plain)
            while connection.recv(1 << 10):  # an alert, and the end
                pass
    assert [one.host for one in world.group.members] == ["own"]


def test_who_has_the_key_but_not_the_token_is_not_taken_in(world: World) -> None:
    identity = address_of(world).identity
    with closing(Connection(world.connected())) as wire:
        assert not wire.prove("guess", is_driver=False, identity=identity)
    assert [one.host for one in world.group.members] == ["own"]


def test_a_driver_that_cannot_encrypt_listens_on_loopback_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_COMMAND", ("no-such-openssl",))
    assert make_certificate("127.0.0.1") == make_certificate("::1") == ""
    for address in ("10.1.2.3", "0.0.0.0", "fe80::1%eth0"):
        with pytest.raises(InvalidInputError, match=r"encrypted.*openssl.* is not installed"):
            make_certificate(address)
    world = World(tmp_path)
    try:
        assert address_of(world).identity == ""
        world.joined("a").close()
    finally:
        world.group.close(ended=False)


def test_large_and_many_messages_arrive_in_order_both_ways(world: World) -> None:
    """While both sides send more than the network takes."""
    identity = make_certificate("127.0.0.1")
    listener = socket.create_server(("127.0.0.1", 0))
    with closing(listener), ExitStack() as held:
        here = Connection(socket.create_connection(listener.getsockname()))
        there = Connection(listener.accept()[0])
        held.callback(here.close)
        held.callback(there.close)
        found: list[bool] = []
        other = threading.Thread(
            target=lambda: found.append(there.prove("t", is_driver=True, identity=identity))
        )
        other.start()
        assert here.prove("t", is_driver=False, identity=identity)
        other.join()
        assert found == [True]
        sent = [Hello("j" * size, "h", "m", 1, 1) for size in (1, 5_000_000, 3, 3_000_000, 17_000)]

        def send(wire: Connection) -> None:
            for message in sent:
                wire.send(message)

        senders = [threading.Thread(target=send, args=(wire,)) for wire in (here, there)]
        received: dict[int, list[Any]] = {0: [], 1: []}
        readers = [
            threading.Thread(
                target=lambda at=at, wire=wire: received[at].extend(wire.receive() for _ in sent)
            )
            for at, wire in enumerate((here, there))
        ]
        for thread in (*senders, *readers):
            thread.start()
        for thread in (*senders, *readers):
            thread.join(30)
        assert received == {0: sent, 1: sent}
