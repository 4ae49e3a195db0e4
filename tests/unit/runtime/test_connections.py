"""A process that answers connections goes on when room or threads are short."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.runtime.connections import answer_each, stop_listening

SOON_S = 20.0


class Greeter:
    """Says a word on each connection, and then waits until it may go on."""

    def __init__(self, most: int) -> None:
        self.room, self.over, self.goes_on = (
            threading.Semaphore(most),
            threading.Event(),
            threading.Event(),
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        answer_each(self.listener, self._answer, self.room, self.over, name="greeter", full=b"full")

    def _answer(self, line: socket.socket) -> None:
        try:
            with line:
                line.sendall(b"hello")
                assert self.goes_on.wait(SOON_S)
        finally:
            self.room.release()

    def ask(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(self.listener.getsockname(), SOON_S)


@contextmanager
def greeting(most: int) -> Iterator[Greeter]:
    greeter = Greeter(most)
    greeter.thread.start()
    try:
        yield greeter
    finally:
        greeter.goes_on.set()
        stop_listening(greeter.listener, greeter.over)
        greeter.thread.join(SOON_S)
    assert not greeter.thread.is_alive()


def test_one_for_which_there_is_no_room_is_told_so_and_may_come_again() -> None:
    with greeting(1) as greeter, greeter.ask() as first:
        assert first.recv(9) == b"hello"
        with greeter.ask() as second:
            assert second.recv(9) == b"full"
        greeter.goes_on.set()
        assert first.recv(9) == b""
        assert greeter.room.acquire(timeout=SOON_S)
        greeter.room.release()
        with greeter.ask() as third:
            assert third.recv(9) == b"hello"


def test_where_no_thread_can_start_the_next_is_still_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def seldom(thread: threading.Thread) -> None:
        if thread.name == "greeter" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", seldom)
    with greeting(1) as greeter:
        with greeter.ask() as first:
            assert first.recv(9) == b"full"
        with greeter.ask() as second:
            assert second.recv(9) == b"hello"
