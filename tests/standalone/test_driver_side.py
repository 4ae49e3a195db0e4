"""The driver's side of a shared job, against processes that freeze, and strangers."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.support.runs import until

from headrace.clock import SystemClock
from headrace.config import load_settings
from headrace.coordinator.leader_lease import read_members
from headrace.files import Files
from headrace.runtime.orders import SlotReport
from headrace.standalone import wire
from headrace.standalone.group import (
    BACKLOG,
    MemberLostError,
    Membership,
    ProcessGroup,
    read_address,
)
from headrace.standalone.shared_job import _notify
from headrace.standalone.slots import LocalSlots, SlotDiedError, settle
from headrace.standalone.wire import Alive, Connection, Do, Done, Hello, Message, Welcome

SILENCE_S = 3.0


class Slow(Files):
    """A disk on which the first of two files of one name is put in place last."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.waits, self.goes_on = threading.Event(), threading.Event()
        self.is_first = False

    def replace(self, path: Path, data: bytes, *, durable: bool = True) -> None:
        """Put a file in place."""
        if self.is_first:
            self.is_first = False
            self.waits.set()
            self.goes_on.wait(0.5)
        super().replace(path, data, durable=durable)


class World:
    """A driver that takes processes in."""

    def __init__(self, storage: Path) -> None:
        self.storage, self.files = storage, Slow()
        local = LocalSlots(load_settings(None, [f"home={storage}"], {}), "threads")
        self.group = ProcessGroup(local, 1, "own", "j", Membership(SILENCE_S), SystemClock())
        self.said: list[str] = []
        self.group.open(storage, "127.0.0.1", self.files, self.said.append)

    def connected(self) -> socket.socket:
        address = read_address(self.storage)
        assert address is not None
        return socket.create_connection((address.host, address.port), 5)

    def joined(self, host: str) -> Connection:
        address = read_address(self.storage)
        assert address is not None
        wire = Connection(self.connected())
        assert wire.prove(address.token, is_driver=False, identity=address.identity)
        wire.send(Hello("j", host, "m", 7, 1))
        await_welcome(wire)
        return wire


def await_welcome(wire: Connection) -> None:
    while not isinstance(message := wire.receive(), Welcome):
        assert isinstance(message, Alive)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.group.close(ended=False)


def test_a_frozen_process_that_takes_no_order_is_lost_and_holds_up_no_other(world: World) -> None:
    """An order may be larger than what the network takes of it."""
    frozen, lives = world.joined("a"), world.joined("b")
    number = next(one.number for one in world.group.members if one.host == "a")
    job, futures = "j" * (32 << 20), []
    asks = threading.Thread(target=lambda: futures.append(world.group.ask(number, job, 0, None)))
    asks.start()
    lives.wait_at_most(SILENCE_S)
    end, after = time.monotonic() + 30, 3
    while after and time.monotonic() < end:
        assert isinstance(lives.receive(), Alive)
        lives.send(Alive())
        after -= all(one.number != number for one in world.group.members)
    asks.join(5)
    assert not asks.is_alive()
    with pytest.raises(MemberLostError):
        futures[0].result(5)
    assert {one.host for one in world.group.members} == {"own", "b"}
    frozen.close()
    lives.close()


def test_processes_join_after_a_moment_without_room_for_connections(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def full(listener: socket.socket) -> tuple[socket.socket, object]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", full)
    world.joined("a").close()  # the accept before was under way already
    assert failed.wait(5)
    world.joined("b").close()


def meeting() -> int:
    return sum(thread.name == "headrace-member" for thread in threading.enumerate())


def test_strangers_are_bounded_and_go_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends a byte now and then gets no more time than who says nothing."""
    monkeypatch.setattr(wire, "HANDSHAKE_S", 0.5)
    strangers = [world.connected() for _ in range(BACKLOG + 20)]
    until(meeting, "somebody who meets them")
    most, end = 0, time.monotonic() + 1.5
    while time.monotonic() < end and meeting():
        most = max(most, meeting())
        for stranger in strangers:
            with suppress(OSError):
                stranger.sendall(b"x")
        threading.Event().wait(0.2)
    assert most <= BACKLOG
    assert not meeting()
    for stranger in strangers:
        stranger.close()
    world.joined("a").close()


def test_who_says_what_is_no_message_is_let_go_without_a_word(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    address = read_address(world.storage)
    assert address is not None
    with closing(Connection(world.connected())) as wire:
        assert wire.prove(address.token, is_driver=False, identity=address.identity)
        wire.wait_at_most(5)
        begun = time.monotonic()
        wire._send(b"\0\0\0\2[]")
        while wire.receive() is not None:
            pass
        assert time.monotonic() - begun < 5
    until(lambda: not meeting(), "its end")
    assert capfd.readouterr().err == ""


def test_what_is_noted_of_members_is_the_newest(world: World) -> None:
    world.files.is_first = True
    wires = []
    first = threading.Thread(target=lambda: wires.append(world.joined("a")))
    first.start()
    assert world.files.waits.wait(5)
    with closing(world.connected()) as other:
        address = read_address(world.storage)
        assert address is not None
        wires.append(Connection(other))
        assert wires[0].prove(address.token, is_driver=False, identity=address.identity)
        wires[0].send(Hello("j", "b", "m", 8, 1))
        first.join(10)
        wanted = {"own", "a", "b"}
        until(lambda: {one.host for one in world.group.members} == wanted, "both in")
        await_welcome(wires[0])  # by then it is noted
        assert {one.host_id for one in read_members(world.storage)} == wanted
    for one in wires:
        one.close()


def test_nobody_joins_a_driver_that_has_ended(world: World) -> None:
    here, there = socket.socketpair()
    world.group.close(ended=True)
    with closing(Connection(here)) as wire, closing(Connection(there)) as other:
        wire.wait_at_most(1)
        assert world.group.serve(wire, Hello("j", "a", "m", 7, 1)) is None
        assert other.receive() is None


def test_the_death_of_a_slot_is_told_as_such() -> None:
    """Its order may be given again; what else went wrong may not."""
    here, there = map(Connection, socket.socketpair())
    for error, wanted in [(SlotDiedError("died"), SlotDiedError), (OSError("no"), Exception)]:
        asked: Future[SlotReport] = Future()
        asked.set_exception(error)
        _notify(here, 1, asked)
        done: Message | None = there.receive()
        assert isinstance(done, Done)
        answer: Future[SlotReport] = Future()
        settle(answer, done, 0)
        assert isinstance(answer.exception(), wanted)
        assert isinstance(answer.exception(), SlotDiedError) == (wanted is SlotDiedError)
    here.close()
    there.close()
    assert Do(1, "j", 0).order is None
