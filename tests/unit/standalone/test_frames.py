"""Messages between processes: whole or not at all, and only from who knows the token."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from headrace.errors import UnavailableError
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.standalone.wire import (
    MOST_BYTES,
    Alive,
    Connection,
    Do,
    Done,
    Hello,
    Leave,
    Message,
    Over,
)


def pair() -> tuple[Connection, Connection, socket.socket]:
    one, other = socket.socketpair()
    return Connection(one), Connection(other), one


def test_messages_arrive_as_they_were_sent() -> None:
    here, there, _ = pair()
    order = SlotOrder(
        job="j", lineage="l", generation=1, epoch=2, level=0, slot=3, time_ms=4, plan="p"
    )
    sent: list[Message] = [
        Hello("j", "h", "m", 1, 2),
        Do(1, "j", 0, order),
        Do(2, "j", 1),
        Done(1, SlotReport(3, "a", "h", 1)),
        Done(2, problem="no"),
        Alive(),
        Leave(),
        Over(True),
    ]
    for message in sent:
        here.send(message)
    assert [there.receive() for _ in sent] == sent
    here.close()
    assert there.receive() is None
    there.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MOST_BYTES + 1),
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 4) + b"\x80\x04N.",
        struct.pack(">I", 20) + b'{"type":"Exec","x":1}'[:20],
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    here, there, raw = pair()
    raw.sendall(data)
    with pytest.raises(UnavailableError, match="message"):
        there.receive()
    here.close()
    there.close()


def test_a_torn_message_is_the_end() -> None:
    here, there, raw = pair()
    raw.sendall(struct.pack(">I", 100) + b"{")
    here.close()
    assert there.receive() is None
    there.close()


def proofs(driver: str, member: str) -> tuple[bool, bool]:
    here, there, _ = pair()
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(there.prove(member, is_driver=False)))
    other.start()
    own = here.prove(driver, is_driver=True)
    other.join()
    here.close()
    there.close()
    return own, found[0]


def test_both_sides_have_to_know_the_token() -> None:
    assert proofs("secret", "secret") == (True, True)
    assert proofs("secret", "guess") == (False, False)


def test_a_proof_sent_back_is_none() -> None:
    """Who mirrors what the driver says knows nothing."""
    one, other = socket.socketpair()

    def echo() -> None:
        while part := other.recv(64):
            other.sendall(part)

    thread = threading.Thread(target=echo)
    thread.start()
    wire = Connection(one)
    assert not wire.prove("secret", is_driver=True)
    wire.close()
    thread.join()
    other.close()
